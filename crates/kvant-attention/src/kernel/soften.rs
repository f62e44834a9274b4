//! From scores to weights: the softmax of one stretch of positions, without its normaliser.

use super::exp::{exp2, tanh};
use kvant_simd::{LANES, Simd};

/// The scores of one stretch for a block of query heads, and what becomes of them. Scores are in units of log₂.
pub(crate) struct Soften<'a> {
    /// Query heads.
    pub heads: usize,
    /// (key pages, heads, key_tokens); overwritten where a soft cap applies, and where `weights` is none.
    pub scores: &'a mut [f32],
    /// Tokens of a key page: a multiple of 16.
    pub key_tokens: usize,
    /// (value pages, heads, value_tokens), for as many tokens; none where both sides have pages of one size, which turns
    /// scores into weights in place.
    pub weights: Option<&'a mut [f32]>,
    /// Tokens of a value page: a multiple of 16.
    pub value_tokens: usize,
    /// `cap`: scores come in natural units, s becomes cap · tanh(s / cap).
    pub soft_cap: Option<f32>,
    /// Pages whose largest weight is below 2 to this are left out.
    pub floor: f32,
    /// (heads): a maximum that is known already; out: the larger of it and the largest score.
    pub maxima: &'a mut [f32],
    /// (key pages): scratch.
    pub tops: &'a mut [f32],
    /// (value pages): out: whether any head has weights there.
    pub alive: &'a mut [bool],
}

/// Weights 2^(s − m) of every head, with m the maximum of its scores. A value page that no weight of a head reaches gets
/// zeros for that head.
///
/// # Safety
/// Buffers have the stated sizes; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn soften<S: Simd>(work: Soften<'_>) {
    let Soften { heads, scores, key_tokens, weights, value_tokens, soft_cap, floor, maxima, tops, alive } =
        work;
    let (key_pages, value_pages) = (tops.len(), alive.len());
    let from = scores.as_mut_ptr();
    let to = weights.map_or(from, |weights| weights.as_mut_ptr());
    alive.fill(false);
    // SAFETY: page < pages, head < heads and t < tokens of a page stay within the buffers.
    unsafe {
        for head in 0..heads {
            let mut top = maxima[head];
            for page in 0..key_pages {
                let at = from.add((page * heads + head) * key_tokens);
                let mut largest = S::splat(f32::MIN);
                for t in (0..key_tokens).step_by(LANES) {
                    let mut x = S::load(at.add(t));
                    if let Some(cap) = soft_cap {
                        let y = tanh::<S>(S::mul(x, S::splat(1.0 / cap)));
                        let capped = S::mul(y, S::splat(cap * std::f32::consts::LOG2_E));
                        // What is masked stays masked.
                        x = S::select_gt(x, S::splat(f32::MIN), capped, x);
                        S::store(at.add(t), x);
                    }
                    largest = S::max(largest, x);
                }
                tops[page] = S::reduce_max(largest);
                top = top.max(tops[page]);
            }
            maxima[head] = top;
            for page in 0..value_pages {
                let first = page * value_tokens;
                let overlap = first / key_tokens..(first + value_tokens).div_ceil(key_tokens);
                let largest = tops[overlap].iter().fold(f32::MIN, |a, b| a.max(*b));
                let target = to.add((page * heads + head) * value_tokens);
                if largest - top < floor {
                    for t in (0..value_tokens).step_by(LANES) {
                        S::store(target.add(t), S::splat(0.0));
                    }
                    continue;
                }
                alive[page] = true;
                for t in (0..value_tokens).step_by(LANES) {
                    let (key_page, offset) = ((first + t) / key_tokens, (first + t) % key_tokens);
                    let x = S::load(from.add((key_page * heads + head) * key_tokens + offset));
                    S::store(target.add(t), exp2::<S>(S::sub(x, S::splat(top))));
                }
            }
        }
    }
}

/// Two maxima per head become one, and the factors that bring both parts to it. Lengths are a multiple of 16.
///
/// # Safety
/// All slices have the length of `maxima`; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn factors<S: Simd>(
    maxima: &mut [f32],
    others: &[f32],
    mine: &mut [f32],
    theirs: &mut [f32],
) {
    for at in (0..maxima.len()).step_by(LANES) {
        // SAFETY: at + 16 ≤ the length of each.
        unsafe {
            let (a, b) = (S::load(maxima.as_ptr().add(at)), S::load(others.as_ptr().add(at)));
            let top = S::max(a, b);
            S::store(maxima.as_mut_ptr().add(at), top);
            S::store(mine.as_mut_ptr().add(at), exp2::<S>(S::sub(a, top)));
            S::store(theirs.as_mut_ptr().add(at), exp2::<S>(S::sub(b, top)));
        }
    }
}
