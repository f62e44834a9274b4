//! Choosing from the beginning of a ranking, as devices send it in place of logits.
//!
//! **Invariant:** a token that is chosen from a list is the one that all logits would have given with the same seed, and takes as
//! many random numbers. Where a list cannot promise that, it does not settle the choice.

use super::{Candidate, SampleError, Sampler, SamplingParams};
use kvant_model::Output;
use kvant_model::top::{MOST, ONE, TopK, TopTokens, weight};

impl Sampler {
    /// What it needs of the next row: the beginning of its ranking, or `None` for all its logits. Penalties, biases and the
    /// less usual steps need them all, and so does a draw from the whole vocabulary.
    pub fn wants(&self) -> Option<TopK> {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        if self.params.has_penalties() || !self.params.logit_bias.is_empty() || !self.params.is_plain() {
            return None;
        }
        let count = |count| TopK { count, temperature: None };
        match top_k {
            _ if temperature == 0.0 => Some(count(1)),
            1..=MOST => Some(count(top_k)),
            0 if top_p < 1.0 => Some(TopK { temperature: Some(temperature), ..count(MOST) }),
            0 if min_p > 0.0 => Some(count(MOST)),
            _ => None,
        }
    }

    /// Whether a list of what it [`wants`](Self::wants) is all it needs.
    pub fn accepts_top_k(&self, top: &TopTokens) -> bool {
        self.params.temperature == 0.0 || cut(&self.params, top).is_some()
    }

    /// Chooses the next token from what a pass gave.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    ///
    /// # Panics
    /// When it is given a list that does not settle the choice.
    pub fn choose(&mut self, output: Output<'_>) -> Result<u32, SampleError> {
        let top = match output {
            Output::Logits(logits) => return self.sample(logits),
            Output::Top(top) => top,
            Output::Hidden(_) => return Err(SampleError::NothingLeft),
        };
        match top.tokens.first() {
            None | Some((_, f32::NEG_INFINITY)) => return Err(SampleError::NothingLeft),
            Some((best, _)) if self.params.temperature == 0.0 => return Ok(*best),
            Some(_) => {}
        }
        self.candidates = cut(&self.params, top).expect("a list that settles the choice");
        self.candidates.sort_unstable_by_key(|candidate| candidate.token);
        Ok(self.draw())
    }
}

