//! Sizes of a synthetic model, and those of models people know.

use super::vocabulary::LEAST_VOCABULARY;
use crate::config::MAX_SIZE;
use crate::error::{LoadError, Result};

/// The sizes of a Llama.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Inner width of the feed-forward block.
    pub ffn: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// The output layer is the embedding once more.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// The context the file says the model was made for.
    pub context: usize,
}

impl Shape {
    /// Llama 3.2 1B, but for the stretched frequencies beyond 8,192 positions.
    pub const LLAMA_3_2_1B: Self = Self {
        layers: 16,
        hidden: 2048,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        ffn: 8192,
        vocabulary: 128_256,
        tied: true,
        rope_base: 500_000.0,
        context: 131_072,
    };

    /// SmolLM2 135M.
    pub const SMOLLM2_135M: Self = Self {
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        vocabulary: 49_152,
        tied: true,
        rope_base: 100_000.0,
        context: 8192,
    };

    /// Weights in matrices: all but the norms.
    pub fn parameters(&self) -> u64 {
        let size = |rows: usize, columns: usize| rows as u64 * columns as u64;
        let queries = size(self.hidden, self.heads * self.head_dim);
        let keys = size(self.hidden, self.kv_heads * self.head_dim);
        let layer = 2 * queries + 2 * keys + 3 * size(self.hidden, self.ffn);
        let tables = if self.tied { 1 } else { 2 };
        self.layers as u64 * layer + tables * size(self.vocabulary, self.hidden)
    }

    /// Refuses what no model has; rows of weights must be whole blocks of `block`.
    pub(super) fn check(&self, block: usize) -> Result<()> {
        let sizes = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv heads", self.kv_heads),
            ("head dim", self.head_dim),
            ("ffn", self.ffn),
            ("vocabulary", self.vocabulary),
            ("context", self.context),
        ];
        for (name, size) in sizes {
            if !(1..=MAX_SIZE).contains(&size) {
                return Err(refused(format!("{name} is {size}, outside 1 to {MAX_SIZE}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return Err(refused(format!("{kv_heads} kv heads do not divide {heads} heads")));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(refused(format!("head dim is {}; rotated channels come in pairs", self.head_dim)));
        }
        if self.vocabulary < LEAST_VOCABULARY {
            let asked = self.vocabulary;
            return Err(refused(format!("vocabulary is {asked}; bytes alone need {LEAST_VOCABULARY}")));
        }
        if !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return Err(refused(format!("rope base is {}, not a positive number", self.rope_base)));
        }
        let widths =
            [("hidden", self.hidden), ("ffn", self.ffn), ("heads × head dim", self.heads * self.head_dim)];
        for (name, width) in widths {
            if width > MAX_SIZE || !width.is_multiple_of(block) {
                let why = format!("is {width}; rows are whole blocks of {block}, up to {MAX_SIZE}");
                return Err(refused(format!("{name} {why}")));
            }
        }
        Ok(())
    }
}

fn refused(why: String) -> LoadError {
    LoadError::mismatch(format!("no model has this shape: {why}"))
}
