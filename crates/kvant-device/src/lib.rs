//! What GPU backends share around their kernels.
//!
//! A backend is a crate with buffers and kernels. What surrounds them does not depend on the API, and stands here once:
//!
//! | module | what it is |
//! |---|---|
//! | `device` | a [`Device`] that the engine opens, and the [`DeviceKind`] by which it finds one |
//! | `block_tables` | which rows of block tables a sequence has, and which pages have to be entered |
//! | `batch` | the sequences of a pass: in this store, of one layout, and which rows each has |
//! | `heads` | how queries, keys and values lie in what a projection gives |
//! | `refusal` | what of a model does not run, by name |
//! | `packing` | weights, biases and norms on their way to a device |
//! | `relaid` | types of weights that no device has kernels for, as bytes under scales |
//! | `rope` | sines and cosines of a pass |
//! | `split` | the first layers of a model on a device, the rest elsewhere |
//!
//! **Invariant:** nothing here allocates on a device, launches anything, or knows which API does.
#![deny(missing_docs)]

mod batch;
mod block_tables;
mod device;
mod heads;
mod packing;
mod refusal;
mod relaid;
mod rope;
mod split;

pub use batch::{Batch, Span};
pub use block_tables::BlockTables;
pub use device::{BackendOptions, Device, DeviceKind, DeviceReport, Kept, LoadProgress};
pub use heads::{HeadPlace, HeadPlaces, projected_layers};
pub use packing::{biases, first_layers, norm_weights, packed, runs};
pub use refusal::{Blocks, Refusal, check_layers};
pub use relaid::{RELAID_GROUP, RelaidForm, RelaidRow, relaid_form, relaid_row};
pub use rope::rotations;
pub use split::{RestBackend, SplitDevice};
