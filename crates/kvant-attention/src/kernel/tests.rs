use super::{Factors, Kernels, SoftmaxWeights};
use kvant_simd::Tier;

const CAP: f32 = 30.0;

/// Weights of one head over one page, by way of the real entry point.
fn weights(
    tier: Tier,
    scores: &[f32],
    maximum: f32,
    soft_cap: Option<f32>,
    floor: f32,
) -> (Vec<f32>, f32, bool) {
    let mut padded = scores.to_vec();
    padded.resize(scores.len().next_multiple_of(32), f32::NEG_INFINITY);
    let tokens = padded.len();
    let (mut maxima, mut tops, mut alive) = ([maximum], [0.0], [false]);
    let work = SoftmaxWeights {
        heads: 1,
        scores: &mut padded,
        key_tokens: tokens,
        weights: None,
        value_tokens: tokens,
        soft_cap,
        floor,
        maxima: &mut maxima,
        tops: &mut tops,
        alive: &mut alive,
    };
    // SAFETY: the tier is available and the buffers hold one page.
    unsafe { (Kernels::of(tier).softmax_weights)(work) };
    assert!(padded[scores.len()..].iter().all(|x| *x == 0.0), "masked positions have no weight");
    padded.truncate(scores.len());
    (padded, maxima[0], alive[0])
}

#[test]
fn weights_are_powers_of_two_within_two_units_in_the_last_place() {
    let scores: Vec<f32> = (0..40_000).map(|i| -i as f32 * 125.0 / 40_000.0).collect();
    for tier in Tier::available() {
        let (weights, top, alive) = weights(tier, &scores, f32::MIN, None, -31.0);
        assert!(alive && top == 0.0 && weights[0] == 1.0);
        for (score, weight) in scores.iter().zip(weights) {
            let exact = f64::from(*score).exp2();
            let unit = exact.log2().floor().exp2() * f64::from(f32::EPSILON);
            assert!(
                (f64::from(weight) - exact).abs() <= 2.0 * unit,
                "{tier}: 2^{score} = {exact}, not {weight}"
            );
        }
    }
}

#[test]
fn a_soft_cap_bends_scores_before_they_are_compared() {
    let scores: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.05).collect();
    for tier in Tier::available() {
        let (weights, top, _) = weights(tier, &scores, f32::MIN, Some(CAP), -200.0);
        let capped = |s: f32| f64::from(CAP) * (f64::from(s) / f64::from(CAP)).tanh();
        let largest = capped(*scores.last().unwrap());
        assert!((f64::from(top) - largest * std::f64::consts::LOG2_E).abs() < 1e-4, "{tier}: {top}");
        for (score, weight) in scores.iter().zip(weights) {
            let exact = (capped(*score) - largest).exp();
            assert!(
                (f64::from(weight) - exact).abs() <= 2e-5 * exact + 1e-30,
                "{tier}: {score} {exact} {weight}"
            );
        }
    }
}

#[test]
fn a_page_far_below_the_maximum_is_left_out_and_others_are_not() {
    for tier in Tier::available() {
        let (all, top, alive) = weights(tier, &[1.0; 32], 32.5, None, -31.0);
        assert!(!alive && top == 32.5 && all.iter().all(|w| *w == 0.0), "{tier}");
        let (all, _, alive) = weights(tier, &[1.0; 32], 31.5, None, -31.0);
        assert!(alive && all.iter().all(|w| *w > 0.0), "{tier}");
    }
}

#[test]
fn scores_move_between_pages_of_different_sizes() {
    let (heads, tokens) = (3, 128);
    for tier in Tier::available() {
        for (key_tokens, value_tokens) in [(32, 128), (128, 32), (64, 128), (64, 32)] {
            let score = |head: usize, t: usize| -((head * tokens + t) as f32) * 0.01;
            let mut scores = vec![0.0; heads * tokens];
            for head in 0..heads {
                for t in 0..tokens {
                    scores[(t / key_tokens * heads + head) * key_tokens + t % key_tokens] = score(head, t);
                }
            }
            let mut weights = vec![f32::NAN; heads * tokens];
            let mut maxima = vec![f32::MIN; heads];
            let mut alive = vec![false; tokens / value_tokens];
            let work = SoftmaxWeights {
                heads,
                scores: &mut scores,
                key_tokens,
                weights: Some(&mut weights),
                value_tokens,
                soft_cap: None,
                floor: -31.0,
                maxima: &mut maxima,
                tops: &mut vec![0.0; tokens / key_tokens],
                alive: &mut alive,
            };
            // SAFETY: the tier is available and all buffers hold 128 tokens.
            unsafe { (Kernels::of(tier).softmax_weights)(work) };
            for head in 0..heads {
                for t in 0..tokens {
                    let weight = weights[(t / value_tokens * heads + head) * value_tokens + t % value_tokens];
                    let exact = f64::from(score(head, t) - score(head, 0)).exp2();
                    assert!((f64::from(weight) - exact).abs() < 1e-6, "{tier} {key_tokens}/{value_tokens}");
                }
            }
        }
    }
}

#[test]
fn factors_bring_two_parts_to_one_maximum() {
    for tier in Tier::available() {
        let (mut maxima, others) = ([1.0; 16], [3.0; 16]);
        let (mut mine, mut theirs) = ([0.0; 16], [0.0; 16]);
        maxima[5] = f32::MIN;
        let work = Factors { maxima: &mut maxima, others: &others, mine: &mut mine, theirs: &mut theirs };
        // SAFETY: the tier is available and all slices have 16 elements.
        unsafe { (Kernels::of(tier).factors)(work) };
        assert_eq!((maxima, theirs), ([3.0; 16], [1.0; 16]));
        assert_eq!((mine[0], mine[5]), (0.25, 0.0));
    }
}
