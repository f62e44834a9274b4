//! How much memory a run takes, part by part, before anything is loaded: one estimate for `run`, `chat`, `serve`, `inspect`
//! and `fit`.
//!
//! ```no_run
//! use kvant_engine::estimate::{MemoryEstimate, RunConfig};
//! use kvant_engine::{Policy, memory::Memory};
//! use kvant_model::{Checkpoint, Description};
//!
//! let checkpoint = Checkpoint::open("model.gguf")?;
//! let description = Description::of(&checkpoint)?;
//! let policy: Policy = "int4".parse()?;
//! let run = RunConfig::answer(&policy, 32768, 8);
//! let estimate = MemoryEstimate::new(&checkpoint, &description, &run)?;
//! println!("{} bytes at most, {} of them keys and values", estimate.peak(), estimate.cache);
//! if let Some(memory) = Memory::read() {
//!     let longest = MemoryEstimate::longest_within(memory.available, &checkpoint, &description, &run)?;
//!     println!("the longest context that fits: {longest:?}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::memory::bytes;
use crate::session::PREFILL_CHUNK;
use kvant_attention::{KvCache, KvUnsupported};
use kvant_cache::SlotKind;
use kvant_cache::{CacheLayout, Policy};
use kvant_cpu::ROWS_KEPT;
use kvant_model::{Checkpoint, DType, Description, LoadError, Tensor};
use std::fmt;
use std::sync::Arc;

/// The program with its libraries, and what it needs whatever the model.
const PROGRAM: u64 = 13 << 20;
/// Bytes of a tokenizer per token, about: texts, merges and the tables to find them by.
const TOKENIZER: u64 = 400;
/// Bytes of a mapped file that come into memory when one of them is read.
const MAPPED_AROUND: u64 = 1 << 16;
/// Of each thread: scores of a segment for a block of heads, sums, and activations in bytes.
const THREAD: u64 = 1 << 20;
/// On a device: partial sums of attention, tables of pages, and what its driver keeps.
const DEVICE_WORKING: u64 = 256 << 20;
/// Longer contexts count as this long: beyond any memory already, and sizes can still be added up.
const LONGEST: usize = 1 << 40;

/// Bytes of memory, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The program itself.
    pub program: u64,
    /// Weights, as they are multiplied with.
    pub weights: u64,
    /// The rows of the token table that are in use. They lie in the model's file, and are given back now and then.
    pub table: u64,
    /// The tokenizer.
    pub tokenizer: u64,
    /// Keys and values, with the exact rows of a pass.
    pub cache: u64,
    /// What calibration found, where the cache goes by a plan.
    pub plan: u64,
    /// Activations of a pass.
    pub working: u64,
    /// All there is when the last weights are packed, and their file's bytes are still there too.
    pub loading: u64,
}

/// What is going to be run.
#[derive(Debug, Clone)]
pub struct RunConfig<'a> {
    /// How keys and values are kept; with a streaming window, what it holds counts and not the context.
    pub policy: &'a Policy,
    /// Tokens that are held in the end.
    pub context: usize,
    /// Tokens that are read by the model; the others are copies, as in `kvant bench --fill`.
    pub read: usize,
    /// Whether there is text to be turned into tokens.
    pub text: bool,
    /// Threads that compute.
    pub threads: usize,
    /// What plain weights are packed to.
    pub weights: Option<DType>,
    /// Whether weights, pages and activations lie in memory of a device's own: the estimate is then of that memory.
    pub on_device: bool,
}

impl<'a> RunConfig<'a> {
    /// Text that is read and answered until `context` tokens are held, with weights as they are stored.
    pub fn answer(policy: &'a Policy, context: usize, threads: usize) -> Self {
        Self { policy, context, read: context, text: true, threads, weights: None, on_device: false }
    }
}

/// Why memory cannot be estimated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// The file cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No cache keeps keys and values that way.
    #[error(transparent)]
    Kv(#[from] KvUnsupported),
}

/// What bounds the tokens in view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextKind {
    /// A context that ends.
    Context,
    /// The window of streaming attention, without end.
    Window,
}

impl fmt::Display for ContextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Context => "context",
            Self::Window => "window",
        })
    }
}

/// A run that does not fit in memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a {kind} of {tokens} tokens does not fit in {}: {}, but {} are available; {}",
    memory_name(*.on_device), .estimate.sum(), bytes(*.available), advice(*.longest)
)]
pub struct DoesNotFit {
    /// What was asked for.
    pub kind: ContextKind,
    /// Its tokens.
    pub tokens: usize,
    /// What it takes.
    pub estimate: MemoryEstimate,
    /// Bytes there are.
    pub available: u64,
    /// The longest that fits, if any does.
    pub longest: Option<usize>,
    /// Whether it is the memory of a device.
    pub on_device: bool,
}

