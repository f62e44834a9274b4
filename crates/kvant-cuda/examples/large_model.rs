//! Llama 3.1 70B with 4-bit weights and a 4-bit cache on one card: what it takes is predicted, then measured, at 128K tokens within a
//! cap, and at the longest context that the whole card holds. Weights mean nothing and are made on the way: no file is needed.
//!
//!     large_model [cap in GB: 64] [tokens: 131072, 0 for the longest alone] [seconds: 3]

mod shape;

use kvant_cache::{CacheLayout, Policy};
use kvant_cuda::{CudaBackend, CudaGpu, WeightType};
use kvant_model::{Checkpoint, DType, Description, Model};
use shape::{Noise, PAGE, Wanted, llama_3, open_card, report, steps, streams, with_all_processors};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What a pass has beside weights and pages: activations of a chunk, partials, tables, logits.
const REST: usize = 1 << 30;

fn gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

/// Bytes of the card that are in use, by this process and by others.
fn used(card: &CudaGpu) -> Outcome<usize> {
    let (free, all) = card.free_memory()?;
    Ok(all - free)
}

/// Bytes of all tensors: matrices in Q4_0, vectors in f32.
fn weight_bytes(outline: &Checkpoint) -> Outcome<usize> {
    let description = Description::of(outline)?;
    let bytes = description.tensors().into_iter().map(|tensor| {
        let dtype = if tensor.shape.len() > 1 { DType::Q4_0 } else { DType::F32 };
        dtype.tensor_bytes(&tensor.shape).ok_or_else(|| format!("{}: rows are not whole blocks", tensor.name))
    });
    Ok(bytes.sum::<Result<usize, String>>()?)
}

/// What is the same for every context.
struct Trial<'a> {
    card: &'a CudaGpu,
    policy: Policy,
    /// Bytes of the weights.
    weights: usize,
    /// Bytes that were in use before.
    before: usize,
    seconds: f64,
}

impl Trial<'_> {
    /// Decodes at a context of so many tokens, says what was predicted and what was taken, and gives the latter.
    fn run(&self, model: &Model, backend: &CudaBackend, tokens: usize) -> Outcome<usize> {
        let mut caches = streams(model, backend, &self.policy, (1, tokens))?;
        let len = caches[0].len();
        let predicted = self.weights + caches[0].sequence().layout().arena_bytes(len, 1) + REST;
        let times = steps(model, &mut caches, self.seconds, Wanted { rows: 1, top: Some(1) });
        let taken = used(self.card)? - self.before;
        let off = 100.0 * (taken as f64 / predicted as f64 - 1.0);
        let [told, took] = [predicted, taken].map(gigabytes);
        println!("{len} tokens: predicted {told:.2} GB, taken {took:.2} GB ({off:+.2} %)");
        report(&format!("decode {} at {len}", self.policy), 1, times);
        Ok(taken)
    }
}

fn main() -> Outcome<()> {
    with_all_processors(run)
}

fn run() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let cap: f64 = arguments.next().map_or(Ok(64.0), |n| n.parse())?;
    let tokens: usize = arguments.next().map_or(Ok(131_072), |n| n.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(3.0), |n| n.parse())?;
    let Some(card) = open_card() else { return Ok(()) };
    let before = used(&card)?;
    let outline = Checkpoint::from_config(llama_3(true), DType::Q4_0)?;
    let weights = weight_bytes(&outline)?;
    let policy: Policy = "int4".parse()?;
    let cap = (1e9 * cap) as usize;
    println!("{}: Llama 3.1 70B, Q4_0 weights {:.2} GB, cache {policy}", card.name(), gigabytes(weights));

    let trial = Trial { card: &card, policy, weights, before, seconds };
    if tokens > 0 {
        let room = cap.checked_sub(weights + REST).ok_or("the weights alone take more than the cap")?;
        let backend = CudaBackend::new(&card)?.with_cap(Some(room))?;
        let model = Model::load(&Noise(&backend, WeightType::Q4_0), &outline)?;
        println!("cap {:.1} GB: {:.2} GB are left for pages", gigabytes(cap), gigabytes(room));
        let taken = trial.run(&model, &backend, tokens)?;
        if taken > cap {
            return Err(format!("{:.2} GB were taken, which is over the cap", gigabytes(taken)).into());
        }
    }

    let backend = CudaBackend::new(&card)?;
    let model = Model::load(&Noise(&backend, WeightType::Q4_0), &outline)?;
    let (free, all) = card.free_memory()?;
    let room = free.checked_sub(REST).ok_or("the card is too small for the weights")?;
    let layout = CacheLayout::new(&trial.policy, model.slots())?;
    let (mut fits, mut beyond) = (PAGE, 1 << 23);
    while beyond - fits > PAGE {
        let middle = fits + (beyond - fits) / 2;
        if layout.arena_bytes(middle, 1) <= room { fits = middle } else { beyond = middle }
    }
    println!(
        "the whole card, {:.2} of {:.2} GB free with the weights on it: {fits} tokens fit by the prediction",
        gigabytes(free),
        gigabytes(all)
    );
    trial.run(&model, &backend, fits - 2 * PAGE)?;
    Ok(())
}
