//! Seed-OSS: Llama with biases on queries, keys and values.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::{Key, RopeKeys};
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let biases = (
        config.flag(common::ATTENTION_BIAS, !config.is_gguf())?,
        config.flag(Key("attention_out_bias", ""), false)?,
    );
    let mlp_bias = config.flag(Key("mlp_bias", ""), false)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, None, biases)?;
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        let attention_norm = norm(("input_layernorm", "attn_norm"))?;
        let ffn_norm = norm(("post_attention_layernorm", "post_attention_norm"))?;
        Ok(common::pre_normed(attention_norm, attention, ffn_norm, Ffn::Dense(mlp)))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
