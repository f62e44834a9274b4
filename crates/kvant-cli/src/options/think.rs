//! The flag that says whether a model reasons before it answers, and whether that is shown.

use kvant_engine::Engine;
use kvant_model::chat::{Message, RenderOptions};
use std::io::{self, IsTerminal};

/// Whether and how much a model reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Think {
    /// Reason, and show it.
    On,
    /// Answer at once.
    Off,
    /// Reason, and show only the answer.
    Hide,
    /// Reason this much, where the template can be told.
    Effort(&'static str),
}

const EFFORTS: [&str; 3] = ["low", "medium", "high"];

impl std::str::FromStr for Think {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "on" | "true" | "show" => Ok(Self::On),
            "off" | "false" | "none" => Ok(Self::Off),
            "hide" => Ok(Self::Hide),
            effort => match EFFORTS.iter().find(|known| **known == effort) {
                Some(known) => Ok(Self::Effort(known)),
                None => Err(format!("`{text}` is none of on, off, hide, low, medium, high")),
            },
        }
    }
}

/// Whether reasoning is shown when nobody says: people see it, programs do not.
pub fn is_shown(think: Option<Think>) -> bool {
    match think {
        None => io::stderr().is_terminal(),
        Some(think) => think != Think::Hide,
    }
}

/// A prompt, and what the template could not be told.
pub struct ThoughtPrompt {
    pub prompt: Vec<u32>,
    pub remark: Option<&'static str>,
}

/// The prompt of a conversation for a model that reasons as asked. `is_bound` for an answer that a schema or grammar binds from its
/// first token on: it comes at once.
pub fn chat_prompt(
    engine: &Engine,
    messages: &[Message],
    think: Option<Think>,
    is_bound: bool,
) -> Result<ThoughtPrompt, kvant_engine::PromptError> {
    let (format, mut options) = (engine.chat_format(), RenderOptions::default());
    let variables = &mut options.variables;
    let is_told = match think {
        _ if is_bound => {
            // Where there is no switch, the opening of an answer does as well.
            let _ = format.set_thinking(false, variables);
            true
        }
        Some(Think::Off) => format.set_effort("none", variables),
        Some(Think::On | Think::Hide) => format.set_thinking(true, variables) || format.reasoning.is_some(),
        Some(Think::Effort(effort)) => format.set_effort(effort, variables),
        None => true,
    };
    let is_at_once = is_bound || think == Some(Think::Off);
    let prompt = match is_at_once {
        true => engine.answer_prompt_with(messages, options)?,
        false => engine.chat_prompt_with(messages, options)?,
    };
    let remark = match think {
        _ if is_told => None,
        Some(Think::Off) => {
            Some("this model's template has no switch for reasoning; it may reason all the same")
        }
        _ => Some("this model's template cannot be told how much to reason"),
    };
    Ok(ThoughtPrompt { prompt, remark })
}
