//! Architectures: one file each, and the table that finds them by name.
//!
//! A file reads its hyper-parameters and names its tensors through a [`Scope`], under their names in both formats, and
//! yields a [`Description`]. To add one: write the file, add its line to [`REGISTRY`]. Nothing in it knows which backend
//! will run the model.

mod bert;
mod common;
mod contradictions;
mod deepseek_v2;
mod deepseek_v3;
mod encoder;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4_text;
mod gemma_shared;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoehybrid;
mod hunyuan_v1_dense;
mod latent;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mimo;
mod mimo_v2_flash;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod modernbert;
mod mtp;
mod nemotron_h;
mod nomic_bert;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl;
mod recurrent;
mod scope;
mod seed_oss;
mod smollm3;
mod starcoder2;

pub use scope::{Name, Scope};

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::description::Description;
use crate::error::{LoadError, Result};

/// An architecture kvant can describe.
pub struct Architecture {
    /// Its `model_type` in `config.json`.
    pub config_name: &'static str,
    /// Its `general.architecture` in GGUF (alternatives apart by `|`); empty where GGUF files use another architecture's.
    pub gguf_name: &'static str,
    describe: fn(&Scope<'_>) -> Result<Description>,
}

const fn entry(
    config_name: &'static str,
    gguf_name: &'static str,
    describe: fn(&Scope<'_>) -> Result<Description>,
) -> Architecture {
    Architecture { config_name, gguf_name, describe }
}

/// Every architecture, by the names files give it.
pub const REGISTRY: &[Architecture] = &[
    entry("deepseek_v2", "deepseek2", deepseek_v2::describe),
    entry("deepseek_v3", "", deepseek_v3::describe),
    entry("ernie4_5", "ernie4_5", ernie4_5::describe),
    entry("ernie4_5_moe", "ernie4_5-moe", ernie4_5_moe::describe),
    entry("exaone4", "exaone4", exaone4::describe),
    entry("falcon_h1", "falcon-h1", falcon_h1::describe),
    entry("gemma", "gemma", gemma::describe),
    entry("gemma2", "gemma2", gemma2::describe),
    entry("gemma3_text", "gemma3", gemma3::describe),
    entry("gemma3n_text", "gemma3n", gemma3n::describe),
    entry("gemma4_text", "gemma4", gemma4_text::describe),
    entry("glm4_moe", "glm4moe", glm4_moe::describe),
    entry("glm4_moe_lite", "", glm4_moe_lite::describe),
    entry("gpt2", "gpt2", gpt2::describe),
    entry("gpt_neox", "gptneox", gpt_neox::describe),
    entry("gpt_oss", "gpt-oss", gpt_oss::describe),
    entry("granite", "granite", granite::describe),
    entry("granitemoehybrid", "granitehybrid", granitemoehybrid::describe),
    entry("hunyuan_v1_dense", "hunyuan-dense", hunyuan_v1_dense::describe),
    entry("lfm2", "lfm2", lfm2::describe),
    entry("lfm2_moe", "lfm2moe", lfm2_moe::describe),
    entry("llama", "llama", llama::describe),
    entry("mimo", "", mimo::describe),
    entry("mimo_v2_flash", "mimo2", mimo_v2_flash::describe),
    entry("minimax_m2", "minimax-m2", minimax_m2::describe),
    entry("ministral3", "mistral3", ministral3::describe),
    entry("mistral", "", mistral::describe),
    entry("mistral4", "mistral4", mistral4::describe),
    entry("mixtral", "", mixtral::describe),
    entry("nemotron_h", "nemotron_h|nemotron_h_moe", nemotron_h::describe),
    entry("olmo2", "olmo2", olmo2::describe),
    entry("olmo3", "", olmo3::describe),
    entry("phi3", "phi3", phi3::describe),
    entry("qwen2", "qwen2", qwen2::describe),
    entry("qwen2_moe", "qwen2moe", qwen2_moe::describe),
    entry("qwen3", "qwen3", qwen3::describe),
    entry("qwen3_5_moe_text", "qwen35moe", qwen3_5_moe::describe),
    entry("qwen3_5_text", "qwen35", qwen3_5::describe),
    entry("qwen3_moe", "qwen3moe", qwen3_moe::describe),
    entry("qwen3_next", "qwen3next", qwen3_next::describe),
    entry("qwen3_vl", "qwen3vl", qwen3_vl::describe),
    entry("seed_oss", "seed_oss", seed_oss::describe),
    entry("smollm3", "smollm3", smollm3::describe),
    entry("starcoder2", "starcoder2", starcoder2::describe),
];

/// Every encoder: it gives vectors or scores, and a decoder's tools do not apply.
pub const ENCODERS: &[Architecture] = &[
    entry("bert", "bert", bert::describe),
    entry("modernbert", "", modernbert::describe),
    entry("nomic_bert", "nomic-bert", nomic_bert::describe),
    entry("roberta", "", bert::describe_roberta),
    entry("xlm-roberta", "", bert::describe_roberta),
];

impl Architecture {
    /// The architecture that a configuration names, or an error of kind
    /// [`Unsupported`](crate::error::LoadErrorKind::Unsupported) with that name.
    pub fn of(config: &ModelConfig<'_>) -> Result<&'static Self> {
        let name = config.architecture()?;
        let is = |known: &&Architecture| {
            let own = if config.is_gguf() { known.gguf_name } else { known.config_name };
            !name.is_empty() && own.split('|').any(|own| own == name)
        };
        let all = || REGISTRY.iter().chain(ENCODERS);
        all().find(is).ok_or_else(|| {
            let known: Vec<&str> = all().map(|known| known.config_name).collect();
            LoadError::unsupported(format!(
                "architecture {name:?} is not supported; kvant knows {}",
                known.join(", ")
            ))
        })
    }
}

impl Description {
    /// What a checkpoint describes. Weights are not read; where they are there, every tensor is held against them.
    ///
    /// # Errors
    /// If the architecture is unknown, a hyper-parameter is missing or out of range, or a tensor is missing or of another shape.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let scope = Scope::new(checkpoint)?;
        let architecture = Architecture::of(scope.config())?;
        let description = (architecture.describe)(&scope)?;
        contradictions::refuse(&scope, checkpoint, &description)?;
        let mut left_out = scope.left_out()?;
        left_out.extend(&description.left_out);
        Ok(Self { architecture: architecture.config_name, left_out, ..description })
    }
}
