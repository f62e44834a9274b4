//! Σ w·v over a page of values, from its codes.
//!
//! Σ wₜ·ŷₜ with ŷₜ = ρ·ŷₜ₋₁ + eₜ is Σ w'ₜ·eₜ with w'ₜ = wₜ + ρ·w'ₜ₊₁: the weights are scanned backwards, once for all channels.
//! Then factors of tokens go into the weights, those of channels into the sums. The four tokens of a lane lie a quarter of a
//! page apart, so that a lane's windows follow each other in registers.

use super::decode::{channel as factor_of, token};
use super::window::{levels, run};
use crate::format::{ROW, RUN, TRELLIS_TOKENS, TrellisFormat, TrellisTable, first_steps, scale};
use crate::kernel::{Accumulator, Pages, by_heads};
use kvant_simd::{LANES, Simd};

/// Queries whose weights are prepared together.
const BLOCK: usize = 16;

/// The integers that a weight is rounded to go from −127 to 127.
const LIMIT: f32 = 127.0;

/// Tokens in a quarter of a page.
const QUARTER: usize = TRELLIS_TOKENS / 4;

/// Weights of a block of heads, ready to meet levels.
struct Block {
    /// (heads, quarter, 4).
    bytes: [[i8; TRELLIS_TOKENS]; BLOCK],
    step: [f32; BLOCK],
    /// What the centre of levels adds to every sum, negative.
    centre: [i32; BLOCK],
}

/// Adds Σ w·v to the sums, for weights (heads, tokens).
///
/// # Safety
/// `pages.page` is a page of the format, `weights` is valid for heads · tokens floats, the sums are of its dimension; the CPU
/// has the tier.
#[inline(always)]
pub(crate) unsafe fn sums<S: Simd>(
    format: &TrellisFormat,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
) {
    // SAFETY: the caller's contract.
    let page = unsafe { std::slice::from_raw_parts(pages.page, format.bytes()) };
    let (whole, leak) = (scale(page[0]), page[1]);
    let mut factors: [f32; TRELLIS_TOKENS] = std::array::from_fn(|t| token(page, t));
    factors.iter_mut().zip(first_steps(leak)).for_each(|(factor, step)| *factor *= step);
    // SAFETY: there are as many factors as tokens.
    let factors = unsafe { in_scan_order::<S>(factors.as_ptr()) };
    let mut block = Block { bytes: [[0; TRELLIS_TOKENS]; BLOCK], step: [0.0; BLOCK], centre: [0; BLOCK] };
    for first in (0..sums.heads()).step_by(BLOCK) {
        let heads = BLOCK.min(sums.heads() - first);
        for h in 0..heads {
            // SAFETY: there are weights for every head and token.
            let mass = unsafe {
                fold::<S>(weights.add((first + h) * TRELLIS_TOKENS), leak, &factors, &mut block, h)
            };
            *sums.mass_mut(first + h) += mass;
        }
        let mut codes = format.codes();
        for (r, bits) in format.widths.iter().enumerate() {
            let mut scales = [0.0f32; LANES];
            for c in ROW * r..format.dim.min(ROW * r + ROW) {
                let factor = factor_of(&page[format.scales()..], c);
                scales[c % ROW] = whole * factor * TrellisTable::of(*bits).map_or(0.0, |table| table.unit);
            }
            let row = Row { codes, index: r, first, heads, scales: &scales, block: &block, pages };
            // SAFETY: the row's codes lie within the page.
            unsafe {
                match bits {
                    0 => {}
                    1 => row.add::<S, 1>(sums),
                    2 => row.add::<S, 2>(sums),
                    3 => row.add::<S, 3>(sums),
                    4 => row.add::<S, 4>(sums),
                    5 => row.add::<S, 5>(sums),
                    6 => row.add::<S, 6>(sums),
                    _ => row.add::<S, 8>(sums),
                }
            }
            codes += TRELLIS_TOKENS / 8 * ROW * usize::from(*bits);
        }
    }
}

/// Numbers of a page's tokens in the order of a scan: vector k has token 8·n + k in the lane of run n.
///
/// Runs of one place in the four quarters lie side by side, as their bytes do where they meet levels.
#[inline(always)]
fn lane(n: usize) -> usize {
    4 * (n % 4) + n / 4
}

/// # Safety
/// `tokens` is valid for 128 floats; the CPU has the tier.
#[inline(always)]
unsafe fn in_scan_order<S: Simd>(tokens: *const f32) -> [S::F; LANES] {
    // A transposition reads sixteen numbers of every row; the last row's last eight are beyond the page.
    let mut rows = [0.0f32; TRELLIS_TOKENS + RUN];
    // SAFETY: both have 128 numbers, in runs of eight.
    unsafe {
        for n in 0..LANES {
            rows.as_mut_ptr().add(RUN * lane(n)).copy_from_nonoverlapping(tokens.add(RUN * n), RUN);
        }
        S::transpose(rows.as_ptr(), RUN)
    }
}

