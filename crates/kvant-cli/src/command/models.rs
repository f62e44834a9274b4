//! `kvant models`: what is in the cache.

use crate::failure::Failure;
use clap::Args;
use kvant_model::Hub;
use std::io::Write;

/// Arguments of `kvant models`.
#[derive(Args)]
pub struct Models {}

impl Models {
    /// Prints a line per model.
    pub fn execute(self) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        for model in Hub::from_env()?.models()? {
            writeln!(out, "{}\t{}\t{}", model.name, model.bytes, model.path.display())?;
        }
        Ok(())
    }
}
