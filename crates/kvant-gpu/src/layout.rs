//! How the slots of a cache are kept on the device: kernels for every side, made once for a layout.

use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::side_kernels::{Shared, SideKernels};
use crate::teams;
use kvant_cache::{CacheLayout, ExactWindow, SideCodecs, SlotKind};
use kvant_codec::Side;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Why a cache cannot be kept on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "layer {layer}: {what}; on a GPU run the families {}, and so int4, int8, k8v4, k8v2 and v3",
    families().join(" ")
)]
pub struct CacheUnsupported {
    /// Which layer.
    pub layer: usize,
    /// What is not there.
    pub what: String,
}

/// The families of codecs that run: all of them.
fn families() -> Vec<&'static str> {
    kvant_codec::FAMILIES.iter().map(|family| family.name).collect()
}

/// The kernels of a slot or of one of its sides that were built.
pub(crate) type Built = Mutex<HashMap<(&'static str, usize, usize), Arc<Kernel>>>;

/// Which of `built` it is, made on first use.
pub(crate) fn cached(
    built: &Built,
    key: (&'static str, usize, usize),
    make: impl FnOnce() -> Arc<Kernel>,
) -> Arc<Kernel> {
    let mut built = built.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(built.entry(key).or_insert_with(make))
}

/// A slot that holds keys and values.
pub(crate) struct SlotKernels {
    pub layer: usize,
    pub kv_heads: usize,
    pub window: Option<usize>,
    pub key: SideKernels,
    pub value: SideKernels,
    /// Whether few tokens attend over its pages by teams of threads (`teams.rs`).
    pub by_teams: bool,
    /// Whether values are latents, which scores meet too.
    pub is_latent: bool,
    /// Whether few tokens attend one by one, for each to have the bits that it has alone.
    pub is_alike: bool,
    /// Values of a page are left out for a query whose largest score there is this far below its largest so far (`--sparse-v`).
    pub floor: Option<f32>,
    pub built: Built,
}

/// The slots of a layout; `None` for views and recurrent state.
pub(crate) struct LayoutKernels {
    pub slots: Vec<Option<SlotKernels>>,
}

impl LayoutKernels {
    pub(crate) fn new(gpu: &Gpu, layout: &CacheLayout) -> Result<LayoutKernels, CacheUnsupported> {
        let refuse = |layer, what: &str| CacheUnsupported { layer, what: what.to_owned() };
        let (mut slots, mut shared) = (Vec::new(), Shared::default());
        for slot in layout.slots() {
            let layer = slot.layer();
            let (shape, is_latent) = match slot.kind() {
                SlotKind::KeysValues(shape) => (*shape, false),
                SlotKind::Latent(shape) => (shape.stored(), true),
                // Recurrent state needs no kernels of its codec: it has none.
                SlotKind::View(_) | SlotKind::Recurrent(_) => {
                    slots.push(None);
                    continue;
                }
            };
            let mut side = |side: Side| {
                let heads: Option<Vec<&SideCodecs>> =
                    slot.heads().iter().map(|head| head.side(side).map(|codecs| &**codecs)).collect();
                let heads = heads.filter(|heads| !heads.is_empty());
                let heads = heads.ok_or_else(|| refuse(layer, "a head has no pages"))?;
                let mut made = SideKernels::new(gpu, &heads, &mut shared)
                    .map_err(|what| CacheUnsupported { layer, what })?;
                made.encode_group = shared.encode_group(&made);
                if is_latent && made.format.is_along_tokens() {
                    return Err(refuse(layer, "codes along tokens (trellis, delta) of latents do not run"));
                }
                Ok(made)
            };
            let (key, value) = (side(Side::Key)?, side(Side::Value)?);
            slots.push(Some(SlotKernels {
                layer,
                kv_heads: shape.kv_heads,
                window: shape.window,
                by_teams: !is_latent && teams::reads(gpu, &key, &value),
                key,
                value,
                is_latent,
                is_alike: gpu.arithmetic().dots,
                floor: layout.sparse_v().map(|share| share.get().ln()),
                built: Built::default(),
            }));
        }
        Ok(LayoutKernels { slots })
    }

    /// Coded pages of a side that sequences of this many tokens have at most, of slots that see all of them.
    pub(crate) fn kept_pages(&self, rule: &ExactWindow, tokens: usize) -> usize {
        let whole = self.slots.iter().flatten().filter(|slot| rule.window(slot.window).is_none());
        let pages = whole.flat_map(|slot| [slot.key.tokens(), slot.value.tokens()]).min();
        pages.map_or(0, |page| tokens.div_ceil(page))
    }
}

/// Whether a device can keep what a layout says.
///
/// # Errors
/// Names the first layer that it cannot keep, and why.
pub fn check_cache(gpu: &Gpu, layout: &CacheLayout) -> Result<(), CacheUnsupported> {
    LayoutKernels::new(gpu, layout).map(drop)
}
