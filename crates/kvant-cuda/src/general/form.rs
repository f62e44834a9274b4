//! Formats of pages as kernels read them: `PageForm` and its parts of `kernels/form.cuh`, field by field.

use super::bases::{Bases, Matrices};
use crate::device::OpenError;
use crate::params::Address;
use kvant_codec::format::{CodeMeaning, ExactFormat, Linear, PackedFormat, TRELLIS_TABLES, TrellisFormat};
use kvant_codec::{Compound, Element, PageCodec, PageFormat, Rounding, Rule, ScaleFormat, Side};

/// Rows of units that a part has room for.
const ROWS: usize = 64;

/// Levels of a table.
const LEVELS: usize = 32;

/// Channels of all parts of a side that kernels have room for.
pub(super) const MOST_CHANNELS: usize = 512;

/// What a part is, by its number in `form.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    Exact = 0,
    Packed = 1,
    Trellis = 2,
    Polar = 3,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PartRow {
    codes: i32,
    bits: i32,
    group: i32,
    unused: i32,
}

/// `PagePart`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PagePart {
    kind: i32,
    is_key: i32,
    at: i32,
    tokens: i32,
    dim: i32,
    coded: i32,
    rows: i32,
    groups: i32,
    group: i32,
    scale_bytes: i32,
    meaning: i32,
    bits: i32,
    channel_scale: i32,
    channel_zero: i32,
    token_scale: i32,
    token_zero: i32,
    first_token: i32,
    scales: i32,
    codes: i32,
    element: i32,
    rule: i32,
    basis: i32,
    power: i32,
    odd: i32,
    unit: f32,
    planned: i32,
    bytes: i32,
    unused: i32,
    mean: Address,
    signs: Address,
    hartley: Address,
    forward: Address,
    inverse_lambda: Address,
    backward: Address,
    angles: Address,
    row: [PartRow; ROWS],
    table: [f32; LEVELS],
    boundaries: [f32; LEVELS],
}

/// `PageForm`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PageForm {
    tokens: i32,
    dim: i32,
    parts: i32,
    width: i32,
    turn: Address,
    mean: Address,
    part: [PagePart; 2],
}

/// Which encoders the pages of a side need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Encoders {
    pub packed: bool,
    pub differences: bool,
    pub sum: bool,
    pub polar: bool,
    pub trellis: bool,
}

/// A form, and what it needs.
pub(super) struct Formed {
    pub form: PageForm,
    pub encoders: Encoders,
}

impl PagePart {
    fn new(kind: PartKind, side: Side, dim: usize, tokens: usize) -> PagePart {
        PagePart {
            kind: kind as i32,
            is_key: (side == Side::Key).into(),
            at: 0,
            tokens: tokens as i32,
            dim: dim as i32,
            coded: dim as i32,
            rows: 0,
            groups: 0,
            group: 0,
            scale_bytes: 2,
            meaning: 0,
            bits: 0,
            channel_scale: -1,
            channel_zero: -1,
            token_scale: -1,
            token_zero: -1,
            first_token: -1,
            scales: 0,
            codes: 0,
            element: 0,
            rule: 0,
            basis: 0,
            power: 1,
            odd: 1,
            unit: 1.0,
            planned: 0,
            bytes: 0,
            unused: 0,
            mean: 0,
            signs: 0,
            hartley: 0,
            forward: 0,
            inverse_lambda: 0,
            backward: 0,
            angles: 0,
            row: [PartRow::default(); ROWS],
            table: [0.0; LEVELS],
            boundaries: [0.0; LEVELS],
        }
    }

    fn exact(format: &ExactFormat) -> PagePart {
        let element = match format.element {
            Element::F16 => 0,
            Element::F32 => 1,
            Element::Bf16 => 2,
        };
        PagePart { element, ..PagePart::new(PartKind::Exact, format.side, format.dim, format.tokens) }
    }

