//! Quantising on load: every code is the best one for the stored scale.

use half::f16;
use kvant_model::quant::{dequantize_row, quantize_row, quantize_tensor};
use kvant_model::{DType, Tensor};
use proptest::prelude::*;

fn round_trip(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    quantize_row(dtype, values, &mut bytes).unwrap();
    let mut back = vec![0.0; values.len()];
    dequantize_row(dtype, &bytes, &mut back).unwrap();
    (bytes, back)
}

fn weights() -> impl Strategy<Value = Vec<f32>> {
    let group = (
        prop_oneof![Just(1.0f32), Just(1e-3), Just(1e-9), Just(100.0)],
        prop::array::uniform32(-1.0f32..1.0),
    );
    prop::collection::vec(group, 1..5)
        .prop_map(|groups| groups.into_iter().flat_map(|(size, group)| group.map(|x| x * size)).collect())
}

proptest! {
    #[test]
    fn no_other_code_would_be_closer(values in weights()) {
        for (dtype, codes) in [(DType::Int8G32, -127..=127), (DType::Int4G32, -8..=7)] {
            let (bytes, back) = round_trip(dtype, &values);
            for (i, (&x, &y)) in values.iter().zip(&back).enumerate() {
                let block = &bytes[i / 32 * dtype.block_bytes()..];
                let d = f16::from_le_bytes([block[0], block[1]]).to_f64();
                let best = codes.clone().map(|q| (d * f64::from(q) - f64::from(x)).abs()).fold(f64::MAX, f64::min);
                let error = (f64::from(y) - f64::from(x)).abs();
                prop_assert!(error <= best + 1e-6 * d.abs(), "{dtype} value {i}: {y} for {x}, d {d}");
            }
        }
    }

    #[test]
    fn int4_scale_is_the_signed_maximum_over_minus_eight(values in prop::array::uniform32(-1.0f32..1.0)) {
        let (bytes, _) = round_trip(DType::Int4G32, &values);
        let extreme = values.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
        prop_assert_eq!(f16::from_le_bytes([bytes[0], bytes[1]]), f16::from_f32(extreme / -8.0));
        let at = values.iter().position(|&v| v == extreme).unwrap();
        let code = bytes[2 + at % 16] >> (4 * (at / 16)) & 15;
        prop_assert_eq!(code, 0);
    }
}

#[test]
fn a_group_of_zeros_stays_zero() {
    for dtype in [DType::Int8G32, DType::Int4G32] {
        assert_eq!(round_trip(dtype, &[0.0; 64]).1, [0.0; 64]);
    }
}

#[test]
fn what_cannot_be_quantised_is_refused() {
    let mut bytes = [0; 34];
    for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut values = [0.5; 32];
        values[7] = bad;
        assert!(quantize_row(DType::Int8G32, &values, &mut bytes).is_err(), "{bad}");
        assert!(quantize_row(DType::Int4G32, &values, &mut bytes[..18]).is_err(), "{bad}");
    }
    assert!(quantize_row(DType::Q4_K, &[0.0; 32], &mut bytes).is_err());
    assert!(quantize_row(DType::Int8G32, &[0.0; 31], &mut bytes).is_err());
    let narrow = Tensor::from_f32("narrow", vec![2, 24], &[0.0; 48]).unwrap();
    assert!(quantize_tensor(&narrow, DType::Int8G32).unwrap_err().to_string().contains("narrow"));
}

#[test]
fn a_tensor_keeps_its_shape_and_name() {
    let values: Vec<f32> = (0..3 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
    let tensor = Tensor::from_f32("w", vec![3, 64], &values).unwrap();
    for (dtype, bound) in [(DType::Int8G32, 1.0 / 254.0), (DType::Int4G32, 1.0 / 8.0)] {
        let quantised = quantize_tensor(&tensor, dtype).unwrap();
        assert_eq!((quantised.name(), quantised.shape(), quantised.dtype()), ("w", &[3, 64][..], dtype));
        for (x, y) in values.iter().zip(quantised.to_f32().unwrap()) {
            assert!((x - y).abs() <= bound * 1.01, "{dtype}: {y} for {x}");
        }
    }
}
