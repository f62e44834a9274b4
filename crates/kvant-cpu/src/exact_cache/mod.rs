//! The exact cache: keys and values as the model made them, in f32 or rounded to f16.

mod attend;
mod batch;
mod stored;
#[cfg(test)]
mod tests;

pub use batch::ExactBatch;
pub use stored::Stored;

use attend::SCRATCH;
use kvant_cache::{
    Arena, CacheFull, KvShape, KvSlot, LatentShape, PassState, Queries, RecurrentState, Scoring,
    SequencePass, Slot, SlotKind, Slots, StateError, StateErrorKind, StateSlot,
};
use kvant_threads::for_each_chunk;

/// Query tokens that share one reading of a block of positions.
const QUERY_TOKENS: usize = 16;

/// Chunks of recurrent state before the open one that can be gone back to.
const CHUNKS_KEPT: usize = 2;

/// An exact cache of one sequence.
pub struct ExactCache<T: Stored> {
    slots: Slots,
    layers: Vec<Layer<T>>, // (slots); empty where a slot holds no keys and values of its own
    states: Vec<Option<RecurrentState>>, // (slots)
    pass: SequencePass,
    /// Outputs of a call before they are put in their places; kept so that a step allocates nothing.
    gathered: Vec<f32>, // (query blocks, kv_heads, QUERY_TOKENS, group, value_dim)
}

struct Layer<T> {
    /// Of what scores and sums read.
    shape: KvShape,
    /// Channels of values that keys have at their end: all where values are latents, none elsewhere.
    shared: usize,
    heads: Vec<Head<T>>,
}

struct Head<T> {
    keys: Vec<T>,   // (tokens, key_dim)
    values: Vec<T>, // (tokens, value_dim)
}

impl<T: Stored> ExactCache<T> {
    /// An empty cache for a model with these slots, for at most `capacity` tokens. Memory is taken as tokens come.
    pub fn new(slots: &Slots, capacity: usize) -> Self {
        let layers = slots.iter().map(|(_, slot)| Layer::new(slot.kind)).collect();
        let arena = Arena::new();
        let state = |slot: &Slot| match slot.kind {
            SlotKind::Recurrent(shape) => {
                Some(RecurrentState::detached(slot.layer, shape, CHUNKS_KEPT, arena.clone()))
            }
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => None,
        };
        let states = slots.iter().map(|(_, slot)| state(slot)).collect();
        let pass = SequencePass { start: 0, tokens: 0, capacity, streaming: None };
        Self { slots: slots.clone(), layers, states, pass, gathered: Vec::new() }
    }

    /// Tokens held.
    pub fn len(&self) -> usize {
        self.pass.start
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything from position `len` on, and returns how many tokens are left: all before it or, where recurrent
    /// state of that position is no longer held, none.
    pub fn truncate(&mut self, len: usize) -> usize {
        let mut len = self.pass.start.min(len);
        let mut covered = true;
        for state in self.states.iter_mut().flatten() {
            covered &= state.roll_back(len) == Ok(true);
        }
        if !covered {
            let arena = Arena::new();
            self.states.iter_mut().flatten().for_each(|state| {
                *state = RecurrentState::detached(state.layer(), state.shape(), CHUNKS_KEPT, arena.clone());
            });
            len = 0;
        }
        self.pass.start = len;
        self.pass.tokens = 0;
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                head.keys.truncate(len * layer.shape.key_dim);
                head.values.truncate(len * layer.shape.value_dim);
            }
        }
        len
    }

    /// Bytes of the stored keys and values.
    pub fn bytes(&self) -> usize {
        let values = |head: &Head<T>| head.keys.len() + head.values.len();
        self.layers.iter().flat_map(|layer| &layer.heads).map(values).sum::<usize>() * size_of::<T>()
    }
}

