//! The sampler against a naive one, and its seeded runs against recorded ones.

use kvant_engine::{SampleError, Sampler, SamplingParams};
use proptest::prelude::*;

/// The probabilities the documented chain leaves, in f64 and with full sorts.
fn naive(logits: &[f32], history: &[u32], params: &SamplingParams) -> Vec<f64> {
    let window = params.penalty_window.unwrap_or(history.len()).min(history.len());
    let recent = &history[history.len() - window..];
    let mut adjusted: Vec<f32> = logits.to_vec();
    for (token, logit) in adjusted.iter_mut().enumerate() {
        let count = recent.iter().filter(|&&t| t as usize == token).count() as f32;
        if count > 0.0 {
            let r = params.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            *logit -= count * params.frequency_penalty + params.presence_penalty;
        }
        for (biased, bias) in &params.logit_bias {
            if *biased as usize == token {
                *logit += bias;
            }
        }
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| adjusted[b].partial_cmp(&adjusted[a]).unwrap());
    let mut probabilities = vec![0.0; logits.len()];
    if params.temperature == 0.0 {
        probabilities[order[0]] = 1.0;
        return probabilities;
    }
    let highest = f64::from(adjusted[order[0]]);
    let weight =
        |token: usize| ((f64::from(adjusted[token]) - highest) / f64::from(params.temperature)).exp();
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let total: f64 = order.iter().map(|&token| weight(token)).sum();
    let mut mass = 0.0;
    let enough = |&token: &usize| {
        mass += weight(token) / total;
        mass >= f64::from(params.top_p)
    };
    let kept = order.iter().position(enough).map_or(order.len(), |last| last + 1);
    order.truncate(kept);
    order.retain(|&token| weight(token) >= f64::from(params.min_p));
    let left: f64 = order.iter().map(|&token| weight(token)).sum();
    for &token in &order {
        probabilities[token] = weight(token) / left;
    }
    probabilities
}

