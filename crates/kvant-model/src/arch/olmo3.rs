//! OLMo 3: OLMo 2 with a window on three of four layers; the others stretch their rotation for long contexts. Its GGUF files are
//! called `olmo2`.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, olmo2};
use crate::config::RopeKeys;
use crate::description::{Description, Pairing};
use crate::error::Result;

const FULL_ROPE: RopeKeys = RopeKeys { default_theta: 500_000.0, ..RopeKeys::usual(Pairing::Halves) };
const SLIDING_ROPE: RopeKeys = RopeKeys { layer_type: "sliding_attention", scaled: false, ..FULL_ROPE };

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let windows = common::windows(config, dims.layers, |layer| !(layer + 1).is_multiple_of(4))?;
    let full = scope.rope(&FULL_ROPE, dims.head_dim)?;
    let sliding = scope.rope(&SLIDING_ROPE, dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        (attention.q_norm, attention.k_norm) =
            common::qk_norm(layer, (dims.query_width(), dims.kv_width()), eps, 0.0)?;
        attention.rope = Some(if windows[index].is_some() { sliding } else { full });
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        olmo2::post_norm(layer, &dims, eps, attention, mlp)
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
