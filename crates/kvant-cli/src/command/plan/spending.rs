//! `kvant plan --kl` and `--bits`: bits spent where they gain most.

use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use crate::{open, progress};
use clap::Args;
use indicatif::ProgressBar;
use kvant_engine::open::{open_plan, plan_path};
use kvant_engine::{ActivationType, LoadOptions, Plan, Policy};
use kvant_eval::divergence::{Divergence, Headway, Mode, Models, Request, divergence};
use kvant_eval::plans::{Chosen, Goal, Part, evened, policy_for, sensitivities, uniform_for};
use kvant_eval::{EvalError, PassLimits, Score, Windows, text};
use kvant_model::tokenizer::{EncodeOptions, Tokenizer};
use kvant_model::{Checkpoint, Model};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens of a window, as far as the model reads: errors of keys grow with the context.
const WINDOW: usize = 2048;
/// How often policies are made and measured until one comes close to what was asked for.
const ATTEMPTS: usize = 4;
/// Part of a divergence asked for that is allowed on the text at hand. Others are harder: what a cache costs on a novel it costs 1.4 to
/// 1.5 times over on articles of an encyclopedia.
const ALLOWED: f64 = 0.7;
/// Part of a divergence allowed that is near enough to it to stop.
const NEAR: f64 = 0.93;
/// How much of what tells layers apart is believed, with a name for it. A policy with one width per side is tried beside them.
const TRUST: [(&str, f64); 2] = [("by layer", 1.0), ("by layer, half as far apart", 0.5)];
const UNIFORM: &str = "one codec per side";

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
    #[arg(long, value_name = "N", default_value_t = 2048)]
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
        let path = self.plan.clone().unwrap_or_else(|| plan_path(&checkpoint));
        let plan = open_plan(&path, &checkpoint)?;
        let options = LoadOptions { activations: ActivationType::F32, ..LoadOptions::default() };
        let model = kvant_cpu::load(&checkpoint, options)?;
        let (probed, other) = self
            .windows(&Tokenizer::of(&checkpoint)?, model.context(), &text)
            .map_err(|e| Failure::new(format!("{name}: {e}")))?;

        let bar = progress::bar("{bar:30} {percent} %  layers one by one  {eta} left");
        let parts = sensitivities(&model, &plan, &probed, &mut |headway| show(&bar, headway));
        bar.finish_and_clear();
        let tried = settle(goal, &parts?, &Check { model: &model, plan: &plan, windows: &other })?;
        let best = tried.first().ok_or_else(|| out_of_reach(goal))?;

        let target = self.output.as_deref().unwrap_or(&path);
        let made = format!("{}; bits spent by {} tokens of {name}", base(plan.made()), self.tokens);
        save(&plan, best.chosen.policy.clone(), &made, target)?;
        if as_json {
            let mut report = best.json();
            report["plan"] = json!(target);
            report["tried"] = tried.iter().map(Tried::json).collect();
            println!("{report}");
            return Ok(());
        }
        println!("{}: {made}", target.display());
        println!("{}", best.chosen.policy);
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
        table.write(&mut io::stdout().lock(), 2)?;
        Ok(())
    }

    /// Windows to measure sensitivities in, and as many that come after them in the text.
    fn windows(
        &self,
        tokenizer: &Tokenizer,
        context: Option<usize>,
        text: &str,
    ) -> Result<(Windows, Windows), EvalError> {
        let ids = tokenizer.encode(text, EncodeOptions::default())?;
        let window = self.tokens.min(WINDOW).min(context.unwrap_or(WINDOW)).min(ids.len() / 2).max(1);
        let chunks = (self.tokens / window).clamp(1, (ids.len() / 2 / window).max(1));
        let of = |ids: &[u32]| Windows::of_ids(tokenizer.prefix(), ids, window, chunks, Score::All);
        let (probed, other) = ids.split_at(ids.len() / 2);
        Ok((of(probed)?, of(other)?))
    }
}

/// What policies are measured with.
struct Check<'a> {
    model: &'a Model,
    plan: &'a Arc<Plan>,
    windows: &'a Windows,
}

