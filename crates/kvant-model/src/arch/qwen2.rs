//! Qwen 2 and 2.5: Llama with biases on queries, keys and values, and a window on upper layers if asked for.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, mtp};
use crate::config::{Key, ModelConfig, RopeKeys};
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    described(scope, None)
}

/// A model of the family, which may have a head for further tokens by these names.
pub fn described(scope: &Scope<'_>, head: Option<&mtp::Names>) -> Result<Description> {
    let Common { dims, inner, eps, activation } = Common::read(scope.config())?;
    let windows = windows(scope.config(), dims.layers)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let described = |layer: &Scope<'_>, index: usize| {
        // The layer of a head sees everything.
        let window = windows.get(index).copied().flatten();
        let mut attention = common::attention(layer, index, &dims, window, (true, false))?;
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    };
    let layers = common::layers(scope, dims.layers, described)?;
    let description = common::decoder(scope, &dims, layers, 0.0)?;
    match head {
        Some(names) => mtp::described(scope, description, names, described),
        None => Ok(description),
    }
}

/// Windows of the Qwen family: `sliding_window` counts only with `use_sliding_window`, and then from layer
/// `max_window_layers` on.
pub fn windows(config: &ModelConfig<'_>, layers: usize) -> Result<Vec<Option<usize>>> {
    if !config.flag(Key("use_sliding_window", ""), false)? {
        return Ok(vec![None; layers]);
    }
    let first = config.count(Key("max_window_layers", ""))?.unwrap_or(0);
    common::windows(config, layers, |layer| layer >= first)
}