/// What the memory is called.
pub fn memory_name(on_device: bool) -> &'static str {
    if on_device { "the device's memory" } else { "memory" }
}

fn advice(longest: Option<usize>) -> String {
    match longest {
        None => "close other programs or use a smaller model".to_owned(),
        Some(longest) => format!("the longest that fits is {longest}"),
    }
}

impl MemoryEstimate {
    /// Estimates the memory of a run of a description, which may be loaded as stored.
    ///
    /// # Errors
    /// If the file cannot be read, or no cache keeps keys and values that way.
    pub fn new(
        checkpoint: &Checkpoint,
        description: &Description,
        run: &RunConfig<'_>,
    ) -> Result<Self, EstimateError> {
        Ok(Sizes::of(checkpoint, description, run)?.estimate(run))
    }

    /// The longest context, up to that of the run, whose memory stays within `memory` bytes; `None` where not even one token
    /// fits.
    ///
    /// # Errors
    /// As [`MemoryEstimate::new`].
    pub fn longest_within(
        memory: u64,
        checkpoint: &Checkpoint,
        description: &Description,
        run: &RunConfig<'_>,
    ) -> Result<Option<usize>, EstimateError> {
        Ok(Sizes::of(checkpoint, description, run)?.longest_within(memory, run))
    }

    /// Whether the run fits in `available` bytes.
    ///
    /// # Errors
    /// As [`MemoryEstimate::new`]; and, inside, what it takes and the longest context that fits, if it does not. Where the policy
    /// has a streaming window, the longest window.
    pub fn check(
        available: u64,
        checkpoint: &Checkpoint,
        description: &Description,
        run: &RunConfig<'_>,
    ) -> Result<Result<Self, DoesNotFit>, EstimateError> {
        let sizes = Sizes::of(checkpoint, description, run)?;
        let estimate = sizes.estimate(run);
        if estimate.peak() <= available {
            return Ok(Ok(estimate));
        }
        let (kind, tokens, longest) = match run.policy.rule.streaming {
            None => (ContextKind::Context, run.context, sizes.longest_within(available, run)),
            Some(window) => {
                let fits = |window| {
                    let mut policy = run.policy.clone();
                    policy.rule.streaming = Some(window);
                    let narrower = RunConfig { policy: &policy, ..run.clone() };
                    Self::new(checkpoint, description, &narrower).is_ok_and(|it| it.peak() <= available)
                };
                (ContextKind::Window, window, largest(window, fits))
            }
        };
        Ok(Err(DoesNotFit { kind, tokens, estimate, available, longest, on_device: run.on_device }))
    }

    /// The most memory at any time.
    pub fn peak(&self) -> u64 {
        let held = [self.program, self.weights, self.table, self.tokenizer, self.plan];
        let running = held.into_iter().chain([self.cache, self.working]);
        running.sum::<u64>().max(self.loading)
    }

    /// What is neither weights nor cache: the program, its tokenizer and the activations of a pass.
    pub fn rest(&self) -> u64 {
        self.peak().saturating_sub(self.weights + self.cache)
    }

    /// The sum for people: `weights 1.0 GiB + KV cache 3.0 GiB + the rest 80.0 MiB = 4.1 GiB`.
    pub fn sum(&self) -> String {
        let [weights, cache, rest, peak] = [self.weights, self.cache, self.rest(), self.peak()].map(bytes);
        format!("weights {weights} + KV cache {cache} + the rest {rest} = {peak}")
    }
}

/// The largest of `1..=bound` that fits, by halving: whatever is smaller than one that fits does too.
pub(crate) fn largest(bound: usize, mut fits: impl FnMut(usize) -> bool) -> Option<usize> {
    if fits(bound) {
        return Some(bound);
    }
    // `fitting` does, `beyond` does not.
    let (mut fitting, mut beyond) = (0, bound);
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    Some(fitting).filter(|&count| count > 0)
}

/// Bytes the weights take in memory, in the form they are multiplied with; `packed` is what plain numbers become. The rows
/// of the token table stay in the file, but a table that is the output as well counts once.
///
/// # Errors
/// If the file cannot be read.
pub fn weight_bytes(checkpoint: &Checkpoint, packed: Option<DType>) -> Result<u64, LoadError> {
    let mut sum = 0;
    let is_tied = !checkpoint.names().any(is_output);
    for name in checkpoint.names() {
        if !is_per_layer_table(name) && (!is_table(name) || is_tied) {
            sum += in_memory(&checkpoint.tensor(name)?, packed);
        }
    }
    Ok(sum)
}

