//! `kvant eval`: how well a model predicts a text, and what a cache costs.

mod compare;

use crate::failure::Failure;
use crate::open;
use crate::options::{Activations, Caches, ThreadOptions};
use crate::progress;
use clap::Args;
use kvant_engine::SparseV;
use kvant_eval::{
    Estimate, EvalError, Machine, PassLimits, Report, Score, Setting, Windows, check_context, perplexity,
    read_text,
};
use kvant_model::arch::ActivationType;
use kvant_model::tokenizer::Tokenizer;
use kvant_model::{Checkpoint, LoadError, LoadOptions, Model};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kvant eval model.gguf --text wiki.test.raw                               perplexity
  kvant eval model.gguf --text wiki.test.raw --ctx 1024 --json | jq .ppl
  kvant eval model.gguf --text wiki.test.raw --kv f16,int8,int4            what caches cost
  kvant eval model.gguf --text wiki.test.raw --kv int4 --kv 'int4;layers 0-1:k=f16' --strict

With --kv every cache is compared with the exact one (f32, with f32 activations), position by position: the mean KL
divergence of the predictions, the one that 99.9 % of the positions do not exceed, how often the most likely token is the
same, and by how much perplexity grows. Bits per value are those of encoded pages with all their scales; the total adds
the tokens that are kept exactly.";

/// The cache of a perplexity.
const EXACT: &str = "f32";

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

    /// Caches to compare with the exact one; may be given several times [default: perplexity alone]
    #[arg(long, value_name = "SPEC,…")]
    kv: Vec<Caches>,

    /// Encode every page before its own tokens attend, and not only after: a bound on what is seen in use
    #[arg(long, requires = "kv")]
    strict: bool,

    /// Leave out the values of pages in which no token has TAU of the largest weight, above 0 and below 1, in all caches but
    /// the exact one
    #[arg(long, value_name = "TAU", requires = "kv")]
    sparse_v: Option<SparseV>,

    /// The numbers that weights are multiplied with; the exact cache they are compared with has f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    activations: Activations,

    /// Which tokens of a window count: second-half (as llama.cpp) or all [default: second-half; with --kv all]
    #[arg(long, value_name = "PART")]
    score: Option<Score>,

    #[command(flatten)]
    threads: ThreadOptions,

    /// Print a JSON object; with --kv one for each cache, on a line of its own
    #[arg(long)]
    json: bool,
}

impl Eval {
    /// Measures and prints the report.
    pub fn execute(self) -> Result<(), Failure> {
        // Cheap checks first: a mistyped text should not wait for a model.
        let Some(path) = &self.text else {
            let message =
                "kvant eval needs a text to predict, and none comes with it yet: give one with --text FILE";
            return Err(Failure::Usage(message.into()));
        };
        let text = read_text(path)?;
        let checkpoint = Checkpoint::open(open::find(&self.model)?)?;
        let score = self.score.unwrap_or(if self.kv.is_empty() { Score::SecondHalf } else { Score::All });
        let windows = Windows::of_text(&Tokenizer::of(&checkpoint)?, &text, self.ctx, self.chunks, score)
            .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        let model = load(&checkpoint, self.activations.kind())?;
        check_context(&model, self.ctx)?;

        self.threads.apply();
        let setting = Setting {
            model: self.model.clone(),
            architecture: model.architecture().config_name.to_owned(),
            text: path.display().to_string(),
            activations: self.activations.name().to_owned(),
            threads: kvant_threads::threads(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::this(),
        };
        if self.kv.is_empty() {
            return self.perplexity(&model, &windows, setting);
        }
        self.compare(&checkpoint, &model, &windows, setting)
    }

    fn perplexity(&self, model: &Model, windows: &Windows, setting: Setting) -> Result<(), Failure> {
        let start = Instant::now();
        let estimate = measure(model, windows)?;
        let report = Report::new(setting, EXACT.to_owned(), windows, &estimate, start.elapsed());
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{report}")?;
        }
        Ok(())
    }
}

fn load(checkpoint: &Checkpoint, activations: ActivationType) -> Result<Model, LoadError> {
    Model::load(checkpoint, LoadOptions { activations, ..LoadOptions::default() })
}

fn measure(model: &Model, windows: &Windows) -> Result<Estimate, EvalError> {
    let bar = progress::bar("{bar:30} {pos}/{len} windows  {msg}  {eta} left");
    bar.set_length(windows.chunks() as u64);
    let exact = EXACT.parse().expect("a spec of the grammar");
    let estimate = perplexity(model, windows, &exact, PassLimits::default(), &mut |progress| {
        let so_far = progress.so_far;
        bar.set_message(format!("perplexity {:.3} ± {:.3}", so_far.ppl(), so_far.ppl_stderr()));
        bar.inc(1);
    });
    bar.finish_and_clear();
    estimate
}
