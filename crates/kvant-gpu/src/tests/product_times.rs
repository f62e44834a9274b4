//! How long the products of a layer of Llama 3 8B take for one token, with weights that come from memory: every product has a matrix
//! that was not read for 200 MB.

use super::{Random, device_time, gpu};
use crate::arithmetic::Arithmetic;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::ops::{Activate, Norm};
use crate::product::{Epilogue, Fused, Target};
use crate::weights::{Matrix, Place};
use kvant_model::description::{Activation, NormKind};
use kvant_model::{DType, Tensor};

/// The environment variable that has times printed.
const PRODUCTS: &str = "KVANT_GPU_PRODUCTS";

/// Bytes that are read before a matrix is read again: more than caches hold.
const APART: usize = 200 << 20;

/// Times that every matrix is read in a measurement.
const ROUNDS: usize = 4;

struct Product {
    name: &'static str,
    outputs: usize,
    inputs: usize,
    has_norm: bool,
    is_gated: bool,
}

const LAYER: [Product; 4] = [
    Product {
        name: "norm, queries keys values",
        outputs: 6144,
        inputs: 4096,
        has_norm: true,
        is_gated: false,
    },
    Product { name: "output", outputs: 4096, inputs: 4096, has_norm: false, is_gated: false },
    Product { name: "norm, gates ups, silu", outputs: 28_672, inputs: 4096, has_norm: true, is_gated: true },
    Product { name: "down", outputs: 4096, inputs: 14_336, has_norm: false, is_gated: false },
];

#[test]
fn product_times() {
    let (Some(gpu), true) = (gpu(), std::env::var_os(PRODUCTS).is_some()) else { return };
    for arithmetic in [Arithmetic::default(), Arithmetic::FAST] {
        let gpu = gpu.reopened(arithmetic).unwrap();
        println!("{}, {arithmetic}\nproduct                        MB      µs   GB/s", gpu.report());
        let sum: f64 = LAYER.iter().map(|product| product.time(&gpu)).sum();
        println!("a layer                              {sum:7.1}");
    }
}

impl Product {
    fn time(&self, gpu: &Gpu) -> f64 {
        let mut random = Random::new(3);
        let bytes = DType::Q4_0.row_bytes(self.inputs).unwrap();
        let scale = half::f16::from_f32(0.01).to_le_bytes();
        let mut row: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
        row.chunks_exact_mut(18).for_each(|block| block[..2].copy_from_slice(&scale));
        let all = row.repeat(self.outputs);
        let size = all.len();
        let tensor = Tensor::new("w", DType::Q4_0, vec![self.outputs, self.inputs], all.into()).unwrap();
        let count = APART.div_ceil(size);
        let matrices: Vec<Matrix> =
            (0..count).map(|_| Matrix::upload(gpu, std::slice::from_ref(&tensor)).unwrap()).collect();
        let x = Buffer::of_floats(gpu, "x", &random.numbers(self.inputs));
        let y = Buffer::new(gpu, "y", 4 * self.outputs);
        let ones = vec![1.0; self.inputs];
        let norm = Norm::new(gpu, NormKind::Rms, self.inputs, Some(&ones), None, 1e-5);
        let activate = Activate { activation: Activation::Silu, gated: true, gate_scale: 1.0, clamp: None };
        let fused = Fused {
            norm: self.has_norm.then_some((&norm, 1.0)),
            activate: self.is_gated.then_some(&activate),
            visits: None,
        };
        let (x_place, y_place) = (
            Place { buffer: &x, stride: self.inputs, at: 0 },
            Place { buffer: &y, stride: self.outputs, at: 0 },
        );
        let all = device_time(gpu, |recorder| {
            for matrix in (0..ROUNDS).flat_map(|_| &matrices) {
                let target = Target { bias: None, y: y_place, epilogue: Epilogue::STORE };
                matrix.multiply_fused(recorder, 1, x_place, target, fused);
            }
        });
        let each = all / (ROUNDS * count) as f64;
        println!("{:28} {:6.1} {each:7.1} {:6.0}", self.name, size as f64 / 1e6, size as f64 / each / 1e3);
        each
    }
}
