//! Continues token ids greedily with a model file, and says how likely the model found them.
//!
//!     cargo run --release -p kvant-model --example continue_ids -- MODEL.gguf 16 504 3575 282 4649 314

use kvant_cpu::{ExactCache, LoadOptions};
use kvant_model::{Checkpoint, Chunk};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(count)) = (arguments.next(), arguments.next()) else {
        return Err("usage: continue_ids MODEL COUNT ID…".into());
    };
    let count: usize = count.parse()?;
    let prompt: Vec<u32> = arguments.map(|id| id.parse()).collect::<Result<_, _>>()?;

    let start = Instant::now();
    let model = kvant_cpu::load(&Checkpoint::open(&path)?, LoadOptions::default())?;
    println!("{}: loaded in {:.2?}", model.description().architecture, start.elapsed());
    let mut cache = ExactCache::<f32>::new(model.slots(), prompt.len() + count);

    let start = Instant::now();
    let chunk = Chunk { tokens: &prompt, wanted: 0..prompt.len() };
    let logits = model.forward(&[chunk], &mut cache)?; // (prompt, vocabulary)
    let seconds = start.elapsed().as_secs_f64();
    let total: f64 =
        prompt[1..].iter().enumerate().map(|(at, &id)| surprise(logits.row(at), id as usize)).sum();
    println!(
        "prompt: {:.4} nats per token, {:.1} tokens/s",
        total / (prompt.len() - 1).max(1) as f64,
        prompt.len() as f64 / seconds
    );

    let mut next = argmax(logits.row(prompt.len() - 1));
    let start = Instant::now();
    let mut made = Vec::new();
    for _ in 0..count {
        made.push(next);
        let logits = model.forward(&[Chunk { tokens: &[next], wanted: 0..1 }], &mut cache)?;
        next = argmax(logits.row(0));
    }
    println!("{made:?}\n{:.1} tokens/s", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// −ln of the probability of `id`.
fn surprise(logits: &[f32], id: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mass: f64 = logits.iter().map(|&z| f64::from(z - largest).exp()).sum();
    mass.ln() - f64::from(logits[id] - largest)
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or_default() as u32
}
