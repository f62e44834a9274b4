//! The sizes every decoder has.

use super::{Key, ModelConfig};
use crate::error::Result;

/// Sizes common to all architectures here.
#[derive(Debug, Clone, Copy)]
pub struct Dims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
}

impl Dims {
    const HIDDEN: Key = Key("hidden_size|n_embd", "embedding_length");
    /// How many layers there are.
    pub const LAYERS: Key = Key("num_hidden_layers|n_layer", "block_count");
    const HEADS: Key = Key("num_attention_heads|n_head", "attention.head_count");
    const KV_HEADS: Key = Key("num_key_value_heads", "attention.head_count_kv");
    const HEAD_DIM: Key = Key("head_dim|qk_head_dim|qk_rope_head_dim", "attention.key_length");

    /// Reads and checks them.
    pub fn read(config: &ModelConfig<'_>) -> Result<Self> {
        Self::with_layers(config, Self::layers(config)?)
    }

    /// The number of layers. GGUF also counts those behind the last that predict further tokens.
    pub fn layers(config: &ModelConfig<'_>) -> Result<usize> {
        const PREDICTING: Key = Key("", "nextn_predict_layers");
        let (layers, predicting) = (config.size(Self::LAYERS)?, config.count(PREDICTING)?.unwrap_or(0));
        if predicting >= layers {
            return Err(config.refused(PREDICTING, format!("{predicting} of {layers} layers")));
        }
        Ok(layers - predicting)
    }

    /// The same for configurations that tell the number of layers in another way.
    pub fn with_layers(config: &ModelConfig<'_>, layers: usize) -> Result<Self> {
        let (kv_heads, head_dim) = (config.size_if(Self::KV_HEADS)?, config.size_if(Self::HEAD_DIM)?);
        Self::of(config, layers, kv_heads, head_dim)
    }

    /// The same for configurations that tell heads in another way.
    pub fn of(
        config: &ModelConfig<'_>,
        layers: usize,
        kv_heads: Option<usize>,
        head_dim: Option<usize>,
    ) -> Result<Self> {
        let hidden = config.size(Self::HIDDEN)?;
        let heads = config.size(Self::HEADS)?;
        let kv_heads = kv_heads.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let why = format!("{kv_heads} key-value heads do not divide {heads} query heads");
            return Err(config.refused(Self::KV_HEADS, why));
        }
        let head_dim = match head_dim {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let why = format!("is missing, and {heads} heads do not divide the hidden size {hidden}");
                return Err(config.refused(Self::HEAD_DIM, why));
            }
        };
        if heads.saturating_mul(head_dim) > super::MAX_SIZE {
            return Err(config.refused(Self::HEAD_DIM, format!("{heads} heads of {head_dim} are too wide")));
        }
        Ok(Self { hidden, layers, heads, kv_heads, head_dim })
    }

    /// Width of all queries of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys (or values) of a token.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The usual multiplier of scores.
    pub fn score_scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}