fn settings() -> impl Strategy<Value = SamplingParams> {
    let cuts = (prop_oneof![Just(0.0f32), 0.2f32..3.0], 0usize..12, 0.05f32..=1.0, 0.0f32..0.5);
    let penalties = (0.5f32..2.0, -1.0f32..1.0, -1.0f32..1.0, prop::option::of(0usize..8));
    let bias = prop::collection::vec((0u32..10, -4.0f32..4.0), 0..3);
    (cuts, penalties, bias).prop_map(|((temperature, top_k, top_p, min_p), penalties, logit_bias)| {
        SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty: penalties.0,
            frequency_penalty: penalties.1,
            presence_penalty: penalties.2,
            penalty_window: penalties.3,
            logit_bias,
            seed: Some(1),
            ..SamplingParams::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Every token is drawn as often as the naive chain says it should be.
    #[test]
    fn draws_follow_the_naive_distribution(
        logits in prop::collection::vec(-6.0f32..6.0, 10..40),
        history in prop::collection::vec(0u32..10, 0..12),
        params in settings(),
    ) {
        const DRAWS: usize = 2000;
        let expected = naive(&logits, &history, &params);
        let mut sampler = Sampler::new(params).unwrap();
        for &token in &history {
            sampler.accept(token);
        }
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..DRAWS {
            counts[sampler.sample(&logits).unwrap() as usize] += 1;
        }
        for (token, (&count, &p)) in counts.iter().zip(&expected).enumerate() {
            let deviation = (DRAWS as f64 * p * (1.0 - p)).sqrt();
            let off = (count as f64 - DRAWS as f64 * p).abs();
            prop_assert!(off <= 6.0 * deviation + 3.0, "token {token}: {count} draws for p = {p}");
            prop_assert!(p > 0.0 || count == 0, "token {token} was cut, yet drawn");
        }
    }

    #[test]
    fn greedy_takes_the_first_highest(logits in prop::collection::vec((-3i8..3).prop_map(f32::from), 1..50)) {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&l| l == highest).unwrap() as u32;
        prop_assert_eq!(Sampler::new(SamplingParams::greedy()).unwrap().sample(&logits), Ok(first));
        let top_one = SamplingParams { top_k: 1, ..SamplingParams::default() };
        prop_assert_eq!(Sampler::new(top_one).unwrap().sample(&logits), Ok(first));
    }

    /// A large vocabulary takes the path that ranks a stretch at a time.
    #[test]
    fn top_p_keeps_exactly_the_beginning_of_the_ranking(
        logits in prop::collection::vec(-4.0f32..4.0, 2000),
        top_p in 0.05f32..0.999,
    ) {
        let params = SamplingParams { top_p, seed: Some(3), ..SamplingParams::default() };
        let expected = naive(&logits, &[], &params);
        let mut sampler = Sampler::new(params).unwrap();
        for _ in 0..200 {
            prop_assert!(expected[sampler.sample(&logits).unwrap() as usize] > 0.0);
        }
    }
}

/// A vocabulary with structure, so that a change of any step shows.
fn recorded_logits(step: u32) -> Vec<f32> {
    (0..1000u32).map(|i| ((i * 37 + step * 101) % 997) as f32 * 0.01 - (i % 7) as f32 * 0.5).collect()
}

fn recorded_run(params: SamplingParams) -> Vec<u32> {
    let mut sampler = Sampler::new(params).unwrap();
    (0..12)
        .map(|step| {
            let token = sampler.sample(&recorded_logits(step)).unwrap();
            sampler.accept(token);
            token
        })
        .collect()
}

#[test]
fn seeded_runs_are_those_on_record() {
    let plain = SamplingParams { seed: Some(42), ..SamplingParams::default() };
    assert_eq!(recorded_run(plain), PLAIN);
    let full = SamplingParams {
        temperature: 0.8,
        top_k: 200,
        top_p: 0.95,
        min_p: 0.02,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        logit_bias: vec![(3, 2.0), (5, f32::NEG_INFINITY)],
        seed: Some(7),
        ..SamplingParams::default()
    };
    assert_eq!(recorded_run(full), FULL);
}

/// From `make_recorded.py`.
const PLAIN: [u32; 12] = [834, 318, 987, 717, 819, 575, 91, 598, 219, 918, 586, 856];
const FULL: [u32; 12] = [105, 183, 721, 422, 959, 470, 708, 330, 974, 29, 133, 210];

#[test]
fn a_picked_seed_can_be_used_again() {
    let first = Sampler::new(SamplingParams::default()).unwrap();
    let again = SamplingParams { seed: Some(first.seed()), ..SamplingParams::default() };
    let run = |mut sampler: Sampler| -> Vec<u32> {
        (0..20).map(|step| sampler.sample(&recorded_logits(step)).unwrap()).collect()
    };
    assert_eq!(run(first), run(Sampler::new(again).unwrap()));
}

#[test]
fn broken_logits_are_refused() {
    let mut sampler = Sampler::new(SamplingParams::default()).unwrap();
    let refusal = sampler.sample(&[0.0, f32::NAN]).unwrap_err();
    assert!(refusal.to_string().starts_with("the logit of token 1 is NaN"), "{refusal}");
    assert!(matches!(sampler.sample(&[f32::INFINITY]), Err(SampleError::BadLogit { token: 0, .. })));
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingLeft));
    assert_eq!(sampler.sample(&[]), Err(SampleError::NothingLeft));
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -3.0e38]), Ok(1));
}

#[test]
fn forbidden_tokens_are_never_drawn() {
    let ban = SamplingParams { logit_bias: vec![(0, f32::NEG_INFINITY)], ..SamplingParams::default() };
    let mut sampler = Sampler::new(ban).unwrap();
    assert!((0..200).all(|_| sampler.sample(&[9.0, 0.0]) == Ok(1)));
    assert!(matches!(sampler.sample(&[]), Err(SampleError::BiasOutside { token: 0, len: 0 })));
}

#[test]
fn settings_outside_their_range_are_named() {
    let base = SamplingParams::default;
    let bad = [
        ("temperature", SamplingParams { temperature: -1.0, ..base() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("top_p", SamplingParams { top_p: 1.5, ..base() }),
        ("min_p", SamplingParams { min_p: 2.0, ..base() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: f32::INFINITY, ..base() }),
        ("presence_penalty", SamplingParams { presence_penalty: f32::NAN, ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::NAN)], ..base() }),
        ("mirostat", SamplingParams { mirostat: 1, ..base() }),
        ("typical_p", SamplingParams { typical_p: 0.0, ..base() }),
        ("dry_base", SamplingParams { dry_base: 0.5, ..base() }),
    ];
    for (name, params) in bad {
        let message = Sampler::new(params).unwrap_err().to_string();
        assert!(message.starts_with(name), "{message}");
    }
}

