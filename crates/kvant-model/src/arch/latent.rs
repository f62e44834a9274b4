//! Multi-head latent attention (MLA), and the routers of models that have it.

use crate::arch::Scope;
use crate::arch::common;
use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER, RENORMALISE};
use crate::config::{Dims, Key, RopeKeys, query_gain, yarn_score_gain};
use crate::description::{
    Activation, Description, ExpertGroups, Ffn, Inner, LatentAttention, LatentQuery, Layer, Matrix, Mixer,
    Mlp, Moe, Pairing, QueryGain, Renormalise, Residual, RopeId, Router, RouterScore, RowRange, SharedExpert,
    Vector,
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
        let size = |name| config.size(Key(name, ""));
        let (nope_dim, rope_dim) = (size("qk_nope_head_dim")?, size("qk_rope_head_dim")?);
        let keys = RopeKeys::usual(Pairing::Halves);
        // The share of rotated channels, where there is one, is that of the whole head.
        let mut rope = scope.read_rope(&keys, rope_dim)?;
        if rope.dims() != rope_dim {
            rope = scope.read_rope(&keys, nope_dim + rope_dim)?;
        }
        if rope.dims() != rope_dim {
            let found = rope.dims();
            return Err(LoadError::mismatch(format!(
                "{found} of {rope_dim} channels for the rotation would turn"
            )));
        }
        if config.flag(Key("rope_interleave", ""), true)? {
            rope = rope.with_pairing(Pairing::Neighbours);
        }
        let usual = ((nope_dim + rope_dim) as f64).powf(-0.5);
        Ok(Self {
            heads: dims.heads,
            hidden: dims.hidden,
            nope_dim,
            rope_dim,
            latent_dim: size("kv_lora_rank")?,
            value_dim: size("v_head_dim")?,
            query_rank: config.size_if(Key("q_lora_rank", ""))?,
            bias: config.flag(common::ATTENTION_BIAS, false)?,
            rope: scope.add_rope(rope),
            query_gain: query_gain(config)?,
            scale: (usual * yarn_score_gain(config)?) as f32,
        })
    }

    /// Attention of a layer, with a slot of its own.
    fn attention(&self, layer: &Scope<'_>, index: usize) -> Result<LatentAttention> {
        let Self { heads, hidden, nope_dim, rope_dim, latent_dim, value_dim, .. } = *self;
        let place = layer.inside(("self_attn", ""));
        let linear = |name, outputs, inputs, bias| place.linear((name, ""), outputs, inputs, bias);
        let queries = heads * (nope_dim + rope_dim);
        let query = match self.query_rank {
            None => LatentQuery::Direct(linear("q_proj", queries, hidden, false)?),
            Some(rank) => LatentQuery::LowRank {
                down: linear("q_a_proj", rank, hidden, self.bias)?,
                norm: place.rms_norm(("q_a_layernorm", ""), rank, INNER_EPS, 0.0)?,
                up: linear("q_b_proj", queries, rank, false)?,
            },
        };
        // Of each head the rows to its key, then those to its value.
        let up =
            Matrix::whole(place.weight(("kv_b_proj", ""), &[heads * (nope_dim + value_dim), latent_dim])?);
        let part = |first: usize, count: usize| -> Vec<Matrix> {
            let rows = |head| Some(RowRange::from(head * (nope_dim + value_dim) + first, count));
            (0..heads).map(|head| Matrix { rows: rows(head), ..up.clone() }).collect()
        };
        let shape = LatentAttention::latent_shape(latent_dim, rope_dim, None);
        Ok(LatentAttention {
            heads,
            nope_dim,
            rope_dim,
            latent_dim,
            value_dim,
            window: None,
            query,
            latent: linear("kv_a_proj_with_mqa", latent_dim + rope_dim, hidden, self.bias)?,
            latent_norm: place.rms_norm(("kv_a_layernorm", ""), latent_dim, INNER_EPS, 0.0)?,
            key_up: part(0, nope_dim),
            value_up: part(nope_dim, value_dim),
            rope: Some(self.rope),
            query_gain: self.query_gain,
            scale: self.scale,
            output: linear("o_proj", hidden, heads * value_dim, self.bias)?,
            slot: layer.slots(|slots| slots.latent(index, shape)),
        })
    }
}

/// A model of latent attention: a perceptron in the layers that `is_dense` names, in the others what `experts` gives.
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
    let layers = common::layers(scope, dims.layers, |layer, index| {
        let ffn = if is_dense(index) {
            Ffn::Dense(common::gated_mlp(layer, dims.hidden, config.size(common::INNER)?, activation, false)?)
        } else {
            Ffn::Experts(Box::new(experts(layer)?))
        };
        let norm = |name| layer.rms_norm((name, ""), dims.hidden, eps, 0.0);
        let attention = Mixer::LatentAttention(Box::new(latent.attention(layer, index)?));
        let attention = Residual::pre_norm(norm("input_layernorm")?, attention);
        let ffn = Residual::pre_norm(norm("post_attention_layernorm")?, Mixer::Ffn(ffn));
        Ok(Layer { residuals: vec![attention, ffn] })
    })?;
    common::decoder(scope, &dims, layers, 0.0)
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
    let Some(count) = layer.config().count(Key("n_shared_experts", ""))? else { return Ok(None) };
    let inner = inner * count;
    let gate = layer.linear(("mlp.shared_experts.gate_proj", ""), inner, hidden, false)?;
    let up = layer.linear(("mlp.shared_experts.up_proj", ""), inner, hidden, false)?;
    let down = layer.linear(("mlp.shared_experts.down_proj", ""), hidden, inner, false)?;
    Ok(Some(SharedExpert { mlp: Mlp::new(Inner::Gated { gate, up }, activation, down), gate: None }))
}

/// A router with sigmoid scores and a bias that only chooses.
pub fn sigmoid_router(place: &Scope<'_>, name: &'static str, hidden: usize) -> Result<Router> {
    let router = softmax_router(place, name, hidden)?;
    let count = router.linear.outputs();
    let bias = place.tensor((&format!("{name}.e_score_correction_bias"), ""), &[count])?;
    Ok(Router { score: RouterScore::Sigmoid, bias: Some(Vector::whole(bias)), ..router })
}

/// A router with softmax scores over all experts, of which groups may drop out.
pub fn softmax_router(place: &Scope<'_>, name: &'static str, hidden: usize) -> Result<Router> {
    const GROUPS: Key = Key("n_group", "");
    let config = place.config();
    let (count, chosen) = (config.size(common::EXPERTS)?, config.size(common::EXPERTS_CHOSEN)?);
    let groups = config.size_if(GROUPS)?.unwrap_or(1);
    let kept = config.size_if(Key("topk_group", ""))?.unwrap_or(1);
    if !count.is_multiple_of(groups) || kept > groups || chosen > count / groups * kept {
        let why = format!("{chosen} of {count} experts out of {kept} of {groups} groups");
        return Err(config.refused(GROUPS, why));
    }
    let renormalise = config.flag(RENORMALISE, true)?;
    Ok(Router {
        groups: (groups > 1).then_some(ExpertGroups { count: groups, kept, best: 2.min(count / groups) }),
        renormalise: renormalise.then_some(Renormalise { epsilon: 1e-20, least: 0.0 }),
        scale: config.positive_if(Key("routed_scaling_factor", ""))?.unwrap_or(1.0) as f32,
        ..Router::softmax(place.exact_linear((name, ""), count, hidden)?, chosen, renormalise)
    })
}
