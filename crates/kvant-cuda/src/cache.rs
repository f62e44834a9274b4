//! How the slots of a cache are kept on a card: which kernels read them, and the kinds of their pages.

use crate::buffer::Buffer;
use crate::device::{CudaGpu, OpenError};
use crate::general::{Bases, GeneralPages, general_slot};
use crate::latent::{LatentPages, latent_slot};
use crate::layout::{DIMS, PAGE_TOKENS, PageKind};
use crate::pages::CudaPages;
use crate::params::Address;
use crate::planned::PlannedKeys;
use crate::program::Reading;
use crate::step::Generation;
use crate::units::Units;
use kvant_cache::{CacheLayout, HeadCodecs, Mode, PageUse, SideCodecs, SideKinds, SlotKind, Slots};
use kvant_codec::format::{BasisFormat, Linear};
use kvant_codec::{Basis, Element, PageCodec, PageFormat, Rotation, Rule, Side, Tier};
use std::sync::Arc;

/// Why a cache cannot be kept on a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "layer {layer}: {what}; the CUDA backend keeps every codec in heads of 64, 80, 96, 128, 192, 256 or 512 channels (turbo up to 256), and latents as int4, int8, k8v4 or f16"
)]
pub struct CacheUnsupported {
    /// Which layer.
    pub layer: usize,
    /// What is not there.
    pub what: String,
}

/// A slot that holds keys and values.
pub(crate) struct SlotPages {
    pub layer: usize,
    pub kv_heads: usize,
    pub dim: usize,
    /// `int4`, `int8`, `k8v4`, `klt` or `f16`: part of a kernel's name; `general` where one kernel reads any codec.
    pub codec: &'static str,
    pub key: SideKinds,
    pub value: SideKinds,
    /// Signs of the values' rotation on the card; 0 where there is none.
    pub signs: Address,
    /// Keys in the basis of a plan.
    pub planned: Option<PlannedKeys>,
    /// How the entries of page tables cut positions.
    pub units: Units,
    /// Bytes of a number of exact keys and values.
    pub exact_bytes: [usize; 2],
    /// What a kernel for any codec knows of the pages.
    pub general: Option<GeneralPages>,
    /// Latents in place of keys and values.
    pub latent: Option<LatentPages>,
    /// log2 of the weight below which a page's values are left out; 0: none are.
    pub floor: f32,
}

impl SlotPages {
    /// The kinds of a kv head's pages of codes.
    pub(crate) fn closed(&self, head: usize) -> [kvant_cache::PageKind; 2] {
        let plain = [self.key.encoded, self.value.encoded];
        match (&self.general, &self.planned) {
            (Some(general), _) => general.closed(head),
            (None, Some(planned)) => [planned.closed[head], plain[1]],
            (None, None) => plain,
        }
    }
}

/// The slots of a layout; `None` for views and recurrent state.
pub(crate) struct LayoutPages {
    pub generation: Generation,
    pub slots: Vec<Option<SlotPages>>,
    /// Whether the card has the kernels that read a page once for several query tokens; it may have too little shared memory.
    pub tiles: bool,
    /// Whether some slot has kernels for tiles of a prompt.
    pub wide_tiles: bool,
    /// Whether queries read their own pages as they were encoded.
    pub strict: bool,
    /// Of all slots.
    pub units: Units,
    /// The bases of pages of any codec.
    pub bases: Bases,
    /// By dim and seed.
    signs: Vec<(usize, u64, Buffer)>,
}

