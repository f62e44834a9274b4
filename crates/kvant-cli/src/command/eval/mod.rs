//! `kvant eval`: how well a model predicts a text, and what a cache costs.

mod compare;
mod disk;
mod layers;
mod speed;
mod table;
mod tasks;

use crate::failure::Failure;
use crate::open;
use crate::options::{Activations, Caches, RopeFlags, Size, ThreadOptions, Tokens};
use crate::progress;
use clap::Args;
use kvant_engine::device::DeviceModel;
use kvant_engine::{DeviceChoice, LoadOptions, SparseV, StateType};
use kvant_eval::tasks::trajectory;
use kvant_eval::{
    Estimate, EvalError, Machine, PassLimits, Report, Score, Setting, Windows, check_context, perplexity,
    text,
};
use kvant_model::Model;
use kvant_text::tokenizer::Tokenizer;
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;
use tasks::Task;

const EXAMPLES: &str = "\
Examples:
  kvant eval model.gguf  perplexity of the built-in text
  kvant eval model.gguf --text wiki.test.raw --ctx 1024 --json | jq .ppl
  kvant eval model.gguf --kv f16,int8,int4  what caches cost
  kvant eval model.gguf --kv int4 --kv 'int4;layers 0-1:k=f16' --strict
  kvant eval model.gguf --kv int4 --device cuda --against cpu
      what the card's arithmetic changes
  kvant eval model.gguf --all --speed --fast --text wiki.test.raw --ctx 2k
  kvant eval model.gguf --kv int4,q4_0 --layers --speed --html report.html
  kvant eval model.gguf --kv int4,q4_0 --task lines --ctx 4096
      is a line still found among many?
  kvant eval model.gguf --kv int4,q4_0 --task choice --data hellaswag.jsonl
  kvant eval model.gguf --kv f16,int4 --task calls --ctx 8k --html calls.html
      are tools still called correctly after a long transcript?

With --kv every cache is compared with the exact one (f32, with f32
activations), position by position: the mean KL divergence of the predictions,
its median, the one that 99.9 % of the positions do not exceed, the worst one,
how often the most likely token is the same, and by how much perplexity grows. Bits per value
are those of encoded pages with all their scales; the total adds the tokens that
are kept exactly, and KV is what all of it takes at the end of a window.

The exact predictions are computed once and kept in the cache folder
(KVANT_CACHE), with the results of finished windows: an interrupted
run resumes, and a further cache costs only its own windows. Logits are stored in
16 bits, which adds about 1e-8 to a KL divergence and nothing to the other
figures; --no-keep stores nothing. Each build of kvant uses only its own results.

Tasks count the cases that are right, and those that come out as with the exact
cache. Every cache is compared with f16 (where it is named, else f32) case by case,
with the 95 % interval of a bootstrap by document and the p of McNemar's test. A line of --data is {\"query\": …, \"choices\": [TEXT, …], \"gold\": N}, or
what HellaSwag (ctx, endings, label) and ARC (question, choices, answerKey) look
like, or one ending: {\"request\": {\"context\": …, \"continuation\": …}, \"doc_id\": N,
\"idx\": N, \"label\": N}.";

/// The cache of a perplexity.
const EXACT: &str = "f32";

/// What the caches in question are compared with.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Against {
    /// The exact cache on the CPU
    Exact,
    /// The same cache on the CPU: shows the effect of the device's arithmetic
    Cpu,
    /// The same cache on the CPU with pages decoded to f32, instead of kernels that round
    /// queries and weights to bytes
    Decoded,
    /// Like decoded, with the CPU's pages on both sides: shows the effect of arithmetic
    /// without rounding
    Pages,
}

impl Against {
    /// In words, where it is not the exact cache.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Exact => None,
            Self::Cpu => Some("the same cache on the CPU"),
            Self::Decoded => Some("the same cache on the CPU, its pages decoded to f32"),
            Self::Pages => Some("the same cache on the CPU, with the CPU's pages in both"),
        }
    }
}

