//! Where the time of a prompt's chunk and of a decode step goes on a card, kernel by kernel: the shape of Llama 3 8B, weights that mean nothing.
//!
//!     profile [contexts, such as 0,4096,32768] [policy] [tokens of a chunk]

mod shape;

use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_cuda::{CudaBackend, CudaGpu, ProfileRow, WeightType};
use kvant_model::{Checkpoint, Chunk, DType, Model, Pass};
use shape::{Noise, PAGE, SINKS, Wanted, beginning, grow, llama_3, report, steps};
use std::sync::Arc;
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

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let contexts = arguments.next().unwrap_or_else(|| "0,4096,32768".to_owned());
    let contexts: Vec<usize> = contexts.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let policy: Policy = arguments.next().unwrap_or_else(|| "int4".to_owned()).parse()?;
    let tokens: usize = arguments.next().map_or(Ok(1024), |n| n.parse())?;
    let card = match CudaGpu::open(0) {
        Ok(card) => Arc::new(card),
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    println!("{} ({:?}), {} SMs", card.name(), card.form(), card.processors());
    let backend = CudaBackend::new(&card)?;
    let model = Model::load(
        &Noise(&backend, WeightType::Q4_0),
        &Checkpoint::from_config(llama_3(false), DType::Q4_0)?,
    )?;
    let most = contexts.iter().max().copied().unwrap_or(0) + 8 * tokens + 4096;
    for context in contexts {
        let mut cache = KvCache::in_arena(policy.clone(), model.slots(), most, backend.store())?;
        model.forward(Pass::new(&[Chunk::new(&beginning(), 0..1)]), &mut [cache.sequence_mut()])?;
        grow(&model, &backend, &mut cache, SINKS + PAGE * context.saturating_sub(SINKS).div_ceil(PAGE));
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
        let mut caches = [cache];
        let wanted = Wanted { rows: 1, top: Some(40) };
        report(
            &format!("decode {policy} at {}", caches[0].len()),
            1,
            steps(&model, &mut caches, 0.2, wanted),
        );
        card.set_profiling(true);
        let count = steps(&model, &mut caches, 0.0, wanted).len();
        card.set_profiling(false);
        table(&format!("a step after {}", caches[0].len()), &card.profile(), count);
    }
    Ok(())
}
