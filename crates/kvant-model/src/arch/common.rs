//! The parts that most architectures name and shape alike.

use crate::arch::{Name, Scope};
use crate::config::{Dims, Key, ModelConfig};
use crate::description::{
    Activation, Attention, Description, Embedding, Ffn, Head, Inner, Layer, Linear, Matrix, Mixer, Mlp, Moe,
    Norm, Projection, Residual, Router, TensorRef,
};
use crate::error::{LoadError, Result};
use kvant_cache::{KvShape, KvSlot};

pub const RMS_EPS: Key = Key("rms_norm_eps|layernorm_epsilon", "attention.layer_norm_rms_epsilon");
pub const LAYER_NORM_EPS: Key =
    Key("layer_norm_eps|norm_epsilon|layer_norm_epsilon", "attention.layer_norm_epsilon");
pub const INNER: Key = Key("intermediate_size|n_inner", "feed_forward_length");
pub const ACTIVATION: Key = Key("hidden_activation|hidden_act|activation_function", "");
pub const ATTENTION_BIAS: Key = Key("attention_bias", "");
pub const WINDOW: Key = Key("sliding_window", "attention.sliding_window");
pub const EXPERTS: Key =
    Key("num_experts|num_local_experts|n_routed_experts|moe_num_experts", "expert_count");
/// Width of experts that every token visits, all of them together.
pub const SHARED_INNER: Key = Key(
    "shared_expert_intermediate_size|shared_intermediate_size|moe_shared_expert_intermediate_size",
    "expert_shared_feed_forward_length",
);
pub const EXPERTS_CHOSEN: Key = Key("num_experts_per_tok|moe_k", "expert_used_count");
const CONTEXT: Key = Key("max_position_embeddings|n_positions", "context_length");
/// Where layers lie: `model.layers.N` and `blk.N`.
pub const LAYERS: (&str, &str) = ("model.layers", "blk");

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
    pub fn read(config: &ModelConfig<'_>) -> Result<Self> {
        Ok(Self {
            dims: Dims::read(config)?,
            inner: config.size(INNER)?,
            eps: config.positive(RMS_EPS)? as f32,
            activation: config.activation(ACTIVATION, Activation::Silu)?,
        })
    }
}

