//! Rules for what may be said: JSON of a schema, words of a grammar.

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
}

/// A text that cannot go on as it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the text cannot be kept to the format asked for: {0}")]
pub struct ConstraintError(pub String);
