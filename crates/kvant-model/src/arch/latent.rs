//! Multi-head latent attention (MLA), and the routers of models that have it.

use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER, RENORMALISE};
use crate::arch::{Name, Scope, common, glm4_moe, mtp};
use crate::config::{Dims, Key, ModelConfig, RopeKeys, YARN_LOG_MULTIPLIER, query_gain, yarn_score_gain};
use crate::description::{
    Activation, Description, ExpertGroups, Ffn, LatentAttention, LatentHeads, LatentQuery, Layer, Matrix,
    Mixer, Moe, Pairing, QueryGain, Renormalise, Residual, RopeId, Router, RouterScore, RowRange,
    SharedExpert, TensorRef,
};
use crate::error::{LoadError, Result};

/// Of the norms inside attention, whatever the configuration says of the others.
const INNER_EPS: f32 = 1e-6;

/// The sizes of latent attention, and what all its layers share.
pub struct Latent {
    heads: usize,
    hidden: usize,
    nope_dim: usize,
    rope_dim: usize,
    latent_dim: usize,
    value_dim: usize,
    /// Width of the narrow space of queries.
    query_rank: Option<usize>,
    bias: bool,
    rope: RopeId,
    query_gain: Option<QueryGain>,
    scale: f32,
}

impl Latent {
    pub fn read(scope: &Scope<'_>, dims: &Dims) -> Result<Self> {
        let config = scope.config();
        let rope_dim = config.size(Key("qk_rope_head_dim", "rope.dimension_count"))?;
        let (nope_dim, value_dim) = head_dims(config, rope_dim)?;
        let keys = RopeKeys::usual(Pairing::Halves);
        if scope.rope_override().changes_scaling() {
            return Err(LoadError::unsupported(
                "a model with latent attention (MLA) scales its scores by its own YaRN factor: of the rotary options, only \
                 --rope-freq-base applies",
            ));
        }
        // The share of rotated channels, where there is one, is that of the whole head, as in Hugging Face; of the rotated part it need
        // not even be a whole number of pairs.
        let rope = scope.read_rope(&keys, nope_dim + rope_dim);
        let mut rope = match rope {
            Ok(rope) if rope.dims() == rope_dim => rope,
            _ => scope.read_rope(&keys, rope_dim)?,
        };
        if rope.dims() != rope_dim {
            let found = rope.dims();
            return Err(LoadError::mismatch(format!(
                "{found} of {rope_dim} channels for the rotation would turn"
            )));
        }
        // Scores are scaled instead.
        if config.positive_if(YARN_LOG_MULTIPLIER)?.is_some() {
            rope = rope.without_amplitude();
        }
        if config.flag(Key("rope_interleave", ""), true)? {
            rope = rope.paired(Pairing::Neighbours);
        }
        let usual = ((nope_dim + rope_dim) as f64).powf(-0.5);
        Ok(Self {
            heads: dims.heads,
            hidden: dims.hidden,
            nope_dim,
            rope_dim,
            latent_dim: config.size(Key("kv_lora_rank", "attention.kv_lora_rank"))?,
            value_dim,
            query_rank: config.size_if(Key("q_lora_rank", "attention.q_lora_rank"))?,
            bias: config.flag(common::ATTENTION_BIAS, false)?,
            rope: scope.add_rope(rope),
            query_gain: query_gain(config)?,
            scale: (usual * yarn_score_gain(config)?) as f32,
        })
    }

    /// For each head the ways from the latent to its key and to its value.
    fn ups(&self, place: &Scope<'_>) -> Result<LatentHeads> {
        let Self { heads, nope_dim, latent_dim, value_dim, .. } = *self;
        const BOTH: Name = ("kv_b_proj", "attn_kv_b");
        if place.config().is_gguf() && !(place.has_weights() && place.has(BOTH)?) {
            let keys = place.weight(("", "attn_k_b"), &[heads, latent_dim, nope_dim])?;
            let values = place.weight(("", "attn_v_b"), &[heads, value_dim, latent_dim])?;
            let each = |tensor: &TensorRef, transposed| -> Vec<Matrix> {
                let of = |head| Matrix { expert: Some(head), transposed, ..Matrix::whole(tensor.clone()) };
                (0..heads).map(of).collect()
            };
            return Ok(LatentHeads { key: each(&keys, true), value: each(&values, false) });
        }
        // Of each head the rows to its key, then those to its value.
        let both = Matrix::whole(place.weight(BOTH, &[heads * (nope_dim + value_dim), latent_dim])?);
        let part = |first: usize, count: usize| -> Vec<Matrix> {
            let rows = |head| Some(RowRange::from(head * (nope_dim + value_dim) + first, count));
            (0..heads).map(|head| Matrix { rows: rows(head), ..both.clone() }).collect()
        };
        Ok(LatentHeads { key: part(0, nope_dim), value: part(nope_dim, value_dim) })
    }

