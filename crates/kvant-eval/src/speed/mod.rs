//! Speed: how fast prompts are read and tokens generated, at chosen depths of context.
//!
//! A [`Plan`] names what is compared. Its cases take turns, one run each per repetition, so that a machine that
//! slows down for a while slows all of them. Every run of a case starts from the same context: it is read once, and
//! what a run added is forgotten after it.

mod plan;
mod report;
mod sequence;

pub use plan::{Case, Plan, Test};
pub use report::{SpeedRow, Timing};
pub use sequence::FILL_FROM;

use crate::error::EvalError;
use kvant_engine::Policy;
use kvant_model::Model;
use kvant_threads::Pool;
use sequence::Sequence;
use std::fmt;

/// Where a measurement stands when something begins.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Runs and contexts done.
    pub done: usize,
    /// All there are.
    pub total: usize,
    /// What begins.
    pub now: Step,
}

/// A part of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A context is brought about; not timed.
    Context {
        /// Its tokens.
        depth: usize,
        /// How keys and values are kept.
        kv: Policy,
    },
    /// A timed run.
    Run(Case),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Context { depth, kv } => write!(f, "a context of {depth}, {kv}"),
            Self::Run(case) => write!(f, "{case}"),
        }
    }
}

/// Measures every case of the plan and tells `progress` before each run. Every number of threads has
/// a pool of its own, whose workers sleep while it is another's turn.
///
/// # Errors
/// If the plan asks for a cache there is none of, for contexts beyond the model or the memory, or for nothing.
pub fn measure(
    model: &Model,
    plan: &Plan,
    progress: &mut dyn FnMut(Stage),
) -> Result<Vec<Timing>, EvalError> {
    plan.check(model)?;
    let cases = plan.cases();
    let total = plan.contexts() + plan.repetitions * cases.len();
    let mut done = 0;
    let mut begin = |now: Step| {
        progress(Stage { done, total, now });
        done += 1;
    };
    let pools: Vec<(usize, Pool)> =
        plan.threads.iter().map(|&threads| (threads, Pool::new(threads))).collect();
    // Contexts are read with all the threads there will be.
    let most = pools.iter().map(|(_, pool)| pool).max_by_key(|pool| pool.threads());
    let most = most.cloned().unwrap_or_default();
    let mut sequences = Vec::with_capacity(plan.contexts());
    for &depth in &plan.depths {
        for kv in &plan.kv {
            begin(Step::Context { depth, kv: kv.clone() });
            sequences.push(most.install(|| {
                let mut sequence = Sequence::new(model, kv, depth, plan)?;
                sequence.warm_up().map(|()| sequence)
            })?);
        }
    }
    let mut timings: Vec<Timing> =
        cases.into_iter().map(|case| Timing { case, seconds: Vec::new() }).collect();
    for _ in 0..plan.repetitions {
        for Timing { case, seconds } in &mut timings {
            begin(Step::Run(case.clone()));
            let at = sequences.iter_mut().find(|s| s.depth() == case.depth && *s.kv() == case.kv);
            let sequence = at.expect("there is a sequence for every depth and cache of the plan");
            let pool = pools.iter().find(|(threads, _)| *threads == case.threads);
            let (_, pool) = pool.expect("there is a pool for every number of threads of the plan");
            seconds.push(pool.install(|| sequence.time(case.test, case.tokens))?.as_secs_f64());
        }
    }
    Ok(timings)
}
