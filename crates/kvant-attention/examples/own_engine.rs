//! The cache and its attention in an engine of one's own: no model crate, no tokenizer, two toy layers.
//!
//! ```text
//! cargo run --release -p kvant-attention --example own_engine -- int4
//! ```
//!
//! What an engine has to do is little:
//!
//! 1. once per model, lay out a cache: [`CacheLayout`] from a [`Policy`] and the shapes of its layers;
//! 2. once per sequence, make a [`Sequence`];
//! 3. per chunk of tokens (a whole prompt, a part of it, or one token), for every layer: append keys and values, attend
//!    with the queries; then advance.
//!
//! The same three calls serve prefill and decoding, and how tokens are cut into chunks changes no bit of the output: this
//! program shows it.

use kvant_attention::{Attention, Scoring};
use kvant_cache::{Arena, CacheLayout, EntryShape, Policy, Sequence};
use std::error::Error;
use std::sync::Arc;

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
/// Query heads: three to a kv head.
const HEADS: usize = 6;
const DIM: usize = 64;
const PROMPT: usize = 500;
const ANSWER: usize = 20;

/// Stands for the projections of a layer: activations that depend on token and layer alone.
fn activations(layer: usize, kind: usize, tokens: std::ops::Range<usize>, heads: usize) -> Vec<f32> {
    let number = |token: usize, i: usize| ((token * 97 + layer * 31 + kind * 17 + i * 7) as f32 * 0.61).sin();
    tokens.flat_map(|token| (0..heads * DIM).map(move |i| number(token, i))).collect()
}

/// One forward pass over some tokens; returns the last layer's output, (tokens, heads, DIM).
fn pass(
    sequence: &mut Sequence,
    attention: &mut Attention,
    tokens: std::ops::Range<usize>,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut out = vec![0.0; tokens.len() * HEADS * DIM];
    // With a cap on the arena this is where a sequence is refused, before any work is done.
    sequence.reserve(tokens.len())?;
    for layer in 0..LAYERS {
        let keys = activations(layer, 0, tokens.clone(), KV_HEADS); // normed and rotated, if the model does that
        let values = activations(layer, 1, tokens.clone(), KV_HEADS);
        let queries = activations(layer, 2, tokens.clone(), HEADS);
        sequence.append(layer, &keys, &values)?;
        let scoring = Scoring::new(1.0 / (DIM as f32).sqrt());
        attention.attend(sequence, layer, &queries, &scoring, &mut out)?;
    }
    sequence.advance(tokens.len());
    Ok(out)
}

fn main() -> Result<(), Box<dyn Error>> {
    let policy: Policy = std::env::args().nth(1).as_deref().unwrap_or("int4").parse()?;
    let shape = EntryShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None };
    let layout = Arc::new(CacheLayout::new(&policy, &[shape; LAYERS])?);
    let arena = Arena::new();
    let mut attention = Attention::new()?;

    // The prompt in one chunk, then token by token.
    let mut sequence = Sequence::new(Arc::clone(&layout), arena.clone());
    pass(&mut sequence, &mut attention, 0..PROMPT)?;
    let mut last = Vec::new();
    for token in PROMPT..PROMPT + ANSWER {
        last = pass(&mut sequence, &mut attention, token..token + 1)?;
    }
    let footprint = sequence.footprint();
    println!("{policy}: {} tokens in {} bytes", sequence.len(), footprint.stored);
    println!(
        "  {:.3} bits per value in pages, {:.3} with sinks and tail",
        footprint.bits_per_value, footprint.bits_total
    );

    // Another user asks something else after the same prompt: a fork shares its pages.
    let before = arena.usage();
    let mut other = sequence.fork()?;
    println!("a fork takes {} bytes more", arena.usage().used - before.used);

    // Edit the prompt at token 300: what lies before it stays, up to the start of its page.
    let left = other.truncate(300)?;
    println!("going back to token 300 means reading again from {left}");
    pass(&mut other, &mut attention, left..PROMPT + ANSWER - 1)?;
    let again = pass(&mut other, &mut attention, PROMPT + ANSWER - 1..PROMPT + ANSWER)?;
    println!("the last token's output is the same, bit for bit: {}", last == again);
    Ok(())
}
