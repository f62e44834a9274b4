#![doc = include_str!("../docs/device.md")]
#![deny(missing_docs)]

#[cfg(feature = "cuda")]
mod attend;
#[cfg(feature = "cuda")]
mod backend;
#[cfg(feature = "cuda")]
mod buffer;
#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod compile;
#[cfg(feature = "cuda")]
pub mod device;
#[cfg(feature = "cuda")]
mod general;
#[cfg(feature = "cuda")]
mod jobs;
pub mod kernels;
#[cfg(feature = "cuda")]
mod kind;
#[cfg(feature = "cuda")]
mod latent;
pub mod layout;
#[cfg(feature = "cuda")]
mod mapping;
#[cfg(feature = "cuda")]
mod matrix;
pub mod memory;
#[cfg(feature = "cuda")]
mod mixer_params;
#[cfg(feature = "cuda")]
mod moe;
#[cfg(feature = "cuda")]
mod network;
#[cfg(feature = "cuda")]
mod outputs;
#[cfg(feature = "cuda")]
mod pages;
pub mod params;
#[cfg(feature = "cuda")]
mod pass;
pub mod plan;
#[cfg(feature = "cuda")]
mod planned;
pub mod product;
pub mod product_params;
#[cfg(feature = "cuda")]
mod profile;
#[cfg(feature = "cuda")]
mod program;
#[cfg(feature = "cuda")]
mod recorder;
#[cfg(feature = "cuda")]
mod recurrent;
#[cfg(feature = "cuda")]
mod residual;
#[cfg(feature = "cuda")]
mod run;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(feature = "cuda")]
mod step;
#[cfg(feature = "cuda")]
mod streams;
pub mod table;
#[cfg(feature = "cuda")]
mod tables;
#[cfg(feature = "cuda")]
mod tensor_map;
#[cfg(feature = "cuda")]
pub mod tensors;
#[cfg(feature = "cuda")]
mod top;
#[cfg(feature = "cuda")]
mod units;
#[cfg(feature = "cuda")]
mod unread;
#[cfg(feature = "cuda")]
mod upload;
pub mod weights;

#[cfg(feature = "cuda")]
pub use backend::{CudaBackend, PackedWeights};
#[cfg(feature = "cuda")]
pub use cache::CacheUnsupported;
#[cfg(feature = "cuda")]
pub use device::{CudaGpu, OpenError};
#[cfg(feature = "cuda")]
pub use kind::{CudaDevice, DEVICES};
pub use layout::{PAGE_TOKENS, PageSwizzle, UNIT, Unsupported};
pub use memory::PageMemory;
#[cfg(feature = "cuda")]
pub use network::{CudaNetwork, PassOptions};
#[cfg(feature = "cuda")]
pub use pages::CudaPages;
pub use plan::{Decoding, Item, Slots, StepPlan};
#[cfg(feature = "cuda")]
pub use profile::ProfileRow;
pub use table::{PageEntry, PageTable};
#[cfg(feature = "cuda")]
pub use tensors::{CardCache, CardLayer, CardPass, CardQueries, CardTensor, TensorNumber};
pub use weights::{WeightError, WeightType};
