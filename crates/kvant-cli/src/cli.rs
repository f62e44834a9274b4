//! The command line: one variant per subcommand.

use crate::command;
use crate::failure::Failure;
use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  kvant run \"Why is the sky blue?\"        answer with the default model, fetched on first use
  kvant run -m model.gguf < prompt.txt     any model file, prompt from stdin
  kvant chat                               a conversation
  kvant serve model.gguf                   a server for programs that speak OpenAI's interface
  kvant inspect model.gguf                 what is in a file, and what its context costs
  kvant doctor                             is this machine set up well?

Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted.
Environment: KVANT_CACHE (folder for models), HF_TOKEN and HF_ENDPOINT (Hugging Face), KVANT_SIMD (force an
instruction set), NO_COLOR.";

/// Run language models on this machine
#[derive(Parser)]
#[command(name = "kvant", version, about, max_term_width = 100, after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// A subcommand; each has a file in `command/`.
#[derive(Subcommand)]
pub enum Command {
    /// Answer a prompt, or continue a text
    Run(command::run::Run),
    /// Hold a conversation
    Chat(command::chat::Chat),
    /// Answer programs over HTTP, many at once, as OpenAI's servers do
    Serve(command::serve::Serve),
    /// Fetch a model into the cache
    Pull(command::pull::Pull),
    /// List the models in the cache
    Models(command::models::Models),
    /// Show what a model file holds, and what its context costs in memory
    Inspect(command::inspect::Inspect),
    /// Estimate the memory of contexts and caches, and what fits, even for models that are not here
    Plan(command::plan::Plan),
    /// Make a plan: what a model's keys and values are like, for caches that take it into account
    Calibrate(command::calibrate::Calibrate),
    /// Convert a model: other types of weights, a Hugging Face folder as GGUF
    Convert(command::convert::Convert),
    /// Measure how well a model predicts a text
    Eval(command::eval::Eval),
    /// Measure how fast a model reads and generates
    Bench(command::bench::Bench),
    /// Write a model with random weights, to measure speed with
    Synth(command::synth::Synth),
    /// Check this machine: instruction sets, memory, threads, models, and what would make kvant slow
    Doctor(command::doctor::Doctor),
    /// Print a completion script for a shell
    Completions(command::completions::Completions),
    /// Print the manual page
    Man(command::man::Man),
}

impl Command {
    /// Does what was asked.
    pub fn execute(self) -> Result<(), Failure> {
        match self {
            Self::Run(run) => run.execute(),
            Self::Chat(chat) => chat.execute(),
            Self::Serve(serve) => serve.execute(),
            Self::Pull(pull) => pull.execute(),
            Self::Models(models) => models.execute(),
            Self::Inspect(inspect) => inspect.execute(),
            Self::Plan(plan) => plan.execute(),
            Self::Calibrate(calibrate) => calibrate.execute(),
            Self::Convert(convert) => convert.execute(),
            Self::Eval(eval) => eval.execute(),
            Self::Bench(bench) => bench.execute(),
            Self::Synth(synth) => synth.execute(),
            Self::Doctor(doctor) => doctor.execute(),
            Self::Completions(completions) => completions.execute(),
            Self::Man(man) => man.execute(),
        }
    }
}
