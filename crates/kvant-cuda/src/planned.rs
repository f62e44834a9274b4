//! Keys in the basis of a plan (`klt`): every kv head has a matrix, a mean and widths of its own.
//!
//! A key is y = M (x − μ) in its head's basis, and meets a query as (M⁻ᵀ q)·y + q·μ. So queries are turned once a pass, and the mean's share is
//! a number per query. `encode_klt` makes y as the host does, channel by channel of the model, so that pages are the host's bytes.

use crate::buffer::Buffer;
use crate::device::CudaGpu;
use crate::layout::{PAGE_TOKENS, code_bytes, planned_widths};
use crate::pages::CudaPages;
use kvant_cache::{PageKind, PageUse, SideCodecs};
use kvant_codec::format::Linear;
use kvant_codec::{PageFormat, Rule};
use std::sync::Arc;

/// Rows of channels that `KeyWidths` of `kernels/pages.cuh` has room for.
const ROWS: usize = 24;

/// The keys of a slot.
pub(crate) struct PlannedKeys {
    /// Kinds of closed pages, by kv head.
    pub closed: Vec<PageKind>,
    /// (kv_heads, dim + 1, dim) f32: M, channel of the model by channel of the basis; then the mean.
    pub forward: Buffer,
    /// The same of M⁻ᵀ.
    pub query: Buffer,
    /// `KeyWidths`, (kv_heads).
    pub widths: Buffer,
}

impl PlannedKeys {
    /// Of the keys of all kv heads of a slot.
    pub(crate) fn new<'a>(
        card: &Arc<CudaGpu>,
        pages: &CudaPages,
        heads: impl Iterator<Item = &'a Arc<SideCodecs>>,
    ) -> Result<PlannedKeys, String> {
        let (mut closed, mut forward, mut query, mut widths) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for codecs in heads {
            let codec = codecs.codec();
            let format = codec.format().ok_or("a head's keys have no format")?;
            let PageFormat::Packed(packed) = &format else {
                return Err("heads some of whose keys are in the basis of a plan do not run".into());
            };
            let Linear::Dense(dense) = &packed.basis.linear else {
                return Err("heads some of whose keys are in the basis of a plan do not run".into());
            };
            if codec.rounding().map(|rounding| rounding.rule) != Some(Rule::FittedRange) {
                return Err("keys in the basis of a plan by another rule than klt's do not run".into());
            }
            let bits = planned_widths(packed).map_err(|refused| refused.to_string())?;
            let of = PageUse { format: format.clone(), sinks: false, latent: false };
            closed.push(pages.dealt_kind(&of).map_err(|refused| refused.to_string())?);
            let dim = packed.dim;
            let mean = (0..dim).map(|c| packed.basis.mean.get(c).copied().unwrap_or(0.0));
            let column = |j: usize| (0..dim).map(move |r| r * dim + j);
            forward.extend((0..dim).flat_map(|j| column(j).map(|at| dense.matrix()[at])).chain(mean.clone()));
            query.extend(dense.inverse_matrix().iter().copied().chain(mean));
            widths.extend((bits.len() as u32).to_le_bytes());
            widths.extend((code_bytes(packed) as u32).to_le_bytes());
            widths.extend((1..=8).map(|width| bits.iter().filter(|own| **own == width).count() as u8));
            widths.extend((0..ROWS).map(|row| bits.get(row).copied().unwrap_or(0)));
            widths.extend(((packed.tokens / PAGE_TOKENS) as u64).to_le_bytes());
        }
        let floats = |numbers: &[f32]| Buffer::of_floats(card, numbers).map_err(|error| error.to_string());
        let (forward, query) = (floats(&forward)?, floats(&query)?);
        let widths = Buffer::of(card, &widths).map_err(|error| error.to_string())?;
        Ok(PlannedKeys { closed, forward, query, widths })
    }
}
