//! GLM 4.5 to 4.7: experts behind a sigmoid router with a correction bias, an expert that all tokens visit, the first layers
//! dense, half of every head rotated.

use crate::arch::common::{self, Common};
use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER};
use crate::arch::{Name, Scope, mtp};
use crate::config::{Key, ModelConfig, RopeKeys};
use crate::description::{
    Activation, Description, ExpertGroups, Ffn, Inner, Mlp, Moe, Pairing, Renormalise, Router, RouterScore,
    SharedExpert, Vector,
};
use crate::error::Result;

/// Leading layers without experts.
pub const DENSE_LAYERS: Key = Key("first_k_dense_replace", "leading_dense_block_count");
const Q_NORM: Name = ("self_attn.q_norm", "attn_q_norm");

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let expert_inner = config.size(EXPERT_INNER)?;
    let shared = config.count(Key("n_shared_experts", "expert_shared_count"))?;
    let dense = config.count(DENSE_LAYERS)?.unwrap_or(0);
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let normed = config.flag_if(Key("use_qk_norm", ""))?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let described = |layer: &Scope<'_>, index: usize| {
        let mut attention = common::attention(layer, index, &dims, None, (bias, false))?;
        // GGUF does not say; there the norms are in the file or not.
        if normed.map_or_else(|| layer.has(Q_NORM), Ok)? {
            (attention.q_norm, attention.k_norm) =
                common::qk_norm(layer, (dims.head_dim, dims.head_dim), eps, 0.0)?;
        }
        attention.rope = Some(rope);
        let ffn = if index < dense {
            Ffn::Dense(common::gated_mlp(layer, dims.hidden, inner, activation, false)?)
        } else {
            let mut moe = experts(layer, dims.hidden, expert_inner, activation)?;
            moe.shared = shared
                .map(|shared| shared_expert(layer, dims.hidden, shared * expert_inner, activation))
                .transpose()?;
            Ffn::Experts(Box::new(moe))
        };
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        let attention_norm = norm(("input_layernorm", "attn_norm"))?;
        let ffn_norm = norm(("post_attention_layernorm", "post_attention_norm"))?;
        Ok(common::pre_normed(attention_norm, attention, ffn_norm, ffn))
    };
    let layers = common::layers(scope, dims.layers, described)?;
    let description = common::decoder(scope, &dims, layers, 0.0)?;
    mtp::described(scope, description, &mtp::NEXTN, described)
}

/// Experts behind a sigmoid router with a correction bias.
pub fn experts(layer: &Scope<'_>, hidden: usize, inner: usize, activation: Activation) -> Result<Moe> {
    let mut moe = common::experts(layer, &EXPERT, hidden, inner, activation, true)?;
    let count = moe.experts.len();
    let bias = layer.numbers(("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"), &[count])?;
    moe.router = sigmoid_router(layer.config(), moe.router, bias, count)?;
    Ok(moe)
}

/// Scores by a sigmoid, experts picked by score and bias, perhaps out of the best groups only.
fn sigmoid_router(config: &ModelConfig<'_>, router: Router, bias: Vector, count: usize) -> Result<Router> {
    const GROUPS: Key = Key("n_group", "expert_group_count");
    const KEPT: Key = Key("topk_group", "expert_group_used_count");
    let (groups, kept) = (config.size_if(GROUPS)?.unwrap_or(1), config.size_if(KEPT)?.unwrap_or(1));
    if !count.is_multiple_of(groups) {
        return Err(config.refused(GROUPS, format!("{groups} groups do not divide {count} experts")));
    }
    if kept > groups || kept * (count / groups) < router.chosen {
        let chosen = router.chosen;
        return Err(
            config.refused(KEPT, format!("{kept} of {groups} groups hold fewer than {chosen} experts"))
        );
    }
    let renormalise = config.flag(Key("norm_topk_prob", "expert_weights_norm"), true)?;
    Ok(Router {
        score: RouterScore::Sigmoid,
        bias: Some(bias),
        groups: (groups > 1).then_some(ExpertGroups { count: groups, kept, best: 2 }),
        renormalise: renormalise.then_some(Renormalise { epsilon: 1e-20, least: 0.0 }),
        scale: config.positive_if(Key("routed_scaling_factor", "expert_weights_scale"))?.unwrap_or(1.0)
            as f32,
        ..router
    })
}

/// An expert that every token visits, as it is.
pub fn shared_expert(
    layer: &Scope<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
) -> Result<SharedExpert> {
    let gate = layer.linear(("mlp.shared_experts.gate_proj", "ffn_gate_shexp"), inner, hidden, false)?;
    let up = layer.linear(("mlp.shared_experts.up_proj", "ffn_up_shexp"), inner, hidden, false)?;
    let down = layer.linear(("mlp.shared_experts.down_proj", "ffn_down_shexp"), hidden, inner, false)?;
    Ok(SharedExpert { mlp: Mlp::new(Inner::Gated { gate, up }, activation, down), gate: None })
}
