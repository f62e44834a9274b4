//! A decode step allocates nothing once buffers have grown, and buffers grow to a tile per thread, not with the context.

use kvant_attention::{Attention, KvCache, PassState, Scoring};
use kvant_cache::{Arena, CacheLayout, KvShape, KvSlot, LatentShape, Policy, Sequence, Slots};
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
    /// Numbers of a token, by side.
    widths: [usize; 2],
    queries: Vec<f32>,
    out: Vec<f32>,
}

fn slots() -> Slots {
    Slots::uniform(1, KvShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None })
}

impl Decoder {
    fn new(policy: &str, tokens: usize) -> Decoder {
        let numbers = KV_HEADS * GROUP * DIM;
        Decoder::over(policy, &slots(), tokens, [KV_HEADS * DIM; 2], [numbers; 2])
    }

    /// Latents of `latent` channels and rotated parts of `rope`, read by so many heads.
    fn over_latents(policy: &str, tokens: usize, latent: usize, rope: usize, heads: usize) -> Decoder {
        let mut slots = Slots::new();
        slots.latent(0, LatentShape { kv_heads: 1, latent_dim: latent, rope_dim: rope, window: None });
        Decoder::over(policy, &slots, tokens, [rope, latent], [heads * (rope + latent), heads * latent])
    }

    /// `numbers` are those of the queries of a token, and of what they get.
    fn over(policy: &str, slots: &Slots, tokens: usize, widths: [usize; 2], numbers: [usize; 2]) -> Decoder {
        let slot = slots.kv(0).unwrap();
        let layout = CacheLayout::new(&policy.parse::<Policy>().unwrap(), slots).unwrap();
        let mut sequence = Sequence::new(Arc::new(layout), Arena::new());
        let wave = |count: usize| (0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
        let rows = wave(tokens * widths[0].max(widths[1]));
        sequence.append(slot, &rows[..tokens * widths[0]], &rows[..tokens * widths[1]]).unwrap();
        sequence.advance(tokens).unwrap();
        let (queries, out) = (wave(numbers[0]), vec![0.0; numbers[1]]);
        Decoder { slot, sequence, attention: Attention::new().unwrap(), rows, widths, queries, out }
    }

    fn step(&mut self) {
        let (slot, [key, value]) = (self.slot, self.widths.map(|width| &self.rows[..width]));
        self.sequence.append(slot, key, value).unwrap();
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
    // Latents: a page that was decoded for its scores would be room for its numbers.
    for policy in ["int4", "int8", "k8v4", "f16"] {
        for (latent, rope, heads) in [(512, 64, 16), (64, 16, 1), (48, 0, 20)] {
            let mut decoder = Decoder::over_latents(policy, 1000, latent, rope, heads);
            decoder.step();
            decoder.step();
            for step in 0..5 {
                let (count, bytes) = decoder.counted_step();
                assert_eq!(count, 0, "{policy}, {latent} + {rope}, step {step}: {bytes} bytes");
            }
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