    fn packed(format: &PackedFormat, rounding: Rounding, at: usize) -> PagePart {
        let channels = format.side.row();
        let row_bytes = |bits: u8| format.tokens * channels * usize::from(bits) / 8;
        let mut part = PagePart::new(PartKind::Packed, format.side, format.dim, format.tokens);
        let rows = format.spans.iter().flat_map(|span| {
            (0..span.len / channels).map(move |row| PartRow {
                codes: (span.codes + row * row_bytes(span.bits)) as i32,
                bits: span.bits.into(),
                group: span.group as i32,
                unused: 0,
            })
        });
        for (to, row) in part.row.iter_mut().zip(rows) {
            *to = row;
            part.rows += 1;
        }
        let begin =
            |range: &Option<std::ops::Range<usize>>| range.as_ref().map_or(-1, |range| range.start as i32);
        if let Some(span) = format.spans.first() {
            part.meaning = match &span.meaning {
                CodeMeaning::Shifted => 0,
                CodeMeaning::WithZero => 1,
                CodeMeaning::Table(table) => {
                    part.table = table.map(f32::from);
                    let middles = part.table.windows(2).map(|pair| 0.5 * (pair[0] + pair[1]));
                    let between = (1usize << span.bits) - 1;
                    part.boundaries
                        .iter_mut()
                        .zip(middles)
                        .take(between)
                        .for_each(|(to, middle)| *to = middle);
                    2
                }
            };
        }
        // Groups of a token array are as wide as the first channel of the second says.
        let second =
            format.spans.iter().find(|span| span.group == 1).map_or(format.coded.max(1), |span| span.first);
        PagePart {
            at: at as i32,
            coded: format.coded as i32,
            groups: format.groups as i32,
            group: second as i32,
            scale_bytes: format.scales.bytes() as i32,
            channel_scale: begin(&format.channel_scale),
            channel_zero: begin(&format.channel_zero),
            token_scale: begin(&format.token_scale),
            token_zero: begin(&format.token_zero),
            rule: rule(rounding.rule),
            unit: rounding.unit,
            bytes: format.bytes as i32,
            ..part
        }
    }

    fn trellis(format: &TrellisFormat) -> PagePart {
        let mut part = PagePart::new(PartKind::Trellis, format.side, format.dim, format.tokens);
        let mut codes = format.codes();
        for (row, bits) in part.row.iter_mut().zip(&format.widths) {
            *row = PartRow { codes: codes as i32, bits: (*bits).into(), ..PartRow::default() };
            codes += format.tokens * 2 * usize::from(*bits);
        }
        PagePart {
            rows: if format.side == Side::Key { format.padded() / 4 } else { format.widths.len() } as i32,
            bits: format.quad_bits as i32,
            scales: format.scales() as i32,
            codes: format.codes() as i32,
            planned: matches!(format.basis.linear, Linear::Dense(_)).into(),
            bytes: format.bytes() as i32,
            ..part
        }
    }

    fn polar(codec: &dyn PageCodec, bits: u8, radii: ScaleFormat) -> PagePart {
        let (dim, tokens) = (codec.dim(), codec.page_tokens());
        PagePart {
            bits: bits.into(),
            scale_bytes: radii.bytes() as i32,
            codes: (tokens * dim.div_ceil(16) * radii.bytes()) as i32,
            bytes: codec.page_bytes() as i32,
            ..PagePart::new(PartKind::Polar, codec.side(), dim, tokens)
        }
    }

    /// With the way into its basis.
    fn within(self, matrices: &Matrices, back: bool) -> PagePart {
        PagePart {
            basis: matrices.kind as i32,
            power: matrices.power as i32,
            odd: matrices.odd as i32,
            mean: matrices.mean,
            signs: matrices.signs,
            hartley: matrices.hartley,
            forward: matrices.forward,
            inverse_lambda: matrices.inverse_lambda,
            backward: if back { matrices.backward } else { 0 },
            ..self
        }
    }
}

/// The number of a rule in `general_encode.cu`.
fn rule(rule: Rule) -> i32 {
    match rule {
        Rule::Symmetric => 0,
        Rule::SignedMax => 1,
        Rule::Asymmetric => 2,
        Rule::FittedMax => 3,
        Rule::FittedRange => 4,
        Rule::LloydMax => 5,
        Rule::Bins => 6,
        Rule::NormalFloat => 7,
        Rule::NonLinear => 8,
        Rule::Sketch => 9,
    }
}

impl Formed {
    /// Exact rows.
    pub(super) fn exact(format: &ExactFormat) -> Formed {
        let part = PagePart::exact(format);
        let form = PageForm {
            tokens: format.tokens as i32,
            dim: format.dim as i32,
            parts: 1,
            width: format.dim.next_multiple_of(64) as i32,
            turn: 0,
            mean: 0,
            part: [part; 2],
        };
        Formed { form, encoders: Encoders::default() }
    }