/// Scans a head's weights backwards, and rounds them, times the factors of tokens in the scan's order, to bytes. Returns Σ w.
///
/// # Safety
/// `weights` is valid for 128 floats; the CPU has the tier.
#[inline(always)]
unsafe fn fold<S: Simd>(
    weights: *const f32,
    leak: u8,
    factors: &[S::F; LANES],
    block: &mut Block,
    place: usize,
) -> f32 {
    let rho = f32::from(leak) / 256.0;
    // SAFETY: vectors of sixteen; the CPU has the tier.
    unsafe {
        let mut w = in_scan_order::<S>(weights);
        let mass = (1..RUN).fold(w[0], |sum, k| S::add(sum, w[k]));
        let rho_all = S::splat(rho);
        for k in (0..RUN - 1).rev() {
            w[k] = S::fma(rho_all, w[k + 1], w[k]);
        }
        // What comes into every run from the runs after it.
        let mut begins = [0.0f32; LANES];
        S::store(begins.as_mut_ptr(), w[0]);
        let (whole, mut carried) = (rho.powi(RUN as i32), 0.0f32);
        for n in (0..LANES).rev() {
            let begin = &mut begins[lane(n)];
            (*begin, carried) = (carried, carried * whole + *begin);
        }
        let (carried, mut power, mut top) = (S::load(begins.as_ptr()), rho, S::splat(0.0));
        for k in (0..RUN).rev() {
            w[k] = S::mul(S::fma(carried, S::splat(power), w[k]), factors[k]);
            top = S::max_abs(top, w[k]);
            power *= rho;
        }
        let top = S::reduce_max(top);
        let inverse = S::splat(if top > 1e-30 { LIMIT / top } else { 0.0 });
        let mut sum = S::izero();
        for k in 0..RUN {
            let (bytes, mut dealt) = (S::round(S::mul(w[k], inverse)), [0u8; LANES]);
            sum = S::iadd(sum, bytes);
            S::store_low_bytes(dealt.as_mut_ptr(), bytes);
            // Four quarters at a time: step 8·i + k of a quarter.
            for i in 0..4 {
                let to = block.bytes[place].as_mut_ptr().cast::<u8>().add(4 * (RUN * i + k));
                to.copy_from_nonoverlapping(dealt.as_ptr().add(4 * i), 4);
            }
        }
        let mut sums = [0i32; LANES];
        S::istore(sums.as_mut_ptr(), sum);
        (block.step[place], block.centre[place]) = (top / LIMIT, -S::BYTE_CENTRE * sums.iter().sum::<i32>());
        S::reduce_add(mass)
    }
}

/// Sixteen channels.
struct Row<'a> {
    codes: usize,
    index: usize,
    first: usize,
    heads: usize,
    scales: &'a [f32; LANES],
    block: &'a Block,
    pages: Pages,
}

impl Row<'_> {
    /// Adds the row's part to all heads of a block.
    ///
    /// # Safety
    /// The row's codes are in the page at that width; the CPU has the tier.
    #[inline(always)]
    unsafe fn add<S: Simd, const BITS: usize>(&self, sums: &mut Accumulator) {
        let mut h = 0;
        while h < self.heads {
            // SAFETY: the caller's contract; there are as many heads left.
            h += unsafe { by_heads!(S, self.heads - h, add_heads::<S, BITS>(self, h, sums)) };
        }
    }
}

/// Adds the row's part to H heads, and returns H.
///
/// # Safety
/// As [`Row::add`]; there are H heads from `h` on.
#[inline(always)]
unsafe fn add_heads<S: Simd, const BITS: usize, const H: usize>(
    row: &Row<'_>,
    h: usize,
    sums: &mut Accumulator,
) -> usize {
    let Some(table) = TrellisTable::of(BITS as u8) else { return H };
    let Row { index, first, scales, block, pages, .. } = *row;
    // SAFETY: a quarter of a page has four runs of BITS vectors; rows of sums are whole vectors.
    unsafe {
        let codes = pages.page.add(row.codes);
        let table_levels = levels::<S>(table);
        let runs = QUARTER / RUN;
        // A quarter's windows begin in the quarter before, which is the byte below in its lane.
        let mut before = S::next_byte(S::bload(codes.add(64 * (runs * BITS - 1))), table.start);
        let mut totals = [S::izero(); H];
        for (i, total) in totals.iter_mut().enumerate() {
            *total = S::isplat(block.centre[h + i]);
        }
        for n in 0..runs {
            for j in 0..BITS {
                S::prefetch(pages.next.wrapping_add(row.codes + 64 * (n * BITS + j)));
            }
            let (found, last) = run::<S, BITS>(table_levels, before, codes.add(64 * n * BITS));
            before = last;
            for k in 0..RUN {
                for i in 0..H {
                    let weights = S::quad(block.bytes[h + i].as_ptr().add(4 * (RUN * n + k)));
                    totals[i] = S::dot_full(totals[i], found[k], weights);
                }
            }
        }
        let scales = S::load(scales.as_ptr());
        for (i, total) in totals.iter().enumerate() {
            let sums = sums.row_mut(first + h + i)[ROW * index..].as_mut_ptr();
            let part = S::mul(S::to_f(*total), S::splat(block.step[h + i]));
            S::store(sums, S::fma(part, scales, S::load(sums)));
        }
    }
    H
}
