//! Mistral: Llama with a sliding window on every layer. Its GGUF files are called `llama`.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::RopeKeys;
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let Common { dims, inner, eps, activation } = Common::read(scope.config())?;
    let windows = common::windows(scope.config(), dims.layers, |_| true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (false, false))?;
        attention.rope = Some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