/// The probabilities that the whole chain leaves in its usual order, in f64: by token, of those in the running.
fn naive_chain(logits: &[f32], history: &[u32], params: &SamplingParams, excludes: bool) -> Vec<f64> {
    let mut left: Vec<(usize, f64)> = logits.iter().map(|&logit| f64::from(logit)).enumerate().collect();
    let shares = |left: &[(usize, f64)]| {
        // From the highest down: a low temperature makes large logits.
        let highest = left.iter().map(|(_, logit)| *logit).fold(f64::MIN, f64::max);
        let total: f64 = left.iter().map(|(_, logit)| (logit - highest).exp()).sum();
        left.iter().map(|(_, logit)| (logit - highest).exp() / total).collect::<Vec<f64>>()
    };
    let information = |p: &f64| if *p > 0.0 { -p * p.ln() } else { 0.0 };
    let entropy = |left: &[(usize, f64)]| -> f64 { shares(left).iter().map(information).sum() };
    // DRY: for every token, the longest end of the history that it followed before.
    for (token, logit) in &mut left {
        let breakers = params.dry_breakers.as_deref().unwrap_or_default();
        let follows = (1..history.len()).filter(|&at| history[at] as usize == *token);
        let matched = follows.map(|at| {
            let pairs = history[..at].iter().rev().zip(history.iter().rev());
            pairs.take_while(|(a, b)| a == b && !breakers.contains(a)).count()
        });
        let longest = matched.max().unwrap_or(0);
        if params.dry_multiplier > 0.0 && longest >= params.dry_allowed_length.max(1) {
            let power = f64::from(params.dry_base).powi((longest - params.dry_allowed_length) as i32);
            *logit -= f64::from(params.dry_multiplier) * power;
        }
    }
    if params.top_n_sigma > 0.0 {
        let mean = left.iter().map(|(_, logit)| logit).sum::<f64>() / left.len() as f64;
        let variance = left.iter().map(|(_, logit)| (logit - mean).powi(2)).sum::<f64>() / left.len() as f64;
        let best = left.iter().map(|(_, logit)| *logit).fold(f64::MIN, f64::max);
        left.retain(|(_, logit)| *logit >= best - f64::from(params.top_n_sigma) * variance.sqrt());
    }
    let (usual, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
    let temperature = match range > 0.0 && left.len() > 1 {
        true => {
            let share = (entropy(&left) / (left.len() as f64).ln()).clamp(0.0, 1.0);
            let least = (usual - range).max(0.0);
            least + (usual + range - least) * share.powf(params.dynatemp_exponent.into())
        }
        false => usual,
    };
    left.iter_mut().for_each(|(_, logit)| *logit /= temperature);
    let keep = |left: &mut Vec<(usize, f64)>, share: f32, key: &dyn Fn(f64) -> f64| {
        let mut ranked: Vec<(usize, f64)> = left.iter().map(|(token, _)| *token).zip(shares(left)).collect();
        ranked.sort_by(|a, b| key(a.1).total_cmp(&key(b.1)));
        let mut mass = 0.0;
        let reaches = |(_, p): &(usize, f64)| {
            mass += p;
            mass >= f64::from(share)
        };
        let last = ranked.iter().position(reaches).unwrap_or(ranked.len() - 1);
        left.retain(|(token, _)| ranked[..=last].iter().any(|(kept, _)| kept == token));
    };
    if params.typical_p < 1.0 {
        let expected = entropy(&left);
        keep(&mut left, params.typical_p, &|p| (-p.ln() - expected).abs());
    }
    if params.top_p < 1.0 {
        keep(&mut left, params.top_p, &|p| -p);
    }
    if excludes {
        let mut likely: Vec<(usize, f64)> = left.iter().map(|(token, _)| *token).zip(shares(&left)).collect();
        likely.retain(|(_, p)| *p >= f64::from(params.xtc_threshold));
        likely.sort_by(|a, b| b.1.total_cmp(&a.1));
        likely.pop();
        left.retain(|(token, _)| !likely.iter().any(|(cut, _)| cut == token));
    }
    let mut probabilities = vec![0.0; logits.len()];
    left.iter().zip(shares(&left)).for_each(|((token, _), p)| probabilities[*token] = p);
    probabilities
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// DRY, top-n-sigma, dynamic temperature, typical-p, top-p and XTC against their formulas.
    #[test]
    fn draws_by_the_whole_chain_follow_the_naive_distribution(
        logits in prop::collection::vec(-5.0f32..5.0, 6..24),
        history in prop::collection::vec(0u32..4, 0..24),
        cuts in (0.2f32..=1.0, 0.2f32..=1.0, prop_oneof![Just(0.0f32), 0.5f32..3.0]),
        heat in (0.3f32..2.0, prop_oneof![Just(0.0f32), 0.1f32..1.0], 0.2f32..3.0),
        xtc in (prop_oneof![Just(0.0f32), 0.1f32..=1.0], 0.02f32..0.5),
        dry in (prop_oneof![Just(0.0f32), 0.1f32..3.0], 1.0f32..2.5, 1usize..4),
    ) {
        const DRAWS: usize = 2000;
        let params = SamplingParams {
            typical_p: cuts.0,
            top_p: cuts.1,
            top_n_sigma: cuts.2,
            temperature: heat.0,
            dynatemp_range: heat.1,
            dynatemp_exponent: heat.2,
            xtc_probability: xtc.0,
            xtc_threshold: xtc.1,
            dry_multiplier: dry.0,
            dry_base: dry.1,
            dry_allowed_length: dry.2,
            dry_breakers: Some([3].into()),
            seed: Some(1),
            ..SamplingParams::default()
        };
        let [without, with] = [false, true].map(|excludes| naive_chain(&logits, &history, &params, excludes));
        let often = f64::from(params.xtc_probability);
        let mut sampler = Sampler::new(params).unwrap();
        history.iter().for_each(|&token| sampler.accept(token));
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..DRAWS {
            counts[sampler.sample(&logits).unwrap() as usize] += 1;
        }
        for (token, &count) in counts.iter().enumerate() {
            let p = (1.0 - often) * without[token] + often * with[token];
            let deviation = (DRAWS as f64 * p * (1.0 - p)).sqrt();
            let off = (count as f64 - DRAWS as f64 * p).abs();
            prop_assert!(off <= 6.0 * deviation + 3.0, "token {token}: {count} draws for p = {p}");
        }
    }
}

/// Mirostat's bound follows its formula, whatever is chosen, and only tokens within it are.
#[test]
fn mirostat_keeps_to_its_bound_and_moves_it_by_the_formula() {
    let params = SamplingParams {
        mirostat: 2,
        mirostat_tau: 3.0,
        mirostat_eta: 0.5,
        temperature: 0.9,
        // Cuts are not done beside it.
        top_k: 1,
        seed: Some(5),
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params.clone()).unwrap();
    let (mut bound, mut chosen_ones) = (6.0f64, Vec::new());
    for step in 0..60 {
        let logits = recorded_logits(step);
        let heated: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / f64::from(0.9f32)).collect();
        let total: f64 = heated.iter().map(|logit| logit.exp()).sum();
        let best = heated.iter().copied().fold(f64::MIN, f64::max);
        let kept = |logit: f64| logit == best || -(logit.exp() / total).log2() <= bound;
        let mass: f64 = heated.iter().filter(|logit| kept(**logit)).map(|logit| logit.exp()).sum();
        let token = sampler.sample(&logits).unwrap();
        let logit = heated[token as usize];
        assert!(kept(logit), "step {step}: {token} is beyond {bound}");
        bound -= f64::from(0.5f32) * (-(logit.exp() / mass).log2() - f64::from(3.0f32));
        chosen_ones.push(token);
    }
    chosen_ones.dedup();
    assert!(chosen_ones.len() > 20, "{chosen_ones:?}");
    assert_eq!(recorded_run(params.clone()), recorded_run(params));
}

