//! Would a cache gain by keeping old tokens in fewer bits? A simulation, before anything of the kind is built.
//!
//!     cargo run --release -p kvant-eval --example ageing -- MODEL.gguf TEXT CONTEXT WINDOWS PLAN...
//!
//! A plan is `trellis4;2048:trellis3;4096:trellis2.75`: pages are encoded as the first spec says when they close, and anew, from what
//! was kept of them, when their last token is so many tokens old. A spec alone is a flat plan.
//!
//! Every window of the text is read once with exact keys and values, but for its last 512 tokens. Then each plan makes of these keys and
//! values what its pages would hold, an exact cache takes the result, and the last 512 tokens are read with it. Printed for each plan is a
//! line of JSON: mean bits of encoded numbers, mean KL from the exact cache at those positions, and the difference to the flat plan
//! before it on the command line, position by position, with standard errors. Sinks and the newest tokens are exact in all plans.
//!
//! What it leaves out: a cache that has been lossy all along would have other keys and values in its upper layers.

use kvant_cache::{AttentionObserver, KvShape, KvSlot, Queries, Scoring, SequencePass, SlotKind};
use kvant_codec::Side;
use kvant_engine::{KvCache, LoadOptions, PassState, Policy};
use kvant_eval::{Score, Windows, text};
use kvant_model::{Checkpoint, Chunk, Model, Pass, Rows};
use kvant_text::tokenizer::Tokenizer;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// Positions that plans are compared at, and tokens of a pass.
const BLOCK: usize = 512;

type Failure = Box<dyn Error>;

/// Keys and values of one slot, `(tokens, kv_heads, dim)` each.
#[derive(Clone)]
struct Kept {
    slot: KvSlot,
    shape: KvShape,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// All that a model keeps of a text.
struct Capture(Vec<Kept>);

impl Capture {
    fn new(model: &Model) -> Self {
        let kept = model.slots().kv_slots().filter_map(|slot| match model.slots().get(slot.index())?.kind {
            SlotKind::KeysValues(shape) => Some(Kept { slot, shape, keys: Vec::new(), values: Vec::new() }),
            SlotKind::View(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => None,
        });
        Self(kept.collect())
    }
}

impl AttentionObserver for Capture {
    fn append(&mut self, _: &[SequencePass], slot: KvSlot, keys: &[f32], values: &[f32]) {
        if let Some(kept) = self.0.iter_mut().find(|kept| kept.slot == slot) {
            kept.keys.extend_from_slice(keys);
            kept.values.extend_from_slice(values);
        }
    }

    fn attend(&mut self, _: &[SequencePass], _: KvSlot, _: Queries<'_>, _: &Scoring<'_>, _: &[f32]) {}
}

/// Specs with the ages from which on they hold, the youngest first.
struct Plan {
    name: String,
    steps: Vec<(usize, Policy)>,
}

impl Plan {
    fn parse(text: &str) -> Result<Self, Failure> {
        let step = |part: &str| -> Result<(usize, Policy), Failure> {
            Ok(match part.split_once(':') {
                Some((age, spec)) => (age.parse()?, spec.parse()?),
                None => (0, part.parse()?),
            })
        };
        let steps = text.split(';').map(step).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { name: text.to_owned(), steps })
    }
}

/// What a cache holds of keys and values that were given to it, by the range of positions of every page.
struct Encoded {
    rows: Vec<Kept>,
    /// Positions of encoded pages, the same in every slot.
    pages: Vec<std::ops::Range<usize>>,
    bits: f64,
}

/// Gives keys and values to a cache and reads its pages again; rows outside of them stay.
fn encoded(model: &Model, given: &[Kept], policy: &Policy, tokens: usize) -> Result<Encoded, Failure> {
    let mut cache = KvCache::new(policy, model.slots(), tokens)?;
    fill(&mut cache, given, tokens)?;
    let sequence = cache.sequence();
    let (mut rows, mut pages) = (given.to_vec(), Vec::new());
    let (mut bits, mut sides) = (0.0, 0.0);
    for kept in &mut rows {
        let heads = kept.shape.kv_heads;
        for (side, dim) in [(Side::Key, kept.shape.key_dim), (Side::Value, kept.shape.value_dim)] {
            let to = if side == Side::Key { &mut kept.keys } else { &mut kept.values };
            for head in 0..heads {
                let store = sequence.side(kept.slot, head, side).ok_or("a slot without pages")?;
                let codec = store.codecs().codec();
                let size = codec.page_tokens();
                let first = sequence.layout().exact_window().page_start(store.dropped(), size);
                (bits, sides) = (bits + codec.bits_per_value(), sides + 1.0);
                pages.clear();
                let mut page_rows = vec![0.0; size * dim];
                for (index, page) in store.pages().enumerate() {
                    let start = first + index * size;
                    codec.decode(&page.canonical(), &mut page_rows)?;
                    for (token, row) in (start..(start + size).min(tokens)).zip(page_rows.chunks_exact(dim)) {
                        to[(token * heads + head) * dim..][..dim].copy_from_slice(row);
                    }
                    pages.push(start..(start + size).min(tokens));
                }
            }
        }
    }
    Ok(Encoded { rows, pages, bits: bits / sides })
}

/// Appends keys and values of all slots in one pass.
fn fill(cache: &mut KvCache, given: &[Kept], tokens: usize) -> Result<(), Failure> {
    cache.begin(&[tokens])?;
    for kept in given {
        cache.append(kept.slot, &kept.keys, &kept.values)?;
    }
    cache.end()?;
    Ok(())
}

/// What the pages of a plan hold after so many tokens, and their mean bits. Chains of encodings are made once for all plans.
fn aged(
    model: &Model,
    exact: &[Kept],
    plan: &Plan,
    tokens: usize,
    chains: &mut BTreeMap<String, Encoded>,
) -> Result<(Vec<Kept>, f64), Failure> {
    let mut names: Vec<String> = Vec::new();
    for (_, policy) in &plan.steps {
        let before = names.last().cloned();
        let name = before.as_ref().map_or(policy.to_string(), |before| format!("{before} > {policy}"));
        if !chains.contains_key(&name) {
            let given =
                before.as_ref().and_then(|before| chains.get(before)).map_or(exact, |chain| &chain.rows);
            let made = encoded(model, given, policy, tokens)?;
            chains.insert(name.clone(), made);
        }
        names.push(name);
    }
    let chain = |name: &String| chains.get(name).ok_or("a chain that was not made");
    let mut rows = chain(&names[0])?.rows.clone();
    let (mut bits, mut held) = (0.0, 0.0);
    for page in chain(&names[0])?.pages.clone() {
        let age = tokens - page.end;
        let step = plan.steps.iter().rposition(|(from, _)| age >= *from).unwrap_or(0);
        let from = chain(&names[step])?;
        bits += from.bits * page.len() as f64;
        held += page.len() as f64;
        for (to, of) in rows.iter_mut().zip(&from.rows) {
            for (to, of, dim) in [
                (&mut to.keys, &of.keys, of.shape.kv_heads * of.shape.key_dim),
                (&mut to.values, &of.values, of.shape.kv_heads * of.shape.value_dim),
            ] {
                to[page.start * dim..page.end * dim].copy_from_slice(&of[page.start * dim..page.end * dim]);
            }
        }
    }
    Ok((rows, bits / held))
}

/// KL from one distribution to another, both as logits, and whether their likeliest tokens are the same.
fn divergence(exact: &[f32], other: &[f32]) -> (f64, bool) {
    let top = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at);
    let log_sum = |row: &[f32]| {
        let largest = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
        largest + row.iter().map(|&z| (f64::from(z) - largest).exp()).sum::<f64>().ln()
    };
    let (p, q) = (log_sum(exact), log_sum(other));
    let of = |(&a, &b): (&f32, &f32)| {
        let a = f64::from(a) - p;
        a.exp() * (a - (f64::from(b) - q))
    };
    (exact.iter().zip(other).map(of).sum(), top(exact) == top(other))
}

