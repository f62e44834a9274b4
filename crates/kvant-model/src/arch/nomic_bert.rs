//! nomic-embed-text: BERT with rotated queries and keys, a gated MLP and no biases.

use crate::arch::encoder::{self, Sizes};
use crate::arch::{Name, Scope, common};
use crate::config::{Key, RopeKeys};
use crate::description::{Activation, Description, Encoder, EncoderLayer, Inner, Mlp, Pairing, Projection};
use crate::error::{LoadError, Result};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    encoder::refuse_decoder(scope)?;
    let config = scope.config();
    let Sizes { dims, inner, eps } = Sizes::read(scope)?;
    let hidden = dims.hidden;
    for key in [
        Key("prenorm", ""),
        Key("use_rms_norm", ""),
        Key("rotary_emb_interleaved", ""),
        Key("parallel_block", ""),
    ] {
        if config.flag(key, false)? {
            return Err(config.refused(key, "true is not supported"));
        }
    }
    let share = config.positive_if(Key("rotary_emb_fraction", ""))?.unwrap_or(1.0);
    if share != 1.0 || config.count(Key("num_experts", "expert_count"))?.is_some() {
        return Err(LoadError::unsupported(
            "a nomic_bert with experts, or one that rotates a part of its channels",
        ));
    }
    let activation = match config.text(common::ACTIVATION)?.as_deref() {
        None | Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        Some(other) => {
            return Err(LoadError::unsupported(format!(
                "activation {other:?} is not supported; swiglu and geglu are"
            )));
        }
    };
    let biased = |key| config.flag(key, false);
    let qkv_bias = biased(Key("qkv_proj_bias", ""))?;
    let up_bias = biased(Key("mlp_fc1_bias", ""))?;
    let down_bias = biased(Key("mlp_fc2_bias", ""))?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layer = |index: usize| {
        let layer = scope.inside((&format!("encoder.layers.{index}"), &format!("blk.{index}")));
        let norm = |name: Name| layer.layer_norm(name, hidden, eps);
        let qkv = layer.linear(("attn.Wqkv", "attn_qkv"), 3 * hidden, hidden, qkv_bias)?;
        let output = layer.linear(("attn.out_proj", "attn_output"), hidden, hidden, qkv_bias)?;
        let inner_of = Inner::Gated {
            gate: layer.linear(("mlp.fc12", "ffn_gate"), inner, hidden, up_bias)?,
            up: layer.linear(("mlp.fc11", "ffn_up"), inner, hidden, up_bias)?,
        };
        let down = layer.linear(("mlp.fc2", "ffn_down"), hidden, inner, down_bias)?;
        Ok(EncoderLayer {
            attention_norm: None,
            attention: encoder::attention(&dims, (None, Some(rope)), Projection::Fused(qkv), output),
            after_attention: Some(norm(("norm1", "attn_output_norm"))?),
            mlp_norm: None,
            mlp: Mlp::new(inner_of, activation, down),
            after_mlp: Some(norm(("norm2", "layer_output_norm"))?),
        })
    };
    let layers = (0..dims.layers).map(layer).collect::<Result<_>>()?;
    let table = common::token_table(scope, "embeddings.word_embeddings", &dims)?;
    const SEGMENTS: Name = ("embeddings.token_type_embeddings", "token_types");
    let segments = match encoder::rows(scope, SEGMENTS)? {
        Some(rows) => Some(scope.weight(SEGMENTS, &[rows, hidden])?),
        None => None,
    };
    let encoder = Encoder {
        first_position: 0,
        segments,
        embedding_norm: Some(scope.layer_norm(("emb_ln", "token_embd_norm"), hidden, eps)?),
        layers,
        norm: None,
        classifier: None,
    };
    encoder::description(scope, &dims, (table, None), encoder)
}
