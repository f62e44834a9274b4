//! Layers: what is added to the residual stream, and in which order.

use crate::blocks::{
    Activations, AltUp, Attention, Ffn, GatedDeltaNet, LatentAttention, Laurel, Linear, Mamba2, Norm,
    PerLayerInput, ShortConv, for_each_row,
};
use crate::pass::CpuPass;
use kvant_cache::{KvSlot, StateError};

/// One layer.
pub struct Layer {
    /// One after another.
    pub residuals: Vec<Residual>,
    /// Multiplier of the stream in the end.
    pub scale: Option<f32>,
    /// What it does with several streams.
    pub altup: Option<AltUp>,
}

/// `x = keep · x + scale · after(Σ branches)`.
pub struct Residual {
    /// Of the same `x`, in the order in which they are added.
    pub branches: Vec<Branch>,
    /// A norm of their sum.
    pub after: Option<Norm>,
    /// Multiplier of what is added.
    pub scale: f32,
    /// Multiplier of what was there.
    pub keep: f32,
}

/// `scale · after(mixer(input_scale · norm(x)))`.
pub struct Branch {
    /// Before the mixer.
    pub norm: Option<Norm>,
    /// Multiplier of the mixer's input.
    pub input_scale: f32,
    /// What it computes.
    pub mixer: Mixer,
    /// After it.
    pub after: Option<Norm>,
    /// Multiplier of what it gives.
    pub scale: f32,
}

/// A block from the residual stream to the residual stream.
pub enum Mixer {
    /// Softmax attention.
    Attention(Box<Attention>),
    /// Softmax attention over latents (MLA).
    LatentAttention(Box<LatentAttention>),
    /// A gated short convolution.
    ShortConv(Box<ShortConv>),
    /// A Mamba-2 state space model.
    Mamba2(Box<Mamba2>),
    /// Linear attention by the gated delta rule.
    GatedDeltaNet(Box<GatedDeltaNet>),
    /// A feed-forward layer.
    Ffn(Ffn),
    /// The layer's own input, through a gate.
    PerLayerInput(Box<PerLayerInput>),
    /// A linear layer of low rank, around which its input is added.
    Laurel(Box<Laurel>),
}

impl Layer {
    /// Changes the residual streams, `(tokens, hidden)` each.
    pub fn forward(
        &self,
        streams: &mut Vec<Activations>,
        pass: &mut CpuPass<'_, '_>,
    ) -> Result<(), StateError> {
        let Some(altup) = &self.altup else { return self.residuals(&mut streams[0], pass) };
        let predicted = altup.predicted(streams);
        let mut x = predicted[altup.active].clone();
        self.residuals(&mut x, pass)?;
        *streams = altup.corrected(predicted, &x, pass);
        Ok(())
    }

    fn residuals(&self, x: &mut Activations, pass: &mut CpuPass<'_, '_>) -> Result<(), StateError> {
        self.residuals.iter().try_for_each(|residual| residual.forward(x, pass))?;
        if let Some(by) = self.scale {
            scale(x, by);
        }
        Ok(())
    }

    /// What turns the sums of its attentions over the slots that `reads` names into the residual stream.
    pub fn output_weights(&self, reads: impl Fn(KvSlot) -> bool) -> impl Iterator<Item = Activations> {
        let branches = self.residuals.iter().flat_map(|residual| &residual.branches);
        branches.filter_map(move |branch| match &branch.mixer {
            Mixer::Attention(of) => reads(of.slot).then(|| of.output.weights()),
            Mixer::LatentAttention(of) => reads(of.slot).then(|| of.output_weights()),
            Mixer::ShortConv(_)
            | Mixer::Mamba2(_)
            | Mixer::GatedDeltaNet(_)
            | Mixer::Ffn(_)
            | Mixer::PerLayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }
}

impl Residual {
    fn forward(&self, x: &mut Activations, pass: &mut CpuPass<'_, '_>) -> Result<(), StateError> {
        let results =
            self.branches.iter().map(|branch| branch.forward(x, pass)).collect::<Result<Vec<_>, _>>()?;
        if self.keep != 1.0 {
            scale(x, self.keep);
        }
        let Some(after) = &self.after else {
            results.iter().for_each(|result| x.add_scaled(result, self.scale));
            return Ok(());
        };
        let mut results = results.into_iter();
        if let Some(mut sum) = results.next() {
            results.for_each(|result| sum.add_scaled(&result, 1.0));
            after.in_place(&mut sum);
            x.add_scaled(&sum, self.scale);
        }
        Ok(())
    }
}

impl Branch {
    fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let mut normed = self.norm.as_ref().map(|norm| norm.forward(x));
        if self.input_scale != 1.0 {
            scale(normed.get_or_insert_with(|| x.clone()), self.input_scale);
        }
        let input = normed.as_ref().unwrap_or(x);
        let mut y = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(input, pass)?,
            Mixer::LatentAttention(attention) => attention.forward(input, pass)?,
            Mixer::ShortConv(conv) => conv.forward(input, pass)?,
            Mixer::Mamba2(mamba) => mamba.forward(input, pass)?,
            Mixer::GatedDeltaNet(net) => net.forward(input, pass)?,
            Mixer::Ffn(ffn) => ffn.forward(input, x),
            Mixer::PerLayerInput(own) => own.forward(input, pass),
            Mixer::Laurel(laurel) => laurel.forward(input),
        };
        if let Some(after) = &self.after {
            after.in_place(&mut y);
        }
        if self.scale != 1.0 {
            scale(&mut y, self.scale);
        }
        Ok(y)
    }
}

fn scale(x: &mut Activations, by: f32) {
    let width = x.width();
    for_each_row(x.data_mut(), width, |_, row| row.iter_mut().for_each(|x| *x *= by));
}

/// From the last activations to logits.
pub struct Head {
    /// After the last layer.
    pub norm: Norm,
    /// To the vocabulary.
    pub output: Linear,
    /// Multiplier of the logits.
    pub scale: f32,
    /// Logits `z` become `cap · tanh(z / cap)`.
    pub soft_cap: Option<f32>,
}

impl Head {
    /// `(rows, hidden)`, normed, to `(rows, vocabulary)`.
    pub fn forward(&self, hidden: &Activations) -> Activations {
        let mut logits = self.output.forward(hidden);
        let width = logits.width();
        let Self { scale, soft_cap, .. } = *self;
        for_each_row(logits.data_mut(), width, |_, row| {
            row.iter_mut().for_each(|z| *z *= scale);
            if let Some(cap) = soft_cap {
                row.iter_mut().for_each(|z| *z = cap * (*z / cap).tanh());
            }
        });
        logits
    }
}
