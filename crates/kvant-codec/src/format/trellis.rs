//! Pages of trellis codes: where everything lies, and the levels of windows.

use super::{BasisFormat, Side};
use std::sync::LazyLock;

/// Tokens in a page of trellis codes.
pub(crate) const TRELLIS_TOKENS: usize = 128;

/// Channels of a key that share a width and a leak.
pub(crate) const QUAD: usize = 4;

/// Channels of a value that share a width.
pub(crate) const ROW: usize = 16;

/// Tokens whose codes are whole bytes, whatever the width.
pub(crate) const RUN: usize = 8;

/// The levels of one width. A window w of the last eight bits of a channel's codes stands for low\[w mod 16\] + high\[w / 16\] units.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TrellisTable {
    /// Bits of a code.
    pub bits: u8,
    /// The window before the first code of a page.
    pub start: u8,
    /// What one step of a level is worth, where the numbers have variance one.
    pub unit: f32,
    /// By the lower half of a window.
    pub low: [i8; 16],
    /// By the upper half.
    pub high: [i8; 16],
}

/// The tables, trained on Gaussians: alternately the best codes for the levels and the best levels for the codes.
pub static TRELLIS_TABLES: [TrellisTable; 7] = [
    TrellisTable {
        bits: 1,
        start: 0,
        unit: 0.016172193,
        low: [42, -53, -39, 36, -37, 35, -49, 47, -66, 65, 11, -4, 35, -27, 55, -48],
        high: [6, -6, 36, -35, -40, 40, 24, -26, -16, 3, -55, 61, 37, -35, -6, 15],
    },
    TrellisTable {
        bits: 2,
        start: 0,
        unit: 0.021064727,
        low: [55, -62, -20, 8, -39, 47, 10, -8, -68, 70, -15, 17, -42, 45, 16, -15],
        high: [4, 1, 11, -17, 46, 0, 38, -49, 8, -37, -58, 14, -37, 45, -21, 52],
    },
    TrellisTable {
        bits: 3,
        start: 19,
        unit: 0.022820324,
        low: [-70, -42, -23, -6, 11, 31, 52, 94, -92, -52, -29, -12, 5, 22, 42, 69],
        high: [-8, 29, -8, -8, 27, -10, 24, 32, -29, 10, -27, 11, 6, -31, 7, -25],
    },
    TrellisTable {
        bits: 4,
        start: 10,
        unit: 0.027286109,
        low: [-11, -25, 39, -76, -47, 50, 23, -3, -17, 15, 5, 11, 31, -2, -35, 70],
        high: [16, -14, -10, 8, 25, -36, 9, -49, -29, -21, -4, 56, 31, 41, 1, 3],
    },
    TrellisTable {
        bits: 5,
        start: 0,
        unit: 0.026167696,
        low: [-70, -39, -30, -23, -17, -11, -7, -2, 2, 7, 12, 18, 23, 30, 38, 69],
        high: [-29, 37, -37, 21, -21, 34, -46, 57, -33, 25, -26, 29, -56, 41, -41, 46],
    },
    TrellisTable {
        bits: 6,
        start: 0,
        unit: 0.027268762,
        low: [-50, -18, -14, -11, -8, -6, -4, -1, 1, 4, 6, 8, 11, 14, 18, 51],
        high: [-57, -18, 10, 48, -50, -13, 14, 75, -74, -15, 12, 51, -45, -10, 17, 56],
    },
    TrellisTable {
        bits: 8,
        start: 0,
        unit: 0.03125,
        low: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        high: [-128, -112, -96, -80, -64, -48, -32, -16, 0, 16, 32, 48, 64, 80, 96, 112],
    },
];

impl TrellisTable {
    /// The table of a width; `None` where there are no codes, or no such width.
    pub fn of(bits: u8) -> Option<&'static TrellisTable> {
        match bits {
            1..=6 => Some(&TRELLIS_TABLES[usize::from(bits) - 1]),
            8 => Some(&TRELLIS_TABLES[6]),
            _ => None,
        }
    }

    /// The level of a window, in units.
    pub fn level(&self, window: u8) -> i8 {
        self.low[usize::from(window % 16)].wrapping_add(self.high[usize::from(window / 16)])
    }
}

/// 2^(k/8).
const EIGHTHS: [f32; 8] = [
    1.0,
    1.090_507_7,
    1.189_207_1,
    1.296_839_6,
    std::f32::consts::SQRT_2,
    1.542_210_8,
    1.681_792_9,
    1.834_008_1,
];

