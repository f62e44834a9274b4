//! How fast a card decodes and reads prompts: the shape of Llama 3 8B, weights that mean nothing, contexts of any length whose pages are
//! copies of a few real ones.
//!
//!     decode_speed [seconds] [contexts, such as 0,4096,32768,131072] [policies] [weights: q4_0, q8_0, f16, q4_k, q6_k]

use kvant_attention::{Batch, KvCache};
use kvant_cache::{PageId, PageStore, PageWork, Policy};
use kvant_codec::Side;
use kvant_cuda::{Card, CudaBackend, PassOptions, WeightType};
use kvant_model::error::Result;
use kvant_model::{Backend, Checkpoint, Chunk, DType, Description, Model, Network, Output, Outputs, TopK};
use std::sync::Arc;
use std::time::Instant;

/// Compiles descriptions with weights that mean nothing.
struct Noise<'a>(&'a CudaBackend, WeightType);

impl Backend for Noise<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn compile(&self, description: &Description, _: &Checkpoint) -> Result<Box<dyn Network>> {
        let network = self.0.noise(description, self.1)?;
        println!("weights: {:.2} GB", network.weight_bytes() as f64 / 1e9);
        Ok(Box::new(network))
    }
}

fn llama_3_8b() -> serde_json::Value {
    serde_json::json!({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 1 << 20, "vocab_size": 128_256,
        "tie_word_embeddings": false
    })
}

/// Tokens that a page takes, and sinks before the first.
const PAGE: usize = 64;
const SINKS: usize = 4;

/// Makes a context of whole pages longer: new pages are copies of its first.
fn grow(model: &Model, backend: &CudaBackend, cache: &mut KvCache, len: usize) {
    while cache.len() < len {
        let count = (16 * PAGE).min(len - cache.len());
        let sequence = cache.sequence_mut();
        for slot in model.slots().kv_slots() {
            let mut copies: Vec<(usize, Side, PageId, bool)> = Vec::new();
            let mut note = |head, side, work| match work {
                PageWork::Encode { page, .. } => copies.push((head, side, page, false)),
                PageWork::Exact { page, first: 0, .. } => copies.push((head, side, page, true)),
                PageWork::Exact { .. } | PageWork::Sinks { .. } => {}
            };
            sequence.append_on_device(slot, count, &mut note).expect("memory for a longer context");
            for (head, side, page, is_exact) in copies {
                let side = sequence.side(slot, head, side).expect("a side");
                // Exact pages are what is kept, or are forgotten once they are encoded.
                if let Some(from) = side.encoded_id(0).filter(|_| side.codecs().is_exact() == is_exact) {
                    backend.pages().copy(from, page, side.codecs().codec().page_bytes());
                }
            }
        }
        sequence.advance(count).expect("every slot has grown");
    }
}

fn largest(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0) as u32
}

/// What comes back of a step.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Nothing,
    /// The best token of every row.
    Token,
    /// The first forty, as a session that samples with top-k wants them.
    Top40,
    Logits,
}

/// Milliseconds of decode steps.
fn steps(model: &Model, caches: &mut [KvCache], seconds: f64, wanted: Wanted) -> Vec<f64> {
    let mut driver = caches[0].driver();
    let mut ids = vec![1; caches.len()];
    let (mut times, started) = (Vec::new(), Instant::now());
    while times.len() < 12 || (started.elapsed().as_secs_f64() < seconds && times.len() < 400) {
        let chunks: Vec<Chunk<'_>> = ids
            .iter()
            .map(|id| Chunk {
                tokens: std::slice::from_ref(id),
                wanted: 0..usize::from(wanted != Wanted::Nothing),
            })
            .collect();
        let count = match wanted {
            Wanted::Token => Some(1),
            Wanted::Top40 => Some(40),
            Wanted::Nothing | Wanted::Logits => None,
        };
        let top = vec![count.map(|count| TopK { count, temperature: None }); ids.len()];
        let step = Instant::now();
        let mut batch = Batch::new(&mut driver, caches.iter_mut().collect());
        let outputs = match count {
            Some(_) => model.forward_top(&chunks, &mut batch, &top, &|_, _| true),
            None => model.forward(&chunks, &mut batch).map(Outputs::from),
        };
        let outputs = outputs.expect("a step");
        times.push(1e3 * step.elapsed().as_secs_f64());
        for (row, id) in ids.iter_mut().enumerate().take(outputs.rows()) {
            *id = match outputs.row(row) {
                Output::Top(top) => top.tokens[0].0,
                Output::Logits(logits) => largest(logits),
            };
        }
    }
    times
}

