//! KV-cache codecs: what a compressed KV cache stores, and attention's inner loops on the stored bytes.
#![deny(missing_docs)]

mod codec;
mod error;
mod kernel;
mod pack;
mod page;
mod quant;
mod simd;
pub mod spec;
mod transform;

pub use codec::{
    Accumulator, Build, BuildFn, Calibration, FAMILIES, Family, GroupSize, KernelReport, Options, PageCodec,
    PageSize, Query, Scaling,
};
pub use error::{BuildError, CodecError};
pub use page::{ScaleFormat, Side};
pub use quant::{LloydMax, MAX_TABLE_BITS, Rule};
pub use simd::{TIER_VARIABLE, Tier, TierError};
pub use spec::{CodecSpec, KvSpec, PRESETS, Preset, SpecError};
pub use transform::{Basis, Dense, DenseError, Rotation};