impl LayoutPages {
    pub(crate) fn new(
        card: &Arc<CudaGpu>,
        pages: &CudaPages,
        layout: &CacheLayout,
    ) -> Result<LayoutPages, CacheUnsupported> {
        let refuse = |layer, what: &str| CacheUnsupported { layer, what: what.to_owned() };
        let rule = layout.exact_window();
        if rule.streaming.is_some() {
            return Err(refuse(0, "streaming windows (StreamingLLM) do not run"));
        }
        let strict = rule.mode == Mode::Strict;
        let mut made = LayoutPages {
            generation: Generation::new(),
            slots: Vec::new(),
            tiles: true,
            wide_tiles: false,
            strict,
            units: Units::PAGES,
            bases: Bases::new(card),
            signs: Vec::new(),
        };
        for slot in layout.slots() {
            let layer = slot.layer();
            let shape = match slot.kind() {
                SlotKind::KeysValues(shape) => *shape,
                SlotKind::View(_) => {
                    made.slots.push(None);
                    continue;
                }
                SlotKind::Latent(shape) => {
                    let latents = latent_slot(card, pages, &mut made, slot, *shape)?;
                    made.slots.push(Some(latents));
                    continue;
                }
                SlotKind::Recurrent(_) => {
                    made.slots.push(None);
                    continue;
                }
            };
            let heads: Vec<[Option<&dyn PageCodec>; 2]> = slot.heads().iter().map(codecs_of).collect();
            let Some(codec) = swizzled_codec(&heads) else {
                let general = general_slot(card, pages, &mut made, slot, &shape)?;
                made.slots.push(Some(general));
                continue;
            };
            let side = |side: Side| {
                let first = slot.heads().iter().find_map(|head| head.side(side));
                let first = first.ok_or_else(|| refuse(layer, "a head has no pages"))?;
                SideFound::new(pages, first).map_err(|what| CacheUnsupported { layer, what })
            };
            let (key, value) = (side(Side::Key)?, side(Side::Value)?);
            let has = |many: &str| card.kernel(&format!("attend_{many}{codec}_d{}", key.dim)).is_some();
            made.tiles &= has("many_");
            made.wide_tiles |= has("tile_");
            if !has(if key.dim <= 128 { "" } else { "many_" }) {
                let dim = key.dim;
                let what = format!("{codec} of {dim} channels needs more shared memory than the card has");
                return Err(CacheUnsupported { layer, what });
            }
            if strict && codec != "f16" && card.kernel(&format!("decode_{codec}_d{}", key.dim)).is_none() {
                let what = format!("strict mode does not run with {codec} of {} channels", key.dim);
                return Err(CacheUnsupported { layer, what });
            }
            let keys = slot.heads().iter().filter_map(|head| head.side(Side::Key));
            let planned = match key.kind {
                PageKind::Planned => Some(PlannedKeys::new(card, pages, keys)),
                _ => None,
            };
            let planned = planned.transpose().map_err(|what| CacheUnsupported { layer, what })?;
            let signs = match value.rotation {
                Some(seed) => made
                    .signs(card, value.dim, seed)
                    .map_err(|error| CacheUnsupported { layer, what: error.to_string() })?,
                None => 0,
            };
            made.slots.push(Some(SlotPages {
                layer,
                kv_heads: shape.kv_heads,
                dim: key.dim,
                codec,
                key: key.kinds,
                value: value.kinds,
                signs,
                planned,
                units: Units::of([key.tokens, value.tokens]),
                exact_bytes: [2; 2],
                general: None,
                latent: None,
                floor: 0.0,
            }));
        }
        if let Some(first) = made.slots.iter().flatten().next() {
            made.units = first.units;
        }
        let floor = layout.sparse_v().map_or(0.0, |share| share.get().log2());
        made.slots.iter_mut().flatten().for_each(|slot| slot.floor = floor);
        match made.slots.iter().flatten().find(|slot| slot.units != made.units) {
            Some(slot) => Err(refuse(
                slot.layer,
                "pages of other sizes than those of layers before do not run: give all layers the same (`:p64` behind a codec)",
            )),
            None => Ok(made),
        }
    }

    /// What a pass has to know of an attention over its slot.
    pub(crate) fn reading(&self, slots: &Slots, of: Reading) -> Reading {
        let slot = self.slots.get(slots.owner(of.slot).index()).and_then(Option::as_ref);
        match slot.and_then(|slot| Some((slot.general.as_ref()?, of.heads / slot.kv_heads))) {
            Some((general, group)) => general.reading(of, group),
            None => of,
        }
    }

    pub(crate) fn signs(&mut self, card: &Arc<CudaGpu>, dim: usize, seed: u64) -> Result<Address, OpenError> {
        if let Some((.., buffer)) = self.signs.iter().find(|(d, s, _)| (*d, *s) == (dim, seed)) {
            return Ok(buffer.address());
        }
        let buffer = Buffer::of_floats(card, &signs(dim, seed))?;
        let address = buffer.address();
        self.signs.push((dim, seed, buffer));
        Ok(address)
    }
}

/// The codecs of a head: keys, values.
pub(crate) fn codecs_of(head: &HeadCodecs) -> [Option<&dyn PageCodec>; 2] {
    [Side::Key, Side::Value].map(|side| head.side(side).map(|codecs| codecs.codec()))
}

/// The part of kernels' names for slots whose heads have these codecs (keys, values) and pages of an order of their own; `None` where one kernel reads
/// any codec.
pub(crate) fn swizzled_codec(heads: &[[Option<&dyn PageCodec>; 2]]) -> Option<&'static str> {
    let [first_key, first_value] = *heads.first()?;
    let (first_key, first_value) = (first_key?.format()?, first_value?.format()?);
    let mut name = None;
    for head in heads {
        let (key, value) = (head[0]?, head[1]?);
        let (of_key, of_value) = (key.format()?, value.format()?);
        let kinds = [PageKind::of(&of_key).ok()?, PageKind::of(&of_value).ok()?];
        let codec = PageKind::codec(kinds[0], kinds[1])?;
        let planned = kinds[0] == PageKind::Planned;
        let is_f16 = |format: &PageFormat| match format {
            PageFormat::Exact(exact) => exact.element == Element::F16,
            PageFormat::Packed(_) | PageFormat::Trellis(_) => true,
        };
        let chosen = match planned {
            true => key.rounding().map(|rounding| rounding.rule) == Some(Rule::FittedRange),
            false => values_rotation(key, &of_key).is_ok() && of_key == first_key,
        };
        let fits = chosen
            && values_rotation(value, &of_value).is_ok()
            && of_value == first_value
            && is_f16(&of_key)
            && is_f16(&of_value)
            && (of_key.dim(), of_key.tokens()) == (of_value.dim(), first_key.tokens())
            && DIMS.contains(&of_key.dim())
            && of_value.tokens() == PAGE_TOKENS
            && (planned || of_key.tokens() == PAGE_TOKENS);
        if !fits || name.is_some_and(|name| name != codec) {
            return None;
        }
        name = Some(codec);
    }
    name
}

