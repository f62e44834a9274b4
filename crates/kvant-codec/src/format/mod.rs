#![doc = include_str!("../../docs/page-format.md")]

mod basis;
mod dense;
mod number;
mod packed;
mod trellis;

pub use basis::{BasisFormat, Linear, Rotation};
pub use dense::{Dense, DenseError};
pub use number::{Element, ScaleFormat};
pub use packed::{CodeMeaning, PackedFormat, Span};
pub use trellis::{Quad, TRELLIS_TABLES, TrellisFormat, TrellisTable};

pub(crate) use packed::{Arrays, UNIT, Widths, unit_bytes};
pub(crate) use trellis::{QUAD, ROW, RUN, TRELLIS_TOKENS, first_steps, power_of_eighths, scale};

use std::sync::Arc;

/// The largest head dimension.
pub(crate) const MAX_DIM: usize = 1024;

/// The largest page.
pub(crate) const MAX_TOKENS: usize = 128;

/// Keys meet a query by scores, values meet weights by sums; the layout serves the one it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Keys: tokens in the lanes.
    Key,
    /// Values: channels in the lanes.
    Value,
}

impl Side {
    /// Channels in a row of units.
    pub fn row(self) -> usize {
        match self {
            Side::Key => 8,
            Side::Value => 16,
        }
    }

    /// Units in a row.
    pub fn units(self, tokens: usize) -> usize {
        tokens * self.row() / UNIT
    }

    /// Where (token, channel within the row) is: (unit, half, index within the vector).
    #[cfg(test)]
    pub(crate) fn place(self, token: usize, channel: usize) -> (usize, usize, usize) {
        match self {
            Side::Key => (token / 16, channel / 4, 4 * (token % 16) + channel % 4),
            Side::Value => (token / 8, (token / 4) % 2, 4 * channel + token % 4),
        }
    }
}

/// Tokens in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// 32.
    P32,
    /// 64.
    P64,
    /// 128.
    P128,
}

/// Tokens of the largest page.
pub(crate) const MAX_PAGE: usize = 128;

impl PageSize {
    /// As a number.
    pub fn tokens(self) -> usize {
        match self {
            PageSize::P32 => 32,
            PageSize::P64 => 64,
            PageSize::P128 => MAX_PAGE,
        }
    }
}

/// The byte map of a codec's pages and what the bytes mean: all that a reader needs besides the page.
#[derive(Clone, Debug, PartialEq)]
pub enum PageFormat {
    /// Plain numbers.
    Exact(ExactFormat),
    /// Codes under scales.
    Packed(Arc<PackedFormat>),
    /// Trellis codes under logarithmic scales.
    Trellis(Arc<TrellisFormat>),
}

impl PageFormat {
    /// Which side the layout serves.
    pub fn side(&self) -> Side {
        match self {
            PageFormat::Exact(format) => format.side,
            PageFormat::Packed(format) => format.side,
            PageFormat::Trellis(format) => format.side,
        }
    }

    /// Channels of a vector.
    pub fn dim(&self) -> usize {
        match self {
            PageFormat::Exact(format) => format.dim,
            PageFormat::Packed(format) => format.dim,
            PageFormat::Trellis(format) => format.dim,
        }
    }

    /// Vectors in a page.
    pub fn tokens(&self) -> usize {
        match self {
            PageFormat::Exact(format) => format.tokens,
            PageFormat::Packed(format) => format.tokens,
            PageFormat::Trellis(format) => format.tokens,
        }
    }

    /// Bytes of a page.
    pub fn bytes(&self) -> usize {
        match self {
            PageFormat::Exact(format) => format.bytes(),
            PageFormat::Packed(format) => format.bytes,
            PageFormat::Trellis(format) => format.bytes(),
        }
    }
}

/// Pages of plain numbers in the model's basis: keys channel by channel, (dim, tokens), values token by token, (tokens, dim).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExactFormat {
    /// Keys or values.
    pub side: Side,
    /// Channels of a vector.
    pub dim: usize,
    /// Vectors in a page.
    pub tokens: usize,
    /// How a number is stored, little-endian.
    pub element: Element,
}

impl ExactFormat {
    /// Bytes of a page.
    pub fn bytes(&self) -> usize {
        self.tokens * self.dim * self.element.bytes()
    }
}
