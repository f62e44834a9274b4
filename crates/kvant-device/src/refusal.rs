//! What of a model does not run on a device: refused by name, before anything is uploaded.

use kvant_model::description::{Attention, Description, Layer, Mixer, Mlp};
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

/// Blocks beside plain attention, MLPs and mixtures of experts that a backend may run: those it does not run are refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Attention whose outputs go through a gate.
    pub output_gates: bool,
    /// Queries that grow with their position.
    pub query_gains: bool,
    /// MLPs whose gates are cut at a quantile.
    pub sparse_gates: bool,
    /// Experts in a narrower space.
    pub narrow_experts: bool,
    /// Inputs of each layer's own.
    pub per_layer_inputs: bool,
    /// Several residual streams, and LAuReL beside them.
    pub streams: bool,
    /// Short convolutions.
    pub short_convolutions: bool,
    /// Mamba-2 mixers.
    pub mamba2: bool,
    /// Gated DeltaNets.
    pub delta_nets: bool,
}

impl Blocks {
    /// All of them: a backend names those that it does not run.
    pub const ALL: Blocks = Blocks {
        output_gates: true,
        query_gains: true,
        sparse_gates: true,
        narrow_experts: true,
        per_layer_inputs: true,
        streams: true,
        short_convolutions: true,
        mamba2: true,
        delta_nets: true,
    };
}

const PER_LAYER: &str = "inputs of each layer's own (per-layer embeddings)";
const STREAMS: &str = "several residual streams (AltUp)";

/// Refuses blocks that the backend does not run, and what `mixer` and then `layer` say of the others, layer by layer.
///
/// # Errors
/// Names the first.
pub fn check_layers(
    of: &Description,
    runs: Blocks,
    mixer: impl Fn(&Mixer) -> Result<(), String>,
    layer: impl Fn(&Layer) -> Result<(), String>,
) -> Result<(), Refusal> {
    if of.embedding.per_layer.is_some() && !runs.per_layer_inputs {
        return Err(Refusal::model(PER_LAYER));
    }
    if of.embedding.streams.is_some() && !runs.streams {
        return Err(Refusal::model(STREAMS));
    }
    for (index, own) in of.layers.iter().enumerate() {
        let refuse = |what| Refusal::layer(what, index);
        if own.altup.is_some() && !runs.streams {
            return Err(refuse(STREAMS.to_owned()));
        }
        own.mixers().try_for_each(|of| common(of, runs).and_then(|()| mixer(of))).map_err(refuse)?;
        layer(own).map_err(refuse)?;
    }
    Ok(())
}

/// What a backend that runs these blocks does not run.
fn common(mixer: &Mixer, runs: Blocks) -> Result<(), String> {
    use kvant_model::description::Ffn;
    let sparse = |mlp: &Mlp| mlp.sparsity.is_some() && !runs.sparse_gates;
    let what = match mixer {
        Mixer::Attention(of) => return attention(of, runs),
        Mixer::Ffn(Ffn::Dense(mlp)) if sparse(mlp) => "an MLP with sparse gates",
        Mixer::Ffn(Ffn::Experts(of)) if of.experts.is_empty() => "a mixture of no experts",
        Mixer::Ffn(Ffn::Experts(of)) if of.latent.is_some() && !runs.narrow_experts => {
            "experts in a narrower space"
        }
        Mixer::Ffn(Ffn::Experts(of))
            if of.experts.iter().chain(of.shared.as_ref().map(|shared| &shared.mlp)).any(sparse) =>
        {
            "an MLP with sparse gates"
        }
        Mixer::ShortConv(_) if !runs.short_convolutions => "a short convolution",
        Mixer::Mamba2(_) if !runs.mamba2 => "a Mamba-2 mixer",
        Mixer::GatedDeltaNet(_) if !runs.delta_nets => "a gated DeltaNet",
        Mixer::PerLayerInput(_) if !runs.per_layer_inputs => PER_LAYER,
        Mixer::Laurel(_) if !runs.streams => "a LAuReL block",
        Mixer::LatentAttention(_)
        | Mixer::Ffn(_)
        | Mixer::ShortConv(_)
        | Mixer::Mamba2(_)
        | Mixer::GatedDeltaNet(_)
        | Mixer::PerLayerInput(_)
        | Mixer::Laurel(_) => return Ok(()),
    };
    Err(what.to_owned())
}

/// The same of attention. Every field is named, so that whoever adds one decides here whether GPUs refuse it.
fn attention(of: &Attention, runs: Blocks) -> Result<(), String> {
    let Attention {
        gate,
        query_gain,
        slot: _,
        heads: _,
        kv_heads: _,
        key_dim: _,
        value_dim: _,
        window: _,
        projection: _,
        q_norm: _,
        k_norm: _,
        v_norm: _,
        norm_place: _,
        key_scale: _,
        rope: _,
        scale: _,
        soft_cap: _,
        sink_logits: _,
        output: _,
    } = of;
    let what = match (gate, query_gain) {
        (Some(_), _) if !runs.output_gates => "attention with an output gate",
        (_, Some(_)) if !runs.query_gains => "queries that grow with their position",
        _ => return Ok(()),
    };
    Err(what.to_owned())
}
