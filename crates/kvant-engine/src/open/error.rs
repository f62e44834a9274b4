//! Why a model cannot be opened as asked for, and what is worth knowing when it can.

use super::plans::PlanFileError;
use crate::device::DeviceError;
use crate::estimate::{ContextKind, DoesNotFit, EstimateError};
use crate::memory::bytes;
use kvant_attention::KvUnsupported;
use kvant_model::LoadError;
use kvant_text::chat::ChatError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a model cannot be opened as asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The chat template that was given in place of the model's own cannot be read.
    #[error(transparent)]
    Template(#[from] ChatError),
    /// The plan cannot be used.
    #[error(transparent)]
    Plan(#[from] PlanFileError),
    /// No cache keeps keys and values that way.
    #[error(transparent)]
    Kv(#[from] KvUnsupported),
    /// The model has learned fewer positions. A window of any length would go beyond them some time.
    #[error("a {kind} of {asked} tokens: this model was trained with {limit} positions and cannot read more")]
    TooFewPositions {
        /// What was asked for.
        kind: ContextKind,
        /// Its tokens.
        asked: usize,
        /// Positions there are.
        limit: usize,
    },
    /// Keys and values would take more than [`OpenOptions::kv_memory`](super::OpenOptions::kv_memory).
    #[error(
        "a {kind} of {tokens} tokens takes {} for keys and values, but {} are allowed: {}",
        bytes(*.needed as u64), bytes(*.cap as u64), raise(*.kind, *.longest)
    )]
    ExceedsCap {
        /// What was asked for.
        kind: ContextKind,
        /// Its tokens.
        tokens: usize,
        /// Bytes it takes.
        needed: usize,
        /// Bytes allowed.
        cap: usize,
        /// The longest that stays within it, if any does.
        longest: Option<usize>,
    },
    /// The device that was asked for cannot be had, or does not keep keys and values that way.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The machine's memory does not suffice.
    #[error(transparent)]
    DoesNotFit(#[from] Box<DoesNotFit>),
}

fn raise(kind: ContextKind, longest: Option<usize>) -> String {
    match longest {
        None => "allow more".to_owned(),
        Some(longest) => format!("allow more, or ask for a {kind} of {longest} at most"),
    }
}

impl From<EstimateError> for OpenError {
    fn from(error: EstimateError) -> Self {
        match error {
            EstimateError::Load(error) => Self::Load(error),
            EstimateError::Kv(error) => Self::Kv(error),
        }
    }
}

/// Something about an opened model that people may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenNote {
    /// A plan lends its numbers to the cache, or `auto` was asked for.
    Cache {
        /// How they are kept.
        policy: String,
        /// Why.
        reason: String,
    },
    /// A plan decided how keys and values are kept. Its policy may be long: the file's name stands for it.
    Plan {
        /// The plan's file.
        plan: PathBuf,
        /// Why it was taken, and what it was made from.
        reason: String,
    },
    /// There is a device, and the model runs on the processor.
    OnCpu {
        /// The device.
        device: String,
        /// Why not there.
        reason: String,
    },
    /// Layers were asked for on a GPU, and none runs there.
    NoDevice {
        /// Whether the processor was asked for too.
        is_chosen: bool,
    },
    /// Weights of types that have no kernels on the processor.
    SlowWeights {
        /// The types.
        types: Vec<&'static str>,
    },
    /// The rotary embedding is not the file's.
    Rope {
        /// What was changed.
        settings: String,
        /// Whether other layers have an embedding of their own, which stays.
        has_others: bool,
    },
    /// The file does not say how its vocabulary cuts text into words.
    GuessedSplits,
    /// More tokens than the model was made for.
    BeyondTraining {
        /// What was asked for.
        kind: ContextKind,
        /// Its tokens.
        asked: usize,
        /// Tokens the model was made for.
        trained: usize,
    },
    /// Memory allows a shorter context than the usual one, and it is used.
    ShorterContext {
        /// Tokens of the context.
        context: usize,
        /// Tokens it would have had.
        usual: usize,
    },
}

impl fmt::Display for OpenNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache { policy, reason } => write!(f, "keys and values are kept in {policy}: {reason}"),
            Self::Plan { reason, .. } => write!(f, "KV cache: {reason}"),
            Self::OnCpu { device, reason } => write!(f, "the model runs on the CPU, not on {device}: {reason}"),
            Self::NoDevice { is_chosen: true } => {
                write!(f, "--gpu-layers: --device cpu (or KVANT_DEVICE) keeps all layers on the CPU")
            }
            Self::NoDevice { is_chosen: false } => {
                write!(f, "--gpu-layers: no GPU was found; all layers run on the CPU")
            }
            Self::SlowWeights { types } => write!(
                f,
                "weights in {} have no kernels on the CPU and are unpacked for every product, which is slow; `kvant convert` \
                 writes them in a type that has some, such as q4_k",
                types.join(", ")
            ),
            Self::Rope { settings, has_others } => {
                let others = match has_others {
                    true => "; sliding-window layers keep their own",
                    false => "",
                };
                write!(f, "rotary embedding (RoPE) other than the file's: {settings}{others}")
            }
            Self::GuessedSplits => f.write_str(
                "the file does not say how its vocabulary cuts text into words (tokenizer.ggml.pre); answers may be worse \
                 than the model's own, and a newer conversion would help",
            ),
            Self::BeyondTraining { kind, asked, trained } => write!(
                f,
                "a {kind} of {asked} is more than the {trained} tokens the model was made for; answers may degrade"
            ),
            Self::ShorterContext { context, usual } => {
                write!(f, "memory allows a context of {context} tokens, not the usual {usual}")
            }
        }
    }
}

/// A plan in a few words: `plan model.kvplan`.
pub(super) fn plan_name(plan: &Path) -> String {
    format!("plan {}", plan.file_name().unwrap_or(plan.as_os_str()).to_string_lossy())
}
