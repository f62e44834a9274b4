//! Phi 3, 3.5 and 4: fused projections, partial rotation, divisors of frequencies for long contexts.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::RopeKeys;
use crate::description::{Description, Ffn, Inner, Mlp, Pairing, Projection};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let Common { dims, inner, eps, activation } = Common::read(scope.config())?;
    let windows = common::windows(scope.config(), dims.layers, |_| true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;
    let (hidden, q_width) = (dims.hidden, dims.query_width());
    let qkv_width = q_width + 2 * dims.kv_width();

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let qkv = layer.linear(("self_attn.qkv_proj", "attn_qkv"), qkv_width, hidden, false)?;
        let output = layer.linear(("self_attn.o_proj", "attn_output"), hidden, q_width, false)?;
        let projection = Projection::Fused(qkv);
        let mut attention = common::attention_of(layer, index, &dims, windows[index], projection, output);
        attention.rope = Some(rope);
        let gate_up = layer.linear(("mlp.gate_up_proj", "ffn_up"), 2 * inner, hidden, false)?;
        let down = layer.linear(("mlp.down_proj", "ffn_down"), hidden, inner, false)?;
        let mlp = Mlp::new(Inner::GatedFused(gate_up), activation, down);
        common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
