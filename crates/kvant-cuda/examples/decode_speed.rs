//! How fast a card decodes and reads prompts: the shape of Llama 3 8B, weights that mean nothing, contexts of any length whose pages are
//! copies of a few real ones.
//!
//!     decode_speed [seconds] [contexts, such as 0,4096,32768,131072] [policies] [weights: q4_0, q8_0, f16, q4_k, q6_k]

mod shape;

use kvant_attention::KvCache;
use kvant_cache::Policy;
use kvant_cuda::{CudaBackend, PassOptions, WeightType};
use kvant_model::{Checkpoint, Chunk, DType, Model, Pass};
use shape::{Noise, Wanted, llama_3, open_card, report, steps, streams, with_all_processors};
use std::time::Instant;

/// Reads a prompt of so many tokens.
fn prefill(
    model: &Model,
    cache: &mut KvCache,
    tokens: u32,
    chunk: usize,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let ids: Vec<u32> = (0..tokens).map(|n| 31 * n % 1000).collect();
    let last = ids.len().div_ceil(chunk) - 1;
    for (index, ids) in ids.chunks(chunk).enumerate() {
        let wanted = if index == last { ids.len() - 1..ids.len() } else { 0..0 };
        model.forward(Pass::new(&[Chunk::new(ids, wanted)]), &mut [cache.sequence_mut()])?;
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    with_all_processors(run)
}

fn run() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.5), |n| n.parse())?;
    let contexts = arguments.next().unwrap_or_else(|| "0,4096,32768,131072".to_owned());
    let contexts: Vec<usize> = contexts.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let policies = arguments.next().unwrap_or_else(|| "int4,f16".to_owned());
    let weights = match arguments.next().as_deref() {
        None | Some("q4_0") => WeightType::Q4_0,
        Some("q8_0") => WeightType::Q8_0,
        Some("f16") => WeightType::F16,
        Some("q4_k") => WeightType::Q4K,
        Some("q6_k") => WeightType::Q6K,
        Some(other) => return Err(format!("no weights of type {other}").into()),
    };
    let Some(card) = open_card() else { return Ok(()) };
    let outline = Checkpoint::from_config(llama_3(false), DType::Q4_0)?;
    let usual = PassOptions::default();
    let ways = [
        usual,
        PassOptions { fused: false, ..usual },
        PassOptions { early: false, ..usual },
        PassOptions { graphs: false, ..usual },
    ];
    for (number, options) in ways.into_iter().enumerate() {
        let backend = CudaBackend::new(&card)?.with_options(options);
        let loading = Instant::now();
        let model = Model::load(&Noise(&backend, weights), &outline)?;
        println!("{options:?}: loaded in {:.1} s", loading.elapsed().as_secs_f64());
        let most = contexts.iter().max().copied().unwrap_or(0) + 4096;
        for policy in policies.split(',') {
            let policy: Policy = policy.parse()?;
            let open = || KvCache::in_arena(policy.clone(), model.slots(), most, backend.store());
            // All contexts with the usual options, the first ones with the others.
            for context in contexts.iter().take(if number == 0 { contexts.len() } else { 2 }) {
                let mut caches = streams(&model, &backend, &policy, (1, *context))?;
                let held = caches[0].len();
                for (top, what) in [(Some(40), "top 40"), (Some(1), "token"), (None, "logits")] {
                    let times = steps(&model, &mut caches, seconds, Wanted { rows: 1, top });
                    report(&format!("decode {policy} at {held}, {what}"), 1, times);
                }
            }
            if number < 2 {
                let chunks = [256, 1024, 2048].map(|chunk| (4096, chunk));
                let prompts = chunks.into_iter().chain([(32_768, 1024), (32_768, 2048), (131_072, 1024)]);
                let few = |tokens, chunk| number == 0 || tokens < 131_072 && chunk == 1024;
                for (tokens, chunk) in
                    prompts.filter(|(tokens, chunk)| tokens + 2048 <= most && few(*tokens, *chunk))
                {
                    let mut cache = open()?;
                    prefill(&model, &mut cache, chunk as u32, chunk)?; // buffers are made
                    let (held, start) = (cache.len(), Instant::now());
                    prefill(&model, &mut cache, tokens as u32, chunk)?;
                    let rate = tokens as f64 / start.elapsed().as_secs_f64();
                    println!(
                        "prefill {policy} of {tokens} at {held} in chunks of {chunk}: {rate:.0} tokens/s"
                    );
                }
                for (sequences, context) in [(8, 4096), (64, 4096), (8, 32_768)] {
                    if context > most {
                        continue;
                    }
                    let mut caches = streams(&model, &backend, &policy, (sequences, context))?;
                    let every = [
                        (1, Some(40), "top 40"),
                        (1, Some(1), "token"),
                        (1, None, "logits"),
                        (0, None, "nothing"),
                    ];
                    for (rows, top, what) in every {
                        let times = steps(&model, &mut caches, seconds, Wanted { rows, top });
                        let name = format!("decode {policy}, {sequences} x {context}, {what}");
                        report(&name, sequences, times);
                    }
                }
            }
        }
    }
    Ok(())
}
