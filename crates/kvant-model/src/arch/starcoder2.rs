//! StarCoder 2: layer norms, biases everywhere, a plain GELU perceptron, a window on every layer.

use crate::arch::{Network, Parts, usual};
use crate::blocks::{Activation, Decoder, Embedding, Ffn, Head, Mlp, Pairing, PreNorm};
use crate::config::{Dims, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let hidden = dims.hidden;
    let inner = hyper.size(usual::INNER)?;
    let eps = hyper.positive(usual::LAYER_NORM_EPS)? as f32;
    let activation = hyper.activation(usual::ACTIVATION, Activation::GeluTanh)?;
    let bias = hyper.flag(Key("use_bias", ""), true)?;
    let windows = usual::windows(hyper, dims.layers, |_| true)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        Ok(PreNorm {
            attention_norm: layer.layer_norm(("input_layernorm", "attn_norm"), hidden, eps)?,
            attention,
            ffn_norm: layer.layer_norm(("post_attention_layernorm", "ffn_norm"), hidden, eps)?,
            ffn: Ffn::Dense(Mlp::Plain {
                up: layer.linear(("mlp.c_fc", "ffn_up"), inner, hidden, bias)?,
                down: layer.linear(("mlp.c_proj", "ffn_down"), hidden, inner, bias)?,
                activation,
            }),
            residual_scale: 1.0,
        })
    })?;
    let table = usual::token_table(parts, "model.embed_tokens", &dims)?;
    let head = Head {
        norm: parts.layer_norm(("model.norm", "output_norm"), hidden, eps)?,
        output: usual::output(parts, "lm_head", &table)?,
        scale: 1.0,
        soft_cap: None,
    };
    usual::boxed(Decoder { embedding: Embedding::new(table, None, 1.0)?, blocks, head })
}
