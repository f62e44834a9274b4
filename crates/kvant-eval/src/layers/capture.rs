//! A cache that writes down what passes through it.

use kvant_engine::{KvCache, KvFailure};
use kvant_model::cache::{Cache, CacheFull, Queries, Scoring, Streaming};

/// A cache that hands everything on to another and keeps a copy: what a model's layers append and ask.
pub struct Capture {
    inner: KvCache,
    entries: Vec<Captured>,
}

/// What one layer appended and asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Captured {
    /// Heads that own keys and values.
    pub kv_heads: usize,
    /// Keys as the cache got them.
    pub keys: Vec<f32>, // (tokens, kv_heads, key_dim)
    /// Values as the cache got them.
    pub values: Vec<f32>, // (tokens, kv_heads, value_dim)
    /// Queries of the layer that owns the entry.
    pub queries: Vec<f32>, // (tokens, heads, key_dim)
    /// What attention made of them.
    pub outputs: Vec<f32>, // (tokens, heads, value_dim)
    /// The factor of scores.
    pub scale: f32,
    /// The bound of scores, where there is one.
    pub soft_cap: Option<f32>,
    /// Tokens appended.
    pub tokens: usize,
    /// Tokens that have asked.
    pub(super) asked: usize,
}

impl Captured {
    /// Channels of a key.
    pub fn key_dim(&self) -> usize {
        self.keys.len() / (self.tokens * self.kv_heads).max(1)
    }

    /// Channels of a value.
    pub fn value_dim(&self) -> usize {
        self.values.len() / (self.tokens * self.kv_heads).max(1)
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.queries.len() / (self.tokens * self.key_dim()).max(1)
    }

    /// Rows of one kv head out of those of all, `(tokens, dim)`.
    pub fn head_rows(&self, rows: &[f32], dim: usize, head: usize) -> Vec<f32> {
        rows.chunks_exact(self.kv_heads * dim).flat_map(|token| token[head * dim..][..dim].to_vec()).collect()
    }
}

impl Capture {
    /// Around an empty cache.
    pub fn new(inner: KvCache) -> Self {
        let entries = inner.sequence().layout().entries();
        let captured = |kv_heads: usize| Captured { kv_heads, ..Captured::default() };
        let entries = entries.iter().map(|entry| captured(entry.shape().kv_heads)).collect();
        Self { inner, entries }
    }

    /// Whether the cache inside could keep everything.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), KvFailure> {
        self.inner.check()
    }

    /// What was written down, entry by entry.
    pub fn into_entries(self) -> Vec<Captured> {
        self.entries
    }
}

impl Cache for Capture {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn streaming(&self) -> Option<Streaming> {
        self.inner.streaming()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn reserve(&mut self, tokens: usize) -> Result<(), CacheFull> {
        self.inner.reserve(tokens)
    }

    fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]) {
        let captured = &mut self.entries[entry];
        captured.keys.extend_from_slice(keys);
        captured.values.extend_from_slice(values);
        let shape = self.inner.sequence().layout().entries()[entry].shape();
        captured.tokens += keys.len() / (shape.kv_heads * shape.key_dim);
        self.inner.append(entry, keys, values);
    }

    fn attend(&mut self, entry: usize, queries: Queries<'_>, scoring: &Scoring, out: &mut [f32]) {
        self.inner.attend(entry, queries, scoring, out);
        let captured = &mut self.entries[entry];
        // Layers that share an entry ask after the one that owns it; its own queries are enough.
        if captured.asked < captured.tokens {
            captured.queries.extend_from_slice(queries.own);
            captured.outputs.extend_from_slice(out);
            (captured.scale, captured.soft_cap) = (scoring.scale, scoring.soft_cap);
            captured.asked = captured.tokens;
        }
    }

    fn advance(&mut self, tokens: usize) {
        self.inner.advance(tokens);
    }
}