    /// Pages of a codec.
    pub(super) fn of(codec: &dyn PageCodec, bases: &mut Bases) -> Result<Formed, String> {
        let unknown = || "a codec whose pages nobody describes does not run".to_owned();
        let lost = |error: OpenError| error.to_string();
        let dim = codec.dim();
        let mut encoders = Encoders::default();
        let (parts, of) = match (codec.format(), codec.compound()) {
            (Some(PageFormat::Exact(format)), _) => return Ok(Formed::exact(&format)),
            (Some(PageFormat::Packed(format)), _) => {
                encoders.packed = true;
                let rounding = codec.rounding().ok_or_else(unknown)?;
                (vec![PagePart::packed(&format, rounding, 0)], vec![format.basis.clone()])
            }
            (Some(PageFormat::Trellis(format)), _) => {
                encoders.trellis = true;
                (vec![PagePart::trellis(&format)], vec![format.basis.clone()])
            }
            (None, Some(Compound::Delta { first, differences, group, basis })) => {
                (encoders.packed, encoders.differences) = (true, true);
                let (Some(PageFormat::Packed(format)), Some(rounding)) =
                    (differences.format(), differences.rounding())
                else {
                    return Err(unknown());
                };
                let part = PagePart::packed(&format, rounding, dim * first.bytes());
                (vec![PagePart { first_token: 0, group: group as i32, ..part }], vec![basis.clone()])
            }
            (None, Some(Compound::Sum(codecs))) => {
                (encoders.packed, encoders.sum) = (true, true);
                let (mut parts, mut of, mut at) = (Vec::new(), Vec::new(), 0);
                for codec in codecs {
                    let (Some(PageFormat::Packed(format)), Some(rounding)) =
                        (codec.format(), codec.rounding())
                    else {
                        return Err(unknown());
                    };
                    parts.push(PagePart::packed(&format, rounding, at));
                    of.push(format.basis.clone());
                    at += codec.page_bytes();
                }
                (parts, of)
            }
            (None, Some(Compound::Polar { bits, radii, book, basis })) => {
                encoders.polar = true;
                let angles = bases.angles(book).map_err(lost)?;
                (vec![PagePart { angles, ..PagePart::polar(codec, bits, radii) }], vec![basis.clone()])
            }
            _ => return Err(unknown()),
        };
        let width = (dim * parts.len()).next_multiple_of(64);
        if width > MOST_CHANNELS {
            return Err(format!(
                "pages of {} channels, of {} parts together, do not run: {MOST_CHANNELS} do",
                dim * parts.len(),
                parts.len()
            ));
        }
        let matrices: Result<Vec<Matrices>, OpenError> =
            of.iter().map(|basis| bases.matrices(basis)).collect();
        let matrices = matrices.map_err(lost)?;
        let turn = bases.turn(codec.side(), &of, width).map_err(lost)?;
        let mean = matrices.first().map_or(0, |matrices| matrices.mean);
        let count = parts.len();
        let mut part = parts.iter().zip(&matrices).map(|(part, of)| part.within(of, count > 1));
        let Some(first) = part.next() else { return Err(unknown()) };
        let form = PageForm {
            tokens: codec.page_tokens() as i32,
            dim: dim as i32,
            parts: count as i32,
            width: width as i32,
            turn,
            mean,
            part: [first, part.next().unwrap_or(first)],
        };
        Ok(Formed { form, encoders })
    }
}

impl PageForm {
    /// Channels of all parts, in whole 64s.
    pub(super) fn width(&self) -> usize {
        self.width as usize
    }

    /// Forms as kernels read them.
    pub(super) fn bytes(forms: &[PageForm]) -> Vec<u8> {
        // SAFETY: structs of numbers of four and eight bytes without padding, as is asserted.
        const {
            assert!(size_of::<PagePart>() == 28 * 4 + 7 * 8 + ROWS * 16 + 2 * LEVELS * 4);
            assert!(size_of::<PageForm>() == 32 + 2 * size_of::<PagePart>());
        };
        let (start, bytes) = (forms.as_ptr().cast::<u8>(), size_of_val(forms));
        // SAFETY: as above; any byte of them is one.
        unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec()
    }
}

/// `TrellisTables`.
pub(super) fn trellis_tables() -> Vec<u8> {
    let (mut units, mut starts, mut levels) = ([0f32; 16], [0i32; 16], vec![0u8; 16 * 256]);
    for table in &TRELLIS_TABLES {
        let bits = usize::from(table.bits);
        (units[bits], starts[bits]) = (table.unit, table.start.into());
        for window in 0..=255u8 {
            levels[256 * bits + usize::from(window)] = table.level(window).cast_unsigned();
        }
    }
    let scales = (0..=255).map(TrellisFormat::scale);
    let first = (0..=255).flat_map(|leak| {
        let [a, b, c] = TrellisFormat::first_steps(leak);
        [a, b, c, 1.0]
    });
    let units = units.into_iter().flat_map(f32::to_le_bytes);
    let starts = starts.into_iter().flat_map(i32::to_le_bytes);
    units.chain(starts).chain(scales.chain(first).flat_map(f32::to_le_bytes)).chain(levels).collect()
}
