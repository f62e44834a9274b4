//! Σ w·v over a page of values, from its codes.
//!
//! Σ wₜ·ŷₜ with ŷₜ = ρ·ŷₜ₋₁ + eₜ is Σ w'ₜ·eₜ with w'ₜ = wₜ + ρ·w'ₜ₊₁: the weights are scanned backwards, once for all channels.
//! Then factors of tokens go into the weights, those of channels into the sums. The four tokens of a lane lie a quarter of a
//! page apart, so that a lane's windows follow each other in registers.

use super::decode::{channel_pairs, token_pairs};
use super::scan::Leak;
use super::window::{levels, run};
use crate::format::{ROW, RUN, TRELLIS_TOKENS, TrellisFormat, TrellisTable, first_steps, scale};
use crate::kernel::{Accumulator, Pages, by_heads};
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Queries whose weights are prepared together.
const BLOCK: usize = 16;

/// The integers that a weight is rounded to go from −127 to 127.
const LIMIT: f32 = 127.0;

/// Tokens in a quarter of a page.
const QUARTER: usize = TRELLIS_TOKENS / 4;

/// Weights of a block of heads, on their way to meet levels. Nothing is cleared: every part is written before it is read.
#[repr(C, align(64))]
struct Block {
    /// In the scan's order: (heads, 8, 16).
    scanned: [[[MaybeUninit<f32>; LANES]; RUN]; BLOCK],
    /// (heads, 8, 4, 4): tokens of a run, runs of a quarter, quarters.
    bytes: [[MaybeUninit<i8>; TRELLIS_TOKENS]; BLOCK],
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
    // What no row asks for: the next page's head, and the end of its last line.
    for line in (0..format.codes()).step_by(64).chain([page.len() - 1]) {
        // SAFETY: nothing is read.
        unsafe { S::prefetch(pages.next.wrapping_add(line)) };
    }
    let (whole, leak) = (scale(page[0]), page[1]);
    let mut factors = token_pairs(page);
    let factors = factors.as_flattened_mut();
    factors.iter_mut().zip(first_steps(leak)).for_each(|(factor, step)| *factor *= step);
    // SAFETY: there are as many factors as tokens.
    let (factors, _) = unsafe { in_scan_order::<S>(factors.as_ptr(), factors.as_ptr()) };
    let carrying = Leak::of(leak);
    let mut block = Block {
        scanned: [[[MaybeUninit::uninit(); LANES]; RUN]; BLOCK],
        bytes: [[MaybeUninit::uninit(); TRELLIS_TOKENS]; BLOCK],
        step: [0.0; BLOCK],
        centre: [0; BLOCK],
    };
    for first in (0..sums.heads()).step_by(BLOCK) {
        let heads = BLOCK.min(sums.heads() - first);
        // SAFETY: there are weights for every head and token.
        unsafe {
            let weights = weights.add(first * TRELLIS_TOKENS);
            for h in (0..heads).step_by(2) {
                let next = (h + 1).min(heads - 1);
                let of = |h: usize| weights.add(h * TRELLIS_TOKENS);
                let (this, other) = in_scan_order::<S>(of(h), of(next));
                *sums.denominator_mut(first + h) += scan_within::<S>(this, carrying.rho, &mut block, h);
                if next > h {
                    *sums.denominator_mut(first + next) +=
                        scan_within::<S>(other, carrying.rho, &mut block, next);
                }
            }
            for h in 0..heads {
                carry::<S>(carrying, &factors, &mut block, h);
            }
            for h in 0..heads {
                round::<S>(&mut block, h);
            }
        }
        let mut codes = format.codes();
        for (r, bits) in format.widths.iter().enumerate() {
            let unit = TrellisTable::of(*bits).map_or(0.0, |table| table.unit);
            let mut scales = channel_pairs(&page[format.scales() + ROW / 2 * r..]);
            let scales = scales.as_flattened_mut();
            scales.iter_mut().for_each(|factor| *factor *= whole * unit);
            // Channels after the last stay zero.
            scales.iter_mut().skip(format.dim - ROW * r).for_each(|factor| *factor = 0.0);
            let row = Row { codes, index: r, first, heads, scales, block: &block, pages };
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

/// The numbers of two pages' tokens in that order: a transposition has room for both.
///
/// # Safety
/// Both are valid for 128 floats; the CPU has the tier.
#[inline(always)]
unsafe fn in_scan_order<S: Simd>(a: *const f32, b: *const f32) -> ([S::F; RUN], [S::F; RUN]) {
    let mut rows = [[MaybeUninit::<f32>::uninit(); 2 * RUN]; LANES];
    // SAFETY: all have 128 numbers, in runs of eight; the rows are full when they are transposed.
    unsafe {
        for n in 0..LANES {
            let row = rows[lane(n)].as_mut_ptr().cast::<f32>();
            row.copy_from_nonoverlapping(a.add(RUN * n), RUN);
            row.add(RUN).copy_from_nonoverlapping(b.add(RUN * n), RUN);
        }
        let turned = S::transpose(rows.as_ptr().cast(), LANES);
        let (mut first, mut second) = ([turned[0]; RUN], [turned[0]; RUN]);
        first.copy_from_slice(&turned[..RUN]);
        second.copy_from_slice(&turned[RUN..]);
        (first, second)
    }
}

/// A head's weights in the scan's order, scanned backwards within every run. Returns Σ w.
///
/// The weights of a head go through this, [`carry`] and [`round`], each for all heads before the next: what a head waits for in one
/// is then there when the next begins.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn scan_within<S: Simd>(w: [S::F; RUN], rho: f32, block: &mut Block, place: usize) -> f32 {
    // SAFETY: vectors of sixteen; the CPU has the tier.
    unsafe {
        let rho = S::splat(rho);
        let (mut denominator, mut scanned) = (w[RUN - 1], w[RUN - 1]);
        S::store(block.scanned[place][RUN - 1].as_mut_ptr().cast(), scanned);
        for k in (0..RUN - 1).rev() {
            denominator = S::add(denominator, w[k]);
            scanned = S::fma(rho, scanned, w[k]);
            S::store(block.scanned[place][k].as_mut_ptr().cast(), scanned);
        }
        S::reduce_add(denominator)
    }
}

/// Adds what comes into every run from the runs after it, times the factors of tokens in the scan's order.
///
/// # Safety
/// The head's weights have been scanned within runs; the CPU has the tier.
#[inline(always)]
unsafe fn carry<S: Simd>(carrying: &Leak, factors: &[S::F; RUN], block: &mut Block, place: usize) {
    let rho = carrying.rho;
    // SAFETY: vectors of sixteen; the CPU has the tier.
    unsafe {
        let scanned: *mut f32 = block.scanned[place].as_mut_ptr().cast();
        // The last run first.
        let (mut begins, mut backwards) = ([0.0f32; LANES], [0.0f32; LANES]);
        S::store(begins.as_mut_ptr(), S::load(scanned));
        for n in 0..LANES {
            backwards[n] = begins[lane(LANES - 1 - n)];
        }
        S::store(backwards.as_mut_ptr(), carrying.scan::<S>(S::load(backwards.as_ptr())));
        // Nothing comes into the last run.
        backwards[0] = 0.0;
        for n in 0..LANES {
            begins[lane(n)] = backwards[LANES - 1 - n];
        }
        let (carried, mut power, mut top) = (S::load(begins.as_ptr()), rho, S::splat(0.0));
        for k in (0..RUN).rev() {
            let row = scanned.add(k * LANES);
            let w = S::mul(S::fma(carried, S::splat(power), S::load(row)), factors[k]);
            S::store(row, w);
            top = S::max_abs(top, w);
            power *= rho;
        }
        block.step[place] = S::reduce_max(top) / LIMIT;
    }
}

/// Rounds a head's weights to bytes.
///
/// # Safety
/// The head's weights have been carried on; the CPU has the tier.
#[inline(always)]
unsafe fn round<S: Simd>(block: &mut Block, place: usize) {
    let step = block.step[place];
    // SAFETY: vectors of sixteen, bytes of all tokens; the CPU has the tier.
    unsafe {
        let inverse = S::splat(if step > 1e-32 { 1.0 / step } else { 0.0 });
        let (mut sum, mut rounded) = (S::izero(), [S::izero(); RUN]);
        for k in 0..RUN {
            rounded[k] = S::round(S::mul(S::load(block.scanned[place][k].as_ptr().cast()), inverse));
            sum = S::iadd(sum, rounded[k]);
        }
        // The four quarters of a run's token are side by side in the scan's order already.
        let ([a, b, c, d, e, f, g, h], bytes) = (rounded, block.bytes[place].as_mut_ptr().cast::<i8>());
        S::bstore(bytes, S::narrow([a, b, c, d]));
        S::bstore(bytes.add(4 * LANES), S::narrow([e, f, g, h]));
        let mut sums = [0i32; LANES];
        S::istore(sums.as_mut_ptr(), sum);
        block.centre[place] = -S::BYTE_CENTRE * sums.iter().sum::<i32>();
    }
}

/// Sixteen channels.
struct Row<'a> {
    codes: usize,
    index: usize,
    first: usize,
    heads: usize,
    scales: &'a [f32],
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
        // Two sums of every head, so that a product need not wait for the one before.
        let mut totals = [[S::izero(); H]; 2];
        for (i, total) in totals[0].iter_mut().enumerate() {
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
                    let weights = S::quad(block.bytes[h + i].as_ptr().cast::<i8>().add(4 * (runs * k + n)));
                    totals[k % 2][i] = S::dot_full(totals[k % 2][i], found[k], weights);
                }
            }
        }
        let scales = S::load(scales.as_ptr());
        for i in 0..H {
            let sums = sums.row_mut(first + h + i)[ROW * index..].as_mut_ptr();
            let total = S::iadd(totals[0][i], totals[1][i]);
            let part = S::mul(S::to_f(total), S::splat(block.step[h + i]));
            S::store(sums, S::fma(part, scales, S::load(sums)));
        }
    }
    H
}
