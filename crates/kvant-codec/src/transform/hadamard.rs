//! Walsh–Hadamard, alone, in blocks, or as a Kronecker factor.
//!
//! For d = 2ᵏ·m (m odd) the transform is H₂ₖ ⊗ Cₘ with Cₘ[i][j] = cos(2πij/m) + sin(2πij/m), the Hartley matrix:
//! real, symmetric, Cₘ² = m·I, and dense, so that no outlier channel stays within its block. The whole matrix is
//! symmetric and unnormalised (its square is d·I); the caller folds 1/√d into the sign diagonal.

use kvant_simd::{LANES, Simd};

pub(super) struct Hadamard {
    /// Blocks that are transformed apart; each has `power · odd` channels.
    blocks: usize,
    power: usize,
    odd: usize,
    /// Row-major m×m Hartley matrix; empty for m = 1.
    hartley: Vec<f32>,
}

impl Hadamard {
    /// One transform over all `dim` channels.
    pub(super) fn whole(dim: usize) -> Hadamard {
        let power = 1 << dim.trailing_zeros();
        Hadamard::factored(1, power, dim / power)
    }

    /// `dim / width` Walsh–Hadamard transforms side by side; `width` is a power of two that divides `dim`.
    pub(super) fn blocks(dim: usize, width: usize) -> Hadamard {
        Hadamard::factored(dim / width, width, 1)
    }

    fn factored(blocks: usize, power: usize, odd: usize) -> Hadamard {
        let entry = |i: usize, j: usize| {
            let (sin, cos) = (std::f64::consts::TAU * ((i * j) % odd) as f64 / odd as f64).sin_cos();
            (sin + cos) as f32
        };
        let hartley = match odd {
            1 => Vec::new(),
            m => (0..m * m).map(|n| entry(n / m, n % m)).collect(),
        };
        Hadamard { blocks, power, odd, hartley }
    }

    /// In place, each channel first multiplied by its sign if there are any. Channel index = block·(power·odd) + i·odd + j.
    ///
    /// # Safety
    /// `x` holds `blocks · power · odd` columns; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn apply<S: Simd>(&self, x: *mut f32, signs: &[f32]) {
        let width = self.power * self.odd;
        for block in 0..self.blocks {
            // SAFETY: every index stays below `width` from the block's start.
            unsafe {
                let x = x.add(LANES * width * block);
                let mut signs = signs.get(width * block..width * (block + 1)).unwrap_or_default();
                if self.odd > 1 {
                    super::scale::<S>(x, signs);
                    signs = &[];
                    for i in 0..self.power {
                        self.mix_odd::<S>(x.add(LANES * self.odd * i));
                    }
                }
                walsh::<S>(x, self.power, self.odd, signs);
            }
        }
    }

    /// The m-point Hartley transform of m neighbouring columns.
    ///
    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    unsafe fn mix_odd<S: Simd>(&self, x: *mut f32) {
        /// Odd parts of real head dimensions are 1, 3, 5, 7 and 9; larger ones are split into passes below.
        const HELD: usize = 16;
        let m = self.odd;
        // SAFETY: rows and columns stay below m; `out` keeps a copy until every input was read.
        unsafe {
            let mut out = vec![0.0f32; if m > HELD { LANES * m } else { 0 }];
            let mut held = [S::splat(0.0); HELD];
            for (i, row) in self.hartley.chunks_exact(m).enumerate() {
                let mut sum = S::splat(0.0);
                for (j, factor) in row.iter().enumerate() {
                    sum = S::fma(S::load(x.add(LANES * j)), S::splat(*factor), sum);
                }
                if m > HELD { S::store(out.as_mut_ptr().add(LANES * i), sum) } else { held[i] = sum }
            }
            for i in 0..m {
                let y = if m > HELD { S::load(out.as_ptr().add(LANES * i)) } else { held[i] };
                S::store(x.add(LANES * i), y);
            }
        }
    }
}

/// Unnormalised Walsh–Hadamard over index i of `n` groups of `odd` columns, several stages per pass over memory.
///
/// # Safety
/// The buffers hold the columns that are indexed; the CPU has the tier.
#[inline(always)]
unsafe fn walsh<S: Simd>(x: *mut f32, n: usize, odd: usize, signs: &[f32]) {
    if n == 1 {
        // SAFETY: there are at most n · odd signs.
        unsafe { super::scale::<S>(x, signs) };
    }
    let mut half = 1;
    while half < n {
        // SAFETY: `half · radix` divides n, so all indices stay below n·odd.
        unsafe {
            match n / half {
                left if left.is_multiple_of(16) => half = stages::<S, 16>(x, n, odd, half, signs),
                left if left.is_multiple_of(8) => half = stages::<S, 8>(x, n, odd, half, signs),
                left if left.is_multiple_of(4) => half = stages::<S, 4>(x, n, odd, half, signs),
                _ => half = stages::<S, 2>(x, n, odd, half, signs),
            }
        }
    }
}

/// log₂ R butterfly stages on R columns held in registers; returns the next stride.
///
/// # Safety
/// The buffers hold the columns that are indexed; the CPU has the tier.
#[inline(always)]
unsafe fn stages<S: Simd, const R: usize>(
    x: *mut f32,
    n: usize,
    odd: usize,
    half: usize,
    signs: &[f32],
) -> usize {
    // Signs are for the first pass over memory.
    let signs = if half == 1 { signs } else { &[] };
    let stride = half * odd;
    for base in 0..n * odd / R {
        // Columns base runs over all indices whose R-digit at `half` is zero.
        let start = (base / stride) * stride * R + base % stride;
        // SAFETY: start + (R − 1)·stride < n·odd, and there are no signs or that many.
        unsafe {
            let p = x.add(LANES * start);
            let mut v = [S::splat(0.0); R];
            for (k, v) in v.iter_mut().enumerate() {
                *v = S::load(p.add(LANES * stride * k));
            }
            if !signs.is_empty() {
                for (k, v) in v.iter_mut().enumerate() {
                    *v = S::mul(*v, S::splat(*signs.get_unchecked(start + stride * k)));
                }
            }
            let mut h = 1;
            while h < R {
                for i in 0..R {
                    if i & h == 0 {
                        let (a, b) = (v[i], v[i + h]);
                        v[i] = S::add(a, b);
                        v[i + h] = S::sub(a, b);
                    }
                }
                h *= 2;
            }
            for (k, v) in v.iter().enumerate() {
                S::store(p.add(LANES * stride * k), *v);
            }
        }
    }
    half * R
}
