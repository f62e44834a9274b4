//! What every backend is held to, in one line: [`conformance!`].
//!
//! A backend's test program names its device, how exact its arithmetic is, and what it refuses; the tests are the same for all, one for
//! each [`Part`]:
//!
//! ```no_run
//! use kvant_conformance::{Bounds, Host, ModelSet, Part, Subject, check};
//! use std::sync::Arc;
//!
//! let bounds = Bounds::F32(|_| 1e-4);
//! let subject = Subject { device: Arc::new(Host), models: ModelSet::Fixtures, short: false, bounds, refuses: &[] };
//! check(Part::Memory, &subject);
//! ```
//!
//! | part | what it asks |
//! |---|---|
//! | `models` | every model has the oracle's logits, and those that Hugging Face transformers computed where it did |
//! | `bits` | a token's logits have the same bits in chunks, batches, forks, prefixes and after a rollback, with compressed pages |
//! | `caches` | every codec has the CPU's logits; those of the CPU are those over decoded pages |
//! | `pages` | pages are written and read as they are: a corrupt byte changes the output, files move between devices and back |
//! | `memory` | out of memory is an error that loses nothing |
//! | `lists` | the beginnings of rankings are those of the logits |
//! | `refusals` | what is declared is refused, by name, and nothing else is |
//!
//! Models are the fixtures of `kvant-model`. A backend that has no kernels for their narrow heads declares so, and is held to the
//! [`wide`] models in their place.
//!
//! [`models_page`] holds a backend's column of the table in docs/models.md to what it says of every architecture.
//!
//! **Invariant:** a backend never skips a case silently. What does not run stands in [`Subject::refuses`] with words of the message, and
//! something that is declared but runs fails like something that is refused but not declared.
#![deny(missing_docs)]

mod bits;
mod caches;
mod cases;
mod fixture;
mod host;
mod lists;
mod memory;
mod models;
mod models_page;
mod pages;
mod policies;
pub mod reading;
mod refusals;
mod store;
mod subject;
pub mod wide;

pub use fixture::{Fixture, reference_tolerance};
pub use host::Host;
pub use models_page::models_page;
pub use policies::policy;
pub use subject::{Bounds, ModelSet, Refused, Subject};

/// A part of what a backend is held to: a test of its own, so that parts run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Every model against the oracle and the reference.
    Models,
    /// The same bits however tokens come.
    Bits,
    /// Every codec against the CPU.
    Caches,
    /// Corrupt bytes, and files between devices.
    Pages,
    /// Out of memory.
    Memory,
    /// Beginnings of rankings.
    Lists,
    /// What does not run.
    Refusals,
}

/// Holds a backend to one part.
///
/// # Panics
/// Where it falls short, with the case and the numbers.
pub fn check(part: Part, subject: &Subject) {
    match part {
        Part::Models => models::agree(subject),
        Part::Bits => bits::stay(subject),
        Part::Caches => caches::agree(subject),
        Part::Pages => pages::are_read_and_move(subject),
        Part::Memory => memory::is_an_error(subject),
        Part::Lists => lists::are_beginnings(subject),
        Part::Refusals => refusals::are_declared(subject),
    }
}

/// The tests of a backend, one for each [`Part`], from a function that gives its [`Subject`]; `None` where the machine has no such device.
#[macro_export]
macro_rules! conformance {
    ($subject:ident) => {
        $crate::conformance! { $subject;
            models_agree_with_the_oracle => Models,
            bits_do_not_depend_on_chunks_batches_forks_or_rollbacks => Bits,
            every_codec_agrees_with_the_cpu => Caches,
            corrupt_bytes_change_the_output_and_sessions_move => Pages,
            out_of_memory_is_an_error_and_loses_nothing => Memory,
            lists_of_tokens_are_the_beginnings_of_rankings => Lists,
            what_does_not_run_is_declared_and_refused_by_name => Refusals,
        }
    };
    ($subject:ident; $($name:ident => $part:ident,)*) => {
        mod conformance {
            $(
                #[test]
                fn $name() {
                    if let Some(subject) = super::$subject() {
                        $crate::check($crate::Part::$part, &subject);
                    }
                }
            )*
        }
    };
}
