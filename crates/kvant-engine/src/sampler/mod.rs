//! From logits to the next token.
//!
//! The chain, in its usual order ([`SamplerOrder`] gives others):
//!
//! 1. repetition penalty, then frequency and presence penalties, on the tokens of the history;
//! 2. DRY, penalties of repeated sequences;
//! 3. logit bias, so that it is exactly what was asked for;
//! 4. top-n-sigma;
//! 5. with temperature 0, the highest logit wins and the chain ends; otherwise logits are divided by it, or by one that follows the
//!    entropy (dynamic temperature);
//! 6. top-k;
//! 7. typical-p;
//! 8. top-p, over the tokens that are left;
//! 9. min-p;
//! 10. XTC;
//! 11. a draw, in proportion to the probabilities of what is left.
//!
//! Mirostat takes the place of all cuts. Steps 2, 4, 7 and 10 are off unless they are asked for.
//!
//! Tokens are ranked by logit, of equals the lower id first; top-k, top-p and min-p each keep the beginning of that ranking.
//! The draw goes through the tokens by id.
//!
//! **A seed repeats a run exactly**, on every platform: the random numbers, the exponential and all sums are made
//! of operations whose results are fixed to the bit.
//!
//! A device may send the beginning of the ranking in place of all logits ([`Sampler::wants`]); the token is the same.
//!
//! ```
//! use kvant_engine::sampler::{Sampler, SamplingParams};
//!
//! let params = SamplingParams { temperature: 0.7, top_p: 0.9, seed: Some(42), ..SamplingParams::default() };
//! let mut sampler = Sampler::new(params)?;
//! let token = sampler.sample(&[0.1, 3.0, 2.5, -1.0])?;
//! sampler.accept(token);
//! # Ok::<(), kvant_engine::sampler::SampleError>(())
//! ```

mod chain;
mod dry;
mod history;
mod order;
mod params;
mod rng;
mod setting;
mod top;

pub use order::{SamplerOrder, SamplerStep};
pub use params::{SAMPLING, SamplingParams};
pub use setting::{Range, SamplingOverrides, SamplingSetting, SettingValue};

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use dry::Repetitions;
use history::History;
use kvant_model::top::{ONE, weight};
use rng::Rng;

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A setting is outside its range.
    #[error("{name} is {value}; it must be {range}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: f32,
        /// What may be given.
        range: &'static str,
    },
    /// A logit is not a number, or infinite: the model has failed before.
    #[error(
        "the logit of token {token} is {value}: the model's output is broken, or a penalty or bias is too large"
    )]
    BadLogit {
        /// The token.
        token: usize,
        /// Its logit after penalties and bias.
        value: f32,
    },
    /// A bias for a token the model does not have.
    #[error("logit_bias names token {token}, but there are only {len} tokens")]
    BiasOutside {
        /// The token named.
        token: u32,
        /// How many there are.
        len: usize,
    },
    /// There are no logits, or all are minus infinity.
    #[error("no token may be chosen: every logit is minus infinity")]
    NothingLeft,
}

/// A token in the running.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    logit: f32,
    token: u32,
    weight: u64,
}

