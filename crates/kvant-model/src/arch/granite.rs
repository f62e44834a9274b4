//! Granite 3: Llama with four multipliers, on embeddings, residuals, scores and logits.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts};
use crate::blocks::{Ffn, Pairing};
use crate::config::{Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let attention_bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let mlp_bias = hyper.flag(Key("mlp_bias", ""), false)?;
    let multiplier = |key| Ok(hyper.positive_if(key)?.map(|m| m as f32));
    let embedding_scale = multiplier(Key("embedding_multiplier", "embedding_scale"))?.unwrap_or(1.0);
    let residual_scale = multiplier(Key("residual_multiplier", "residual_scale"))?.unwrap_or(1.0);
    let logits_divisor = multiplier(Key("logits_scaling", "logit_scale"))?.unwrap_or(1.0);
    let score_scale = multiplier(Key("attention_multiplier", "attention.scale"))?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, attention_bias, attention_bias)?;
        attention.rope = Some(rope.clone());
        attention.scoring.scale = score_scale.unwrap_or_else(|| dims.score_scale());
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        let mut block = usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))?;
        block.residual_scale = residual_scale;
        Ok(block)
    })?;
    let mut decoder = usual::decoder(parts, &dims, blocks, 0.0)?;
    decoder.embedding = decoder.embedding.scaled(embedding_scale);
    decoder.head.scale = 1.0 / logits_divisor;
    usual::boxed(decoder)
}
