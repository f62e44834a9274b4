//! `kvant tune`: bits of the cache spent where they gain most, written to a plan.

use crate::failure::Failure;
use crate::options::{RopeFlags, ThreadOptions};
use crate::table::Column::{Left, Right};
use crate::table::Table;
use crate::{open, progress};
use clap::Args;
use indicatif::ProgressBar;
use kvant_engine::device::DeviceModel;
use kvant_engine::open::{open_plan, plan_path};
use kvant_engine::{ActivationType, DeviceChoice, LoadOptions, load_model};
use kvant_eval::divergence::{Headway, Models};
use kvant_eval::plans::{
    Check, Chosen, Goal, Tried, fewest_bits, known_sensitivities, probed_policies, search, search_windows,
    sensitivities, sensitivity_tokens, spend_bits,
};
use kvant_eval::text;
use kvant_text::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  kvant tune model.gguf --kl 0.02
  kvant tune model.gguf --bits 3.6 -o small.kvplan
  kvant eval model.gguf --kv int4,small.kvplan             is it worth it?

`kvant tune` gives the plan from `kvant calibrate` a better policy. It rounds the
keys and the values of each layer on their own, measures the divergence (strictly:
pages are encoded before their own tokens attend), and spends bits on the layers
and heads where they help most. It measures several policies on another part of
the text, prints them all and keeps the best. --kl leaves a margin for harder
texts. The plan stores the measurements, so another goal on the same text is
quick.";

/// Arguments of `kvant tune`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("goal").required(true).args(["kl", "bits"]))]
pub struct Tune {
    /// A model file or folder, or the name of a model in the cache
    model: String,

    /// Find the fewest bits whose mean KL divergence is at most this, in nats
    #[arg(long, value_name = "NATS")]
    kl: Option<f64>,

    /// Find the least divergence with at most this many bits per value
    #[arg(long, value_name = "BITS")]
    bits: Option<f64>,

    /// The plan to change, from `kvant calibrate` [default: the one beside the model]
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Write the plan to this file [default: replace the old one]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// A UTF-8 text like those the model will read [default: part of a novel that comes
    /// with kvant]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Tokens to probe each layer with; other measurements use the same number, but at
    /// least 1024
    #[arg(long, value_name = "N", default_value_t = 512)]
    tokens: usize,

    /// Compute device: cpu, gpu (Metal, Vulkan or DirectX 12), cuda or cuda:N (NVIDIA), or
    /// auto: a GPU that can run the model. The exact cache is always computed on the CPU
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,

    #[command(flatten)]
    threads: ThreadOptions,