    /// Attention of a layer, with a slot of its own.
    fn attention(&self, layer: &Scope<'_>, index: usize) -> Result<LatentAttention> {
        let Self { heads, hidden, nope_dim, rope_dim, latent_dim, value_dim, .. } = *self;
        let place = layer.inside(("self_attn", ""));
        let linear = |name, outputs, inputs, bias| place.linear(name, outputs, inputs, bias);
        let queries = heads * (nope_dim + rope_dim);
        let query = match self.query_rank {
            None => LatentQuery::Direct(linear(("q_proj", "attn_q"), queries, hidden, false)?),
            Some(rank) => LatentQuery::LowRank {
                down: linear(("q_a_proj", "attn_q_a"), rank, hidden, self.bias)?,
                norm: place.rms_norm(("q_a_layernorm", "attn_q_a_norm"), rank, INNER_EPS, 0.0)?,
                up: linear(("q_b_proj", "attn_q_b"), queries, rank, false)?,
            },
        };
        let up = self.ups(&place)?;
        let shape = LatentAttention::latent_shape(latent_dim, rope_dim, None);
        Ok(LatentAttention {
            heads,
            nope_dim,
            rope_dim,
            latent_dim,
            value_dim,
            window: None,
            query,
            latent: linear(
                ("kv_a_proj_with_mqa", "attn_kv_a_mqa"),
                latent_dim + rope_dim,
                hidden,
                self.bias,
            )?,
            latent_norm: place.rms_norm(("kv_a_layernorm", "attn_kv_a_norm"), latent_dim, INNER_EPS, 0.0)?,
            up,
            rope: Some(self.rope),
            query_gain: self.query_gain,
            scale: self.scale,
            output: linear(("o_proj", "attn_output"), hidden, heads * value_dim, self.bias)?,
            slot: layer.slots(|slots| slots.latent(index, shape)),
        })
    }
}

/// Channels of a head's key that are not rotated, and of its value. GGUF files give a whole key, under names of their own unless
/// they are of the first kind, which kept keys and values of all heads.
fn head_dims(config: &ModelConfig<'_>, rope_dim: usize) -> Result<(usize, usize)> {
    if !config.is_gguf() {
        let size = |name| config.size(Key(name, ""));
        return Ok((size("qk_nope_head_dim")?, size("v_head_dim")?));
    }
    const KEY: Key = Key("", "attention.key_length_mla");
    let (key, value) = match config.size_if(KEY)? {
        Some(key) => (key, config.size(Key("", "attention.value_length_mla"))?),
        None => {
            (config.size(Key("", "attention.key_length"))?, config.size(Key("", "attention.value_length"))?)
        }
    };
    if key <= rope_dim {
        return Err(config.refused(KEY, format!("{rope_dim} of {key} channels turn, which leaves none")));
    }
    Ok((key - rope_dim, value))
}

/// A model of latent attention: an MLP in the layers that `is_dense` names, in the others what `experts` gives.
pub fn described(
    scope: &Scope<'_>,
    is_dense: impl Fn(usize) -> bool,
    experts: impl Fn(&Scope<'_>) -> Result<Moe>,
) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    let latent = Latent::read(scope, &dims)?;
    let described = |layer: &Scope<'_>, index: usize| {
        let ffn = if is_dense(index) {
            Ffn::Dense(common::gated_mlp(layer, dims.hidden, config.size(common::INNER)?, activation, false)?)
        } else {
            Ffn::Experts(Box::new(experts(layer)?))
        };
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        let attention = Mixer::LatentAttention(Box::new(latent.attention(layer, index)?));
        let attention = Residual::pre_norm(norm(("input_layernorm", "attn_norm"))?, attention);
        let ffn_norm = norm(("post_attention_layernorm", "ffn_norm"))?;
        let ffn = Residual::pre_norm(ffn_norm, Mixer::Ffn(ffn));
        Ok(Layer::new(vec![attention, ffn]))
    };
    let layers = common::layers(scope, dims.layers, described)?;
    let description = common::decoder(scope, &dims, layers, 0.0)?;
    mtp::described(scope, description, &mtp::NEXTN, described)
}

