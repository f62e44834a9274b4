//! `kvant calibrate`: what a model's keys and values are like, written to a plan.

use crate::command::convert::{Texts, observe};
use crate::failure::Failure;
use crate::open;
use crate::options::{RopeFlags, ThreadOptions, Tokens};
use crate::progress;
use clap::Args;
use indicatif::ProgressBar;
use kvant_codec::{KvSpec, SpecError};
use kvant_engine::memory::bytes;
use kvant_engine::open::plan_path;
use kvant_engine::{ActivationType, Policy, kv, load_model};
use kvant_eval::plans::{PlanRequest, Positions, Progress, calibrate, calibration_windows};
use kvant_eval::text;
use kvant_model::Model;
use kvant_text::tokenizer::Tokenizer;
use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  kvant calibrate model.gguf
      writes model.kvplan beside it, where `kvant run` finds it
  kvant calibrate model.gguf -o mine.kvplan --text notes.txt --kv k=klt5,v=rot4
  kvant eval model.gguf --kv int4,mine.kvplan          is it worth it?
  kvant calibrate model.gguf --learn srft4:cayley,sym4:cayley
      rotations learned for two codecs, with and without SRFT

`kvant calibrate` reads the text once with an exact cache. Every codec that takes
numbers from a plan can use the result: klt, and the options mean, lambda and
balanced. --kv is the cache that the plan selects by default. Learned scales and
rotations (scaled, cayley, householder) serve only the codec they were learned
for.";

/// Windows that the text is read in, in tokens.
const WINDOW: usize = 2048;
/// Keys in the basis that attention sees them in, values rotated.
const USUAL: &str = "k=klt4.25,v=rot4g32";

/// Arguments of `kvant calibrate`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Calibrate {
    /// A model file or folder, or the name of a model in the cache
    model: String,

    /// Write the plan to this file [default: beside the model]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write an importance matrix to this file instead of a plan, for `kvant convert
    /// --imatrix` or llama.cpp
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "learn"])]
    imatrix: Option<PathBuf>,

    /// A UTF-8 text like those the model will read [default: part of a novel that comes
    /// with kvant]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Maximum tokens to read from it
    #[arg(long, value_name = "N", default_value_t = 16384)]
    tokens: usize,

    /// The KV cache that the plan chooses
    #[arg(long, value_name = "SPEC", default_value = USUAL)]
    kv: Policy,

    /// Learn scales or rotations for these codecs, which takes minutes: specs with scaled,
    /// cayley or householder
    #[arg(long, value_name = "LIST")]
    learn: Option<Specs>,

    /// Positions of a window that lambda is computed from: all, first=N, or every=N for one
    /// in N
    #[arg(long, value_name = "POSITIONS", default_value = "all", value_parser = positions)]
    ranges: Positions,

    /// Spread the text over this many positions, such as 8k, for a plan that serves long
    /// contexts [default: one window; better within it, worse beyond]
    #[arg(long, value_name = "TOKENS", default_value = "0", hide_default_value = true, value_parser = Tokens::or_none)]
    reach: usize,

    #[command(flatten)]
    threads: ThreadOptions,

    #[command(flatten)]
    rope: RopeFlags,
}

impl Calibrate {
    pub fn execute(self) -> Result<(), Failure> {
        self.threads.pool().install(|| self.calibrate())
    }

    fn calibrate(&self) -> Result<(), Failure> {
        let (name, text) = match &self.text {
            Some(path) => (path.display().to_string(), Cow::Owned(text::read(path)?)),
            None => (text::CALIBRATION_NAME.to_owned(), Cow::Borrowed(text::calibration())),
        };
        let checkpoint = self.rope.open(open::find(&self.model)?)?;
        if let Some(path) = &self.imatrix {
            let (seen, _) = Texts::cut(&checkpoint, &text, self.tokens)?;
            let importance = observe(&checkpoint, &seen)?;
            importance.write(path)?;
            println!("{}: {} matrices, over {name}", path.display(), importance.layers());
            return Ok(());
        }
        let output = self.output.clone().unwrap_or_else(|| plan_path(&checkpoint));
        let model = load_model(&checkpoint, ActivationType::F32)?;
        let window = model.context().map_or(WINDOW, |own| own.min(WINDOW)).min(self.tokens);
        let windows = calibration_windows(&Tokenizer::of(&checkpoint)?, &text, window, self.tokens)
            .map_err(|e| Failure::new(format!("{name}: {e}")))?;

        let bar = progress::bar("{bar:30} {pos}/{len} tokens  {eta} left");
        bar.set_length((windows.ctx() * windows.chunks()) as u64);
        // Begun when all is read: two bars at a time leave lines of each other behind.
        let mut learning: Option<ProgressBar> = None;
        let learn = self.learn.as_ref().map_or(&[][..], |specs| &specs.0);
        let request = PlanRequest {
            model: checkpoint.signature().0,
            policy: &self.kv,
            text: &name,
            learn,
            ranges: self.ranges,
            reach: self.reach,
        };
        let plan = calibrate(&model, request, &windows, &mut |progress| match progress {
            Progress::Read(tokens) => bar.set_position(tokens as u64),
            Progress::Learned(layers) => {
                let learning = learning.get_or_insert_with(|| {
                    bar.finish_and_clear();
                    let learning = progress::bar("{bar:30} {pos}/{len} layers learned  {eta} left");
                    learning.set_length(model.slots().len() as u64);
                    learning
                });
                learning.set_position(layers as u64);
            }
        });
        bar.finish_and_clear();
        learning.iter().for_each(ProgressBar::finish_and_clear);
        let plan = std::sync::Arc::new(plan?);
        plan.save(&output).map_err(|e| Failure::new(format!("{}: {e}", output.display())))?;

        let policy = plan.with(plan.policy());
        let per_token = kv::bytes_per_token(&policy, model.slots())?;
        let size = std::fs::metadata(&output).map_or(0, |file| file.len());
        println!("{}: {}, {}", output.display(), plan.made(), bytes(size));
        println!("{policy}: {per_token:.0} bytes per token, {:.2} bits per value", bits(per_token, &model)?);
        if let Some(context) = model.context().filter(|context| self.reach == 0 && *context > window) {
            eprintln!(
                "note: this plan is calibrated on positions below {window}, but the model's context is {context}; for long contexts use --reach"
            );
        }
        Ok(())
    }
}

/// Specs in a list, some of which have commas of their own.
#[derive(Clone)]
struct Specs(Vec<KvSpec>);

impl FromStr for Specs {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        KvSpec::parse_list(text).map(Self)
    }
}

fn positions(text: &str) -> Result<Positions, String> {
    let count = |number: &str| number.parse().ok().filter(|count| *count > 0);
    match text.split_once('=') {
        None if text == "all" => Some(Positions::All),
        Some(("first", number)) => count(number).map(Positions::First),
        Some(("every", number)) => count(number).map(Positions::Every),
        _ => None,
    }
    .ok_or_else(|| "write all, first=N or every=N, with a number above zero".to_owned())
}

/// Bits per value that so many bytes per token are.
fn bits(per_token: f64, model: &Model) -> Result<f64, Failure> {
    let exact: Policy = "f32".parse().expect("a spec of the grammar");
    Ok(32.0 * per_token / kv::bytes_per_token(&exact, model.slots())?)
}
