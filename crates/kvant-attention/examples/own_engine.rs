//! The cache and its attention in an engine of one's own: no model crate, no tokenizer, two toy layers.
//!
//! ```text
//! cargo run --release -p kvant-attention --example own_engine -- int4
//! ```
//!
//! What an engine has to do is little:
//!
//! 1. once per model, say what its layers keep: [`Slots`];
//! 2. once per sequence, make a [`KvCache`] by a [`Policy`];
//! 3. per pass over a chunk of tokens (a whole prompt, a part of it, or one token) of one sequence or of many: `begin`; for
//!    every layer `append` keys and values and `attend` with the queries; `end`.
//!
//! The same calls serve prefill and decoding, one sequence and a batch, and neither chunks nor batches change a bit of the
//! output: this program shows it.

use kvant_attention::{Attention, Batch, KvCache, PassState, Scoring};
use kvant_cache::{Arena, KvShape, KvSlot, Policy, Slots};
use std::error::Error;
use std::ops::Range;

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
/// Query heads: three to a kv head.
const HEADS: usize = 6;
const DIM: usize = 64;
const PROMPT: usize = 500;
const ANSWER: usize = 20;

/// Stands for the projections of a layer: activations that depend on position and layer alone.
fn activations(layer: usize, kind: usize, rows: &[usize], heads: usize) -> Vec<f32> {
    let number = |token: usize, i: usize| ((token * 97 + layer * 31 + kind * 17 + i * 7) as f32 * 0.61).sin();
    rows.iter().flat_map(|token| (0..heads * DIM).map(move |i| number(*token, i))).collect()
}

/// One forward pass over some tokens of every sequence; returns the last layer's output, (rows, HEADS, DIM).
fn pass(state: &mut dyn PassState, layers: &[KvSlot], tokens: &[usize]) -> Result<Vec<f32>, Box<dyn Error>> {
    // With a cap on the arena this is where a sequence is refused, before any work is done.
    state.begin(tokens)?;
    let sequences = state.sequences().iter();
    let rows: Vec<usize> = sequences.flat_map(|pass| pass.start..pass.start + pass.tokens).collect();
    let mut out = vec![0.0; rows.len() * HEADS * DIM];
    for (layer, slot) in layers.iter().enumerate() {
        let keys = activations(layer, 0, &rows, KV_HEADS); // normed and rotated, if the model does that
        let values = activations(layer, 1, &rows, KV_HEADS);
        let queries = activations(layer, 2, &rows, HEADS);
        state.append(*slot, &keys, &values)?;
        state.attend(*slot, queries[..].into(), &Scoring::new(1.0 / (DIM as f32).sqrt()), &mut out)?;
    }
    state.end()?;
    Ok(out)
}

fn last_row(rows: &[f32], sequence: Range<usize>) -> &[f32] {
    let width = HEADS * DIM;
    &rows[(sequence.end - 1) * width..sequence.end * width]
}

fn main() -> Result<(), Box<dyn Error>> {
    let policy: Policy = std::env::args().nth(1).as_deref().unwrap_or("int4").parse()?;
    let shape = KvShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None };
    let mut slots = Slots::new();
    let layers: Vec<KvSlot> = (0..LAYERS).map(|layer| slots.keys_values(layer, shape)).collect();
    let arena = Arena::new();

    // The prompt in one chunk, then token by token.
    let mut cache = KvCache::in_arena(&policy, &slots, 4096, arena.clone())?;
    pass(&mut cache, &layers, &[PROMPT])?;
    let mut last = Vec::new();
    for _ in 0..ANSWER {
        last = pass(&mut cache, &layers, &[1])?;
    }
    let footprint = cache.footprint();
    println!("{policy}: {} tokens in {} bytes", cache.len(), footprint.stored);
    println!(
        "  {:.3} bits per value in pages, {:.3} with sinks and tail",
        footprint.bits_per_value, footprint.bits_total
    );

    // Another user asks something else after the same prompt: a fork shares its pages.
    let before = arena.usage();
    let mut other = cache.over(cache.sequence().fork()?);
    println!("a fork takes {} bytes more", arena.usage().used - before.used);

    // Edit the prompt at token 300: what lies before it stays, up to the start of its page.
    let left = other.truncate(300);
    println!("going back to token 300 means reading again from {left}");

    // Both go on in one batch: the fork reads again what was cut off, the other one decodes its next token.
    let mut attention = Attention::new()?;
    let again = PROMPT + ANSWER - left;
    let mut batch = Batch::new(&mut attention, vec![&mut other, &mut cache]);
    let rows = pass(&mut batch, &layers, &[again, 1])?;
    println!("the last token's output is the same, bit for bit: {}", last == last_row(&rows, 0..again));
    Ok(())
}
