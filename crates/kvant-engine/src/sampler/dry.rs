//! DRY ("don't repeat yourself", p-e-w 2024): a token that would go on with a sequence that was there before is made less likely, the
//! more so the longer that sequence is.
//!
//! Let the text end with a sequence of `n` tokens that also stands at an earlier place, and let `t` follow it there. Then `t` loses
//! `multiplier · base^(n − allowed_length)`, for `n ≥ allowed_length` and the longest such `n`. A sequence does not go across a breaker:
//! a token with a line break, a colon, a quotation mark or an asterisk, unless other breakers are given.

use super::SamplingParams;
use std::collections::HashMap;

/// Sequences are not looked at any further back: by then the penalty is beyond every logit.
const LONGEST: usize = 64;

/// A penalty that leaves numbers finite.
const MOST: f64 = 1e30;

/// The tokens that DRY looks at.
#[derive(Debug, Clone, Default)]
pub(super) struct Repetitions {
    tokens: Vec<u32>,
}

impl Repetitions {
    /// Adds a token.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// What each token loses.
    pub(super) fn penalties(&self, params: &SamplingParams) -> HashMap<u32, f64> {
        let window = params.dry_penalty_last_n.unwrap_or(usize::MAX).min(self.tokens.len());
        let tokens = &self.tokens[self.tokens.len() - window..];
        let is_breaker =
            |token: u32| params.dry_breakers.as_ref().is_some_and(|all| all.binary_search(&token).is_ok());
        let mut lengths: HashMap<u32, usize> = HashMap::new();
        let Some((&last, before)) = tokens.split_last().filter(|(last, _)| !is_breaker(**last)) else {
            return HashMap::new();
        };
        for (place, _) in before.iter().enumerate().filter(|(_, token)| **token == last) {
            let same = |back: &usize| {
                let token = tokens[place - back];
                token == tokens[tokens.len() - 1 - back] && !is_breaker(token)
            };
            let length = (0..=place.min(LONGEST - 1)).take_while(same).count();
            let longest = lengths.entry(tokens[place + 1]).or_default();
            *longest = length.max(*longest);
        }
        let allowed = params.dry_allowed_length;
        let penalty = |length: usize| {
            let power = (allowed..length).fold(1.0, |power, _| power * f64::from(params.dry_base));
            (f64::from(params.dry_multiplier) * power).min(MOST)
        };
        let long = lengths.into_iter().filter(|(_, length)| *length >= allowed);
        long.map(|(token, length)| (token, penalty(length))).collect()
    }
}
