//! Llama and everything that is built like it: SmolLM 2, TinyLlama, Yi, DeepSeek-Coder 1, …
//!
//! GGUF calls Mistral and Mixtral `llama` too; a window or experts in the metadata tell them apart. Its
//! converters put the two channels of a rotated pair side by side.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, mistral, mixtral};
use crate::config::{Key, RopeKeys};
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    if config.is_gguf() && config.count(common::EXPERTS)?.is_some() {
        return mixtral::describe(scope);
    }
    if config.is_gguf() && config.count(common::WINDOW)?.is_some() {
        return mistral::describe(scope);
    }
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let attention_bias = config.flag(common::ATTENTION_BIAS, false)?;
    let mlp_bias = config.flag(Key("mlp_bias", ""), false)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, None, (attention_bias, attention_bias))?;
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
