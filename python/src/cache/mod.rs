//! The cache of models that run elsewhere: Hugging Face's, MLX's.
//!
//! Such a model hands over keys and values one layer at a time and never says when a pass ends, so a layer is what is bound:
//! [`LayerCache`](layer::LayerCache) holds the sequences of a batch for one layer, each of its own length. What all layers
//! share, the policy, the pages' memory, the attention driver and the threads, is in [`CacheLayout`](layout::CacheLayout).
//!
//! | module | what it is |
//! |---|---|
//! | `tensor` | tensors of other libraries, borrowed by DLPack |
//! | `layout` | what the layers of a cache share, and the policy of one layer |
//! | `layer` | append, attend, select, crop |
//! | `rollback` | the last passes, kept so that they can be taken back exactly |
//! | `card` | the same on a card's pages, for tensors that lie there |
//! | `device` | pages and work for kernels of MLX and torch on a Mac |
//! | `decode` | what is held, as numbers |
//! | `saved` | sequences as bytes |
//! | `statistics` | calibration on another library's forward pass |
//!
//! **Invariant:** a page is encoded once. Going back into an encoded page means taking up a fork from before it, never
//! encoding what was decoded.

#[cfg(feature = "cuda")]
mod card;
mod decode;
mod device;
mod layer;
mod layout;
mod rollback;
mod saved;
mod statistics;
mod tensor;

pub use layout::{PlanSource, policy};

use crate::error::bad_value as refused;
use pyo3::prelude::*;

/// Adds the classes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<layout::CacheLayout>()?;
    module.add_class::<layer::LayerCache>()?;
    #[cfg(feature = "cuda")]
    module.add_class::<card::CardLayerCache>()?;
    module.add_class::<statistics::LayerStatistics>()?;
    module.add_function(wrap_pyfunction!(statistics::make_plan, module)?)
}
