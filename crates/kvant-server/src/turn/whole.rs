//! Answers as a whole.

use super::{Ending, NamedCall, Step, TurnUsage, Turns};
use crate::error::ApiError;
use kvant_engine::reply::ReplyPart;
use kvant_engine::scheduler::Logprobs;

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub text: String,
    /// What is to be called.
    pub calls: Vec<NamedCall>,
    /// Probabilities of its tokens, where they were asked for.
    pub scored: Vec<Scored>,
    /// Tokens of `scored` whose part is known.
    settled: usize,
    /// How it ended.
    pub ending: Option<Ending>,
    /// What it took.
    pub usage: TurnUsage,
}

/// A token with its probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: u32,
    /// Its probability, and those of the likeliest.
    pub found: Logprobs,
    /// It is part of the text, and not of reasoning or a call.
    pub is_text: bool,
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

    /// Adds the probabilities of a step, and returns those of text that it settles. A token that says nothing yet belongs to what is
    /// said next.
    pub fn score(&mut self, step: &Step) -> &[Scored] {
        if let Some((token, found)) = step.logprobs.clone() {
            self.scored.push(Scored { token, found, is_text: false });
        }
        if step.parts.is_empty() {
            return &[];
        }
        let is_text = step.parts.iter().any(|part| matches!(part, ReplyPart::Text(_)));
        let settles = &mut self.scored[self.settled..];
        settles.iter_mut().for_each(|scored| scored.is_text = is_text);
        self.settled += settles.len();
        if is_text { settles } else { &[] }
    }
}

impl Turns {
    /// Waits for the only answer there is. Its calls are named after `id`.
    pub async fn whole(mut self, id: &str) -> Result<Turn, ApiError> {
        let mut turn = Turn::default();
        while !self.is_over() {
            let step = self.next().await?;
            turn.score(&step);
            turn.add(step.parts, |number| format!("{id}_{number}"));
            if let Some((ending, usage)) = step.end {
                (turn.ending, turn.usage) = (Some(ending), usage);
            }
        }
        Ok(turn)
    }
}
