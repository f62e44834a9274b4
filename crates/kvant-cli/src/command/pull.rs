//! `kvant pull`: a model into the cache.

use crate::failure::Failure;
use crate::open;
use clap::Args;
use kvant_hub::{Hub, ModelName};
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  kvant pull smollm2-135m
  kvant pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m
      the file of that repository with q4_k_m in its name
  kvant pull HuggingFaceTB/SmolLM2-135M  the safetensors of a repository

An interrupted pull resumes where it stopped. HF_TOKEN is sent for models that
need a login.";

/// Arguments of `kvant pull`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Pull {
    /// A short name, or org/repo or org/repo:file on Hugging Face
    name: String,
}

impl Pull {
    /// Fetches the model unless it is here, and prints where it lies.
    pub fn execute(self) -> Result<(), Failure> {
        let path = open::pull(&Hub::from_env()?, &ModelName::parse(&self.name)?)?;
        writeln!(crate::shown::stdout(), "{}", path.display())?;
        Ok(())
    }
}