/// The candidates that the cuts leave, ranked; `None` where tokens beyond the list may be among them.
fn cut(params: &SamplingParams, top: &TopTokens) -> Option<Vec<Candidate>> {
    let SamplingParams { temperature, top_k, top_p, min_p, .. } = *params;
    let highest = f64::from(top.tokens.first()?.1);
    let below = |logit: f32| (f64::from(logit) - highest) / f64::from(temperature);
    let weighed = |&(token, logit): &(u32, f32)| Candidate { logit, token, weight: weight(below(logit)) };
    let mut candidates: Vec<Candidate> = top.tokens.iter().map(weighed).collect();
    let last = *candidates.last()?;
    let total = match top_k {
        0 => top.mass,
        _ => Some(candidates.iter().map(|candidate| candidate.weight).sum()),
    };
    let least = f64::from(min_p) * ONE as f64;
    // Weights may be out of order by one where logits are next to each other.
    let ends = (last.weight + 2) as f64;
    let is_whole = top_k > 0 || top.tokens.len() < MOST || below(last.logit) < -28.5 || ends < least;
    candidates.retain(|candidate| candidate.weight > 0 && candidate.weight as f64 >= least);
    if top_p < 1.0 {
        let (target, mut mass) = (f64::from(top_p) * total? as f64, 0u64);
        let reaches = |candidate: &Candidate| {
            mass += candidate.weight;
            mass as f64 >= target
        };
        if let Some(index) = candidates.iter().position(reaches) {
            candidates.truncate(index + 1);
            return Some(candidates);
        }
    }
    is_whole.then_some(candidates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_codec::split_mix;
    use proptest::prelude::*;

    /// Logits of some spread; every other one is rounded, so that there are equals.
    fn logits(count: usize, spread: f32, seed: u64) -> Vec<f32> {
        let numbers = split_mix(seed).map(|n| (n >> 40) as f32 / (1 << 24) as f32 * spread);
        let rounded = |(i, x): (usize, f32)| if i % 2 == 0 { (x * 4.0).round() / 4.0 } else { x };
        numbers.take(count).enumerate().map(rounded).collect()
    }

    fn params() -> impl Strategy<Value = SamplingParams> {
        let top_k = prop_oneof![Just(0usize), 1usize..300, Just(256)];
        let temperature = prop_oneof![Just(0.0f32), 0.05f32..3.0];
        let top_p = prop_oneof![Just(1.0f32), 0.01f32..1.0];
        let min_p = prop_oneof![Just(0.0f32), 0.0f32..0.5];
        (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(
            |(temperature, top_k, top_p, min_p, seed)| SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                seed: Some(seed),
                ..SamplingParams::default()
            },
        )
    }

    proptest! {
        #[test]
        fn a_list_gives_the_token_that_all_logits_give(
            params in params(), count in 1usize..1500, spread in 0.0f32..60.0, seed in any::<u64>(),
        ) {
            let logits = logits(count, spread, seed);
            let mut by_list = Sampler::new(params.clone()).unwrap();
            let mut by_all = Sampler::new(params).unwrap();
            for _ in 0..3 {
                let Some(wanted) = by_list.wants() else { return Ok(()) };
                prop_assert!((1..=MOST).contains(&wanted.count));
                let top = TopTokens::of(&logits, wanted).unwrap();
                let chosen = match by_list.accepts_top_k(&top) {
                    true => by_list.choose(Output::Top(&top)),
                    false => by_list.choose(Output::Logits(&logits)),
                };
                prop_assert_eq!(chosen, by_all.sample(&logits));
            }
        }
    }

    #[test]
    fn what_looks_beyond_the_ranking_needs_all_logits() {
        let usual = SamplingParams::default;
        let wants = |params| Sampler::new(params).unwrap().wants();
        assert_eq!(wants(usual()), None);
        assert_eq!(wants(SamplingParams { top_k: 257, ..usual() }), None);
        assert_eq!(wants(SamplingParams { repetition_penalty: 1.1, ..SamplingParams::greedy() }), None);
        assert_eq!(wants(SamplingParams { logit_bias: vec![(1, 1.0)], ..SamplingParams::greedy() }), None);
        assert_eq!(wants(SamplingParams { xtc_probability: 0.5, top_k: 9, ..usual() }), None);
        assert_eq!(wants(SamplingParams { dry_multiplier: 0.8, ..SamplingParams::greedy() }), None);
        assert_eq!(wants(SamplingParams::greedy()), Some(TopK { count: 1, temperature: None }));
        let top_p = SamplingParams { top_p: 0.9, temperature: 0.7, ..usual() };
        assert_eq!(wants(top_p), Some(TopK { count: MOST, temperature: Some(0.7) }));
    }

    #[test]
    fn a_flat_row_is_not_settled_by_its_beginning() {
        let flat = vec![1.0; 2 * MOST];
        for (top_p, min_p, settles) in [(0.9, 0.0, false), (0.4, 0.0, true), (1.0, 0.5, false)] {
            let params = SamplingParams { top_p, min_p, ..SamplingParams::default() };
            let sampler = Sampler::new(params).unwrap();
            let top = TopTokens::of(&flat, sampler.wants().unwrap()).unwrap();
            assert_eq!(sampler.accepts_top_k(&top), settles, "{top_p} {min_p}");
        }
    }

    #[test]
    fn nothing_is_chosen_where_every_logit_is_minus_infinity() {
        let mut sampler = Sampler::new(SamplingParams { top_k: 2, ..SamplingParams::default() }).unwrap();
        let top = TopTokens::of(&[f32::NEG_INFINITY; 3], sampler.wants().unwrap()).unwrap();
        assert_eq!(sampler.choose(Output::Top(&top)), Err(SampleError::NothingLeft));
    }
}
