//! Numbers to codes, and codes into units.
//!
//! Keys want four channels of a token in a word: channels are merged by shifts as they come. Values want four tokens of
//! a channel in a word: the low bytes of the lanes, stored side by side, are just that, and sixteen channels are dealt
//! out to four vectors.

use crate::format::{CodeMeaning, PackedFormat, Side, Span, unit_bytes};
use crate::pack::{self, Words};
use crate::quant::Levels;
use kvant_simd::{LANES, Simd};

/// Reciprocal scales and zeros: one pair per lane, or one per channel.
#[derive(Clone, Copy)]
pub(super) enum Factors<F> {
    Token(F, F),
    Channel(*const f32, *const f32),
}

/// One span of one tile.
pub(super) struct CodeSpan<'a, F> {
    pub format: &'a PackedFormat,
    pub span: &'a Span,
    pub levels: &'a Levels,
    /// The span's columns.
    pub columns: *const f32,
    pub factors: Factors<F>,
    pub tile: usize,
    pub page: *mut u8,
}

/// The three ways to code a number.
const SHIFTED: u8 = 0;
const WITH_ZERO: u8 = 1;
const TABLE: u8 = 2;

/// What stays the same over a span.
#[derive(Clone, Copy)]
struct Constants<'a, S: Simd> {
    centre: S::F,
    bottom: S::F,
    top: S::F,
    boundaries: &'a [f32],
    factors: Factors<S::F>,
}

impl<F: Copy> CodeSpan<'_, F> {
    /// Codes and packs the span.
    ///
    /// # Safety
    /// `columns` holds the span's columns, channel factors as many floats, `page` is of the format; the CPU has
    /// the tier.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd<F = F>>(&self) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.levels.meaning {
                CodeMeaning::WithZero => self.rows::<S, WITH_ZERO>(),
                CodeMeaning::Table(_) => self.rows::<S, TABLE>(),
                CodeMeaning::Shifted => self.rows::<S, SHIFTED>(),
            }
        }
    }

    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    #[inline(always)]
    unsafe fn rows<S: Simd<F = F>, const MEANING: u8>(&self) {
        let format = self.format;
        let (bits, tile) = (self.span.bits, self.tile);
        let (row, unit) = (format.row_bytes(self.span), unit_bytes(bits));
        let (bottom, top) = self.levels.range();
        // SAFETY: every channel of the span has a column; units of this tile lie within the page.
        unsafe {
            let constants = Constants::<S> {
                centre: S::splat(self.levels.centre() as f32),
                bottom: S::splat(bottom),
                top: S::splat(top),
                boundaries: &self.levels.boundaries,
                factors: self.factors,
            };
            for r in 0..self.span.len / format.side.row() {
                let at = self.page.add(self.span.codes + r * row);
                match format.side {
                    Side::Key => {
                        let mut v = [S::izero(); 2];
                        for half in 0..2 {
                            let c = 8 * r + 4 * half;
                            let a = code::<S, MEANING>(&constants, self.columns, c);
                            let a = S::ior_shl::<8>(a, code::<S, MEANING>(&constants, self.columns, c + 1));
                            let a = S::ior_shl::<16>(a, code::<S, MEANING>(&constants, self.columns, c + 2));
                            v[half] =
                                S::ior_shl::<24>(a, code::<S, MEANING>(&constants, self.columns, c + 3));
                        }
                        emit::<S>(bits, v, at.add(tile * unit));
                    }
                    Side::Value => {
                        let mut bytes = [0u8; LANES * LANES];
                        for c in 0..LANES {
                            let codes = code::<S, MEANING>(&constants, self.columns, LANES * r + c);
                            S::store_low_bytes(bytes.as_mut_ptr().add(LANES * c), codes);
                        }
                        // Sixteen tokens: two units of eight.
                        let v = S::deal_words(bytes.as_ptr().cast());
                        emit::<S>(bits, [v[0], v[1]], at.add(2 * tile * unit));
                        emit::<S>(bits, [v[2], v[3]], at.add((2 * tile + 1) * unit));
                    }
                }
            }
        }
    }
}

/// The codes of one channel for sixteen tokens.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn code<S: Simd, const MEANING: u8>(
    constants: &Constants<'_, S>,
    columns: *const f32,
    c: usize,
) -> S::I {
    // SAFETY: c is a channel of the span.
    unsafe {
        let x = S::load(columns.add(LANES * c));
        let (inverse, zero) = match constants.factors {
            Factors::Token(inverse, zero) => (inverse, zero),
            Factors::Channel(inverse, zero) => (S::splat(*inverse.add(c)), S::splat(*zero.add(c))),
        };
        if MEANING == TABLE {
            let x = S::mul(x, inverse);
            let mut code = S::izero();
            for boundary in constants.boundaries {
                code = S::inc_where_gt(code, x, S::splat(*boundary));
            }
            return code;
        }
        let level = if MEANING == WITH_ZERO {
            S::mul(S::sub(x, zero), inverse)
        } else {
            S::fma(x, inverse, constants.centre)
        };
        S::round(S::min(S::max(level, constants.bottom), constants.top))
    }
}

/// Packs the two vectors of a unit.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn emit<S: Simd>(bits: u8, v: [S::I; 2], unit: *mut u8) {
    // SAFETY: `unit` has room for a unit of this width.
    unsafe {
        match bits {
            4 => S::istore(unit.cast(), S::ior_shl::<4>(v[0], v[1])),
            8 => {
                S::istore(unit.cast(), v[0]);
                S::istore(unit.add(64).cast(), v[1]);
            }
            _ => {
                let mut words: [Words; 2] = [[0; LANES]; 2];
                S::istore(words[0].as_mut_ptr().cast(), v[0]);
                S::istore(words[1].as_mut_ptr().cast(), v[1]);
                pack::pack(bits, &words, std::slice::from_raw_parts_mut(unit, unit_bytes(bits)));
            }
        }
    }
}
