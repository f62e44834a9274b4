//! Pages of codes under scales: where everything lies.

use super::{BasisFormat, ScaleFormat, Side};
use std::ops::Range;

/// Codes in a unit.
pub(crate) const UNIT: usize = 128;

/// Bytes of a unit.
pub(crate) const fn unit_bytes(bits: u8) -> usize {
    UNIT / 8 * bits as usize
}

/// What a code stands for before scales and zeros: an integer, its *level*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeMeaning {
    /// level = code − 2^(bits − 1).
    Shifted,
    /// level = code, and the page has zeros beside its scales.
    WithZero,
    /// level = table\[code\]; entries past the last code are zero.
    Table([i8; 32]),
}

impl CodeMeaning {
    /// Whether levels are looked up.
    pub fn is_table(&self) -> bool {
        matches!(self, CodeMeaning::Table(_))
    }

    /// The table, all zeros where there is none.
    pub(crate) fn table(&self) -> &[i8; 32] {
        match self {
            CodeMeaning::Table(table) => table,
            CodeMeaning::Shifted | CodeMeaning::WithZero => &[0; 32],
        }
    }

    /// The code in the middle of evenly spaced levels, which kernels subtract from codes of this width; zero for tables.
    /// Codes with a zero are centred too, because a rounded query does less harm to centred codes.
    pub(crate) fn centre(&self, bits: u8) -> i32 {
        match self {
            CodeMeaning::Table(_) => 0,
            CodeMeaning::Shifted | CodeMeaning::WithZero => 1 << (bits - 1),
        }
    }

    /// The level of a code of this width.
    #[cfg(test)]
    pub(crate) fn level(&self, bits: u8, code: u8) -> f32 {
        match self {
            CodeMeaning::Table(table) => f32::from(table[usize::from(code)]),
            CodeMeaning::WithZero => f32::from(code),
            CodeMeaning::Shifted => f32::from(code) - self.centre(bits) as f32,
        }
    }
}

/// Neighbouring channels of one width under one token scale: what a query is rounded for in one go.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// First channel.
    pub first: usize,
    /// Channels, padding included: a multiple of 8 (keys) or 16 (values).
    pub len: usize,
    /// Of a code.
    pub bits: u8,
    /// What a code stands for.
    pub meaning: CodeMeaning,
    /// Which row of the token arrays scales it.
    pub group: usize,
    /// Byte offset of its first unit.
    pub codes: usize,
}

impl Span {
    /// The code that kernels subtract.
    pub(crate) fn centre(&self) -> i32 {
        self.meaning.centre(self.bits)
    }
}

/// The byte map of a packed page, what its codes mean, and the basis they lie in.
///
/// Offsets are in bytes from the page's start. Arrays of scales and zeros that a page does not have are `None`: a scale then
/// is one, a zero zero.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PackedFormat {
    /// Keys or values.
    pub side: Side,
    /// Channels of a vector.
    pub dim: usize,
    /// Vectors in a page.
    pub tokens: usize,
    /// How scales and zeros are stored.
    pub scales: ScaleFormat,
    /// Channels that have codes, padding included; the others are zero in the codec's basis.
    pub coded: usize,
    /// Rows of the token arrays.
    pub groups: usize,
    /// Channels that have codes, in order and without gaps.
    pub spans: Vec<Span>,
    /// One scale per coded channel.
    pub channel_scale: Option<Range<usize>>,
    /// One zero per coded channel.
    pub channel_zero: Option<Range<usize>>,
    /// Scales, (groups, tokens).
    pub token_scale: Option<Range<usize>>,
    /// Zeros, (groups, tokens).
    pub token_zero: Option<Range<usize>>,
    /// All of it.
    pub bytes: usize,
    /// What the decoded numbers are coordinates in.
    pub basis: BasisFormat,
}

/// Which arrays of scales a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrays {
    pub channel_scale: bool,
    pub channel_zero: bool,
    pub token_scale: bool,
    pub token_zero: bool,
}

/// How wide codes are and what they mean.
pub(crate) struct Widths<'a> {
    /// Bits of each row of units (8 channels of a key, 16 of a value). Rows of zero bits come last and are not stored.
    pub rows: &'a [u8],
    /// What a code of so many bits means.
    pub meaning: &'a dyn Fn(u8) -> CodeMeaning,
}

impl PackedFormat {
    /// Pages of `tokens` vectors in that basis, `group` channels to a token scale.
    pub(crate) fn new(
        side: Side,
        tokens: usize,
        group: usize,
        widths: Widths<'_>,
        scales: ScaleFormat,
        arrays: Arrays,
        basis: BasisFormat,
    ) -> PackedFormat {
        let (row, dim) = (side.row(), basis.dim);
        let stored = widths.rows.iter().copied().take_while(|bits| *bits > 0);
        let coded = row * stored.clone().count();
        let groups = dim.div_ceil(group);
        let mut at = 0;
        let mut reserve = |present: bool, count: usize| {
            present.then(|| {
                let range = at..at + count * scales.bytes();
                at = range.end;
                range
            })
        };
        let channel_scale = reserve(arrays.channel_scale, coded);
        let channel_zero = reserve(arrays.channel_zero, coded);
        let token_scale = reserve(arrays.token_scale, groups * tokens);
        let token_zero = reserve(arrays.token_zero, groups * tokens);
        let mut spans: Vec<Span> = Vec::new();
        for (i, bits) in stored.enumerate() {
            let first = row * i;
            match spans.last_mut() {
                Some(span) if span.bits == bits && span.group == first / group => span.len += row,
                _ => {
                    let meaning = (widths.meaning)(bits);
                    spans.push(Span { first, len: row, bits, meaning, group: first / group, codes: at });
                }
            }
            at += side.units(tokens) * unit_bytes(bits);
        }
        PackedFormat {
            side,
            dim,
            tokens,
            scales,
            coded,
            groups,
            spans,
            channel_scale,
            channel_zero,
            token_scale,
            token_zero,
            bytes: at,
            basis,
        }
    }

    /// Bytes of one row of units of a span.
    pub(crate) fn row_bytes(&self, span: &Span) -> usize {
        self.side.units(self.tokens) * unit_bytes(span.bits)
    }
}