fn is_table(name: &str) -> bool {
    ["token_embd.weight", "embed_tokens.weight", "wte.weight", "embed_in.weight"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Rows of it are read as tokens come; it is never multiplied with.
fn is_per_layer_table(name: &str) -> bool {
    ["per_layer_token_embd.weight", "embed_tokens_per_layer.weight"].iter().any(|end| name.ends_with(end))
}

fn is_output(name: &str) -> bool {
    ["output.weight", "lm_head.weight", "embed_out.weight"].contains(&name)
}

/// Bytes of a tensor once it is loaded.
fn in_memory(tensor: &Tensor, packed: Option<DType>) -> u64 {
    let is_plain = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3);
    let repacked = packed.filter(|_| is_plain && tensor.shape().len() > 1);
    let size = repacked.and_then(|dtype| dtype.tensor_bytes(tensor.shape()));
    size.unwrap_or(tensor.bytes().len()) as u64
}

/// What does not depend on the context.
struct Sizes {
    weights: u64,
    /// The same with the token table, which a device has whole.
    all_weights: u64,
    table: u64,
    /// Bytes of the largest tensor in the file.
    largest: u64,
    /// Numbers of a token that a pass has in hand at a time.
    activations: u64,
    vocabulary: u64,
    layout: Arc<CacheLayout>,
    /// What calibration found.
    plan: u64,
}

impl Sizes {
    fn of(
        checkpoint: &Checkpoint,
        description: &Description,
        run: &RunConfig<'_>,
    ) -> Result<Self, EstimateError> {
        let (mut table, mut largest, mut hidden, mut widest) = (0, 0, 0, 0);
        let mut all_weights = 0;
        for name in checkpoint.names() {
            let tensor = checkpoint.tensor(name)?;
            let size = tensor.bytes().len() as u64;
            largest = largest.max(size);
            all_weights += in_memory(&tensor, run.weights);
            let extents = tensor.shape();
            if is_table(name) {
                (table, hidden) = (size, tensor.columns() as u64);
            } else if let [.., rows, columns] = *extents
                && !is_output(name)
                && description.position_limit() != Some(rows)
            {
                widest = widest.max(rows.max(columns) as u64);
            }
        }
        let keys = |kind: &SlotKind| match kind {
            SlotKind::KeysValues(shape) => shape.kv_heads * shape.key_dim,
            SlotKind::Latent(shape) => shape.kv_heads * (shape.latent_dim + shape.rope_dim),
            SlotKind::Recurrent(shape) => shape.row,
            SlotKind::View(_) => 0,
        };
        let keys = description.slots.iter().map(|(_, slot)| keys(&slot.kind)).max().unwrap_or(0) as u64;
        // The residual stream, its norm, queries and what they attend to, a layer's output; keys and values; the inner
        // layer twice, and once more in bytes.
        let activations = 6 * hidden + 2 * keys + 2 * widest + widest / 2;
        Ok(Self {
            weights: weight_bytes(checkpoint, run.weights)?,
            all_weights,
            table,
            largest,
            activations,
            vocabulary: description.vocabulary as u64,
            layout: Arc::clone(KvCache::new(run.policy, &description.slots, 1)?.sequence().layout()),
            plan: run.policy.plan.as_ref().map_or(0, |plan| plan.memory() as u64),
        })
    }

    fn estimate(&self, run: &RunConfig<'_>) -> MemoryEstimate {
        let read = run.read.min(run.context);
        let pass = PREFILL_CHUNK.min(read) as u64;
        let logits = 2 * self.vocabulary;
        let cache = self.layout.resident_bytes(run.context.min(LONGEST), PREFILL_CHUNK) as u64;
        let working = 4 * (pass * self.activations + logits);
        if run.on_device {
            let weights = self.all_weights;
            let (program, table, tokenizer, plan) = (0, 0, 0, 0);
            return MemoryEstimate {
                program,
                weights,
                table,
                tokenizer,
                cache,
                plan,
                working: working + DEVICE_WORKING,
                loading: weights,
            };
        }
        MemoryEstimate {
            program: PROGRAM,
            weights: self.weights,
            table: self.table.min(read.min(ROWS_KEPT) as u64 * MAPPED_AROUND),
            tokenizer: if run.text { TOKENIZER * self.vocabulary } else { 0 },
            cache,
            plan: self.plan,
            working: working + run.threads as u64 * THREAD,
            loading: PROGRAM + self.weights + self.largest,
        }
    }

    fn longest_within(&self, memory: u64, run: &RunConfig<'_>) -> Option<usize> {
        largest(run.context, |context| {
            let shorter = RunConfig { context, read: run.read.min(context), ..run.clone() };
            self.estimate(&shorter).peak() <= memory
        })
    }
}

#[cfg(test)]
mod tests;
