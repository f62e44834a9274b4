//! Answers as a whole.

use super::{Ending, NamedCall, TurnUsage, Turns};
use crate::error::ApiError;
use kvant_engine::reply::ReplyPart;

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub text: String,
    /// What is to be called.
    pub calls: Vec<NamedCall>,
    /// How it ended.
    pub ending: Option<Ending>,
    /// What it took.
    pub usage: TurnUsage,
}

impl Turn {
    /// Adds parts; calls are named by `name`, which is given their number.
    pub fn add(&mut self, parts: Vec<ReplyPart>, name: impl Fn(usize) -> String) {
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => self.reasoning.push_str(&text),
                ReplyPart::Text(text) => self.text.push_str(&text),
                ReplyPart::Call(call) => {
                    let id = name(self.calls.len());
                    self.calls.push(NamedCall { id, call });
                }
            }
        }
    }
}

impl Turns {
    /// Waits for the only answer there is. Its calls are named after `id`.
    pub async fn whole(mut self, id: &str) -> Result<Turn, ApiError> {
        let mut turn = Turn::default();
        while !self.is_over() {
            let step = self.next().await?;
            turn.add(step.parts, |number| format!("{id}_{number}"));
            if let Some((ending, usage)) = step.end {
                (turn.ending, turn.usage) = (Some(ending), usage);
            }
        }
        Ok(turn)
    }
}