/// 2^((exponent − 128) / 8), or zero for none: what a stored scale stands for.
pub(crate) fn scale(exponent: u8) -> f32 {
    static SCALES: [f32; 256] = {
        let (mut scales, mut e) = ([0.0; 256], 1);
        while e < 256 {
            scales[e] = power_of_eighths(e as i32 - 128);
            e += 1;
        }
        scales
    };
    SCALES[exponent as usize]
}

/// 2^(eighths / 8).
pub(crate) const fn power_of_eighths(eighths: i32) -> f32 {
    let whole = f32::from_bits(((127 + eighths.div_euclid(8)) as u32) << 23);
    EIGHTHS[eighths.rem_euclid(8) as usize] * whole
}

/// Steps of a page's first tokens, which nothing predicts yet, in those of the later ones; a function of the leak ρ.
///
/// A step is as large as the standard deviation of what it codes: of the first token √(1.5 / (1 − ρ²)), of one after it what
/// the leak lets through of the error before, taken as 6 % of its variance.
///
/// Leaks are given in 256ths.
pub(crate) fn first_steps(leak: u8) -> [f32; 3] {
    static STEPS: LazyLock<[[f32; 3]; 256]> =
        LazyLock::new(|| std::array::from_fn(|leak| computed_steps(leak as f64 / 256.0)));
    STEPS[usize::from(leak)]
}

fn computed_steps(leak: f64) -> [f32; 3] {
    let square = leak * leak;
    let settled = 1.0 / (1.0 - 0.06 * square);
    let mut variance = 1.5 / (1.0 - square);
    std::array::from_fn(|_| {
        let step = (variance / settled).sqrt() as f32;
        variance = 1.0 + 0.06 * square * variance;
        step
    })
}

/// Pages of trellis codes. [The format](crate::format) says what the parts mean.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TrellisFormat {
    /// Keys or values.
    pub side: Side,
    /// Channels of a vector.
    pub dim: usize,
    /// Vectors in a page: 128.
    pub tokens: usize,
    /// Bits of a token's codes: the widths of all quads of a key, four times. Zero for values.
    pub quad_bits: usize,
    /// Bits of the codes of every 16 channels of a value; empty for keys, whose pages say it themselves.
    pub widths: Vec<u8>,
    /// The basis that the numbers lie in.
    pub basis: BasisFormat,
}

impl TrellisFormat {
    /// What a stored scale stands for: 2^((exponent − 128) / 8), or zero for none.
    pub fn scale(exponent: u8) -> f32 {
        scale(exponent)
    }

    /// Steps of a page's first tokens in those of the later ones, by the leak in 256ths.
    pub fn first_steps(leak: u8) -> [f32; 3] {
        first_steps(leak)
    }

    /// Channels with those that fill up the last quad, or the last row of 16.
    pub fn padded(&self) -> usize {
        self.dim.next_multiple_of(match self.side {
            Side::Key => QUAD,
            Side::Value => ROW,
        })
    }

    /// Where the scales of channels begin.
    pub fn scales(&self) -> usize {
        match self.side {
            Side::Key => self.padded() / QUAD,
            Side::Value => 2 + self.tokens / 2,
        }
    }

    /// Where the codes begin.
    pub fn codes(&self) -> usize {
        self.scales()
            + match self.side {
                Side::Key => 2 * self.padded(),
                Side::Value => self.padded() / 2,
            }
    }

    /// Bytes of a page.
    pub fn bytes(&self) -> usize {
        let bits = match self.side {
            Side::Key => QUAD * self.quad_bits,
            Side::Value => self.widths.iter().map(|bits| ROW * usize::from(*bits)).sum(),
        };
        self.codes() + self.tokens * bits / 8
    }

    /// Width and leak of every quad of a page of keys, and where its codes begin. A quad whose codes would lie beyond the
    /// page has none.
    pub fn quads(&self, page: &[u8]) -> impl Iterator<Item = Quad> {
        let (mut codes, bytes) = (self.codes(), self.bytes());
        page.iter().take(self.scales()).map(move |head| {
            let mut bits = if TrellisTable::of(head % 16).is_some() { head % 16 } else { 0 };
            let size = self.tokens * QUAD / 8 * usize::from(bits);
            if codes + size > bytes {
                bits = 0;
            }
            let quad = Quad { bits, leak: head & 0xF0, codes };
            codes += self.tokens * QUAD / 8 * usize::from(bits);
            quad
        })
    }
}

/// Four channels of a page of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quad {
    /// Bits of a code: 0 to 6, or 8.
    pub bits: u8,
    /// The leak in 256ths.
    pub leak: u8,
    /// Where its codes begin.
    pub codes: usize,
}
