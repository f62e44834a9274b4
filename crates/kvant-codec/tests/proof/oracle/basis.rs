//! Changes of basis as matrices, entry by entry from their definitions.

use kvant_codec::{Calibration, CodecSpec, Rotation};
use std::collections::HashMap;
use std::f64::consts::{SQRT_2, TAU};
use std::sync::{Arc, Mutex, OnceLock};

/// y = M (x − μ), x = M⁻¹ y + μ.
pub struct Affine {
    pub dim: usize,
    /// Row-major M.
    forward: Arc<Vec<f64>>,
    /// Row-major M⁻¹.
    inverse: Arc<Vec<f64>>,
    pub mean: Vec<f64>,
}

impl Affine {
    pub fn new(spec: &CodecSpec, dim: usize, calibration: &Calibration, dense: Option<&Matrices>) -> Affine {
        let wide = |x: &Option<Vec<f32>>| x.iter().flatten().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let (mut forward, mut inverse) = match dense {
            Some((forward, inverse)) => (Arc::clone(forward), Arc::clone(inverse)),
            None => rotation(spec.options.rotation, dim, spec.options.seed),
        };
        if spec.options.lambda {
            let lambda = wide(&calibration.lambda);
            forward = Arc::new((0..dim * dim).map(|n| forward[n] / lambda[n / dim]).collect());
            inverse = Arc::new((0..dim * dim).map(|n| inverse[n] * lambda[n % dim]).collect());
        }
        let mean = if spec.options.mean { wide(&calibration.mean) } else { vec![0.0; dim] };
        Affine { dim, forward, inverse, mean }
    }

    /// M (x − μ).
    pub fn vector(&self, x: &[f32]) -> Vec<f64> {
        let centred: Vec<f64> = x.iter().zip(&self.mean).map(|(x, mean)| f64::from(*x) - mean).collect();
        self.linear(&centred)
    }

    /// M e, for a difference of two vectors.
    pub fn linear(&self, e: &[f64]) -> Vec<f64> {
        times(&self.forward, e)
    }

    /// M⁻ᵀ q: what the query becomes.
    pub fn query(&self, q: &[f32]) -> Vec<f64> {
        let mut y = vec![0.0; self.dim];
        for (row, q) in self.inverse.chunks_exact(self.dim).zip(q) {
            y.iter_mut().zip(row).for_each(|(y, m)| *y += m * f64::from(*q));
        }
        y
    }

    /// M⁻¹ y + μ.
    pub fn back(&self, y: &[f64]) -> Vec<f64> {
        times(&self.inverse, y).iter().zip(&self.mean).map(|(x, mean)| x + mean).collect()
    }
}

/// M and M⁻¹, row-major.
pub type Matrices = (Arc<Vec<f64>>, Arc<Vec<f64>>);

pub fn times(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    /// Independent sums, or one chain of additions sets the pace.
    const CHAINS: usize = 8;
    let product = |row: &[f64]| {
        let mut sums = [0.0; CHAINS];
        for (row, x) in row.chunks(CHAINS).zip(x.chunks(CHAINS)) {
            sums.iter_mut().zip(row.iter().zip(x)).for_each(|(sum, (m, x))| *sum += m * x);
        }
        sums.iter().sum()
    };
    matrix.chunks_exact(x.len()).map(product).collect()
}

/// The matrix of a rotation and its transpose, made once per process.
pub fn rotation(rotation: Rotation, dim: usize, seed: u64) -> Matrices {
    type Key = (Rotation, usize, u64);
    static KNOWN: OnceLock<Mutex<HashMap<Key, Matrices>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap();
    let (forward, inverse) = known.entry((rotation, dim, seed)).or_insert_with(|| {
        let signs = signs(dim, seed);
        let entry = |n: usize| entry(rotation, dim, n / dim, n % dim, &signs);
        let forward: Vec<f64> = match rotation {
            Rotation::Haar => haar(dim, seed),
            _ => (0..dim * dim).map(entry).collect(),
        };
        let inverse = (0..dim * dim).map(|n| forward[(n % dim) * dim + n / dim]).collect();
        (Arc::new(forward), Arc::new(inverse))
    });
    (Arc::clone(forward), Arc::clone(inverse))
}

/// Row i, column j.
fn entry(rotation: Rotation, dim: usize, i: usize, j: usize, signs: &[f64]) -> f64 {
    let d = dim as f64;
    match rotation {
        Rotation::Identity => f64::from(u8::from(i == j)),
        Rotation::Srht => {
            // H ⊗ C: the power of two and the odd part of d, an index of each.
            let power = 1 << dim.trailing_zeros();
            let odd = dim / power;
            let walsh = walsh(i / odd, j / odd);
            let angle = TAU * ((i % odd) * (j % odd)) as f64 / odd as f64;
            walsh * (angle.cos() + angle.sin()) / d.sqrt() * signs[j]
        }
        Rotation::Srft => {
            // X_k = Σ x_j e^(−2πijk/d), packed Re 0, Re d/2, then √2 Re and √2 Im of every k between.
            let angle = |k: usize| TAU * ((j * k) % dim) as f64 / d;
            let packed = match i {
                0 => 1.0,
                1 => angle(dim / 2).cos(),
                i if i.is_multiple_of(2) => SQRT_2 * angle(i / 2).cos(),
                i => -SQRT_2 * angle(i / 2).sin(),
            };
            packed / d.sqrt() * signs[j]
        }
        Rotation::Hadamard64 if dim.is_multiple_of(64) => {
            f64::from(u8::from(i / 64 == j / 64)) * walsh(i % 64, j % 64) / 8.0
        }
        Rotation::Hadamard64 => f64::from(u8::from(i == j)),
        Rotation::Haar => unreachable!("its rows depend on each other"),
    }
}

/// Gaussian rows, by Box and Muller from pairs of words, rounded to 2⁻²⁰; each minus its projections on those before.
fn haar(dim: usize, seed: u64) -> Vec<f64> {
    let unit = |n: usize| ((word(seed, n as u64) >> 11) + 1) as f64 / 2f64.powi(53);
    let gaussian = |n: usize| {
        let x = (-2.0 * unit(2 * n).ln()).sqrt() * (TAU * unit(2 * n + 1)).cos();
        (x * 2f64.powi(20)).round() / 2f64.powi(20)
    };
    let mut rows: Vec<f64> = Vec::new();
    for i in 0..dim {
        let mut row: Vec<f64> = (0..dim).map(|j| gaussian(i * dim + j)).collect();
        let along = times(&rows, &row);
        for (along, done) in along.iter().zip(rows.chunks_exact(dim)) {
            row.iter_mut().zip(done).for_each(|(x, y)| *x -= along * y);
        }
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        rows.extend(row.iter().map(|x| x / length));
    }
    rows
}

/// The n-th word of SplitMix64.
fn word(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add((n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn walsh(i: usize, j: usize) -> f64 {
    if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// SplitMix64 from the seed; 64 signs a word, lowest bit first, a set bit is +1.
fn signs(dim: usize, seed: u64) -> Vec<f64> {
    (0..dim).map(|i| if (word(seed, i as u64 / 64) >> (i % 64)) & 1 == 1 { 1.0 } else { -1.0 }).collect()
}
