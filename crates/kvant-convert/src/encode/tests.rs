//! Encoders against decoders, and against their definitions.

use super::*;
use kvant_model::quant::dequantize_row;
use proptest::prelude::*;

/// Types with bounds on the error of a value: relative to the largest of its block, and what half of the least f16 comes to
/// under the largest codes.
const BOUNDS: [(DType, f32, f32); 11] = [
    (DType::F16, 1e-3, 3e-8),
    (DType::Q8_0, 0.005, 127.0 * 3e-8),
    (DType::Q6_K, 0.04, 128.0 * 32.0 * 3e-8),
    (DType::Q4_0, 0.126, 8.0 * 3e-8),
    (DType::Q4_K, 0.12, 63.0 * 16.0 * 3e-8),
    (DType::MXFP4, 0.25, 1e-30),
    (DType::Q2_K, 0.6, 15.0 * 3.0 * 3e-8),
    (DType::Q3_K, 0.4, 32.0 * 4.0 * 3e-8),
    (DType::Q5_K, 0.06, 63.0 * 32.0 * 3e-8),
    (DType::IQ4_NL, 0.2, 127.0 * 3e-8),
    (DType::IQ4_XS, 0.2, 32.0 * 127.0 * 3e-8),
];

fn encoded(dtype: DType, values: &[f32], importance: Option<&[f32]>) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    encode_row(dtype, values, importance, &mut bytes).unwrap();
    let mut back = vec![0.0; values.len()];
    dequantize_row(dtype, &bytes, &mut back).unwrap();
    (bytes, back)
}

fn error(values: &[f32], back: &[f32], weights: &[f32]) -> f64 {
    let one = |((x, y), w): ((&f32, &f32), &f32)| f64::from(*w) * (f64::from(*x) - f64::from(*y)).powi(2);
    values.iter().zip(back).zip(weights).map(one).sum()
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![8 => -1.0f32..1.0, 1 => Just(0.0f32), 1 => -30.0f32..30.0];
    let exponent = -12i32..12;
    (prop::collection::vec(value, 512), exponent)
        .prop_map(|(row, exponent)| row.into_iter().map(|x| x * 2f32.powi(exponent)).collect())
}

fn weights() -> impl Strategy<Value = Vec<f32>> {
    let weight = prop_oneof![6 => 0.0f32..2.0, 1 => Just(0.0f32), 1 => 10.0f32..1000.0];
    prop::collection::vec(weight, 512)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn values_come_back_within_the_bound_of_their_type(row in row()) {
        for (dtype, bound, least) in BOUNDS {
            let (_, back) = encoded(dtype, &row, None);
            let len = dtype.block_len().max(32);
            for (values, back) in row.chunks(len).zip(back.chunks(len)) {
                let largest = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                for (x, y) in values.iter().zip(back) {
                    prop_assert!((x - y).abs() <= bound * largest + least, "{dtype}: {x} {y} of {largest}");
                }
            }
        }
    }

    #[test]
    fn importance_is_never_worse_under_its_own_error(row in row(), weights in weights()) {
        for (dtype, ..) in BOUNDS {
            let (plain, weighted) = (encoded(dtype, &row, None).1, encoded(dtype, &row, Some(&weights)).1);
            let (plain, weighted) = (error(&row, &plain, &weights), error(&row, &weighted, &weights));
            // The encoder adds in f32.
            prop_assert!(weighted <= plain * (1.0 + 1e-4) + 1e-12, "{dtype}: {weighted} {plain}");
        }
    }

    #[test]
    fn every_instruction_set_stores_the_same_bytes(row in row(), weights in weights()) {
        for (dtype, ..) in BOUNDS {
            for importance in [None, Some(weights.as_slice())] {
                let expected = encoded(dtype, &row, importance).0;
                for tier in Tier::available() {
                    let mut bytes = vec![0; expected.len()];
                    let out = &mut bytes[..];
                    // SAFETY: only tiers that are available.
                    let stored = with_tier!(tier, S => unsafe {
                        S::call(Encode { dtype, values: &row, importance, out })
                    });
                    prop_assert_eq!(stored, Ok(()));
                    prop_assert!(bytes == expected, "{} on {}", dtype, tier);
                }
            }
        }
    }

    /// The reference's formula, one value at a time.
    #[test]
    fn plain_rounding_is_the_references(row in row()) {
        let mut expected = Vec::new();
        for block in row.chunks(32) {
            let largest = block.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
            let d = largest / -8.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            let code = |x: f32| ((x * inverse + 8.5) as i8).min(15) as u8;
            expected.extend(f16::from_f32(d).to_le_bytes());
            expected.extend((0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4));
        }
        prop_assert_eq!(encoded(DType::Q4_0, &row, None).0, expected);
    }

    /// Every number of the format is tried for every value.
    #[test]
    fn mxfp4_takes_the_nearest_number(row in row()) {
        let (bytes, back) = encoded(DType::MXFP4, &row, None);
        for (number, (values, back)) in row.chunks(32).zip(back.chunks(32)).enumerate() {
            let scale = f64::from(mxfp4::power(bytes[17 * number]));
            for (&x, &y) in values.iter().zip(back) {
                let near = mxfp4::MAGNITUDES.iter().flat_map(|&m| [m, -m]);
                let least = near.map(|m| (f64::from(x) - scale * f64::from(m)).abs()).fold(f64::MAX, f64::min);
                prop_assert!(((f64::from(x) - f64::from(y)).abs() - least).abs() <= 1e-7 * scale, "{x} {y}");
            }
        }
    }
}

