//! Flags about the model and how it runs.

use crate::failure::Failure;
use crate::options::size::Size;
use crate::options::{Activations, Kv, ThreadOptions};
use crate::planned::Plans;
use clap::{Args, ValueEnum};
use kvant_engine::forecast::weight_bytes;
use kvant_engine::{ArenaOptions, Policy, SparseV};
use kvant_model::{Checkpoint, DType, LoadOptions, Model};

/// The model, and how it runs.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// A model file or folder, a short name, or org/repo or org/repo:file on Hugging Face
    #[arg(short, long, default_value = "smollm2-135m")]
    pub model: String,

    /// The most tokens to hold, prompt and answer together [default: the model's own, up to 8192]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    ctx: Option<u64>,

    /// How keys and values are kept: int4, int8, f16, k=CODEC,v=CODEC …, with exceptions such as 'int4;layers 0-1:k=f16', or a
    /// plan: FILE.kvplan [default: auto, by the plan beside the model, or by its family, int4 for most; `kvant doctor` tells]
    #[arg(long, value_name = "SPEC")]
    kv: Option<Kv>,

    /// Go on without end, in view of the last TOKENS and the first few only; what leaves the window is forgotten
    #[arg(long, value_name = "TOKENS", conflicts_with = "ctx", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,

    /// First tokens that are kept exactly, and stay in view of a window [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=32))]
    sinks: Option<u32>,

    /// Do not read the values of a page (64 tokens or so) in which no token has TAU of the largest weight, above 0 and below 1:
    /// the larger, the faster on long contexts and the less exact [default: only what cannot change the result is left out]
    #[arg(long, value_name = "TAU")]
    sparse_v: Option<SparseV>,

    /// The most memory for keys and values, such as 512M or 2G; a context or window that needs more is refused
    #[arg(long, value_name = "SIZE")]
    kv_memory: Option<Size>,

    /// Pack weights that the file holds as plain numbers
    #[arg(long, value_name = "TYPE")]
    weights: Option<Weights>,

    /// The numbers that weights are multiplied with
    #[arg(long, value_name = "TYPE", default_value = "int8")]
    activations: Activations,

    #[command(flatten)]
    pub threads: ThreadOptions,

    /// Pin weights, keys and values in memory: never swapped out, never read twice; refused where the system's limit on
    /// locked memory is lower
    #[arg(long)]
    mlock: bool,
}

/// Types weights can be packed to.
#[derive(Clone, Copy, ValueEnum)]
enum Weights {
    /// 8 bits in groups of 32
    Int8,
    /// 4 bits in groups of 32
    Int4,
}

impl Weights {
    fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::Int8G32,
            Self::Int4 => DType::Int4G32,
        }
    }
}

impl ModelOptions {
    /// The context asked for.
    pub fn ctx(&self) -> Option<usize> {
        // Beyond any memory on a 32-bit machine, where it is refused like every context that does not fit.
        self.ctx.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX))
    }

    /// How keys and values of a model are kept, the window included. Says so where a plan decides.
    pub fn policy(&self, checkpoint: &Checkpoint, model: &Model) -> Result<Policy, Failure> {
        let chosen = Plans::new(checkpoint).choose(self.kv.as_ref(), model)?;
        if chosen.plan.is_some() || self.kv == Some(Kv::Auto) {
            eprintln!("note: keys and values are kept in {}: {}", chosen.policy, chosen.reason);
        }
        let mut policy = chosen.policy;
        policy.rule.streaming = self.window();
        if let Some(sinks) = self.sinks {
            policy.rule.sinks = sinks as usize;
        }
        policy.sparse_v = self.sparse_v.or(policy.sparse_v);
        Ok(policy)
    }

    /// The window of a conversation without end.
    pub fn window(&self) -> Option<usize> {
        self.window.map(|tokens| tokens as usize)
    }

    /// How memory for keys and values is taken.
    pub fn arena(&self) -> ArenaOptions {
        ArenaOptions { cap: self.kv_memory.map(|size| size.0), pinned: self.mlock }
    }

    /// What the loader has to know.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            weights: self.weights.map(Weights::dtype),
            activations: self.activations.kind(),
            lock: self.mlock,
        }
    }

    /// Bytes the weights will take in memory.
    pub fn weight_bytes(&self, checkpoint: &Checkpoint) -> Result<u64, Failure> {
        Ok(weight_bytes(checkpoint, self.weights.map(Weights::dtype))?)
    }
}
