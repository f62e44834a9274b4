//! |decode(encode(x)) − x|, bounded by what each rule's formula says before any byte is read.
//!
//! In the codec's basis, with the exact scale s of the rule and σ how far its stored form may be from it (half a step of
//! the scale's format for a scale rounded to nearest, a whole step for one rounded up):
//!
//! - symmetric: numbers are within D = 2^(b−1) − 1 steps of zero, rounding costs half a step, and a scale that was rounded
//!   down clips: (s + σ)/2 + D·σ;
//! - signed maximum: as above with D = 2^(b−1), but the side opposite to the extreme has one level less: (s + σ) + D·σ;
//! - asymmetric: nothing is clipped: (s + σ)/2, where the range grew by the zero's rounding;
//! - fitted to the numbers, below 6 bits: squares of all errors together stay within those of the rule that is fitted;
//! - bins: half a bin, and half a step of the zero's and the scale's rounding each, the latter as often as there are bins;
//! - Lloyd–Max and other tables: half the gap between levels inside the table, the distance to the last level outside it, and 127·σ for the
//!   scale's rounding.
//!
//! Rotations keep norms, so that the same bounds hold for whole vectors in the model's basis.

use crate::case::{Case, DIMS, SIDES, decoded, encoded, taken};
use crate::oracle::{Twin, norm, rule};
use crate::random::{Kind, Random};
use kvant_codec::Rule;

/// The largest error of each of `values`, which share a scale.
fn bounds(twin: &Twin, bits: u8, values: &[f64]) -> Vec<f64> {
    let ulp = |x: f64| twin.format.ulp(x);
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = high.max(-low);
    let steps = rule::steps(twin.rule, bits, values.len()).abs();
    let s = top / steps;
    let all = |bound: f64| vec![bound; values.len()];
    match twin.rule {
        Rule::Symmetric => all((s + ulp(s)) / 2.0 + steps * ulp(s) / 2.0),
        Rule::SignedMax | Rule::FittedMax => all(s + ulp(s) + steps * ulp(s) / 2.0),
        Rule::Asymmetric | Rule::FittedRange => {
            let s = (high - low + ulp(low)) / steps;
            all((s + ulp(s)) / 2.0)
        }
        Rule::Bins => {
            let s = (high - low) / steps;
            all((s + ulp(low) + (steps + 1.0) * ulp(s)) / 2.0)
        }
        // Checked by its formula alone: the scale that is stored depends on all the codes.
        Rule::NonLinear => all(f64::INFINITY),
        Rule::NormalFloat | Rule::LloydMax | Rule::Sketch => {
            let rms = (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt();
            let s = if twin.rule == Rule::NormalFloat { top / steps } else { rms / steps };
            let last = 127.0 * s;
            let gap = (1..1u32 << bits)
                .map(|code| {
                    rule::level(twin.rule, bits, code as u8) - rule::level(twin.rule, bits, code as u8 - 1)
                })
                .fold(0.0, f64::max);
            values.iter().map(|x| (gap / 2.0 * s).max(x.abs() - last) + 127.0 * ulp(s)).collect()
        }
    }
}

/// What is off by more than it may be, of numbers under one scale that came back as `got`; each may be off by its `slack` besides.
fn beyond(twin: &Twin, bits: u8, values: &[f64], got: &[f64], slack: &[f64]) -> Option<String> {
    // A channel without codes is lost altogether.
    let allowed =
        if bits == 0 { values.iter().map(|x| x.abs()).collect() } else { bounds(twin, bits, values) };
    let errors = || values.iter().zip(got).map(|(x, got)| (got - x).abs());
    if bits > 0 && rule::fits(twin.rule, bits) {
        // Both ends of a range count as five.
        let count = values.len() as f64 + if rule::zeros(twin.rule) { 8.0 } else { 0.0 };
        let slack = slack.iter().copied().fold(0.0, f64::max);
        let (all, most) = (errors().map(|x| x * x).sum::<f64>(), count * (allowed[0] + slack).powi(2));
        return (all > most).then(|| format!("squared errors of {all:e}, {most:e} allowed"));
    }
    let mut each = errors().zip(&allowed).zip(slack).enumerate();
    each.find(|(_, ((error, allowed), slack))| *error > *allowed + *slack)
        .map(|(i, ((error, allowed), _))| format!("number {i} off by {error:e}, {allowed:e} allowed"))
}

#[test]
fn errors_stay_within_what_the_rule_allows() {
    for dim in DIMS {
        for side in SIDES {
            for (turn, case) in Case::all(side, dim).enumerate() {
                if !taken(turn + dim / 8) {
                    continue;
                }
                let Some(twin) = case.twin() else { continue };
                // Two scales on top of each other are checked by the twin; half the codecs a dimension is plenty.
                if (twin.per_channel && twin.per_token)
                    || (turn + dim / 8) % 2 == 0
                    || (dim > 128 && turn % 8 > 1)
                {
                    continue;
                }
                let codec = case.best();
                let mut random = Random::new(turn as u64);
                for kind in [Kind::Gaussian, Kind::HeavyTailed, Kind::Tiny] {
                    let rows = kind.rows(codec.page_tokens(), dim, &mut random);
                    let back = decoded(&*codec, &encoded(&*codec, &rows));
                    let y: Vec<Vec<f64>> = rows.chunks_exact(dim).map(|row| twin.basis.vector(row)).collect();
                    let got: Vec<Vec<f64>> =
                        back.chunks_exact(dim).map(|row| twin.basis.vector(row)).collect();
                    let slack: Vec<f64> =
                        y.iter().map(|y| 4e-6 * (norm(y) + norm(&twin.basis.mean))).collect();
                    let column =
                        |of: &[Vec<f64>], c: usize| -> Vec<f64> { of.iter().map(|x| x[c]).collect() };
                    let found = if twin.per_token {
                        let shares =
                            (0..y.len()).flat_map(|t| twin.spans().iter().map(move |span| (t, span)));
                        shares
                            .map(|(t, span)| {
                                let (bits, slack) = (twin.bits(span.start), vec![slack[t]; span.len()]);
                                let found =
                                    beyond(&twin, bits, &y[t][span.clone()], &got[t][span.clone()], &slack);
                                found.map(|found| format!("token {t}, channels {span:?}: {found}"))
                            })
                            .find_map(|found| found)
                    } else {
                        (0..dim).find_map(|c| {
                            let found = beyond(&twin, twin.bits(c), &column(&y, c), &column(&got, c), &slack);
                            found.map(|found| format!("channel {c}: {found}"))
                        })
                    };
                    assert_eq!(found, None, "{case:?}, {kind:?}");
                }
            }
        }
    }
}
