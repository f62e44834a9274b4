//! Mixtral: Mistral with eight experts, two of them for each token. Its GGUF files are called `llama`.

use crate::arch::Scope;
use crate::arch::common::{self, Common, ExpertNames};
use crate::config::RopeKeys;
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

/// Experts of the Mixtral family.
pub const EXPERT: ExpertNames = ExpertNames {
    router: "block_sparse_moe.gate",
    gate: "block_sparse_moe.experts.{}.w1",
    up: "block_sparse_moe.experts.{}.w3",
    down: "block_sparse_moe.experts.{}.w2",
};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let Common { dims, inner, eps, activation } = Common::read(scope.config())?;
    let windows = common::windows(scope.config(), dims.layers, |_| true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (false, false))?;
        attention.rope = Some(rope);
        let moe = common::experts(layer, &EXPERT, dims.hidden, inner, activation, true)?;
        common::pre_norm(layer, &dims, eps, attention, Ffn::Experts(Box::new(moe)))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
