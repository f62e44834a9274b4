//! Attention in its variants, as plain data.

use super::tree::tree;
use super::{Linear, RopeId};
use kvant_cache::KvSlot;

tree! {
    /// How queries, keys and values come out of the residual stream.
    pub enum Projection {
        /// Three linear layers.
        Apart {
            /// To `(heads, key_dim)`; `(heads, 2, key_dim)` with an output gate in it.
            q: W::Linear,
            /// To `(kv_heads, key_dim)`.
            k: W::Linear,
            /// To `(kv_heads, value_dim)`.
            v: W::Linear,
        },
        /// One layer whose output is all queries, then all keys, then all values.
        Fused(W::Linear),
        /// One layer whose output is `(heads, 3, head_dim)`: query, key and value of each head together.
        FusedByHead(W::Linear),
        /// Keys and values are those of the slot that this layer views.
        Shared {
            /// To `(heads, key_dim)`.
            q: W::Linear,
        },
        /// One layer gives keys and values: they are equal before norms and rotation.
        Equal {
            /// To `(heads, key_dim)`.
            q: W::Linear,
            /// To `(kv_heads, key_dim)`.
            kv: W::Linear,
        },
    }
}

/// What multiplies the heads' outputs before the output layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputGate {
    /// The sigmoid of the second half of every head of the query projection.
    InQuery,
}

/// When queries and keys are normed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NormPlace {
    /// Before they are rotated.
    #[default]
    BeforeRope,
    /// After.
    AfterRope,
}

/// A query at position `p` is multiplied by `1 + beta · ln(1 + ⌊p / every⌋)`, so that attention over long contexts stays sharp
/// (Llama 4, Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGain {
    /// How fast they grow.
    pub beta: f64,
    /// Positions between two steps: the context of the first training.
    pub every: usize,
}

impl QueryGain {
    /// The multiplier at a position.
    pub fn at(&self, position: usize) -> f64 {
        1.0 + self.beta * ((position / self.every) as f64).ln_1p()
    }
}

tree! {
    /// Softmax attention over keys and values.
    pub struct Attention {
        /// The slot it writes and reads, or views.
        pub slot: KvSlot,
        /// Query heads.
        pub heads: usize,
        /// Heads of keys and values.
        pub kv_heads: usize,
        /// Channels of a key and of a query.
        pub key_dim: usize,
        /// Channels of a value.
        pub value_dim: usize,
        /// Sliding window: how many tokens a query sees, itself included; `None` for all.
        pub window: Option<usize>,
        /// From the residual stream to heads.
        pub projection: Projection<W>,
        /// Norm of queries, over a head or over all heads at once.
        pub q_norm: Option<W::Norm>,
        /// Norm of keys.
        pub k_norm: Option<W::Norm>,
        /// Norm of values.
        pub v_norm: Option<W::Norm>,
        /// Where the norms of queries and keys stand.
        pub norm_place: NormPlace,
        /// Multiplier of keys before norm and rotation.
        pub key_scale: f32,
        /// Rotation of queries and keys by position; `None` where positions enter otherwise or not at all.
        pub rope: Option<RopeId>,
        /// Growth of queries with their position.
        pub query_gain: Option<QueryGain>,
        /// Multiplier of `q · k`.
        pub scale: f32,
        /// Scaled scores `s` become `cap · tanh(s / cap)`.
        pub soft_cap: Option<f32>,
        /// One logit per query head that takes part in the softmax and has no value.
        pub sink_logits: Option<W::Vector>,
        /// Multiplies the heads' outputs.
        pub gate: Option<OutputGate>,
        /// From heads back to the residual stream.
        pub output: W::Linear,
    }
}

/// What decides how much an error in a layer's keys matters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreTraits {
    /// Channels of a key.
    pub key_dim: usize,
    /// Multiplier of `q · k`.
    pub scale: f32,
    /// True when keys go through a norm before they are kept.
    pub normed_keys: bool,
}

impl ScoreTraits {
    /// The multiplier over the usual one, 1/√d: what scores, and errors in them, are larger by than in most models.
    pub fn gain(&self) -> f32 {
        self.scale.abs() * (self.key_dim as f32).sqrt()
    }
}

impl Attention {
    /// Attention without options over all tokens, whose scores are `q · k`. What an architecture does not say is as it is here.
    pub fn plain(
        slot: KvSlot,
        (heads, kv_heads): (usize, usize),
        (key_dim, value_dim): (usize, usize),
        projection: Projection,
        output: Linear,
    ) -> Self {
        Self {
            slot,
            heads,
            kv_heads,
            key_dim,
            value_dim,
            window: None,
            projection,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            norm_place: NormPlace::BeforeRope,
            key_scale: 1.0,
            rope: None,
            query_gain: None,
            scale: 1.0,
            soft_cap: None,
            sink_logits: None,
            gate: None,
            output,
        }
    }

    /// What decides how much an error in its keys matters.
    pub fn score_traits(&self) -> ScoreTraits {
        ScoreTraits { key_dim: self.key_dim, scale: self.scale, normed_keys: self.k_norm.is_some() }
    }
}
