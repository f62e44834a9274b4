//! What a cache costs: how far it moves a model's predictions from those with an exact cache.
//!
//! The reference is the f32 cache with f32 activations. Every window goes through the reference once and through each
//! cache in question once, *side by side*: a block of positions at a time, whose logits are compared and dropped. So ten
//! caches cost one reference, and at no time are there more logits than two blocks of [`PassLimits::logit_bytes`] each
//! (or of one page's positions, where that is more), beside the reference's cache and one per cache in question.
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

pub use gathered::Divergence;
pub use kvant_cache::Mode;
pub use report::DivergenceRow;

use crate::error::EvalError;
use crate::perplexity::check_context;
use crate::surprise::{PassLimits, check_ids};
use crate::windows::Windows;
use blocks::Grid;
use compare::Comparison;
use kvant_engine::{KvCache, Policy};
use kvant_model::Model;
use kvant_model::blocks::{Chunk, Rows};
use std::ops::Range;

/// The models of a measurement: the same weights twice, or one model in both places.
#[derive(Clone, Copy)]
pub struct Models<'m> {
    /// Runs with the exact cache; should have f32 activations.
    pub reference: &'m Model,
    /// Runs with the caches in question.
    pub subject: &'m Model,
}

/// Where a measurement stands after a block.
#[derive(Debug, Clone, Copy)]
pub struct Headway<'d> {
    /// Positions run through the reference.
    pub done: usize,
    /// Positions in all.
    pub total: usize,
    /// What was found so far, cache by cache.
    pub so_far: &'d [Divergence],
}

/// Compares each of `caches` with the exact cache on every window, and tells `headway` after each block.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, the windows are beyond the model, or logits are no finite
/// numbers.
pub fn divergence(
    models: Models<'_>,
    windows: &Windows,
    caches: &[Policy],
    mode: Mode,
    limits: PassLimits,
    headway: &mut dyn FnMut(Headway<'_>),
) -> Result<Vec<Divergence>, EvalError> {
    check_context(models.reference, windows.ctx())?;
    let caches: Vec<Policy> = caches
        .iter()
        .map(|policy| {
            let mut policy = policy.clone();
            policy.rule.mode = mode;
            policy
        })
        .collect();
    let groups = groups(models.subject, &caches)?;
    // A window's last token predicts nothing and is not run.
    let (positions, mut done) = (windows.ctx() - 1, 0);
    let total = positions * windows.chunks() * groups.len();
    let mut found = vec![Divergence::default(); caches.len()];
    for (grid, members) in &groups {
        let blocks = grid.blocks(positions, limits, models.reference.vocabulary());
        for (number, window) in windows.iter().enumerate() {
            check_ids(models.reference, window)?;
            let mut run = Run::new(models, windows.targets(), (number, window), members, &caches)?;
            for block in &blocks {
                run.block(block.clone(), &mut found)?;
                done += block.len();
                headway(Headway { done, total, so_far: &found });
            }
            run.finish(&mut found);
        }
    }
    Ok(found)
}

/// Caches that can take the same passes, by their numbers. Usually all can; a strict one whose sinks end elsewhere costs
/// a reference of its own.
fn groups(model: &Model, caches: &[Policy]) -> Result<Vec<(Grid, Vec<usize>)>, EvalError> {
    let mut groups: Vec<(Grid, Vec<usize>)> = Vec::new();
    for (number, policy) in caches.iter().enumerate() {
        let grid = Grid::of(KvCache::new(policy, model.states(), 1)?.sequence().layout());
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

/// One window, under way through the reference and the caches of a group.
struct Run<'r> {
    models: Models<'r>,
    number: usize,
    window: &'r [u32],
    /// Positions whose logits are compared.
    scored: Range<usize>,
    exact: KvCache,
    /// With their places in the results.
    caches: Vec<(usize, KvCache)>,
}

impl<'r> Run<'r> {
    fn new(
        models: Models<'r>,
        targets: Range<usize>,
        (number, window): (usize, &'r [u32]),
        members: &[usize],
        policies: &[Policy],
    ) -> Result<Self, EvalError> {
        let exact: Policy = "f32".parse().expect("a spec of the grammar");
        let open = |model: &Model, policy: Policy| KvCache::new(policy, model.states(), window.len());
        let caches = members.iter().map(|&place| Ok((place, open(models.subject, policies[place].clone())?)));
        Ok(Self {
            models,
            number,
            window,
            // The logits at a position are about the token after it.
            scored: targets.start - 1..targets.end - 1,
            exact: open(models.reference, exact)?,
            caches: caches.collect::<Result<_, EvalError>>()?,
        })
    }

    /// The next positions, through all caches.
    fn block(&mut self, block: Range<usize>, found: &mut [Divergence]) -> Result<(), EvalError> {
        let (window, number) = (self.window, self.number);
        let from = block.start.max(self.scored.start).min(block.end);
        let wanted = from - block.start..block.len();
        let next = &window[from + 1..block.end + 1];
        let tokens = &window[block];
        let truth = logits(self.models.reference, &mut self.exact, tokens, wanted.clone())?; // (wanted, vocabulary)
        for (place, cache) in &mut self.caches {
            let logits = logits(self.models.subject, cache, tokens, wanted.clone())?; // (wanted, vocabulary)
            let comparisons = Comparison::of_rows(&truth, &logits, next)
                .map_err(|row| EvalError::NotFinite { window: number, position: from + row })?;
            found[*place].take(&comparisons);
        }
        Ok(())
    }

    fn finish(self, found: &mut [Divergence]) {
        for (place, cache) in self.caches {
            found[place].set_footprint(&cache.footprint());
        }
    }
}

/// One pass with one cache.
fn logits(model: &Model, kv: &mut KvCache, tokens: &[u32], wanted: Range<usize>) -> Result<Rows, EvalError> {
    let wanted = if wanted.is_empty() { 0..0 } else { wanted };
    let logits = model.forward(&mut [Chunk { tokens, cache: kv.cache_mut(), wanted }])?;
    kv.check()?;
    Ok(logits)
}
