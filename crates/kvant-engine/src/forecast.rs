//! What a run will take of memory, part by part, before anything is loaded.

use crate::kv::{KvUnsupported, resident};
use crate::session::PREFILL_CHUNK;
use kvant_cache::Policy;
use kvant_model::blocks::ROWS_KEPT;
use kvant_model::cache::LayerState;
use kvant_model::{Checkpoint, DType, LoadError, Model, Tensor};

/// The program with its libraries, and what it needs whatever the model.
const PROGRAM: u64 = 13 << 20;
/// Bytes of a tokenizer per token, about: texts, merges and the tables to find them by.
const TOKENIZER: u64 = 400;
/// Bytes of a mapped file that come into memory when one of them is read.
const MAPPED_AROUND: u64 = 1 << 16;
/// Of each thread: scores of a segment for a block of heads, sums, and activations in bytes.
const THREAD: u64 = 1 << 20;

/// Bytes of memory, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
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

/// What is going to be done.
#[derive(Debug, Clone)]
pub struct Undertaking<'a> {
    /// How keys and values are kept.
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
}

impl<'a> Undertaking<'a> {
    /// Text that is read and answered until `context` tokens are held, with weights as they are stored.
    pub fn answer(policy: &'a Policy, context: usize, threads: usize) -> Self {
        Self { policy, context, read: context, text: true, threads, weights: None }
    }
}

/// Why memory cannot be foretold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForecastError {
    /// The file cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No cache keeps keys and values that way.
    #[error(transparent)]
    Kv(#[from] KvUnsupported),
}

impl Forecast {
    /// Foretells the memory of an undertaking with a model, which may be loaded as stored.
    ///
    /// # Errors
    /// If the file cannot be read, or no cache keeps keys and values that way.
    pub fn new(
        checkpoint: &Checkpoint,
        model: &Model,
        plan: &Undertaking<'_>,
    ) -> Result<Self, ForecastError> {
        Self::of_sizes(&Sizes::of(checkpoint, model, plan.weights)?, model, plan)
    }

    /// The longest context, up to that of the undertaking, whose memory stays within `memory` bytes; `None` where not even one
    /// token fits.
    ///
    /// # Errors
    /// As [`Forecast::new`].
    pub fn longest_within(
        memory: u64,
        checkpoint: &Checkpoint,
        model: &Model,
        plan: &Undertaking<'_>,
    ) -> Result<Option<usize>, ForecastError> {
        let sizes = Sizes::of(checkpoint, model, plan.weights)?;
        let fits = |context: usize| {
            let plan = Undertaking { context, read: plan.read.min(context), ..plan.clone() };
            Ok::<_, ForecastError>(Self::of_sizes(&sizes, model, &plan)?.peak() <= memory)
        };
        if fits(plan.context)? {
            return Ok(Some(plan.context));
        }
        // By halving: `fitting` does, `beyond` does not.
        let (mut fitting, mut beyond) = (0, plan.context);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle)? {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        Ok(Some(fitting).filter(|&context| context > 0))
    }

    fn of_sizes(sizes: &Sizes, model: &Model, plan: &Undertaking<'_>) -> Result<Self, ForecastError> {
        let read = plan.read.min(plan.context);
        let table = sizes.table.min(read.min(ROWS_KEPT) as u64 * MAPPED_AROUND);
        let tokenizer = if plan.text { TOKENIZER * model.vocabulary() as u64 } else { 0 };
        let cache = resident(plan.policy, model.states(), plan.context)? as u64;
        let found = plan.policy.plan.as_ref().map_or(0, |plan| plan.memory() as u64);
        let pass = PREFILL_CHUNK.min(read) as u64;
        let logits = 2 * model.vocabulary() as u64;
        let working = 4 * (pass * sizes.activations + logits) + plan.threads as u64 * THREAD;
        let loading = PROGRAM + sizes.weights + sizes.largest;
        Ok(Self {
            program: PROGRAM,
            weights: sizes.weights,
            table,
            tokenizer,
            cache,
            plan: found,
            working,
            loading,
        })
    }

    /// The most memory at any time.
    pub fn peak(&self) -> u64 {
        let held = [self.program, self.weights, self.table, self.tokenizer, self.plan];
        let running = held.into_iter().chain([self.cache, self.working]);
        running.sum::<u64>().max(self.loading)
    }
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
        if !is_table(name) || is_tied {
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

fn is_output(name: &str) -> bool {
    ["output.weight", "lm_head.weight", "embed_out.weight"].contains(&name)
}

/// Bytes of a tensor once it is loaded.
fn in_memory(tensor: &Tensor, packed: Option<DType>) -> u64 {
    let is_plain = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let repacked = packed.filter(|_| is_plain && tensor.shape().len() > 1);
    let size = repacked.and_then(|dtype| dtype.tensor_bytes(tensor.shape()));
    size.unwrap_or(tensor.bytes().len()) as u64
}

struct Sizes {
    weights: u64,
    table: u64,
    /// Bytes of the largest tensor in the file.
    largest: u64,
    /// Numbers of a token that a pass has in hand at a time.
    activations: u64,
}

impl Sizes {
    fn of(checkpoint: &Checkpoint, model: &Model, packed: Option<DType>) -> Result<Self, LoadError> {
        let (mut table, mut largest, mut hidden, mut widest) = (0, 0, 0, 0);
        for name in checkpoint.names() {
            let tensor = checkpoint.tensor(name)?;
            let size = tensor.bytes().len() as u64;
            largest = largest.max(size);
            let extents = tensor.shape();
            if is_table(name) {
                (table, hidden) = (size, tensor.columns() as u64);
            } else if let [.., rows, columns] = *extents
                && !is_output(name)
                && model.position_limit() != Some(rows)
            {
                widest = widest.max(rows.max(columns) as u64);
            }
        }
        let keys = |state: &LayerState| match state {
            LayerState::KeysValues(shape) => shape.heads * shape.key_dim,
            _ => 0,
        };
        let keys = model.states().iter().map(keys).max().unwrap_or(0) as u64;
        // The residual stream, its norm, queries and what they attend to, a layer's output; keys and values; the inner
        // layer twice, and once more in bytes.
        let activations = 6 * hidden + 2 * keys + 2 * widest + widest / 2;
        Ok(Self { weights: weight_bytes(checkpoint, packed)?, table, largest, activations })
    }
}
