//! An observer that writes down what a model's attention layers keep and ask.

use kvant_cache::{
    AttentionObserver, KvShape, KvSlot, Queries, Scoring, SequencePass, Slot, SlotKind, Slots,
};

/// What a model's attention layers append and ask, written down.
pub struct Capture {
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
    /// Nothing yet, of a model with these slots.
    pub fn new(slots: &Slots) -> Self {
        let captured = |slot: &Slot| match slot.kind {
            SlotKind::KeysValues(shape) => Some(Captured::new(slot.layer, shape)),
            SlotKind::View(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => None,
        };
        Self { slots: slots.iter().map(|(_, slot)| captured(slot)).collect() }
    }

    /// What was written down, slot by slot.
    pub fn into_slots(self) -> Vec<Captured> {
        self.slots.into_iter().flatten().collect()
    }
}

impl AttentionObserver for Capture {
    fn append(&mut self, _: &[SequencePass], slot: KvSlot, keys: &[f32], values: &[f32]) {
        if let Some(Some(captured)) = self.slots.get_mut(slot.index()) {
            captured.keys.extend_from_slice(keys);
            captured.values.extend_from_slice(values);
            captured.tokens += keys.len() / (captured.shape.kv_heads * captured.shape.key_dim);
        }
    }

    fn attend(
        &mut self,
        _: &[SequencePass],
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        outputs: &[f32],
    ) {
        // Layers that view the slot ask under numbers of their own: the owner's queries are enough.
        if let Some(Some(captured)) = self.slots.get_mut(slot.index()) {
            captured.queries.extend_from_slice(queries.own);
            captured.outputs.extend_from_slice(outputs);
            (captured.scale, captured.soft_cap) = (scoring.scale, scoring.soft_cap);
        }
    }
}
