//! The command line: one variant per subcommand.

use crate::command;
use crate::failure::Failure;
use crate::log::LogArgs;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use tracing::level_filters::LevelFilter;

const EXAMPLES: &str = "\
Examples:
  kvant run \"Why is the sky blue?\"      answer with the default model
  kvant run qwen3:8b -f notes.txt \"…\"   another model, and a file
  kvant chat model.gguf                  a conversation
  kvant serve model.gguf                 an OpenAI-compatible server
  kvant fit                              which models fit in memory
  kvant doctor                           is this machine set up well?

Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted, 143 terminated.
Environment: KVANT_MODEL (the model when none is named), KVANT_DEVICE
(the compute device when no flag names one), KVANT_CACHE (folder for models),
KVANT_CONFIG (instead of ~/.config/kvant/config.toml), KVANT_HISTORY=off (chat
keeps no history), HF_TOKEN and HF_ENDPOINT (Hugging Face), KVANT_SIMD (force an
instruction set), NO_COLOR.";

/// Run language models on this machine
#[derive(Parser)]
#[command(name = "kvant", version, max_term_width = 80, after_help = EXAMPLES)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub log: LogArgs,
}

impl Cli {
    /// What the arguments ask for; ends the program where they cannot be understood.
    ///
    /// A number below zero is the value of the flag before it, so that the flag's own message says what is wrong with it.
    pub fn of_arguments(arguments: Vec<OsString>) -> Self {
        let takes_value = |arg: &Arg| !arg.is_positional() && arg.get_action().takes_values();
        let negative = |arg: Arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg };
        let mut command = Self::command().mut_subcommands(|command| command.mut_args(negative));
        let matches = command.try_get_matches_from_mut(arguments).unwrap_or_else(|error| error.exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// A subcommand; each has a file in `command/`.
#[derive(Subcommand)]
pub enum Command {
    /// Answer a prompt, or continue a text
    Run(command::run::Run),
    /// Hold a conversation
    Chat(command::chat::Chat),
    /// Serve an OpenAI-compatible HTTP API
    Serve(command::serve::Serve),
    /// Fetch a model into the cache
    Pull(command::pull::Pull),
    /// List the models in the cache
    #[command(visible_aliases = ["list", "ls"])]
    Models(command::models::Models),
    /// Remove models from the cache
    Rm(command::rm::Rm),
    /// Show what a server has loaded
    Ps(command::ps::Ps),
    /// Show what is in a model file, and how much memory a context takes
    #[command(visible_alias = "show")]
    Inspect(command::inspect::Inspect),
    /// Check a model, session or plan file for damage, without running it
    Check(command::check::Check),
    /// Show which models, contexts and caches fit in memory, including models you have
    /// not downloaded
    Fit(command::fit::Fit),
    /// Calibrate the KV cache for a model: measure its keys and values, and write a plan
    Calibrate(command::calibrate::Calibrate),
    /// Tune a plan: the fewest bits for a KL divergence, or the least divergence for a
    /// number of bits
    Tune(command::tune::Tune),
    /// Convert a model: quantize its weights, or turn a Hugging Face folder into GGUF
    Convert(command::convert::Convert),
    /// Measure how well a model predicts a text
    Eval(command::eval::Eval),
    /// Measure how fast a model reads and generates
    Bench(command::bench::Bench),
    /// Write a model with random weights, for speed tests
    Synth(command::synth::Synth),
    /// Check this machine for anything that would make kvant slow
    Doctor(command::doctor::Doctor),
    /// Print a completion script for a shell
    Completions(command::completions::Completions),
    /// Print the manual page
    Man(command::man::Man),
    /// Print the ways to keep keys and values
    #[command(hide = true)]
    KvList(command::kv_list::KvList),
    /// Two commands now
    #[command(hide = true, disable_help_flag = true)]
    Plan(command::plan::Plan),
}

impl Command {
    /// What it logs where no flag says.
    pub fn log_level(&self) -> LevelFilter {
        if matches!(self, Self::Serve(_)) { LevelFilter::INFO } else { LevelFilter::WARN }
    }

    /// Does what was asked.
    pub fn execute(self) -> Result<(), Failure> {
        match self {
            Self::Run(run) => run.execute(),
            Self::Chat(chat) => chat.execute(),
            Self::Serve(serve) => serve.execute(),
            Self::Pull(pull) => pull.execute(),
            Self::Models(models) => models.execute(),
            Self::Inspect(inspect) => inspect.execute(),
            Self::Check(check) => check.execute(),
            Self::Rm(rm) => rm.execute(),
            Self::Ps(ps) => ps.execute(),
            Self::Fit(fit) => fit.execute(),
            Self::Tune(tune) => tune.execute(),
            Self::KvList(list) => list.execute(),
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