impl<T: Stored> PassState for ExactCache<T> {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        self.abandon();
        let &[tokens] = tokens else {
            return Err(StateError::new(
                0,
                StateErrorKind::Pass { what: "an exact cache is one sequence: give it one chunk" },
            ));
        };
        let SequencePass { start: held, capacity, .. } = self.pass;
        if tokens > capacity.saturating_sub(held) {
            return Err(StateError::new(0, CacheFull { held, asked: tokens, capacity }));
        }
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                head.keys.reserve(tokens * layer.shape.key_dim);
                head.values.reserve(tokens * layer.shape.value_dim);
            }
        }
        self.pass.tokens = tokens;
        Ok(())
    }

    fn sequences(&self) -> &[SequencePass] {
        std::slice::from_ref(&self.pass)
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        let Layer { shape, shared, heads } = self.layer_mut(slot)?;
        let (key_dim, kv_heads) = (shape.key_dim - *shared, shape.kv_heads);
        for (head, store) in heads.iter_mut().enumerate() {
            let values = || values.chunks_exact(shape.value_dim).skip(head).step_by(kv_heads);
            values().for_each(|value| T::push(&mut store.values, value));
            let keys = keys.chunks_exact(key_dim).skip(head).step_by(kv_heads);
            for (key, value) in keys.zip(values()) {
                T::push(&mut store.keys, key);
                T::push(&mut store.keys, &value[..*shared]);
            }
        }
        Ok(())
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        let queries = queries.own;
        self.layer_mut(slot)?;
        let SequencePass { start, tokens, .. } = self.pass;
        let layer = &self.layers[self.slots.owner(slot).index()];
        let shape = layer.shape;
        let heads = queries.len() / shape.key_dim / tokens; // query heads
        let group = heads / shape.kv_heads;
        let width = group * shape.value_dim;
        // One task per block of query tokens and kv head. A task's outputs do not lie side by side in `out`,
        // so tasks write to a buffer of their own order.
        let task_width = QUERY_TOKENS * width;
        let tasks = tokens.div_ceil(QUERY_TOKENS) * shape.kv_heads;
        self.gathered.resize(tasks * task_width, 0.0);
        let place = |task: usize| (task / shape.kv_heads * QUERY_TOKENS, task % shape.kv_heads);
        for_each_chunk(&mut self.gathered, task_width, |task, result| {
            let (token, head) = place(task);
            let count = QUERY_TOKENS.min(tokens - token);
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.queries.clear();
                for t in token..token + count {
                    let start = (t * heads + head * group) * shape.key_dim;
                    scratch.queries.extend_from_slice(&queries[start..][..group * shape.key_dim]);
                }
                let result = &mut result[..count * width];
                layer.attend_head(head, group, start + token, scoring, scratch, result);
            });
        });
        for (task, result) in self.gathered.chunks_exact(task_width).enumerate() {
            let (token, head) = place(task);
            for (t, values) in result.chunks_exact(width).take(tokens - token).enumerate() {
                out[(token + t) * heads * shape.value_dim + head * width..][..width].copy_from_slice(values);
            }
        }
        Ok(())
    }

    fn recurrent(&mut self, slot: StateSlot, _: usize) -> Result<&mut RecurrentState, StateError> {
        let error = self.mismatch(slot.index(), "recurrent state");
        self.states.get_mut(slot.index()).and_then(Option::as_mut).ok_or(error)
    }

    fn end(&mut self) -> Result<(), StateError> {
        self.states.iter_mut().flatten().for_each(RecurrentState::end_pass);
        self.pass.start += self.pass.tokens;
        self.pass.tokens = 0;
        Ok(())
    }

    fn abandon(&mut self) {
        self.truncate(self.pass.start);
    }
}

impl<T: Stored> ExactCache<T> {
    /// What a slot holds, or that of another layer which it views.
    fn layer_mut(&mut self, slot: KvSlot) -> Result<&mut Layer<T>, StateError> {
        let owner = self.slots.owner(slot).index();
        let error = self.mismatch(owner, "keys and values");
        self.layers.get_mut(owner).filter(|layer| !layer.heads.is_empty()).ok_or(error)
    }

    fn mismatch(&self, slot: usize, wanted: &'static str) -> StateError {
        let found = self.slots.get(slot).map_or("nothing", |slot| slot.kind.name());
        StateError::new(0, StateErrorKind::Slot { slot, found, wanted })
    }
}

impl<T: Stored> Layer<T> {
    fn new(kind: SlotKind) -> Self {
        let (shape, shared) = match kind {
            SlotKind::KeysValues(shape) => (shape, 0),
            SlotKind::Latent(LatentShape { kv_heads, latent_dim, rope_dim, window }) => {
                let key_dim = rope_dim + latent_dim;
                (KvShape { kv_heads, key_dim, value_dim: latent_dim, window }, latent_dim)
            }
            SlotKind::View(_) | SlotKind::Recurrent(_) => {
                (KvShape { kv_heads: 0, key_dim: 0, value_dim: 0, window: None }, 0)
            }
        };
        let heads = (0..shape.kv_heads).map(|_| Head { keys: Vec::new(), values: Vec::new() }).collect();
        Self { shape, shared, heads }
    }
}
