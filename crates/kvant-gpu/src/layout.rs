//! How the slots of a cache are kept on the device: kernels for every side, made once for a layout.

use crate::basis::{self, Bases};
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::encoding::{self, Encoder};
use crate::head_widths;
use crate::kernel::Kernel;
use crate::page_text::{SHARED, buffers, exact_pages_reader, mixed_pages_reader, packed_pages_reader};
use crate::recorder::Grid;
use crate::teams;
use kvant_cache::{CacheLayout, ExactWindow, SideCodecs, SlotKind};
use kvant_codec::format::{BasisFormat, ExactFormat, PackedFormat};
use kvant_codec::{Element, PageFormat, Rounding, Side};
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

/// The families of codecs that run.
pub(crate) fn families() -> Vec<&'static str> {
    const OTHERS: [&str; 5] = ["trellis", "iq", "delta", "turbo", "polar"];
    kvant_codec::FAMILIES.iter().map(|family| family.name).filter(|name| !OTHERS.contains(name)).collect()
}

/// One side of a slot on the device.
pub(crate) struct SideKernels {
    /// Of the first head.
    pub format: PageFormat,
    pub exact: ExactFormat,
    /// How coded pages are read (`key4_coded` or `value4_coded`), and how many fours of channels they have.
    pub reader: String,
    pub fours: usize,
    /// How codes are made; `None` where pages are exact.
    rounding: Option<Rounding>,
    /// The change of basis: of what is encoded, and of queries (keys) or sums (values).
    pub moves: Option<Moves>,
    /// Where heads have widths of their own.
    pub widths: Option<Widths>,
    /// Sides with the same number, of whatever layer, are encoded by one dispatch; `None` where pages are exact.
    pub encode_group: Option<usize>,
    built: Built,
}

/// Changes of basis on the device.
pub(crate) struct Moves {
    bases: Bases,
    pub encode: Arc<Buffer>,
    pub attend: Arc<Buffer>,
}

/// What the sides of a layout have in common: bases that are the same numbers, and kernels that encode.
#[derive(Default)]
struct Shared {
    bases: Vec<(Vec<f32>, Arc<Buffer>)>,
    encoders: Vec<(String, Vec<u64>)>,
}

impl Shared {
    /// The buffer of a basis: one for all layers whose numbers are the same.
    fn basis(&mut self, gpu: &Gpu, numbers: &[f32]) -> Arc<Buffer> {
        let same = |other: &[f32]| {
            other.len() == numbers.len() && other.iter().zip(numbers).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        if let Some((_, buffer)) = self.bases.iter().find(|(other, _)| same(other)) {
            return Arc::clone(buffer);
        }
        let buffer = Arc::new(Buffer::of_floats(gpu, "basis", numbers));
        self.bases.push((numbers.to_vec(), Arc::clone(&buffer)));
        buffer
    }

    /// The number of a kernel that encodes and of what it is bound to.
    fn encode_group(&mut self, of: &SideKernels) -> Option<usize> {
        let basis = of.moves.as_ref().map(|moves| moves.encode.number());
        let maps = of.widths.as_ref().map(|widths| widths.maps.number());
        let kernel = (of.encoder()?.source()?, basis.into_iter().chain(maps).collect());
        let known = self.encoders.iter().position(|other| *other == kernel);
        Some(known.unwrap_or_else(|| {
            self.encoders.push(kernel);
            self.encoders.len() - 1
        }))
    }
}

/// Widths of channels by head.
pub(crate) struct Widths {
    template: PackedFormat,
    pub maps: Buffer,
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

impl SideKernels {
    fn new(gpu: &Gpu, heads: &[&SideCodecs], shared: &mut Shared) -> Result<SideKernels, String> {
        let (codec, exact) = (heads[0].codec(), kvant_codec::PageCodec::format(heads[0].exact()));
        if heads.iter().any(|head| kvant_codec::PageCodec::format(head.exact()) != exact) {
            return Err("heads whose exact rows differ do not run".to_owned());
        }
        let Some(PageFormat::Exact(exact)) = exact else {
            return Err("exact rows have no format".to_owned());
        };
        let Some(format) = codec.format() else {
            return Err("a codec whose pages are not codes under scales does not run".to_owned());
        };
        let built = Built::default();
        let packed = match &format {
            PageFormat::Exact(plain) => {
                if heads.iter().any(|head| head.codec().format().as_ref() != Some(&format)) {
                    return Err(DIFFERENT.to_owned());
                }
                let (reader, fours) = (exact_pages_reader(plain), plain.dim.div_ceil(4));
                let (rounding, moves, widths) = (None, None, None);
                let encode_group = None;
                return Ok(SideKernels {
                    format,
                    exact,
                    reader,
                    fours,
                    rounding,
                    moves,
                    widths,
                    encode_group,
                    built,
                });
            }
            PageFormat::Packed(packed) => Arc::clone(packed),
            PageFormat::Trellis(_) => return Err("trellis codes do not run".to_owned()),
        };
        let formats = packed_formats(heads).ok_or(DIFFERENT)?;
        let formats: Vec<&PackedFormat> = formats.iter().map(|format| &**format).collect();
        let same_widths = |other: &&PackedFormat| {
            let mut own = packed.as_ref().clone();
            own.basis.clone_from(&other.basis);
            own == **other
        };
        let is_mixed = !formats.iter().all(same_widths);
        if is_mixed && !formats.iter().all(|other| head_widths::agree(&packed, other)) {
            return Err(DIFFERENT.to_owned());
        }
        let how = codec.rounding().ok_or_else(|| "the codec does not say how it rounds".to_owned())?;
        if heads.iter().any(|head| head.codec().rounding() != Some(how)) {
            return Err("heads whose codecs round differently do not run".to_owned());
        }
        let widths = is_mixed.then(|| {
            let template = head_widths::template(&formats);
            let maps = Buffer::of_words(gpu, "widths", &head_widths::maps(&formats, &template));
            Widths { template, maps }
        });
        let whole = widths.as_ref().map_or(&*packed, |widths| &widths.template);
        if let Some(what) = encoding::refusal(whole, how) {
            return Err(what);
        }
        let reader = if is_mixed { mixed_pages_reader(whole) } else { packed_pages_reader(whole) };
        let fours = whole.coded / 4;
        let linear: Vec<&BasisFormat> = formats.iter().map(|format| &format.basis).collect();
        let moves = basis::bases(&linear).map(|bases| Moves {
            encode: shared.basis(gpu, &bases.forward),
            attend: shared.basis(
                gpu,
                match packed.side {
                    Side::Key => &bases.query,
                    Side::Value => &bases.finish,
                },
            ),
            bases,
        });
        let (rounding, encode_group) = (Some(how), None);
        Ok(SideKernels { format, exact, reader, fours, rounding, moves, widths, encode_group, built })
    }

