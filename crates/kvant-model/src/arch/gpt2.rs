//! GPT-2: learned positions, layer norms, fused attention; Hugging Face stores its weights transposed.

use crate::arch::{Scope, common};
use crate::config::{Dims, Key};
use crate::description::{Activation, Description, Ffn, Inner, Mlp, Projection};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let hidden = dims.hidden;
    let inner = config.size_if(common::INNER)?.unwrap_or(4 * hidden);
    let eps = config.positive(common::LAYER_NORM_EPS)? as f32;
    let activation = config.activation(common::ACTIVATION, Activation::GeluTanh)?;
    let scaled = config.flag(Key("scale_attn_weights", ""), true)?;
    let by_depth = config.flag(Key("scale_attn_by_inverse_layer_idx", ""), false)?;
    // The first releases have no `transformer.` before their names.
    let body = if scope.has(("transformer.wte", "token_embd"))? {
        scope.inside(("transformer", ""))
    } else {
        scope.inside(("", ""))
    };

    let layers = common::layers_in(&body, ("h", "blk"), dims.layers, |layer, index| {
        let qkv = layer.linear_transposed(("attn.c_attn", "attn_qkv"), 3 * hidden, hidden)?;
        let output = layer.linear_transposed(("attn.c_proj", "attn_output"), hidden, hidden)?;
        let mut attention = common::attention_of(layer, index, &dims, None, Projection::Fused(qkv), output);
        if !scaled {
            attention.scale = 1.0;
        }
        if by_depth {
            attention.scale /= (index + 1) as f32;
        }
        let attention_norm = layer.layer_norm(("ln_1", "attn_norm"), hidden, eps)?;
        let ffn_norm = layer.layer_norm(("ln_2", "ffn_norm"), hidden, eps)?;
        let up = layer.linear_transposed(("mlp.c_fc", "ffn_up"), inner, hidden)?;
        let down = layer.linear_transposed(("mlp.c_proj", "ffn_down"), hidden, inner)?;
        let mlp = Mlp::new(Inner::Plain(up), activation, down);
        Ok(common::pre_normed(attention_norm, attention, ffn_norm, Ffn::Dense(mlp)))
    })?;
    let context = config.size(Key("n_positions|max_position_embeddings", "context_length"))?;
    let positions = body.weight(("wpe", "position_embd"), &[context, hidden])?;
    let table = common::token_table(&body, "wte", &dims)?;
    let norm = body.layer_norm(("ln_f", "output_norm"), hidden, eps)?;
    let output = common::output(scope, "lm_head", &table)?;
    let mut description = common::framed(scope, &dims, table, layers, norm, output)?;
    description.embedding.positions = Some(positions);
    Ok(description)
}
