//! Perplexity along one long text, read through a window that moves: does it stay flat beyond the length the model was
//! made for?
//!
//!     cargo run --release -p kvant-eval --example endless -- MODEL.gguf TEXT [TOKENS [WINDOW [SPEC]]]
//!
//! Prints one line per eighth of the text.

use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::error::Error;

const CHUNK: usize = 256;
const PARTS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: endless MODEL.gguf TEXT [TOKENS [WINDOW [SPEC]]]".into());
    };
    let count: usize = arguments.next().map_or(Ok(32_768), |n| n.parse())?;
    let window: usize = arguments.next().map_or(Ok(1024), |n| n.parse())?;
    let mut policy: Policy = arguments.next().unwrap_or("int4".into()).parse()?;
    policy.rule.streaming = Some(window);

    let checkpoint = Checkpoint::open(&path)?;
    let tokenizer = Tokenizer::of(&checkpoint)?;
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut tokens = tokenizer.encode(&std::fs::read_to_string(text)?, options)?;
    tokens.truncate(count);
    let model = kvant_cpu::load(&checkpoint, LoadOptions::default())?;
    println!("made for {:?} tokens; {} tokens, window {window}, KV {policy}", model.context(), tokens.len());

    let found = token_nlls(&model, policy, &tokens)?;
    let part = tokens.len().div_ceil(PARTS);
    for (index, part_of) in found.chunks(part).enumerate() {
        let mean = part_of.iter().sum::<f64>() / part_of.len() as f64;
        println!("{:6} to {:6}: perplexity {:.2}", index * part, index * part + part_of.len(), mean.exp());
    }
    Ok(())
}

/// How surprised the model is by every token after the first.
fn token_nlls(model: &Model, policy: Policy, tokens: &[u32]) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut kv = KvCache::new(policy, model.slots(), usize::MAX)?;
    let mut found = Vec::new();
    for (number, chunk) in tokens.chunks(CHUNK).enumerate() {
        let wanted = 0..chunk.len();
        let logits =
            model.forward(Pass::new(&[Chunk::new(chunk, wanted)]), &mut [kv.sequence_mut()])?.into_logits();
        let next = &tokens[(number * CHUNK + 1).min(tokens.len())..];
        for (row, &token) in next.iter().take(chunk.len()).enumerate() {
            let logits = logits.row(row);
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mass: f64 = logits.iter().map(|z| f64::from(z - largest).exp()).sum();
            found.push(mass.ln() - f64::from(logits[token as usize] - largest));
        }
    }
    Ok(found)
}