/// Describes every layer with `describe(place of the layer, its number)`.
pub fn layers(
    scope: &Scope<'_>,
    count: usize,
    describe: impl Fn(&Scope<'_>, usize) -> Result<Layer>,
) -> Result<Vec<Layer>> {
    layers_in(scope, LAYERS, count, describe)
}

/// The same for checkpoints that keep their layers elsewhere.
pub fn layers_in(
    scope: &Scope<'_>,
    (hf, gguf): (&str, &str),
    count: usize,
    describe: impl Fn(&Scope<'_>, usize) -> Result<Layer>,
) -> Result<Vec<Layer>> {
    let layer = |index: usize| {
        let (hf, gguf) = (format!("{hf}.{index}"), format!("{gguf}.{index}"));
        describe(&scope.inside((&hf, &gguf)), index)
    };
    // Collected one by one: a count that is too large ends at the first missing tensor.
    (0..count).map(layer).collect()
}

/// The shape of a layer's keys and values.
pub fn kv_shape(dims: &Dims, window: Option<usize>) -> KvShape {
    KvShape { kv_heads: dims.kv_heads, key_dim: dims.head_dim, value_dim: dims.head_dim, window }
}

/// Attention with four linear layers and nothing else; the caller adds rotation, norms and scale.
pub fn attention(
    layer: &Scope<'_>,
    index: usize,
    dims: &Dims,
    window: Option<usize>,
    (qkv_bias, o_bias): (bool, bool),
) -> Result<Attention> {
    let (hidden, q_width, kv_width) = (dims.hidden, dims.query_width(), dims.kv_width());
    let projection = Projection::Apart {
        q: layer.linear(("self_attn.q_proj", "attn_q"), q_width, hidden, qkv_bias)?,
        k: layer.linear(("self_attn.k_proj", "attn_k"), kv_width, hidden, qkv_bias)?,
        v: layer.linear(("self_attn.v_proj", "attn_v"), kv_width, hidden, qkv_bias)?,
    };
    let output = layer.linear(("self_attn.o_proj", "attn_output"), hidden, q_width, o_bias)?;
    Ok(attention_of(layer, index, dims, window, projection, output))
}

/// Attention over given projections, with a slot of its own.
pub fn attention_of(
    layer: &Scope<'_>,
    index: usize,
    dims: &Dims,
    window: Option<usize>,
    projection: Projection,
    output: Linear,
) -> Attention {
    let slot = layer.keys_values(index, kv_shape(dims, window));
    attention_over(slot, dims, window, projection, output)
}

/// Attention over given projections and a given slot.
pub fn attention_over(
    slot: KvSlot,
    dims: &Dims,
    window: Option<usize>,
    projection: Projection,
    output: Linear,
) -> Attention {
    let (heads, widths) = ((dims.heads, dims.kv_heads), (dims.head_dim, dims.head_dim));
    let plain = Attention::plain(slot, heads, widths, projection, output);
    Attention { window, scale: dims.score_scale(), ..plain }
}

/// Norms of queries and keys over `q_width` and `k_width` channels.
pub fn qk_norm(
    layer: &Scope<'_>,
    (q_width, k_width): (usize, usize),
    eps: f32,
    offset: f32,
) -> Result<(Option<Norm>, Option<Norm>)> {
    let q = layer.rms_norm(("self_attn.q_norm", "attn_q_norm"), q_width, eps, offset)?;
    let k = layer.rms_norm(("self_attn.k_norm", "attn_k_norm"), k_width, eps, offset)?;
    Ok((Some(q), Some(k)))
}

/// A gated MLP with three linear layers.
pub fn gated_mlp(
    layer: &Scope<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
    biased: bool,
) -> Result<Mlp> {
    let gate = layer.linear(("mlp.gate_proj", "ffn_gate"), inner, hidden, biased)?;
    let up = layer.linear(("mlp.up_proj", "ffn_up"), inner, hidden, biased)?;
    let down = layer.linear(("mlp.down_proj", "ffn_down"), hidden, inner, biased)?;
    Ok(Mlp::new(Inner::Gated { gate, up }, activation, down))
}

/// The names of an expert layer's tensors: router, then gate, up and down with `{}` for the expert.
pub struct ExpertNames {
    pub router: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

/// Gate and up of all experts in one tensor, which GGUF files may have.
const GATE_UP_EXPERTS: Name = ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight");

/// A mixture of gated experts of width `inner` behind a softmax router, without a shared one.
pub fn experts(
    layer: &Scope<'_>,
    names: &ExpertNames,
    hidden: usize,
    inner: usize,
    activation: Activation,
    renormalise: bool,
) -> Result<Moe> {
    let config = layer.config();
    let (count, chosen) = (config.size(EXPERTS)?, config.size(EXPERTS_CHOSEN)?);
    if chosen > count {
        return Err(config.refused(EXPERTS_CHOSEN, format!("{chosen} experts per token of {count} in all")));
    }
    let router = layer.exact_linear((names.router, "ffn_gate_inp"), count, hidden)?;
    let downs = layer.experts((names.down, "ffn_down_exps"), count, hidden, inner)?;
    let inners: Vec<Inner> = if config.is_gguf() && layer.has_tensor(GATE_UP_EXPERTS)? {
        let both = layer.experts(("", "ffn_gate_up_exps"), count, 2 * inner, hidden)?;
        both.into_iter().map(Inner::GatedFused).collect()
    } else {
        let gates = layer.experts((names.gate, "ffn_gate_exps"), count, inner, hidden)?;
        let ups = layer.experts((names.up, "ffn_up_exps"), count, inner, hidden)?;
        gates.into_iter().zip(ups).map(|(gate, up)| Inner::Gated { gate, up }).collect()
    };
    let experts =
        inners.into_iter().zip(downs).map(|(inner, down)| Mlp::new(inner, activation, down)).collect();
    Ok(Moe { router: Router::softmax(router, chosen, renormalise), experts, shared: None, latent: None })
}

/// A feed-forward part of experts or, in layers that configurations exempt, of one MLP.
pub fn sparse_ffn(
    layer: &Scope<'_>,
    index: usize,
    dense: impl FnOnce() -> Result<Mlp>,
    sparse: impl FnOnce() -> Result<Moe>,
) -> Result<Ffn> {
    let config = layer.config();
    let step = config.size_if(Key("decoder_sparse_step", ""))?.unwrap_or(1);
    let exempt = config.numbers(Key("mlp_only_layers", ""))?.unwrap_or_default();
    if exempt.contains(&(index as f64)) || !(index + 1).is_multiple_of(step) {
        Ok(Ffn::Dense(dense()?))
    } else {
        Ok(Ffn::Experts(Box::new(sparse()?)))
    }
}

/// A layer with RMS norms before its two parts.
pub fn pre_norm(layer: &Scope<'_>, dims: &Dims, eps: f32, attention: Attention, ffn: Ffn) -> Result<Layer> {
    let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
    let attention_norm = norm(("input_layernorm", "attn_norm"))?;
    Ok(pre_normed(attention_norm, attention, norm(("post_attention_layernorm", "ffn_norm"))?, ffn))
}

/// The same with given norms: `x += attention(norm(x)); x += ffn(norm(x))`.
pub fn pre_normed(attention_norm: Norm, attention: Attention, ffn_norm: Norm, ffn: Ffn) -> Layer {
    let attention = Residual::pre_norm(attention_norm, Mixer::Attention(Box::new(attention)));
    Layer::new(vec![attention, Residual::pre_norm(ffn_norm, Mixer::Ffn(ffn))])
}

/// The window of every layer: by `layer_types` where the configuration has them, else by `slides(layer)`.
pub fn windows(
    config: &ModelConfig<'_>,
    layers: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    const TYPES: Key = Key("layer_types", "");
    let window = config.count(WINDOW)?;
    if let Some(slide) = config.layer_flags(Key("", "attention.sliding_window_pattern"), layers)? {
        return Ok(slide.into_iter().map(|slides| window.filter(|_| slides)).collect());
    }
    let Some(types) = config.texts(TYPES, layers)? else {
        return Ok((0..layers).map(|layer| window.filter(|_| slides(layer))).collect());
    };
    let of = |kind: String| match (kind.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(_)) => Ok(window),
        ("sliding_attention", None) => Err(config.refused(WINDOW, "is missing, but some layers slide")),
        (other, _) => Err(LoadError::unsupported(format!("key \"layer_types\": {other:?} is not supported"))),
    };
    types.into_iter().map(of).collect()
}

/// The frame of a model under `model.`: embedding, layers, a last RMS norm, an output that may be tied.
pub fn decoder(scope: &Scope<'_>, dims: &Dims, layers: Vec<Layer>, norm_offset: f32) -> Result<Description> {
    let eps = scope.config().positive(RMS_EPS)? as f32;
    let norm = scope.rms_norm(("model.norm", "output_norm"), dims.hidden, eps, norm_offset)?;
    let table = token_table(scope, "model.embed_tokens", dims)?;
    let output = output(scope, "lm_head", &table)?;
    framed(scope, dims, table, layers, norm, output)
}

/// A description from its frame and layers; slots and rotary embeddings are those that were asked for.
pub fn framed(
    scope: &Scope<'_>,
    dims: &Dims,
    table: TensorRef,
    layers: Vec<Layer>,
    norm: Norm,
    output: Linear,
) -> Result<Description> {
    let (slots, ropes) = scope.take_draft();
    if ropes.is_empty() && !scope.rope_override().is_empty() {
        return Err(LoadError::unsupported(
            "this model has no rotary embedding; leave out the --rope-… and --yarn-… options",
        ));
    }
    Ok(Description {
        architecture: "",
        hidden: dims.hidden,
        vocabulary: table.shape[0],
        context: scope.config().size_if(CONTEXT)?,
        embedding: Embedding { table, scale: 1.0, positions: None, per_layer: None, streams: None },
        ropes,
        layers,
        head: Head { norm, output, scale: 1.0, soft_cap: None },
        slots,
        mtp: None,
        encoder: None,
        left_out: Vec::new(),
    })
}

/// The token embeddings, `(vocabulary, hidden)`.
pub fn token_table(scope: &Scope<'_>, name: &'static str, dims: &Dims) -> Result<TensorRef> {
    let name = (name, "token_embd");
    let vocabulary = scope.size_or_rows(Key("vocab_size", ""), name)?;
    scope.weight(name, &[vocabulary, dims.hidden])
}

/// The output layer `name`, or the token embeddings once more: as the configuration says or, where it does not
/// say, by whether the output is in the file.
pub fn output(scope: &Scope<'_>, name: &'static str, table: &TensorRef) -> Result<Linear> {
    let own = (name, "output");
    let is_tied = match scope.is_tied()? {
        Some(is_tied) => is_tied,
        None => !scope.has(own)?,
    };
    if is_tied {
        return Ok(Linear::new(Matrix::whole(table.clone())));
    }
    scope.linear(own, table.shape[0], table.shape[1], false)
}