/// sign / √dim of every channel of the SRHT: the first number of what it makes of a unit vector.
pub(crate) fn signs(dim: usize, seed: u64) -> Vec<f32> {
    let mut rows: Vec<f32> = (0..dim * dim).map(|n| f32::from(u8::from(n % dim == n / dim))).collect();
    Basis::new(Rotation::Srht, dim, seed).apply(&mut rows, Tier::Scalar).expect("whole vectors");
    rows.chunks_exact(dim).map(|row| row[0]).collect()
}

struct SideFound {
    kind: PageKind,
    dim: usize,
    /// Of a page.
    tokens: usize,
    kinds: SideKinds,
    /// The seed of the values' rotation.
    rotation: Option<u64>,
}

impl SideFound {
    fn new(pages: &CudaPages, codecs: &SideCodecs) -> Result<SideFound, String> {
        let codec = codecs.codec();
        let format = |codec: &dyn PageCodec| {
            codec
                .format()
                .ok_or_else(|| "a codec whose pages are not codes under scales does not run".to_owned())
        };
        let kind = |format: &PageFormat, sinks| {
            let of = PageUse { format: format.clone(), sinks, latent: false };
            pages.dealt_kind(&of).map_err(|refused| refused.to_string())
        };
        let closed = format(codec)?;
        let tokens = codec.page_tokens();
        let kind_of_page = PageKind::of(&closed).map_err(|refused| refused.to_string())?;
        let rotation = values_rotation(codec, &closed)?;
        let kinds = SideKinds {
            sinks: kind(&format(codecs.sinks())?, true)?,
            exact: kind(&format(codecs.exact())?, false)?,
            encoded: kind(&closed, false)?,
        };
        Ok(SideFound { kind: kind_of_page, dim: codec.dim(), tokens, kinds, rotation })
    }
}

/// The seed of the rotation of pages of codes that the card makes, where they are turned; how scales are chosen must be known to it.
pub(crate) fn values_rotation(codec: &dyn PageCodec, closed: &PageFormat) -> Result<Option<u64>, String> {
    let kind = PageKind::of(closed).map_err(|refused| refused.to_string())?;
    let (PageFormat::Packed(packed), PageKind::Codes(bits)) = (closed, kind) else { return Ok(None) };
    let rule = codec.rounding().map(|rounding| rounding.rule);
    let wanted = match (packed.side, bits) {
        (Side::Key, _) => Rule::FittedRange,
        (Side::Value, 4) => Rule::FittedMax,
        (Side::Value, _) => Rule::Symmetric,
    };
    if rule != Some(wanted) {
        return Err(format!("scales by the rule {rule:?} are not chosen on the card"));
    }
    rotation(packed.side, bits, &packed.basis)
}

/// The seed of the rotation of values of 4 bits, which must be the SRHT; keys and values of 8 bits must have none.
fn rotation(side: Side, bits: u8, basis: &BasisFormat) -> Result<Option<u64>, String> {
    let plain = basis.lambda.is_empty() && basis.mean.iter().all(|mean| *mean == 0.0);
    let turned = side == Side::Value && bits == 4;
    match &basis.linear {
        Linear::Rotation { kind: Rotation::Identity, .. } if plain && !turned => Ok(None),
        Linear::Rotation { kind: Rotation::Srht, seed } if plain && turned => Ok(Some(*seed)),
        _ => Err("keys in a basis of their own, values of 4 bits that are not turned by the SRHT, and values of 8 bits that are turned do not run".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_those_of_the_rotation() {
        for dim in crate::layout::DIMS {
            let (basis, signs) = (Basis::new(Rotation::Srht, dim, 7), signs(dim, 7));
            let x: Vec<f32> = (0..dim).map(|i| (i as f32 * 0.37).sin()).collect();
            let mut y: Vec<f32> = x.iter().zip(&signs).map(|(x, sign)| x * sign).collect();
            let odd = dim >> dim.trailing_zeros();
            for run in y.chunks_exact_mut(odd).filter(|_| odd > 1) {
                let angle = |i: usize, j: usize| std::f64::consts::TAU * (i * j % odd) as f64 / odd as f64;
                let factor = |i, j| (angle(i, j).sin() + angle(i, j).cos()) as f32;
                let number = |i| run.iter().enumerate().fold(0.0, |sum, (j, x)| x.mul_add(factor(i, j), sum));
                let turned: Vec<f32> = (0..odd).map(number).collect();
                run.copy_from_slice(&turned);
            }
            let mut half = odd;
            while half < dim {
                for i in (0..dim).filter(|i| i / half % 2 == 0) {
                    (y[i], y[i + half]) = (y[i] + y[i + half], y[i] - y[i + half]);
                }
                half *= 2;
            }
            let mut want = x;
            basis.apply(&mut want, Tier::Scalar).unwrap();
            assert_eq!(y, want);
        }
    }
}