/// A scale on a fine grid cannot do much better than the one that was found.
#[test]
fn the_search_finds_what_a_fine_grid_finds() {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let (mut found, mut grid) = (0.0, 0.0);
    for _ in 0..200 {
        let row: Vec<f32> = (0..32).map(|_| next() + next() + next() - 1.5).collect();
        let weights: Vec<f32> = (0..32).map(|_| next().powi(4) * 10.0).collect();
        found += error(&row, &encoded(DType::Q4_0, &row, Some(&weights)).1, &weights);
        let of = |d: f32| {
            let back: Vec<f32> = row.iter().map(|x| d * (x / d).round().clamp(-8.0, 7.0)).collect();
            error(&row, &back, &weights)
        };
        grid += (1..2000).flat_map(|i| [of(i as f32 * 2e-4), of(i as f32 * -2e-4)]).fold(f64::MAX, f64::min);
    }
    assert!(found <= 1.04 * grid, "{found} {grid}");
}

#[test]
fn what_cannot_be_stored_is_refused_by_name() {
    let refused = |dtype: DType, x: f32| {
        let mut row = vec![0.5; 256];
        row[40] = x;
        let mut out = vec![0; dtype.row_bytes(256).unwrap()];
        encode_row(dtype, &row, None, &mut out).unwrap_err().to_string()
    };
    assert!(refused(DType::Q4_0, f32::NAN).contains("value 40"));
    assert!(refused(DType::F16, 1e6).contains("40..41"));
    assert!(refused(DType::Q8_0, 1e9).contains("32..64 are too large for Q8_0"));
    assert!(refused(DType::Q4_K, 1e9).contains("Q4_K"));
    assert!(encode_row(DType::IQ3_S, &[0.0; 256], None, &mut [0; 110]).is_err());
    assert!(encode_row(DType::Q4_0, &[0.0; 33], None, &mut [0; 18]).is_err());
}

#[test]
fn zeros_stay_zeros() {
    for (dtype, ..) in BOUNDS {
        for importance in [None, Some(&[1.0f32; 256][..])] {
            assert!(encoded(dtype, &[0.0; 256], importance).1.iter().all(|&x| x == 0.0), "{dtype}");
        }
    }
}

/// A search in f64 that tries every range on its own: codes, the scale and minimum that fit them, other codes, their error; then the
/// nine integers around the wanted ones.
mod naive_q4_k {
    fn codes(x: &[f64], scale: f64, minimum: f64) -> Vec<f64> {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        x.iter().map(|x| ((x + minimum) * inverse).round().clamp(0.0, 15.0)).collect()
    }

