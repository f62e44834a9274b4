//! Packed products and rows of tables.

use super::{Random, close, floats, gpu, padded, run};
use crate::arithmetic::Arithmetic;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::product::Epilogue;
use crate::weights::{GROUP, Matrix, Place, WEIGHT_TYPES};
use half::f16;
use kvant_model::{DType, Tensor};

/// A matrix of any type with numbers of about one.
fn tensor(random: &mut Random, dtype: DType, rows: usize, columns: usize) -> Tensor {
    let scale = |random: &mut Random| f16::from_f32(0.02 * (1.5 + random.number())).to_le_bytes();
    let mut bytes = Vec::new();
    for _ in 0..rows * columns / dtype.block_len() {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| random.word() as u8).collect();
        match dtype {
            DType::F32 => block = random.number().to_le_bytes().to_vec(),
            DType::F16 => block = f16::from_f32(random.number()).to_le_bytes().to_vec(),
            DType::BF16 => block = half::bf16::from_f32(random.number()).to_le_bytes().to_vec(),
            DType::MXFP4 => block[0] = 120 + block[0] % 8,
            DType::Q6_K => block[208..].copy_from_slice(&scale(random)),
            DType::Q3_K => block[108..].copy_from_slice(&scale(random)),
            DType::Q8_K => block[..4].copy_from_slice(&0.02f32.to_le_bytes()),
            DType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale = 40 + *scale % 16),
            DType::Q2_K => {
                block[80..82].copy_from_slice(&scale(random));
                block[82..].copy_from_slice(&scale(random));
            }
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => {
                block[..2].copy_from_slice(&scale(random));
                block[2..4].copy_from_slice(&scale(random));
            }
            _ => block[..2].copy_from_slice(&scale(random)),
        }
        bytes.extend(block);
    }
    Tensor::new("w", dtype, vec![rows, columns], bytes.into()).unwrap()
}

struct Case {
    tensor: Tensor,
    x: Vec<f32>,
    bias: Vec<f32>,
    before: Vec<f32>,
    tokens: usize,
}

impl Case {
    fn new(random: &mut Random, dtype: DType, rows: usize, columns: usize, tokens: usize) -> Case {
        Case {
            tensor: tensor(random, dtype, rows, columns),
            x: random.numbers(tokens * columns),
            bias: random.numbers(rows),
            before: random.numbers(tokens * rows),
            tokens,
        }
    }

    /// keep · y + scale · (W x + b), rows of `tokens` at once.
    fn product(&self, gpu: &Gpu, epilogue: Epilogue, at_once: usize) -> Vec<f32> {
        let (rows, columns) = (self.tensor.rows(), self.tensor.columns());
        let matrix = Matrix::upload(gpu, std::slice::from_ref(&self.tensor)).unwrap();
        let stride = columns.next_multiple_of(GROUP);
        let bias = Buffer::of_floats(gpu, "bias", &self.bias);
        let mut found = Vec::new();
        for (x, before) in self.x.chunks(at_once * columns).zip(self.before.chunks(at_once * rows)) {
            let x_buffer = Buffer::of_floats(gpu, "x", &padded(x, columns, stride));
            let y_buffer = Buffer::of_floats(gpu, "y", before);
            let x_place = Place { buffer: &x_buffer, stride, at: 0 };
            let y_place = Place { buffer: &y_buffer, stride: rows, at: 0 };
            let tokens = before.len() / rows;
            run(gpu, |recorder| matrix.multiply(recorder, tokens, x_place, Some(&bias), y_place, epilogue));
            found.extend(floats(gpu, &y_buffer, before.len()));
        }
        found
    }

    fn check(&self, gpu: &Gpu) {
        let (rows, columns) = (self.tensor.rows(), self.tensor.columns());
        let weights = self.tensor.to_f32().unwrap();
        let epilogue = Epilogue { keep: 0.5, scale: 2.0, cap: None };
        let found = self.product(gpu, epilogue, self.tokens);
        for (n, found) in found.iter().enumerate() {
            let (token, row) = (n / rows, n % rows);
            let (weights, x) = (&weights[row * columns..][..columns], &self.x[token * columns..][..columns]);
            let products = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let truth = 0.5 * f64::from(self.before[n]) + 2.0 * (sum + f64::from(self.bias[row]));
            let what = format!(
                "{} {rows}×{columns}, token {token} of {}, row {row}",
                self.tensor.dtype(),
                self.tokens
            );
            let rounding = 2.0 * self.rounding(gpu.arithmetic(), weights, x, size);
            close(*found, truth, 1e-6 * (size + 2.0) + rounding, &what);
        }
        // A token's bits do not depend on those beside it, where few and many share an arithmetic.
        if self.tokens <= 8 || gpu.arithmetic() == Arithmetic::default() {
            assert_eq!(found, self.product(gpu, epilogue, 1), "{}", self.tensor.dtype());
        }
        let alone = &self.product(gpu, epilogue, self.tokens)[..rows];
        assert_eq!(&found[..rows], alone, "{} again", self.tensor.dtype());
    }

