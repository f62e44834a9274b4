//! What the handshake between threads is made of: atomics, sleep, the clock, and how long to watch. The models in `loom/` compile the same
//! handshake with a model checker's in this place.

pub use std::hint::spin_loop;
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};
pub use std::sync::{Mutex, PoisonError};
pub use std::thread::{Thread, park, yield_now};
pub use std::time::Instant;

use std::time::Duration;

/// How long a worker watches for the next region before it sleeps: longer than what lies between two regions of
/// a decode step, sampling included, and too short to be seen on a battery.
pub const WATCH: Duration = Duration::from_micros(200);

/// Glances at a slot between two looks at the clock.
pub const GLANCES: u32 = 64;

/// Glances after which a caller gives its processor to others: tasks are alike, so a worker that is this late has
/// a long task or was stopped by the system.
pub const SPIN_LIMIT: u32 = 1 << 12;
