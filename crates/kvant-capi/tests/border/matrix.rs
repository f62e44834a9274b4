//! Packed products through their C functions, held against naive ones.

use crate::support::{bits, fails, ok, output, rows};
use kvant::*;
use kvant_model::quant::quantize_row;
use kvant_model::{DType, quant};
use std::ptr::{null, null_mut};

const ROWS: usize = 37;
const COLUMNS: usize = 96;
const TOKENS: usize = 5;

fn numbers(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

fn matrix(format: KvantWeights, weights: &[f32]) -> *mut KvantMatrix {
    let mut matrix = null_mut();
    // SAFETY: everything lives.
    ok(unsafe { kvant_matrix_new(format as i32, ROWS, COLUMNS, &rows(weights), &mut matrix) });
    matrix
}

#[test]
fn products_are_those_of_the_quantised_weights() {
    let (weights, x) = (numbers(ROWS * COLUMNS, 0.37), numbers(TOKENS * COLUMNS, 0.11));
    let mut pool = null_mut();
    // SAFETY: it lives.
    ok(unsafe { kvant_pool_new(3, &mut pool) });
    for (format, dtype) in [(KvantWeights::Int4, DType::Int4G32), (KvantWeights::Int8, DType::Int8G32)] {
        let packed = matrix(format, &weights);
        let (mut out, mut alone) = (vec![0.0; TOKENS * ROWS], vec![0.0; ROWS]);
        // SAFETY: everything lives.
        unsafe {
            ok(kvant_matrix_multiply(packed, pool, TOKENS, &rows(&x), &output(&mut out)));
            let last = &x[(TOKENS - 1) * COLUMNS..];
            ok(kvant_matrix_multiply(packed, null(), 1, &rows(last), &output(&mut alone)));
            assert!(kvant_matrix_bytes(packed) >= ROWS * dtype.row_bytes(COLUMNS).unwrap());
            kvant_matrix_free(packed);
        }
        assert_eq!(bits(&alone), bits(&out[(TOKENS - 1) * ROWS..]), "a token is the same alone");
        for row in 0..ROWS {
            let mut bytes = vec![0; dtype.row_bytes(COLUMNS).unwrap()];
            let mut back = vec![0.0; COLUMNS];
            quantize_row(dtype, &weights[row * COLUMNS..][..COLUMNS], &mut bytes).unwrap();
            quant::dequantize_row(dtype, &bytes, &mut back).unwrap();
            for token in 0..TOKENS {
                let own = &x[token * COLUMNS..][..COLUMNS];
                let want: f64 = back.iter().zip(own).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let got = f64::from(out[token * ROWS + row]);
                // Activations are rounded to steps of 1/127 of the largest.
                let bound: f64 = back.iter().map(|w| f64::from(w.abs())).sum::<f64>() / 254.0 + 1e-4;
                assert!((got - want).abs() < bound, "{format:?} row {row} token {token}: {got} and {want}");
            }
        }
    }
    // SAFETY: it lives.
    unsafe { kvant_pool_free(pool) };
}

#[test]
fn what_does_not_fit_is_refused() {
    let weights = numbers(ROWS * COLUMNS, 0.37);
    let mut made = null_mut();
    let mut new = |format, rows_of, columns, weights: *const KvantRows| {
        // SAFETY: everything lives.
        unsafe { kvant_matrix_new(format, rows_of, columns, weights, &mut made) }
    };
    let invalid = KvantStatus::InvalidArgument;
    let good = rows(&weights);
    fails(new(7, ROWS, COLUMNS, &good), invalid, &["kvant_weights"]);
    fails(new(0, ROWS, 95, &good), invalid, &["multiple of 32"]);
    fails(new(0, 0, COLUMNS, &good), invalid, &["not a matrix"]);
    fails(new(0, ROWS + 1, COLUMNS, &good), invalid, &["weights", "length"]);
    fails(new(0, usize::MAX / 32, COLUMNS, &good), invalid, &["memory"]);
    fails(new(0, ROWS, COLUMNS, null()), invalid, &["weights is NULL"]);
    let mut broken = weights.clone();
    broken[3 * COLUMNS + 40] = f32::NAN;
    fails(new(1, ROWS, COLUMNS, &rows(&broken)), KvantStatus::BadNumber, &["row 3"]);
    assert!(made.is_null());

    let packed = matrix(KvantWeights::Int8, &weights);
    let x = numbers(COLUMNS, 0.11);
    let mut out = vec![0.0; ROWS];
    // SAFETY: everything lives.
    unsafe {
        let (good, place) = (rows(&x), output(&mut out));
        let (wide, narrow) = (rows(&x[1..]), output(&mut [0.0; 3]));
        fails(kvant_matrix_multiply(null(), null(), 1, &good, &place), invalid, &["matrix is NULL"]);
        fails(kvant_matrix_multiply(packed, null(), 1, &wide, &place), invalid, &["x: ", "length is 95"]);
        fails(kvant_matrix_multiply(packed, null(), 1, &good, &narrow), invalid, &["out: ", "length is 3"]);
        fails(kvant_matrix_multiply(packed, null(), 2, &good, &place), invalid, &["out: "]);
        ok(kvant_matrix_multiply(packed, null(), 0, &good, &place));
        ok(kvant_matrix_multiply(packed, null(), 1, &good, &place));
        kvant_matrix_free(packed);
        assert_eq!(kvant_matrix_bytes(null()), 0);
    }
}