    fn error(x: &[f64], w: &[f64], scale: f64, minimum: f64) -> f64 {
        let codes = codes(x, scale, minimum);
        x.iter().zip(w).zip(codes).map(|((x, w), q)| w * (x - (scale * q - minimum)).powi(2)).sum()
    }

    fn group(x: &[f64], w: &[f64]) -> (f64, f64) {
        let (low, high) = x.iter().fold((0.0f64, f64::MIN), |(l, h), &x| (l.min(x), h.max(x)));
        let mut best = ((high - low) / 15.0, -low);
        for step in 0..20 {
            let q = codes(x, (high - low) / (13.8 + 0.12 * f64::from(step)), -low);
            let sum = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(|i| w[i] * f(i)).sum::<f64>();
            let (all, first) = (sum(&|_| 1.0), sum(&|i| x[i]));
            let (sq, sqq, sqx) = (sum(&|i| q[i]), sum(&|i| q[i] * q[i]), sum(&|i| q[i] * x[i]));
            let determinant = all * sqq - sq * sq;
            let offset = (sqq * first - sq * sqx) / determinant;
            let found = match offset > 0.0 {
                true => (sqx / sqq, 0.0),
                false => ((all * sqx - first * sq) / determinant, -offset),
            };
            if found.0 > 0.0 && error(x, w, found.0, found.1) < error(x, w, best.0, best.1) {
                best = found;
            }
        }
        best
    }

    /// The error of a block of 256.
    pub fn least(x: &[f32], w: &[f32]) -> f64 {
        let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (x, w) = (wide(x), wide(w));
        let groups = || x.chunks(32).zip(w.chunks(32));
        let fits: Vec<(f64, f64)> = groups().map(|(x, w)| group(x, w)).collect();
        let half = |x: f64| half::f16::from_f64(x).to_f64();
        let d = half(fits.iter().map(|fit| fit.0).fold(0.0, f64::max) / 63.0);
        let dmin = half(fits.iter().map(|fit| fit.1).fold(0.0, f64::max) / 63.0);
        let beside = |wanted: f64, unit: f64| {
            let nearest = if unit == 0.0 { 0.0 } else { (wanted / unit).round() };
            [-1.0, 0.0, 1.0].map(|step| unit * (nearest + step).clamp(0.0, 63.0))
        };
        let least = |x: &[f64], w: &[f64], fit: (f64, f64)| {
            let pairs = beside(fit.0, d).into_iter().flat_map(|s| beside(fit.1, dmin).map(|m| (s, m)));
            pairs.map(|(s, m)| error(x, w, s, m)).fold(f64::MAX, f64::min)
        };
        groups().zip(fits).map(|((x, w), fit)| least(x, w, fit)).sum()
    }
}

#[test]
fn q4_k_is_no_worse_than_a_naive_search() {
    let mut state = 11u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    for (shape, tail, offset) in [("normal", 1, 0.0), ("heavy tails", 5, 0.0), ("below zero", 1, -6.0)] {
        let (mut plain, mut naive, mut weighed, mut naive_weighed) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..60 {
            let row: Vec<f32> =
                (0..256).map(|_| ((0..6).map(|_| next()).sum::<f32>() - 3.0).powi(tail) + offset).collect();
            let weights: Vec<f32> = (0..256).map(|_| next().powi(4) * 10.0).collect();
            let ones = [1.0; 256];
            plain += error(&row, &encoded(DType::Q4_K, &row, None).1, &ones);
            naive += naive_q4_k::least(&row, &ones);
            weighed += error(&row, &encoded(DType::Q4_K, &row, Some(&weights)).1, &weights);
            naive_weighed += naive_q4_k::least(&row, &weights);
        }
        println!("{shape}: {:.4} plain, {:.4} weighed", plain / naive, weighed / naive_weighed);
        assert!(
            plain <= naive && weighed <= naive_weighed,
            "{shape}: {plain} {naive} {weighed} {naive_weighed}"
        );
    }
}

/// Round-to-nearest from the format's definition, in f64: every group between its ends, its scale and minimum the nearest integers
/// under the largest of the super-block. The error of a block of 256.
mod rounding {
    use kvant_model::DType;

    const LEVELS: [f64; 16] = [
        -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0,
        113.0,
    ];

