//! The arithmetic between the two verbs of a codec, written once over [`Simd`] and compiled once per tier.

mod exp;
mod soften;
#[cfg(test)]
mod tests;

pub(crate) use soften::Soften;

use kvant_simd::{Simd, Tier, Work, with_tier};

/// The entry points of a tier. All are `unsafe`: the CPU must have the tier and buffers the sizes stated.
pub(crate) struct Kernels {
    pub soften: for<'a> unsafe fn(Soften<'a>),
    pub factors: for<'a> unsafe fn(Factors<'a>),
}

/// Arguments of [`soften::factors`].
pub(crate) struct Factors<'a> {
    pub maxima: &'a mut [f32],
    pub others: &'a [f32],
    pub mine: &'a mut [f32],
    pub theirs: &'a mut [f32],
}

impl<S: Simd> Work<S> for Soften<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `Kernels`.
        unsafe { soften::soften::<S>(self) }
    }
}

impl<S: Simd> Work<S> for Factors<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `Kernels`.
        unsafe { soften::factors::<S>(self.maxima, self.others, self.mine, self.theirs) }
    }
}

/// # Safety
/// The contract of [`Kernels`].
unsafe fn soften_on<S: Simd>(work: Soften<'_>) {
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
        Kernels { soften: soften_on::<S>, factors: factors_on::<S> }
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
