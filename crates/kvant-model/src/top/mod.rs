//! The best tokens of a row of logits, so that a device need not send the whole row to the host for a token to be chosen.
//!
//! A sampler that looks at the beginning of the ranking alone asks for a [`TopK`] instead of logits. The rule is the same for every
//! device, and exact: tokens are ranked by logit, of equals (+0 and −0 are equals) the lower id first, and a device lists the first of
//! them with their logits to the bit. What is drawn is then decided on the host by the numbers of the seed, from the list alone, so
//! it is the token that all logits would have given. Where a list does not settle it, [`Pass::accept`](crate::Pass::accept) says so and the row comes as logits;
//! so does a row with a logit that is NaN or +∞, which the sampler refuses by name.
//!
//! ```
//! use kvant_model::top::{TopK, TopTokens};
//!
//! let top = TopTokens::of(&[0.5, 3.0, 0.5, -1.0], TopK { count: 3, temperature: None }).unwrap();
//! assert_eq!(top.tokens, [(1, 3.0), (0, 0.5), (2, 0.5)]);
//! assert_eq!(TopTokens::of(&[0.0, f32::NAN], TopK { count: 1, temperature: None }), None);
//! ```

mod weight;

pub use weight::{ONE, weight};

use std::cmp::Ordering;

/// The most tokens that a list has.
pub const MOST: usize = 256;

/// What is wanted of a row in place of its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    /// How many tokens, from 1 to [`MOST`].
    pub count: usize,
    /// Also the mass of the whole row at this temperature: the sum of all its [`weight`]s.
    pub temperature: Option<f32>,
}

/// The beginning of a row's ranking.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TopTokens {
    /// Ids and logits, the best first; as many as were wanted, or the whole vocabulary.
    pub tokens: Vec<(u32, f32)>,
    /// The sum of [`weight`] over the vocabulary, where it was wanted.
    pub mass: Option<u64>,
}

/// The ranking: higher logit first, then lower id. Logits are not NaN.
pub fn by_rank(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

impl TopTokens {
    /// Of logits on the host: what devices are held to. `None` where one is NaN or +∞, or there are none.
    pub fn of(logits: &[f32], wanted: TopK) -> Option<Self> {
        if logits.iter().any(|z| z.is_nan() || *z == f32::INFINITY) {
            return None;
        }
        let mut tokens: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        tokens.sort_unstable_by(by_rank);
        let highest = f64::from(tokens.first()?.1);
        let weighed = |temperature: f32| {
            logits.iter().map(|z| weight((f64::from(*z) - highest) / f64::from(temperature))).sum()
        };
        let mass = wanted.temperature.map(weighed);
        tokens.truncate(wanted.count);
        Some(Self { tokens, mass })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_are_ranked_by_id_and_zeros_are_equals() {
        let logits = [0.0, -0.0, 1.0, f32::NEG_INFINITY, -0.0, 1.0];
        let top = TopTokens::of(&logits, TopK { count: 9, temperature: None }).unwrap();
        let ids: Vec<u32> = top.tokens.iter().map(|token| token.0).collect();
        assert_eq!(ids, [2, 5, 0, 1, 4, 3]);
        assert_eq!(top.tokens[3].1.to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn broken_rows_have_no_list() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(TopTokens::of(&[0.0, bad], TopK { count: 1, temperature: None }), None);
        }
        assert_eq!(TopTokens::of(&[], TopK { count: 1, temperature: None }), None);
    }

    #[test]
    fn the_mass_is_of_all_tokens() {
        let wanted = TopK { count: 1, temperature: Some(2.0) };
        let top = TopTokens::of(&[1.0, -1.0, -200.0], wanted).unwrap();
        assert_eq!((top.tokens, top.mass), (vec![(0, 1.0)], Some(ONE + weight(-1.0))));
    }
}