/// The ranking: higher logit first, then lower id. Logits are never NaN here.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Chooses tokens, remembering what the penalties need.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    rng: Rng,
    history: History,
    /// What DRY looks at.
    repetitions: Repetitions,
    /// Mirostat's bound on the surprisal of a token, in bits.
    surprisal_bound: f64,
    /// (vocabulary): logits after penalties and bias.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler at the beginning of its run.
    ///
    /// # Errors
    /// If a setting is outside its range.
    pub fn new(params: SamplingParams) -> Result<Self, SampleError> {
        params.check()?;
        // Short enough to be typed, and to survive readers of JSON whose numbers are doubles.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0u8) >> 32);
        let surprisal_bound = 2.0 * f64::from(params.mirostat_tau);
        Ok(Self {
            params,
            seed,
            rng: Rng::new(seed),
            history: History::default(),
            repetitions: Repetitions::default(),
            surprisal_bound,
            logits: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// The seed of this run, given or picked: with it the run can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The settings.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Puts a token into the history that the penalties look at: each chosen token, and those of the prompt if
    /// they are to count.
    pub fn accept(&mut self, token: u32) {
        if self.params.has_penalties() {
            self.history.push(token, self.params.penalty_window);
        }
        if self.params.has_dry() {
            self.repetitions.push(token);
        }
    }

    /// Chooses the next token from the logits of the vocabulary.
    ///
    /// # Errors
    /// If a logit is NaN or plus infinity, if all are minus infinity, or if a bias names no token.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        if !self.params.is_plain() {
            return self.sample_by_chain(logits);
        }
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        if self.params.has_penalties() {
            self.history.penalise(&mut self.logits, &self.params);
        }
        self.add_bias()?;
        let (best, highest) = best(&self.logits)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        self.cut(highest);
        Ok(self.draw())
    }

    fn add_bias(&mut self) -> Result<(), SampleError> {
        let len = self.logits.len();
        for &(token, bias) in &self.params.logit_bias {
            *self.logits.get_mut(token as usize).ok_or(SampleError::BiasOutside { token, len })? += bias;
        }
        Ok(())
    }

    /// Ranks as much of the vocabulary as the cuts need; leaves the candidates to draw from, by id.
    fn cut(&mut self, highest: f32) {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let candidates = &mut self.candidates;
        candidates.clear();
        let all = (0u32..).zip(&self.logits).map(|(token, &logit)| Candidate { logit, token, weight: 0 });
        candidates.extend(all);
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, by_rank);
            candidates.truncate(top_k);
        }
        let (highest, temperature) = (f64::from(highest), f64::from(temperature));
        for candidate in candidates.iter_mut() {
            candidate.weight = weight((f64::from(candidate.logit) - highest) / temperature);
        }
        let total: u64 = candidates.iter().map(|candidate| candidate.weight).sum();
        // Done before top-p, since it leaves less to sort: both keep a beginning of the ranking, and the sum that
        // top-p aims at is already known.
        let least = f64::from(min_p) * ONE as f64;
        candidates.retain(|candidate| candidate.weight > 0 && candidate.weight as f64 >= least);
        if top_p < 1.0 {
            keep_mass(candidates, f64::from(top_p) * total as f64);
        }
        candidates.sort_unstable_by_key(|candidate| candidate.token);
    }

    fn draw(&mut self) -> u32 {
        let total: u64 = self.candidates.iter().map(|candidate| candidate.weight).sum();
        let mut at = self.rng.below(total);
        for candidate in &self.candidates {
            if at < candidate.weight {
                return candidate.token;
            }
            at -= candidate.weight;
        }
        unreachable!("a number below the sum of the weights falls within one of them")
    }
}

/// The token with the highest logit, the first of equals, and the logit.
fn best(logits: &[f32]) -> Result<(u32, f32), SampleError> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SampleError::BadLogit { token, value: logit });
        }
        if logit > best.1 {
            best = (token as u32, logit);
        }
    }
    if best.1 == f32::NEG_INFINITY { Err(SampleError::NothingLeft) } else { Ok(best) }
}

/// Keeps the shortest beginning of the ranking whose weights reach `target`.
///
/// The mass is usually in a few tokens of many, so the ranking is made a stretch at a time.
fn keep_mass(candidates: &mut Vec<Candidate>, target: f64) {
    let (mut ranked, mut stretch, mut mass) = (0, 128, 0u64);
    while ranked < candidates.len() {
        let end = candidates.len().min(ranked + stretch);
        if end < candidates.len() {
            candidates[ranked..].select_nth_unstable_by(end - ranked - 1, by_rank);
        }
        candidates[ranked..end].sort_unstable_by(by_rank);
        for index in ranked..end {
            mass += candidates[index].weight;
            if mass as f64 >= target {
                candidates.truncate(index + 1);
                return;
            }
        }
        (ranked, stretch) = (end, stretch * 8);
    }
}
