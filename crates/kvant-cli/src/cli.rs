//! The command line: one variant per subcommand.

use crate::command;
use crate::failure::Failure;
use clap::{Parser, Subcommand};

/// Run language models on this machine.
#[derive(Parser)]
#[command(name = "kvant", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// A subcommand; each has a file in `command/`.
#[derive(Subcommand)]
pub enum Command {
    /// Measure how well a model predicts a text
    Eval(command::eval::Eval),
    /// List the models in the cache
    Models(command::models::Models),
}

impl Command {
    /// Does what was asked.
    pub fn execute(self) -> Result<(), Failure> {
        match self {
            Self::Eval(eval) => eval.execute(),
            Self::Models(models) => models.execute(),
        }
    }
}