    #[command(flatten)]
    rope: RopeFlags,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Tune {
    pub fn execute(self) -> Result<(), Failure> {
        let goal = self.kl.map(Goal::Kl).or(self.bits.map(Goal::Bits));
        let goal = goal.ok_or_else(|| Failure::Usage("give a goal with --kl or --bits".into()))?;
        check(goal)?;
        self.threads.pool().install(|| self.search(goal))
    }

    fn search(&self, goal: Goal) -> Result<(), Failure> {
        let (name, text) = match &self.text {
            Some(path) => (path.display().to_string(), Cow::Owned(text::read(path)?)),
            None => (text::CALIBRATION_NAME.to_owned(), Cow::Borrowed(text::calibration())),
        };
        let checkpoint = self.rope.open(open::find(&self.model)?)?;
        let path = self.plan.clone().unwrap_or_else(|| plan_path(&checkpoint));
        let plan = open_plan(&path, &checkpoint)?;
        let options = LoadOptions { activations: ActivationType::F32, ..LoadOptions::default() };
        let placed =
            DeviceModel::load(self.device, &checkpoint, options).map_err(|error| open::failure(&error))?;
        // The exact cache is the CPU's, so that what a device rounds otherwise counts as well.
        let exact = match placed.device {
            None => None,
            Some(_) => Some(load_model(&checkpoint, ActivationType::F32)?),
        };
        let model = &placed.model;
        let reference = exact.as_ref().unwrap_or(model);
        let models = Models { reference, subject: model, arithmetic: placed.name() };
        for policy in probed_policies(model, &plan) {
            placed.check(&policy).map_err(|error| open::failure(&error))?;
        }
        let windows = search_windows(&Tokenizer::of(&checkpoint)?, model.context(), &text, self.tokens)
            .map_err(|e| Failure::new(format!("{name}: {e}")))?;

        if let Goal::Bits(bits) = goal {
            let fewest = fewest_bits(model, &plan)?;
            if bits < fewest {
                let message =
                    format!("--bits {bits}: a plan for this model needs at least {fewest:.2} bits per value");
                return Err(Failure::Usage(message));
            }
        }
        let check = Check { models, plan: &plan, windows: &windows.other };
        let parts = match known_sensitivities(model, &plan, self.tokens, &name)? {
            Some(known) => known,
            None => {
                let tokens = sensitivity_tokens(model, &plan, &windows) + check.tokens(goal);
                self.look_ahead(goal, &check, tokens)?;
                let bar = progress::bar("{bar:30} {percent} %  layers one by one  {eta} left");
                let parts = sensitivities(&models, &plan, &windows, &mut |headway| show(&bar, headway));
                bar.finish_and_clear();
                parts?
            }
        };
        let bar = progress::bar("{bar:30} {percent} %  check  {eta} left");
        let tried = search(goal, &parts, &check, &mut |headway| show(&bar, headway));
        bar.finish_and_clear();
        let tried = tried?;
        let best = tried.first().ok_or_else(|| out_of_reach(goal))?;

        let target = self.output.as_deref().unwrap_or(&path);
        let changed = spend_bits(&plan, &best.chosen.policy, &parts, self.tokens, &name);
        let refuse = |error| Failure::new(format!("{}: {error}", target.display()));
        let changed = changed.map_err(refuse)?;
        changed.save(target).map_err(refuse)?;
        if self.json {
            let mut report = json_of(best);
            report["plan"] = json!(target);
            report["tried"] = tried.iter().map(json_of).collect();
            println!("{report}");
            return Ok(());
        }
        println!("{}: {}", target.display(), changed.made());
        println!("{:.2} bits per value; `kvant tune --json` prints the policy", best.chosen.bits);
        println!("\nMean KL divergence on {} other tokens; the first is taken", best.found.tokens());
        let mut table =
            Table::new(&[Left("bits are spent"), Right("bits/value"), Right("predicted"), Right("measured")]);
        for Tried { way, chosen, found } in &tried {
            let (kl, error) = found.kl();
            let measured = format!("{kl:.4} ± {error:.4}");
            table.row([
                (*way).to_owned(),
                format!("{:.2}", chosen.bits),
                format!("{:.4}", chosen.kl),
                measured,
            ]);
        }
        table.write(&mut crate::shown::stdout(), 2)?;
        Ok(())
    }

    /// One measurement before many: refuses a divergence that not even the widest codecs stay within, and says how long the search of
    /// `tokens` tokens takes.
    fn look_ahead(&self, goal: Goal, check: &Check<'_>, tokens: f64) -> Result<(), Failure> {
        let start = Instant::now();
        let least = check.least(&mut |_| {})?;
        if goal.allowed().is_some_and(|allowed| least > allowed) {
            return Err(out_of_reach(goal));
        }
        // The exact cache and one other.
        let measured = 2 * check.windows.ctx() * check.windows.chunks();
        let seconds = start.elapsed().as_secs_f64() * tokens / measured as f64;
        eprintln!("note: the search takes about {}; the plan changes when it is done", in_words(seconds));
        Ok(())
    }
}

/// A time for people: seconds, or whole minutes.
fn in_words(seconds: f64) -> String {
    match seconds {
        short if short < 90.0 => format!("{:.0} s", short.max(1.0)),
        long => format!("{:.0} min", long / 60.0),
    }
}

/// Refuses before anything is computed what no policy can reach, and what every policy reaches.
fn check(goal: Goal) -> Result<(), Failure> {
    let (flag, value, range) = match goal {
        Goal::Kl(kl) => ("--kl", kl, 1e-6..=10.0),
        Goal::Bits(bits) => ("--bits", bits, 1.0..=16.0),
    };
    match range.contains(&value) {
        true => Ok(()),
        false => {
            let (least, most) = range.into_inner();
            Err(Failure::Usage(format!("{flag} {value}: ask for a number from {least} to {most}")))
        }
    }
}

fn json_of(tried: &Tried) -> Value {
    let Tried { way, chosen: Chosen { policy, bits, kl }, found } = tried;
    let (measured, error) = found.kl();
    json!({"way": way, "kv": policy.to_string(), "bits_per_value": bits, "kl_predicted": kl,
           "kl_measured": measured, "kl_stderr": error, "positions": found.tokens()})
}

fn out_of_reach(goal: Goal) -> Failure {
    Failure::new(match goal {
        Goal::Kl(kl) => {
            format!("no policy is expected to reach a KL divergence of {kl}; ask for a larger one")
        }
        Goal::Bits(bits) => format!("{bits} bits per value are too few for any policy; ask for more"),
    })
}

fn show(bar: &ProgressBar, headway: Headway<'_>) {
    bar.set_length(headway.total as u64);
    bar.set_position(headway.done as u64);
}
