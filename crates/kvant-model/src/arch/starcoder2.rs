//! StarCoder 2: layer norms, biases everywhere, a plain GELU MLP, a window on every layer.

use crate::arch::{Scope, common};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{Activation, Description, Ffn, Inner, Mlp, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let hidden = dims.hidden;
    let inner = config.size(common::INNER)?;
    let eps = config.positive(common::LAYER_NORM_EPS)? as f32;
    let activation = config.activation(common::ACTIVATION, Activation::GeluTanh)?;
    let bias = config.flag(Key("use_bias", ""), true)?;
    let windows = common::windows(config, dims.layers, |_| true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        attention.rope = Some(rope);
        let attention_norm = layer.layer_norm(("input_layernorm", "attn_norm"), hidden, eps)?;
        let ffn_norm = layer.layer_norm(("post_attention_layernorm", "ffn_norm"), hidden, eps)?;
        let up = layer.linear(("mlp.c_fc", "ffn_up"), inner, hidden, bias)?;
        let down = layer.linear(("mlp.c_proj", "ffn_down"), hidden, inner, bias)?;
        let mlp = Mlp::new(Inner::Plain(up), activation, down);
        Ok(common::pre_normed(attention_norm, attention, ffn_norm, Ffn::Dense(mlp)))
    })?;
    let table = common::token_table(scope, "model.embed_tokens", &dims)?;
    let norm = scope.layer_norm(("model.norm", "output_norm"), hidden, eps)?;
    let output = common::output(scope, "lm_head", &table)?;
    common::framed(scope, &dims, table, layers, norm, output)
}
