//! Sequences of made-up tokens.

use kvant_cache::snapshot::{Numerics, Record, Signature, write};
use kvant_cache::{
    Arena, CacheLayout, KvShape, LatentShape, Policy, RecurrentShape, RecurrentState, STATE_CHUNK, Sequence,
    SideStore, Slots,
};
use std::sync::Arc;

pub const SIGNATURE: Signature = [0x5a; 32];
pub const NUMERICS: Numerics = [0x17; 32];

/// A layout under which sequences are made.
pub struct Talk {
    pub policy: String,
    pub layout: Arc<CacheLayout>,
    pub slots: Slots,
}

impl Talk {
    pub fn new(policy: &str, slots: Slots, streaming: Option<usize>) -> Talk {
        let mut parsed: Policy = policy.parse().unwrap();
        parsed.rule.streaming = streaming;
        let layout = Arc::new(CacheLayout::new(&parsed, &slots).unwrap());
        Talk { policy: parsed.to_string(), layout, slots }
    }

    /// Two layers of two heads, the second with a window if any has.
    pub fn usual(policy: &str, window: Option<usize>) -> Talk {
        let shape = |window| KvShape { kv_heads: 2, key_dim: 16, value_dim: 24, window };
        Talk::new(policy, [shape(None), shape(window)].into_iter().collect(), None)
    }

    /// A layer of every kind.
    pub fn mixed(policy: &str, window: Option<usize>) -> Talk {
        let mut slots = Slots::new();
        slots.recurrent(0, RecurrentShape { state: 5, row: 2 });
        let owner = slots.keys_values(1, KvShape { kv_heads: 2, key_dim: 16, value_dim: 24, window });
        slots.view(2, owner);
        slots.latent(3, LatentShape { kv_heads: 1, latent_dim: 16, rope_dim: 4, window: None });
        slots.latent(5, LatentShape { kv_heads: 1, latent_dim: 8, rope_dim: 0, window: None });
        slots.recurrent(5, RecurrentShape { state: 3, row: 7 });
        Talk::new(policy, slots, None)
    }

    /// An empty sequence.
    pub fn begin(&self) -> Sequence {
        Sequence::new(Arc::clone(&self.layout), Arena::new())
    }

    /// A sequence of the tokens 0, 1, 2 …
    pub fn of(&self, tokens: usize) -> Sequence {
        let mut sequence = self.begin();
        self.read(&mut sequence, tokens);
        sequence
    }

    /// Reads tokens up to `end`, in chunks of 50.
    pub fn read(&self, sequence: &mut Sequence, end: usize) {
        while sequence.len() < end {
            let count = 50.min(end - sequence.len());
            sequence.reserve(count).unwrap();
            for slot in self.slots.kv_slots() {
                let shape = self.layout.held(slot).unwrap().stored().unwrap();
                let rows = |dim: usize, salt: usize| -> Vec<f32> {
                    let at = sequence.len();
                    (at * shape.kv_heads * dim..(at + count) * shape.kv_heads * dim)
                        .map(|i| ((i * 31 + 17 * (slot.index() + 2 * salt)) as f32 * 0.7).sin())
                        .collect()
                };
                let (keys, values) = (rows(shape.key_dim, 0), rows(shape.value_dim, 1));
                sequence.append(slot, &keys, &values).unwrap();
            }
            for slot in self.slots.state_slots() {
                let at = sequence.len();
                mix(sequence.recurrent_mut(slot).unwrap(), at, count);
            }
            sequence.advance(count).unwrap();
        }
    }

    pub fn bytes(&self, sequence: &Sequence, note: &[u8]) -> Vec<u8> {
        let tokens: Vec<u32> = (0..sequence.len() as u32).collect();
        let record =
            Record { signature: SIGNATURE, numerics: NUMERICS, policy: &self.policy, tokens: &tokens, note };
        let mut bytes = Vec::new();
        let len = write(sequence, &record, &mut bytes).unwrap();
        assert_eq!(len, bytes.len() as u64);
        bytes
    }
}

/// Rows that depend on the position, and a state that depends on all of them.
fn mix(state: &mut RecurrentState, at: usize, count: usize) {
    let width = state.shape().row;
    for position in at..at + count {
        let row: Vec<f32> = (0..width).map(|i| ((position * width + i) as f32 * 0.3).sin()).collect();
        state.push(&row).unwrap();
        if state.open_tokens() == STATE_CHUNK {
            let fold = |state: &mut [f32], rows: &[f32]| {
                state.iter_mut().enumerate().for_each(|(i, x)| *x = 0.5 * *x + rows[i % rows.len()]);
            };
            state.close(fold).unwrap();
        }
    }
}

/// Everything that attention and mixers can read of a sequence: it has no other door to it.
pub fn readable(sequence: &Sequence) -> Vec<(usize, Vec<Option<Vec<u8>>>)> {
    let rule = *sequence.layout().exact_window();
    let own = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let side = |store: &SideStore| {
        let pages = sequence.len() / store.codecs().page_tokens() + 2;
        let sinks = std::iter::once(own(store.sinks().filter(|_| rule.sinks > 0)));
        let encoded = (0..pages).map(|page| own(store.encoded(page)));
        let exact = (0..pages).map(|page| own(store.exact(page)));
        (store.dropped(), sinks.chain(encoded).chain(exact).collect())
    };
    let slots = sequence.layout().slot_list();
    let sides = sequence.layout().sides();
    let sides =
        sides.filter_map(|(slot, head, which, _)| sequence.side(slots.kv(slot)?, head, which).map(side));
    let numbers = |numbers: &[f32]| Some(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
    let states = slots.state_slots().filter_map(|slot| {
        let state = sequence.recurrent(slot)?;
        Some((state.len(), vec![numbers(&state.state()), numbers(state.rows())]))
    });
    let checkpoints = sequence.checkpoints().map(|position| (position, Vec::new()));
    sides.chain(states).chain(checkpoints).collect()
}
