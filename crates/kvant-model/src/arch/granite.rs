//! Granite 3: Llama with four multipliers, on embeddings, residuals, scores and logits.

use crate::arch::Scope;
use crate::arch::common::{self, Common};
use crate::config::{Key, ModelConfig, RopeKeys};
use crate::description::{Description, Ffn, Pairing};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let attention_bias = config.flag(common::ATTENTION_BIAS, false)?;
    let mlp_bias = config.flag(Key("mlp_bias", ""), false)?;
    let scales = Multipliers::read(config)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, None, (attention_bias, attention_bias))?;
        attention.rope = Some(rope);
        attention.scale = scales.score.unwrap_or_else(|| dims.score_scale());
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        let mut described = common::pre_norm(layer, &dims, eps, attention, Ffn::Dense(mlp))?;
        described.residuals.iter_mut().for_each(|residual| residual.scale = scales.residual);
        Ok(described)
    })?;
    let mut description = common::decoder(scope, &dims, layers, 0.0)?;
    description.embedding.scale = scales.embedding;
    description.head.scale = 1.0 / scales.logits_divisor;
    Ok(description)
}

/// The multipliers of the Granite family.
pub struct Multipliers {
    pub embedding: f32,
    pub residual: f32,
    pub logits_divisor: f32,
    /// Of scores, in place of the usual one.
    pub score: Option<f32>,
}

impl Multipliers {
    pub fn read(config: &ModelConfig<'_>) -> Result<Self> {
        let multiplier = |key| Ok(config.positive_if(key)?.map(|m| m as f32));
        Ok(Self {
            embedding: multiplier(Key("embedding_multiplier", "embedding_scale"))?.unwrap_or(1.0),
            residual: multiplier(Key("residual_multiplier", "residual_scale"))?.unwrap_or(1.0),
            logits_divisor: multiplier(Key("logits_scaling", "logit_scale"))?.unwrap_or(1.0),
            score: multiplier(Key("attention_multiplier", "attention.scale"))?,
        })
    }
}