fn mean(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (variance / count).sqrt())
}

/// What a plan came to, over all windows.
#[derive(Default)]
struct Found {
    kl: Vec<f64>,
    same: Vec<f64>,
    bits: f64,
}

fn main() -> Result<(), Failure> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [path, file, context, count, plans @ ..] = given.as_slice() else {
        return Err("ageing MODEL.gguf TEXT CONTEXT WINDOWS PLAN...".into());
    };
    let (context, count): (usize, usize) = (context.parse()?, count.parse()?);
    let plans = plans.iter().map(|plan| Plan::parse(plan)).collect::<Result<Vec<_>, _>>()?;
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = Tokenizer::of(&checkpoint)?;
    let model = kvant_cpu::load(&checkpoint, LoadOptions::default())?;
    let windows = Windows::of_text(&tokenizer, &text::read(Path::new(file))?, context, count, Score::All)?;
    let prefix = context - BLOCK;
    let policy: Policy = "f32".parse()?;
    let mut found: Vec<Found> = plans.iter().map(|_| Found::default()).collect();
    for (number, window) in windows.iter().enumerate() {
        let (read, last) = window.split_at(prefix);
        let mut capture = Capture::new(&model);
        let mut exact = KvCache::new(&policy, model.slots(), context)?;
        for tokens in read.chunks(BLOCK) {
            let chunk = [Chunk::new(tokens, 0..0)];
            model.forward(Pass::new(&chunk).watched(&mut capture), &mut [exact.sequence_mut()])?;
        }
        let answer = |cache: &mut KvCache| -> Result<Rows, Failure> {
            let chunk = [Chunk::new(last, 0..last.len())];
            Ok(model.forward(Pass::new(&chunk), &mut [cache.sequence_mut()])?.into_logits())
        };
        let truth = answer(&mut exact)?;
        drop(exact);
        let mut chains = BTreeMap::new();
        for (plan, found) in plans.iter().zip(&mut found) {
            let (rows, bits) = aged(&model, &capture.0, plan, prefix, &mut chains)?;
            let mut cache = KvCache::new(&policy, model.slots(), context)?;
            fill(&mut cache, &rows, prefix)?;
            let logits = answer(&mut cache)?;
            found.bits = bits;
            for row in 0..last.len() {
                let (kl, same) = divergence(truth.row(row), logits.row(row));
                found.kl.push(kl);
                found.same.push(f64::from(u8::from(same)));
            }
            eprintln!("window {number}: {} {:.5}", plan.name, mean(&found.kl).0);
        }
    }
    let name = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
    let mut flat = 0;
    for (index, (plan, of)) in plans.iter().zip(&found).enumerate() {
        if plan.steps.len() == 1 {
            flat = index;
        }
        let (kl, error) = mean(&of.kl);
        let paired: Vec<f64> = of.kl.iter().zip(&found[flat].kl).map(|(own, flat)| own - flat).collect();
        let (difference, difference_error) = mean(&paired);
        let line = serde_json::json!({
            "table": "plans", "model": name, "context": context, "windows": windows.chunks(), "plan": plan.name,
            "bits": of.bits, "kl": kl, "error": error, "same": mean(&of.same).0,
            "flat": plans[flat].name, "difference": difference, "difference_error": difference_error,
        });
        println!("{line}");
    }
    Ok(())
}
