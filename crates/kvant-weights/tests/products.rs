//! Every layout on every instruction set against a naive oracle, and the same bits in every batch.

mod oracle;

use half::{bf16, f16};
use kvant_simd::Tier;
use kvant_threads::Pool;
use kvant_weights::{
    Layout, Matrix, Number, PackError, QuantizedActivations, multiply_all, multiply_dense, multiply_unpacked,
};
use oracle::{Random, decode_row, random_blocks};
use proptest::prelude::*;

/// Products as the crate documents them, one number at a time: exact integers inside a group, then f32 in order.
fn expected(layout: Layout, row: &[u8], x: &QuantizedActivations, token: usize) -> f64 {
    let weights = decode_row(layout, row);
    weights.iter().enumerate().map(|(i, w)| w * f64::from(x.value(token, i))).sum()
}

/// Σ |w·x|, what rounding errors are measured against.
fn magnitude(layout: Layout, row: &[u8], x: &QuantizedActivations, token: usize) -> f64 {
    let weights = decode_row(layout, row);
    weights.iter().enumerate().map(|(i, w)| (w * f64::from(x.value(token, i))).abs()).sum()
}

fn product(tier: Tier, layout: Layout, shape: (usize, usize), blocks: &[u8], x: &[f32]) -> Vec<f32> {
    let (rows, columns) = shape;
    let matrix = Matrix::pack(tier, layout, rows, columns, blocks).unwrap();
    let x = QuantizedActivations::new(tier, x, columns);
    let mut out = vec![f32::NAN; x.tokens() * rows];
    matrix.multiply(&x, &mut out);
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(target_arch = "aarch64") { 4 } else { 24 }))]
    #[test]
    fn products_match_the_definition_and_every_instruction_set_gives_the_same_bits(
        rows in 1usize..40, units in 1usize..4, tokens in 1usize..35, seed in 0u64..1000,
    ) {
        for layout in Layout::ALL {
            let columns = units * layout.block_len();
            let mut random = Random::new(seed);
            let blocks = random_blocks(layout, rows, columns, &mut random);
            let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
            let scalar = product(Tier::Scalar, layout, (rows, columns), &blocks, &x);
            let quantised = QuantizedActivations::new(Tier::Scalar, &x, columns);
            let row_bytes = blocks.len() / rows;
            for row in 0..rows {
                for token in 0..tokens {
                    let own = &blocks[row * row_bytes..][..row_bytes];
                    let want = expected(layout, own, &quantised, token);
                    let got = f64::from(scalar[token * rows + row]);
                    // The unsigned nibbles and their minimum may cancel; the bound is against what is added up.
                    let bound = 4e-6 * magnitude(layout, own, &quantised, token) + 1e-5;
                    prop_assert!((got - want).abs() <= bound, "{layout} row {row} token {token}: {got} {want}");
                }
            }
            for tier in Tier::available() {
                let other = product(tier, layout, (rows, columns), &blocks, &x);
                prop_assert_eq!(bits(&scalar), bits(&other), "{} {}", layout, tier);
            }
        }
    }

    #[test]
    fn activations_are_near_their_values_and_the_same_on_every_instruction_set(
        blocks in 1usize..7, seed in 0u64..1000, size in -30i32..30,
    ) {
        let mut random = Random::new(seed);
        let x: Vec<f32> = (0..blocks * 32).map(|_| random.normal() * 2f32.powi(size)).collect();
        let scalar = QuantizedActivations::new(Tier::Scalar, &x, blocks * 32);
        for (block, values) in x.chunks_exact(32).enumerate() {
            let largest = values.iter().fold(0f32, |a, v| a.max(v.abs()));
            for (i, &value) in values.iter().enumerate() {
                let stored = scalar.value(0, block * 32 + i);
                prop_assert!((stored - value).abs() <= largest / 127.0 * 0.5001, "{stored} {value}");
            }
        }
        for tier in Tier::available() {
            let other = QuantizedActivations::new(tier, &x, blocks * 32);
            prop_assert_eq!(format!("{scalar:?}"), format!("{other:?}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(target_arch = "aarch64") { 8 } else { 48 }))]
    #[test]
    fn plain_numbers_multiply_to_the_definition_and_rows_do_not_meet(
        rows in 1usize..40, columns in 1usize..70, tokens in 1usize..12, seed in 0u64..1000,
    ) {
        let mut random = Random::new(seed);
        let values: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
        let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
        for number in [Number::F32, Number::F16, Number::BF16] {
            let (weights, bytes): (Vec<f32>, Vec<Vec<u8>>) = values.iter().map(|&v| match number {
                Number::F32 => (v, v.to_le_bytes().to_vec()),
                Number::F16 => (f16::from_f32(v).to_f32(), f16::from_f32(v).to_le_bytes().to_vec()),
                Number::BF16 => (bf16::from_f32(v).to_f32(), bf16::from_f32(v).to_le_bytes().to_vec()),
            }).unzip();
            let bytes = bytes.concat();
            for tier in Tier::available() {
                let mut out = vec![f32::NAN; tokens * rows];
                multiply_dense(tier, number, &bytes, columns, &x, &mut out);
                for token in 0..tokens {
                    let own = &x[token * columns..][..columns];
                    let mut alone = vec![f32::NAN; rows];
                    multiply_dense(tier, number, &bytes, columns, own, &mut alone);
                    prop_assert_eq!(bits(&alone), bits(&out[token * rows..][..rows]), "{} {}", tier, number);
                    for row in 0..rows {
                        let pairs = own.iter().zip(&weights[row * columns..][..columns]);
                        let exact: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                        prop_assert!((f64::from(alone[row]) - exact).abs() < 1e-5 * (1.0 + columns as f64));
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(target_arch = "aarch64") { 8 } else { 48 }))]
    #[test]
    fn unpacked_rows_multiply_to_the_definition_with_the_same_bits_everywhere(
        rows in 1usize..90, columns in 1usize..600, tokens in 1usize..30, threads in 1usize..5, seed in 0u64..1000,
    ) {
        let mut random = Random::new(seed);
        let weights: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
        let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
        let unpack = |row: usize, out: &mut [f32]| out.copy_from_slice(&weights[row * columns..][..columns]);
        let mut scalar = vec![f32::NAN; tokens * rows];
        Pool::new(threads)
            .install(|| multiply_unpacked(Tier::Scalar, (rows, columns), unpack, &x, &mut scalar));
        for (token, own) in x.chunks_exact(columns).enumerate() {
            for row in 0..rows {
                let pairs = own.iter().zip(&weights[row * columns..][..columns]);
                let exact: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let near = 1e-6 * (1.0 + columns as f64);
                prop_assert!((f64::from(scalar[token * rows + row]) - exact).abs() < near);
            }
        }
        for tier in Tier::available() {
            let mut out = vec![f32::NAN; tokens * rows];
            multiply_unpacked(tier, (rows, columns), unpack, &x, &mut out);
            prop_assert_eq!(bits(&scalar), bits(&out), "{}", tier);
            let mut alone = vec![f32::NAN; rows];
            multiply_unpacked(tier, (rows, columns), unpack, &x[..columns], &mut alone);
            prop_assert_eq!(bits(&scalar[..rows]), bits(&alone), "{} alone", tier);
        }
    }
}

/// So many tokens that threads share them, the last tile not full: the bits of one thread.
#[test]
fn tokens_that_threads_share_have_the_same_bits() {
    let (rows, tokens) = (83, 16 * 6 * 3 + 5);
    for layout in [Layout::Q4_0, Layout::Q4_1, Layout::Q6K] {
        let columns = layout.block_len();
        let mut random = Random::new(8);
        let blocks = random_blocks(layout, rows, columns, &mut random);
        let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
        for tier in Tier::available() {
            let alone = product(tier, layout, (rows, columns), &blocks, &x);
            for threads in [2, 3] {
                let shared =
                    Pool::new(threads).install(|| product(tier, layout, (rows, columns), &blocks, &x));
                assert_eq!(bits(&alone), bits(&shared), "{layout} {tier} {threads}");
            }
        }
    }
}

/// A token alone, in the middle of a batch, in batches of every size up to a tile, on 1 to 16 threads: the same bits.
#[test]
fn a_token_has_the_same_bits_in_every_batch_and_on_any_number_of_threads() {
    let (rows, tokens) = (83, 67);
    for layout in Layout::ALL {
        let columns = 2 * layout.block_len();
        let mut random = Random::new(7);
        let blocks = random_blocks(layout, rows, columns, &mut random);
        let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
        for tier in Tier::available() {
            let whole = product(tier, layout, (rows, columns), &blocks, &x);
            for threads in [2, 3, 16] {
                let shared =
                    Pool::new(threads).install(|| product(tier, layout, (rows, columns), &blocks, &x));
                assert_eq!(bits(&whole), bits(&shared));
            }
            let few = (1..=16).map(|count| (3 * count, count));
            for (first, count) in few.chain([(66, 1), (20, 17), (1, 33), (0, 48)]) {
                let part = &x[first * columns..][..count * columns];
                let alone = product(tier, layout, (rows, columns), &blocks, part);
                assert_eq!(
                    bits(&whole[first * rows..][..count * rows]),
                    bits(&alone),
                    "{layout} {tier} {count}"
                );
            }
        }
    }
}

/// Matrices of several formats and heights in one region, with few tokens and with many: the bits that each has alone.
#[test]
fn products_together_have_the_bits_of_products_alone() {
    let columns = 256;
    let shapes = [(Layout::Q4K, 83), (Layout::Q6K, 16), (Layout::Q8_0, 5), (Layout::Q4_0, 33)];
    for tier in Tier::available() {
        for tokens in [1, 3, 16, 16 * 6 * 2 + 3] {
            let mut random = Random::new(11);
            let matrices: Vec<Matrix> = shapes
                .iter()
                .map(|&(layout, rows)| {
                    let blocks = random_blocks(layout, rows, columns, &mut random);
                    Matrix::pack(tier, layout, rows, columns, &blocks).unwrap()
                })
                .collect();
            let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
            let x = QuantizedActivations::new(tier, &x, columns);
            let room = |matrix: &Matrix| vec![f32::NAN; tokens * matrix.rows()];
            let alone: Vec<Vec<f32>> = matrices
                .iter()
                .map(|matrix| {
                    let mut out = room(matrix);
                    matrix.multiply(&x, &mut out);
                    out
                })
                .collect();
            for threads in [1, 2, 5] {
                let mut together: Vec<Vec<f32>> = matrices.iter().map(room).collect();
                let mut products: Vec<(&Matrix, &mut [f32])> =
                    matrices.iter().zip(&mut together).map(|(matrix, out)| (matrix, &mut out[..])).collect();
                Pool::new(threads).install(|| multiply_all(&x, &mut products));
                for (alone, together) in alone.iter().zip(&together) {
                    assert_eq!(bits(alone), bits(together), "{tier}, {tokens} tokens, {threads} threads");
                }
            }
        }
    }
    let none = QuantizedActivations::new(Tier::Scalar, &[], 32);
    multiply_all(&none, &mut []);
}

#[test]
fn what_is_not_finite_shows_in_the_products() {
    let layout = Layout::Q4_0;
    let mut random = Random::new(3);
    let blocks = random_blocks(layout, 2, 64, &mut random);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 31, 63] {
            let mut x = vec![1.0; 64];
            x[place] = bad;
            for tier in Tier::available() {
                let out = product(tier, layout, (2, 64), &blocks, &x);
                assert!(out.iter().all(|v| v.is_nan()), "{tier} {bad} at {place}: {out:?}");
            }
        }
    }
}

/// A row for each exponent of MXFP4, from subnormal scales to those beyond f32: one weight of 1, times 127.
#[test]
fn every_exponent_is_its_power_of_two() {
    let blocks: Vec<u8> = (0..=255).flat_map(|e| [&[e, 2][..], &[0; 15]].concat()).collect();
    for tier in Tier::available() {
        let out = product(tier, Layout::MXFP4, (256, 32), &blocks, &[127.0; 32]);
        for (e, found) in out.into_iter().enumerate() {
            let expected = (127.0 * 2f64.powi(e as i32 - 127)) as f32;
            assert_eq!(found.to_bits(), expected.to_bits(), "{tier}: exponent {e}");
        }
    }
}

#[test]
fn zeros_and_tiny_numbers_give_zeros() {
    let mut random = Random::new(5);
    let blocks = random_blocks(Layout::Q8_0, 3, 32, &mut random);
    for x in [0.0, 1e-40] {
        for tier in Tier::available() {
            assert_eq!(product(tier, Layout::Q8_0, (3, 32), &blocks, &[x; 32]), [0.0; 3]);
        }
    }
}

#[test]
fn shapes_and_sizes_that_do_not_fit_are_refused() {
    let pack = |rows, columns, bytes: usize| {
        Matrix::pack(Tier::Scalar, Layout::Q4K, rows, columns, &vec![0; bytes]).err()
    };
    assert!(matches!(pack(0, 256, 0), Some(PackError::Shape { .. })));
    assert!(matches!(pack(1, 0, 0), Some(PackError::Shape { .. })));
    assert!(matches!(pack(1, 128, 72), Some(PackError::Shape { .. })));
    assert!(matches!(pack(usize::MAX, 256, 0), Some(PackError::Shape { .. })));
    let error = pack(2, 256, 144).unwrap();
    assert_eq!(error.to_string(), "2 rows of 256 weights in Q4_K take 288 bytes, not 144");
}
