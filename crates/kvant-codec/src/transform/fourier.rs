//! The real-packed discrete Fourier transform of any even length, mixed radix.
//!
//! With X the DFT of d real numbers, the packed output is
//! `[Re X₀, Re X_{d/2}, √2·Re X₁, √2·Im X₁, √2·Re X₂, …]`: d real numbers, and an orthogonal map up to √d, which
//! the caller folds into the sign diagonal. It is computed as a complex DFT of length n = d/2 of
//! z_k = x_{2k} + i·x_{2k+1} (Stockham, so no bit reversal and any factors) and one pass that separates even and odd:
//!
//! X_k = (Z_k + Z̄_{n−k})/2 − i·e^(−2πik/d)·(Z_k − Z̄_{n−k})/2.

use super::complex::Complex;
use kvant_simd::{LANES, Simd};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2, TAU};

pub(super) struct RealFourier {
    /// d / 2, the length of the complex transform.
    half: usize,
    stages: Vec<Stage>,
    /// e^(−2πik/d) for k = 0..half.
    split: Vec<[f32; 2]>,
}

struct Stage {
    radix: usize,
    /// Product of the radices before this one: the run of columns that share a twiddle.
    stride: usize,
    /// Length that is left after this stage.
    rest: usize,
    /// e^(−2πipk/(radix·rest)) at \[p · radix + k\].
    twiddles: Vec<[f32; 2]>,
    /// cos and −sin of 2πj/radix at \[j\], for radices without a hand-written butterfly.
    roots: Vec<[f32; 2]>,
}

fn unit(k: usize, n: usize) -> [f32; 2] {
    let (sin, cos) = (TAU * (k % n) as f64 / n as f64).sin_cos();
    [cos as f32, -sin as f32]
}

fn factors(mut n: usize) -> Vec<usize> {
    let mut list = Vec::new();
    for radix in [8, 4, 2].into_iter().chain(3..) {
        while n.is_multiple_of(radix) && n > 1 {
            list.push(radix);
            n /= radix;
        }
        if n == 1 {
            break;
        }
    }
    list
}

impl RealFourier {
    /// # Panics
    /// When `dim` is odd; specs refuse that before.
    pub(super) fn new(dim: usize) -> RealFourier {
        assert!(dim.is_multiple_of(2) && dim > 0, "a real-packed DFT needs an even length, not {dim}");
        let half = dim / 2;
        let (mut stride, mut left) = (1, half);
        let stages = factors(half)
            .into_iter()
            .map(|radix| {
                let rest = left / radix;
                let twiddles = (0..rest * radix).map(|n| unit((n / radix) * (n % radix), left)).collect();
                let roots = (0..radix).map(|j| unit(j, radix)).collect();
                let stage = Stage { radix, stride, rest, twiddles, roots };
                stride *= radix;
                left = rest;
                stage
            })
            .collect();
        RealFourier { half, stages, split: (0..half).map(|k| unit(k, dim)).collect() }
    }

