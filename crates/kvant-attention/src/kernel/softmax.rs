//! From scores to weights: the softmax of one stretch of positions, without its normaliser.

use super::exp::{exp2, tanh};
use kvant_simd::{LANES, Simd};

/// The scores of one stretch for a block of query heads, and what becomes of them. Scores are in units of log₂.
pub(crate) struct SoftmaxWeights<'a> {
    /// Query heads.
    pub heads: usize,
    /// (key pages, heads, key_tokens); overwritten where a soft cap applies, and where `weights` is none.
    pub scores: &'a mut [f32],
    /// Tokens of a key page: a multiple of 32.
    pub key_tokens: usize,
    /// (value pages, heads, value_tokens), for as many tokens; none where both sides have pages of one size, which turns
    /// scores into weights in place.
    pub weights: Option<&'a mut [f32]>,
    /// Tokens of a value page: a multiple of 32, and a multiple or a part of a key page.
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
pub(crate) unsafe fn softmax_weights<S: Simd>(work: SoftmaxWeights<'_>) {
    let SoftmaxWeights {
        heads,
        scores,
        key_tokens,
        weights,
        value_tokens,
        soft_cap,
        floor,
        maxima,
        tops,
        alive,
    } = work;
    let (key_pages, value_pages) = (tops.len(), alive.len());
    let from = scores.as_mut_ptr();
    let to = weights.map_or(from, |weights| weights.as_mut_ptr());
    alive.fill(false);
    // SAFETY: page < pages, head < heads and t < tokens of a page stay within the buffers.
    unsafe {
        for head in 0..heads {
            let mut top = S::splat(maxima[head]);
            let mut page = 0;
            while page < key_pages {
                // Four pages at a time, for the sake of the reduction.
                let count = (key_pages - page).min(4);
                let mut largest = [S::splat(f32::MIN); 4];
                for i in 0..count {
                    let at = from.add(((page + i) * heads + head) * key_tokens);
                    largest[i] = match soft_cap {
                        Some(cap) => capped_largest::<S>(at, key_tokens, cap),
                        None => largest_of::<S>(at, key_tokens),
                    };
                    top = S::max(top, largest[i]);
                }
                tops[page..page + count].copy_from_slice(&S::reduce4_max(largest)[..count]);
                page += count;
            }
            let top = S::reduce_max(top);
            maxima[head] = top;
            let piece = key_tokens.min(value_tokens);
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
                for t in (0..value_tokens).step_by(piece) {
                    let (key_page, offset) = ((first + t) / key_tokens, (first + t) % key_tokens);
                    let source = from.add((key_page * heads + head) * key_tokens + offset);
                    powers::<S>(source, target.add(t), piece, top);
                }
            }
        }
    }
}

/// # Safety
/// `at` is valid for `tokens` floats, a multiple of 32; the CPU has the tier.
#[inline(always)]
unsafe fn largest_of<S: Simd>(at: *const f32, tokens: usize) -> S::F {
    // SAFETY: t + 32 ≤ tokens.
    unsafe {
        let mut largest = [S::splat(f32::MIN); 2];
        for t in (0..tokens).step_by(2 * LANES) {
            largest[0] = S::max(largest[0], S::load(at.add(t)));
            largest[1] = S::max(largest[1], S::load(at.add(t + LANES)));
        }
        S::max(largest[0], largest[1])
    }
}

/// Bends scores by the soft cap, in place and into units of log₂.
///
/// # Safety
/// `at` is valid for `tokens` floats, a multiple of 16; the CPU has the tier.
#[inline(always)]
unsafe fn capped_largest<S: Simd>(at: *mut f32, tokens: usize, cap: f32) -> S::F {
    // SAFETY: t + 16 ≤ tokens.
    unsafe {
        let lowest = S::splat(f32::MIN);
        let mut largest = lowest;
        for t in (0..tokens).step_by(LANES) {
            let x = S::load(at.add(t));
            let y = tanh::<S>(S::mul(x, S::splat(1.0 / cap)));
            let capped = S::mul(y, S::splat(cap * std::f32::consts::LOG2_E));
            // What is masked stays masked.
            let x = S::select_gt(x, lowest, capped, x);
            S::store(at.add(t), x);
            largest = S::max(largest, x);
        }
        largest
    }
}

/// 2^(s − top) for a multiple of 32 scores, two vectors side by side: one alone would wait for itself.
///
/// # Safety
/// `from` and `to` are valid for `tokens` floats and are the same or apart; the CPU has the tier.
#[inline(always)]
unsafe fn powers<S: Simd>(from: *const f32, to: *mut f32, tokens: usize, top: f32) {
    // SAFETY: t + 32 ≤ tokens.
    unsafe {
        let top = S::splat(top);
        for t in (0..tokens).step_by(2 * LANES) {
            let a = exp2::<S>(S::sub(S::load(from.add(t)), top));
            let b = exp2::<S>(S::sub(S::load(from.add(t + LANES)), top));
            S::store(to.add(t), a);
            S::store(to.add(t + LANES), b);
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
