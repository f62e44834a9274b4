//! LFM 2: gated short convolutions, and attention with normed queries and keys on some layers.

use crate::arch::common;
use crate::arch::{Scope, recurrent};
use crate::config::{Dims, Key, ModelConfig, RopeKeys};
use crate::description::{
    Activation, Attention, Description, Ffn, Inner, Layer, Mixer, Mlp, Pairing, Projection, Residual, RopeId,
    ShortConv,
};
use crate::error::{LoadError, Result};

const INNER: Key = Key("block_ff_dim|intermediate_size", "feed_forward_length");
const EPS: Key = Key("norm_eps|block_norm_eps", "attention.layer_norm_rms_epsilon");

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let (hidden, inner) = (Dims::read(scope.config())?.hidden, inner(scope.config())?);
    described(scope, |layer, _| Ok(Ffn::Dense(mlp(layer, hidden, inner)?)))
}

/// A model whose layers have this feed-forward part.
pub fn described(scope: &Scope<'_>, ffn: impl Fn(&Scope<'_>, usize) -> Result<Ffn>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let eps = config.positive(EPS)? as f32;
    let convolves = convolves(config, dims.layers)?;
    let rope =
        scope.rope(&RopeKeys { default_theta: 1e6, ..RopeKeys::usual(Pairing::Halves) }, dims.head_dim)?;
    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mixer = if convolves[index] {
            Mixer::ShortConv(Box::new(short_conv(layer, index, dims.hidden)?))
        } else {
            Mixer::Attention(Box::new(attention(layer, index, &dims, eps, rope)?))
        };
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        let mixer = Residual::pre_norm(norm(("operator_norm", "attn_norm"))?, mixer);
        let ffn = Residual::pre_norm(norm(("ffn_norm", "ffn_norm"))?, Mixer::Ffn(ffn(layer, index)?));
        Ok(Layer::new(vec![mixer, ffn]))
    })?;
    let table = common::token_table(scope, "model.embed_tokens", &dims)?;
    let norm = scope.rms_norm(("model.embedding_norm", "token_embd_norm"), dims.hidden, eps, 0.0)?;
    let output = common::output(scope, "lm_head", &table)?;
    common::framed(scope, &dims, table, layers, norm, output)
}

/// A gated MLP by the family's names.
pub fn mlp(layer: &Scope<'_>, hidden: usize, inner: usize) -> Result<Mlp> {
    let gate = layer.linear(("feed_forward.w1", "ffn_gate"), inner, hidden, false)?;
    let up = layer.linear(("feed_forward.w3", "ffn_up"), inner, hidden, false)?;
    let down = layer.linear(("feed_forward.w2", "ffn_down"), hidden, inner, false)?;
    Ok(Mlp::new(Inner::Gated { gate, up }, Activation::Silu, down))
}

/// Which layers convolve: by their types, or all but those of a list of attention layers; in GGUF files those without keys.
fn convolves(config: &ModelConfig<'_>, layers: usize) -> Result<Vec<bool>> {
    const ATTENTION: Key = Key("full_attn_idxs", "attention.head_count_kv");
    if let Some(kv_heads) = config.layer_counts(Key("", ATTENTION.1), layers)? {
        return Ok(kv_heads.into_iter().map(|heads| heads == 0).collect());
    }
    if let Some(kinds) = config.texts(Key("layer_types", ""), layers)? {
        let convolves = |kind: String| match kind.as_str() {
            "conv" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(LoadError::unsupported(format!("key \"layer_types\": {other:?} is not supported"))),
        };
        return kinds.into_iter().map(convolves).collect();
    }
    let Some(attention) = config.numbers(ATTENTION)? else {
        return Err(config.refused(ATTENTION, "is missing, and so is \"layer_types\""));
    };
    Ok((0..layers).map(|layer| !attention.contains(&(layer as f64))).collect())
}

/// The inner width, which configurations may give before an adjustment.
fn inner(config: &ModelConfig<'_>) -> Result<usize> {
    let inner = config.size(INNER)?;
    if !config.flag(Key("block_auto_adjust_ff_dim", ""), !config.is_gguf())? {
        return Ok(inner);
    }
    let two_thirds = 2 * inner / 3;
    let Some(by) = config.positive_if(Key("block_ffn_dim_multiplier", ""))? else { return Ok(two_thirds) };
    let multiple = config.size_if(Key("block_multiple_of", ""))?.unwrap_or(256);
    let adjusted = (by * two_thirds as f64) as usize;
    if adjusted > 1 << 24 {
        return Err(config.refused(INNER, format!("{adjusted} after its adjustment is too wide")));
    }
    Ok(adjusted.next_multiple_of(multiple))
}

fn short_conv(layer: &Scope<'_>, index: usize, hidden: usize) -> Result<ShortConv> {
    let config = layer.config();
    let kernel = config.size_if(Key("conv_L_cache", "shortconv.l_cache"))?.unwrap_or(3);
    let bias = config.flag(Key("conv_bias", ""), false)?;
    let shape = ShortConv::state_shape(hidden, kernel);
    Ok(ShortConv {
        input: layer.linear(("conv.in_proj", "shortconv.in_proj"), 3 * hidden, hidden, bias)?,
        conv: recurrent::convolution(layer, ("conv.conv", "shortconv.conv"), (hidden, kernel), bias, None)?,
        output: layer.linear(("conv.out_proj", "shortconv.out_proj"), hidden, hidden, bias)?,
        slot: layer.slots(|slots| slots.recurrent(index, shape)),
    })
}

fn attention(layer: &Scope<'_>, index: usize, dims: &Dims, eps: f32, rope: RopeId) -> Result<Attention> {
    let linear = |name, outputs| layer.linear(name, outputs, dims.hidden, false);
    let projection = Projection::Apart {
        q: linear(("self_attn.q_proj", "attn_q"), dims.query_width())?,
        k: linear(("self_attn.k_proj", "attn_k"), dims.kv_width())?,
        v: linear(("self_attn.v_proj", "attn_v"), dims.kv_width())?,
    };
    let output =
        layer.linear(("self_attn.out_proj", "attn_output"), dims.hidden, dims.query_width(), false)?;
    let norm = |name| layer.rms_norm(name, dims.head_dim, eps, 0.0).map(Some);
    Ok(Attention {
        q_norm: norm(("self_attn.q_layernorm", "attn_q_norm"))?,
        k_norm: norm(("self_attn.k_layernorm", "attn_k_norm"))?,
        rope: Some(rope),
        ..common::attention_of(layer, index, dims, None, projection, output)
    })
}
