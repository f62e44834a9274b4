//! A model with attention and recurrent layers.

use crate::mixer::Mixer;
use kvant_cache::{
    Arena, CacheLayout, KvShape, KvSlot, LatentShape, Policy, Sequence, Slots, StateSlot, StateWork, Store,
};
use std::sync::Arc;

pub const MIXERS: [Mixer; 2] = [Mixer { key: 4, value: 3 }, Mixer { key: 5, value: 8 }];

pub struct Hybrid {
    pub layout: Arc<CacheLayout>,
    kv: Vec<KvSlot>,
    pub states: [StateSlot; 2],
}

impl Hybrid {
    /// Keys and values, a view of them, latents and two mixers; without pages only the mixers.
    pub fn new(policy: &str, window: Option<usize>, has_pages: bool) -> Hybrid {
        let policy: Policy = policy.parse().unwrap();
        let mut slots = Slots::new();
        let mut kv = Vec::new();
        let first = slots.recurrent(0, MIXERS[0].shape());
        if has_pages {
            kv.push(slots.keys_values(1, KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window }));
            slots.view(2, kv[0]);
            kv.push(slots.latent(3, LatentShape { kv_heads: 1, latent_dim: 8, rope_dim: 0, window: None }));
        }
        let second = slots.recurrent(4, MIXERS[1].shape());
        let layout = Arc::new(CacheLayout::new(&policy, &slots).unwrap());
        Hybrid { layout, kv, states: [first, second] }
    }

    pub fn begin(&self) -> Sequence {
        self.begin_in(Arena::new())
    }

    pub fn begin_in(&self, store: impl Into<Store>) -> Sequence {
        Sequence::new(Arc::clone(&self.layout), store)
    }

    /// A pass over the next `count` of `tokens`; returns what they get from both mixers.
    pub fn pass(&self, sequence: &mut Sequence, tokens: &[u32], count: usize) -> Vec<f32> {
        let out = self.append(sequence, tokens, count);
        sequence.advance(count).unwrap();
        out
    }

    /// What a device has to do for the first mixer.
    pub fn advance_on_device(&self, sequence: &mut Sequence, tokens: usize) -> StateWork {
        sequence.advance_on_device(self.states[0], tokens).unwrap()
    }

    /// A pass that is taken back before its end.
    pub fn begin_and_give_up(&self, sequence: &mut Sequence, tokens: &[u32], count: usize) {
        self.append(sequence, tokens, count);
        sequence.abandon().unwrap();
    }

    fn append(&self, sequence: &mut Sequence, tokens: &[u32], count: usize) -> Vec<f32> {
        let start = sequence.len();
        let new = &tokens[start..start + count];
        sequence.reserve(count).unwrap();
        for slot in &self.kv {
            let rows: Vec<f32> = new
                .iter()
                .zip(start..)
                .flat_map(|(token, at)| {
                    (0..8).map(move |c| ((token * 13 + c) as f32 + at as f32 * 0.3).sin())
                })
                .collect();
            let keys = if slot.index() == 3 { &[] } else { &rows[..] };
            sequence.append(*slot, keys, &rows).unwrap();
        }
        let outs = self.states.iter().zip(MIXERS).enumerate().map(|(layer, (slot, mixer))| {
            let rows: Vec<f32> =
                new.iter().zip(start..).flat_map(|(token, at)| mixer.row(layer, *token, at)).collect();
            let Store::Device(device) = sequence.store().clone() else {
                return mixer.read(layer, sequence.recurrent_mut(*slot).unwrap(), &rows);
            };
            let work = sequence.advance_on_device(*slot, count).unwrap();
            mixer.read_on_device((layer, start), &work, &*device, &rows)
        });
        let outs: Vec<Vec<f32>> = outs.collect();
        let rows = outs[0].chunks_exact(MIXERS[0].value).zip(outs[1].chunks_exact(MIXERS[1].value));
        rows.flat_map(|(one, other)| [one, other].concat()).collect()
    }

    /// Reads up to `end`, in chunks of these sizes over and over.
    pub fn read(&self, sequence: &mut Sequence, tokens: &[u32], end: usize, sizes: &[usize]) -> Vec<f32> {
        let mut out = Vec::new();
        for size in sizes.iter().cycle() {
            let left = end - sequence.len();
            if left == 0 {
                break;
            }
            out.extend(self.pass(sequence, tokens, (*size).min(left)));
        }
        out
    }
}

/// Numbers that a token gets.
pub const WIDTH: usize = MIXERS[0].value + MIXERS[1].value;

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

pub fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i * 7 % 101).collect()
}
