//! The arithmetic between the two verbs of a codec, written once over [`Simd`] and compiled once per tier.

mod exp;
mod softmax;
#[cfg(test)]
mod tests;

pub(crate) use softmax::SoftmaxWeights;

use kvant_simd::{Simd, Tier, Work, with_tier};

/// The entry points of a tier. All are `unsafe`: the CPU must have the tier and buffers the sizes stated.
pub(crate) struct Kernels {
    pub softmax_weights: for<'a> unsafe fn(SoftmaxWeights<'a>),
    pub factors: for<'a> unsafe fn(Factors<'a>),
}

/// Arguments of [`softmax::factors`].
pub(crate) struct Factors<'a> {
    pub maxima: &'a mut [f32],
    pub others: &'a [f32],
    pub mine: &'a mut [f32],
    pub theirs: &'a mut [f32],
}

impl<S: Simd> Work<S> for SoftmaxWeights<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `Kernels`.
        unsafe { softmax::softmax_weights::<S>(self) }
    }
}

impl<S: Simd> Work<S> for Factors<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `Kernels`.
        unsafe { softmax::factors::<S>(self.maxima, self.others, self.mine, self.theirs) }
    }
}

/// # Safety
/// The contract of [`Kernels`].
unsafe fn softmax_weights_on<S: Simd>(work: SoftmaxWeights<'_>) {
    // SAFETY: the contract of `Kernels`.
    unsafe { S::call(work) }
}

/// # Safety
/// The contract of [`Kernels`].
unsafe fn factors_on<S: Simd>(work: Factors<'_>) {
    // SAFETY: the contract of `Kernels`.
    unsafe { S::call(work) }
}

impl Kernels {
    const fn new<S: Simd>() -> Kernels {
        Kernels { softmax_weights: softmax_weights_on::<S>, factors: factors_on::<S> }
    }

    /// The table of a tier.
    ///
    /// # Panics
    /// When the CPU does not have the tier: running its code would be undefined.
    pub(crate) fn of(tier: Tier) -> &'static Kernels {
        assert!(tier.is_available(), "this CPU cannot run {tier} kernels");
        with_tier!(tier, S => const { &Kernels::new::<S>() })
    }
}
