//! scores and accumulate against decode, on every tier.

use crate::case::{Case, DIMS, PARTS, SIDES, encoded, taken, taken_of_many};
use crate::random::{Kind, Random};
use crate::trial::{Trial, scores, sums};
use kvant_codec::{Accumulator, PageCodec, Query, Side, Tier};
use proptest::prelude::*;

/// Both attention verbs of one page on every tier.
fn check(case: &Case, kind: Kind, heads: usize, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let oracle = case.codec(Tier::Scalar);
    let rows = kind.rows(oracle.page_tokens(), case.dim, &mut random);
    let queries = random.gaussians(heads * case.dim);
    let weights = random.weights(heads, oracle.page_tokens());
    let trial = Trial::new(case, &*oracle, &rows);
    let (expected_scores, expected_sums) = (trial.scores(&queries), trial.sums(&weights));
    for tier in Tier::available() {
        let place = |e| format!("{case:?}, {kind:?}, {heads} heads, seed {seed}, {tier}: {e}");
        let codec = case.codec(tier);
        if encoded(&*codec, &rows) != trial.page {
            return Err(place("encodes to other bytes than scalar".to_owned()));
        }
        expected_scores.check(&scores(&*codec, &queries, &trial.page)).map_err(place)?;
        expected_sums.check(&trial.comparable(&sums(&*codec, &weights, &trial.page))).map_err(place)?;
    }
    Ok(())
}

