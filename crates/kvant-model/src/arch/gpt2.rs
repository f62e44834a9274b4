//! GPT-2: learned positions, layer norms, fused attention; Hugging Face stores its weights transposed.

use crate::arch::{Network, Parts, usual};
use crate::blocks::{Activation, Decoder, Embedding, Ffn, Head, Mlp, PreNorm, Projection};
use crate::config::{Dims, Key};
use crate::error::Result;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let hidden = dims.hidden;
    let inner = hyper.size_if(usual::INNER)?.unwrap_or(4 * hidden);
    let eps = hyper.positive(usual::LAYER_NORM_EPS)? as f32;
    let activation = hyper.activation(usual::ACTIVATION, Activation::GeluTanh)?;
    let scaled = hyper.flag(Key("scale_attn_weights", ""), true)?;
    let by_depth = hyper.flag(Key("scale_attn_by_inverse_layer_idx", ""), false)?;
    // The first releases have no `transformer.` before their names.
    let body = if parts.has(("transformer.wte", "token_embd"))? {
        parts.inside(("transformer", ""))
    } else {
        parts.inside(("", ""))
    };

    let blocks = usual::layers_in(&body, ("h", "blk"), dims.layers, |layer, index| {
        let qkv = layer.linear_transposed(("attn.c_attn", "attn_qkv"), 3 * hidden, hidden)?;
        let output = layer.linear_transposed(("attn.c_proj", "attn_output"), hidden, hidden)?;
        let mut attention = usual::attention_of(index, &dims, Projection::Fused(qkv), output);
        if !scaled {
            attention.scoring.scale = 1.0;
        }
        if by_depth {
            attention.scoring.scale /= (index + 1) as f32;
        }
        Ok(PreNorm {
            attention_norm: layer.layer_norm(("ln_1", "attn_norm"), hidden, eps)?,
            attention,
            ffn_norm: layer.layer_norm(("ln_2", "ffn_norm"), hidden, eps)?,
            ffn: Ffn::Dense(Mlp::Plain {
                up: layer.linear_transposed(("mlp.c_fc", "ffn_up"), inner, hidden)?,
                down: layer.linear_transposed(("mlp.c_proj", "ffn_down"), hidden, inner)?,
                activation,
            }),
            residual_scale: 1.0,
        })
    })?;
    let context = hyper.size(Key("n_positions|max_position_embeddings", "context_length"))?;
    let positions = body.weight_of(("wpe", "position_embd"), &[context, hidden])?;
    let table = usual::token_table(&body, "wte", &dims)?;
    let head = Head {
        norm: body.layer_norm(("ln_f", "output_norm"), hidden, eps)?,
        output: usual::output(parts, "lm_head", &table)?,
        scale: 1.0,
        soft_cap: None,
    };
    usual::boxed(Decoder { embedding: Embedding::new(table, Some(positions), 1.0)?, blocks, head })
}
