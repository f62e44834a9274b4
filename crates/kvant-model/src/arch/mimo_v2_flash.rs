//! MiMo-V2: keys wider than values, which are scaled; layers that slide have heads of keys and values of their own and a logit per
//! head without a value; experts behind a sigmoid router, on some layers an MLP. The layer of a head for further tokens slides and has
//! an MLP.

use crate::arch::common;
use crate::arch::qwen3_moe::EXPERT_INNER;
use crate::arch::{Scope, glm4_moe, mtp};
use crate::config::{Dims, Key, ModelConfig, RopeKeys};
use crate::description::{
    Activation, Attention, Branch, Description, Ffn, Layer, Mixer, Pairing, Projection, Residual, RopeId,
    Vector,
};
use crate::error::{LoadError, Result};
use kvant_cache::KvShape;

const KV_HEADS: Key = Key("num_key_value_heads", "attention.head_count_kv");
const FULL_ROPE: RopeKeys = RopeKeys { default_theta: 5_000_000.0, ..RopeKeys::usual(Pairing::Halves) };
const SLIDING_ROPE: RopeKeys = RopeKeys {
    layer_type: "sliding_attention",
    theta: Key("swa_rope_theta", "rope.freq_base_swa"),
    scaled: false,
    ..RopeKeys::usual(Pairing::Halves)
};

/// The heads of layers that see everything, or of those that slide.
struct Heads {
    dims: Dims,
    value_dim: usize,
    window: Option<usize>,
    rope: RopeId,
    /// Whether Hugging Face checkpoints have logits without a value.
    has_sinks: bool,
}

/// What all layers share.
struct Family {
    eps: f32,
    activation: Activation,
    bias: bool,
    value_scale: f32,
    full: Heads,
    sliding: Heads,
}

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let count = Dims::layers(config)?;
    let slides = config.layer_flags(Key("hybrid_layer_pattern", ""), count)?;
    let windows = common::windows(config, count, |layer| match &slides {
        Some(slides) => slides[layer],
        None => layer != 0 && !(layer + 1).is_multiple_of(6),
    })?;
    let family = Family::read(scope, &windows)?;
    let (hidden, inner) = (family.full.dims.hidden, config.size(common::INNER)?);
    let (expert_inner, sparse) = (config.size(EXPERT_INNER)?, sparse_layers(config, count)?);

    let layers = common::layers(scope, count, |layer, index| {
        let heads = if windows[index].is_some() { &family.sliding } else { &family.full };
        let has_experts = match config.is_gguf() {
            true => layer.has(("mlp.gate", "ffn_gate_inp"))?,
            false => sparse[index],
        };
        let ffn = if has_experts {
            Ffn::Experts(Box::new(glm4_moe::experts(layer, hidden, expert_inner, family.activation)?))
        } else {
            Ffn::Dense(common::gated_mlp(layer, hidden, inner, family.activation, false)?)
        };
        family.layer(layer, index, heads, "post_attention_layernorm", ffn)
    })?;
    let description = common::decoder(scope, &family.full.dims, layers, 0.0)?;
    mtp::described(scope, description, &mtp::MIMO_V2, |layer, index| {
        let mlp = common::gated_mlp(layer, hidden, inner, family.activation, false)?;
        family.layer(layer, index, &family.sliding, "pre_mlp_layernorm", Ffn::Dense(mlp))
    })
}

/// Which layers have experts: in Transformers' words, or by the list of released configurations.
fn sparse_layers(config: &ModelConfig<'_>, layers: usize) -> Result<Vec<bool>> {
    const KINDS: Key = Key("mlp_layer_types", "");
    if let Some(kinds) = config.texts(KINDS, layers)? {
        let is_sparse = |kind: String| match kind.as_str() {
            "sparse" => Ok(true),
            "dense" => Ok(false),
            other => {
                Err(LoadError::unsupported(format!("key \"mlp_layer_types\": {other:?} is not supported")))
            }
        };
        return kinds.into_iter().map(is_sparse).collect();
    }
    let listed = config.layer_flags(Key("moe_layer_freq", ""), layers)?;
    Ok(listed.unwrap_or_else(|| (0..layers).map(|layer| layer != 0).collect()))
}

