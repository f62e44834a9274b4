//! A decode step allocates nothing once buffers have grown, and buffers grow to a tile per thread, not with the context.

use kvant_attention::{Attention, KvCache, PassState, Scoring};
use kvant_cache::{Arena, CacheLayout, KvShape, KvSlot, Policy, Sequence, Slots};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct Counting;

// Those of one thread: the one that runs the tests allocates too, when it says that a test takes long.
thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KV_HEADS: usize = 2;
const GROUP: usize = 3;
const DIM: usize = 64;

struct Decoder {
    slot: KvSlot,
    sequence: Sequence,
    attention: Attention,
    rows: Vec<f32>,
    queries: Vec<f32>,
    out: Vec<f32>,
}

fn slots() -> Slots {
    Slots::uniform(1, KvShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None })
}

impl Decoder {
    fn new(policy: &str, tokens: usize) -> Decoder {
        let slots = slots();
        let slot = slots.kv(0).unwrap();
        let layout = CacheLayout::new(&policy.parse::<Policy>().unwrap(), &slots).unwrap();
        let mut sequence = Sequence::new(Arc::new(layout), Arena::new());
        let wave = |count: usize| (0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
        let rows = wave(tokens * KV_HEADS * DIM);
        sequence.append(slot, &rows, &rows).unwrap();
        sequence.advance(tokens).unwrap();
        let queries = wave(KV_HEADS * GROUP * DIM);
        let out = vec![0.0; queries.len()];
        Decoder { slot, sequence, attention: Attention::new().unwrap(), rows, queries, out }
    }

    fn step(&mut self) {
        let (slot, row) = (self.slot, &self.rows[..KV_HEADS * DIM]);
        self.sequence.append(slot, row, row).unwrap();
        let queries = self.queries[..].into();
        self.attention.attend(&self.sequence, slot, queries, &Scoring::new(0.125), &mut self.out).unwrap();
        self.sequence.advance(1).unwrap();
    }

    /// Allocations and bytes of one step.
    fn counted_step(&mut self) -> (usize, usize) {
        let before = (COUNT.get(), BYTES.get());
        self.step();
        (COUNT.get() - before.0, BYTES.get() - before.1)
    }
}

#[test]
fn a_decode_step_allocates_nothing() {
    for policy in ["int4", "f16", "int8", "k=ch4:p128,v=rot4g32"] {
        // A page ends at 4 + 64 · n: 2008 leaves room for some steps within one.
        let mut decoder = Decoder::new(policy, 2008);
        decoder.step();
        decoder.step();
        for step in 0..20 {
            let (count, bytes) = decoder.counted_step();
            assert_eq!(count, 0, "{policy}, step {step}: {bytes} bytes");
        }
    }
    // A pass through the interface of models, and one over several sequences.
    let mut cache = KvCache::new("int4".parse::<Policy>().unwrap(), &slots(), 4096).unwrap();
    let mut decoder = Decoder::new("int4", 2008);
    let (slot, queries) = (decoder.slot, decoder.queries.clone());
    let row = &decoder.rows[..KV_HEADS * DIM];
    let mut out = vec![0.0; 2 * queries.len()];
    for step in 0..60 {
        let before = COUNT.get();
        cache.begin(&[1]).unwrap();
        cache.append(slot, row, row).unwrap();
        cache.attend(slot, queries[..].into(), &Scoring::new(0.125), &mut out[..queries.len()]).unwrap();
        cache.end().unwrap();
        let count = COUNT.get() - before;
        // The first steps fill sinks and begin the page.
        assert!(step < 6 || count == 0, "step {step}: {count} allocations");
    }
    cache.begin(&[1]).unwrap();
    cache.append(slot, row, row).unwrap();
    decoder.sequence.append(slot, row, row).unwrap();
    let both = queries.repeat(2);
    for turn in 0..4 {
        let before = COUNT.get();
        let pass: [&Sequence; 2] = [cache.sequence(), &decoder.sequence];
        decoder.attention.attend(&pass[..], slot, both[..].into(), &Scoring::new(0.125), &mut out).unwrap();
        let count = COUNT.get() - before;
        assert!(turn == 0 || count == 0, "turn {turn}: {count} allocations");
    }
    // Prefill too: blocks of queries go through the buffers of the block before.
    for policy in ["int4", "f16", "int8"] {
        let mut decoder = Decoder::new(policy, 2000);
        let rows = decoder.rows[..96 * KV_HEADS * DIM].to_vec();
        let queries = decoder.queries.repeat(96);
        let mut out = vec![0.0; queries.len()];
        for turn in 0..3 {
            decoder.sequence.append(decoder.slot, &rows, &rows).unwrap();
            let before = COUNT.get();
            let Decoder { slot, sequence, attention, .. } = &mut decoder;
            attention.attend(sequence, *slot, queries[..].into(), &Scoring::new(0.125), &mut out).unwrap();
            let count = COUNT.get() - before;
            assert!(turn == 0 || count == 0, "{policy}, turn {turn}: {count} allocations");
            decoder.sequence.truncate(2000).unwrap();
        }
    }
    // The first step on a thread makes its buffers: scores of a segment for the group, and sums.
    let first_step = |tokens: usize| {
        let decoder = Decoder::new("int4", tokens);
        std::thread::spawn(move || {
            let mut decoder = decoder;
            decoder.counted_step().1
        })
        .join()
        .unwrap()
    };
    let (short, long) = (first_step(1000), first_step(16_000));
    assert!(long <= short + 4096, "{long} bytes at 16,000 tokens, {short} at 1,000");
    let tile = 512 * GROUP * size_of::<f32>();
    assert!(long < 16 * tile, "{long} bytes, a tile of scores is {tile}");
}
