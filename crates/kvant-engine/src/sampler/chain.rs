//! The chain of all steps, where settings ask for more than the usual cuts: DRY, top-n-sigma, dynamic temperature, typical-p, XTC,
//! mirostat, or an order of one's own.
//!
//! Probabilities are whole numbers ([`weight`]) and sums go through the tokens by id, so that a seed repeats a run to the bit here too.
//!
//! **Invariant:** the state of a chain changes with tokens that were chosen and with nothing else. So rows that were read on trial
//! ([`crate::speculation`]) leave no trace.

use super::order::SamplerStep;
use super::{SampleError, Sampler, SamplingParams, best};
use kvant_model::top::{ONE, weight};

/// A token in the running.
#[derive(Debug, Clone, Copy)]
struct Ranked {
    token: u32,
    logit: f64,
}

/// Tokens in the running by id, with their weights.
struct Weighed {
    highest: f64,
    weights: Vec<u64>,
    total: u64,
}

impl Weighed {
    fn of(candidates: &[Ranked]) -> Self {
        let highest = candidates.iter().map(|one| one.logit).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<u64> = candidates.iter().map(|one| weight(one.logit - highest)).collect();
        let total = weights.iter().sum();
        Self { highest, weights, total }
    }

    /// −ln p of a token.
    fn nll(&self, one: &Ranked) -> f64 {
        ln(self.total as f64 / ONE as f64) - (one.logit - self.highest)
    }

    /// The mean of −ln p.
    fn entropy(&self, candidates: &[Ranked]) -> f64 {
        let parts = candidates.iter().zip(&self.weights).filter(|(_, weight)| **weight > 0);
        let sum: f64 = parts.map(|(one, weight)| *weight as f64 * (one.logit - self.highest)).sum();
        ln(self.total as f64 / ONE as f64) - sum / self.total as f64
    }
}

impl SamplingParams {
    /// Whether the chain is no more than penalties, bias, temperature and the three usual cuts, in the usual order.
    pub(super) fn is_plain(&self) -> bool {
        let usual = Self::default();
        !self.has_dry()
            && self.mirostat == 0
            && self.xtc_probability == 0.0
            && self.typical_p == usual.typical_p
            && self.top_n_sigma <= 0.0
            && self.dynatemp_range == 0.0
            && self.samplers == usual.samplers
    }

    pub(super) fn has_dry(&self) -> bool {
        self.dry_multiplier > 0.0 && self.dry_penalty_last_n != Some(0)
    }
}

impl Sampler {
    /// Chooses by the whole chain.
    pub(super) fn sample_by_chain(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        let steps: Vec<SamplerStep> = self.params.samplers.steps().collect();
        let is_early = |step: &SamplerStep| matches!(step, SamplerStep::Penalties | SamplerStep::Dry);
        let early = steps.iter().take_while(|step| is_early(step)).count();
        for step in &steps[..early] {
            match step {
                SamplerStep::Penalties => self.history.penalise(&mut self.logits, &self.params),
                _ => self.penalise_repetitions(),
            }
        }
        self.add_bias()?;
        best(&self.logits)?;
        let all = (0u32..).zip(&self.logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        let mut candidates: Vec<Ranked> =
            all.map(|(token, &logit)| Ranked { token, logit: f64::from(logit) }).collect();
        for step in &steps[early..] {
            self.step(*step, &mut candidates);
        }
        if self.params.mirostat == 2 {
            return Ok(self.mirostat(candidates));
        }
        let weighed = Weighed::of(&candidates);
        Ok(candidates[self.draw_from(&weighed.weights, weighed.total)].token)
    }

    fn penalise_repetitions(&mut self) {
        for (token, penalty) in self.repetitions.penalties(&self.params) {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = (f64::from(*logit) - penalty) as f32;
            }
        }
    }

