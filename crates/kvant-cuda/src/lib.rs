#![doc = include_str!("../docs/device.md")]
#![deny(missing_docs)]

#[cfg(feature = "cuda")]
pub mod device;
pub mod kernels;
pub mod layout;
pub mod memory;
pub mod params;
pub mod plan;
pub mod table;
pub mod weights;

pub use layout::{Deal, PAGE_TOKENS, UNIT, Unsupported};
pub use memory::PageMemory;
pub use plan::{Decoding, Item, Slots, StepPlan};
pub use table::{PageEntry, PageTable};
pub use weights::{WeightError, WeightType};
