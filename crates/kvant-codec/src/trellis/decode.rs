//! Pages back to vectors: the formula, number by number. The oracle, and the fallback of what has no kernel.

use super::stream::{self, windows};
use crate::format::{
    QUAD, ROW, Side, TRELLIS_TOKENS, TrellisFormat, TrellisTable, first_steps, power_of_eighths, scale,
};

/// Decodes a page into rows, (tokens, dim), in the codec's basis.
pub(crate) fn decode(format: &TrellisFormat, page: &[u8], rows: &mut [f32]) {
    match format.side {
        Side::Key => keys(format, page, rows),
        Side::Value => values(format, page, rows),
    }
}

/// One channel of codes, or none: ŷₜ = ρ·ŷₜ₋₁ + gₜ·levelₜ, times its scale.
struct Channel<'a> {
    side: Side,
    table: Option<&'a TrellisTable>,
    /// Of its quad or row.
    codes: &'a [u8],
    /// Within it.
    place: usize,
    /// In 256ths.
    leak: u8,
    /// Of the channel, the table's unit included.
    scale: f32,
    zero: f32,
}

impl Channel<'_> {
    fn decode(&self, token: impl Fn(usize) -> f32, mut put: impl FnMut(usize, f32)) {
        let Channel { side, codes, place, leak, scale, zero, .. } = *self;
        let Some(table) = self.table else {
            return (0..TRELLIS_TOKENS).for_each(|t| put(t, zero));
        };
        let first = first_steps(leak);
        let (mut y, leak) = (0.0f32, f32::from(leak) / 256.0);
        for (t, window) in windows(side, table.bits, table.start, codes, place).enumerate() {
            let step = first.get(t).copied().unwrap_or(1.0);
            y = y * leak + token(t) * step * f32::from(table.level(window));
            put(t, y * scale + zero);
        }
    }
}

fn keys(format: &TrellisFormat, page: &[u8], rows: &mut [f32]) {
    let (dim, scales) = (format.dim, format.scales());
    let zeros = scales + format.padded();
    for (q, quad) in format.quads(page).enumerate() {
        for c in QUAD * q..dim.min(QUAD * q + QUAD) {
            let table = TrellisTable::of(quad.bits);
            let scale = scale(page[scales + c]);
            let channel = Channel {
                side: Side::Key,
                table,
                codes: &page[quad.codes..],
                place: c % QUAD,
                leak: quad.leak,
                scale: scale * table.map_or(1.0, |table| table.unit),
                zero: 0.5 * f32::from(page[zeros + c] as i8) * scale,
            };
            channel.decode(|_| 1.0, |t, x| rows[t * dim + c] = x);
        }
    }
}

fn values(format: &TrellisFormat, page: &[u8], rows: &mut [f32]) {
    let dim = format.dim;
    let (whole, leak) = (scale(page[0]), page[1]);
    let mut codes = format.codes();
    for (r, bits) in format.widths.iter().enumerate() {
        for c in ROW * r..dim.min(ROW * r + ROW) {
            let table = TrellisTable::of(*bits);
            let factor = channel(&page[format.scales()..], c);
            let numbers = Channel {
                side: Side::Value,
                table,
                codes: &page[codes..],
                place: c % ROW,
                leak,
                scale: whole * factor * table.map_or(1.0, |table| table.unit),
                zero: 0.0,
            };
            numbers.decode(|t| token(page, t), |t, x| rows[t * dim + c] = x);
        }
        codes += format.tokens / 8 * stream::together(Side::Value) * usize::from(*bits);
    }
}

/// The factor of a token of a page of values.
pub(super) fn token(page: &[u8], t: usize) -> f32 {
    static FACTORS: [f32; 16] = powers(4);
    FACTORS[usize::from(nibble(&page[2..], t))]
}

/// The factors of all tokens of a page of values, two by two, as they are stored.
#[inline(always)]
pub(super) fn token_pairs(page: &[u8]) -> [[f32; 2]; TRELLIS_TOKENS / 2] {
    static PAIRS: [[f32; 2]; 256] = pairs(4);
    std::array::from_fn(|n| PAIRS[usize::from(page[2 + n])])
}

/// The factors of sixteen channels of a page of values, two by two, from the first byte of theirs on.
#[inline(always)]
pub(super) fn channel_pairs(factors: &[u8]) -> [[f32; 2]; ROW / 2] {
    static PAIRS: [[f32; 2]; 256] = pairs(2);
    std::array::from_fn(|n| PAIRS[usize::from(factors[n])])
}

/// What both halves of a byte stand for: [`powers`] of the same number of eighths.
const fn pairs(eighths: i32) -> [[f32; 2]; 256] {
    let (factors, mut pairs, mut byte) = (powers(eighths), [[0.0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [factors[byte % 16], factors[byte / 16]];
        byte += 1;
    }
    pairs
}

/// The factor of a channel of a page of values, whose factors these are.
pub(super) fn channel(factors: &[u8], c: usize) -> f32 {
    static FACTORS: [f32; 16] = powers(2);
    FACTORS[usize::from(nibble(factors, c))]
}

/// 2^((n − 8)·eighths / 8).
const fn powers(eighths: i32) -> [f32; 16] {
    let (mut powers, mut n) = ([0.0; 16], 0);
    while n < 16 {
        powers[n] = power_of_eighths(eighths * (n as i32 - 8));
        n += 1;
    }
    powers
}

/// Number `index` of those that take half a byte, the lower half first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}
