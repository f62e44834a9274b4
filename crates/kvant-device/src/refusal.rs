//! What of a model does not run on a device: refused by name, before anything is uploaded.

use kvant_model::description::{Description, Layer, Mixer, Mlp};
use kvant_model::error::LoadError;

/// What does not run, and in which layer it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    what: String,
    layer: Option<usize>,
}

impl Refusal {
    /// Of the model as a whole.
    pub fn model(what: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), layer: None }
    }

    /// Of one layer.
    pub fn layer(what: impl Into<String>, layer: usize) -> Refusal {
        Refusal { what: what.into(), layer: Some(layer) }
    }

    /// The error for whoever wanted to load it.
    pub fn on(&self, device: &str) -> LoadError {
        let place = self.layer.map_or_else(|| "the model".to_owned(), |layer| format!("layer {layer}"));
        let what = &self.what;
        LoadError::unsupported(format!(
            "{place} has {what}, which {device} does not run; run the model with `--device cpu`"
        ))
    }
}

const PER_LAYER: &str = "inputs of each layer's own (per-layer embeddings)";
const STREAMS: &str = "several residual streams (AltUp)";

/// Refuses what no GPU backend runs, and what `mixer` and then `layer` say of the others, layer by layer.
///
/// # Errors
/// Names the first.
pub fn check_layers(
    of: &Description,
    mixer: impl Fn(&Mixer) -> Result<(), String>,
    layer: impl Fn(&Layer) -> Result<(), String>,
) -> Result<(), Refusal> {
    if of.embedding.per_layer.is_some() {
        return Err(Refusal::model(PER_LAYER));
    }
    if of.embedding.streams.is_some() {
        return Err(Refusal::model(STREAMS));
    }
    for (index, own) in of.layers.iter().enumerate() {
        let refuse = |what| Refusal::layer(what, index);
        if own.altup.is_some() {
            return Err(refuse(STREAMS.to_owned()));
        }
        own.mixers().try_for_each(|of| common(of).and_then(|()| mixer(of))).map_err(refuse)?;
        layer(own).map_err(refuse)?;
    }
    Ok(())
}

/// What no GPU backend runs.
fn common(mixer: &Mixer) -> Result<(), String> {
    use kvant_model::description::Ffn;
    let sparse = |mlp: &Mlp| mlp.sparsity.is_some();
    let what = match mixer {
        Mixer::Attention(of) if of.gate.is_some() => "attention with an output gate",
        Mixer::Attention(of) if of.query_gain.is_some() => "queries that grow with their position",
        Mixer::Ffn(Ffn::Dense(mlp)) if sparse(mlp) => "an MLP with sparse gates",
        Mixer::Ffn(Ffn::Experts(of)) if of.experts.is_empty() => "a mixture of no experts",
        Mixer::Ffn(Ffn::Experts(of)) if of.latent.is_some() => "experts in a narrower space",
        Mixer::Ffn(Ffn::Experts(of))
            if of.experts.iter().chain(of.shared.as_ref().map(|shared| &shared.mlp)).any(sparse) =>
        {
            "an MLP with sparse gates"
        }
        Mixer::ShortConv(_) => "a short convolution",
        Mixer::Mamba2(_) => "a Mamba-2 mixer",
        Mixer::GatedDeltaNet(_) => "a gated DeltaNet",
        Mixer::PerLayerInput(_) => PER_LAYER,
        Mixer::Laurel(_) => "a LAuReL block",
        Mixer::Attention(_) | Mixer::LatentAttention(_) | Mixer::Ffn(_) => return Ok(()),
    };
    Err(what.to_owned())
}
