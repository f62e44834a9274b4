//! Rules for what may be said: JSON of a schema, words of a grammar.

use std::task::Waker;

/// Decides token by token what may come next.
///
/// It stands before the sampler's chain, so penalties, biases and cuts choose among what it allows.
pub trait Constraint: Send {
    /// Forbids what may not come next: the logits of these tokens become −∞.
    ///
    /// # Errors
    /// If nothing may come, or finding out takes too long.
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError>;

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// If it was not allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Whether [`allow`](Constraint::allow) answers without waiting. Where it does not, it is found out meanwhile what may come next,
    /// and the waker is told when that is known.
    fn poll_ready(&mut self, waker: &Waker) -> bool {
        let _ = waker;
        true
    }

    /// Waits a moment where it is not known yet what may come next, but usually would be soon.
    fn wait_briefly(&mut self) {}

    /// Looks at a guess of the next tokens: cuts it before the first that may not come, and puts tokens there that must come. Nothing
    /// depends on it but how good a guess is.
    fn foresee(&mut self, guess: &mut Vec<u32>) {
        let _ = guess;
    }
}

/// A text that cannot go on as it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the text cannot be kept to the format asked for: {0}")]
pub struct ConstraintError(pub String);
