//! Rotations against their definitions in f64, on every tier.

use super::*;
use crate::format::DenseError;
use kvant_simd::{Simd, Tier, with_tier};
use std::f64::consts::TAU;

const DIMS: [usize; 15] = [2, 6, 22, 48, 64, 72, 80, 96, 112, 128, 192, 200, 256, 512, 576];
const ROTATIONS: [Rotation; 5] =
    [Rotation::Identity, Rotation::Srht, Rotation::Srft, Rotation::Hadamard64, Rotation::Haar];

/// Sixteen pseudo-random columns.
fn columns(dim: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..LANES * dim)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        })
        .collect()
}

fn run(tier: Tier, basis: &Basis, way: Way, x: &mut [f32]) {
    let mut scratch = vec![0.0; x.len()];
    assert_eq!(x.len(), LANES * basis.dim());
    let change = Change { basis, way, x: x.as_mut_ptr(), scratch: scratch.as_mut_ptr() };
    // SAFETY: both buffers have 16 · dim floats and the tier was asked for from `available`.
    with_tier!(tier, S => unsafe { S::call(change) });
}

/// The d×d matrix of the basis, column by column, from unit vectors. Sixteen unit vectors per call.
fn matrix(tier: Tier, basis: &Basis, dim: usize) -> Vec<f64> {
    let mut m = vec![0.0; dim * dim];
    for start in (0..dim).step_by(LANES) {
        let mut x = vec![0.0; LANES * dim];
        for lane in 0..LANES.min(dim - start) {
            x[LANES * (start + lane) + lane] = 1.0;
        }
        run(tier, basis, Way::Forward, &mut x);
        for lane in 0..LANES.min(dim - start) {
            for row in 0..dim {
                m[row * dim + start + lane] = f64::from(x[LANES * row + lane]);
            }
        }
    }
    m
}

