//! What a cache costs: how far it moves a model's predictions from those with an exact cache.
//!
//! The reference is the f32 cache with f32 activations. Every window goes through the reference once and through each
//! cache in question once, *side by side*: a block of positions at a time, whose logits are compared and dropped. So ten
//! caches cost one reference, and at no time are there more logits than two blocks of [`PassLimits::logit_bytes`] each,
//! and as many probabilities in f64
//! (or of one page's positions, where that is more), beside the reference's cache and one per cache in question. With
//! [`Kept`] the reference and finished windows are read from disk where they are there.
//!
//! Two modes ([`Mode`]). *Deployed* is what users get: a query reads its own page exactly. *Strict* encodes every page
//! before its own queries attend, the last one padded with its last token: what other people's tables show, and a bound on
//! the first.
//!
//! The caches are those of the engine, with the codecs and kernels that generate text. Nothing is simulated.

mod blocks;
mod compare;
mod gathered;
mod report;
mod run;
mod truth;

pub(crate) use blocks::Grid;
pub(crate) use compare::Comparison;
pub use gathered::Divergence;
pub use kvant_cache::Mode;
pub use report::{DecodeSpeed, DivergenceRow, FastPath, mode_name};
pub(crate) use truth::{Seen, top};

use crate::error::EvalError;
use crate::kept::Kept;
use crate::perplexity::check_context;
use crate::token_nll::{PassLimits, check_ids};
use crate::windows::Windows;
use kvant_engine::{KvCache, Policy};
use kvant_model::Model;
use run::{Caches, Run};

/// The models of a measurement: the same weights twice, or one model in both places.
#[derive(Clone, Copy)]
pub struct Models<'m> {
    /// Runs with the exact cache; should have f32 activations.
    pub reference: &'m Model,
    /// Runs with the caches in question.
    pub subject: &'m Model,
    /// How the second computes, in a word (`f32`, `int8`): what is kept of its results goes by this.
    pub arithmetic: &'m str,
}

/// What is to be compared.
#[derive(Clone, Copy)]
pub struct Request<'r> {
    /// The models.
    pub models: Models<'r>,
    /// The text.
    pub windows: &'r Windows,
    /// The caches in question.
    pub caches: &'r [Policy],
    /// What a query reads exactly.
    pub mode: Mode,
    /// How much goes through the network at once.
    pub limits: PassLimits,
}

/// Where a measurement stands after a block.
#[derive(Debug, Clone, Copy)]
pub struct Headway<'d> {
    /// Positions done, those found on disk included.
    pub done: usize,
    /// Positions in all.
    pub total: usize,
    /// What was found so far, cache by cache; whole windows only.
    pub so_far: &'d [Divergence],
}

/// Compares each cache with the exact one on every window, and tells `headway` after each block.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, the windows are beyond the model, or logits are no finite
/// numbers.
pub fn divergence(
    request: &Request<'_>,
    kept: Option<&mut Kept>,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Divergence>, EvalError> {
    compared(request, None, kept, headway)
}

/// How the reference has the cache that is compared with itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Same {
    /// As it is used, with the CPU's kernels.
    Kernels,
    /// Pages are decoded to f32 ([`KvCache::decoded`]), where the CPU's kernels round queries and weights to bytes.
    Decoded,
    /// The same, and the cache in question gets the reference's pages before every page of positions. Rounding is not continuous: a number
    /// that differs in its last bit may get another code, layers multiply that, and after thirty of them two caches that round alike are about as
    /// far apart as either is from the exact one. Over the same pages it shows what arithmetic changes, and not what rounding makes of it.
    Pages,
}

