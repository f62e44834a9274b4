//! SmolLM 3: Llama without rotation on every fourth layer.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::{Key, RopeKeys};
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    const ROTATED: Key = Key("no_rope_layers", ""); // despite its name: 1 where a layer does rotate
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let attention_bias = config.flag(common::ATTENTION_BIAS, false)?;
    let mlp_bias = config.flag(Key("mlp_bias", ""), false)?;
    let interval = config.size_if(Key("no_rope_layer_interval", ""))?.unwrap_or(4);
    let rotated: Vec<bool> = match config.numbers(ROTATED)? {
        Some(list) if list.len() == dims.layers => list.iter().map(|&flag| flag != 0.0).collect(),
        Some(list) => {
            return Err(config.refused(ROTATED, format!("{} values for {} layers", list.len(), dims.layers)));
        }
        None => (0..dims.layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect(),
    };
    let slides = config.flag(Key("use_sliding_window", ""), false)?;
    let windows = common::windows(config, dims.layers, |layer| slides && !rotated[layer])?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let biases = (attention_bias, attention_bias);
        let mut attention = common::attention(layer, index, &dims, windows[index], biases)?;
        attention.rope = rotated[index].then_some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