impl Family {
    fn read(scope: &Scope<'_>, windows: &[Option<usize>]) -> Result<Self> {
        const HEAD_DIM: Key = Key("head_dim", "attention.key_length");
        const VALUE_DIM: Key = Key("v_head_dim", "attention.value_length");
        const SLIDING_HEADS: Key = Key("swa_num_attention_heads", "");
        let config = scope.config();
        let kv_heads = config.layer_sizes_if(KV_HEADS, windows.len())?;
        let of = |slides: bool| {
            let first = windows.iter().position(|window| window.is_some() == slides).unwrap_or(0);
            kv_heads.as_ref().map(|heads| heads[first])
        };
        let (head_dim, value_dim) = (config.size(HEAD_DIM)?, config.size(VALUE_DIM)?);
        let full = Dims::of(config, windows.len(), of(false), Some(head_dim))?;
        if let Some(other) = config.size_if(SLIDING_HEADS)?.filter(|&heads| heads != full.heads) {
            return Err(config.refused(SLIDING_HEADS, format!("{other} heads beside {}", full.heads)));
        }
        // Transformers has no key for their number.
        let sliding_kv_heads = match config.is_gguf() {
            true => of(true),
            false => Some(
                config
                    .size_if(Key("swa_num_key_value_heads", ""))?
                    .unwrap_or_else(|| full.kv_heads.saturating_mul(2)),
            ),
        };
        let sliding_head_dim = config.size_if(Key("swa_head_dim", ""))?.unwrap_or(head_dim);
        let sliding = Dims::of(config, windows.len(), sliding_kv_heads, Some(sliding_head_dim))?;
        Ok(Self {
            eps: config.positive(common::RMS_EPS)? as f32,
            activation: config.activation(common::ACTIVATION, Activation::Silu)?,
            bias: config.flag(common::ATTENTION_BIAS, false)?,
            value_scale: config
                .positive_if(Key("attention_value_scale", "attention.value_scale"))?
                .unwrap_or(1.0) as f32,
            full: Heads {
                dims: full,
                value_dim,
                window: None,
                rope: scope.rope(&FULL_ROPE, head_dim)?,
                has_sinks: config.flag(Key("add_full_attention_sink_bias", ""), false)?,
            },
            sliding: Heads {
                dims: sliding,
                value_dim: config.size_if(Key("swa_v_head_dim", ""))?.unwrap_or(value_dim),
                window: config.count(common::WINDOW)?,
                rope: scope.rope(&SLIDING_ROPE, sliding_head_dim)?,
                has_sinks: config.flag(Key("add_swa_attention_sink_bias", ""), true)?,
            },
        })
    }

    fn layer(
        &self,
        layer: &Scope<'_>,
        index: usize,
        heads: &Heads,
        ffn_norm: &'static str,
        ffn: Ffn,
    ) -> Result<Layer> {
        let norm = |name| layer.rms_norm(name, heads.dims.hidden, self.eps, 0.0);
        let mixer = Mixer::Attention(Box::new(self.attention(layer, index, heads)?));
        // A multiplier of values is one of what the layer gives: the output layer has no bias.
        let attention = Branch {
            scale: self.value_scale,
            ..Branch::new(Some(norm(("input_layernorm", "attn_norm"))?), mixer, None)
        };
        let ffn = Residual::pre_norm(norm((ffn_norm, "ffn_norm"))?, Mixer::Ffn(ffn));
        Ok(Layer::new(vec![Residual::of(attention), ffn]))
    }

    fn attention(&self, layer: &Scope<'_>, index: usize, heads: &Heads) -> Result<Attention> {
        let Heads { dims, value_dim, window, rope, has_sinks } = *heads;
        let (hidden, is_gguf) = (dims.hidden, layer.config().is_gguf());
        let (q_width, k_width, v_width) = (dims.query_width(), dims.kv_width(), dims.kv_heads * value_dim);
        let linear = |name, outputs| layer.linear(name, outputs, hidden, self.bias);
        // Hugging Face checkpoints that have one matrix keep it in parts, each with some of the queries, keys and values.
        let qkv = ("self_attn.qkv_proj", "attn_qkv");
        let projection = if is_gguf && layer.has(qkv)? {
            Projection::Fused(linear(qkv, q_width + k_width + v_width)?)
        } else {
            Projection::Apart {
                q: linear(("self_attn.q_proj", "attn_q"), q_width)?,
                k: linear(("self_attn.k_proj", "attn_k"), k_width)?,
                v: linear(("self_attn.v_proj", "attn_v"), v_width)?,
            }
        };
        let output =
            layer.linear(("self_attn.o_proj", "attn_output"), hidden, dims.heads * value_dim, false)?;
        let shape = KvShape { kv_heads: dims.kv_heads, key_dim: dims.head_dim, value_dim, window };
        let slot = layer.keys_values(index, shape);
        // As released, and as Transformers calls them.
        let names = ["self_attn.attention_sink_bias", "self_attn.sinks"].map(|hf| (hf, "attn_sinks.weight"));
        let renamed = layer.has_tensor(names[1])?;
        let has_sinks = if is_gguf { renamed || layer.has_tensor(names[0])? } else { has_sinks };
        let sinks =
            has_sinks.then(|| layer.tensor(names[usize::from(renamed)], &[dims.heads])).transpose()?;
        Ok(Attention {
            value_dim,
            rope: Some(rope),
            sink_logits: sinks.map(Vector::whole),
            ..common::attention_over(slot, &dims, window, projection, output)
        })
    }
}
