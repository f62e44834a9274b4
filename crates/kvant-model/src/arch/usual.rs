//! The parts that most architectures name and shape alike.

use crate::arch::{Network, Parts};
use crate::blocks::{
    Activation, Attention, Block, Decoder, Embedding, Ffn, Head, Linear, Mlp, Moe, Norm, PreNorm, Projection,
};
use crate::cache::{KvShape, Scoring};
use crate::config::{Dims, Hyper, Key};
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;

pub const RMS_EPS: Key = Key("rms_norm_eps", "attention.layer_norm_rms_epsilon");
pub const LAYER_NORM_EPS: Key =
    Key("layer_norm_eps|norm_epsilon|layer_norm_epsilon", "attention.layer_norm_epsilon");
pub const INNER: Key = Key("intermediate_size|n_inner", "feed_forward_length");
pub const ACTIVATION: Key = Key("hidden_activation|hidden_act|activation_function", "");
pub const ATTENTION_BIAS: Key = Key("attention_bias", "");
pub const WINDOW: Key = Key("sliding_window", "attention.sliding_window");
pub const EXPERTS: Key = Key("num_experts|num_local_experts", "expert_count");
pub const EXPERTS_CHOSEN: Key = Key("num_experts_per_tok", "expert_used_count");
/// Where layers lie: `model.layers.N` and `blk.N`.
const LAYERS: (&str, &str) = ("model.layers", "blk");

/// What nearly every architecture reads, and reads alike.
pub struct Common {
    pub dims: Dims,
    /// Width of the feed-forward part.
    pub inner: usize,
    /// Of the RMS norms.
    pub eps: f32,
    /// SiLU where the file does not say.
    pub activation: Activation,
}

impl Common {
    pub fn read(hyper: &Hyper<'_>) -> Result<Self> {
        Ok(Self {
            dims: Dims::read(hyper)?,
            inner: hyper.size(INNER)?,
            eps: hyper.positive(RMS_EPS)? as f32,
            activation: hyper.activation(ACTIVATION, Activation::Silu)?,
        })
    }
}

/// Builds every layer with `build(parts of the layer, its number)`.
pub fn layers<B: Block + 'static>(
    parts: &Parts<'_>,
    count: usize,
    build: impl Fn(&Parts<'_>, usize) -> Result<B>,
) -> Result<Vec<Box<dyn Block>>> {
    layers_in(parts, LAYERS, count, build)
}

/// The same for checkpoints that keep their layers elsewhere.
pub fn layers_in<B: Block + 'static>(
    parts: &Parts<'_>,
    (hf, gguf): (&str, &str),
    count: usize,
    build: impl Fn(&Parts<'_>, usize) -> Result<B>,
) -> Result<Vec<Box<dyn Block>>> {
    let layer = |index: usize| {
        let (hf, gguf) = (format!("{hf}.{index}"), format!("{gguf}.{index}"));
        Ok(Box::new(build(&parts.inside((&hf, &gguf)), index)?) as Box<dyn Block>)
    };
    // Collected one by one: a count that is too large ends at the first missing tensor.
    (0..count).map(layer).collect()
}

/// Attention with four linear layers and nothing else; the caller adds rotation, norms, window and scale.
pub fn attention(
    layer: &Parts<'_>,
    index: usize,
    dims: &Dims,
    qkv_bias: bool,
    o_bias: bool,
) -> Result<Attention> {
    let (hidden, q_width, kv_width) = (dims.hidden, dims.query_width(), dims.kv_width());
    let projection = Projection::Apart {
        q: layer.linear(("self_attn.q_proj", "attn_q"), q_width, hidden, qkv_bias)?,
        k: layer.linear(("self_attn.k_proj", "attn_k"), kv_width, hidden, qkv_bias)?,
        v: layer.linear(("self_attn.v_proj", "attn_v"), kv_width, hidden, qkv_bias)?,
    };
    let output = layer.linear(("self_attn.o_proj", "attn_output"), hidden, q_width, o_bias)?;
    Ok(attention_of(index, dims, projection, output))
}

/// Attention over given projections.
pub fn attention_of(index: usize, dims: &Dims, projection: Projection, output: Linear) -> Attention {
    Attention {
        entry: index,
        heads: dims.heads,
        shape: KvShape {
            heads: dims.kv_heads,
            key_dim: dims.head_dim,
            value_dim: dims.head_dim,
            window: None,
        },
        projection,
        qk_norm: None,
        rope: None,
        query_gain: None,
        scoring: Scoring { scale: dims.score_scale(), soft_cap: None },
        output,
    }
}

/// Norms of queries and keys over `q_width` and `k_width` channels.
pub fn qk_norm(
    layer: &Parts<'_>,
    q_width: usize,
    k_width: usize,
    eps: f32,
    offset: f32,
) -> Result<(Norm, Norm)> {
    let q = layer.rms_norm(("self_attn.q_norm", "attn_q_norm"), q_width, eps, offset)?;
    let k = layer.rms_norm(("self_attn.k_norm", "attn_k_norm"), k_width, eps, offset)?;
    Ok((q, k))
}

/// A gated perceptron with three linear layers.
pub fn gated_mlp(
    layer: &Parts<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
    biased: bool,
) -> Result<Mlp> {
    Ok(Mlp::Gated {
        gate: layer.linear(("mlp.gate_proj", "ffn_gate"), inner, hidden, biased)?,
        up: layer.linear(("mlp.up_proj", "ffn_up"), inner, hidden, biased)?,
        down: layer.linear(("mlp.down_proj", "ffn_down"), hidden, inner, biased)?,
        activation,
    })
}