    /// The packed DFT of the channels times their signs, unnormalised, in place.
    ///
    /// # Safety
    /// `x` and `scratch` hold d columns each and do not overlap; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn forward<S: Simd>(&self, x: *mut f32, scratch: *mut f32, signs: &[f32]) {
        let n = self.half;
        // SAFETY: the caller's contract; complex indices stay below n.
        unsafe {
            if self.stages.is_empty() {
                super::scale::<S>(x, signs);
            }
            let z = self.complex::<S>(x, scratch, 0, signs);
            let z0 = Complex::<S>::load(z, 0, 0);
            S::store(x, S::add(z0.re, z0.im));
            S::store(x.add(LANES), S::sub(z0.re, z0.im));
            let root_half = S::splat(FRAC_1_SQRT_2 as f32);
            for k in 1..=n / 2 {
                let (a, b) = (Complex::<S>::load(z, k, 0), Complex::<S>::load(z, n - k, 0));
                // Twice the even part, and the odd part turned by the twiddle.
                let even = Complex::<S> { re: S::add(a.re, b.re), im: S::sub(a.im, b.im) };
                let odd =
                    Complex::<S> { re: S::sub(a.re, b.re), im: S::add(a.im, b.im) }.times(self.split[k]);
                // X_k = (even − i·odd)/2, and X_{n−k} its mirror; √2 of the packing leaves 1/√2.
                let re = S::add(even.re, odd.im);
                let im = S::sub(even.im, odd.re);
                let mirror_re = S::sub(even.re, odd.im);
                let mirror_im = S::sub(S::splat(0.0), S::add(even.im, odd.re));
                if n != 2 * k {
                    let mirror =
                        Complex::<S> { re: S::mul(mirror_re, root_half), im: S::mul(mirror_im, root_half) };
                    mirror.store(x, n - k, 0);
                }
                Complex::<S> { re: S::mul(re, root_half), im: S::mul(im, root_half) }.store(x, k, 0);
            }
        }
    }

    /// The transpose of [`RealFourier::forward`] (its inverse times d), in place.
    ///
    /// # Safety
    /// As [`RealFourier::forward`].
    #[inline(always)]
    pub(super) unsafe fn transposed<S: Simd>(&self, x: *mut f32, scratch: *mut f32) {
        let n = self.half;
        // SAFETY: the caller's contract; complex indices stay below n.
        unsafe {
            let (first, nyquist) = (S::load(x), S::load(x.add(LANES)));
            S::store(x, S::add(first, nyquist));
            S::store(x.add(LANES), S::sub(first, nyquist));
            let root = S::splat((SQRT_2 / 2.0) as f32);
            for k in 1..=n / 2 {
                let (a, b) = (Complex::<S>::load(x, k, 0), Complex::<S>::load(x, n - k, 0));
                let even = Complex::<S> { re: S::add(a.re, b.re), im: S::sub(a.im, b.im) };
                let [cos, sin] = self.split[k];
                let odd = Complex::<S> { re: S::sub(a.re, b.re), im: S::add(a.im, b.im) }.times([cos, -sin]);
                // Z_k = even + i·odd, Z_{n−k} its mirror.
                let z = Complex::<S> { re: S::sub(even.re, odd.im), im: S::add(even.im, odd.re) };
                let mirror = Complex::<S> { re: S::add(even.re, odd.im), im: S::sub(odd.re, even.im) };
                if n != 2 * k {
                    Complex::<S> { re: S::mul(mirror.re, root), im: S::mul(mirror.im, root) }.store(
                        x,
                        n - k,
                        0,
                    );
                }
                Complex::<S> { re: S::mul(z.re, root), im: S::mul(z.im, root) }.store(x, k, 0);
            }
            let z = self.complex::<S>(x, scratch, 1, &[]);
            if z != x {
                for k in 0..n {
                    Complex::<S>::load(z, k, 0).store(x, k, 0);
                }
            }
        }
    }

    /// The complex DFT of the n complex columns in `a`; returns which of the two buffers holds the result.
    /// With `swap` = 1 real and imaginary parts trade places: the unnormalised inverse.
    ///
    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    unsafe fn complex<S: Simd>(&self, a: *mut f32, b: *mut f32, swap: usize, signs: &[f32]) -> *mut f32 {
        let (mut from, mut to) = (a, b);
        // Signs are for the first stage.
        let mut signs = signs;
        for stage in &self.stages {
            // SAFETY: the caller's buffers hold n complex columns each.
            unsafe {
                match stage.radix {
                    2 => stage.run::<S, 2>(from, to, swap, signs),
                    3 => stage.run::<S, 3>(from, to, swap, signs),
                    4 => stage.run::<S, 4>(from, to, swap, signs),
                    5 => stage.run::<S, 5>(from, to, swap, signs),
                    7 => stage.run::<S, 7>(from, to, swap, signs),
                    8 => stage.run::<S, 8>(from, to, swap, signs),
                    _ => {
                        super::scale::<S>(from, signs);
                        stage.run_any::<S>(from, to, swap);
                    }
                }
            }
            std::mem::swap(&mut from, &mut to);
            signs = &[];
        }
        from
    }
}

/// The four-point transform.
///
/// # Safety
/// The buffers hold the columns that are indexed; the CPU has the tier.
#[inline(always)]
unsafe fn butterfly4<S: Simd>(a: [Complex<S>; 4]) -> [Complex<S>; 4] {
    // SAFETY: the tier is available.
    unsafe {
        let (s, t) = (a[0].add(a[2]), a[1].add(a[3]));
        let (u, v) = (a[0].sub(a[2]), a[1].sub(a[3]));
        // −i·v = (v.im, −v.re).
        [
            s.add(t),
            Complex { re: S::add(u.re, v.im), im: S::sub(u.im, v.re) },
            s.sub(t),
            Complex { re: S::sub(u.re, v.im), im: S::add(u.im, v.re) },
        ]
    }
}

