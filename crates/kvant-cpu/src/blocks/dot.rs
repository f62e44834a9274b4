//! Dot products of f32 rows, in tiles, with one order of additions for every tile shape and instruction set.
//!
//! The sum of a pair (weight row, activation row) is kept in [`LANES`] partial sums: lane `l` adds the products
//! at `l`, `l + 16`, `l + 32` … in that order, and the lanes are folded 16 → 8 → 4 → 1 at the end. A tile
//! computes several pairs side by side to reuse what it has loaded, but no pair's additions ever mix with or
//! depend on another's. So a row gives the same bits alone or in a batch, in any split over threads, and (there
//! being no fused multiply-add) on every instruction set. The price is a third of the peak speed
//! of a fused kernel; this is the reference path.

use kvant_simd::{Simd, Tier, Work, with_tier};
use std::array::from_fn;

/// Partial sums per dot product: one 512-bit register, two of 256 or four of 128 bits.
const LANES: usize = 16;
type Partial = [f32; LANES];

/// The dot product of two rows of equal length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_on(tier(), a, b)
}

/// `out[r, t] = weights[r] · x[t]` for weight rows `(rows, n)` and activations `(tokens, n)`; `out` is
/// `(rows, tokens)`.
pub fn dot_block(weights: &[f32], x: &[f32], n: usize, out: &mut [f32]) {
    dot_block_on(tier(), weights, x, n, out);
}

/// The tier that kernels use. Where it cannot be had no model is loaded, and any gives the same bits.
fn tier() -> Tier {
    Tier::select().unwrap_or(Tier::Scalar)
}

fn dot_on(tier: Tier, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of different lengths");
    // SAFETY: `with_tier` takes no tier that this CPU does not have.
    let [[sum]] = with_tier!(tier, S => unsafe { S::call(Tile { w: [a], x: [b] }) });
    sum
}

fn dot_block_on(tier: Tier, weights: &[f32], x: &[f32], n: usize, out: &mut [f32]) {
    // SAFETY: as above.
    with_tier!(tier, S => unsafe { block::<S>(weights, x, n, out) });
}

/// # Safety
/// The CPU has the tier.
unsafe fn block<S: Simd>(weights: &[f32], x: &[f32], n: usize, out: &mut [f32]) {
    let (rows, tokens) = (weights.len() / n, x.len() / n);
    assert_eq!(out.len(), rows * tokens, "output of {rows} rows and {tokens} tokens");
    let w = |r: usize| &weights[r * n..][..n];
    let x = |t: usize| &x[t * n..][..n];
    let mut t = 0;
    while t < tokens {
        let wide = tokens - t >= 4;
        let mut r = 0;
        while r < rows {
            let tall = rows - r >= 4;
            match (tall, wide) {
                (true, true) => {
                    let tile =
                        Tile { w: from_fn::<_, 4, _>(|i| w(r + i)), x: from_fn::<_, 4, _>(|i| x(t + i)) };
                    // SAFETY: the caller's contract.
                    let tile = unsafe { S::call(tile) };
                    for (i, sums) in tile.iter().enumerate() {
                        out[(r + i) * tokens + t..][..4].copy_from_slice(sums);
                    }
                }
                (true, false) => {
                    let tile = Tile { w: from_fn::<_, 4, _>(|i| w(r + i)), x: [x(t)] };
                    // SAFETY: the caller's contract.
                    let tile = unsafe { S::call(tile) };
                    for (i, [sum]) in tile.into_iter().enumerate() {
                        out[(r + i) * tokens + t] = sum;
                    }
                }
                (false, _) => {
                    for i in 0..if wide { 4 } else { 1 } {
                        // SAFETY: the caller's contract.
                        let [[sum]] = unsafe { S::call(Tile { w: [w(r)], x: [x(t + i)] }) };
                        out[r * tokens + t + i] = sum;
                    }
                }
            }
            r += if tall { 4 } else { 1 };
        }
        t += if wide { 4 } else { 1 };
    }
}

