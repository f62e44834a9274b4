//! SmolLM 3: Llama without rotation on every fourth layer.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts};
use crate::blocks::{Ffn, Pairing};
use crate::config::{Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    const ROTATED: Key = Key("no_rope_layers", ""); // despite its name: 1 where a layer does rotate
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let attention_bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let mlp_bias = hyper.flag(Key("mlp_bias", ""), false)?;
    let interval = hyper.size_if(Key("no_rope_layer_interval", ""))?.unwrap_or(4);
    let rotated: Vec<bool> = match hyper.numbers(ROTATED)? {
        Some(list) if list.len() == dims.layers => list.iter().map(|&flag| flag != 0.0).collect(),
        Some(list) => {
            return Err(hyper.refused(ROTATED, format!("{} values for {} layers", list.len(), dims.layers)));
        }
        None => (0..dims.layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect(),
    };
    let slides = hyper.flag(Key("use_sliding_window", ""), false)?;
    let windows = usual::windows(hyper, dims.layers, |layer| slides && !rotated[layer])?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, attention_bias, attention_bias)?;
        attention.rope = rotated[index].then(|| rope.clone());
        attention.shape.window = windows[index];
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
