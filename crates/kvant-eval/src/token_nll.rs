//! One window through the model, and what it thought of each token.

use crate::error::EvalError;
use kvant_cache::Sequence;
use kvant_model::{Chunk, ForwardError, Model, Pass, Rows};
use std::ops::Range;

/// How much of a window goes through the network at once. Bounds memory, and changes nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassLimits {
    /// Tokens in a pass.
    pub tokens: usize,
    /// Bytes of logits alive at a time. One row is always allowed.
    pub logit_bytes: usize,
}

impl Default for PassLimits {
    fn default() -> Self {
        Self { tokens: 512, logit_bytes: 64 << 20 }
    }
}

impl PassLimits {
    /// Positions with logits in one pass.
    pub(crate) fn rows(&self, vocabulary: usize) -> usize {
        self.tokens.min(self.logit_bytes / (vocabulary * size_of::<f32>()))
    }

    /// The pass from position `at` on, in a window whose logits are wanted at `scored`.
    fn pass(&self, at: usize, scored: &Range<usize>, vocabulary: usize) -> Range<usize> {
        let (most, end) =
            if at < scored.start { (self.tokens, scored.start) } else { (self.rows(vocabulary), scored.end) };
        at..end.min(at.saturating_add(most.max(1)))
    }
}

/// −ln p of the tokens at `targets` of `window`, each given all tokens before it. `state` is one empty sequence with room
/// for the window; `number` names the window in errors.
///
/// Logits are made for scored positions only, and a window's last token, which predicts nothing, is not run.
///
/// # Errors
/// If the model refuses the window, or the logits are no finite numbers.
pub fn token_nll(
    model: &Model,
    sequence: &mut Sequence,
    (number, window): (usize, &[u32]),
    targets: Range<usize>,
    limits: PassLimits,
) -> Result<Vec<f64>, EvalError> {
    check_ids(model, window)?;
    let vocabulary = model.vocabulary();
    // The logits at a position are about the token after it.
    let scored = targets.start - 1..targets.end - 1;
    let mut found = Vec::with_capacity(scored.len());
    let mut at = 0;
    while at < scored.end {
        let pass = limits.pass(at, &scored, vocabulary);
        let wanted = if at < scored.start { 0..0 } else { 0..pass.len() };
        let chunk = Chunk::new(&window[pass.clone()], wanted.clone());
        let logits = model.forward(Pass::new(&[chunk]), &mut [sequence])?.into_logits(); // (wanted, vocabulary)
        let next = &window[pass.start + 1..][..wanted.len()];
        found.extend(
            of_rows(&logits, next)
                .map_err(|row| EvalError::NotFinite { window: number, position: pass.start + row })?,
        );
        at = pass.end;
    }
    Ok(found)
}

/// Refuses ids outside the vocabulary. The last one is asked for without being run, so the model does not see it.
pub(crate) fn check_ids(model: &Model, window: &[u32]) -> Result<(), ForwardError> {
    let vocabulary = model.vocabulary();
    match window.iter().find(|&&id| id as usize >= vocabulary) {
        Some(&id) => Err(ForwardError::UnknownToken { id, vocabulary }),
        None => Ok(()),
    }
}

/// The negative log-likelihood of `next[i]` under row `i` of the logits, or the first row that gives none.
fn of_rows(logits: &Rows, next: &[u32]) -> Result<Vec<f64>, usize> {
    let mut found = vec![0.0; next.len()];
    kvant_threads::for_each_chunk(&mut found, 1, |row, found| {
        found[0] = nll(logits.row(row), next[row] as usize);
    });
    match found.iter().position(|nll| !nll.is_finite()) {
        Some(row) => Err(row),
        None => Ok(found),
    }
}

/// −ln softmax(logits)[id] = ln Σ exp(z − max) − (z_id − max), in f64. Not finite when the logits are not fit to
/// be scored.
pub(crate) fn nll(logits: &[f32], id: usize) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    // `max` passes over a NaN, the sum does not.
    let denominator: f64 = logits.iter().map(|&z| (f64::from(z) - largest).exp()).sum();
    denominator.ln() - (f64::from(logits[id]) - largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nll_is_minus_log_softmax() {
        let logits = [1.0f32, -2.0, 0.5, 3.0];
        let denominator: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
        for (id, &z) in logits.iter().enumerate() {
            assert!((nll(&logits, id) + (f64::from(z).exp() / denominator).ln()).abs() < 1e-12);
        }
        // Far beyond the range of exp.
        assert!((nll(&[3e4, 3e4], 0) - 2f64.ln()).abs() < 1e-12);
        assert_eq!(nll(&[f32::NEG_INFINITY, 0.0], 1), 0.0);
    }

    #[test]
    fn logits_that_are_no_numbers_are_found() {
        let bad = [[0.0, f32::NAN], [0.0, f32::INFINITY], [0.0, f32::NEG_INFINITY], [f32::NEG_INFINITY; 2]];
        for row in bad {
            let rows = Rows::from_vec([[0.0, 0.0], row].concat(), 2);
            assert_eq!(of_rows(&rows, &[0, 1]), Err(1), "{row:?}");
        }
    }

    #[test]
    fn passes_keep_within_both_limits() {
        let limits = PassLimits { tokens: 10, logit_bytes: 4 * 100 * 4 };
        let (mut passes, mut at) = (Vec::new(), 0);
        while at < 30 {
            let pass = limits.pass(at, &(15..30), 100);
            at = pass.end;
            passes.push(pass);
        }
        assert_eq!(passes, [0..10, 10..15, 15..19, 19..23, 23..27, 27..30]);
        let tight = PassLimits { tokens: 10, logit_bytes: 1 };
        assert_eq!(tight.pass(15, &(15..30), 100), 15..16);
    }
}
