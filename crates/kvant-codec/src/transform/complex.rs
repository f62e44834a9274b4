//! Sixteen complex numbers as two vectors: what the butterflies of the Fourier transform are made of.

use kvant_simd::{LANES, Simd};

/// A complex column: where its real and imaginary parts are. The inverse transform is the forward one with the
/// two exchanged, so a flag is all it takes.
#[derive(Clone, Copy)]
pub(super) struct Complex<S: Simd> {
    pub re: S::F,
    pub im: S::F,
}

impl<S: Simd> Complex<S> {
    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn load(x: *const f32, k: usize, swap: usize) -> Self {
        // SAFETY: the callers index complex columns within their buffers.
        unsafe {
            Complex {
                re: S::load(x.add(LANES * (2 * k + swap))),
                im: S::load(x.add(LANES * (2 * k + 1 - swap))),
            }
        }
    }

    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn store(self, x: *mut f32, k: usize, swap: usize) {
        // SAFETY: the callers index complex columns within their buffers.
        unsafe {
            S::store(x.add(LANES * (2 * k + swap)), self.re);
            S::store(x.add(LANES * (2 * k + 1 - swap)), self.im);
        }
    }

    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the tier is available.
        unsafe { Complex { re: S::add(self.re, b.re), im: S::add(self.im, b.im) } }
    }

    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the tier is available.
        unsafe { Complex { re: S::sub(self.re, b.re), im: S::sub(self.im, b.im) } }
    }

    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn times(self, w: [f32; 2]) -> Self {
        // SAFETY: the tier is available.
        unsafe {
            let (c, s) = (S::splat(w[0]), S::splat(w[1]));
            Complex {
                re: S::fnma(self.im, s, S::mul(self.re, c)),
                im: S::fma(self.im, c, S::mul(self.re, s)),
            }
        }
    }
}
