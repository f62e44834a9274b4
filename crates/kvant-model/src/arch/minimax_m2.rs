//! MiniMax-M2: experts in every layer behind a sigmoid router with a correction bias, norms over all heads of queries and of keys,
//! part of every head rotated.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, mixtral, mtp};
use crate::config::{Key, RopeKeys};
use crate::description::{Description, Ffn, Pairing, RouterScore};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let inner = config.size_if(Key("", "expert_feed_forward_length"))?.unwrap_or(inner);
    let normed = config.flag(Key("use_qk_norm", ""), true)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let described = |layer: &Scope<'_>, index: usize| {
        let mut attention = common::attention(layer, index, &dims, None, (false, false))?;
        if normed {
            (attention.q_norm, attention.k_norm) =
                common::qk_norm(layer, (dims.query_width(), dims.kv_width()), eps, 0.0)?;
        }
        attention.rope = Some(rope);
        let mut moe = common::experts(layer, &mixtral::EXPERT, dims.hidden, inner, activation, true)?;
        let count = moe.experts.len();
        let bias = ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias");
        moe.router.score = RouterScore::Sigmoid;
        moe.router.bias = Some(layer.numbers(bias, &[count])?);
        common::pre_norm(layer, &dims, eps, attention, Ffn::Experts(Box::new(moe)))
    };
    let layers = common::layers(scope, dims.layers, described)?;
    let description = common::decoder(scope, &dims, layers, 0.0)?;
    mtp::described(scope, description, &mtp::MINIMAX, described)
}