/// Dot products of every pair of `w` and `x`. The arithmetic is the same on all tiers; only its width differs.
struct Tile<'a, const R: usize, const T: usize> {
    w: [&'a [f32]; R],
    x: [&'a [f32]; T],
}

impl<S: Simd, const R: usize, const T: usize> Work<S> for Tile<'_, R, T> {
    type Output = [[f32; T]; R];

    #[inline(always)]
    unsafe fn run(self) -> [[f32; T]; R] {
        tile(self.w, self.x)
    }
}

/// Entry `[r][t]` is `w[r] · x[t]`. Written with whole-array values because that form keeps `sums` in registers.
#[inline(always)]
fn tile<const R: usize, const T: usize>(w: [&[f32]; R], x: [&[f32]; T]) -> [[f32; T]; R] {
    let n = w[0].len();
    let whole = n / LANES;
    let w_lanes: [&[Partial]; R] = from_fn(|r| &w[r].as_chunks().0[..whole]);
    let x_lanes: [&[Partial]; T] = from_fn(|t| &x[t].as_chunks().0[..whole]);
    let mut sums = [[[0.0f32; LANES]; T]; R];
    for c in 0..whole {
        for r in 0..R {
            for t in 0..T {
                multiply_add(&mut sums[r][t], &w_lanes[r][c], &x_lanes[t][c]);
            }
        }
    }
    if whole * LANES < n {
        let rest = |row: &[f32]| {
            let mut padded = [0.0; LANES];
            padded[..n - whole * LANES].copy_from_slice(&row[whole * LANES..n]);
            padded
        };
        let x_rest: [Partial; T] = from_fn(|t| rest(x[t]));
        for r in 0..R {
            let w_rest = rest(w[r]);
            for t in 0..T {
                multiply_add(&mut sums[r][t], &w_rest, &x_rest[t]);
            }
        }
    }
    sums.map(|row| row.map(fold))
}

#[inline(always)]
fn multiply_add(sums: &mut Partial, a: &Partial, b: &Partial) {
    *sums = from_fn(|l| sums[l] + a[l] * b[l]);
}

#[inline(always)]
fn fold(sums: Partial) -> f32 {
    let eight: [f32; 8] = from_fn(|l| sums[l] + sums[l + 8]);
    let four: [f32; 4] = from_fn(|l| eight[l] + eight[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    }

    /// The additions of the module's documentation, one after another.
    fn plain(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0; LANES];
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[i % LANES] += a * b;
        }
        for width in [8, 4] {
            for l in 0..width {
                lanes[l] += lanes[l + width];
            }
        }
        (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
    }

    proptest! {
        #[test]
        fn every_tier_gives_a_pair_the_same_bits_in_every_tile_and_near_the_exact_sum(
            n in 1usize..100, rows in 1usize..10, tokens in 1usize..10, seed in 0u32..1000,
        ) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32
                / (1u32 << 23) as f32 - 1.0;
            let w: Vec<f32> = (0..rows * n).map(value).collect();
            let x: Vec<f32> = (0..tokens * n).map(|i| value(i + 7919)).collect();
            for tier in Tier::available() {
                let mut out = vec![0.0; rows * tokens];
                dot_block_on(tier, &w, &x, n, &mut out);
                for r in 0..rows {
                    for t in 0..tokens {
                        let (w, x) = (&w[r * n..][..n], &x[t * n..][..n]);
                        let plain = plain(w, x);
                        prop_assert_eq!(out[r * tokens + t].to_bits(), plain.to_bits(), "{}", tier);
                        prop_assert_eq!(dot_on(tier, w, x).to_bits(), plain.to_bits(), "{}", tier);
                        prop_assert!((f64::from(plain) - naive(w, x)).abs() < 1e-5 * n as f64);
                    }
                }
            }
        }
    }
}
