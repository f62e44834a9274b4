//! Ministral 3: Llama whose queries grow a little with their position. Its GGUF files are called `mistral3`.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::{RopeKeys, query_gain};
use crate::description::{Description, Ffn, Pairing};
use crate::error::{LoadError, Result};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let windows = common::windows(config, dims.layers, |_| true)?;
    let gain = query_gain(config)?;
    let rope = scope.read_rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?;
    // Its two multipliers of YaRN cancel out; GGUF files do not carry them.
    let rope = scope.add_rope(if config.is_gguf() { rope.without_amplitude() } else { rope });
    if config.is_gguf() && scope.rope_override().attention.is_some() {
        return Err(LoadError::unsupported("--yarn-attn-factor: this model takes no such multiplier"));
    }

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (false, false))?;
        attention.rope = Some(rope);
        attention.query_gain = gain;
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
