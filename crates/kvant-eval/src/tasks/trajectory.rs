//! How far two greedy continuations of a text agree.
//!
//! Measured with f32 activations, or it measures these: where activations are rounded to bytes, the smallest difference moves
//! some of them to the next byte, and continuations part after a few tokens whatever the cache, f16 included.

use super::answer::Asker;
use super::report::Score;
use super::{Step, exact};
use crate::error::EvalError;
use crate::windows::Windows;
use kvant_cache::Mode;
use kvant_engine::Policy;
use kvant_model::Model;

/// Tokens that are generated when nothing else is said.
pub const LENGTH: usize = 256;

/// Continues every window by `steps` tokens with every cache. A case is right by the share of its tokens before the first that differs from
/// the exact cache's; the first score is that of the exact one.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, or it refuses a window.
pub fn scores(
    model: &Model,
    windows: &Windows,
    steps: usize,
    caches: &[Policy],
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Score>, EvalError> {
    let total = (caches.len() + 1) * windows.chunks();
    let (mut truth, mut scores, mut done): (Vec<Vec<u32>>, _, _) = (Vec::new(), Vec::new(), 0);
    for (number, cache) in [exact()].iter().chain(caches).enumerate() {
        // Generation is always as deployed: there is no page to encode before its own tokens exist.
        let mut asker = Asker::new(model, cache, Mode::Deployed, windows.ctx() + steps)?;
        let mut score = Score::default();
        for (place, window) in windows.iter().enumerate() {
            let found = asker.continuation(window, steps, &mut |_| false)?;
            if number == 0 {
                truth.push(found.clone());
            }
            let same = found.iter().zip(&truth[place]).take_while(|(a, b)| a == b).count();
            score.take(same as f64 / steps.max(1) as f64, same == steps);
            done += 1;
            progress(Step { done, total });
        }
        scores.push(score);
    }
    Ok(scores)
}
