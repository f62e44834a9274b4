//! A whole model: embedding, layers, head.

use crate::function::{add, capped};
use crate::weights::Weights;
use crate::{attention, ffn, latent, recurrent, streams};
use kvant_cache::{KvSlot, StateSlot};
use kvant_model::description::{
    Branch, Embedding, Head, Layer, Mixer, MtpLayer, Pairing, Residual, RopeId, Vector,
};
use kvant_model::error::Result;
use kvant_model::{AdapterMix, Checkpoint, Description};
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
    /// What the last layer left before the final norm, `(tokens, hidden)`.
    pub stream: Rows,
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
    /// Inputs of each layer's own, `(tokens, layers · width)`.
    pub per_layer: Rows,
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

    /// The same model with LoRA adapters.
    #[must_use]
    pub fn with_adapters(self, adapters: AdapterMix) -> Self {
        Self { weights: self.weights.with(adapters), ..self }
    }

    /// Runs a sequence from its first token on, in a context opened for `capacity` tokens (some models rotate by that).
    pub fn run(&self, tokens: &[u32], capacity: usize) -> Trace {
        let Self { description, weights } = self;
        let mut run = Run { description, weights, capacity, per_layer: Rows::new(), trace: Trace::default() };
        let x: Rows = tokens
            .iter()
            .enumerate()
            .map(|(at, &token)| embed(weights, &description.embedding, token, at))
            .collect();
        if let Some(of) = &description.embedding.per_layer {
            run.per_layer = tokens
                .iter()
                .zip(&x)
                .map(|(&token, x)| streams::per_layer_inputs(weights, of, token, x))
                .collect();
        }
        let mut all = streams::opened(weights, description.embedding.streams.as_ref(), x);
        for layer in &description.layers {
            run.trace.hidden.push(all[0].clone());
            run.layer(layer, &mut all);
        }
        run.trace.stream = streams::joined(weights, description.embedding.streams.as_ref(), all);
        let x: Rows = run.trace.stream.iter().map(|row| weights.norm(&description.head.norm, row)).collect();
        run.trace.logits = x.iter().map(|row| logits(weights, &description.head, row)).collect();
        run.trace.hidden.push(x);
        run.trace
    }

    /// What the head that guesses further tokens makes of what the model left, a row for each of these tokens, each the one after: logits,
    /// and what a guess after each gets. None where there is no head.
    pub fn guess(&self, tokens: &[u32], left: &[Vec<f64>], capacity: usize) -> Option<(Rows, Rows)> {
        let Self { description, weights } = self;
        let mtp = description.mtp.as_ref()?.as_ref().ok()?;
        let MtpLayer {
            table,
            embedding_norm,
            hidden_norm,
            combine,
            hidden_first,
            layer,
            norm,
            output,
            sees_normed: _,
            hands_on_normed,
        } = &mtp.layer;
        // Its layer keeps nothing in slots of the model's.
        let description = &Description { slots: mtp.slots.clone(), ..description.clone() };
        let mut run = Run { description, weights, capacity, per_layer: Rows::new(), trace: Trace::default() };
        let scale = f64::from(description.embedding.scale);
        let combined = |(&token, left): (&u32, &Vec<f64>)| {
            let told: Vec<f64> = weights.row(table, token as usize).iter().map(|x| x * scale).collect();
            let mut both = [weights.norm(embedding_norm, &told), weights.norm(hidden_norm, left)];
            if *hidden_first {
                both.reverse();
            }
            weights.linear(combine, &both.concat())
        };
        let mut all = vec![tokens.iter().zip(left).map(combined).collect::<Rows>()];
        run.layer(layer, &mut all);
        let y = all.swap_remove(0);
        let normed: Rows = y.iter().map(|row| weights.norm(norm, row)).collect();
        let scored = |row: &Vec<f64>| match output {
            Some(output) => weights.linear(output, row),
            None => logits(weights, &description.head, row),
        };
        let scores = normed.iter().map(scored).collect();
        Some((scores, if *hands_on_normed { normed } else { y }))
    }
}

fn embed(weights: &Weights, embedding: &Embedding, token: u32, position: usize) -> Vec<f64> {
    let Embedding { table, scale, positions, per_layer: _, streams: _ } = embedding;
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
    fn layer(&mut self, layer: &Layer, all: &mut Vec<Rows>) {
        let Layer { residuals, scale, altup } = layer;
        let Some(altup) = altup else { return self.residuals(residuals, scale.as_ref(), &mut all[0]) };
        let predicted = streams::predicted(self.weights, altup, all);
        let mut x = predicted[altup.active].clone();
        self.residuals(residuals, scale.as_ref(), &mut x);
        *all = streams::corrected(self, altup, predicted, &x);
    }

    fn residuals(&mut self, residuals: &[Residual], scale: Option<&Vector>, x: &mut Rows) {
        residuals.iter().for_each(|residual| self.residual(residual, x));
        if let Some(scale) = scale {
            let scale = self.weights.vector(scale)[0];
            x.iter_mut().flatten().for_each(|x| *x *= scale);
        }
    }

    /// `x = keep · x + scale · after(Σ branches)`.
    fn residual(&mut self, residual: &Residual, x: &mut Rows) {
        let Residual { branches, after, scale, keep } = residual;
        let mut sum: Rows = x.iter().map(|row| vec![0.0; row.len()]).collect();
        for branch in branches {
            let y = self.branch(branch, x);
            sum.iter_mut().zip(y).for_each(|(sum, y)| add(sum, &y, 1.0));
        }
        for (x, sum) in x.iter_mut().zip(sum) {
            x.iter_mut().for_each(|x| *x *= f64::from(*keep));
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
            Mixer::PerLayerInput(of) => streams::per_layer_input(self, of, &input),
            Mixer::Laurel(of) => input.iter().map(|row| streams::laurel(weights, of, row)).collect(),
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
