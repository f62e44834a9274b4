//! GPT-NeoX and Pythia: attention and MLP side by side, a quarter of each head rotated.

use crate::arch::{Scope, common};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{
    Activation, Branch, Description, Ffn, Inner, Layer, Mixer, Mlp, Pairing, Projection, Residual,
};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let hidden = dims.hidden;
    let inner = config.size(common::INNER)?;
    let eps = config.positive(common::LAYER_NORM_EPS)? as f32;
    let activation = config.activation(common::ACTIVATION, Activation::Gelu)?;
    let bias = config.flag(common::ATTENTION_BIAS, true)?;
    let parallel = config.flag(Key("use_parallel_residual", "use_parallel_residual"), true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers_in(scope, ("gpt_neox.layers", "blk"), dims.layers, |layer, index| {
        let qkv = layer.linear(("attention.query_key_value", "attn_qkv"), 3 * hidden, hidden, bias)?;
        // Converters to GGUF put all queries first, then all keys, then all values.
        let projection = if config.is_gguf() { Projection::Fused(qkv) } else { Projection::FusedByHead(qkv) };
        let output = layer.linear(("attention.dense", "attn_output"), hidden, hidden, bias)?;
        let mut attention = common::attention_of(layer, index, &dims, None, projection, output);
        attention.rope = Some(rope);
        let attention_norm = layer.layer_norm(("input_layernorm", "attn_norm"), hidden, eps)?;
        let ffn_norm = layer.layer_norm(("post_attention_layernorm", "ffn_norm"), hidden, eps)?;
        let up = layer.linear(("mlp.dense_h_to_4h", "ffn_up"), inner, hidden, true)?;
        let down = layer.linear(("mlp.dense_4h_to_h", "ffn_down"), hidden, inner, true)?;
        let ffn = Ffn::Dense(Mlp::new(Inner::Plain(up), activation, down));
        if !parallel {
            return Ok(common::pre_normed(attention_norm, attention, ffn_norm, ffn));
        }
        // x += mlp(norm'(x)) + attention(norm(x))
        let branch = |norm, mixer| Branch::new(Some(norm), mixer, None);
        let branches = vec![
            branch(ffn_norm, Mixer::Ffn(ffn)),
            branch(attention_norm, Mixer::Attention(Box::new(attention))),
        ];
        Ok(Layer::new(vec![Residual::sum(branches)]))
    })?;
    let table = common::token_table(scope, "gpt_neox.embed_in", &dims)?;
    let norm = scope.layer_norm(("gpt_neox.final_layer_norm", "output_norm"), hidden, eps)?;
    let output = common::output(scope, "embed_out", &table)?;
    common::framed(scope, &dims, table, layers, norm, output)
}
