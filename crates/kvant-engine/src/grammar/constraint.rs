//! A grammar on its way through a text.

use super::masks::{Computed, MaskThreads, Pending};
use crate::constraint::{Constraint, ConstraintError};
use llguidance::Matcher;
use llguidance::toktrie::{SimpleVob, TokTrie};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// How long a mask that usually comes at once is waited for: much less than a pass takes.
const BRIEFLY: Duration = Duration::from_millis(2);

/// A grammar on its way through one text. What may come next is computed on other threads, from the moment that a token is accepted.
pub struct GrammarConstraint {
    threads: Arc<MaskThreads>,
    state: MatcherState,
    /// The last mask was.
    is_slow: bool,
}

enum MatcherState {
    /// Nothing was asked of it yet.
    Fresh(Matcher),
    /// The next mask is on its way.
    Pending(Pending),
    Ready {
        matcher: Matcher,
        mask: SimpleVob,
    },
    Failed(ConstraintError),
}

impl MatcherState {
    /// Leaves a state behind that is never seen.
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Failed(ConstraintError(String::new())))
    }
}

impl GrammarConstraint {
    pub(super) fn new(matcher: Matcher, threads: Arc<MaskThreads>) -> Self {
        Self { threads, state: MatcherState::Fresh(matcher.into_cancellable()), is_slow: false }
    }

    fn begin(&self, matcher: Matcher, token: Option<u32>) -> MatcherState {
        MatcherState::Pending(self.threads.begin(matcher, token, self.is_slow))
    }

    fn computed(&mut self, computed: Computed) {
        let Computed { matcher, mask, was_slow } = computed;
        self.is_slow = was_slow;
        self.state = match mask {
            Ok(mask) => MatcherState::Ready { matcher, mask },
            Err(error) => MatcherState::Failed(error),
        };
    }

    /// Begins with the first mask.
    fn begin_fresh(&mut self) {
        if let MatcherState::Fresh(_) = self.state
            && let MatcherState::Fresh(matcher) = self.state.take()
        {
            self.state = self.begin(matcher, None);
        }
    }

    /// The mask, waited for where it is not there.
    fn mask(&mut self) -> Result<&SimpleVob, ConstraintError> {
        self.begin_fresh();
        if let MatcherState::Pending(pending) = &self.state {
            let computed = pending.wait();
            self.computed(*computed);
        }
        match &self.state {
            MatcherState::Ready { mask, .. } => Ok(mask),
            MatcherState::Failed(error) => Err(error.clone()),
            MatcherState::Fresh(_) | MatcherState::Pending(_) => unreachable!("it was begun and waited for"),
        }
    }
}

/// Tokens of the only bytes that may come. What comes after the last of them may become one token with it, so it is left out.
fn forced(matcher: &mut Matcher) -> Vec<u32> {
    let bytes = matcher.compute_ff_bytes();
    if bytes.is_empty() || bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
        return Vec::new();
    }
    let mut tokens =
        matcher.tok_env().map_or_else(|_| Vec::new(), |vocabulary| vocabulary.tokenize_bytes(&bytes));
    if tokens.len() > 1 {
        tokens.pop();
    }
    tokens
}

/// A constraint of its own for another text, as far along as this one is.
impl Clone for GrammarConstraint {
    fn clone(&self) -> Self {
        let state = match &self.state {
            MatcherState::Fresh(matcher) => MatcherState::Fresh(matcher.deep_clone()),
            MatcherState::Ready { matcher, mask } => {
                MatcherState::Ready { matcher: matcher.deep_clone(), mask: mask.clone() }
            }
            MatcherState::Failed(error) => MatcherState::Failed(error.clone()),
            MatcherState::Pending(pending) => match pending.wait_and_copy() {
                (matcher, Ok(mask)) => MatcherState::Ready { matcher, mask },
                (_, Err(error)) => MatcherState::Failed(error),
            },
        };
        Self { threads: Arc::clone(&self.threads), state, is_slow: self.is_slow }
    }
}

impl Constraint for GrammarConstraint {
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let allowed = self.mask()?;
        for (token, logit) in logits.iter_mut().enumerate() {
            // Logits may be padded beyond the vocabulary.
            if token >= allowed.len() || !allowed.get(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        let allowed = self.mask()?;
        if token as usize >= allowed.len() || !allowed.get(token as usize) {
            return Err(ConstraintError(format!("token {token} may not come next")));
        }
        if let MatcherState::Ready { matcher, mask } = self.state.take() {
            self.state = match matcher.is_stopped() {
                // Only the end of the text was allowed.
                true => MatcherState::Ready { matcher, mask },
                false => self.begin(matcher, Some(token)),
            };
        }
        Ok(())
    }

    fn wait_briefly(&mut self) {
        if let MatcherState::Pending(pending) = &self.state
            && !self.is_slow
            && let Some(computed) = pending.wait_for(BRIEFLY)
        {
            self.computed(*computed);
        }
    }

    fn foresee(&mut self, guess: &mut Vec<u32>) {
        self.begin_fresh();
        self.wait_briefly();
        // Where it is not known yet what may come, the guess is as good as any.
        let MatcherState::Ready { matcher, mask } = &self.state else { return };
        if matcher.is_stopped() || self.is_slow {
            guess.clear();
            return;
        }
        // A copy looks ahead: what may come of the text does not depend on it.
        let mut ahead = matcher.clone();
        let may_come = |ahead: &mut Matcher, guess: &[u32]| {
            let known = guess.iter().position(|token| *token as usize >= mask.len()).unwrap_or(guess.len());
            ahead.validate_tokens(&guess[..known]).unwrap_or(0)
        };
        guess.truncate(may_come(&mut ahead, guess));
        if guess.is_empty() {
            *guess = forced(&mut ahead);
            guess.truncate(may_come(&mut ahead, guess));
        }
    }

    fn poll_ready(&mut self, waker: &Waker) -> bool {
        self.begin_fresh();
        if let MatcherState::Pending(pending) = &self.state {
            match pending.poll(waker) {
                Some(computed) => self.computed(*computed),
                None => return false,
            }
        }
        true
    }
}
