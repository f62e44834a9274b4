//! Sequences whose rows depend on their tokens.

use kvant_cache::{Arena, CacheLayout, KvShape, KvSlot, Policy, Sequence, Slots};
use kvant_codec::Side;
use proptest::prelude::*;
use std::sync::Arc;

pub const SINKS: usize = 3;
pub const PAGE: usize = 32;

pub fn layout(policy: &str, window: Option<usize>) -> Arc<CacheLayout> {
    let policy: Policy = policy.parse().unwrap();
    let shape = |window| KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window };
    let slots: Slots = [shape(None), shape(window)].into_iter().collect();
    Arc::new(CacheLayout::new(&policy, &slots).unwrap())
}

/// The slots of such a layout.
fn slots() -> [KvSlot; 2] {
    let slots = Slots::uniform(2, KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window: None });
    [slots.kv(0).unwrap(), slots.kv(1).unwrap()]
}

pub fn usual() -> Arc<CacheLayout> {
    layout("k=ch4:p32,v=rot4g32:p32;sinks=3", None)
}

/// Reads what a sequence does not hold yet of `tokens`.
pub fn read(sequence: &mut Sequence, tokens: &[u32]) {
    let new = &tokens[sequence.len()..];
    let rows: Vec<f32> = new
        .iter()
        .zip(sequence.len()..)
        .flat_map(|(token, at)| (0..8).map(move |c| ((token * 13 + c) as f32 + at as f32 * 0.3).sin()))
        .collect();
    for slot in slots() {
        sequence.append(slot, &rows, &rows).unwrap();
    }
    sequence.advance(new.len()).unwrap();
}

pub fn fresh(layout: &Arc<CacheLayout>, tokens: &[u32]) -> Sequence {
    let mut sequence = Sequence::new(layout.clone(), Arena::new());
    read(&mut sequence, tokens);
    sequence
}

/// Whether the two hold the same, as far as anything that comes after can see. Of a page that is held as bytes nobody
/// reads exact rows: a sequence may still have them, to go back a few tokens, or may have come from disk without them.
pub fn same(one: &Sequence, other: &Sequence) -> bool {
    one.len() == other.len()
        && slots().iter().all(|slot| {
            [Side::Key, Side::Value].iter().all(|side| {
                let (a, b) = (one.side(*slot, 0, *side).unwrap(), other.side(*slot, 0, *side).unwrap());
                let pages = one.len() / PAGE + 1;
                let first = a.dropped().max(b.dropped());
                a.sinks() == b.sinks()
                    && (first..pages).all(|page| a.encoded(page) == b.encoded(page))
                    && (first..pages).all(|page| a.encoded(page).is_some() || a.exact(page) == b.exact(page))
            })
        })
}

pub fn whole(len: usize) -> usize {
    if len < SINKS + PAGE { 0 } else { SINKS + (len - SINKS) / PAGE * PAGE }
}

/// What the best of `known` has in common with `prompt`, in whole pages.
pub fn longest(known: &[Vec<u32>], prompt: &[u32]) -> usize {
    let common = |tokens: &Vec<u32>| tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    known.iter().map(|tokens| whole(common(tokens))).max().unwrap_or(0)
}

/// Prompts that share beginnings: stretches of one token, of odd lengths.
pub fn prompts(most: usize) -> impl Strategy<Value = Vec<Vec<u32>>> {
    let stretch = (0_u32..3, prop::sample::select(vec![7_usize, 28, 32, 35, 64]));
    let prompt = prop::collection::vec(stretch, 0..5).prop_map(|stretches| {
        stretches.into_iter().flat_map(|(token, count)| std::iter::repeat_n(token, count)).collect()
    });
    prop::collection::vec(prompt, 1..most)
}

pub fn prompt(parts: &[(u32, usize)]) -> Vec<u32> {
    parts.iter().flat_map(|(token, count)| std::iter::repeat_n(*token, *count)).collect()
}

/// Every beginning of these prompts that ends with a step of whole pages, once.
pub fn steps(prompts: &[Vec<u32>]) -> Vec<&[u32]> {
    let mut steps: Vec<&[u32]> = prompts
        .iter()
        .flat_map(|prompt| (SINKS + PAGE..=prompt.len()).step_by(PAGE).map(|end| &prompt[..end]))
        .collect();
    steps.sort();
    steps.dedup();
    steps
}