    fn half(x: f64) -> f64 {
        half::f16::from_f64(x).to_f64()
    }

    fn extreme(x: &[f64]) -> f64 {
        x.iter().fold(0.0, |m: f64, &x| if x.abs() > m.abs() { x } else { m })
    }

    fn affine(x: &[f64], group: usize, most: f64, limit: f64) -> Vec<f64> {
        let ends = |x: &[f64]| x.iter().fold((0.0f64, f64::MIN), |(l, h), &x| (l.min(x), h.max(x)));
        let groups: Vec<(f64, f64)> = x.chunks(group).map(ends).map(|(l, h)| ((h - l) / most, -l)).collect();
        let d = half(groups.iter().map(|g| g.0).fold(0.0, f64::max) / limit);
        let dmin = half(groups.iter().map(|g| g.1).fold(0.0, f64::max) / limit);
        let nearest =
            |x: f64, unit: f64| if unit == 0.0 { 0.0 } else { unit * (x / unit).round().clamp(0.0, limit) };
        let one = |(i, &x): (usize, &f64)| {
            let (scale, minimum) = (nearest(groups[i / group].0, d), nearest(groups[i / group].1, dmin));
            let code = if scale == 0.0 { 0.0 } else { ((x + minimum) / scale).round().clamp(0.0, most) };
            scale * code - minimum
        };
        x.iter().enumerate().map(one).collect()
    }

    fn signed(x: &[f64], group: usize, end: f64, value: impl Fn(f64) -> f64) -> Vec<f64> {
        let wanted: Vec<f64> = x.chunks(group).map(|x| extreme(x) / end).collect();
        let d = half(extreme(&wanted) / -32.0);
        let scale = |g: usize| if d == 0.0 { 0.0 } else { d * (wanted[g] / d).round().clamp(-32.0, 31.0) };
        let one = |(i, &x): (usize, &f64)| {
            let scale = scale(i / group);
            if scale == 0.0 { 0.0 } else { scale * value(x / scale) }
        };
        x.iter().enumerate().map(one).collect()
    }

    fn level(x: f64) -> f64 {
        LEVELS.into_iter().min_by(|a, b| (x - a).abs().total_cmp(&(x - b).abs())).unwrap()
    }

    pub fn error(dtype: DType, x: &[f32]) -> f64 {
        let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let back = match dtype {
            DType::Q2_K => affine(&x, 16, 3.0, 15.0),
            DType::Q5_K => affine(&x, 32, 31.0, 63.0),
            DType::Q3_K => signed(&x, 16, -4.0, |x| x.round().clamp(-4.0, 3.0)),
            DType::IQ4_XS => signed(&x, 32, -127.0, level),
            _ => {
                let group = |x: &[f64]| {
                    let d = half(extreme(x) / -127.0);
                    x.iter().map(|x| if d == 0.0 { 0.0 } else { d * level(x / d) }).collect::<Vec<f64>>()
                };
                x.chunks(32).flat_map(group).collect()
            }
        };
        x.iter().zip(back).map(|(x, y)| (x - y).powi(2)).sum()
    }
}

#[test]
fn searched_scales_are_at_least_as_good_as_round_to_nearest() {
    let mut state = 3u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    for dtype in [DType::Q2_K, DType::Q3_K, DType::Q5_K, DType::IQ4_NL, DType::IQ4_XS] {
        for (shape, tail, offset) in [("normal", 1, 0.0), ("heavy tails", 5, 0.0), ("below zero", 1, -6.0)] {
            let (mut found, mut nearest) = (0.0, 0.0);
            for _ in 0..20 {
                let row: Vec<f32> = (0..256)
                    .map(|_| ((0..6).map(|_| next()).sum::<f32>() - 3.0).powi(tail) + offset)
                    .collect();
                found += error(&row, &encoded(dtype, &row, None).1, &[1.0; 256]);
                nearest += rounding::error(dtype, &row);
            }
            println!("{dtype}, {shape}: {:.3} of round-to-nearest", found / nearest);
            assert!(found <= nearest, "{dtype}, {shape}: {found} {nearest}");
        }
    }
}