impl Stage {
    /// One Stockham stage with the butterfly in registers.
    ///
    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    unsafe fn run<S: Simd, const R: usize>(
        &self,
        from: *const f32,
        to: *mut f32,
        swap: usize,
        signs: &[f32],
    ) {
        for p in 0..self.rest {
            for q in 0..self.stride {
                // SAFETY: q + stride·(p + rest·j) and q + stride·(R·p + k) stay below the transform's length, and there
                // are no signs or two for each.
                unsafe {
                    let mut a = [Complex::<S>::load(from, q + self.stride * p, swap); R];
                    for (j, a) in a.iter_mut().enumerate().skip(1) {
                        *a = Complex::load(from, q + self.stride * (p + self.rest * j), swap);
                    }
                    if !signs.is_empty() {
                        // Only a forward transform has signs, so real parts are even channels.
                        for (j, a) in a.iter_mut().enumerate() {
                            let k = q + self.stride * (p + self.rest * j);
                            a.re = S::mul(a.re, S::splat(*signs.get_unchecked(2 * k)));
                            a.im = S::mul(a.im, S::splat(*signs.get_unchecked(2 * k + 1)));
                        }
                    }
                    let y = self.butterfly::<S, R>(a);
                    for (k, y) in y.into_iter().enumerate() {
                        let turned = if p == 0 || k == 0 {
                            y
                        } else {
                            y.times(*self.twiddles.get_unchecked(p * R + k))
                        };
                        turned.store(to, q + self.stride * (R * p + k), swap);
                    }
                }
            }
        }
    }

    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    unsafe fn butterfly<S: Simd, const R: usize>(&self, a: [Complex<S>; R]) -> [Complex<S>; R] {
        // SAFETY: the tier is available.
        unsafe {
            let mut y = a;
            match R {
                2 => {
                    y[0] = a[0].add(a[1]);
                    y[1] = a[0].sub(a[1]);
                }
                4 => {
                    let four = butterfly4([a[0], a[1], a[2], a[3]]);
                    y.copy_from_slice(&four);
                }
                8 => {
                    let even = butterfly4([a[0], a[2], a[4], a[6]]);
                    let odd = butterfly4([a[1], a[3], a[5], a[7]]);
                    // The odd half turns by e^(−iπk/4): two of the four turns are half-diagonals.
                    let half = S::splat(FRAC_1_SQRT_2 as f32);
                    let (sum1, diff1) = (S::add(odd[1].re, odd[1].im), S::sub(odd[1].im, odd[1].re));
                    let (sum3, diff3) = (S::add(odd[3].re, odd[3].im), S::sub(odd[3].im, odd[3].re));
                    let turned = [
                        odd[0],
                        Complex { re: S::mul(sum1, half), im: S::mul(diff1, half) },
                        Complex { re: odd[2].im, im: S::sub(S::splat(0.0), odd[2].re) },
                        Complex {
                            re: S::mul(diff3, half),
                            im: S::mul(sum3, S::splat(-FRAC_1_SQRT_2 as f32)),
                        },
                    ];
                    for k in 0..4 {
                        y[k] = even[k].add(turned[k]);
                        y[k + 4] = even[k].sub(turned[k]);
                    }
                }
                _ => {
                    // Odd R: outputs k and R − k share cos·(a_j + a_{R−j}) and sin·(a_j − a_{R−j}).
                    for j in 1..=R / 2 {
                        y[0] = y[0].add(a[j]).add(a[R - j]);
                    }
                    for k in 1..=R / 2 {
                        let (mut even, mut odd) =
                            (a[0], Complex::<S> { re: S::splat(0.0), im: S::splat(0.0) });
                        for j in 1..=R / 2 {
                            let [cos, sin] = self.roots[(j * k) % R];
                            let (plus, minus) = (a[j].add(a[R - j]), a[j].sub(a[R - j]));
                            even.re = S::fma(plus.re, S::splat(cos), even.re);
                            even.im = S::fma(plus.im, S::splat(cos), even.im);
                            odd.re = S::fma(minus.re, S::splat(sin), odd.re);
                            odd.im = S::fma(minus.im, S::splat(sin), odd.im);
                        }
                        // even ± i·odd.
                        y[k] = Complex { re: S::sub(even.re, odd.im), im: S::add(even.im, odd.re) };
                        y[R - k] = Complex { re: S::add(even.re, odd.im), im: S::sub(even.im, odd.re) };
                    }
                }
            }
            y
        }
    }

    /// A stage of any radix by its definition, for large prime factors.
    ///
    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    unsafe fn run_any<S: Simd>(&self, from: *const f32, to: *mut f32, swap: usize) {
        let radix = self.radix;
        for p in 0..self.rest {
            for q in 0..self.stride {
                for k in 0..radix {
                    // SAFETY: as in `run`.
                    unsafe {
                        let mut sum = Complex::<S>::load(from, q + self.stride * p, swap);
                        for j in 1..radix {
                            let a = Complex::<S>::load(from, q + self.stride * (p + self.rest * j), swap);
                            sum = sum.add(a.times(self.roots[(j * k) % radix]));
                        }
                        sum.times(self.twiddles[p * radix + k]).store(
                            to,
                            q + self.stride * (radix * p + k),
                            swap,
                        );
                    }
                }
            }
        }
    }
}
