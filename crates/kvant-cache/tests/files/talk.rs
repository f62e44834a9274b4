//! Sequences of made-up tokens.

use kvant_cache::snapshot::{Record, Signature, write};
use kvant_cache::{Arena, CacheLayout, EntryShape, Policy, Sequence, SideStore};
use kvant_codec::Side;
use std::sync::Arc;

pub const SIGNATURE: Signature = [0x5a; 32];

/// A layout under which sequences are made.
pub struct Talk {
    pub policy: String,
    pub layout: Arc<CacheLayout>,
}

impl Talk {
    pub fn new(policy: &str, shapes: &[EntryShape], streaming: Option<usize>) -> Talk {
        let mut parsed: Policy = policy.parse().unwrap();
        parsed.rule.streaming = streaming;
        Talk { policy: parsed.to_string(), layout: Arc::new(CacheLayout::new(&parsed, shapes).unwrap()) }
    }

    /// Two layers of two heads, the second with a window if any has.
    pub fn usual(policy: &str, window: Option<usize>) -> Talk {
        let shape = |window| EntryShape { kv_heads: 2, key_dim: 16, value_dim: 24, window };
        Talk::new(policy, &[shape(None), shape(window)], None)
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
            for (entry, layout) in self.layout.entries().iter().enumerate() {
                let shape = layout.shape();
                let rows = |dim: usize, salt: usize| -> Vec<f32> {
                    let at = sequence.len();
                    (at * shape.kv_heads * dim..(at + count) * shape.kv_heads * dim)
                        .map(|i| ((i * 31 + 17 * (entry + 2 * salt)) as f32 * 0.7).sin())
                        .collect()
                };
                let (keys, values) = (rows(shape.key_dim, 0), rows(shape.value_dim, 1));
                sequence.append(entry, &keys, &values).unwrap();
            }
            sequence.advance(count);
        }
    }

    pub fn bytes(&self, sequence: &Sequence, note: &[u8]) -> Vec<u8> {
        let tokens: Vec<u32> = (0..sequence.len() as u32).collect();
        let record = Record { signature: SIGNATURE, policy: &self.policy, tokens: &tokens, note };
        let mut bytes = Vec::new();
        let len = write(sequence, &record, &mut bytes).unwrap();
        assert_eq!(len, bytes.len() as u64);
        bytes
    }
}

/// Everything that attention can read of a sequence: it has no other door to it.
pub fn readable(sequence: &Sequence) -> Vec<(usize, Vec<Option<Vec<u8>>>)> {
    let rule = *sequence.layout().rule();
    let own = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let side = |store: &SideStore| {
        let pages = sequence.len() / store.codecs().page_tokens() + 2;
        let sinks = std::iter::once(own(store.sinks().filter(|_| rule.sinks > 0)));
        let encoded = (0..pages).map(|page| own(store.encoded(page)));
        let exact = (0..pages).map(|page| own(store.exact(page)));
        (store.dropped(), sinks.chain(encoded).chain(exact).collect())
    };
    let heads = sequence.layout().entries().iter().enumerate();
    heads
        .flat_map(|(entry, layout)| (0..layout.heads().len()).map(move |head| (entry, head)))
        .flat_map(|(entry, head)| [Side::Key, Side::Value].map(|which| (entry, head, which)))
        .filter_map(|(entry, head, which)| sequence.side(entry, head, which).map(side))
        .collect()
}
