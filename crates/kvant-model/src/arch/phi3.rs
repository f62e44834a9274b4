//! Phi 3, 3.5 and 4: fused projections, partial rotation, divisors of frequencies for long contexts.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts};
use crate::blocks::{Ffn, Mlp, Pairing, Projection};
use crate::config::RopeKeys;
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let windows = usual::windows(hyper, dims.layers, |_| true)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);
    let (hidden, q_width) = (dims.hidden, dims.query_width());
    let qkv_width = q_width + 2 * dims.kv_width();

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let qkv = layer.linear(("self_attn.qkv_proj", "attn_qkv"), qkv_width, hidden, false)?;
        let output = layer.linear(("self_attn.o_proj", "attn_output"), hidden, q_width, false)?;
        let mut attention = usual::attention_of(index, &dims, Projection::Fused(qkv), output);
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let mlp = Mlp::GatedFused {
            gate_up: layer.linear(("mlp.gate_up_proj", "ffn_up"), 2 * inner, hidden, false)?,
            down: layer.linear(("mlp.down_proj", "ffn_down"), hidden, inner, false)?,
            activation,
        };
        usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