/// Compares each cache on the subject with the *same* cache on the reference, instead of the exact one: what another device's arithmetic
/// changes, and nothing else. Nothing is kept on disk.
///
/// # Errors
/// As [`divergence`].
pub fn device_divergence(
    request: &Request<'_>,
    same: Same,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Divergence>, EvalError> {
    let mut found = Vec::with_capacity(request.caches.len());
    for cache in request.caches {
        let caches = std::slice::from_ref(cache);
        let request = Request { caches, ..*request };
        found.append(&mut compared(&request, Some(same), None, headway)?);
    }
    Ok(found)
}

/// With the exact cache, or with the one in question, of which there is one then.
fn compared(
    request: &Request<'_>,
    same: Option<Same>,
    mut kept: Option<&mut Kept>,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Divergence>, EvalError> {
    let Request { models, windows, mode, limits, .. } = *request;
    check_context(models.reference, windows.ctx())?;
    let strictly = |policy: &Policy| {
        let mut policy = policy.clone();
        policy.rule.mode = mode;
        policy
    };
    let caches: Vec<Policy> = request.caches.iter().map(strictly).collect();
    let names: Vec<String> = caches.iter().map(|policy| name(policy, mode, models.arithmetic)).collect();
    let by_pages = same == Some(Same::Pages);
    let groups = groups(models.subject, &caches, by_pages)?;
    let limits = if by_pages { PassLimits { tokens: 1, ..limits } } else { limits };
    // A window's last token predicts nothing and is not run.
    let (positions, mut done) = (windows.ctx() - 1, 0);
    let total = positions * windows.chunks() * groups.len();
    let mut found = vec![Divergence::default(); caches.len()];
    for (grid, members) in &groups {
        let blocks = grid.blocks(positions, limits, models.reference.vocabulary());
        for (number, window) in windows.iter().enumerate() {
            check_ids(models.reference, window)?;
            let first_target = windows.targets().start;
            let mut missing = Vec::new();
            for &place in members {
                let known = kept.as_mut().and_then(|kept| kept.result(window, first_target, &names[place]));
                match known {
                    Some(known) => found[place].take_window(&known),
                    None => missing.push(place),
                }
            }
            if !missing.is_empty() {
                let targets = windows.targets();
                let exact: Policy = "f32".parse().expect("a spec of the grammar");
                let caches = Caches {
                    members: &missing,
                    policies: &caches,
                    reference: caches.first().filter(|_| same.is_some()).unwrap_or(&exact),
                    same,
                };
                let mut run = Run::new(models, targets, (number, window), &caches, kept.as_deref_mut())?;
                for block in &blocks {
                    run.block(block.clone(), kept.as_deref_mut())?;
                    done += block.len();
                    headway(Headway { done, total, so_far: &found });
                }
                for (place, result) in run.finish(kept.as_deref_mut()) {
                    found[place].take_window(&result);
                    if let Some(kept) = kept.as_deref_mut() {
                        kept.keep_result(window, first_target, &names[place], &result);
                    }
                }
            } else {
                done += positions;
            }
            headway(Headway { done, total, so_far: &found });
        }
    }
    Ok(found)
}

/// What results of a cache are kept under.
fn name(policy: &Policy, mode: Mode, arithmetic: &str) -> String {
    // The text of a policy does not say whose numbers its codecs take.
    let plan = policy.plan.as_ref().map(|plan| plan.digest());
    let tier = kvant_codec::Tier::select().map(|tier| tier.name());
    format!("{policy} {mode:?} {arithmetic} {tier:?} {plan:?}")
}

/// Caches that can take the same passes, by their numbers. Usually all can; a strict one whose sinks end elsewhere costs
/// a reference of its own.
fn groups(model: &Model, caches: &[Policy], whole: bool) -> Result<Vec<(Grid, Vec<usize>)>, EvalError> {
    let mut groups: Vec<(Grid, Vec<usize>)> = Vec::new();
    for (number, policy) in caches.iter().enumerate() {
        let grid = Grid::of(KvCache::new(policy, model.slots(), 1)?.sequence().layout(), whole);
        match groups.iter_mut().find_map(|(known, members)| Some((known.join(grid)?, known, members))) {
            Some((joined, known, members)) => {
                *known = joined;
                members.push(number);
            }
            None => groups.push((grid, vec![number])),
        }
    }
    Ok(groups)
}
