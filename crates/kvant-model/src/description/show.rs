//! A description in words: a line for each layer, and layers that are alike told once.

use super::{
    Attention, Branch, Description, EncoderLayer, Ffn, GatedDeltaNet, Inner, LatentAttention, Mamba2, Mixer,
    Mlp, Moe, NormKind, OutputGate, Projection, RouterScore, SelfAttention, ShortConv,
};
use kvant_cache::SlotKind;
use std::fmt;

/// Layers that are described by the same words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSummary {
    /// Their numbers, first and last.
    pub layers: (usize, usize),
    /// What every one of them does, block by block.
    pub blocks: Vec<String>,
}

impl fmt::Display for LayerSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layers {
            (first, last) if first == last => write!(f, "{first}: ")?,
            (first, last) => write!(f, "{first}-{last}: ")?,
        }
        f.write_str(&self.blocks.join(" · "))
    }
}

impl Description {
    /// What the layers do, runs of equal ones together.
    pub fn layer_summaries(&self) -> Vec<LayerSummary> {
        let mut found: Vec<LayerSummary> = Vec::new();
        let mut add = |index: usize, blocks: Vec<String>| match found.last_mut() {
            Some(last) if last.blocks == blocks => last.layers.1 = index,
            _ => found.push(LayerSummary { layers: (index, index), blocks }),
        };
        for (index, layer) in self.encoder.iter().flat_map(|encoder| encoder.layers.iter().enumerate()) {
            add(index, encoder_words(layer));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let side_by_side = |branches: &[Branch]| {
                branches.iter().map(|branch| self.words(branch)).collect::<Vec<_>>().join(" ∥ ")
            };
            let mut blocks: Vec<String> =
                layer.residuals.iter().map(|residual| side_by_side(&residual.branches)).collect();
            if let Some(altup) = &layer.altup {
                blocks.insert(0, format!("AltUp over {} streams", altup.correction.outputs()));
                blocks.push(format!("own input of {}", altup.input.gate.outputs()));
            }
            add(index, blocks);
        }
        found
    }

    fn words(&self, branch: &Branch) -> String {
        let mut text = match &branch.mixer {
            Mixer::Attention(attention) => self.attention(attention),
            Mixer::LatentAttention(attention) => latent_words(attention),
            Mixer::ShortConv(short) => short_conv_words(short),
            Mixer::Mamba2(mamba) => mamba_words(mamba),
            Mixer::GatedDeltaNet(net) => delta_words(net),
            Mixer::Ffn(Ffn::Dense(mlp)) => mlp_words(mlp),
            Mixer::Ffn(Ffn::Experts(moe)) => moe_words(moe),
            Mixer::PerLayerInput(input) => format!("own input of {}", input.gate.outputs()),
            Mixer::Laurel(laurel) => format!("LAuReL of rank {}", laurel.left.outputs()),
        };
        let kind = branch.norm.as_ref().or(branch.after.as_ref()).map(|norm| match norm.kind {
            NormKind::Rms => "RMS",
            NormKind::Layer => "layer",
        });
        match (&branch.norm, &branch.after, kind) {
            (Some(_), Some(_), Some(kind)) => text += &format!(", {kind} norm before and after"),
            (None, Some(_), Some(kind)) => text += &format!(", {kind} norm after"),
            (Some(_), None, Some("layer")) => text += ", layer norm",
            _ => {}
        }
        text
    }

    fn attention(&self, attention: &Attention) -> String {
        let Attention { heads, kv_heads, key_dim, value_dim, .. } = attention;
        let mut text = format!("attention {heads}/{kv_heads} heads of {key_dim}");
        if value_dim != key_dim {
            text += &format!(" (values {value_dim})");
        }
        let owner = self.slots.owner(attention.slot);
        if owner != attention.slot {
            let layer = self.slots.get(owner.index()).map_or(0, |slot| slot.layer);
            text += &format!(", keys and values of layer {layer}");
        } else if matches!(attention.projection, Projection::Equal { .. }) {
            text += ", keys = values";
        }
        if let Some(window) = attention.window {
            text += &format!(", window {window}");
        }
        match attention.rope {
            None => text += ", no rope",
            Some(id) => match self.ropes.get(id.0).map(|rope| rope.dims()) {
                Some(dims) if dims < *key_dim => text += &format!(", rope on {dims}"),
                _ => {}
            },
        }
        for (is_there, words) in [
            (attention.q_norm.is_some() || attention.k_norm.is_some(), "q/k norm"),
            (attention.v_norm.is_some(), "v norm"),
            (attention.sink_logits.is_some(), "sink logits"),
            (attention.soft_cap.is_some(), "soft cap"),
            (attention.gate == Some(OutputGate::InQuery), "output gate"),
        ] {
            if is_there {
                text += ", ";
                text += words;
            }
        }
        text
    }

