//! Where the time of a prompt's chunk and of a decode step goes on a card, kernel by kernel: the shape of Llama 3 8B or of a model that
//! `kvant synth --like` knows, weights that mean nothing.
//!
//!     profile [contexts, such as 0,4096,32768] [policy] [tokens of a chunk] [sequences of 4,096 that decode together, such as 8,64]
//!             [model, such as qwen3.6-27b] [its layers] [weights: q4_0, q8_0, q4_k, mxfp4]
//!
//! A model with recurrent state has no contexts but 0: its pages alone are no state.

mod shape;

use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_cuda::{CudaBackend, CudaGpu, ProfileRow, WeightType};
use kvant_model::synth::Known;
use kvant_model::{Checkpoint, Chunk, DType, Model, Pass};
use shape::{Noise, Wanted, llama_3, open_card, report, steps, streams, with_all_processors};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Reads so many tokens that nobody asks anything of, and milliseconds of it.
fn chunk(model: &Model, cache: &mut KvCache, tokens: usize) -> Result<f64> {
    let ids: Vec<u32> = (0..tokens as u32).map(|n| 31 * n % 1000).collect();
    let start = Instant::now();
    model.forward(Pass::new(&[Chunk::new(&ids, 0..0)]), &mut [cache.sequence_mut()])?;
    Ok(1e3 * start.elapsed().as_secs_f64())
}

/// Rows of a profile, each over so many passes.
fn table(what: &str, rows: &[ProfileRow], passes: usize) {
    let all = |host: bool| {
        rows.iter().filter(move |row| row.name.starts_with("host") == host).map(|row| row.milliseconds)
    };
    let (kernels, host): (f64, f64) = (all(false).sum(), all(true).sum());
    println!("{what}: kernels {:.3} ms, host {:.3} ms a pass", kernels / passes as f64, host / passes as f64);
    for ProfileRow { name, count, milliseconds } in rows {
        let (count, each) = (*count as f64 / passes as f64, milliseconds / *count as f64);
        println!("  {name:34} {count:6.1} x {:9.1} us = {:8.3} ms", 1e3 * each, count * each);
    }
}

/// Steps of sequences together: their times, then kernel by kernel.
fn decode(model: &Model, card: &CudaGpu, policy: &Policy, caches: &mut [KvCache]) -> Result<()> {
    let wanted = Wanted { rows: 1, top: Some(1) };
    let what = format!("{} x {}", caches.len(), caches[0].len());
    report(&format!("decode {policy}, {what}"), caches.len(), steps(model, caches, 0.3, wanted));
    card.set_profiling(true);
    let count = steps(model, caches, 0.0, wanted).len();
    card.set_profiling(false);
    table(&format!("a step of {what}"), &card.profile(), count);
    Ok(())
}

/// The shape of a known model, with so many layers of its own; of Llama 3 8B where none is named.
fn config(name: &str, layers: Option<usize>) -> Result<serde_json::Value> {
    if name.is_empty() {
        return Ok(llama_3(false));
    }
    let mut config = Known::named(name).ok_or_else(|| format!("no model {name}"))?.config();
    if let Some(layers) = layers {
        config["num_hidden_layers"] = layers.into();
        if let Some(kinds) = config.get_mut("layer_types").and_then(|kinds| kinds.as_array_mut()) {
            kinds.truncate(layers);
        }
    }
    Ok(config)
}

fn main() -> Result<()> {
    with_all_processors(run)
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let contexts = arguments.next().unwrap_or_else(|| "0,4096,32768".to_owned());
    let contexts: Vec<usize> = contexts.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let policy: Policy = arguments.next().unwrap_or_else(|| "int4".to_owned()).parse()?;
    let tokens: usize = arguments.next().map_or(Ok(1024), |n| n.parse())?;
    let batches = arguments.next().unwrap_or_default();
    let batches = batches.split(',').filter(|n| !n.is_empty()).map(str::parse);
    let batches: Vec<usize> = batches.collect::<std::result::Result<_, _>>()?;
    let name = arguments.next().unwrap_or_default();
    let config = config(&name, arguments.next().map(|n| n.parse()).transpose()?)?;
    let weights = match arguments.next().as_deref() {
        None | Some("q4_0") => WeightType::Q4_0,
        Some("q8_0") => WeightType::Q8_0,
        Some("q4_k") => WeightType::Q4K,
        Some("mxfp4") => WeightType::Mxfp4,
        Some(other) => return Err(format!("no weights of type {other}").into()),
    };
    let Some(card) = open_card() else { return Ok(()) };
    let backend = CudaBackend::new(&card)?;
    let model = Model::load(&Noise(&backend, weights), &Checkpoint::from_config(config, DType::Q4_0)?)?;
    for context in contexts {
        let mut caches = streams(&model, &backend, &policy, (1, context))?;
        let Some(mut cache) = caches.pop() else { continue };
        let held = cache.len();
        chunk(&model, &mut cache, tokens)?; // buffers are made
        card.synchronize()?;
        let start = Instant::now();
        let host = (0..2).map(|_| chunk(&model, &mut cache, tokens)).sum::<Result<f64>>()?;
        card.synchronize()?;
        let each = 500.0 * start.elapsed().as_secs_f64();
        println!(
            "{policy}, chunk of {tokens} after {held}: {each:.2} ms, {:.0} tokens/s; the call {:.2} ms",
            1e3 * tokens as f64 / each,
            host / 2.0
        );
        card.set_profiling(true);
        for _ in 0..2 {
            chunk(&model, &mut cache, tokens)?;
        }
        card.set_profiling(false);
        table(&format!("chunk of {tokens} after {}", cache.len()), &card.profile(), 2);
        decode(&model, &card, &policy, &mut [cache])?;
    }
    for count in batches {
        decode(&model, &card, &policy, &mut streams(&model, &backend, &policy, (count, 4096))?)?;
    }
    Ok(())
}