    /// One step on what is in the running, which stays in the order of ids. Something always stays.
    fn step(&mut self, step: SamplerStep, candidates: &mut Vec<Ranked>) {
        let params = &self.params;
        let cuts = params.mirostat == 0;
        match step {
            SamplerStep::Penalties => {
                for one in candidates.iter_mut() {
                    one.logit = self.history.penalised(one.token, one.logit as f32, params).into();
                }
            }
            SamplerStep::Dry => {
                let penalties = self.repetitions.penalties(params);
                let loss = |one: &Ranked| penalties.get(&one.token).copied().unwrap_or(0.0);
                candidates.iter_mut().for_each(|one| one.logit -= loss(one));
            }
            SamplerStep::Temperature => heat(candidates, params),
            SamplerStep::TopNSigma if cuts && params.top_n_sigma > 0.0 => {
                let (count, highest) = (candidates.len() as f64, highest(candidates));
                let mean = candidates.iter().map(|one| one.logit).sum::<f64>() / count;
                let square = |one: &Ranked| (one.logit - mean) * (one.logit - mean);
                let deviation = (candidates.iter().map(square).sum::<f64>() / count).sqrt();
                let least = highest - f64::from(params.top_n_sigma) * deviation;
                candidates.retain(|one| one.logit >= least);
            }
            SamplerStep::TopK if cuts && params.top_k > 0 => {
                keep_first(candidates, by_rank, params.top_k);
            }
            SamplerStep::Typical if cuts && params.typical_p < 1.0 => {
                let weighed = Weighed::of(candidates);
                let expected = weighed.entropy(candidates);
                let distance = |one: &Ranked| (weighed.nll(one) - expected).abs();
                keep_share(candidates, &weighed, params.typical_p, |a, b| {
                    distance(a).total_cmp(&distance(b)).then(a.token.cmp(&b.token))
                });
            }
            SamplerStep::TopP if cuts && params.top_p < 1.0 => {
                let weighed = Weighed::of(candidates);
                keep_share(candidates, &weighed, params.top_p, by_rank);
            }
            SamplerStep::MinP if cuts && params.min_p > 0.0 => {
                let highest = highest(candidates);
                let least = f64::from(params.min_p) * ONE as f64;
                candidates.retain(|one| weight(one.logit - highest) as f64 >= least);
            }
            SamplerStep::Xtc if cuts && params.xtc_probability > 0.0 => self.exclude_top_choices(candidates),
            SamplerStep::TopNSigma
            | SamplerStep::TopK
            | SamplerStep::Typical
            | SamplerStep::TopP
            | SamplerStep::MinP
            | SamplerStep::Xtc => {}
        }
    }

    /// XTC (p-e-w 2024): with its probability, cuts all tokens that reach the threshold but the least likely of them.
    fn exclude_top_choices(&mut self, candidates: &mut Vec<Ranked>) {
        let chance = self.rng.below(ONE) as f64;
        let SamplingParams { xtc_probability, xtc_threshold, .. } = self.params;
        if chance >= f64::from(xtc_probability) * ONE as f64 {
            return;
        }
        let weighed = Weighed::of(candidates);
        let least = f64::from(xtc_threshold) * weighed.total as f64;
        let likely = |(_, weight): &(&Ranked, &u64)| **weight as f64 >= least;
        let top = candidates.iter().zip(&weighed.weights).filter(likely).map(|(one, _)| *one);
        let mut top: Vec<Ranked> = top.collect();
        top.sort_unstable_by(by_rank);
        // The last of them stays.
        top.pop();
        candidates.retain(|one| !top.iter().any(|cut| cut.token == one.token));
    }

    /// Mirostat 2 (Basu et al. 2021): cuts tokens whose surprisal in bits is above a bound, and moves the bound so that the
    /// surprisal of what is chosen tends to `mirostat_tau`.
    fn mirostat(&mut self, mut candidates: Vec<Ranked>) -> u32 {
        let bits = |nll: f64| nll / std::f64::consts::LN_2;
        let weighed = Weighed::of(&candidates);
        let highest = highest(&candidates);
        let bound = self.surprisal_bound;
        candidates.retain(|one| one.logit == highest || bits(weighed.nll(one)) <= bound);
        let weighed = Weighed::of(&candidates);
        let chosen = candidates[self.draw_from(&weighed.weights, weighed.total)];
        let SamplingParams { mirostat_tau, mirostat_eta, .. } = self.params;
        let error = bits(weighed.nll(&chosen)) - f64::from(mirostat_tau);
        self.surprisal_bound -= f64::from(mirostat_eta) * error;
        chosen.token
    }