/// The names of an expert layer's tensors: router, then gate, up and down with `{}` for the expert.
pub struct ExpertNames {
    pub router: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// A mixture of gated experts of width `inner`, without a shared one.
pub fn experts(
    layer: &Parts<'_>,
    names: &ExpertNames,
    hidden: usize,
    inner: usize,
    activation: Activation,
    renormalise: bool,
) -> Result<Moe> {
    let hyper = layer.hyper();
    let (count, chosen) = (hyper.size(EXPERTS)?, hyper.size(EXPERTS_CHOSEN)?);
    if chosen > count {
        return Err(hyper.refused(EXPERTS_CHOSEN, format!("{chosen} experts per token of {count} in all")));
    }
    let router = layer.exact_linear((names.router, "ffn_gate_inp"), count, hidden)?;
    let gates = layer.experts((names.gate, "ffn_gate_exps"), count, inner, hidden)?;
    let ups = layer.experts((names.up, "ffn_up_exps"), count, inner, hidden)?;
    let downs = layer.experts((names.down, "ffn_down_exps"), count, hidden, inner)?;
    let experts = gates
        .into_iter()
        .zip(ups)
        .zip(downs)
        .map(|((gate, up), down)| Mlp::Gated { gate, up, down, activation })
        .collect();
    Ok(Moe { router, experts, chosen, renormalise, shared: None })
}

/// A feed-forward part of experts or, in layers that configurations exempt, of one perceptron.
pub fn sparse_ffn(
    layer: &Parts<'_>,
    index: usize,
    dense: impl FnOnce() -> Result<Mlp>,
    sparse: impl FnOnce() -> Result<Moe>,
) -> Result<Ffn> {
    let hyper = layer.hyper();
    let step = hyper.size_if(Key("decoder_sparse_step", ""))?.unwrap_or(1);
    let exempt = hyper.numbers(Key("mlp_only_layers", ""))?.unwrap_or_default();
    if exempt.contains(&(index as f64)) || !(index + 1).is_multiple_of(step) {
        Ok(Ffn::Dense(dense()?))
    } else {
        Ok(Ffn::Experts(sparse()?))
    }
}

/// A layer with RMS norms before its two parts.
pub fn prenorm(layer: &Parts<'_>, dims: &Dims, eps: f32, attention: Attention, ffn: Ffn) -> Result<PreNorm> {
    Ok(PreNorm {
        attention_norm: layer.rms_norm(("input_layernorm", "attn_norm"), dims.hidden, eps, 0.0)?,
        attention,
        ffn_norm: layer.rms_norm(("post_attention_layernorm", "ffn_norm"), dims.hidden, eps, 0.0)?,
        ffn,
        residual_scale: 1.0,
    })
}

/// The window of every layer: by `layer_types` where the configuration has them, else by `slides(layer)`.
pub fn windows(
    hyper: &Hyper<'_>,
    layers: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    const TYPES: Key = Key("layer_types", "");
    let window = hyper.count(WINDOW)?;
    let Some(types) = hyper.texts(TYPES, layers)? else {
        return Ok((0..layers).map(|layer| window.filter(|_| slides(layer))).collect());
    };
    let of = |kind: String| match (kind.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(_)) => Ok(window),
        ("sliding_attention", None) => Err(hyper.refused(WINDOW, "is missing, but some layers slide")),
        (other, _) => Err(LoadError::unsupported(format!("key \"layer_types\": {other:?} is not supported"))),
    };
    types.into_iter().map(of).collect()
}

/// The frame of a model under `model.`: embedding, layers, a last RMS norm, an output that may be tied.
pub fn decoder(
    parts: &Parts<'_>,
    dims: &Dims,
    blocks: Vec<Box<dyn Block>>,
    norm_offset: f32,
) -> Result<Decoder> {
    let eps = parts.hyper().positive(RMS_EPS)? as f32;
    let norm = parts.rms_norm(("model.norm", "output_norm"), dims.hidden, eps, norm_offset)?;
    let table = token_table(parts, "model.embed_tokens", dims)?;
    let head = Head { norm, output: output(parts, "lm_head", &table)?, scale: 1.0, soft_cap: None };
    Ok(Decoder { embedding: Embedding::new(table, None, 1.0)?, blocks, head })
}

/// The token embeddings, `(vocabulary, hidden)`, pinned where that is asked for.
pub fn token_table(parts: &Parts<'_>, name: &'static str, dims: &Dims) -> Result<Tensor> {
    let name = (name, "token_embd");
    let vocabulary = match parts.hyper().size_if(Key("vocab_size", ""))? {
        Some(vocabulary) => vocabulary,
        None => parts.weight(name)?.rows().max(1),
    };
    let table = parts.weight_of(name, &[vocabulary, dims.hidden])?;
    parts.pin(table.name(), table.bytes())?;
    Ok(table)
}

/// The output layer `name`, or the token embeddings once more: as the configuration says or, where it does not
/// say, by whether the output is in the file.
pub fn output(parts: &Parts<'_>, name: &'static str, table: &Tensor) -> Result<Linear> {
    let own = (name, "output");
    let is_tied = match parts.hyper().flag_if(Key("tie_word_embeddings", ""))? {
        Some(is_tied) => is_tied,
        None => !parts.has(own)?,
    };
    if is_tied {
        return Ok(Linear::new(parts.product(table.clone())?, None));
    }
    parts.linear(own, table.rows(), table.columns(), false)
}

/// A decoder as the network it is.
pub fn boxed(decoder: Decoder) -> Result<Box<dyn Network>> {
    let embedding = decoder.embedding.sparing(&decoder.head.output);
    Ok(Box::new(Decoder { embedding, ..decoder }))
}