/// Every codec at every dimension on both sides: heads and kinds of data take turns.
#[test]
fn kernels_agree_with_decode_for_every_codec_and_dimension() {
    let mut turn = 0;
    for dim in DIMS {
        for side in SIDES {
            for case in Case::all(side, dim) {
                turn += 1;
                if !taken_of_many(turn) {
                    continue;
                }
                let kind = Kind::ALL[turn % Kind::ALL.len()];
                check(&case, kind, 1 + turn % if dim < 192 { 8 } else { 3 }, turn as u64)
                    .unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

#[test]
fn kernels_agree_with_decode_at_odd_dimensions() {
    for dim in [1, 2, 7, 8, 9, 16, 24, 33, 50, 100, 1024] {
        for side in SIDES {
            for part in [
                "ch4",
                "ch1:s32,p32",
                "ch8",
                "rot4g32",
                "asym3g16",
                "tq3",
                "chg4",
                "sym8g32",
                "f16",
                "uniform4",
                "iq4",
                "qjl1",
                "turbo3",
                "polar4",
                "delta4",
                "trellis3",
            ] {
                // A uniformly random rotation takes d³ operations to make.
                if dim > 512 && ["qjl1", "turbo3"].contains(&part) {
                    continue;
                }
                check(&Case::new(part, side, dim), Kind::Gaussian, 3, 5).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

#[test]
fn every_number_of_heads_is_served() {
    for heads in (0..=9).chain([16, 17, 20, 33, 97, 128]) {
        for (part, side) in
            [("ch4", Side::Key), ("rot4g32", Side::Value), ("sym8g32", Side::Key), ("sym8g32", Side::Value)]
        {
            for part in [part, "f16", "klt", "trellis2.5"] {
                check(&Case::new(part, side, 64), Kind::Gaussian, heads, 9).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

/// Many heads go through the processor's unit for whole blocks, where it has one.
#[test]
fn a_head_has_the_same_bits_alone_and_among_many() {
    let mut turn = 0;
    for dim in [64, 72, 128, 256] {
        for side in SIDES {
            for case in Case::all(side, dim) {
                turn += 1;
                if !taken_of_many(turn) {
                    continue;
                }
                let heads = if turn.is_multiple_of(9) { 99 } else { 19 };
                let mut random = Random::new(turn as u64);
                let tier = Tier::available().last().expect("scalar at least");
                let codec = case.codec(tier);
                let tokens = codec.page_tokens();
                let page = encoded(&*codec, &Kind::Gaussian.rows(tokens, dim, &mut random));
                let (queries, weights) = (random.gaussians(heads * dim), random.weights(heads, tokens));
                let (scored, summed) = (scores(&*codec, &queries, &page), sums(&*codec, &weights, &page));
                for head in [0, 15, heads - 4, heads - 1] {
                    let alone = scores(&*codec, &queries[head * dim..][..dim], &page);
                    assert_eq!(
                        scored[head * tokens..][..tokens],
                        alone,
                        "scores of head {head} of {heads}: {case:?}"
                    );
                    let alone = sums(&*codec, &weights[head * tokens..][..tokens], &page);
                    assert_eq!(
                        summed[head * dim..][..dim],
                        alone,
                        "sums of head {head} of {heads}: {case:?}"
                    );
                }
            }
        }
    }
}

/// Fewer than sixteen heads have kernels of their own over pages of one width.
#[test]
fn a_few_heads_have_the_bits_that_many_have() {
    let parts = [("ch4", Side::Key), ("ch8", Side::Key), ("rot4g32", Side::Value), ("sym8g32", Side::Value)];
    for (part, side) in parts {
        for dim in [64, 128] {
            let case = Case::new(part, side, dim);
            few_are_as_many(&case, |tier| case.codec(tier));
        }
    }
}

/// And over keys of several widths: of one byte and of two, also in one vector of channels, of none, and of one byte alone.
#[test]
fn a_few_heads_have_the_bits_that_many_have_over_keys_of_several_widths() {
    for (part, dims) in [("klt", &[48, 64, 72, 80, 96, 128][..]), ("klt:p64", &[64, 128])] {
        for dim in dims {
            let case = Case::new(part, Side::Key, *dim);
            few_are_as_many(&case, |tier| case.codec(tier));
            let narrow: Vec<u8> = (0..dim / 8).map(|row| [4, 3, 2, 1][4 * row / (dim / 8)]).collect();
            few_are_as_many(&case, |tier| case.codec_of_widths(tier, &narrow));
        }
    }
}

/// Holds the scores and sums of one head to fifteen to those of the same heads among nineteen, on every tier.
fn few_are_as_many(case: &Case, codec: impl Fn(Tier) -> Box<dyn PageCodec>) {
    const MANY: usize = 19;
    for tier in Tier::available() {
        let (codec, dim) = (codec(tier), case.dim);
        let mut random = Random::new(dim as u64);
        let tokens = codec.page_tokens();
        let page = encoded(&*codec, &Kind::Gaussian.rows(tokens, dim, &mut random));
        let (queries, weights) = (random.gaussians(MANY * dim), random.weights(MANY, tokens));
        let (scored, summed) = (scores(&*codec, &queries, &page), sums(&*codec, &weights, &page));
        for heads in 1..16 {
            let few = scores(&*codec, &queries[..heads * dim], &page);
            assert_eq!(few, scored[..heads * tokens], "scores of {heads} heads, {tier}: {case:?}");
            let few = sums(&*codec, &weights[..heads * tokens], &page);
            assert_eq!(few, summed[..heads * dim], "sums of {heads} heads, {tier}: {case:?}");
        }
    }
}

proptest! {
    #[test]
    fn kernels_agree_with_decode_for_any_page(
        part in prop::sample::select(&PARTS[..]),
        side in prop::sample::select(&SIDES[..]),
        dim in prop::sample::select(&DIMS[..7]),
        kind in prop::sample::select(&Kind::ALL[..]),
        heads in 1..9usize,
        seed in any::<u64>(),
    ) {
        check(&Case::new(part, side, dim), kind, heads, seed).map_err(TestCaseError::fail)?;
    }
}

/// One stored vector serves both sides of a latent: whatever byte of its codes changes, scores and sums do.
#[test]
fn a_byte_of_a_page_of_values_counts_in_scores_and_in_sums() {
    for (part, dim) in
        ["rot4g32", "sym8g32"].into_iter().flat_map(|part| [48, 64, 512].map(|dim| (part, dim)))
    {
        for tier in Tier::available() {
            let case = Case::new(part, Side::Value, dim);
            let (codec, mut random) = (case.codec(tier), Random::new(8));
            let kernels = codec.kernels();
            assert_eq!([kernels.scores, kernels.accumulate], [tier.name(); 2], "nothing is decoded");
            let page = encoded(&*codec, &Kind::Gaussian.rows(codec.page_tokens(), dim, &mut random));
            // No weight, and of four queries hardly a channel, is so small that it is rounded to nothing.
            let queries = random.gaussians(4 * dim);
            let weights: Vec<f32> = (0..codec.page_tokens()).map(|t| 0.5 + 0.01 * (t % 7) as f32).collect();
            let verbs = |page: &[u8]| (scores(&*codec, &queries, page), sums(&*codec, &weights, page));
            let right = verbs(&page);
            let codes = case.twin().unwrap().scale_bytes().end;
            for byte in (codes..page.len()).step_by(if taken(1) { 41 } else { 997 }) {
                let mut other = page.clone();
                // The highest bit of a code: lower ones may be less than the rounding of a query.
                other[byte] ^= 0x80;
                let wrong = verbs(&other);
                assert!(wrong.0 != right.0 && wrong.1 != right.1, "{case:?}, {tier}, byte {byte}");
            }
        }
    }
}

/// The page that comes next is only asked for: it changes nothing, whatever it is.
#[test]
fn the_next_page_has_no_influence() {
    for part in ["ch4", "rot4g32", "sym8g32", "tq3", "chg4", "f16", "trellis3"] {
        for side in SIDES {
            let case = Case::new(part, side, 64);
            let codec = case.best();
            let mut random = Random::new(6);
            let page = encoded(&*codec, &Kind::Gaussian.rows(codec.page_tokens(), 64, &mut random));
            let (queries, weights) = (random.gaussians(3 * 64), random.weights(3, codec.page_tokens()));
            let mut query = Query::new();
            codec.prepare(&queries, &mut query).unwrap();
            for next in [vec![], vec![0xFF; page.len()], vec![1; 7], page.clone()] {
                let mut ahead = vec![f32::NAN; 3 * codec.page_tokens()];
                codec.scores_ahead(&query, &page, &next, &mut ahead).unwrap();
                let ahead: Vec<f64> = ahead.iter().map(|x| f64::from(*x)).collect();
                assert_eq!(ahead, scores(&*codec, &queries, &page), "{case:?}");
                let mut total = Accumulator::new(3, 64);
                codec.accumulate_ahead(&weights, &page, &next, &mut total).unwrap();
                let mut out = vec![f32::NAN; 3 * 64];
                codec.finish(&total, &mut out).unwrap();
                assert_eq!(out, sums(&*codec, &weights, &page), "{case:?}");
            }
        }
    }
}

/// A step over several pages: partial sums, rescaled and merged as an online softmax does.
#[test]
fn sums_add_up_over_pages_and_survive_rescaling_and_merging() {
    for part in ["rot4g32", "rot8:mean", "asym4", "tq3", "klt", "f16", "trellis3:mean"] {
        let case = Case::new(part, Side::Value, 64);
        let codec = case.best();
        let (tokens, mut random) = (codec.page_tokens(), Random::new(3));
        let pages: Vec<Vec<u8>> =
            (0..3).map(|_| encoded(&*codec, &Kind::Gaussian.rows(tokens, 64, &mut random))).collect();
        let weights: Vec<Vec<f32>> = (0..3).map(|_| random.weights(2, tokens)).collect();
        let mut first = Accumulator::new(2, 64);
        let mut second = Accumulator::new(2, 64);
        codec.accumulate(&weights[0], &pages[0], &mut first).unwrap();
        first.rescale(0, 0.5);
        first.rescale(1, 0.5);
        codec.accumulate(&weights[1], &pages[1], &mut first).unwrap();
        codec.accumulate(&weights[2], &pages[2], &mut second).unwrap();
        first.merge(&second);
        let denominator: f32 =
            (0..3).map(|i| weights[i][..tokens].iter().sum::<f32>() * [0.5, 1.0, 1.0][i]).sum();
        assert!((first.denominator(0) - denominator).abs() < 1e-5, "{part}");
        let mut out = vec![0.0; 2 * 64];
        codec.finish(&first, &mut out).unwrap();
        let mut want = vec![0.0f32; 2 * 64];
        for i in 0..3 {
            let part = sums(&*codec, &weights[i], &pages[i]);
            want.iter_mut().zip(&part).for_each(|(w, x)| *w += [0.5, 1.0, 1.0][i] * x);
        }
        for (got, want) in out.iter().zip(&want) {
            assert!((got - want).abs() < 1e-5, "{part}: {got} against {want}");
        }
    }
}

/// The bounds mean something: a kernel that dropped a plane, a group's scale or a zero would break them.
#[test]
fn a_wrong_scale_or_plane_breaks_the_bound() {
    for (part, side) in [
        ("ch4", Side::Key),
        ("ch8", Side::Key),
        ("ch3", Side::Key),
        ("rot5g32", Side::Key),
        ("rot6g32", Side::Key),
        ("asym4", Side::Key),
        ("tq3", Side::Key),
        ("tq5:p32", Side::Key),
        ("chg4", Side::Key),
        ("rot4g32", Side::Value),
        ("sym8g32", Side::Value),
        ("rot6g32", Side::Value),
        ("max7g16:s32", Side::Value),
        ("asym4", Side::Value),
        ("tq3", Side::Value),
        ("chg4", Side::Value),
    ] {
        for dim in [64, 128, 256] {
            let case = Case::new(part, side, dim);
            let codec = case.best();
            let twin = case.twin().unwrap();
            let mut random = Random::new(11);
            let rows = Kind::Gaussian.rows(codec.page_tokens(), dim, &mut random);
            let queries = random.gaussians(4 * dim);
            let weights = random.weights(4, codec.page_tokens());
            let page = encoded(&*codec, &rows);
            let (scores, sums) = (scores(&*codec, &queries, &page), sums(&*codec, &weights, &page));
            // Of values both verbs are held to it, and each must notice.
            let verdicts = |trial: &Trial| {
                let summed =
                    (side == Side::Value).then(|| trial.sums(&weights).check(&trial.comparable(&sums)));
                [Some(trial.scores(&queries).check(&scores)), summed].into_iter().flatten()
            };
            let right = Trial::of(&case, &*codec, page.clone());
            verdicts(&right).for_each(|verdict| assert_eq!(verdict.err(), None));
            for plane in 0..twin.bits(0) {
                let mut other = page.clone();
                for t in 0..codec.page_tokens() {
                    for c in 0..dim {
                        let (byte, bit) = twin.place(t, c, plane);
                        other[byte] &= !(1 << bit);
                    }
                }
                for verdict in verdicts(&Trial::of(&case, &*codec, other)) {
                    assert!(
                        verdict.is_err(),
                        "{case:?}: without plane {plane} still {:.2} of the bound",
                        verdict.unwrap()
                    );
                }
            }
            // A scale twice as large, for half the numbers of the first array.
            let mut other = page.clone();
            let size = twin.format.bytes();
            for scale in other[..twin.scale_bytes().end / 2].chunks_exact_mut(size).step_by(2) {
                scale[size - 1] ^= if size == 2 { 4 } else { 1 };
            }
            for verdict in verdicts(&Trial::of(&case, &*codec, other)) {
                assert!(
                    verdict.is_err(),
                    "{case:?}: with wrong scales still {:.2} of the bound",
                    verdict.unwrap()
                );
            }
        }
    }
}
