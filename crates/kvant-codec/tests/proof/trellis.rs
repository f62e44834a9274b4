//! Trellis codes beyond what holds for every codec: in a plan's basis, at every width, and as good as they are said to be.

use crate::case::{Case, SIDES, decoded, encoded, follows};
use crate::random::{Kind, Random};
use crate::trial::{Trial, scores, sums};
use kvant_codec::{BuildError, Side, Tier};

/// Encode, decode and both attention verbs against the twin, on every tier.
fn check(case: &Case, rows: &[f32], seed: u64) {
    let oracle = case.codec(Tier::Scalar);
    let mut random = Random::new(seed);
    let trial = Trial::new(case, &*oracle, rows);
    follows(case, rows, &trial.page, &decoded(&*oracle, &trial.page))
        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let (queries, weights) = (random.gaussians(3 * case.dim), random.weights(3, 128));
    for tier in Tier::available() {
        let codec = case.codec(tier);
        assert!(encoded(&*codec, rows) == trial.page, "{case:?}, {tier}: other bytes than scalar");
        let scored = trial.scores(&queries).check(&scores(&*codec, &queries, &trial.page));
        scored.unwrap_or_else(|e| panic!("{case:?}, {tier}: {e}"));
        let summed = trial.sums(&weights).check(&trial.comparable(&sums(&*codec, &weights, &trial.page)));
        summed.unwrap_or_else(|e| panic!("{case:?}, {tier}: {e}"));
    }
}

/// Tokens that are like their neighbours, with means and channels of very different size.
fn alike(dim: usize, leak: f64, random: &mut Random) -> Vec<f32> {
    let means = random.gaussians(dim);
    let mut x = vec![0.0f64; dim];
    let mut rows = Vec::new();
    for _ in 0..128 {
        for (c, x) in x.iter_mut().enumerate() {
            *x = leak * *x + (1.0 - leak * leak).sqrt() * random.gaussian();
            rows.push(((*x + 5.0 * f64::from(means[c])) * 4.0 * 0.9f64.powi(c as i32)) as f32);
        }
    }
    rows
}

#[test]
fn every_width_follows_the_formula_on_every_tier() {
    for (n, part) in ["trellis1", "trellis1.5", "trellis2", "trellis3.25", "trellis4", "trellis5", "trellis6"]
        .into_iter()
        .enumerate()
    {
        for side in SIDES {
            let case = Case::new(part, side, 48);
            let mut random = Random::new(n as u64);
            check(&case, &alike(48, 0.3 * (n % 4) as f64, &mut random), n as u64);
        }
    }
}

#[test]
fn keys_lie_in_a_plans_basis() {
    for (n, part) in ["klt3.2:trellis", "klt2:trellis"].into_iter().enumerate() {
        for dim in [20, 64, 128] {
            let case = Case::new(part, Side::Key, dim);
            check(&case, &Kind::Gaussian.rows(128, dim, &mut Random::new(7)), 7);
            check(&case, &alike(dim, 0.8, &mut Random::new(n as u64)), 8);
        }
    }
    let refused = |part: &str, side| {
        let case = Case::new(part, side, 64);
        case.spec.build(side, 64).err().unwrap_or_else(|| panic!("{case:?} was built"))
    };
    assert!(matches!(refused("klt3:trellis", Side::Key), BuildError::Uncalibrated { .. }));
    for (part, side) in [
        ("klt3:trellis", Side::Value),
        ("klt3:trellis,p64", Side::Key),
        ("klt3:trellis,s32", Side::Key),
        ("trellis7", Side::Key),
    ] {
        assert!(matches!(refused(part, side), BuildError::Combination { .. }), "{part}");
    }
}

fn relative_error(case: &Case, rows: &[f32]) -> f64 {
    let codec = case.best();
    let back = decoded(&*codec, &encoded(&*codec, rows));
    let means: Vec<f64> = (0..case.dim)
        .map(|c| rows.iter().skip(c).step_by(case.dim).map(|x| f64::from(*x)).sum::<f64>() / 128.0)
        .collect();
    let (mut error, mut power) = (0.0, 0.0);
    for (n, (x, y)) in rows.iter().zip(&back).enumerate() {
        error += f64::from(x - y).powi(2);
        power += (f64::from(*x) - means[n % case.dim]).powi(2);
    }
    error / power
}

/// On Gaussians, where a scalar code of least error has .035 at three bits; with tokens that predict each other less.
#[test]
fn errors_are_those_of_a_trellis() {
    let white = Kind::Gaussian.rows(128, 64, &mut Random::new(3));
    for side in SIDES {
        for (part, expected) in [("trellis2", 0.085), ("trellis3", 0.0228), ("trellis4", 0.0064)] {
            let found = relative_error(&Case::new(part, side, 64), &white);
            assert!(
                (0.8..1.35).contains(&(found / expected)),
                "{part}, {side:?}: {found}, {expected} expected"
            );
        }
        let slow: Vec<f32> = alike(64, 0.9, &mut Random::new(4));
        let case = Case::new("trellis3", Side::Key, 64);
        assert!(relative_error(&case, &slow) < 0.004, "{}", relative_error(&case, &slow));
    }
}

/// Hostile pages decode to something, and no kernel reads outside them: widths that do not fit the page are none.
#[test]
fn any_bytes_are_a_page() {
    for side in SIDES {
        for dim in [20, 64] {
            let case = Case::new("trellis3", side, dim);
            let mut random = Random::new(5);
            for _ in 0..20 {
                let bytes = case.best().page_bytes();
                // Small exponents, so that sums stay finite.
                let page: Vec<u8> = (0..bytes).map(|_| (random.word() % 140) as u8).collect();
                let trial = Trial::of(&case, &*case.best(), page);
                let (queries, weights) = (random.gaussians(2 * dim), random.weights(2, 128));
                for tier in Tier::available() {
                    let codec = case.codec(tier);
                    let scored = trial.scores(&queries).check(&scores(&*codec, &queries, &trial.page));
                    scored.unwrap_or_else(|e| panic!("{case:?}, {tier}: {e}"));
                    let summed =
                        trial.sums(&weights).check(&trial.comparable(&sums(&*codec, &weights, &trial.page)));
                    summed.unwrap_or_else(|e| panic!("{case:?}, {tier}: {e}"));
                }
            }
        }
    }
}
