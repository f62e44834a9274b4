//! What some positions add up to: maxima, and sums relative to them.

use crate::aligned::Aligned;
use crate::kernel::{Factors, Kernels};
use kvant_codec::Accumulator;

/// The softmax of a block of query heads over some positions, before the division.
#[derive(Default)]
pub(crate) struct Partial {
    heads: usize,
    /// (heads, padded to 16): the largest score, log₂; `f32::MIN` before the first.
    maxima: Aligned,
    /// Σ w·v over encoded pages, in the codec's basis.
    pub encoded: Accumulator,
    /// Σ w·v over exact rows.
    pub exact: Accumulator,
    /// Whether the sums have been touched at all.
    pub has_encoded: bool,
    pub has_exact: bool,
}

impl Partial {
    /// Nothing yet.
    pub(crate) fn reset(&mut self, heads: usize, dim: usize) {
        self.heads = heads;
        self.maxima.at_least(heads.next_multiple_of(16)).fill(f32::MIN);
        self.encoded.reset(heads, dim);
        self.exact.reset(heads, dim);
        self.has_encoded = false;
        self.has_exact = false;
    }

    pub(crate) fn maxima(&mut self) -> &mut [f32] {
        &mut self.maxima[..self.heads]
    }

    /// Σ w of a head.
    pub(crate) fn denominator(&self, head: usize) -> f32 {
        self.encoded.denominator(head) + self.exact.denominator(head)
    }

    /// Merges the positions after its own, by the rule of the online softmax.
    pub(crate) fn merge(&mut self, other: &Partial, factors: &mut Aligned, kernels: &Kernels) {
        let padded = self.heads.next_multiple_of(16);
        let (mine, theirs) = factors.at_least(2 * padded).split_at_mut(padded);
        let work =
            Factors { maxima: &mut self.maxima[..padded], others: &other.maxima[..padded], mine, theirs };
        // SAFETY: the table belongs to this CPU and all slices have the padded length.
        unsafe { (kernels.factors)(work) };
        for (sums, others, used) in [
            (&mut self.encoded, &other.encoded, self.has_encoded || other.has_encoded),
            (&mut self.exact, &other.exact, self.has_exact || other.has_exact),
        ] {
            if used {
                for head in 0..self.heads {
                    sums.join(head, mine[head], others, theirs[head]);
                }
            }
        }
        self.has_encoded |= other.has_encoded;
        self.has_exact |= other.has_exact;
    }
}
