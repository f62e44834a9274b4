//! Shapes of Llama 3 with weights that mean nothing, contexts whose pages are copies of a few real ones, and steps that are timed.

use kvant_attention::KvCache;
use kvant_cache::{PageId, PageStore, PageWork, Policy, Sequence};
use kvant_codec::Side;
use kvant_cuda::kernels::Form as KernelForm;
use kvant_cuda::{CudaBackend, CudaGpu, WeightType};
use kvant_model::error::Result;
use kvant_model::{Backend, Checkpoint, Chunk, Description, Form, Model, Network, Output, Pass, TopK};
use kvant_threads::Pool;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Runs an example with all processors, as an engine runs its passes.
pub fn with_all_processors<T>(run: impl FnOnce() -> T) -> T {
    Pool::new(kvant_threads::processors()).install(run)
}

/// Tokens that may follow a context.
const ROOM: usize = 16 << 10;

/// The first card, which it names; none where there is none. `KVANT_CARD_FORM=ptx` runs the kernels of older cards.
pub fn open_card() -> Option<Arc<CudaGpu>> {
    let form = std::env::var("KVANT_CARD_FORM").is_ok_and(|form| form == "ptx").then_some(KernelForm::Ptx);
    match CudaGpu::open_as(0, form) {
        Ok(card) => {
            println!("{} ({:?}), {} SMs", card.name(), card.form(), card.processors());
            Some(Arc::new(card))
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Compiles descriptions with weights that mean nothing.
pub struct Noise<'a>(pub &'a CudaBackend, pub WeightType);

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

/// The shape of Llama 3, of 8 or of 70 billion numbers.
pub fn llama_3(large: bool) -> serde_json::Value {
    let [hidden, layers, intermediate, heads] =
        if large { [8192, 80, 28672, 64] } else { [4096, 32, 14336, 32] };
    serde_json::json!({
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": intermediate,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 1 << 23, "vocab_size": 128_256,
        "tie_word_embeddings": false
    })
}

/// Tokens that a page takes, and sinks before the first.
pub const PAGE: usize = 64;
const SINKS: usize = 4;

/// The tokens that a context begins with: its sinks and two pages.
fn beginning() -> Vec<u32> {
    (0..(SINKS + 2 * PAGE) as u32).map(|n| 17 * n % 1000).collect()
}

/// Tokens whose pages are copies. Those after them stay as a new process finds the memory: a million tokens of a large model are twenty million
/// pages, and what they hold decides neither what they take nor how fast they are read.
const COPIED: usize = 1 << 18;

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
            if sequence.len() >= COPIED {
                continue;
            }
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

/// Sequences of one layout, each with a context of its own of so many tokens.
pub fn streams(
    model: &Model,
    backend: &CudaBackend,
    policy: &Policy,
    (count, context): (usize, usize),
) -> std::result::Result<Vec<KvCache>, Box<dyn Error>> {
    let mut caches: Vec<KvCache> = Vec::new();
    for _ in 0..count {
        let mut cache = match caches.first() {
            None => KvCache::in_arena(policy.clone(), model.slots(), context + ROOM, backend.store())?,
            Some(first) => {
                let layout = Arc::clone(first.sequence().layout());
                KvCache::over(first, Sequence::new(layout, backend.store()))
            }
        };
        model.forward(Pass::new(&[Chunk::new(&beginning(), 0..1)]), &mut [cache.sequence_mut()])?;
        grow(model, backend, &mut cache, SINKS + PAGE * context.saturating_sub(SINKS).div_ceil(PAGE));
        caches.push(cache);
    }
    Ok(caches)
}

fn largest(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0) as u32
}

/// What comes back of a step.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Rows of every sequence, one or none.
    pub rows: usize,
    /// So many of their best tokens in place of all logits.
    pub top: Option<usize>,
}

/// Milliseconds of decode steps.
pub fn steps(model: &Model, caches: &mut [KvCache], seconds: f64, wanted: Wanted) -> Vec<f64> {
    let mut ids = vec![1; caches.len()];
    let (mut times, started) = (Vec::new(), Instant::now());
    while times.len() < 12 || (started.elapsed().as_secs_f64() < seconds && times.len() < 400) {
        let top = vec![wanted.top.map(|count| TopK { count, temperature: None }); wanted.rows];
        let chunk = |id| Chunk::new(std::slice::from_ref(id), 0..wanted.rows).form(Form::Top(&top));
        let chunks: Vec<Chunk<'_>> = ids.iter().map(chunk).collect();
        let step = Instant::now();
        let mut batch: Vec<_> = caches.iter_mut().map(KvCache::sequence_mut).collect();
        let outputs = model.forward(Pass::new(&chunks), &mut batch).expect("a step");
        times.push(1e3 * step.elapsed().as_secs_f64());
        for (row, id) in ids.iter_mut().enumerate().take(outputs.rows()) {
            *id = match outputs.row(row) {
                Output::Top(top) => top.tokens[0].0,
                other => largest(other.logits()),
            };
        }
    }
    times
}

pub fn report(what: &str, sequences: usize, mut times: Vec<f64>) {
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
