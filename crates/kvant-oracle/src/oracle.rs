//! A whole model: embedding, layers, head.

use crate::function::{add, capped};
use crate::weights::Weights;
use crate::{attention, ffn, latent, recurrent};
use kvant_cache::{KvSlot, StateSlot};
use kvant_model::description::{Branch, Embedding, Head, Mixer, Pairing, Residual, RopeId};
use kvant_model::error::Result;
use kvant_model::{Checkpoint, Description};
use std::collections::BTreeMap;

/// One row for each token.
pub type Rows = Vec<Vec<f64>>;

/// A model whose every block is computed by its definition.
pub struct Oracle {
    description: Description,
    weights: Weights,
}

/// All that a run came by.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// `(tokens, vocabulary)`.
    pub logits: Rows,
    /// The input of every layer, `(tokens, hidden)`; last, the output of the last one after the final norm.
    pub hidden: Vec<Rows>,
    /// What attention hands to the slots that hold: keys `(tokens, kv_heads · key_dim)` after norm and rotation; of latents the
    /// rotated parts `(tokens, rope_dim)`.
    pub keys: BTreeMap<KvSlot, Rows>,
    /// Values `(tokens, kv_heads · value_dim)`; of latents the latents `(tokens, latent_dim)`.
    pub values: BTreeMap<KvSlot, Rows>,
    /// What mixers with recurrent state came by.
    pub states: BTreeMap<StateSlot, StateTrace>,
}

/// The recurrent state of a mixer.
#[derive(Debug, Clone, Default)]
pub struct StateTrace {
    /// The inputs of its convolution, `(tokens, channels)`.
    pub conv_inputs: Rows,
    /// After each token the matrix S of each head, one after another; empty for mixers without one.
    pub matrices: Rows,
}

/// What the blocks of a run share.
pub struct Run<'a> {
    pub description: &'a Description,
    pub weights: &'a Weights,
    pub capacity: usize,
    pub trace: Trace,
}

impl Oracle {
    /// Reads the weights of a description.
    ///
    /// # Errors
    /// If a tensor is missing, of another shape or of a type that cannot be read.
    pub fn new(description: &Description, checkpoint: &Checkpoint) -> Result<Self> {
        Ok(Self { description: description.clone(), weights: Weights::read(description, checkpoint)? })
    }

    /// Runs a sequence from its first token on, in a context opened for `capacity` tokens (some models rotate by that).
    pub fn run(&self, tokens: &[u32], capacity: usize) -> Trace {
        let Self { description, weights } = self;
        let mut run = Run { description, weights, capacity, trace: Trace::default() };
        let mut x: Rows = tokens
            .iter()
            .enumerate()
            .map(|(at, &token)| embed(weights, &description.embedding, token, at))
            .collect();
        for layer in &description.layers {
            run.trace.hidden.push(x.clone());
            layer.residuals.iter().for_each(|residual| run.residual(residual, &mut x));
        }
        x = x.iter().map(|row| weights.norm(&description.head.norm, row)).collect();
        run.trace.logits = x.iter().map(|row| logits(weights, &description.head, row)).collect();
        run.trace.hidden.push(x);
        run.trace
    }
}

fn embed(weights: &Weights, embedding: &Embedding, token: u32, position: usize) -> Vec<f64> {
    let Embedding { table, scale, positions } = embedding;
    let mut x: Vec<f64> = weights.row(table, token as usize).iter().map(|x| x * f64::from(*scale)).collect();
    if let Some(positions) = positions {
        add(&mut x, weights.row(positions, position), 1.0);
    }
    x
}

fn logits(weights: &Weights, head: &Head, x: &[f64]) -> Vec<f64> {
    let Head { norm: _, output, scale, soft_cap } = head;
    weights.linear(output, x).iter().map(|z| capped(z * f64::from(*scale), *soft_cap)).collect()
}

impl Run<'_> {
    /// `x += scale · after(Σ branches)`.
    fn residual(&mut self, residual: &Residual, x: &mut Rows) {
        let Residual { branches, after, scale } = residual;
        let mut sum: Rows = x.iter().map(|row| vec![0.0; row.len()]).collect();
        for branch in branches {
            let y = self.branch(branch, x);
            sum.iter_mut().zip(y).for_each(|(sum, y)| add(sum, &y, 1.0));
        }
        for (x, sum) in x.iter_mut().zip(sum) {
            add(x, &self.weights.norm_if(after.as_ref(), sum), f64::from(*scale));
        }
    }

    /// `scale · after(mixer(input_scale · norm(x)))`.
    fn branch(&mut self, branch: &Branch, x: &Rows) -> Rows {
        let Branch { norm, input_scale, mixer, after, scale } = branch;
        let weights = self.weights;
        let input: Rows =
            x.iter().map(|row| scaled(weights.norm_if(norm.as_ref(), row.clone()), *input_scale)).collect();
        let y = match mixer {
            Mixer::Attention(of) => attention::attention(self, of, &input),
            Mixer::LatentAttention(of) => latent::latent_attention(self, of, &input),
            Mixer::ShortConv(of) => recurrent::short_conv(self, of, &input),
            Mixer::Mamba2(of) => recurrent::mamba2(self, of, &input),
            Mixer::GatedDeltaNet(of) => recurrent::gated_delta_net(self, of, &input),
            Mixer::Ffn(of) => {
                input.iter().zip(x).map(|(row, residual)| ffn::ffn(weights, of, row, residual)).collect()
            }
        };
        y.into_iter().map(|row| scaled(weights.norm_if(after.as_ref(), row), *scale)).collect()
    }

    /// Turns the first channels of one head by its position.
    pub fn rotate(&self, rope: Option<RopeId>, head: &mut [f64], position: usize) {
        let Some(RopeId(index)) = rope else { return };
        let rope = &self.description.ropes[index];
        let (pairs, amplitude) = (rope.dims() / 2, f64::from(rope.amplitude()));
        for (i, &frequency) in rope.frequencies(self.capacity).iter().enumerate() {
            let (a, b) = match rope.pairing() {
                Pairing::Halves => (i, i + pairs),
                Pairing::Neighbours => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
            let (x, y) = (head[a], head[b]);
            head[a] = amplitude * (x * cos - y * sin);
            head[b] = amplitude * (y * cos + x * sin);
        }
    }
}

/// A row times a number.
pub fn scaled(mut row: Vec<f64>, by: f32) -> Vec<f64> {
    row.iter_mut().for_each(|x| *x *= f64::from(by));
    row
}