/// Arguments of `kvant eval`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Eval {
    /// A model file or folder, or the name of a model in the cache
    model: String,

    /// The UTF-8 text to predict [default: part of a novel that comes with kvant]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Tokens in a window, such as 2k
    #[arg(short, long, value_name = "TOKENS", default_value = "512", alias = "ctx-size", value_parser = Tokens::count)]
    ctx: usize,

    /// Number of windows, from the beginning of the text
    #[arg(long, value_name = "N", default_value_t = 8)]
    chunks: usize,

    /// KV caches to compare with the exact one: specs, auto, or plans (FILE.kvplan); may be
    /// repeated [default: measure perplexity only]
    #[arg(long, value_name = "SPEC,…")]
    kv: Vec<Caches>,

    /// Compare every cache that has a name
    #[arg(long, conflicts_with = "kv")]
    all: bool,

    /// Encode every page before its own tokens attend: an upper bound on the loss in use
    #[arg(long)]
    strict: bool,

    /// Skip the values of pages whose attention weights are all below TAU times the largest,
    /// above 0 and below 1, in all caches but the exact one
    #[arg(long, value_name = "TAU", requires = "kv")]
    sparse_v: Option<SparseV>,

    /// Type of recurrent state in all caches but the exact one: f32, bf16 or int8; narrower
    /// types are smaller and less exact [default: f32]
    #[arg(long, value_name = "TYPE", requires = "kv")]
    state: Option<StateType>,

    /// Type of the activations; the exact cache is always computed with f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    activations: Activations,

    /// Compute device: cpu, gpu (Metal, Vulkan or DirectX 12), cuda or cuda:N (NVIDIA), or
    /// auto: a GPU that can run the model. GPUs use f32 activations, and the exact cache is
    /// always computed on the CPU
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,

    /// What to compare the caches with
    #[arg(long, value_name = "WHAT", default_value = "exact")]
    against: Against,

    /// Also measure with int8 activations (the default elsewhere), and their cost with an
    /// exact cache
    #[arg(long, conflicts_with = "activations")]
    fast: bool,

    /// Also measure decode speed after a window, relative to an f16 cache
    #[arg(long)]
    speed: bool,

    /// Also measure errors layer by layer, over the first window (at most 1024 tokens)
    #[arg(long)]
    layers: bool,

    /// Which tokens of a window count: second-half (as in llama.cpp) or all [default:
    /// second-half; with --kv: all]
    #[arg(long, value_name = "PART")]
    score: Option<Score>,

    /// Maximum disk space for results kept for later runs, all models together
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    keep: Size,

    /// Neither store results on disk nor use stored ones
    #[arg(long, conflicts_with = "keep")]
    no_keep: bool,

    /// Run a task instead of measuring divergence: with the exact cache and those of --kv
    #[arg(long, value_name = "TASK", conflicts_with_all = ["fast", "speed", "layers"])]
    task: Option<Task>,

    /// For --task choice: JSON lines with a question, its endings and the right one. For
    /// --task code: JSON lines with prompt, test and entry_point, as HumanEval has them
    #[arg(long, value_name = "FILE", requires = "task")]
    data: Option<PathBuf>,

    /// Cases of a task [default: 16; for trajectory --chunks]. Several are about one document:
    /// 10 of needles and calls, 4 of variables, 3 of words
    #[arg(long, value_name = "N", requires = "task", value_parser = cases)]
    cases: Option<usize>,

    /// Tokens to generate in --task trajectory
    #[arg(long, value_name = "N", requires = "task", default_value_t = trajectory::LENGTH, value_parser = cases)]
    steps: usize,

    #[command(flatten)]
    threads: ThreadOptions,

    #[command(flatten)]
    rope: RopeFlags,

    /// Also write an HTML report with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print JSON, one object per line: with --kv one for each cache, with --layers one more
    /// for the layers
    #[arg(long)]
    json: bool,
}

impl Eval {
    /// Measures and prints the report.
    pub fn execute(self) -> Result<(), Failure> {
        self.threads.pool().install(|| self.evaluate())
    }

