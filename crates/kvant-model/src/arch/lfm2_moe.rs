//! LFM 2 with experts behind a sigmoid router, after a few dense layers.

use crate::arch::common::{self, ExpertNames};
use crate::arch::qwen3_moe::{EXPERT_INNER, RENORMALISE};
use crate::arch::{Scope, lfm2};
use crate::config::{Dims, Key};
use crate::description::{Activation, Description, Ffn, Renormalise, RouterScore};
use crate::error::Result;

const EXPERT: ExpertNames = ExpertNames {
    router: "feed_forward.gate",
    gate: "feed_forward.experts.{}.w1",
    up: "feed_forward.experts.{}.w3",
    down: "feed_forward.experts.{}.w2",
};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let hidden = Dims::read(config)?.hidden;
    let (inner, expert_inner) = (config.size(common::INNER)?, config.size(EXPERT_INNER)?);
    let dense = config.count(Key("num_dense_layers", "leading_dense_block_count"))?.unwrap_or(0);
    let biased = config.flag(Key("use_expert_bias", ""), true)?;
    let renormalise = config.flag(RENORMALISE, true)?;
    let scale =
        config.positive_if(Key("routed_scaling_factor", "expert_weights_scale"))?.unwrap_or(1.0) as f32;
    lfm2::described(scope, |layer, index| {
        if index < dense {
            return Ok(Ffn::Dense(lfm2::mlp(layer, hidden, inner)?));
        }
        let mut moe = common::experts(layer, &EXPERT, hidden, expert_inner, Activation::Silu, renormalise)?;
        let router = &mut moe.router;
        router.score = RouterScore::Sigmoid;
        router.renormalise = renormalise.then_some(Renormalise { epsilon: 1e-6, least: 0.0 });
        router.scale = scale;
        if biased {
            let name = ("feed_forward.expert_bias", "exp_probs_b.bias");
            router.bias = Some(layer.numbers(name, &[moe.experts.len()])?);
        }
        Ok(Ffn::Experts(Box::new(moe)))
    })
}