#[test]
fn an_order_of_ones_own_is_kept_to() {
    let logits = [3.0, 2.9, 1.0, -4.0];
    let draws = |samplers: &str, params: SamplingParams| {
        let samplers = kvant_engine::sampler::SamplerOrder::parse(samplers).unwrap();
        let mut sampler = Sampler::new(SamplingParams { samplers, seed: Some(9), ..params }).unwrap();
        let mut seen: Vec<u32> = (0..400).map(|_| sampler.sample(&logits).unwrap()).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    };
    let hot = || SamplingParams { temperature: 50.0, min_p: 0.5, ..SamplingParams::default() };
    assert_eq!(draws("min_p;temperature", hot()), [0, 1], "cut before it is flattened");
    assert_eq!(draws("temperature;min_p", hot()), [0, 1, 2, 3]);
    assert_eq!(draws("temperature", hot()), [0, 1, 2, 3], "what is left out is not done");
    assert_eq!(
        draws("top_k", SamplingParams { temperature: 0.0, top_k: 2, ..SamplingParams::default() }),
        [0, 1]
    );
    assert_eq!(draws("top_k;temperature", SamplingParams::greedy()), [0]);
}

#[test]
fn greedy_choices_are_kept_from_repeating_sequences() {
    let params = SamplingParams { dry_multiplier: 8.0, dry_allowed_length: 2, ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(params).unwrap();
    [1, 2, 3, 9, 1, 2].into_iter().for_each(|token| sampler.accept(token));
    let mut logits = vec![0.0; 10];
    (logits[3], logits[4]) = (5.0, 4.0);
    assert_eq!(sampler.sample(&logits), Ok(4), "1 2 was followed by 3");
    sampler.accept(9);
    assert_eq!(sampler.sample(&logits), Ok(3), "9 alone is no sequence of two");
}
