//! Descriptions made by hand, with random weights.

use kvant_cache::{KvShape, KvSlot, Slots};
use kvant_model::description::{
    Activation, Attention, Description, Embedding, Head, Inner, Layer, Linear, Matrix, Mlp, Norm, NormKind,
    Pairing, Projection, Residual, Rope, RopeId, RopeScaling, TensorRef, Vector,
};
use kvant_model::gguf::{Gguf, Writer};
use kvant_model::{Checkpoint, Tensor};

/// Width of the residual stream.
pub const HIDDEN: usize = 24;
/// Token ids.
pub const VOCABULARY: usize = 40;
/// The usual heads: of queries, of keys and values, and their channels.
pub const HEADS: (usize, usize, usize) = (4, 2, 8);

/// Makes tensors as they are asked for.
pub struct Maker {
    writer: Writer,
    tensors: usize,
    random: u64,
    pub slots: Slots,
    pub ropes: Vec<Rope>,
}

impl Maker {
    pub fn new(seed: u64) -> Self {
        Self {
            writer: Writer::new("handmade"),
            tensors: 0,
            random: seed,
            slots: Slots::new(),
            ropes: Vec::new(),
        }
    }

    /// The next random number within ± 1.
    fn random(&mut self) -> f32 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A tensor of numbers within `centre` ± `spread`.
    pub fn tensor(&mut self, shape: &[usize], centre: f32, spread: f32) -> TensorRef {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| centre + spread * self.random()).collect();
        let name = format!("t{}", self.tensors);
        self.tensors += 1;
        self.writer.tensor(Tensor::from_f32(name.clone(), shape.to_vec(), &values).unwrap());
        TensorRef { name, shape: shape.to_vec() }
    }

    /// A matrix that keeps the size of what it multiplies.
    pub fn matrix(&mut self, outputs: usize, inputs: usize) -> Matrix {
        Matrix::whole(self.tensor(&[outputs, inputs], 0.0, (3.0 / inputs as f32).sqrt()))
    }

    pub fn vector(&mut self, count: usize, centre: f32, spread: f32) -> Vector {
        Vector::whole(self.tensor(&[count], centre, spread))
    }

    /// A linear layer with a bias.
    pub fn linear(&mut self, outputs: usize, inputs: usize) -> Linear {
        let weight = self.matrix(outputs, inputs);
        Linear { bias: Some(self.vector(outputs, 0.0, 0.3)), ..Linear::new(weight) }
    }

    pub fn norm(&mut self, width: usize) -> Norm {
        let weight = Some(self.vector(width, 1.0, 0.5));
        Norm { kind: NormKind::Rms, width, weight, bias: None, eps: 1e-5 }
    }

    pub fn rope(&mut self, dims: usize, pairing: Pairing) -> RopeId {
        self.ropes.push(Rope::new(dims, 100.0, &RopeScaling::None, pairing));
        RopeId(self.ropes.len() - 1)
    }

    pub fn slot(&mut self, layer: usize) -> KvSlot {
        let (_, kv_heads, dim) = HEADS;
        self.slots.keys_values(layer, KvShape { kv_heads, key_dim: dim, value_dim: dim, window: None })
    }

    /// Attention without options, over a slot of its own.
    pub fn attention(&mut self, layer: usize) -> Attention {
        let (heads, kv_heads, dim) = HEADS;
        let projection = Projection::Apart {
            q: self.linear(heads * dim, HIDDEN),
            k: self.linear(kv_heads * dim, HIDDEN),
            v: self.linear(kv_heads * dim, HIDDEN),
        };
        let (slot, rope) = (self.slot(layer), self.rope(dim, Pairing::Halves));
        let output = self.linear(HIDDEN, heads * dim);
        let plain = Attention::plain(slot, (heads, kv_heads), (dim, dim), projection, output);
        Attention { rope: Some(rope), scale: 0.5, ..plain }
    }

    /// A gated MLP without peculiarities.
    pub fn mlp(&mut self, inner: usize) -> Mlp {
        let gated = Inner::Gated { gate: self.linear(inner, HIDDEN), up: self.linear(inner, HIDDEN) };
        Mlp::new(gated, Activation::Silu, self.linear(HIDDEN, inner))
    }

    /// A model of these layers.
    pub fn model(mut self, layers: Vec<Vec<Residual>>) -> Made {
        let description = Description {
            architecture: "handmade",
            hidden: HIDDEN,
            vocabulary: VOCABULARY,
            context: None,
            embedding: Embedding {
                table: self.tensor(&[VOCABULARY, HIDDEN], 0.0, 1.0),
                scale: 1.0,
                positions: None,
                per_layer: None,
                streams: None,
            },
            mtp: None,
            encoder: None,
            head: Head {
                norm: self.norm(HIDDEN),
                output: self.linear(VOCABULARY, HIDDEN),
                scale: 1.0,
                soft_cap: None,
            },
            ropes: self.ropes,
            layers: layers.into_iter().map(Layer::new).collect(),
            slots: self.slots,
            left_out: Vec::new(),
        };
        let gguf = Gguf::from_bytes(self.writer.to_bytes().unwrap()).unwrap();
        Made { description, checkpoint: Checkpoint::from_gguf(gguf) }
    }
}

/// A description and its weights.
pub struct Made {
    pub description: Description,
    pub checkpoint: Checkpoint,
}
