//! Flags about the model and how it runs.

use crate::options::size::Size;
use crate::options::{Activations, ThreadOptions};
use clap::{Args, ValueEnum};
use kvant_engine::{KvChoice, OpenOptions, SparseV, StateType};
use kvant_model::DType;

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
    kv: Option<KvChoice>,

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

    /// The numbers that recurrent state is stored in: f32, bf16 or int8; the narrower, the smaller and the less exact
    /// [default: f32]
    #[arg(long, value_name = "TYPE")]
    state: Option<StateType>,

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
pub enum Weights {
    /// 8 bits in groups of 32
    Int8,
    /// 4 bits in groups of 32
    Int4,
}

impl Weights {
    /// The type of packed weights.
    pub fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::Int8G32,
            Self::Int4 => DType::Int4G32,
        }
    }
}

impl ModelOptions {
    /// The window of a conversation without end.
    pub fn window(&self) -> Option<usize> {
        self.window.map(|tokens| tokens as usize)
    }

    /// What the engine is asked for.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions {
            kv: self.kv.clone(),
            // Beyond any memory on a 32-bit machine, where it is refused like every context that does not fit.
            context: self.ctx.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)),
            window: self.window(),
            sinks: self.sinks.map(|tokens| tokens as usize),
            sparse_v: self.sparse_v,
            state: self.state,
            kv_memory: self.kv_memory.map(|size| size.0),
            weights: self.weights.map(Weights::dtype),
            activations: self.activations.kind(),
            pinned: self.mlock,
            threads: self.threads.count(),
        }
    }
}