    fn evaluate(&self) -> Result<(), Failure> {
        let compares = self.all || !self.kv.is_empty();
        let about_caches = self.strict || self.fast || self.speed || self.layers || self.html.is_some();
        if !compares && about_caches {
            let message = "--strict, --fast, --speed, --layers and --html compare caches: name them with --kv, or take all with --all";
            return Err(Failure::Usage(message.into()));
        }
        if self.against == Against::Cpu && (!compares || self.device == DeviceChoice::Cpu) {
            let message = "--against cpu compares caches on a device with those on the CPU: name both with --kv and --device";
            return Err(Failure::Usage(message.into()));
        }
        if matches!(self.against, Against::Decoded | Against::Pages) && !compares {
            let message =
                "--against decoded and pages compare caches with themselves on the CPU: name some with --kv";
            return Err(Failure::Usage(message.into()));
        }
        if self.device != DeviceChoice::Cpu && (self.fast || self.layers) {
            let message = "--fast and --layers are measured on the CPU: leave out --device";
            return Err(Failure::Usage(message.into()));
        }
        // Cheap checks first: a mistyped text should not wait for a model.
        let (name, text) = match &self.text {
            Some(path) => (path.display().to_string(), Cow::Owned(text::read(path)?)),
            None => (text::TEST_NAME.to_owned(), Cow::Borrowed(text::test())),
        };
        let checkpoint = self.rope.open(open::find(&self.model)?)?;
        let setting = |model: &Model, device: &str| Setting {
            model: self.model.clone(),
            architecture: model.description().architecture.to_owned(),
            text: name.clone(),
            activations: self.arithmetic(device),
            threads: kvant_threads::threads(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::this(),
        };
        if let Some(task) = self.task {
            return self
                .run_task(task, &checkpoint, &text, |engine| setting(engine.model(), engine.device()));
        }
        let score = self.score.unwrap_or(if compares { Score::All } else { Score::SecondHalf });
        let windows = Windows::of_text(&Tokenizer::of(&checkpoint)?, &text, self.ctx, self.chunks, score)
            .map_err(|e| Failure::new(format!("{name}: {e}")))?;
        let options = LoadOptions { activations: self.activations.kind(), ..LoadOptions::default() };
        let placed =
            DeviceModel::load(self.device, &checkpoint, options).map_err(|error| open::failure(&error))?;
        check_context(&placed.model, self.ctx)?;

        let setting = setting(&placed.model, placed.name());
        if compares {
            self.compare(&checkpoint, &placed, &windows, setting)
        } else {
            self.perplexity(&placed, &windows, setting)
        }
    }

    /// The numbers that weights are multiplied with, and where.
    fn arithmetic(&self, device: &str) -> String {
        match device {
            "cpu" => self.activations.name().to_owned(),
            device => format!("f32 on {device}"),
        }
    }

    fn perplexity(&self, placed: &DeviceModel, windows: &Windows, setting: Setting) -> Result<(), Failure> {
        let start = Instant::now();
        // A device that keeps no f32 keeps f16.
        let exact = |name: &&str| placed.check(&name.parse().expect("a spec of the grammar")).is_ok();
        let cache = [EXACT, "f16"].into_iter().find(exact).unwrap_or(EXACT);
        let estimate = measure(&placed.model, windows, cache)?;
        let report = Report::new(setting, cache.to_owned(), windows, &estimate, start.elapsed());
        let mut out = crate::shown::stdout();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{report}")?;
        }
        Ok(())
    }
}

/// At least one.
fn cases(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|&cases| cases > 0)
        .ok_or_else(|| format!("`{text}` is not a number of cases: write 1 or more"))
}

fn measure(model: &Model, windows: &Windows, cache: &str) -> Result<Estimate, EvalError> {
    let bar = progress::bar("{bar:30} {pos}/{len} windows  {msg}  {eta} left");
    bar.set_length(windows.chunks() as u64);
    let cache = cache.parse().expect("a spec of the grammar");
    let estimate = perplexity(model, windows, &cache, PassLimits::default(), &mut |progress| {
        let so_far = progress.so_far;
        bar.set_message(format!("perplexity {:.3} ± {:.3}", so_far.ppl(), so_far.ppl_stderr()));
        bar.inc(1);
    });
    bar.finish_and_clear();
    estimate
}
