//! The chores of the kvant repository: `cargo xtask help` lists them.
//!
//! `cargo xtask test` is the one command that passes all tests on a fresh machine. It installs what a step
//! needs ([`needs`]), runs the steps one after the other ([`steps`], [`nightly`]), passes their output through
//! ([`process`]) and closes with a table that has a row for every step ([`summary`]), and a list of the steps that take too
//! long for every change ([`named`]).
//!
//! **Invariant:** nothing is skipped silently. A step that cannot run says why, in the table; on a CI machine
//! or with `--strict` that is a failure.
//!
//! Besides the standard library there is only `serde_json`, for the figures of the [`ledger`]: a fresh machine compiles this
//! in seconds.

mod capi;
mod cli;
mod cuda;
mod dist;
mod gpu;
mod house;
mod ledger;
mod named;
mod needs;
mod nightly;
mod package;
mod process;
mod python;
mod step;
mod steps;
mod summary;
mod supply;
mod tally;

use std::path::Path;
use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = match cli::parse(&args) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("error: {message}\n       `cargo xtask help` lists the commands.");
            return ExitCode::from(2);
        }
    };
    if let Err(message) = enter_workspace() {
        eprintln!("error: {message}");
        return ExitCode::from(2);
    }
    let passed = match command {
        Command::Help => {
            print!("{}", cli::help());
            true
        }
        Command::Test(options) => steps::run(&options),
        // Asked for by name, a step that cannot run is a failure.
        Command::Aarch64(args) => step::run_all(vec![steps::aarch64(args)], true),
        Command::Miri(args) => step::run_all(vec![nightly::miri(args)], true),
        Command::Asan(args) => step::run_all(vec![nightly::asan(args)], true),
        Command::Tsan(args) => step::run_all(vec![nightly::tsan(args)], true),
        Command::Dist(triples) => {
            let make = move || dist::make(&triples);
            step::run_all(vec![step::Step::new("dist", "what is handed out", make)], true)
        }
        Command::Sbom => {
            step::run_all(vec![step::Step::new("sbom", "a bill of materials", supply::sbom)], true)
        }
        Command::GpuCheck(options) => {
            gpu::check(&options).inspect_err(|message| eprintln!("error: {message}")).unwrap_or(false)
        }
        Command::Ledger => said(ledger::write()),
        Command::LedgerCheck => said(ledger::check()),
        Command::Record(options) => said(ledger::record(&options.name, &options.lines, &options.command)),
        Command::Fuzz(options) => match nightly::fuzz(&options) {
            Ok(targets) => step::run_all(targets, true),
            Err(message) => {
                eprintln!("error: {message}");
                false
            }
        },
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says what went wrong, if something did.
fn said(result: Result<(), String>) -> bool {
    result.inspect_err(|message| eprintln!("error: {message}")).is_ok()
}

/// Makes the workspace root the current folder, wherever inside the tree the command was typed.
fn enter_workspace() -> Result<(), String> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR")
        .map_err(|_| "CARGO_MANIFEST_DIR is not set: run this as `cargo xtask`".to_string())?;
    let root = Path::new(&manifest).parent().ok_or_else(|| format!("{manifest} has no parent folder"))?;
    std::env::set_current_dir(root).map_err(|e| format!("cannot enter {}: {e}", root.display()))
}
