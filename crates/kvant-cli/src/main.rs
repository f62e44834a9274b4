//! The `kvant` command.
//!
//! Flags are parsed in [`cli`]; every subcommand is a file in [`command`] with its own arguments and an
//! `execute`. To add one: write the file, add its line to [`cli::Command`]. Flags that several commands share are
//! in [`options`]; what people type who come from other programs is in [`typed`].

mod cli;
mod command;
mod config;
mod failure;
mod interrupt;
mod named;
mod open;
mod options;
mod output;
mod progress;
mod report;
mod saved;
mod screen;
mod table;
mod typed;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::parse_from(typed::rewritten(std::env::args_os())).command.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
