//! Qwen 3: Qwen 2 with a norm on each head's queries and keys in place of the biases.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, qwen2};
use crate::config::{Dims, RopeKeys};
use crate::description::{Description, Ffn, Layer, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let (dims, layers) = layers(scope, common::LAYERS)?;
    common::decoder(scope, &dims, layers, 0.0)
}

/// The layers, which lie at `place`.
pub fn layers(scope: &Scope<'_>, place: (&str, &str)) -> Result<(Dims, Vec<Layer>)> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let windows = qwen2::windows(config, dims.layers)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers_in(scope, place, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        (attention.q_norm, attention.k_norm) =
            common::qk_norm(layer, (dims.head_dim, dims.head_dim), eps, 0.0)?;
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    Ok((dims, layers))
}