    /// Numbers from the matrix of one kv head to the next's, of queries or sums.
    pub(crate) fn matrix_step(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.bases.matrix_step)
    }

    fn encoder(&self) -> Option<Encoder<'_>> {
        let (PageFormat::Packed(packed), Some(rounding)) = (&self.format, self.rounding) else { return None };
        Some(Encoder {
            format: self.widths.as_ref().map_or(&**packed, |widths| &widths.template),
            rounding,
            element: self.exact.element,
            bases: self.moves.as_ref().map(|moves| &moves.bases),
            is_mixed: self.widths.is_some(),
        })
    }

    /// The grid of a dispatch that encodes so many pages.
    pub(crate) fn encode_grid(&self, pages: usize) -> Grid {
        Grid::rows(pages * self.encoder().map_or(1, |encoder| encoder.parts()), 1)
    }

    /// What the kernel that encodes is bound to before the pages.
    pub(crate) fn encode_bound<'a>(&'a self, plan: &'a Buffer, status: &'a Buffer) -> Vec<&'a Buffer> {
        let basis = self.moves.as_ref().map_or(plan, |moves| &*moves.encode);
        [plan, basis, status].into_iter().chain(self.widths.as_ref().map(|widths| &widths.maps)).collect()
    }

    pub(crate) fn tokens(&self) -> usize {
        self.format.tokens()
    }

    pub(crate) fn dim(&self) -> usize {
        self.format.dim()
    }

    /// Writes exact rows.
    pub(crate) fn append_kernel(&self, gpu: &Gpu, blocks: usize) -> Arc<Kernel> {
        cached(&self.built, ("append", 0, blocks), || self.build_append(gpu, blocks))
    }

    fn build_append(&self, gpu: &Gpu, blocks: usize) -> Arc<Kernel> {
        let constants = format!(
            "const TOKENS = {}u;\nconst DIM = {}u;\nconst KEYS = {};\nconst WIDE = {};\nconst BRAIN = {};\n",
            self.exact.tokens,
            self.exact.dim,
            self.exact.side == Side::Key,
            self.exact.element == Element::F32,
            self.exact.element == Element::Bf16,
        );
        let parts = [
            &constants,
            include_str!("wgsl/append.wgsl"),
            include_str!("wgsl/half.wgsl"),
            &buffers(3, blocks, true),
        ];
        gpu.kernel("append", parts.concat())
    }

    /// Encodes pages; `None` where exact pages are what is kept.
    pub(crate) fn encode_kernel(&self, gpu: &Gpu, blocks: usize) -> Option<Arc<Kernel>> {
        let encoder = self.encoder()?;
        Some(cached(&self.built, ("encode", 0, blocks), || {
            let (maps, first) = match &self.widths {
                Some(_) => (head_widths::binding(3, "map"), 4),
                None => (String::new(), 3),
            };
            let text = encoder.source().unwrap_or_default();
            let parts = [&text, &maps, include_str!("wgsl/half.wgsl"), SHARED, &buffers(first, blocks, true)];
            gpu.kernel("encode", parts.concat())
        }))
    }
}

/// What heads that no kernel serves together are refused with.
const DIFFERENT: &str = "heads whose pages have different formats do not run";

fn packed_formats(heads: &[&SideCodecs]) -> Option<Vec<Arc<PackedFormat>>> {
    let packed = |head: &&SideCodecs| match head.codec().format() {
        Some(PageFormat::Packed(format)) => Some(format),
        _ => None,
    };
    heads.iter().map(packed).collect()
}