impl Check<'_> {
    fn measure(&self, chosen: &[Chosen]) -> Result<Vec<Divergence>, Failure> {
        let models = Models { reference: self.model, subject: self.model, arithmetic: "f32" };
        let caches: Vec<Policy> = chosen.iter().map(|one| self.plan.with(&one.policy)).collect();
        let (windows, limits) = (self.windows, PassLimits::default());
        let request = Request { models, windows, caches: &caches, mode: Mode::Strict, limits };
        let bar = progress::bar("{bar:30} {percent} %  check  {eta} left");
        let found = divergence(&request, None, &mut |headway| show(&bar, headway));
        bar.finish_and_clear();
        Ok(found?)
    }
}

/// A policy and what it shows on text that its bits were not spent by.
struct Tried {
    way: &'static str,
    chosen: Chosen,
    found: Divergence,
}

impl Tried {
    fn json(&self) -> Value {
        let Self { way, chosen: Chosen { policy, bits, kl }, found } = self;
        let (measured, error) = found.kl();
        json!({"way": way, "kv": policy.to_string(), "bits_per_value": bits, "kl_predicted": kl,
               "kl_measured": measured, "kl_stderr": error, "positions": found.tokens()})
    }
}

/// Policies for the goal, the best first: layers told apart by all that was measured, by half of it, and not at all. Where divergence
/// is the goal, each is made again for as much more or less as it missed; what never stays within it is left out.
fn settle(goal: Goal, parts: &[Part], check: &Check<'_>) -> Result<Vec<Tried>, Failure> {
    let apart: Vec<Vec<Part>> = TRUST.iter().map(|(_, trust)| evened(parts, *trust)).collect();
    let way = |kind: usize| TRUST.get(kind).map_or(UNIFORM, |(name, _)| name);
    let make = |kind: usize, goal: Goal| match apart.get(kind) {
        Some(parts) => policy_for(parts, goal),
        None => uniform_for(parts, goal),
    };
    let kinds = 0..=apart.len();
    let mut tried: Vec<Tried> = Vec::new();
    match goal {
        Goal::Bits(_) => {
            let (kinds, chosen): (Vec<usize>, Vec<Chosen>) =
                kinds.filter_map(|kind| Some((kind, make(kind, goal)?))).unzip();
            let found = check.measure(&chosen)?;
            let all = kinds.into_iter().zip(chosen).zip(found);
            tried.extend(all.map(|((kind, chosen), found)| Tried { way: way(kind), chosen, found }));
            tried.sort_by(|a, b| a.found.kl().0.total_cmp(&b.found.kl().0));
        }
        Goal::Kl(limit) => {
            let wanted = ALLOWED * limit;
            let mut asked: Vec<Option<f64>> = kinds.map(|_| Some(wanted)).collect();
            for _ in 0..ATTEMPTS {
                let made =
                    |(kind, asked): (usize, &Option<f64>)| Some((kind, make(kind, Goal::Kl((*asked)?))?));
                let (kinds, chosen): (Vec<usize>, Vec<Chosen>) =
                    asked.iter().enumerate().filter_map(made).unzip();
                for ((kind, mut chosen), found) in
                    kinds.into_iter().zip(chosen.clone()).zip(check.measure(&chosen)?)
                {
                    let (kl, before) = (found.kl().0, asked[kind].unwrap_or(wanted));
                    // What was learnt of this kind before is part of what is expected.
                    chosen.kl *= wanted / before;
                    let is_near = (NEAR * wanted..=wanted).contains(&kl);
                    asked[kind] = (!is_near).then_some(before * wanted / kl.max(f64::MIN_POSITIVE));
                    let known = tried.iter().position(|one| one.way == way(kind));
                    let is_better = known.is_none_or(|known| chosen.bits < tried[known].chosen.bits);
                    if kl <= wanted && is_better {
                        if let Some(known) = known {
                            tried.swap_remove(known);
                        }
                        tried.push(Tried { way: way(kind), chosen, found });
                    }
                }
            }
            tried.sort_by(|a, b| a.chosen.bits.total_cmp(&b.chosen.bits));
        }
    }
    Ok(tried)
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

fn save(plan: &Arc<Plan>, policy: Policy, made: &str, path: &Path) -> Result<(), Failure> {
    let refuse = |error| Failure::new(format!("{}: {error}", path.display()));
    let changed = Plan::new(*plan.model(), policy, made, plan.slots().to_vec()).map_err(refuse)?;
    changed.save(path).map_err(refuse)
}
