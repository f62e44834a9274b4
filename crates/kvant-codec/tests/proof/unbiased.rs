//! Sketches: inner products that are right on average over the seeds, and how far a single one is off.

use crate::case::{Case, decoded, encoded};
use crate::random::Random;
use crate::trial::scores;
use kvant_codec::{Side, Tier};

const DIM: usize = 16;
const SEEDS: u64 = 3000;

/// Tokens of a page: Gaussian ones, one-hot ones, constant ones and ones along the query.
fn rows(query: &[f32]) -> Vec<f32> {
    let mut random = Random::new(3);
    let mut rows = random.gaussians(32 * DIM);
    for (t, row) in rows.chunks_exact_mut(DIM).enumerate() {
        match t % 4 {
            0 => {}
            1 => row.iter_mut().enumerate().for_each(|(c, x)| *x = f32::from(u8::from(c == t / 4))),
            2 => row.fill(0.25 * t as f32),
            _ => row.iter_mut().zip(query).for_each(|(x, q)| *x = 0.3 * *x + q),
        }
    }
    rows
}

/// Mean of q·x̂ − q·x over the seeds and its standard error, both in units of ‖q‖‖x‖, for every token.
fn bias(part: &str) -> Vec<(f64, f64)> {
    let query = Random::new(1).gaussians(DIM);
    let rows = rows(&query);
    let mut moments = vec![(0.0, 0.0); 32];
    for seed in 0..SEEDS {
        let separator = if part.contains(':') { "," } else { ":" };
        let case = Case::new(&format!("{part}{separator}p32,seed={seed}"), Side::Key, DIM);
        let codec = case.best();
        let back = decoded(&*codec, &encoded(&*codec, &rows));
        for ((sum, squares), (x, y)) in
            moments.iter_mut().zip(rows.chunks_exact(DIM).zip(back.chunks_exact(DIM)))
        {
            let product = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            };
            let scale = (product(&query, &query) * product(x, x)).sqrt();
            let error = (product(&query, y) - product(&query, x)) / scale;
            *sum += error;
            *squares += error * error;
        }
    }
    let count = SEEDS as f64;
    moments.iter().map(|(sum, squares)| (sum / count, (squares / count).sqrt() / count.sqrt())).collect()
}

#[test]
fn sketches_are_unbiased_over_the_seeds() {
    for part in ["qjl1", "turbo2", "turbo3", "turbo3:haar"] {
        for (t, (mean, error)) in bias(part).iter().enumerate() {
            // Four and a half standard errors, and the binary16 of the scales.
            assert!(mean.abs() < 4.5 * error + 1e-3, "{part}, token {t}: {mean} ± {error}");
        }
    }
}

#[test]
fn without_the_sketch_there_is_a_bias() {
    // Keys along the query: the codecs of least square error shrink them.
    for part in ["tq1", "tq2"] {
        let along = bias(part);
        assert!(
            along.iter().skip(3).step_by(4).all(|(mean, error)| *mean < -5.0 * error),
            "{part}: {along:?}"
        );
    }
}

#[test]
fn a_sketch_is_as_noisy_as_its_documentation_says() {
    let (dim, mut random) = (128, Random::new(8));
    let codec = Case::new("qjl1", Side::Key, dim).codec(Tier::Scalar);
    let (query, rows) = (random.gaussians(dim), random.gaussians(64 * dim));
    let scores = scores(&*codec, &query, &encoded(&*codec, &rows));
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let q = wide(&query);
    let squares: f64 = rows
        .chunks_exact(dim)
        .zip(scores)
        .map(|(row, score)| {
            let row = wide(row);
            let exact: f64 = row.iter().zip(&q).map(|(x, q)| x * q).sum();
            ((score - exact) / (norm(&row) * norm(&q))).powi(2)
        })
        .sum();
    let noise = (squares / 64.0 * dim as f64).sqrt();
    assert!((0.55..0.95).contains(&noise), "{noise}");
}