/// Reads a prompt of so many tokens.
fn prefill(
    model: &Model,
    cache: &mut KvCache,
    tokens: u32,
    chunk: usize,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let ids: Vec<u32> = (0..tokens).map(|n| 31 * n % 1000).collect();
    for ids in ids.chunks(chunk) {
        model.forward(&[Chunk { tokens: ids, wanted: ids.len() - 1..ids.len() }], cache)?;
    }
    Ok(())
}

fn report(what: &str, sequences: usize, mut times: Vec<f64>) {
    let (first, second) = (times[0], times[1]);
    times.drain(..8);
    times.sort_by(f64::total_cmp);
    let (median, worst, best) = (times[times.len() / 2], times[times.len() - 1], times[0]);
    println!(
        "{what}: {median:.3} ms a step, {:.1} tokens/s (best {best:.3}, worst {worst:.3}, first {first:.1}, second {second:.1}, {} steps)",
        1e3 * sequences as f64 / median,
        times.len()
    );
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
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
    let card = match Card::open(0) {
        Ok(card) => Arc::new(card),
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    println!("{} ({:?}), {} SMs", card.name(), card.form(), card.processors());
    let outline = Checkpoint::from_config(llama_3_8b(), DType::Q4_0)?;
    let every = [(true, true), (false, true), (true, false), (false, false)];
    for (number, (early, graphs)) in every.into_iter().enumerate() {
        let options = PassOptions { early, graphs };
        let backend = CudaBackend::new(&card)?.with_options(options);
        let loading = Instant::now();
        let model = Model::load(&Noise(&backend, weights), &outline)?;
        println!("{options:?}: loaded in {:.1} s", loading.elapsed().as_secs_f64());
        let most = contexts.iter().max().copied().unwrap_or(0) + 4096;
        for policy in policies.split(',') {
            let policy: Policy = policy.parse()?;
            let open = || KvCache::in_arena(policy.clone(), model.slots(), most, backend.store());
            let ids: Vec<u32> = (0..(SINKS + 2 * PAGE) as u32).map(|n| 17 * n % 1000).collect();
            let read = |cache: &mut KvCache| model.forward(&[Chunk { tokens: &ids, wanted: 0..1 }], cache);
            // All contexts with the usual options, the first ones with the others.
            for context in contexts.iter().take(if number == 0 { contexts.len() } else { 2 }) {
                let mut cache = open()?;
                read(&mut cache)?;
                let pages = context.saturating_sub(SINKS).div_ceil(PAGE);
                grow(&model, &backend, &mut cache, SINKS + PAGE * pages);
                let held = cache.len();
                let mut caches = [cache];
                for (wanted, what) in
                    [(Wanted::Top40, "top 40"), (Wanted::Token, "token"), (Wanted::Logits, "logits")]
                {
                    let times = steps(&model, &mut caches, seconds, wanted);
                    report(&format!("decode {policy} at {held}, {what}"), 1, times);
                }
            }
            if number == 0 {
                for chunk in [256, 512, 2048] {
                    let mut cache = open()?;
                    prefill(&model, &mut cache, 512, chunk)?; // buffers are made
                    let (held, start) = (cache.len(), Instant::now());
                    prefill(&model, &mut cache, 4096, chunk)?;
                    let rate = 4096.0 / start.elapsed().as_secs_f64();
                    println!("prefill {policy} of 4096 at {held} in chunks of {chunk}: {rate:.0} tokens/s");
                }
                for (sequences, context) in [(8, 4096), (8, 32_768)] {
                    if context > most {
                        continue;
                    }
                    let mut caches = Vec::new();
                    for _ in 0..sequences {
                        let mut cache = match caches.first() {
                            None => open()?,
                            Some(first) => KvCache::over(
                                first,
                                kvant_cache::Sequence::new(
                                    Arc::clone(first.sequence().layout()),
                                    backend.store(),
                                ),
                            ),
                        };
                        read(&mut cache)?;
                        grow(&model, &backend, &mut cache, SINKS + PAGE * context.div_ceil(PAGE));
                        caches.push(cache);
                    }
                    let every = [
                        (Wanted::Top40, "top 40"),
                        (Wanted::Token, "token"),
                        (Wanted::Logits, "logits"),
                        (Wanted::Nothing, "nothing"),
                    ];
                    for (wanted, what) in every {
                        let times = steps(&model, &mut caches, seconds, wanted);
                        let name = format!("decode {policy}, {sequences} x {context}, {what}");
                        report(&name, sequences, times);
                    }
                }
            }
        }
    }
    Ok(())
}
