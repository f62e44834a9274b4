//! The state of a pass that writes down what goes through it.

use kvant_cache::{
    KvShape, KvSlot, PassState, Queries, RecurrentState, Scoring, SequencePass, SlotKind, StateError,
    StateSlot,
};
use kvant_engine::KvCache;

/// A cache that hands everything on to another and keeps a copy: what a model's attention layers append and ask.
pub struct Capture {
    inner: KvCache,
    slots: Vec<Option<Captured>>, // (slots); those with keys and values of their own
}

/// What one layer appended and asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Captured {
    /// The layer that owns the slot.
    pub layer: usize,
    /// Shape of its keys and values.
    pub shape: KvShape,
    /// Keys as the cache got them.
    pub keys: Vec<f32>, // (tokens, kv_heads, key_dim)
    /// Values as the cache got them.
    pub values: Vec<f32>, // (tokens, kv_heads, value_dim)
    /// Queries of the layer that owns the slot.
    pub queries: Vec<f32>, // (tokens, heads, key_dim)
    /// What attention made of them.
    pub outputs: Vec<f32>, // (tokens, heads, value_dim)
    /// The factor of scores.
    pub scale: f32,
    /// The bound of scores, where there is one.
    pub soft_cap: Option<f32>,
    /// Tokens appended.
    pub tokens: usize,
}

impl Captured {
    /// Nothing yet, of a layer with this shape.
    pub fn new(layer: usize, shape: KvShape) -> Self {
        let none = Vec::new;
        let (keys, values, queries, outputs) = (none(), none(), none(), none());
        Self { layer, shape, keys, values, queries, outputs, scale: 1.0, soft_cap: None, tokens: 0 }
    }

    /// Channels of a key.
    pub fn key_dim(&self) -> usize {
        self.shape.key_dim
    }

    /// Channels of a value.
    pub fn value_dim(&self) -> usize {
        self.shape.value_dim
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.queries.len() / (self.tokens * self.key_dim()).max(1)
    }

    /// Rows of one kv head out of those of all, `(tokens, dim)`.
    pub fn head_rows(&self, rows: &[f32], dim: usize, head: usize) -> Vec<f32> {
        let tokens = rows.chunks_exact(self.shape.kv_heads * dim);
        tokens.flat_map(|token| token[head * dim..][..dim].to_vec()).collect()
    }
}

impl Capture {
    /// Around an empty cache.
    pub fn new(inner: KvCache) -> Self {
        let captured = |slot: &kvant_cache::SlotLayout| match *slot.kind() {
            SlotKind::KeysValues(shape) => Some(Captured::new(slot.layer(), shape)),
            SlotKind::View(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => None,
        };
        let slots = inner.sequence().layout().slots().iter().map(captured).collect();
        Self { inner, slots }
    }

    /// What was written down, slot by slot.
    pub fn into_slots(self) -> Vec<Captured> {
        self.slots.into_iter().flatten().collect()
    }
}

impl PassState for Capture {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        self.inner.begin(tokens)
    }

    fn sequences(&self) -> &[SequencePass] {
        self.inner.sequences()
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        if let Some(Some(captured)) = self.slots.get_mut(slot.index()) {
            captured.keys.extend_from_slice(keys);
            captured.values.extend_from_slice(values);
            captured.tokens += keys.len() / (captured.shape.kv_heads * captured.shape.key_dim);
        }
        self.inner.append(slot, keys, values)
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        self.inner.attend(slot, queries, scoring, out)?;
        // Layers that view the slot ask under numbers of their own: the owner's queries are enough.
        if let Some(Some(captured)) = self.slots.get_mut(slot.index()) {
            captured.queries.extend_from_slice(queries.own);
            captured.outputs.extend_from_slice(out);
            (captured.scale, captured.soft_cap) = (scoring.scale, scoring.soft_cap);
        }
        Ok(())
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        self.inner.recurrent(slot, sequence)
    }

    fn end(&mut self) -> Result<(), StateError> {
        self.inner.end()
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }
}
