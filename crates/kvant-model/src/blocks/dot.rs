//! Dot products of f32 rows, in tiles, with one order of additions for every tile shape and instruction set.
//!
//! The sum of a pair (weight row, activation row) is kept in [`LANES`] partial sums: lane `l` adds the products
//! at `l`, `l + 16`, `l + 32` … in that order, and the lanes are folded 16 → 8 → 4 → 1 at the end. A tile
//! computes several pairs side by side to reuse what it has loaded, but no pair's additions ever mix with or
//! depend on another's. So a row gives the same bits alone or in a batch, in any split over threads, and (there
//! being no fused multiply-add) with SSE2, AVX2, AVX-512 or NEON alike. The price is a third of the peak speed
//! of a fused kernel; this is the reference path.

use std::array::from_fn;

/// Partial sums per dot product: one 512-bit register, two of 256 or four of 128 bits.
const LANES: usize = 16;
type Partial = [f32; LANES];

/// The dot product of two rows of equal length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of different lengths");
    let mut out = [0.0];
    Tier::detect().tile_1x1([a], [b], &mut out);
    out[0]
}

/// `out[r, t] = weights[r] · x[t]` for weight rows `(rows, n)` and activations `(tokens, n)`; `out` is
/// `(rows, tokens)`.
pub fn dot_block(weights: &[f32], x: &[f32], n: usize, out: &mut [f32]) {
    let (rows, tokens) = (weights.len() / n, x.len() / n);
    assert_eq!(out.len(), rows * tokens, "output of {rows} rows and {tokens} tokens");
    let tier = Tier::detect();
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
                    let mut tile = [0.0; 16];
                    tier.tile_4x4(
                        [w(r), w(r + 1), w(r + 2), w(r + 3)],
                        [x(t), x(t + 1), x(t + 2), x(t + 3)],
                        &mut tile,
                    );
                    for (i, sums) in tile.chunks_exact(4).enumerate() {
                        out[(r + i) * tokens + t..][..4].copy_from_slice(sums);
                    }
                }
                (true, false) => {
                    let mut tile = [0.0; 4];
                    tier.tile_4x1([w(r), w(r + 1), w(r + 2), w(r + 3)], [x(t)], &mut tile);
                    for (i, &sum) in tile.iter().enumerate() {
                        out[(r + i) * tokens + t] = sum;
                    }
                }
                (false, _) => {
                    for i in 0..if wide { 4 } else { 1 } {
                        let mut tile = [0.0];
                        tier.tile_1x1([w(r)], [x(t + i)], &mut tile);
                        out[r * tokens + t + i] = tile[0];
                    }
                }
            }
            r += if tall { 4 } else { 1 };
        }
        t += if wide { 4 } else { 1 };
    }
}

/// Instruction sets the tiles are compiled for. The arithmetic is the same in all; only its width differs.
#[derive(Clone, Copy)]
enum Tier {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Tier {
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }
}

/// Compiles one tile shape for every tier, with a method of [`Tier`] that picks among them.
macro_rules! tiles {
    ($name:ident, $rows:literal x $tokens:literal) => {
        impl Tier {
            fn $name(self, w: [&[f32]; $rows], x: [&[f32]; $tokens], out: &mut [f32; $rows * $tokens]) {
                /// # Safety
                /// The processor must have AVX2.
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2")]
                fn avx2(w: [&[f32]; $rows], x: [&[f32]; $tokens], out: &mut [f32; $rows * $tokens]) {
                    tile(w, x, out);
                }
                /// # Safety
                /// The processor must have AVX-512F.
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f")]
                fn avx512(w: [&[f32]; $rows], x: [&[f32]; $tokens], out: &mut [f32; $rows * $tokens]) {
                    tile(w, x, out);
                }
                match self {
                    Self::Baseline => tile(w, x, out),
                    // SAFETY: `Tier::detect` gives this tier only where the processor has the feature.
                    #[cfg(target_arch = "x86_64")]
                    Self::Avx2 => unsafe { avx2(w, x, out) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Self::Avx512 => unsafe { avx512(w, x, out) },
                }
            }
        }
    };
}
tiles!(tile_1x1, 1 x 1);
tiles!(tile_4x1, 4 x 1);
tiles!(tile_4x4, 4 x 4);

/// `out[r · T + t] = w[r] · x[t]`. Written with whole-array values because that form keeps `sums` in registers.
#[inline(always)]
fn tile<const R: usize, const T: usize>(w: [&[f32]; R], x: [&[f32]; T], out: &mut [f32]) {
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
    for r in 0..R {
        for t in 0..T {
            out[r * T + t] = fold(sums[r][t]);
        }
    }
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

    proptest! {
        #[test]
        fn a_pair_has_the_same_bits_in_every_tile_and_is_near_the_exact_sum(
            n in 1usize..100, rows in 1usize..10, tokens in 1usize..10, seed in 0u32..1000,
        ) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32
                / (1u32 << 23) as f32 - 1.0;
            let w: Vec<f32> = (0..rows * n).map(value).collect();
            let x: Vec<f32> = (0..tokens * n).map(|i| value(i + 7919)).collect();
            let mut out = vec![0.0; rows * tokens];
            dot_block(&w, &x, n, &mut out);
            for r in 0..rows {
                for t in 0..tokens {
                    let (w, x) = (&w[r * n..][..n], &x[t * n..][..n]);
                    prop_assert_eq!(out[r * tokens + t].to_bits(), dot(w, x).to_bits());
                    prop_assert!((f64::from(out[r * tokens + t]) - naive(w, x)).abs() < 1e-5 * n as f64);
                }
            }
        }

        #[test]
        fn every_tier_gives_the_same_bits(a in prop::collection::vec(-9f32..9.0, 1..200)) {
            let b: Vec<f32> = a.iter().rev().map(|v| v * 0.37 + 1.0).collect();
            let mut plain = [0.0];
            Tier::Baseline.tile_1x1([&a], [&b], &mut plain);
            prop_assert_eq!(plain[0].to_bits(), dot(&a, &b).to_bits());
        }
    }
}
