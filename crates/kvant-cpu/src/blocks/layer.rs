//! Layers: what is added to the residual stream, and in which order.

use crate::blocks::{Activations, Block, Branch, Head, Layer, Residual, for_each_row};
use crate::pass::CpuPass;
use kvant_cache::{KvSlot, StateError};
use kvant_model::description::{Ffn, Mixer, Weights};
use tracing::trace_span;

impl<'a> Block<'a, Layer> {
    /// Changes the residual streams, `(tokens, hidden)` each.
    pub fn forward(
        &self,
        streams: &mut Vec<Activations>,
        pass: &mut CpuPass<'_, '_>,
    ) -> Result<(), StateError> {
        let Some(altup) = self.altup.as_deref().map(Block) else {
            return self.residuals(&mut streams[0], pass);
        };
        let predicted = altup.predicted(streams);
        let mut x = predicted[altup.active].clone();
        self.residuals(&mut x, pass)?;
        *streams = altup.corrected(predicted, &x, pass);
        Ok(())
    }

    fn residuals(&self, x: &mut Activations, pass: &mut CpuPass<'_, '_>) -> Result<(), StateError> {
        self.0.residuals.iter().try_for_each(|residual| Block(residual).forward(x, pass))?;
        if let Some(by) = self.0.scale.as_deref() {
            scale(x, by[0]);
        }
        Ok(())
    }

    /// What turns the sums of its attentions over the slots that `reads` names into the residual stream.
    pub fn output_weights(
        self,
        reads: impl Fn(KvSlot) -> bool + 'a,
    ) -> impl Iterator<Item = Activations> + 'a {
        let branches = self.0.residuals.iter().flat_map(|residual| &residual.branches);
        branches.filter_map(move |branch| match &branch.mixer {
            Mixer::Attention(of) => reads(of.slot).then(|| of.output.weights()),
            Mixer::LatentAttention(of) => reads(of.slot).then(|| Block(&**of).output_weights()),
            Mixer::ShortConv(_)
            | Mixer::Mamba2(_)
            | Mixer::GatedDeltaNet(_)
            | Mixer::Ffn(_)
            | Mixer::PerLayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }
}

impl Block<'_, Residual> {
    fn forward(&self, x: &mut Activations, pass: &mut CpuPass<'_, '_>) -> Result<(), StateError> {
        let results = self
            .branches
            .iter()
            .map(|branch| Block(branch).forward(x, pass))
            .collect::<Result<Vec<_>, _>>()?;
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

impl Block<'_, Branch> {
    fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let _group = trace_span!("mixer", kind = kind(&self.mixer)).entered();
        let mut normed = self.norm.as_ref().map(|norm| norm.forward(x));
        if self.input_scale != 1.0 {
            scale(normed.get_or_insert_with(|| x.clone()), self.input_scale);
        }
        let input = normed.as_ref().unwrap_or(x);
        let mut y = match &self.mixer {
            Mixer::Attention(attention) => Block(&**attention).forward(input, pass)?,
            Mixer::LatentAttention(attention) => Block(&**attention).forward(input, pass)?,
            Mixer::ShortConv(conv) => Block(&**conv).forward(input, pass)?,
            Mixer::Mamba2(mamba) => Block(&**mamba).forward(input, pass)?,
            Mixer::GatedDeltaNet(net) => Block(&**net).forward(input, pass)?,
            Mixer::Ffn(Ffn::Dense(mlp)) => Block(mlp).forward(input, &pass.adapted),
            Mixer::Ffn(Ffn::Experts(moe)) => Block(&**moe).forward(input, x),
            Mixer::PerLayerInput(own) => Block(&**own).forward(input, pass),
            Mixer::Laurel(laurel) => Block(&**laurel).forward(input),
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

/// A mixer's kernels, as traces call them.
fn kind<W: Weights>(mixer: &Mixer<W>) -> &'static str {
    match mixer {
        Mixer::Attention(_) => "attention",
        Mixer::LatentAttention(_) => "latent attention",
        Mixer::ShortConv(_) => "short convolution",
        Mixer::Mamba2(_) => "mamba2",
        Mixer::GatedDeltaNet(_) => "gated delta net",
        Mixer::Ffn(Ffn::Dense(_)) => "ffn",
        Mixer::Ffn(Ffn::Experts(_)) => "experts",
        Mixer::PerLayerInput(_) => "per-layer input",
        Mixer::Laurel(_) => "laurel",
    }
}

fn scale(x: &mut Activations, by: f32) {
    let width = x.width();
    for_each_row(x.data_mut(), width, |_, row| row.iter_mut().for_each(|x| *x *= by));
}

impl Block<'_, Head> {
    /// `(rows, hidden)`, normed, to `(rows, vocabulary)`.
    pub fn forward(&self, hidden: &Activations) -> Activations {
        let mut logits = self.output.forward(hidden);
        let width = logits.width();
        let Head { scale, soft_cap, .. } = *self.0;
        for_each_row(logits.data_mut(), width, |_, row| {
            row.iter_mut().for_each(|z| *z *= scale);
            if let Some(cap) = soft_cap {
                row.iter_mut().for_each(|z| *z = cap * (*z / cap).tanh());
            }
        });
        logits
    }
}