    /// What a sequence keeps, in words: one line for each kind of slot with the number of layers that have it.
    pub fn slot_summaries(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        for (_, slot) in self.slots.iter() {
            let words = match slot.kind {
                SlotKind::KeysValues(shape) => {
                    let window = shape.window.map_or(String::new(), |window| format!(", window {window}"));
                    format!(
                        "keys {} × {}, values {} × {}{window}",
                        shape.kv_heads, shape.key_dim, shape.kv_heads, shape.value_dim
                    )
                }
                SlotKind::View(_) => "keys and values of an earlier layer".to_owned(),
                SlotKind::Latent(shape) => {
                    format!("latents {} + {} × {}", shape.latent_dim, shape.rope_dim, shape.kv_heads)
                }
                SlotKind::Recurrent(shape) => format!("recurrent state of {} numbers", shape.state),
            };
            match found.iter_mut().find(|(_, known)| *known == words) {
                Some((count, _)) => *count += 1,
                None => found.push((1, words)),
            }
        }
        found
    }
}

fn encoder_words(layer: &EncoderLayer) -> Vec<String> {
    let SelfAttention { heads, head_dim, reach, .. } = layer.attention;
    let seen = reach.map_or("both directions".to_owned(), |reach| format!("{reach} tokens either way"));
    let with_norm =
        |words: String, after: bool| if after { words + ", layer norm after the sum" } else { words };
    vec![
        with_norm(format!("attention {heads} heads of {head_dim}, {seen}"), layer.after_attention.is_some()),
        with_norm(mlp_words(&layer.mlp), layer.after_mlp.is_some()),
    ]
}

fn latent_words(attention: &LatentAttention) -> String {
    let LatentAttention { heads, nope_dim, rope_dim, latent_dim, value_dim, .. } = attention;
    let window = attention.window.map_or(String::new(), |window| format!(", window {window}"));
    format!(
        "latent attention {heads} heads of {nope_dim} + {rope_dim} (values {value_dim}), latent {latent_dim}{window}"
    )
}

fn short_conv_words(short: &ShortConv) -> String {
    format!("short convolution of {} channels, {} taps", short.conv.channels, short.conv.kernel)
}

fn mamba_words(mamba: &Mamba2) -> String {
    let dims = &mamba.dims;
    format!("Mamba-2 {} heads of {}, state {}, {} taps", dims.heads, dims.head_dim, dims.state, dims.kernel)
}

fn delta_words(net: &GatedDeltaNet) -> String {
    let dims = &net.dims;
    let (keys, values) = ((dims.key_heads, dims.key_dim), (dims.value_heads, dims.value_dim));
    format!(
        "gated DeltaNet keys {} × {}, values {} × {}, {} taps",
        keys.0, keys.1, values.0, values.1, dims.kernel
    )
}

fn mlp_words(mlp: &Mlp) -> String {
    let (width, kind) = match &mlp.inner {
        Inner::Gated { gate, .. } => (gate.outputs(), "gated "),
        Inner::GatedFused(both) => (both.outputs() / 2, "gated "),
        Inner::Plain(up) => (up.outputs(), ""),
    };
    let clamped = if mlp.clamp.is_some() { "clamped " } else { "" };
    format!("{clamped}{kind}{} FFN of {width}", mlp.activation.name())
}

fn moe_words(moe: &Moe) -> String {
    let router = match moe.router.score {
        RouterScore::Softmax => "softmax",
        RouterScore::SoftmaxOfChosen => "softmax of the chosen",
        RouterScore::Sigmoid => "sigmoid",
    };
    let expert = moe.experts.first().map(mlp_words).unwrap_or_default();
    let shared = if moe.shared.is_some() { " + a shared one" } else { "" };
    format!("{} of {} experts{shared} ({router} router), each {expert}", moe.router.chosen, moe.experts.len())
}
