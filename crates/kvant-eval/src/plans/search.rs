//! Policies for a goal, measured on text that their bits were not spent by.

use super::choice::{Alternative, Goal};
use super::families::finest;
use super::sensitivity::Part;
use super::spending::{Chosen, evened, policy_for, uniform_for};
use crate::divergence::{Divergence, Headway, Mode, Models, Request, divergence};
use crate::error::EvalError;
use crate::token_nll::PassLimits;
use crate::windows::{Score, Windows};
use kvant_cache::plan::{self, Cost, Plan};
use kvant_codec::{CodecSpec, KvSpec, Side};
use kvant_engine::Policy;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::sync::Arc;

/// Tokens of a window, as far as the model reads: errors of keys grow with the context.
const WINDOW: usize = 2048;
/// The fewest tokens that whole sides and candidates are measured on.
const LEAST: usize = 1024;
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

/// What a search reads.
pub struct SearchWindows {
    /// Where layers are probed one by one: the most caches, so the fewest tokens.
    pub probed: Windows,
    /// Where codecs are measured on a whole side: the same text, and more of it, because how much keys and values weigh against
    /// each other changes with the context.
    pub sides: Windows,
    /// Where candidates are compared: another part of the text.
    pub other: Windows,
}

/// Windows of `tokens` tokens to probe layers in, and of `LEAST` at least for everything else.
///
/// # Errors
/// If the text is too short or cannot be tokenised.
pub fn search_windows(
    tokenizer: &Tokenizer,
    context: Option<usize>,
    text: &str,
    tokens: usize,
) -> Result<SearchWindows, EvalError> {
    let ids = tokenizer.encode(text, EncodeOptions::default())?;
    let (first, second) = ids.split_at(ids.len() / 2);
    let of = |ids: &[u32], tokens: usize| {
        let window = tokens.min(WINDOW).min(context.unwrap_or(WINDOW)).min(ids.len()).max(1);
        let chunks = (tokens / window).clamp(1, (ids.len() / window).max(1));
        Windows::of_ids(tokenizer.prefix(), ids, window, chunks, Score::All)
    };
    let more = tokens.max(LEAST);
    Ok(SearchWindows { probed: of(first, tokens)?, sides: of(first, more)?, other: of(second, more)? })
}

/// A policy and what it shows on text that its bits were not spent by.
pub struct Tried {
    /// How its bits were spent, in a few words.
    pub way: &'static str,
    /// The policy, with what is expected of it.
    pub chosen: Chosen,
    /// What was measured.
    pub found: Divergence,
}

/// What policies are measured with.
pub struct Check<'a> {
    /// With f32 activations.
    pub models: Models<'a>,
    /// Numbers for their codecs.
    pub plan: &'a Arc<Plan>,
    /// Text that sensitivities were not measured on.
    pub windows: &'a Windows,
}

impl Check<'_> {
    /// The divergence of the policy that rounds least: no other of the search comes closer, up to the noise of a measurement.
    ///
    /// # Errors
    /// If it cannot be measured.
    pub fn least(&self, headway: &mut dyn FnMut(Headway<'_>)) -> Result<f64, EvalError> {
        let policy = KvSpec { key: finest(Side::Key), value: finest(Side::Value) }.into();
        Ok(self.measure_policies(&[&policy], headway)?[0].kl().0)
    }

    /// How much a search computes once sensitivities are known, in tokens that pass through the whole model; at most.
    pub fn tokens(&self, goal: Goal) -> f64 {
        let rounds = match goal {
            Goal::Bits(_) => 1,
            Goal::Kl(_) => ATTEMPTS,
        };
        // Each kind of policy, and the exact cache beside them.
        ((TRUST.len() + 2) * rounds * self.windows.ctx() * self.windows.chunks()) as f64
    }

    fn measure(
        &self,
        chosen: &[Chosen],
        headway: &mut dyn FnMut(Headway<'_>),
    ) -> Result<Vec<Divergence>, EvalError> {
        let policies: Vec<&Policy> = chosen.iter().map(|one| &one.policy).collect();
        self.measure_policies(&policies, headway)
    }

    fn measure_policies(
        &self,
        policies: &[&Policy],
        headway: &mut dyn FnMut(Headway<'_>),
    ) -> Result<Vec<Divergence>, EvalError> {
        let caches: Vec<Policy> = policies.iter().map(|policy| self.plan.with(policy)).collect();
        let (windows, limits) = (self.windows, PassLimits::default());
        let request = Request { models: self.models, windows, caches: &caches, mode: Mode::Strict, limits };
        divergence(&request, None, headway)
    }
}

impl Goal {
    /// The divergence that a policy may have on the text at hand for this goal; none where bits are the goal.
    pub fn allowed(self) -> Option<f64> {
        match self {
            Goal::Kl(limit) => Some(ALLOWED * limit),
            Goal::Bits(_) => None,
        }
    }
}

/// Policies for the goal, the best first: layers told apart by all that was measured, by half of it, and not at all. Where divergence
/// is the goal, each is made again for as much more or less as it missed; what never stays within it is left out.
///
/// # Errors
/// If a policy cannot be measured.
pub fn search(
    goal: Goal,
    parts: &[Part],
    check: &Check<'_>,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Tried>, EvalError> {
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
            let found = check.measure(&chosen, headway)?;
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
                    kinds.into_iter().zip(chosen.clone()).zip(check.measure(&chosen, headway)?)
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

/// The plan with another policy and what codecs were found to cost, with a note of what its bits were spent by in place of an
/// earlier one.
///
/// # Errors
/// If the plan has no numbers for the policy.
pub fn spend_bits(
    plan: &Plan,
    policy: &Policy,
    parts: &[Part],
    tokens: usize,
    text: &str,
) -> Result<Plan, plan::PlanError> {
    let base = plan.made().split_once(SPENT).map_or(plan.made(), |(base, _)| base);
    let made = format!("{base}{SPENT}{}", spent_by(tokens, text));
    let mut slots = plan.slots().to_vec();
    for part in parts {
        let cost =
            |(spec, one): &(CodecSpec, Alternative)| Cost { spec: spec.to_string(), kl: one.kl as f32 };
        let head = &mut slots[part.slot].heads[part.head];
        let side = match part.side {
            Side::Key => &mut head.key,
            Side::Value => &mut head.value,
        };
        side.costs = part.alternatives.iter().map(cost).collect();
    }
    Plan::new(*plan.model(), policy.clone(), &made, slots)
}

/// Whether codecs' costs in a plan are of that many tokens of that text.
pub(super) fn knows_costs(plan: &Plan, tokens: usize, text: &str) -> bool {
    plan.made().split_once(SPENT).is_some_and(|(_, by)| by == spent_by(tokens, text))
}

const SPENT: &str = "; bits spent by ";

fn spent_by(tokens: usize, text: &str) -> String {
    format!("{tokens} tokens of {text}")
}