#[test]
fn rotations_are_orthonormal_to_1e5() {
    for rotation in ROTATIONS {
        for dim in DIMS {
            for tier in Tier::available() {
                let m = matrix(tier, &Basis::new(rotation, dim, 7), dim);
                for i in 0..dim {
                    for j in (0..dim).step_by(1 + dim / 37) {
                        let dot: f64 = (0..dim).map(|k| m[i * dim + k] * m[j * dim + k]).sum();
                        let want = f64::from(u8::from(i == j));
                        assert!(
                            (dot - want).abs() < 1e-5,
                            "{rotation:?} d={dim} {tier}: row {i}·{j} = {dot}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn srft_is_the_packed_dft_of_its_definition() {
    for dim in DIMS {
        let signs: Vec<f64> = random_signs(dim, 3).map(f64::from).collect();
        let basis = Basis::new(Rotation::Srft, dim, 3);
        let x = columns(dim, 11);
        for tier in Tier::available() {
            let mut y = x.clone();
            run(tier, &basis, Way::Forward, &mut y);
            for lane in [0, 5, 15] {
                let value = |c: usize| f64::from(x[LANES * c + lane]) * signs[c];
                let dft = |k: usize| {
                    (0..dim).fold((0.0, 0.0), |(re, im), c| {
                        let angle = TAU * ((c * k) % dim) as f64 / dim as f64;
                        (re + value(c) * angle.cos(), im - value(c) * angle.sin())
                    })
                };
                let norm = (dim as f64).sqrt();
                let mut packed = vec![dft(0).0 / norm, dft(dim / 2).0 / norm];
                for k in 1..dim / 2 {
                    let (re, im) = dft(k);
                    packed.extend([re, im].map(|v| v * std::f64::consts::SQRT_2 / norm));
                }
                for (c, want) in packed.iter().enumerate() {
                    let got = f64::from(y[LANES * c + lane]);
                    assert!((got - want).abs() < 2e-5, "d={dim} {tier} channel {c}: {got} for {want}");
                }
                // Parseval.
                let energy = |v: &dyn Fn(usize) -> f64| (0..dim).map(|c| v(c) * v(c)).sum::<f64>();
                let (before, after) = (energy(&|c| value(c)), energy(&|c| f64::from(y[LANES * c + lane])));
                assert!((before - after).abs() < 1e-5 * before);
            }
        }
    }
}

#[test]
fn srht_is_the_kronecker_product_of_its_definition() {
    for dim in DIMS {
        let signs: Vec<f64> = random_signs(dim, 5).map(f64::from).collect();
        let m = matrix(Tier::Scalar, &Basis::new(Rotation::Srht, dim, 5), dim);
        let odd = dim >> dim.trailing_zeros();
        for row in 0..dim {
            for col in 0..dim {
                let walsh = if ((row / odd) & (col / odd)).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                let angle = TAU * (((row % odd) * (col % odd)) % odd) as f64 / odd as f64;
                let want = walsh * (angle.cos() + angle.sin()) * signs[col] / (dim as f64).sqrt();
                assert!((m[row * dim + col] - want).abs() < 1e-5, "d={dim} [{row}][{col}]");
            }
        }
    }
}

#[test]
fn tiers_agree_bit_for_bit_on_the_forward_transform() {
    for rotation in ROTATIONS {
        for dim in DIMS {
            let basis = Basis::new(rotation, dim, 1);
            let mut oracle = columns(dim, 2);
            run(Tier::Scalar, &basis, Way::Forward, &mut oracle);
            for tier in Tier::available() {
                let mut x = columns(dim, 2);
                run(tier, &basis, Way::Forward, &mut x);
                assert!(
                    x.iter().zip(&oracle).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{rotation:?} d={dim} {tier}"
                );
            }
        }
    }
}

#[test]
fn undo_is_the_way_back_of_apply() {
    for (rotation, dim) in
        ROTATIONS.into_iter().flat_map(|rotation| [2, 48, 72, 128].map(|dim| (rotation, dim)))
    {
        let mean: Vec<f32> = (0..dim).map(|c| (c as f32 - 7.0) * 0.3).collect();
        let basis = Basis::new(rotation, dim, 4).with_mean(&mean).unwrap();
        for tier in Tier::available() {
            // More than a tile, and not a whole number of them.
            let rows = [columns(dim, 1), columns(dim, 2)].concat()[..21 * dim].to_vec();
            let mut back = rows.clone();
            basis.apply(&mut back, tier).unwrap();
            basis.undo(&mut back, tier).unwrap();
            let far = rows.iter().zip(&back).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(far < 1e-4, "{rotation:?} d={dim} {tier}: {far}");
            assert!(basis.undo(&mut back[1..], tier).is_err());
        }
    }
}

#[test]
fn haar_rotations_are_spread_evenly() {
    // Every entry of a Haar rotation has mean 0 and mean square 1/d, and the fourth moment 3/(d(d + 2)) of a sphere.
    let (dim, seeds) = (6, 3000);
    let (mut second, mut fourth) = (0.0, 0.0);
    let mut first = vec![0.0; dim * dim];
    for seed in 0..seeds {
        let m = matrix(Tier::Scalar, &Basis::new(Rotation::Haar, dim, seed), dim);
        first.iter_mut().zip(&m).for_each(|(sum, x)| *sum += x / seeds as f64);
        second += m[8] * m[8] / seeds as f64;
        fourth += m[8].powi(4) / seeds as f64;
    }
    assert!(first.iter().all(|mean| mean.abs() < 0.035), "{first:?}");
    assert!((second * 6.0 - 1.0).abs() < 0.1, "{second}");
    assert!((fourth * 48.0 / 3.0 - 1.0).abs() < 0.2, "{fourth}");
    // The same rotation is shared while it is in use, and made again alike.
    let shared = [haar::haar(24, 5), haar::haar(24, 5)];
    assert!(Arc::ptr_eq(&shared[0], &shared[1]));
    let before = (*shared[0]).clone();
    drop(shared);
    assert_eq!(*haar::haar(24, 5), before);
    assert_ne!(*haar::haar(24, 6), before);
}

#[test]
fn query_and_inverse_undo_the_basis_for_every_part() {
    for dim in [48, 64, 80] {
        // An invertible, far from orthogonal matrix: I + strictly upper part, and its inverse by back substitution.
        let mut forward = vec![0.0f32; dim * dim];
        let mut inverse = vec![0.0f32; dim * dim];
        for i in 0..dim {
            forward[i * dim + i] = 2.0;
            inverse[i * dim + i] = 0.5;
            if i + 1 < dim {
                forward[i * dim + i + 1] = 1.0;
            }
            for j in i + 1..dim {
                inverse[i * dim + j] = 0.5 * (-0.5f32).powi((j - i) as i32);
            }
        }
        let dense = Dense::new(dim, forward, inverse).unwrap();
        let lambda: Vec<f32> = (0..dim).map(|c| 0.5 + 0.1 * (c % 9) as f32).collect();
        let mean: Vec<f32> = (0..dim).map(|c| (c as f32 - 7.0) * 0.3).collect();
        for basis in
            [Basis::dense(dense), Basis::new(Rotation::Srft, dim, 9), Basis::new(Rotation::Srht, dim, 9)]
        {
            let basis = basis.with_lambda(&lambda).unwrap().with_mean(&mean).unwrap();
            for tier in Tier::available() {
                let (x, q) = (columns(dim, 1), columns(dim, 2));
                let (mut y, mut p) = (x.clone(), q.clone());
                run(tier, &basis, Way::Forward, &mut y);
                run(tier, &basis, Way::Query, &mut p);
                let mut back = y.clone();
                run(tier, &basis, Way::Inverse, &mut back);
                for lane in 0..LANES {
                    let at = |v: &[f32], c: usize| f64::from(v[LANES * c + lane]);
                    let dot = |a: &[f32], b: &[f32]| (0..dim).map(|c| at(a, c) * at(b, c)).sum::<f64>();
                    let mean_dot: f64 = (0..dim).map(|c| at(&q, c) * f64::from(mean[c])).sum();
                    assert!((dot(&p, &y) + mean_dot - dot(&q, &x)).abs() < 1e-3, "{tier} d={dim}");
                    for (c, mean) in mean.iter().enumerate() {
                        assert!((at(&back, c) + f64::from(*mean) - at(&x, c)).abs() < 1e-4);
                    }
                }
            }
        }
    }
}

#[test]
fn a_seed_is_a_basis_for_ever() {
    let text: String = random_signs(24, 0).map(|s| if s > 0 { '+' } else { '-' }).collect();
    // The low bits of 0xE220A8397B1DCDAF, the first output of SplitMix64 from seed 0.
    assert_eq!(text, "++++-+-++-++--+++-+++---");
    assert_ne!(random_signs(64, 0).collect::<Vec<_>>(), random_signs(64, 1).collect::<Vec<_>>());
}

#[test]
fn hostile_parts_are_refused() {
    assert!(Basis::new(Rotation::Srft, 64, 0).with_lambda(&[1.0; 63]).is_none());
    assert!(Basis::new(Rotation::Srft, 2, 0).with_lambda(&[1.0, 0.0]).is_none());
    assert!(Basis::new(Rotation::Srft, 2, 0).with_lambda(&[1.0, f32::NAN]).is_none());
    assert!(Basis::new(Rotation::Srft, 2, 0).with_mean(&[1.0, f32::INFINITY]).is_none());
    assert!(matches!(Dense::new(2, vec![1.0; 4], vec![1.0; 3]), Err(DenseError::Shape { .. })));
    assert!(matches!(Dense::new(1, vec![2.0], vec![2.0]), Err(DenseError::NotInverse(_))));
    assert!(matches!(Dense::new(1, vec![f32::NAN], vec![2.0]), Err(DenseError::NotFinite)));
}

#[test]
fn a_rotation_after_a_dense_basis_is_both_in_turn() {
    for (dim, rotation) in [(6, Rotation::Srft), (24, Rotation::Srht), (64, Rotation::Haar)] {
        // D·(I + a shift of a half): invertible, neither orthonormal nor symmetric.
        let shift = |i: usize, j: usize| if i == j { 1.0 } else { f32::from(u8::from(j == i + 1)) * 0.5 };
        let matrix = (0..dim * dim).map(|n| (1.0 + (n / dim % 3) as f32) * shift(n / dim, n % dim)).collect();
        let first = Arc::new(Dense::of(dim, matrix).unwrap());
        let rotation = Basis::new(rotation, dim, 5);
        let both = rotation.after(&first, Tier::Scalar);
        for way in [Way::Forward, Way::Query] {
            let (mut expected, mut found) = (columns(dim, 3), columns(dim, 3));
            run(Tier::Scalar, &Basis::dense(Arc::clone(&first)), way, &mut expected);
            run(Tier::Scalar, &rotation, way, &mut expected);
            run(Tier::Scalar, &both, way, &mut found);
            assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-4), "{dim}");
        }
        let (start, mut there) = (columns(dim, 4), columns(dim, 4));
        run(Tier::Scalar, &both, Way::Forward, &mut there);
        run(Tier::Scalar, &both, Way::Inverse, &mut there);
        assert!(start.iter().zip(&there).all(|(a, b)| (a - b).abs() < 1e-4), "{dim}");
    }
}

#[test]
fn matrices_without_an_inverse_are_no_basis() {
    assert!(Dense::of(2, vec![1.0, 2.0, 2.0, 4.0]).is_err());
    assert!(Dense::of(2, vec![0.0; 4]).is_err() && Dense::of(1, vec![f32::NAN]).is_err());
    assert!(Dense::of(2, vec![1.0; 3]).is_err());
    let swap = Dense::of(2, vec![0.0, 2.0, 4.0, 0.0]).unwrap();
    assert_eq!(swap.inverse_matrix(), [0.0, 0.25, 0.5, 0.0]);
}
