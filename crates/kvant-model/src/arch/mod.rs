//! Architectures: one file each, and the table that finds them by name.
//!
//! A file reads its hyper-parameters and tensors through [`Parts`], under their names in both formats, and
//! assembles a [`Network`] from [`crate::blocks`]. To add one: write the file, add its line to [`REGISTRY`].
//! Most are a [`crate::blocks::Decoder`] of [`crate::blocks::PreNorm`] layers; a file whose layers differ has a
//! [`crate::blocks::Block`] of its own, and one whose frame differs too (inputs for every layer, for instance)
//! implements [`Network`] itself.

mod gemma;
mod gemma2;
mod gemma3;
mod gpt2;
mod gpt_neox;
mod granite;
mod llama;
mod ministral3;
mod mistral;
mod mixtral;
mod olmo2;
mod parts;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod smollm3;
mod starcoder2;
mod usual;

pub use parts::{ActivationType, LoadOptions, Name, Parts};

use crate::blocks::{Pass, Rows, ScoreTraits};
use crate::cache::LayerState;
use crate::error::{LoadError, Result};

/// A loaded network.
pub trait Network: Send + Sync {
    /// Number of token ids.
    fn vocabulary(&self) -> usize;

    /// The first position the network cannot represent at all; `None` where only quality suffers.
    fn position_limit(&self) -> Option<usize>;

    /// What a sequence's cache has to hold, entry by entry.
    fn states(&self) -> Vec<LayerState>;

    /// How every attention layer makes scores.
    fn score_traits(&self) -> Vec<ScoreTraits>;

    /// The output weights of every attention layer that reads this entry of the cache, each `(hidden, heads · value_dim)`.
    fn output_weights(&self, entry: usize) -> Vec<Rows>;

    /// Runs the layers; the result is `(tokens, hidden)`, after the last norm.
    fn hidden(&self, pass: &mut Pass<'_, '_>) -> Rows;

    /// `(rows, hidden)` to `(rows, vocabulary)`.
    fn logits(&self, hidden: &Rows) -> Rows;
}

/// An architecture kvant can run.
pub struct Architecture {
    /// Its `model_type` in `config.json`.
    pub config_name: &'static str,
    /// Its `general.architecture` in GGUF; empty where GGUF files use another architecture's.
    pub gguf_name: &'static str,
    load: fn(&Parts<'_>) -> Result<Box<dyn Network>>,
}

const fn entry(
    config_name: &'static str,
    gguf_name: &'static str,
    load: fn(&Parts<'_>) -> Result<Box<dyn Network>>,
) -> Architecture {
    Architecture { config_name, gguf_name, load }
}

/// Every architecture, by the names files give it.
pub const REGISTRY: &[Architecture] = &[
    entry("gemma", "gemma", gemma::load),
    entry("gemma2", "gemma2", gemma2::load),
    entry("gemma3_text", "gemma3", gemma3::load),
    entry("gpt2", "gpt2", gpt2::load),
    entry("gpt_neox", "gptneox", gpt_neox::load),
    entry("granite", "granite", granite::load),
    entry("llama", "llama", llama::load),
    entry("ministral3", "mistral3", ministral3::load),
    entry("mistral", "", mistral::load),
    entry("mixtral", "", mixtral::load),
    entry("olmo2", "olmo2", olmo2::load),
    entry("phi3", "phi3", phi3::load),
    entry("qwen2", "qwen2", qwen2::load),
    entry("qwen2_moe", "qwen2moe", qwen2_moe::load),
    entry("qwen3", "qwen3", qwen3::load),
    entry("qwen3_moe", "qwen3moe", qwen3_moe::load),
    entry("smollm3", "smollm3", smollm3::load),
    entry("starcoder2", "starcoder2", starcoder2::load),
];

impl Architecture {
    /// The architecture a checkpoint names, or an error of kind
    /// [`Unsupported`](crate::error::LoadErrorKind::Unsupported) with that name.
    pub fn of(parts: &Parts<'_>) -> Result<&'static Self> {
        let name = parts.hyper().architecture()?;
        let is = |known: &&Architecture| {
            let own = if parts.hyper().is_gguf() { known.gguf_name } else { known.config_name };
            own == name
        };
        REGISTRY.iter().find(is).ok_or_else(|| {
            let known: Vec<&str> = REGISTRY.iter().map(|known| known.config_name).collect();
            LoadError::unsupported(format!(
                "architecture {name:?} is not supported; kvant knows {}",
                known.join(", ")
            ))
        })
    }

    /// Loads a checkpoint of this architecture.
    pub fn load(&self, parts: &Parts<'_>) -> Result<Box<dyn Network>> {
        (self.load)(parts)
    }
}
