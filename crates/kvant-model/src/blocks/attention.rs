//! Attention: projections, norms and rotation around the cache, which does the attending.

use crate::blocks::{Linear, Norm, Pass, QueryGain, Rope, Rows};
use crate::cache::{KvShape, Scoring};
use std::sync::Arc;

/// How queries, keys and values come out of the residual stream.
pub enum Projection {
    /// Three linear layers.
    Apart {
        /// To `(heads, head_dim)`.
        q: Linear,
        /// To `(kv_heads, head_dim)`.
        k: Linear,
        /// To `(kv_heads, head_dim)`.
        v: Linear,
    },
    /// One layer whose output is all queries, then all keys, then all values.
    Fused(Linear),
    /// One layer whose output is `(heads, 3, head_dim)`: query, key and value of each head together.
    FusedByHead(Linear),
}

/// An attention layer.
pub struct Attention {
    /// The entry of the cache it writes and reads.
    pub entry: usize,
    /// Query heads.
    pub heads: usize,
    /// Shape of keys and values; the window is the cache's to apply.
    pub shape: KvShape,
    /// From the residual stream to heads.
    pub projection: Projection,
    /// Norms of queries and keys, over a head or over all heads at once.
    pub qk_norm: Option<(Norm, Norm)>,
    /// Rotation of queries and keys by position; `None` where positions enter otherwise or not at all.
    pub rope: Option<Arc<Rope>>,
    /// Growth of queries with their position.
    pub query_gain: Option<QueryGain>,
    /// From scores to weights.
    pub scoring: Scoring,
    /// From heads back to the residual stream.
    pub output: Linear,
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
    /// What decides how much an error in its keys matters.
    pub fn score_traits(&self) -> ScoreTraits {
        let (key_dim, scale) = (self.shape.key_dim, self.scoring.scale);
        ScoreTraits { key_dim, scale, normed_keys: self.qk_norm.is_some() }
    }

    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Rows, pass: &mut Pass<'_, '_>) -> Rows {
        let (mut q, mut k, v) = self.project(x); // (tokens, heads · dim), (tokens, kv_heads · dim) twice
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            q_norm.in_place(&mut q);
            k_norm.in_place(&mut k);
        }
        let mut at_sinks = None;
        if let Some(rope) = &self.rope {
            let rotations = pass.rotations(rope);
            at_sinks = rotations.at_sinks.as_ref().map(|table| {
                let mut turned = q.clone();
                table.rotate(&mut turned, self.shape.key_dim);
                turned
            });
            rotations.own.rotate(&mut q, self.shape.key_dim);
            rotations.own.rotate(&mut k, self.shape.key_dim);
        }
        if let Some(gain) = &self.query_gain {
            for q in std::iter::once(&mut q).chain(&mut at_sinks) {
                gain.apply(q, pass.tokens().map(|(_, position)| position));
            }
        }
        pass.append(self.entry, &k, &v);
        let width = self.heads * self.shape.value_dim;
        let attended = pass.attend(self.entry, &q, at_sinks.as_ref(), &self.scoring, width);
        self.output.forward(&attended)
    }

    fn project(&self, x: &Rows) -> (Rows, Rows, Rows) {
        let KvShape { heads: kv_heads, key_dim, value_dim, .. } = self.shape;
        let (q_width, k_width, v_width) = (self.heads * key_dim, kv_heads * key_dim, kv_heads * value_dim);
        match &self.projection {
            Projection::Apart { q, k, v } => (q.forward(x), k.forward(x), v.forward(x)),
            Projection::Fused(qkv) => {
                let all = qkv.forward(x);
                let k_end = q_width + k_width;
                (all.columns(0..q_width), all.columns(q_width..k_end), all.columns(k_end..k_end + v_width))
            }
            Projection::FusedByHead(qkv) => {
                let all = Rows::from_vec(qkv.forward(x).into_vec(), 2 * key_dim + value_dim); // a row per head
                let part = |range: std::ops::Range<usize>, width| {
                    Rows::from_vec(all.columns(range).into_vec(), width)
                };
                (
                    part(0..key_dim, q_width),
                    part(key_dim..2 * key_dim, k_width),
                    part(2 * key_dim..2 * key_dim + value_dim, v_width),
                )
            }
        }
    }
}
