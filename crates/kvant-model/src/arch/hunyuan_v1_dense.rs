//! Hunyuan dense: Llama with norms on each head's queries and keys after they are rotated, by a larger base for long contexts.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::{Key, RopeKeys};
use crate::description::{Description, Ffn, NormPlace, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let mlp_bias = config.flag(Key("mlp_bias", ""), false)?;
    let normed = config.flag(Key("use_qk_norm", ""), true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, None, (bias, bias))?;
        if normed {
            let norm = |name| layer.rms_norm(name, dims.head_dim, eps, 0.0).map(Some);
            attention.q_norm = norm(("self_attn.query_layernorm", "attn_q_norm"))?;
            attention.k_norm = norm(("self_attn.key_layernorm", "attn_k_norm"))?;
            attention.norm_place = NormPlace::AfterRope;
        }
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
