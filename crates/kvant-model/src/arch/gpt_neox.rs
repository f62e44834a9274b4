//! GPT-NeoX and Pythia: attention and perceptron side by side, a quarter of each head rotated.

use crate::arch::{Network, Parts, usual};
use crate::blocks::{
    Activation, Attention, Block, Decoder, Embedding, Head, Mlp, Norm, Pairing, Pass, Projection, Rows,
};
use crate::config::{Dims, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

/// `x += attention(norm(x)) + mlp(norm'(x))` when parallel, else one after the other.
struct NeoxBlock {
    attention_norm: Norm,
    attention: Attention,
    mlp_norm: Norm,
    mlp: Mlp,
    parallel: bool,
}

impl Block for NeoxBlock {
    fn forward(&self, x: &mut Rows, pass: &mut Pass<'_, '_>) {
        let attended = self.attention.forward(&self.attention_norm.forward(x), pass);
        if self.parallel {
            let fed = self.mlp.forward(&self.mlp_norm.forward(x));
            x.add_scaled(&fed, 1.0);
            x.add_scaled(&attended, 1.0);
        } else {
            x.add_scaled(&attended, 1.0);
            let fed = self.mlp.forward(&self.mlp_norm.forward(x));
            x.add_scaled(&fed, 1.0);
        }
    }

    fn attention(&self) -> Option<&Attention> {
        Some(&self.attention)
    }
}

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let hidden = dims.hidden;
    let inner = hyper.size(usual::INNER)?;
    let eps = hyper.positive(usual::LAYER_NORM_EPS)? as f32;
    let activation = hyper.activation(usual::ACTIVATION, Activation::Gelu)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, true)?;
    let parallel = hyper.flag(Key("use_parallel_residual", "use_parallel_residual"), true)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers_in(parts, ("gpt_neox.layers", "blk"), dims.layers, |layer, index| {
        let qkv = layer.linear(("attention.query_key_value", "attn_qkv"), 3 * hidden, hidden, bias)?;
        // Converters to GGUF put all queries first, then all keys, then all values.
        let projection = if hyper.is_gguf() { Projection::Fused(qkv) } else { Projection::FusedByHead(qkv) };
        let output = layer.linear(("attention.dense", "attn_output"), hidden, hidden, bias)?;
        let mut attention = usual::attention_of(index, &dims, projection, output);
        attention.rope = Some(rope.clone());
        Ok(NeoxBlock {
            attention_norm: layer.layer_norm(("input_layernorm", "attn_norm"), hidden, eps)?,
            attention,
            mlp_norm: layer.layer_norm(("post_attention_layernorm", "ffn_norm"), hidden, eps)?,
            mlp: Mlp::Plain {
                up: layer.linear(("mlp.dense_h_to_4h", "ffn_up"), inner, hidden, true)?,
                down: layer.linear(("mlp.dense_4h_to_h", "ffn_down"), hidden, inner, true)?,
                activation,
            },
            parallel,
        })
    })?;
    let table = usual::token_table(parts, "gpt_neox.embed_in", &dims)?;
    let head = Head {
        norm: parts.layer_norm(("gpt_neox.final_layer_norm", "output_norm"), hidden, eps)?,
        output: usual::output(parts, "embed_out", &table)?,
        scale: 1.0,
        soft_cap: None,
    };
    usual::boxed(Decoder { embedding: Embedding::new(table, None, 1.0)?, blocks, head })
}
