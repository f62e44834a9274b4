//! The `kvant` command.
//!
//! Flags are parsed in [`cli`]; every subcommand is a file in [`command`] with its own arguments and an
//! `execute`. To add one: write the file, add its line to [`cli::Command`].

mod cli;
mod command;
mod failure;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::parse().command.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
