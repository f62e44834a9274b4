//! `kvant man`: manual pages.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::{Args, CommandFactory};
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant man | man -l -
  kvant man --folder ~/.local/share/man/man1";

/// Arguments of `kvant man`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Man {
    /// Write a page for kvant and one for each subcommand into this folder
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Man {
    pub fn execute(self) -> Result<(), Failure> {
        let command = Cli::command();
        if let Some(folder) = self.folder {
            return clap_mangen::generate_to(command, &folder)
                .map_err(|e| Failure::new(format!("cannot write pages into {}: {e}", folder.display())));
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        std::io::stdout().write_all(&page)?;
        Ok(())
    }
}
