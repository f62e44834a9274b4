//! One side of a cache's slots on the device: what its pages are, how they are read, and how they are encoded.

use crate::basis::{self, Bases};
use crate::buffer::Buffer;
use crate::coding::Coding;
use crate::compound;
use crate::device::Gpu;
use crate::encoding::{self, Encoder, Part, number_text};
use crate::head_widths;
use crate::kernel::Kernel;
use crate::layout::{Built, cached};
use crate::page_text::{SHARED, buffers, exact_pages_reader, mixed_pages_reader, packed_pages_reader};
use crate::recorder::Grid;
use crate::trellis;
use kvant_cache::SideCodecs;
use kvant_codec::format::{BasisFormat, ExactFormat, PackedFormat};
use kvant_codec::{Compound, Element, PageFormat, Rounding, Side};
use std::collections::HashSet;
use std::sync::Arc;

/// One side of a slot on the device.
pub(crate) struct SideKernels {
    /// Of the first head.
    pub format: Coding,
    pub exact: ExactFormat,
    /// How coded pages are read (`key4_coded` or `value4_coded`, where tokens stand for themselves), and how many fours of channels they have.
    pub reader: String,
    pub fours: usize,
    /// How pages are encoded; none where pages are exact.
    encodes: Vec<EncodePass>,
    /// The change of basis: of what is encoded, and of queries (keys) or sums (values).
    pub moves: Option<Moves>,
    /// Where heads have widths of their own.
    pub widths: Option<Widths>,
    /// The matrix from the basis of what codes leave over to theirs, of every channel of the second.
    pub turn: Option<Buffer>,
    /// Sides with the same number, of whatever layer, are encoded by one dispatch; `None` where pages are exact.
    pub encode_group: Option<usize>,
    built: Built,
}

/// A kernel that encodes pages.
struct EncodePass {
    /// Without the buffers of maps and pages.
    source: Arc<str>,
    /// Workgroups that share a page.
    parts: usize,
}

/// A dispatch that encodes pages, but for the buffers of these.
pub(crate) struct EncodeCall<'a> {
    pub kernel: Arc<Kernel>,
    pub bound: Vec<&'a Buffer>,
    pub grid: Grid,
}

/// Changes of basis on the device.
pub(crate) struct Moves {
    bases: Bases,
    pub encode: Arc<Buffer>,
    pub attend: Arc<Buffer>,
}

/// What the sides of a layout have in common: bases that are the same numbers, and kernels that encode.
#[derive(Default)]
pub(crate) struct Shared {
    bases: Vec<(Vec<f32>, Arc<Buffer>)>,
    sources: HashSet<Arc<str>>,
    encoders: Vec<(Vec<Arc<str>>, Vec<u64>)>,
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

    /// The kernel of a text: one text for all layers that have it.
    fn pass(&mut self, source: String, parts: usize) -> EncodePass {
        if let Some(known) = self.sources.get(source.as_str()) {
            return EncodePass { source: Arc::clone(known), parts };
        }
        let source = Arc::<str>::from(source);
        self.sources.insert(Arc::clone(&source));
        EncodePass { source, parts }
    }

    /// The matrices of heads, where they change the basis.
    fn moves(&mut self, gpu: &Gpu, side: Side, bases: Option<Bases>) -> Option<Moves> {
        let bases = bases?;
        let attend = match side {
            Side::Key => &bases.query,
            Side::Value => &bases.finish,
        };
        let (encode, attend) = (self.basis(gpu, &bases.forward), self.basis(gpu, attend));
        Some(Moves { encode, attend, bases })
    }

