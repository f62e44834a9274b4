//! `kvant eval`: how well a model predicts a text.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::open;
use crate::options::ThreadOptions;
use crate::progress;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use kvant_codec::KvSpec;
use kvant_eval::{
    Estimate, EvalError, Machine, PassLimits, Report, Score, Setting, Windows, check_context, perplexity,
    read_text,
};
use kvant_model::tokenizer::Tokenizer;
use kvant_model::{Checkpoint, LoadOptions, Model};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kvant eval model.gguf --text wiki.test.raw
  kvant eval model.gguf --text wiki.test.raw --ctx 1024 --chunks 4 --kv f16 --json | jq .ppl";

/// Arguments of `kvant eval`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Eval {
    /// A model file or folder, or the name of a model in the cache
    model: String,

    /// The UTF-8 text to predict; needed, as none comes with kvant yet
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Tokens in a window
    #[arg(long, value_name = "N", default_value_t = 512)]
    ctx: usize,

    /// Windows to run, from the beginning of the text
    #[arg(long, value_name = "N", default_value_t = 8)]
    chunks: usize,

    /// How keys and values are kept: f32 (exact), f16, int8, int4, k=CODEC,v=CODEC …
    #[arg(long, value_name = "SPEC", default_value = "f32")]
    kv: KvSpec,

    /// Which tokens of a window count: second-half (as llama.cpp) or all
    #[arg(long, value_name = "PART", default_value_t)]
    score: Score,

    #[command(flatten)]
    threads: ThreadOptions,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Eval {
    /// Measures and prints the report.
    pub fn execute(self) -> Result<(), Failure> {
        // Cheap checks first: a mistyped text should not wait for a model.
        let path = self.text.unwrap_or_else(|| no_text());
        let text = read_text(&path)?;
        let checkpoint = Checkpoint::open(open::find(&self.model)?)?;
        let windows =
            Windows::of_text(&Tokenizer::of(&checkpoint)?, &text, self.ctx, self.chunks, self.score)
                .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        let model = Model::load(&checkpoint, LoadOptions::default())?;
        check_context(&model, self.ctx)?;

        self.threads.apply();
        let start = Instant::now();
        let estimate = measure(&model, &windows, &self.kv)?;
        let time = start.elapsed();

        let setting = Setting {
            model: self.model,
            architecture: model.architecture().config_name.to_owned(),
            text: path.display().to_string(),
            kv: self.kv.to_string(),
            activations: "f32".to_owned(),
            threads: kvant_threads::threads(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::this(),
        };
        let report = Report::new(setting, &windows, &estimate, time);
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{report}")?;
        }
        Ok(())
    }
}

/// Ends as other usage errors do.
fn no_text() -> ! {
    let message = "kvant eval needs a text to predict, and none comes with it yet: give one with --text FILE";
    Cli::command().error(ErrorKind::MissingRequiredArgument, message).exit()
}

fn measure(model: &Model, windows: &Windows, kv: &KvSpec) -> Result<Estimate, EvalError> {
    let bar = progress::bar("{bar:30} {pos}/{len} windows  {msg}  {eta} left");
    bar.set_length(windows.chunks() as u64);
    let estimate = perplexity(model, windows, kv, PassLimits::default(), &mut |progress| {
        let so_far = progress.so_far;
        bar.set_message(format!("perplexity {:.3} ± {:.3}", so_far.ppl(), so_far.ppl_stderr()));
        bar.inc(1);
    });
    bar.finish_and_clear();
    estimate
}
