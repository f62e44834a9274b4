//! `kvant completions`: a script for the shell.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  kvant completions bash > ~/.local/share/bash-completion/completions/kvant
  kvant completions zsh > \"${fpath[1]}/_kvant\"
  kvant completions fish > ~/.config/fish/completions/kvant.fish";

/// Arguments of `kvant completions`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn execute(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "kvant", &mut script);
        std::io::stdout().write_all(&script)?;
        Ok(())
    }
}
