//! What an encoded page looks like: which bytes mean what.
//!
//! A page holds a fixed number of tokens (32, 64 or 128) of one head:
//!
//! ```text
//! channel scales | channel zeros | token scales | token zeros | codes
//! ```
//!
//! Any of the first four may be absent. Channel arrays run over coded channels; token arrays are
//! (groups, tokens). Scales are binary16 or f32, little-endian. Codes are rows of units (see [`crate::pack`]):
//!
//! - **keys** put sixteen *tokens* in the lanes of a vector and four channels in a lane. A row of units is an octet
//!   of channels, tokens / 16 units long. A score kernel broadcasts four query bytes and sums sixteen tokens at
//!   once, without a horizontal sum.
//! - **values** put sixteen *channels* in the lanes and four tokens in a lane. A row is sixteen channels,
//!   tokens / 8 units long. An accumulate kernel broadcasts four weights.
//!
//! Channels are padded to a multiple of 8 (keys) or 16 (values); the padding is stored and counted.

use crate::pack::unit_bytes;
use std::ops::Range;

/// Keys meet a query by scores, values meet weights by sums; the layout serves the one it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Keys: tokens in the lanes.
    Key,
    /// Values: channels in the lanes.
    Value,
}

/// The number format of scales and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// IEEE binary16, two bytes.
    F16,
    /// IEEE binary32, four bytes.
    F32,
}

impl ScaleFormat {
    /// Bytes of one scale.
    pub fn bytes(self) -> usize {
        match self {
            ScaleFormat::F16 => 2,
            ScaleFormat::F32 => 4,
        }
    }

    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ScaleFormat::F16 => "f16",
            ScaleFormat::F32 => "f32",
        }
    }

    /// The largest scale or zero that is stored. An f32 could be larger, but then a decoded vector, or a sum of some,
    /// might not be finite.
    pub(crate) fn max(self) -> f32 {
        match self {
            ScaleFormat::F16 => 65504.0,
            ScaleFormat::F32 => 1e30,
        }
    }

    pub(crate) fn write(self, bytes: &mut [u8], index: usize, x: f32) {
        match self {
            ScaleFormat::F16 => {
                bytes[2 * index..2 * index + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
            }
            ScaleFormat::F32 => bytes[4 * index..4 * index + 4].copy_from_slice(&x.to_le_bytes()),
        }
    }

    pub(crate) fn read(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            ScaleFormat::F16 => half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            ScaleFormat::F32 => f32::from_le_bytes(std::array::from_fn(|i| bytes[4 * index + i])),
        }
    }
}

/// Neighbouring channels of one width under one token scale: what a query is rounded for in one go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    /// First channel.
    pub first: usize,
    /// Channels, padding included: a multiple of 8 (keys) or 16 (values).
    pub len: usize,
    pub bits: u8,
    /// Which row of the token arrays scales it.
    pub group: usize,
    /// Byte offset of its first unit.
    pub codes: usize,
}

/// Which arrays of scales a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrays {
    pub channel_scale: bool,
    pub channel_zero: bool,
    pub token_scale: bool,
    pub token_zero: bool,
}

/// The byte map of a page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub side: Side,
    pub dim: usize,
    pub tokens: usize,
    pub format: ScaleFormat,
    /// Channels that have codes, padding included.
    pub coded: usize,
    pub groups: usize,
    pub spans: Vec<Span>,
    pub channel_scale: Option<Range<usize>>,
    pub channel_zero: Option<Range<usize>>,
    pub token_scale: Option<Range<usize>>,
    pub token_zero: Option<Range<usize>>,
    /// All of it.
    pub bytes: usize,
}

impl Side {
    /// Channels in a row of units.
    pub(crate) fn row(self) -> usize {
        match self {
            Side::Key => 8,
            Side::Value => 16,
        }
    }

    /// Units in a row.
    pub(crate) fn units(self, tokens: usize) -> usize {
        tokens * self.row() / crate::pack::UNIT
    }

    /// Where (token, channel within the row) is: (unit, half, index within the vector).
    pub(crate) fn place(self, token: usize, channel: usize) -> (usize, usize, usize) {
        match self {
            Side::Key => (token / 16, channel / 4, 4 * (token % 16) + channel % 4),
            Side::Value => (token / 8, (token / 4) % 2, 4 * channel + token % 4),
        }
    }
}

impl Layout {
    /// A page of `tokens` vectors of `dim` channels in groups of `group`, with `widths[i]` bits for the i-th row of
    /// units (8 channels of a key, 16 of a value). Rows of zero bits come last and are not stored at all.
    pub(crate) fn new(
        side: Side,
        dim: usize,
        tokens: usize,
        group: usize,
        widths: &[u8],
        format: ScaleFormat,
        arrays: Arrays,
    ) -> Layout {
        let row = side.row();
        let coded = row * widths.iter().take_while(|bits| **bits > 0).count();
        let groups = dim.div_ceil(group);
        let mut at = 0;
        let mut reserve = |present: bool, count: usize| {
            present.then(|| {
                let range = at..at + count * format.bytes();
                at = range.end;
                range
            })
        };
        let channel_scale = reserve(arrays.channel_scale, coded);
        let channel_zero = reserve(arrays.channel_zero, coded);
        let token_scale = reserve(arrays.token_scale, groups * tokens);
        let token_zero = reserve(arrays.token_zero, groups * tokens);
        let mut spans: Vec<Span> = Vec::new();
        for (i, bits) in widths.iter().copied().take_while(|bits| *bits > 0).enumerate() {
            let first = row * i;
            match spans.last_mut() {
                Some(span) if span.bits == bits && span.group == first / group => span.len += row,
                _ => spans.push(Span { first, len: row, bits, group: first / group, codes: at }),
            }
            at += side.units(tokens) * unit_bytes(bits);
        }
        Layout {
            side,
            dim,
            tokens,
            format,
            coded,
            groups,
            spans,
            channel_scale,
            channel_zero,
            token_scale,
            token_zero,
            bytes: at,
        }
    }

    /// Bytes of one row of units of a span.
    pub(crate) fn row_bytes(&self, span: &Span) -> usize {
        self.side.units(self.tokens) * unit_bytes(span.bits)
    }
}
