//! What a measurement leaves on disk, so that the next one need not compute it again.
//!
//! Two kinds of files, both for one window: the *reference* (predictions with the exact cache), and the *comparisons* of one
//! cache with it. A run that was interrupted goes on where windows are missing; one that asks for another cache, or for
//! more windows, computes only these.
//!
//! # What is kept of the reference, and its error
//!
//! Per position: the most likely token and the nll at the token that came, exactly; and every logit in 16 bits, in
//! even steps Δ between the least and the largest of its position (`rounding.rs` has the formula). Top-1 agreement and perplexity are
//! therefore exact. To a KL divergence the rounding adds Δ²/24 on average: with logits that span 30 nats, 1e-8. A test
//! measures it, and `kvant eval --kv f32` shows it: everything it prints but zero is this error. Whoever wants none
//! measures without keeping.
//!
//! Ten windows of 512 tokens over 49,152 logits take half a gigabyte, so the folder has a limit: what was unused for
//! longest goes first, and references that do not fit are not written. Results do not change by that, because the
//! rounded logits are compared with in either case.
//!
//! # What is believed
//!
//! A folder belongs to a [`Key`]: the program, the model and what is scored. Files say what they belong to, hold checksums
//! and are renamed when they are whole. One that is damaged, cut short or foreign is refused, computed anew, and a
//! [note](Kept::notes) says so.

mod comparisons;
mod file;
mod folder;
mod reference;
mod rounding;

pub(crate) use comparisons::WindowResult;
pub use folder::{DEFAULT_LIMIT, Kept, Key};
pub(crate) use reference::{Reader as ReferenceReader, Writer as ReferenceWriter, round};