    /// What an arithmetic that is not f32 may add to the error of W x: weights and numbers of x in f16, each off by 2⁻¹¹ of itself, or
    /// numbers of x in 16 bits, off by half a step of the largest among 16, and codes that were shifted before they were summed.
    fn rounding(&self, arithmetic: Arithmetic, weights: &[f32], x: &[f32], size: f64) -> f64 {
        let codes = !matches!(self.tensor.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::MXFP4);
        match (self.tokens <= 8, arithmetic) {
            (true, Arithmetic { dots: true, .. }) if codes => {
                let steps = weights.chunks(16).zip(x.chunks(16)).map(|(weights, x)| {
                    let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let sum: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
                    f64::from(largest) / 65278.0 * sum
                });
                steps.sum::<f64>() + 3e-6 * size
            }
            (false, Arithmetic { matrices: Some(_), .. }) => 1.01 / 1024.0 * size + 1e-6,
            _ => 0.0,
        }
    }
}

/// The device with f32 in one order, and with what is faster.
fn both_ways(gpu: &Gpu) -> [Gpu; 2] {
    [Arithmetic::default(), Arithmetic::FAST].map(|arithmetic| gpu.reopened(arithmetic).unwrap())
}

#[test]
pub(super) fn products_are_those_of_the_decoded_weights() {
    let Some(gpu) = gpu() else { return };
    both_ways(&gpu).iter().for_each(products_of_every_type);
}

fn products_of_every_type(gpu: &Gpu) {
    let random = &mut Random::new(1);
    for dtype in WEIGHT_TYPES {
        let widths: &[usize] = match dtype.block_len() {
            1 => &[1, 33, 96, 545],
            32 => &[32, 96, 544],
            _ => &[256, 1024],
        };
        for (index, &columns) in widths.iter().enumerate() {
            let (rows, tokens) = ([1, 7, 67, 30][index], [3, 1, 9, 5][index]);
            Case::new(random, dtype, rows, columns, tokens).check(gpu);
        }
    }
}

/// Long rows, and more of them than a workgroup has.
#[test]
fn products_of_many_rows_and_tokens() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(5);
    let shapes = [
        (DType::Q4_0, 37, 4480, 2),
        (DType::Q6_K, 9, 2048, 1),
        (DType::Q4_K, 70, 256, 70),
        (DType::F16, 35, 64, 140),
    ];
    let cases = shapes.map(|(dtype, rows, columns, tokens)| Case::new(random, dtype, rows, columns, tokens));
    for gpu in both_ways(&gpu) {
        cases.iter().for_each(|case| case.check(&gpu));
    }
}

#[test]
fn matrices_side_by_side_are_one() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(2);
    let parts = [tensor(random, DType::Q8_0, 5, 64), tensor(random, DType::Q8_0, 2, 64)];
    let matrix = Matrix::upload(&gpu, &parts).unwrap();
    let x = random.numbers(64);
    let (x_buffer, y_buffer) = (Buffer::of_floats(&gpu, "x", &x), Buffer::new(&gpu, "y", 4 * 7));
    let x_place = Place { buffer: &x_buffer, stride: 64, at: 0 };
    let y_place = Place { buffer: &y_buffer, stride: 7, at: 0 };
    run(&gpu, |recorder| matrix.multiply(recorder, 1, x_place, None, y_place, Epilogue::STORE));
    let weights = [parts[0].to_f32().unwrap(), parts[1].to_f32().unwrap()].concat();
    for (row, found) in weights.chunks(64).zip(floats(&gpu, &y_buffer, 7)) {
        let truth = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        close(found, truth, 1e-3, "row");
    }
    let others = [tensor(random, DType::Q8_0, 5, 64), tensor(random, DType::F16, 2, 64)];
    assert!(Matrix::upload(&gpu, &others).is_err());
    let bytes = Tensor::new("w", DType::F8_E4M3, vec![2, 64], vec![0x38; 128].into()).unwrap();
    let refused = Matrix::upload(&gpu, &[bytes]).err().unwrap().to_string();
    assert!(refused.contains("F8_E4M3") && refused.contains("Q4_K"), "{refused}");
}

#[test]
fn rows_of_tables_are_the_decoded_ones() {
    let Some(gpu) = gpu() else { return };
    let random = &mut Random::new(3);
    for (dtype, columns) in [(DType::F32, 37), (DType::Q6_K, 512), (DType::Q4_0, 96)] {
        let table = tensor(random, dtype, 11, columns);
        let matrix = Matrix::upload(&gpu, std::slice::from_ref(&table)).unwrap();
        let (ids, positions) = ([3u32, 10, 0, 3], [0u32, 1, 2, 3]);
        let learned = random.numbers(4 * columns);
        let plan = Buffer::of_words(&gpu, "plan", &[ids, positions].concat());
        let learned_buffer = Buffer::of_floats(&gpu, "positions", &learned);
        let stride = columns.next_multiple_of(GROUP);
        let x = Buffer::new(&gpu, "x", 4 * 4 * stride);
        let place = Place { buffer: &x, stride, at: 0 };
        run(&gpu, |recorder| {
            matrix.gather(recorder, 4, (&plan, 0), 1.5, Some((&learned_buffer, 4)), place);
        });
        let (found, weights) = (floats(&gpu, &x, 4 * stride), table.to_f32().unwrap());
        for (token, id) in ids.iter().enumerate() {
            for c in 0..columns {
                let truth = 1.5 * f64::from(weights[*id as usize * columns + c])
                    + f64::from(learned[token * columns + c]);
                close(found[token * stride + c], truth, 1e-6 * (1.0 + truth.abs()), "embedding");
            }
        }
    }
}
