//! `kvant plan --kl` and `--bits`: bits spent where they gain most.

use crate::failure::Failure;
use crate::planned;
use crate::{open, progress};
use clap::Args;
use indicatif::ProgressBar;
use kvant_engine::{Plan, Policy};
use kvant_eval::divergence::{Divergence, Headway, Mode, Models, Request, divergence};
use kvant_eval::plans::{Chosen, Goal, Part, policy_for, sensitivities, uniform_for};
use kvant_eval::{EvalError, PassLimits, Score, Windows, text};
use kvant_model::arch::ActivationType;
use kvant_model::tokenizer::{EncodeOptions, Tokenizer};
use kvant_model::{Checkpoint, LoadOptions, Model};
use serde_json::json;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Windows that sensitivities are measured in, in tokens.
const WINDOW: usize = 512;
/// The window that whole policies are measured in: errors grow with the context.
const LONG_WINDOW: usize = 2048;
/// How often a policy is made and measured until it keeps what was asked for.
const ATTEMPTS: usize = 5;

/// What to reach, and by what.
#[derive(Args)]
pub struct Spending {
    /// Change the model's plan: the fewest bits with this mean KL divergence at most, in nats
    #[arg(long, value_name = "NATS", conflicts_with_all = ["bits", "ram", "ctx", "kv", "weights"])]
    kl: Option<f64>,

    /// Change the model's plan: the least divergence with so many bits per value at most
    #[arg(long, value_name = "BITS", conflicts_with_all = ["ram", "ctx", "kv", "weights"])]
    bits: Option<f64>,

    /// The plan to change, as `kvant calibrate` makes it [default: the one beside the model]
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Where the changed plan is written [default: where it was]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// A UTF-8 text like those the model will read [default: part of a novel that comes with kvant]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Tokens that sensitivities are measured on
    #[arg(long, value_name = "N", default_value_t = 1024)]
    tokens: usize,
}

impl Spending {
    /// What to reach, if anything was asked for.
    pub fn goal(&self) -> Option<Goal> {
        self.kl.map(Goal::Kl).or(self.bits.map(Goal::Bits))
    }

    pub fn spend(&self, goal: Goal, model: &str, as_json: bool) -> Result<(), Failure> {
        let (name, text) = match &self.text {
            Some(path) => (path.display().to_string(), Cow::Owned(text::read(path)?)),
            None => (text::CALIBRATION_NAME.to_owned(), Cow::Borrowed(text::calibration())),
        };
        let checkpoint = Checkpoint::open(open::find(model)?)?;
        let path = self.plan.clone().unwrap_or_else(|| planned::place(&checkpoint));
        let plan = planned::open(&path, &checkpoint)?;
        let options = LoadOptions { activations: ActivationType::F32, ..LoadOptions::default() };
        let model = Model::load(&checkpoint, options)?;
        let (probed, long) = self
            .windows(&Tokenizer::of(&checkpoint)?, model.context(), &text)
            .map_err(|e| Failure::new(format!("{name}: {e}")))?;

        let bar = progress::bar("{bar:30} {percent} %  layers one by one  {eta} left");
        let parts = sensitivities(&model, &plan, (&probed, &long), &mut |headway| show(&bar, headway));
        bar.finish_and_clear();
        let (Chosen { policy, bits, kl }, found) = settle(goal, &parts?, &model, &plan, &long)?;
        let (measured, error) = found.kl();

        let target = self.output.as_deref().unwrap_or(&path);
        let made = format!("{}; bits spent by {} tokens of {name}", base(plan.made()), self.tokens);
        save(&plan, policy.clone(), &made, target)?;
        if as_json {
            let report = json!({"plan": target, "kv": policy.to_string(), "bits_per_value": bits,
                "kl_predicted": kl, "kl_measured": measured, "kl_stderr": error, "positions": found.tokens()});
            println!("{report}");
            return Ok(());
        }
        println!("{}: {made}", target.display());
        println!("{policy}");
        println!(
            "{bits:.2} bits per value, mean KL {kl:.4} predicted, {measured:.4} ± {error:.4} measured on {} other tokens",
            found.tokens()
        );
        Ok(())
    }

