//! How the slots of a cache are kept on the device: kernels for every side, made once for a layout.

use crate::basis::{self, Bases};
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::encoding::{self, Encoder};
use crate::head_widths;
use crate::kernel::Kernel;
use crate::page_text::{
    SHARED, buffers, exact_pages_reader, exact_reader, mixed_pages_reader, packed_pages_reader,
};
use crate::recorder::Grid;
use crate::unroll::unrolled;
use kvant_cache::{CacheLayout, SideCodecs, SlotKind, Visibility};
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
    /// How coded pages are read, and how many fours of channels they have.
    reader: String,
    fours: usize,
    /// How codes are made; `None` where pages are exact.
    rounding: Option<Rounding>,
    /// The change of basis: of what is encoded, and of queries (keys) or sums (values).
    pub moves: Option<Moves>,
    /// Where heads have widths of their own.
    pub widths: Option<Widths>,
    built: Built,
}

/// Changes of basis on the device.
pub(crate) struct Moves {
    bases: Bases,
    pub encode: Buffer,
    pub attend: Buffer,
}

/// Widths of channels by head.
pub(crate) struct Widths {
    template: PackedFormat,
    pub maps: Buffer,
}

/// The kernels of a slot or of one of its sides that were built.
type Built = Mutex<HashMap<(&'static str, usize, usize), Arc<Kernel>>>;

/// Which of `built` it is, made on first use.
fn cached(
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
    built: Built,
}

/// The slots of a layout; `None` for views.
pub(crate) struct LayoutKernels {
    pub slots: Vec<Option<SlotKernels>>,
}

impl LayoutKernels {
    pub(crate) fn new(gpu: &Gpu, layout: &CacheLayout) -> Result<LayoutKernels, CacheUnsupported> {
        let refuse = |layer, what: &str| CacheUnsupported { layer, what: what.to_owned() };
        let mut slots = Vec::new();
        for slot in layout.slots() {
            let layer = slot.layer();
            let shape = match slot.kind() {
                SlotKind::KeysValues(shape) => *shape,
                SlotKind::View(_) => {
                    slots.push(None);
                    continue;
                }
                SlotKind::Latent(_) => return Err(refuse(layer, "latents (MLA) do not run")),
                SlotKind::Recurrent(_) => return Err(refuse(layer, "recurrent state does not run")),
            };
            let side = |side: Side| {
                let heads: Option<Vec<&SideCodecs>> =
                    slot.heads().iter().map(|head| head.side(side).map(|codecs| &**codecs)).collect();
                let heads = heads.filter(|heads| !heads.is_empty());
                let heads = heads.ok_or_else(|| refuse(layer, "a head has no pages"))?;
                SideKernels::new(gpu, &heads).map_err(|what| CacheUnsupported { layer, what })
            };
            let (key, value) = (side(Side::Key)?, side(Side::Value)?);
            slots.push(Some(SlotKernels {
                layer,
                kv_heads: shape.kv_heads,
                window: shape.window,
                key,
                value,
                built: Built::default(),
            }));
        }
        Ok(LayoutKernels { slots })
    }

    /// Coded pages of a side that sequences of this many tokens have at most, of slots that see all of them.
    pub(crate) fn kept_pages(&self, rule: &Visibility, tokens: usize) -> usize {
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
    fn new(gpu: &Gpu, heads: &[&SideCodecs]) -> Result<SideKernels, String> {
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
                return Ok(SideKernels { format, exact, reader, fours, rounding, moves, widths, built });
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
            encode: Buffer::of_floats(gpu, "basis", &bases.forward),
            attend: Buffer::of_floats(
                gpu,
                "basis",
                match packed.side {
                    Side::Key => &bases.query,
                    Side::Value => &bases.finish,
                },
            ),
            bases,
        });
        let rounding = Some(how);
        Ok(SideKernels { format, exact, reader, fours, rounding, moves, widths, built })
    }

    /// How coded pages are read: `key4_coded` or `value4_coded`.
    #[cfg(test)]
    pub(crate) fn reader(&self) -> &str {
        &self.reader
    }

    /// Numbers from the matrix of one kv head to the next's, of queries or sums.
    fn matrix_step(&self) -> usize {
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
        let basis = self.moves.as_ref().map_or(plan, |moves| &moves.encode);
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

/// The most queries of a kv head that share a reading of a page.
const MOST_COLUMNS: usize = 16;

impl SlotKernels {
    /// Fours of a query.
    fn query_fours(&self) -> usize {
        self.key.fours.max(self.key.dim().div_ceil(4))
    }

    /// Workgroup memory of the kernel that attends.
    fn attend_bytes(&self, columns: usize) -> usize {
        columns * (16 * self.query_fours() + 4 * 128 + 32 + 16)
    }

    /// Columns of the kernel that serves blocks of `wanted` queries of a kv head.
    pub(crate) fn columns(&self, wanted: usize) -> usize {
        let mut columns = MOST_COLUMNS;
        while columns > 1 && (columns / 2 >= wanted || self.attend_bytes(columns) > 31 * 1024) {
            columns /= 2;
        }
        columns
    }

    /// What comes before attention, of the one block whose slot it is.
    pub(crate) fn heads_kernel(&self, blocks: usize, make: impl FnOnce() -> Arc<Kernel>) -> Arc<Kernel> {
        cached(&self.built, ("heads", 0, blocks), make)
    }

    pub(crate) fn attend_kernel(&self, gpu: &Gpu, columns: usize, blocks: usize) -> Arc<Kernel> {
        cached(&self.built, ("attend", columns, blocks), || {
            self.build_attend(gpu, columns, (4, blocks, false), include_str!("wgsl/queries.wgsl"))
        })
    }

    /// Whether heads of queries have room beside the columns of a kernel that serves all of them.
    pub(crate) fn has_room_for_heads(&self, columns: usize, heads: usize) -> bool {
        let words = heads * self.key.dim() + 128;
        heads <= columns && self.attend_bytes(columns) + 4 * words <= 31 * 1024
    }

    /// The kernel that attends with queries of its own making, of the one block whose slot it is; `rows` is how it makes them.
    pub(crate) fn own_kernel(
        &self,
        gpu: &Gpu,
        columns: usize,
        blocks: usize,
        rows: impl FnOnce() -> String,
    ) -> Arc<Kernel> {
        cached(&self.built, ("own", columns, blocks), || {
            let own = include_str!("wgsl/own.wgsl").to_owned() + &rows();
            self.build_attend(gpu, columns, (6, blocks, true), &own)
        })
    }

    /// With pages from a binding on: so many buffers, and whether they are written too.
    fn build_attend(
        &self,
        gpu: &Gpu,
        columns: usize,
        (mut first, blocks, writes): (usize, usize, bool),
        queries: &str,
    ) -> Arc<Kernel> {
        let channels = self.value.dim().div_ceil(128);
        // A driver in software has nothing to wait for, and long texts to translate.
        let most = if gpu.report().kind.is_gpu() { 8 } else { 1 };
        let step = |fours: usize| (1..=most).rev().find(|step| fours.is_multiple_of(*step)).unwrap_or(1);
        let (key_step, exact_step) = (step(self.key.fours), step(self.key.dim().div_ceil(4)));
        // Fours of positions at once, all of one page.
        let fits = |step: &usize| [&self.key, &self.value].iter().all(|side| side.tokens() % (4 * step) == 0);
        let value_step = (1..=most.div_ceil(2)).rev().find(fits).unwrap_or(1);
        let counts = [
            ("COLS", columns),
            ("CHANNELS", channels),
            ("KEY_STEP", key_step),
            ("EXACT_STEP", exact_step),
            ("VALUE_STEP", value_step),
        ];
        let constants = format!(
            "const COLS = {columns}u;\nconst Q4 = {}u;\nconst KEY_FOURS = {}u;\nconst KEY_DIM = {}u;\nconst VALUE_DIM = {}u;\n\
             const CHANNELS = {}u;\nconst KEY_TOKENS = {}u;\nconst VALUE_TOKENS = {}u;\nconst PREPARED = {};\n\
             const KEY_STEP = {key_step}u;\nconst EXACT_STEP = {exact_step}u;\nconst VALUE_STEP = {value_step}u;\n",
            self.query_fours(),
            self.key.fours,
            self.key.dim(),
            self.value.dim(),
            channels,
            self.key.tokens(),
            self.value.tokens(),
            self.key.moves.is_some(),
        );
        // Both sides may have tables and levels of their own.
        let value = self.value.reader.replace("levels", "value_levels").replace("table", "value_table");
        let (mut maps, mut codes) = (String::new(), "");
        for (side, name) in [(&self.key, "key_map"), (&self.value, "value_map")] {
            if side.widths.is_some() {
                maps += &head_widths::binding(first, name);
                (first, codes) = (first + 1, head_widths::CODES);
            }
        }
        let parts = [
            &constants,
            &unrolled(&(include_str!("wgsl/attend.wgsl").to_owned() + queries), &counts),
            &maps,
            SHARED,
            codes,
            &exact_reader(&self.key.exact),
            &exact_reader(&self.value.exact),
            &self.key.reader,
            &value,
            &buffers(first, blocks, writes),
        ];
        gpu.kernel("attend", parts.concat())
    }

    /// What the kernel that attends is bound to between partial sums and pages: maps of heads that have widths of their own.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Buffer> {
        [&self.key, &self.value]
            .into_iter()
            .filter_map(|side| side.widths.as_ref())
            .map(|widths| &widths.maps)
    }

    pub(crate) fn merge_kernel(&self, gpu: &Gpu, columns: usize, sink_logits: bool) -> Arc<Kernel> {
        let key = ("merge", columns, usize::from(sink_logits));
        cached(&self.built, key, || self.build_merge(gpu, columns, sink_logits))
    }

    fn build_merge(&self, gpu: &Gpu, columns: usize, sink_logits: bool) -> Arc<Kernel> {
        let constants = format!(
            "const COLS = {columns}u;\nconst VALUE_DIM = {}u;\nconst MOVED = {};\nconst FINISH_STEP = {}u;\nconst SINK_LOGITS = {sink_logits};\n",
            self.value.dim(),
            self.value.moves.is_some(),
            self.value.matrix_step(),
        );
        let counts = [("CHANNELS", self.value.dim().div_ceil(128))];
        gpu.kernel("merge", constants + &unrolled(include_str!("wgsl/merge.wgsl"), &counts))
    }

    pub(crate) fn prepare_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        cached(&self.built, ("prepare", 0, 0), || {
            let (dim, step) = (self.key.dim(), self.key.matrix_step());
            let constants = format!("const DIM = {dim}u;\nconst BASIS_STEP = {step}u;\n");
            gpu.kernel("prepare", constants + include_str!("wgsl/prepare.wgsl"))
        })
    }
}