    /// The number of the kernels that encode and of what they are bound to.
    pub(crate) fn encode_group(&mut self, of: &SideKernels) -> Option<usize> {
        if of.encodes.is_empty() {
            return None;
        }
        let basis = of.moves.as_ref().map(|moves| moves.encode.number());
        let maps = of.widths.as_ref().map(|widths| widths.maps.number());
        let sources = of.encodes.iter().map(|pass| Arc::clone(&pass.source)).collect();
        let kernel = (sources, basis.into_iter().chain(maps).collect());
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

impl SideKernels {
    pub(crate) fn new(gpu: &Gpu, heads: &[&SideCodecs], shared: &mut Shared) -> Result<SideKernels, String> {
        let (codec, exact) = (heads[0].codec(), kvant_codec::PageCodec::format(heads[0].exact()));
        if heads.iter().any(|head| kvant_codec::PageCodec::format(head.exact()) != exact) {
            return Err("heads whose exact rows differ do not run".to_owned());
        }
        let Some(PageFormat::Exact(exact)) = exact else {
            return Err("exact rows have no format".to_owned());
        };
        let format = Coding::of(codec)?;
        let packed = match &format {
            Coding::Exact(plain) => {
                if heads.iter().any(|head| Coding::of(head.codec()).as_ref() != Ok(&format)) {
                    return Err(DIFFERENT.to_owned());
                }
                let (reader, fours) = (exact_pages_reader(plain), plain.dim.div_ceil(4));
                let side = SideKernels { reader, fours, ..SideKernels::plain(format, exact) };
                return Ok(side);
            }
            Coding::Packed(packed) => Arc::clone(packed),
            Coding::Trellis(_) | Coding::Delta(_) | Coding::Polar(_) | Coding::Sum(_) => {
                return SideKernels::compound(gpu, heads, (format, exact), shared);
            }
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
        if let Some(what) = encoding::refusal(whole) {
            return Err(what);
        }
        let reader = if is_mixed { mixed_pages_reader(whole) } else { packed_pages_reader(whole) };
        let fours = whole.coded / 4;
        let linear: Vec<&BasisFormat> = formats.iter().map(|format| &format.basis).collect();
        let moves = shared.moves(gpu, packed.side, basis::bases(&linear));
        let encoder = Encoder {
            format: whole,
            rounding: how,
            element: exact.element,
            bases: moves.as_ref().map(|moves| &moves.bases),
            is_mixed,
            part: Part::Whole,
        };
        let parts = encoder.parts();
        let encodes = vec![shared.pass(encoder.source(), parts)];
        Ok(SideKernels { reader, fours, encodes, moves, widths, ..SideKernels::plain(format, exact) })
    }

    /// A side of codes and of codes of what these leave over.
    fn sum(
        gpu: &Gpu,
        head: &SideCodecs,
        (of, exact): (&Arc<[PackedFormat; 2]>, ExactFormat),
        shared: &mut Shared,
    ) -> Result<SideKernels, String> {
        let [coarse, rest] = &**of;
        let how = match head.codec().compound() {
            Some(Compound::Sum(parts)) => parts.map(|part| part.rounding()),
            _ => [None; 2],
        };
        let [Some(of_coarse), Some(of_rest)] = how else {
            return Err("the codec does not say how it rounds".to_owned());
        };
        if let Some(what) = encoding::refusal(coarse).or_else(|| encoding::refusal(rest)) {
            return Err(what);
        }
        let Some(mut bases) = basis::bases(&[&coarse.basis]) else {
            return Err("codes of what other codes leave over in the model's basis do not run".to_owned());
        };
        // Behind the numbers of the first basis is the way from it to the second.
        let turn_at = bases.forward.len();
        bases.forward.extend(basis::transposed(coarse.dim, &basis::turn(&coarse.basis, &rest.basis)));
        let back = basis::transposed(coarse.dim, &basis::turn(&rest.basis, &coarse.basis));
        let words: Vec<u32> = back.iter().map(|x| x.to_bits()).collect();
        let turn = Some(Buffer::of_words(gpu, "turn", &words));
        let moves = shared.moves(gpu, coarse.side, Some(bases));
        let encoder = |format, rounding, part| Encoder {
            format,
            rounding,
            element: exact.element,
            bases: moves.as_ref().map(|moves| &moves.bases),
            is_mixed: false,
            part,
        };
        let first = encoder(coarse, of_coarse, Part::Whole);
        let second = encoder(rest, of_rest, Part::Rest { coarse, turn_at });
        let encodes = [first, second].map(|own| shared.pass(own.source(), own.parts())).into();
        let (reader, fours) = (compound::sum_reader(of), coarse.dim / 4);
        let format = Coding::Sum(Arc::clone(of));
        Ok(SideKernels { reader, fours, encodes, moves, turn, ..SideKernels::plain(format, exact) })
    }

    /// A side without anything but its pages.
    fn plain(format: Coding, exact: ExactFormat) -> SideKernels {
        SideKernels {
            format,
            exact,
            reader: String::new(),
            fours: 0,
            encodes: Vec::new(),
            moves: None,
            widths: None,
            turn: None,
            encode_group: None,
            built: Built::default(),
        }
    }

    /// A side whose codes follow each other along tokens, or are made of others.
    fn compound(
        gpu: &Gpu,
        heads: &[&SideCodecs],
        (format, exact): (Coding, ExactFormat),
        shared: &mut Shared,
    ) -> Result<SideKernels, String> {
        let formats: Vec<Coding> =
            heads.iter().map(|head| Coding::of(head.codec())).collect::<Result<_, _>>()?;
        let mut linear = Vec::new();
        for other in &formats {
            let (basis, is_same) = other.basis_like(&format);
            if !is_same {
                return Err(DIFFERENT.to_owned());
            }
            linear.extend(basis);
        }
        if let Some(what) = compound::refusal(&format) {
            return Err(what);
        }
        let side = match &format {
            Coding::Trellis(of) => {
                if let Some(what) = trellis::refusal(of, !gpu.report().kind.is_gpu()) {
                    return Err(what);
                }
                let moves = shared.moves(gpu, of.side, basis::dense_bases(&linear));
                let text =
                    trellis::encoder(of, moves.as_ref().map(Moves::numbers)) + &number_text(exact.element);
                let reader = match of.side {
                    Side::Key => trellis::keys_reader(of),
                    Side::Value => trellis::values_reader(of),
                };
                let (fours, encodes) = (of.dim.div_ceil(4), vec![shared.pass(text, 1)]);
                SideKernels { reader, fours, encodes, moves, ..SideKernels::plain(format, exact) }
            }
            Coding::Polar(of) => {
                let moves = shared.moves(gpu, of.side, basis::dense_bases(&linear));
                let text = compound::polar_encoder(of, moves.as_ref().map(Moves::numbers))
                    + &number_text(exact.element);
                let (fours, encodes) = (of.dim.div_ceil(4), vec![shared.pass(text, 1)]);
                let reader = compound::polar_reader(of);
                SideKernels { reader, fours, encodes, moves, ..SideKernels::plain(format, exact) }
            }
            Coding::Delta(of) => {
                let how = heads[0].codec().rounding().or_else(|| delta_rounding(heads[0]));
                let how = how.ok_or_else(|| "the codec does not say how it rounds".to_owned())?;
                if let Some(what) = encoding::refusal(&of.differences) {
                    return Err(what);
                }
                let moves = shared.moves(gpu, of.differences.side, basis::bases(&linear));
                let encoder = Encoder {
                    format: &of.differences,
                    rounding: how,
                    element: exact.element,
                    bases: moves.as_ref().map(|moves| &moves.bases),
                    is_mixed: false,
                    part: Part::Delta(of),
                };
                let encodes = vec![shared.pass(encoder.source(), 1)];
                let (reader, fours) = (compound::delta_reader(of), of.differences.coded / 4);
                SideKernels { reader, fours, encodes, moves, ..SideKernels::plain(format, exact) }
            }
            Coding::Sum(of) => SideKernels::sum(gpu, heads[0], (of, exact), shared)?,
            Coding::Exact(_) | Coding::Packed(_) => return Err(DIFFERENT.to_owned()),
        };
        Ok(side)
    }

    /// What the reader of the side looks up beside pages.
    pub(crate) fn map(&self) -> Option<&Buffer> {
        self.widths.as_ref().map(|widths| &widths.maps).or(self.turn.as_ref())
    }

    /// Numbers from the matrix of one kv head to the next's, of queries or sums.
    pub(crate) fn matrix_step(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.bases.matrix_step)
    }

    /// The dispatches that encode so many pages, which lie in so many buffers.
    pub(crate) fn encode_calls<'a>(
        &'a self,
        gpu: &Gpu,
        (plan, status): (&'a Buffer, &'a Buffer),
        (pages, blocks): (usize, usize),
    ) -> Vec<EncodeCall<'a>> {
        let basis = self.moves.as_ref().map_or(plan, |moves| &*moves.encode);
        let maps = self.widths.as_ref().map(|widths| &widths.maps);
        let call = |(number, pass): (usize, &EncodePass)| EncodeCall {
            kernel: self.encode_kernel(gpu, (number, pass), blocks),
            bound: [plan, basis, status].into_iter().chain(maps).collect(),
            grid: Grid::rows(pages * pass.parts, 1),
        };
        self.encodes.iter().enumerate().map(call).collect()
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

    fn encode_kernel(&self, gpu: &Gpu, (number, pass): (usize, &EncodePass), blocks: usize) -> Arc<Kernel> {
        cached(&self.built, ("encode", number, blocks), || {
            let (maps, first) = match &self.widths {
                Some(_) => (head_widths::binding(3, "map"), 4),
                None => (String::new(), 3),
            };
            let parts =
                [&pass.source, &*maps, include_str!("wgsl/half.wgsl"), SHARED, &buffers(first, blocks, true)];
            gpu.kernel("encode", parts.concat())
        })
    }
}

impl Moves {
    /// From one head's numbers to the next, and whether there are means.
    fn numbers(&self) -> (usize, bool) {
        (self.bases.forward_step, self.bases.has_mean)
    }
}

/// How the differences of a head become codes.
fn delta_rounding(head: &SideCodecs) -> Option<Rounding> {
    match head.codec().compound() {
        Some(Compound::Delta { differences, .. }) => differences.rounding(),
        _ => None,
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