/// Experts with a tensor each behind this router, and those that every token visits as one.
pub fn experts(layer: &Scope<'_>, router: Router) -> Result<Moe> {
    let config = layer.config();
    let (hidden, inner) = (router.linear.inputs(), config.size(EXPERT_INNER)?);
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    let mut moe = common::experts(layer, &EXPERT, hidden, inner, activation, false)?;
    moe.router = router;
    moe.shared = shared(layer, hidden, inner, activation)?;
    Ok(moe)
}

/// The experts that every token visits, added as they are.
pub fn shared(
    layer: &Scope<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
) -> Result<Option<SharedExpert>> {
    const COUNT: Key = Key("n_shared_experts", "expert_shared_count");
    let Some(count) = layer.config().count(COUNT)? else { return Ok(None) };
    Ok(Some(glm4_moe::shared_expert(layer, hidden, inner.saturating_mul(count), activation)?))
}

/// A router with sigmoid scores and a bias that only chooses.
pub fn sigmoid_router(place: &Scope<'_>, name: &'static str, hidden: usize) -> Result<Router> {
    let router = softmax_router(place, name, hidden)?;
    let count = router.linear.outputs();
    let bias = place.numbers((&format!("{name}.e_score_correction_bias"), "exp_probs_b.bias"), &[count])?;
    Ok(Router { score: RouterScore::Sigmoid, bias: Some(bias), ..router })
}

/// A router with softmax scores over all experts, of which groups may drop out.
pub fn softmax_router(place: &Scope<'_>, name: &'static str, hidden: usize) -> Result<Router> {
    const GROUPS: Key = Key("n_group", "expert_group_count");
    let config = place.config();
    let (count, chosen) = (config.size(common::EXPERTS)?, config.size(common::EXPERTS_CHOSEN)?);
    let groups = config.size_if(GROUPS)?.unwrap_or(1);
    let kept = config.size_if(Key("topk_group", "expert_group_used_count"))?.unwrap_or(1);
    if !count.is_multiple_of(groups) || kept > groups || chosen > count / groups * kept {
        let why = format!("{chosen} of {count} experts out of {kept} of {groups} groups");
        return Err(config.refused(GROUPS, why));
    }
    // Files say so where shares are scaled to one; old configurations need not.
    let renormalise = config.flag(Key(RENORMALISE.0, "expert_weights_norm"), !config.is_gguf())?;
    Ok(Router {
        groups: (groups > 1).then_some(ExpertGroups { count: groups, kept, best: 2.min(count / groups) }),
        renormalise: renormalise.then_some(Renormalise { epsilon: 1e-20, least: 0.0 }),
        scale: config.positive_if(Key("routed_scaling_factor", "expert_weights_scale"))?.unwrap_or(1.0)
            as f32,
        ..Router::softmax(place.exact_linear((name, "ffn_gate_inp"), count, hidden)?, chosen, renormalise)
    })
}

#[cfg(test)]
mod tests {
    use crate::{Checkpoint, DType, Description};

    #[test]
    fn the_rotary_share_of_mistral4_is_of_the_whole_head() {
        let config = serde_json::json!({
            "model_type": "mistral4", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 88, "num_attention_heads": 4,
            "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 32, "head_dim": 20, "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 0, "n_routed_experts": 5, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "norm_topk_prob": true, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1,
            "routed_scaling_factor": 1.0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
            "vocab_size": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4}
        });
        let description = Description::of(&Checkpoint::from_config(config, DType::F16).unwrap()).unwrap();
        assert_eq!(description.ropes[0].dims(), 8);
    }
}
