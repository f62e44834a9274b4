//! How far a kernel may be from decode-then-dot and decode-then-sum, and why.
//!
//! The kernels multiply integers. What is not an integer is rounded to one first: the query (folded with the page's
//! channel scales) or the weights (folded with the page's token scales), to a byte against codes of up to five bits and
//! to two bytes against wider ones. Everything else is f32.

use crate::oracle::norm;
use crate::oracle::page::View;
use crate::oracle::rule;
use kvant_codec::{Rule, Side};
use std::ops::Range;

/// The unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// The integers that a query or a weight is rounded to go from −limit to limit.
fn limit(bits: u8) -> f64 {
    if bits >= 5 { 127.0 * 256.0 + 127.0 } else { 127.0 }
}

/// One unit of those integers. What is too small for a reciprocal is rounded to zero as a whole.
fn step(top: f64, bits: u8) -> f64 {
    if top > 1e-30 { top / limit(bits) } else { 2.0 * top }
}

/// What is added to a level to make the byte that a dot product reads; the kernel takes it away afterwards.
fn seen_centre(rule: Rule, bits: u8) -> f64 {
    if rule::tabled(rule) { 128.0 } else { f64::from(1u32 << (bits - 1)) }
}

/// Relative error of a change of basis in f32: log₂ d stages for the fast ones, d terms for a dense matrix; random signs
/// keep it near the square root of that.
const BASIS: f64 = 16.0 * U;

/// The largest |scores − q·decode| of a token.
///
/// Per span of channels (one width, one token scale), with l the centred level, c the channel scale, s the token scale and
/// p = q̃·c: the kernel has s·Σ p̂·l in place of s·Σ p·l, and |p̂ − p| ≤ step/2 with step = max|p| / limit. Hence
///
/// > |error| ≤ Σ over spans of |s| · step/2 · Σ |l|
///
/// (the step of all spans is one where tokens of keys have no scales) and, in f32: the dot product is an exact integer that is converted, scaled and relieved of its centre (8 roundings of at
/// most |s|·Σ |p|·(|l| + 2·centre)); sums of n terms for zeros and the mean lose at most n·u of their absolute sum; and the
/// basis was changed on both sides of the comparison.
///
/// `q` is the query in the model's basis, `moved` in the codec's, `decoded` the token it meets.
pub fn score(view: &View<'_>, q: &[f32], moved: &[f64], token: usize, decoded: &[f32]) -> f64 {
    let twin = view.twin;
    let sums = (twin.dim() + 16) as f64 * U;
    let mut total = 0.0;
    let product = |c: usize| (moved[c] * view.channel_scale(c)).abs();
    let spans = twin.spans();
    let top = |span: &Range<usize>| span.clone().map(product).fold(0.0, f64::max);
    // Without token scales all spans of keys have the step of the largest product of all: a whole one against narrow codes, a 256th
    // of it against wide ones.
    let joined = (twin.side == Side::Key && spans.len() > 1 && !twin.per_token)
        .then(|| step(spans.iter().map(top).fold(0.0, f64::max), 1));
    for span in spans {
        let bits = twin.bits(span.start);
        let (scale, zero) =
            (view.token_scale(token, span.start).abs(), view.token_zero(token, span.start).abs());
        let step = match joined {
            Some(step) if bits >= 5 => step / 256.0,
            Some(step) => step,
            None => step(top(span), bits),
        };
        let centre = seen_centre(twin.rule, bits);
        let (mut levels, mut integers, mut zeros) = (0.0, 0.0, 0.0);
        for c in span.clone() {
            let level = view.centred(token, c).abs();
            levels += level;
            integers += product(c) * (level + 2.0 * centre);
            zeros += moved[c].abs() * (view.channel_zero(c).abs() + zero);
            zeros += if rule::zeros(twin.rule) { scale * centre * product(c) } else { 0.0 };
        }
        total += scale * (0.5 * step * levels + 8.0 * U * integers) + sums * zeros;
    }
    let q: Vec<f64> = q.iter().map(|q| f64::from(*q)).collect();
    let mean: f64 = q.iter().zip(&twin.basis.mean).map(|(q, mean)| (q * mean).abs()).sum();
    let length = norm(&decoded.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    total + sums * mean + BASIS * norm(&q) * (length + view.magnitude(token) + norm(&twin.basis.mean))
}

/// The largest error per channel of the codec's basis of accumulate-then-finish against Σ w·decode over one page.
///
/// With p = w·s per token and group, rounded with step = max|p| / limit over the page's tokens: the kernel has c·Σ p̂·l in
/// place of c·Σ p·l in every channel, so
///
/// > |error of a channel| ≤ |c| · step/2 · Σ over tokens of |l|
///
/// and the same f32 terms as for scores, with n tokens in place of n channels.
pub fn sum(view: &View<'_>, weights: &[f32]) -> Vec<f64> {
    let twin = view.twin;
    let sums = (twin.tokens + 16) as f64 * U;
    let weight = |t: usize| f64::from(weights[t]).abs();
    let tokens = || 0..twin.tokens;
    let total: f64 = tokens().map(|t| weight(t) * (view.magnitude(t) + norm(&twin.basis.mean))).sum();
    let mass: f64 = tokens().map(weight).sum();
    let mut bounds = vec![0.0; twin.dim()];
    for span in twin.spans() {
        let bits = twin.bits(span.start);
        let products: Vec<f64> =
            tokens().map(|t| weight(t) * view.token_scale(t, span.start).abs()).collect();
        let step = step(products.iter().copied().fold(0.0, f64::max), bits);
        let mut zeros: f64 = tokens().map(|t| weight(t) * view.token_zero(t, span.start).abs()).sum();
        let centre = seen_centre(twin.rule, bits);
        if rule::zeros(twin.rule) {
            zeros += centre * products.iter().sum::<f64>();
        }
        for c in span.clone() {
            let (mut levels, mut integers) = (0.0, 0.0);
            for t in tokens() {
                let level = view.centred(t, c).abs();
                levels += level;
                integers += products[t] * (level + 2.0 * centre);
            }
            let scale = view.channel_scale(c).abs();
            bounds[c] = scale * (0.5 * step * levels + 8.0 * U * integers + sums * zeros)
                + sums * mass * view.channel_zero(c).abs();
        }
    }
    bounds.iter().map(|bound| bound + BASIS * total).collect()
}

/// What an f32 sum of `count` products may lose, relative to the sum of their magnitudes.
pub fn summation(count: usize) -> f64 {
    (count + 2) as f64 * U
}
