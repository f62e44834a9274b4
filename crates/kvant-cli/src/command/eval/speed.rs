//! `--speed`: how fast tokens are generated with the caches that are compared.

use super::Eval;
use crate::failure::Failure;
use crate::progress;
use kvant_engine::device::DeviceModel;
use kvant_engine::{ActivationType, Policy, load_model};
use kvant_eval::divergence::DecodeSpeed;
use kvant_eval::html::SpeedPoint;
use kvant_eval::speed::{self, Plan, Timing};
use kvant_model::{Checkpoint, Model};

/// Tokens of a run: enough to be timed, few enough that the context stays what it is.
const TOKENS: usize = 16;
const RUNS: usize = 5;
/// What others are compared with.
const BASELINE: &str = "f16";

/// Times of all caches at several depths.
pub struct Speeds {
    timings: Vec<Timing>,
    /// That of a window.
    depth: usize,
}

impl Speeds {
    /// All times.
    pub fn points(&self) -> Vec<SpeedPoint> {
        let point = |timing: &Timing| SpeedPoint {
            spec: timing.case.kv.to_string(),
            depth: timing.case.depth,
            ms: 1e3 * timing.best() / timing.case.tokens as f64,
        };
        self.timings.iter().map(point).collect()
    }

    /// The speed of one cache after a window.
    pub fn of(&self, cache: &Policy) -> Option<DecodeSpeed> {
        let baseline: Policy = BASELINE.parse().ok()?;
        let ms = |kv: &Policy| {
            let timing = self.timings.iter().find(|t| t.case.kv == *kv && t.case.depth == self.depth)?;
            Some(1e3 * timing.best() / timing.case.tokens as f64)
        };
        let decode_ms = ms(cache)?;
        Some(DecodeSpeed { decode_ms, decode_vs_f16: ms(&baseline)? / decode_ms, decode_depth: self.depth })
    }
}

impl Eval {
    /// Measures all caches and f16 at a quarter of the context, at the context and at four times of it, as far as the model
    /// has positions. Caches take turns.
    pub(super) fn measure_speed(
        &self,
        checkpoint: &Checkpoint,
        placed: &DeviceModel,
        caches: &[Policy],
    ) -> Result<Speeds, Failure> {
        let fast = match placed.device {
            None => Some(load_model(checkpoint, ActivationType::Int8)?),
            Some(_) => None,
        };
        let model = fast.as_ref().unwrap_or(&placed.model);
        let mut kv = vec![BASELINE.parse().expect("a spec of the grammar")];
        kv.extend(caches.iter().filter(|cache| cache.to_string() != BASELINE).cloned());
        let plan = Plan {
            prefill: 0,
            decode: TOKENS,
            depths: depths(model, self.ctx),
            kv,
            threads: vec![kvant_threads::threads()],
            repetitions: RUNS,
            fill: true,
        };
        let bar = progress::bar("{bar:30} {pos}/{len}  {msg}");
        let timings = speed::measure(model, &plan, &mut |stage| {
            bar.set_length(stage.total as u64);
            bar.set_position(stage.done as u64);
            bar.set_message(stage.now.to_string());
        });
        bar.finish_and_clear();
        Ok(Speeds { timings: timings?, depth: self.ctx.min(most(model)) })
    }
}

/// The depths to measure at.
fn depths(model: &Model, ctx: usize) -> Vec<usize> {
    let most = most(model);
    let mut depths: Vec<usize> = [ctx / 4, ctx, 4 * ctx].iter().map(|&depth| depth.min(most)).collect();
    depths.dedup();
    depths
}

/// The deepest context that leaves positions for a run.
fn most(model: &Model) -> usize {
    model.position_limit().map_or(usize::MAX, |limit| limit.saturating_sub(TOKENS))
}
