//! The tokens the penalties look at.

use std::collections::{HashMap, VecDeque};

use super::SamplingParams;

/// The last tokens, and how often each is among them.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    window: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl History {
    /// Adds `token`, forgetting the oldest beyond `limit`.
    pub(super) fn push(&mut self, token: u32, limit: Option<usize>) {
        *self.counts.entry(token).or_default() += 1;
        // Without a limit the counts are all that is needed.
        let Some(limit) = limit else { return };
        self.window.push_back(token);
        while self.window.len() > limit {
            if let Some(oldest) = self.window.pop_front()
                && let Some(count) = self.counts.get_mut(&oldest)
            {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&oldest);
                }
            }
        }
    }

    /// Lowers the logits of the tokens in the history. Each token is changed by itself, so the order in which
    /// they are visited does not matter.
    pub(super) fn penalise(&self, logits: &mut [f32], params: &SamplingParams) {
        for &token in self.counts.keys() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = self.penalised(token, *logit, params);
            }
        }
    }

    /// The logit of a token, lowered if it is in the history.
    pub(super) fn penalised(&self, token: u32, logit: f32, params: &SamplingParams) -> f32 {
        let Some(&count) = self.counts.get(&token) else { return logit };
        let scaled = match logit > 0.0 {
            true => logit / params.repetition_penalty,
            false => logit * params.repetition_penalty,
        };
        scaled - (count as f32 * params.frequency_penalty + params.presence_penalty)
    }
}
