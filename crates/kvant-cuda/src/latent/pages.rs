//! How the latents of a slot are kept: canonical pages of the codecs that kernels read.

use crate::cache::{CacheUnsupported, LayoutPages, SlotPages, values_rotation};
use crate::device::CudaGpu;
use crate::layout::{PAGE_TOKENS, PageKind};
use crate::pages::CudaPages;
use crate::units::Units;
use kvant_cache::{LatentShape, PageUse, SideKinds, SlotLayout};
use kvant_codec::format::{PackedFormat, Span};
use kvant_codec::{Element, PageCodec, PageFormat, Side};
use std::sync::Arc;

/// How the latents of a slot are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentPages {
    pub latent: usize,
    pub rotated: usize,
    /// Of the codes of rotated parts and of latents; 0 for f16.
    pub bits: [i32; 2],
    /// Tokens of the page of the sinks.
    pub sink_tokens: usize,
}

/// The kinds of a slot's pages, which are canonical.
pub(crate) fn latent_slot(
    card: &Arc<CudaGpu>,
    pages: &CudaPages,
    made: &mut LayoutPages,
    slot: &SlotLayout,
    shape: LatentShape,
) -> Result<SlotPages, CacheUnsupported> {
    let layer = slot.layer();
    let refuse = |what: String| CacheUnsupported { layer, what };
    let LatentShape { kv_heads, latent_dim, rope_dim, .. } = shape;
    if made.strict {
        return Err(refuse("strict mode does not run with latents".to_owned()));
    }
    if card.kernel("attend_latent_m4").is_none() {
        return Err(refuse("latents need more shared memory than the card has".to_owned()));
    }
    let mut sinks = PAGE_TOKENS;
    let mut side = |side: Side| {
        let mut heads = slot.heads().iter().filter_map(|head| head.side(side));
        let codecs = heads.next();
        let codecs = codecs.ok_or_else(|| refuse("latents without a rotated part do not run".to_owned()))?;
        if heads.any(|other| other.codec().format() != codecs.codec().format()) {
            return Err(refuse("heads whose latents have different formats do not run".to_owned()));
        }
        let format = |format: Option<PageFormat>| {
            format.ok_or_else(|| {
                refuse("a codec whose pages are not codes under scales does not run".to_owned())
            })
        };
        let closed = format(codecs.codec().format())?;
        let (exact, first) = (format(codecs.exact().format())?, format(codecs.sinks().format())?);
        if closed.tokens() != PAGE_TOKENS || exact.tokens() != PAGE_TOKENS {
            return Err(refuse(format!("pages of {} tokens do not run", closed.tokens())));
        }
        let kind = PageKind::of(&closed).map_err(|refused| refuse(refused.to_string()))?;
        let bits = match (&closed, kind) {
            (PageFormat::Packed(packed), PageKind::Codes(bits)) if is_preset(packed, bits) => i32::from(bits),
            (format, _) if is_f16(format) => 0,
            _ => return Err(refuse(format!("{kind} latents in another order do not run"))),
        };
        for format in [&exact, &first] {
            if !is_f16(format) {
                return Err(refuse("exact rows that are not f16 do not run".to_owned()));
            }
        }
        sinks = first.tokens();
        let kind = |format: &PageFormat, sinks| {
            let of = PageUse { format: format.clone(), sinks, latent: true };
            pages.dealt_kind(&of).map_err(|refused| refuse(refused.to_string()))
        };
        let kinds = SideKinds {
            sinks: kind(&first, true)?,
            exact: kind(&exact, false)?,
            encoded: kind(&closed, false)?,
        };
        let rotation = values_rotation(codecs.codec(), &closed).map_err(&refuse)?;
        Ok((kinds, bits, rotation))
    };
    let (key, value) = (side(Side::Key)?, side(Side::Value)?);
    if (key.1 == 0) != (value.1 == 0) {
        return Err(refuse(
            "latents of codes beside an f16 rotated part, or the other way, do not run".to_owned(),
        ));
    }
    if value.2.is_some() && !latent_dim.is_power_of_two() {
        return Err(refuse(format!(
            "4-bit latents of {latent_dim} channels, not a power of two, do not run"
        )));
    }
    let signs = match value.2 {
        Some(seed) => made.signs(card, latent_dim, seed).map_err(|error| refuse(error.to_string()))?,
        None => 0,
    };
    Ok(SlotPages {
        layer,
        kv_heads,
        dim: latent_dim,
        codec: "latent",
        key: key.0,
        value: value.0,
        signs,
        planned: None,
        units: Units::PAGES,
        exact_bytes: [2; 2],
        general: None,
        latent: Some(LatentPages {
            latent: latent_dim,
            rotated: rope_dim,
            bits: [key.1, value.1],
            sink_tokens: sinks,
        }),
        floor: 0.0,
    })
}

fn is_f16(format: &PageFormat) -> bool {
    matches!(format, PageFormat::Exact(exact) if exact.element == Element::F16)
}

/// Whether codes and scales lie where `int4`, `int8` and `k8v4` have them (docs/page-format.md of kvant-codec), which is what kernels read.
fn is_preset(format: &PackedFormat, bits: u8) -> bool {
    let (dim, bits) = (format.dim, usize::from(bits));
    let (first, row) = match format.side {
        Side::Key => (4 * dim, 8),
        Side::Value => (128 * dim.div_ceil(32), 16),
    };
    let arrays = match format.side {
        Side::Key => {
            format.channel_scale.as_ref().is_some_and(|scale| scale.start == 0)
                && format.channel_zero.as_ref().is_some_and(|zero| zero.start == 2 * dim)
        }
        Side::Value => format.token_scale.as_ref().is_some_and(|scale| scale.start == 0),
    };
    let in_order = |span: &Span| {
        span.first.is_multiple_of(row) && span.codes == first + span.first * bits * PAGE_TOKENS / 8
    };
    arrays && format.spans.iter().all(in_order)
}
