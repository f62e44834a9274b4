//! How long the products of a layer of Llama 3 8B take for one token, with weights that come from memory: every product has a matrix
//! that was not read for 200 MB.

use super::{Random, device_time, gpu};
use crate::arithmetic::Arithmetic;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::ops::{Activate, Norm};
use crate::product::{Epilogue, Fused, Target};
use crate::recorder::Recorder;
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
        let layer = LAYER.each_ref().map(|product| Ready::new(&gpu, product));
        let sum: f64 = layer.iter().map(Ready::time).sum();
        println!("a layer                              {sum:7.1}");
        // A kernel whose text was not the last one's has to be fetched anew.
        let turns = APART.div_ceil(layer.iter().map(|ready| ready.bytes).sum()) * ROUNDS;
        let all = device_time(&gpu, |recorder| {
            for turn in 0..turns {
                layer.iter().for_each(|ready| ready.record(recorder, turn));
            }
        });
        println!("a layer, one product after another   {:7.1}", all / turns as f64);
    }
}

/// A product with its matrices on a device.
struct Ready<'a> {
    of: &'a Product,
    gpu: &'a Gpu,
    bytes: usize,
    matrices: Vec<Matrix>,
    norm: Norm,
    x: Buffer,
    y: Buffer,
}

impl<'a> Ready<'a> {
    fn new(gpu: &'a Gpu, of: &'a Product) -> Ready<'a> {
        let mut random = Random::new(3);
        let bytes = DType::Q4_0.row_bytes(of.inputs).unwrap();
        let scale = half::f16::from_f32(0.01).to_le_bytes();
        let mut row: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
        row.chunks_exact_mut(18).for_each(|block| block[..2].copy_from_slice(&scale));
        let all = row.repeat(of.outputs);
        let bytes = all.len();
        let tensor = Tensor::new("w", DType::Q4_0, vec![of.outputs, of.inputs], all.into()).unwrap();
        let upload = |_| Matrix::upload(gpu, std::slice::from_ref(&tensor)).unwrap();
        Ready {
            of,
            gpu,
            bytes,
            matrices: (0..APART.div_ceil(bytes)).map(upload).collect(),
            norm: Norm::new(gpu, NormKind::Rms, of.inputs, Some(&vec![1.0; of.inputs]), None, 1e-5),
            x: Buffer::of_floats(gpu, "x", &random.numbers(of.inputs)),
            y: Buffer::new(gpu, "y", 4 * of.outputs),
        }
    }

    /// One product, with the matrix whose turn it is.
    fn record(&self, recorder: &mut Recorder<'_>, turn: usize) {
        let activate = Activate { activation: Activation::Silu, gated: true, gate_scale: 1.0, clamp: None };
        let fused = Fused {
            norm: self.of.has_norm.then_some((&self.norm, 1.0)),
            activate: self.of.is_gated.then_some(&activate),
            visits: None,
        };
        let x = Place { buffer: &self.x, stride: self.of.inputs, at: 0 };
        let y = Place { buffer: &self.y, stride: self.of.outputs, at: 0 };
        let target = Target { bias: None, y, epilogue: Epilogue::STORE };
        self.matrices[turn % self.matrices.len()].multiply_fused(recorder, 1, x, target, fused);
    }

    /// Microseconds of one, alone.
    fn time(&self) -> f64 {
        let count = ROUNDS * self.matrices.len();
        let all = device_time(self.gpu, |recorder| (0..count).for_each(|turn| self.record(recorder, turn)));
        let (each, size) = (all / count as f64, self.bytes as f64);
        println!("{:28} {:6.1} {each:7.1} {:6.0}", self.of.name, size / 1e6, size / each / 1e3);
        each
    }
}