    /// Windows to measure sensitivities in, and a long one that comes after them in the text, as far as the model reads.
    fn windows(
        &self,
        tokenizer: &Tokenizer,
        context: Option<usize>,
        text: &str,
    ) -> Result<(Windows, Windows), EvalError> {
        let ids = tokenizer.encode(text, EncodeOptions::default())?;
        let (window, long) = (self.tokens.min(WINDOW), LONG_WINDOW.min(context.unwrap_or(LONG_WINDOW)));
        let chunks = (self.tokens / window.max(1)).max(1);
        let probed = Windows::of_ids(tokenizer.prefix(), &ids, window, chunks, Score::All)?;
        let rest = &ids[(window * chunks).min(ids.len())..];
        let long = long.min(rest.len().max(window));
        Ok((probed, Windows::of_ids(tokenizer.prefix(), rest, long, 1, Score::All)?))
    }
}

/// A policy for the goal, and what it shows in a long window: the better of one that tells layers apart and one that does not.
/// Where divergence is the goal and both show more, the next ones are made for as much less.
fn settle(
    goal: Goal,
    parts: &[Part],
    model: &Model,
    plan: &Arc<Plan>,
    windows: &Windows,
) -> Result<(Chosen, Divergence), Failure> {
    let mut asked = goal;
    for attempt in 1.. {
        let mut tried = Vec::new();
        for mut chosen in [policy_for(parts, asked), uniform_for(parts, asked)].into_iter().flatten() {
            let found = check(model, &plan.with(&chosen.policy), windows)?;
            if let (Goal::Kl(wanted), Goal::Kl(now)) = (goal, asked) {
                // What the last measurements say about sums of layers is part of what is expected.
                chosen.kl *= wanted / now;
            }
            tried.push((chosen, found));
        }
        let kl = |one: &(Chosen, Divergence)| one.1.kl().0;
        let least = tried.iter().map(kl).fold(f64::INFINITY, f64::min);
        if let (Goal::Kl(wanted), Goal::Kl(now)) = (goal, &mut asked) {
            if least <= wanted {
                tried.retain(|one| kl(one) <= wanted);
                tried.sort_by(|a, b| a.0.bits.total_cmp(&b.0.bits));
            } else if attempt < ATTEMPTS {
                *now *= wanted / least;
                continue;
            }
        } else {
            tried.sort_by(|a, b| kl(a).total_cmp(&kl(b)));
        }
        return tried.into_iter().next().ok_or_else(|| out_of_reach(goal));
    }
    Err(out_of_reach(goal))
}

/// How a plan was made, before bits were spent on it.
fn base(made: &str) -> &str {
    made.split_once("; bits spent").map_or(made, |(base, _)| base)
}

fn out_of_reach(goal: Goal) -> Failure {
    Failure::new(match goal {
        Goal::Kl(kl) => format!("no policy is expected to stay within a KL divergence of {kl}; ask for more"),
        Goal::Bits(bits) => format!("{bits} bits per value are too few for any policy; ask for more"),
    })
}

fn show(bar: &ProgressBar, headway: Headway<'_>) {
    bar.set_length(headway.total as u64);
    bar.set_position(headway.done as u64);
}

fn check(model: &Model, policy: &Policy, windows: &Windows) -> Result<Divergence, Failure> {
    let models = Models { reference: model, subject: model, arithmetic: "f32" };
    let caches = std::slice::from_ref(policy);
    let request = Request { models, windows, caches, mode: Mode::Strict, limits: PassLimits::default() };
    let bar = progress::bar("{bar:30} {percent} %  check  {eta} left");
    let found = divergence(&request, None, &mut |headway| show(&bar, headway));
    bar.finish_and_clear();
    Ok(found?.pop().unwrap_or_default())
}

fn save(plan: &Arc<Plan>, policy: Policy, made: &str, path: &Path) -> Result<(), Failure> {
    let refuse = |error| Failure::new(format!("{}: {error}", path.display()));
    let changed = Plan::new(*plan.model(), policy, made, plan.entries().to_vec()).map_err(refuse)?;
    changed.save(path).map_err(refuse)
}
