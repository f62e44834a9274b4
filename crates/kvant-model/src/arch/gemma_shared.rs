//! What Gemma 3n and Gemma 4 share: inputs of each layer's own, and layers that attend to keys and values of earlier ones.

use crate::arch::{Scope, common};
use crate::config::{Key, ModelConfig};
use crate::description::{Activation, PerLayerEmbedding, PerLayerInput};
use crate::error::Result;
use kvant_cache::KvSlot;
use std::cell::Cell;

/// Width of a layer's own input.
pub const INPUT_WIDTH: Key = Key("hidden_size_per_layer_input", "embedding_length_per_layer_input");

/// The slots of layers that have keys and values of their own; those of the last layers are views of them.
pub struct SharedSlots {
    /// Layers from this one on attend to keys and values of earlier ones.
    pub first_shared: usize,
    layers: usize,
    full: Cell<Option<KvSlot>>,
    sliding: Cell<Option<KvSlot>>,
}

impl SharedSlots {
    pub fn read(config: &ModelConfig<'_>, layers: usize) -> Result<Self> {
        let shared = config.count(Key("num_kv_shared_layers", "attention.shared_kv_layers"))?.unwrap_or(0);
        Ok(Self {
            first_shared: layers.saturating_sub(shared),
            layers,
            full: Cell::default(),
            sliding: Cell::default(),
        })
    }

    /// True where some layer attends to the keys and values of another.
    pub fn is_viewed(&self) -> bool {
        self.first_shared < self.layers
    }

    fn last(&self, window: Option<usize>) -> &Cell<Option<KvSlot>> {
        if window.is_some() { &self.sliding } else { &self.full }
    }

    /// A layer got a slot.
    pub fn opened(&self, window: Option<usize>, slot: KvSlot) {
        self.last(window).set(Some(slot));
    }

    /// A view of the last earlier slot of the same kind, for a layer without keys and values of its own.
    pub fn view(&self, layer: &Scope<'_>, index: usize, window: Option<usize>) -> Option<KvSlot> {
        let of = self.last(window).get().filter(|_| index >= self.first_shared)?;
        Some(layer.slots(|slots| slots.view(index, of)))
    }
}

/// The window of every layer: by `layer_types`, by GGUF's list of layers that slide, or all but every `period`-th.
pub fn windows(config: &ModelConfig<'_>, layers: usize, period: usize) -> Result<Vec<Option<usize>>> {
    let slides = config.layer_flags(Key("", "attention.sliding_window_pattern"), layers)?;
    common::windows(config, layers, |layer| match &slides {
        Some(slides) => slides[layer],
        None => !(layer + 1).is_multiple_of(period),
    })
}

/// A layer's own input.
pub fn layer_input(
    layer: &Scope<'_>,
    index: usize,
    hidden: usize,
    width: usize,
    activation: Activation,
) -> Result<PerLayerInput> {
    Ok(PerLayerInput {
        layer: index,
        gate: layer.linear(("per_layer_input_gate", "inp_gate"), width, hidden, false)?,
        activation,
        output: layer.linear(("per_layer_projection", "proj"), hidden, width, false)?,
    })
}

/// The inputs of all layers.
pub fn layer_inputs(
    scope: &Scope<'_>,
    layers: usize,
    hidden: usize,
    width: usize,
    eps: f32,
) -> Result<PerLayerEmbedding> {
    let all = width.saturating_mul(layers);
    let name = ("model.embed_tokens_per_layer", "per_layer_token_embd");
    let vocabulary = scope.size_or_rows(Key("vocab_size_per_layer_input", ""), name)?;
    let norm = ("model.per_layer_projection_norm", "per_layer_proj_norm");
    Ok(PerLayerEmbedding {
        width,
        table: scope.weight(name, &[vocabulary, all])?,
        table_scale: (width as f32).sqrt(),
        projection: scope.linear(
            ("model.per_layer_model_projection", "per_layer_model_proj"),
            all,
            hidden,
            false,
        )?,
        projection_scale: 1.0 / (hidden as f32).sqrt(),
        norm: scope.rms_norm(norm, width, eps, 0.0)?,
        scale: std::f32::consts::FRAC_1_SQRT_2,
    })
}
