//! The `kvant` command.
//!
//! Flags are parsed in [`cli`]; every subcommand is a file in [`command`] with its own arguments and an
//! `execute`. To add one: write the file, add its line to [`cli::Command`]. Flags that several commands share are
//! in [`options`].

mod cli;
mod command;
mod failure;
mod interrupt;
mod open;
mod options;
mod output;
mod progress;
mod report;
mod saved;
mod table;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::parse().command.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