    fn draw_from(&mut self, weights: &[u64], total: u64) -> usize {
        let mut at = self.rng.below(total);
        for (place, weight) in weights.iter().enumerate() {
            if at < *weight {
                return place;
            }
            at -= weight;
        }
        unreachable!("a number below the sum of the weights falls within one of them")
    }
}

fn highest(candidates: &[Ranked]) -> f64 {
    candidates.iter().map(|one| one.logit).fold(f64::NEG_INFINITY, f64::max)
}

/// Higher logit first, then lower id.
fn by_rank(a: &Ranked, b: &Ranked) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

fn keep_first(
    candidates: &mut Vec<Ranked>,
    order: impl Fn(&Ranked, &Ranked) -> std::cmp::Ordering,
    count: usize,
) {
    candidates.sort_unstable_by(order);
    candidates.truncate(count);
    candidates.sort_unstable_by_key(|one| one.token);
}

/// Keeps the shortest beginning of an order whose probabilities reach a share of all.
fn keep_share(
    candidates: &mut Vec<Ranked>,
    weighed: &Weighed,
    share: f32,
    order: impl Fn(&Ranked, &Ranked) -> std::cmp::Ordering,
) {
    candidates.sort_unstable_by(order);
    let target = f64::from(share) * weighed.total as f64;
    let mut mass = 0u64;
    let reaches = |one: &Ranked| {
        mass += weight(one.logit - weighed.highest);
        mass as f64 >= target
    };
    let kept = candidates.iter().position(reaches).map_or(candidates.len(), |last| last + 1);
    candidates.truncate(kept);
    candidates.sort_unstable_by_key(|one| one.token);
}

/// Divides by the temperature: the given one, or one that grows with the entropy of what is in the running. 0 leaves the best.
fn heat(candidates: &mut Vec<Ranked>, params: &SamplingParams) {
    let (usual, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
    let temperature = match range > 0.0 && usual > 0.0 && candidates.len() > 1 {
        true => {
            let (least, most) = ((usual - range).max(0.0), usual + range);
            let share = Weighed::of(candidates).entropy(candidates) / ln(candidates.len() as f64);
            least + (most - least) * power(share.clamp(0.0, 1.0), params.dynatemp_exponent.into())
        }
        false => usual,
    };
    if temperature == 0.0 {
        return keep_first(candidates, by_rank, 1);
    }
    candidates.iter_mut().for_each(|one| one.logit /= temperature);
}

/// `x^y` for x from 0 to 1 and y ≥ 0, to about 40 bits.
fn power(x: f64, y: f64) -> f64 {
    match x == 0.0 {
        true => f64::from(u8::from(y == 0.0)),
        false => weight((y * ln(x)).min(0.0)) as f64 / ONE as f64,
    }
}

/// The natural logarithm of a normal positive number, of additions, multiplications and divisions alone: that of the system's library
/// differs between systems. `ln(2ⁿ·m) = n·ln 2 + 2·artanh((m − 1)/(m + 1))`.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7FF) as i64 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    // |s| ≤ 0.172: the remainder is below 2⁻⁵³ after twelve terms.
    let series = (0..12).rev().fold(0.0, |sum, k| sum * s * s + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::{ln, power};

    #[test]
    fn logarithms_and_powers_are_those_of_the_library() {
        for x in [1e-300, 1e-9, 0.3, 0.7070, 0.7072, 1.0, 1.4143, 2.0, 3.7, 1e6, 1e300] {
            assert!((ln(x) - x.ln()).abs() <= 1e-13 * x.ln().abs().max(0.01), "{x}: {} {}", ln(x), x.ln());
        }
        for (x, y) in [(0.0, 1.0), (0.5, 1.0), (0.3, 2.5), (1.0, 7.0), (0.9, 0.0)] {
            assert!((power(x, y) - x.powf(y)).abs() < 1e-9, "{x}^{y}");
        }
        assert_eq!(power(0.0, 0.0), 1.0);
    }
}
