//! The flag that says whether a model reasons before it answers, and whether that is shown.

use kvant_engine::grammar::Grammar;
use kvant_engine::{Engine, Turn, TurnError, TurnOptions};
use kvant_text::chat::Message;
use serde_json::{Map, Value};
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
                None => Err(format!("invalid value `{text}`: use on, off, hide, low, medium or high")),
            },
        }
    }
}

/// How much a model reasons as llama.cpp and Ollama have it.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct ForeignThink {
    /// 0 for no reasoning (--think off); kvant has no bound on its tokens
    #[arg(long, value_name = "N", hide = true)]
    reasoning_budget: Option<i64>,

    /// The same as --think hide
    #[arg(long, hide = true)]
    hidethinking: bool,
}

impl ForeignThink {
    /// What is meant, where --think does not say; a bound that is not kept is named.
    pub fn or(self, think: Option<Think>) -> Option<Think> {
        if let Some(budget) = self.reasoning_budget.filter(|budget| *budget > 0) {
            eprintln!("note: --reasoning-budget {budget}: ignored: use --think off, low, medium or high");
        }
        think.or(match (self.hidethinking, self.reasoning_budget) {
            (true, _) => Some(Think::Hide),
            (false, Some(0)) => Some(Think::Off),
            (false, _) => None,
        })
    }
}

/// Whether reasoning is shown when nobody says: people see it, programs do not.
pub fn is_shown(think: Option<Think>) -> bool {
    match think {
        None => io::stderr().is_terminal(),
        Some(think) => think != Think::Hide,
    }
}

/// A turn, and what the template could not be told.
pub struct ThoughtTurn {
    pub turn: Turn,
    pub remark: Option<&'static str>,
}

/// The turn that answers a conversation, by a model that reasons as asked. An answer that is kept to a format comes at once.
pub fn think_turn(
    engine: &Engine,
    messages: &[Message],
    think: Option<Think>,
    format: Option<Grammar>,
    tools: Vec<Value>,
) -> Result<ThoughtTurn, TurnError> {
    let (chat, mut variables) = (engine.chat_format(), Map::new());
    let is_told = match think {
        _ if format.is_some() => true,
        Some(Think::Off) => chat.set_effort("none", &mut variables),
        Some(Think::On | Think::Hide) => chat.set_thinking(true, &mut variables) || chat.reasoning.is_some(),
        Some(Think::Effort(effort)) => chat.set_effort(effort, &mut variables),
        None => true,
    };
    let at_once = think == Some(Think::Off);
    let turn =
        engine.turn(messages, TurnOptions { tools, format, variables, at_once, ..TurnOptions::default() })?;
    let remark = match think {
        _ if is_told => None,
        Some(Think::Off) => {
            Some("this model's template cannot turn reasoning off; the model may still reason")
        }
        _ => Some("this model's template has no setting for how much to reason"),
    };
    Ok(ThoughtTurn { turn, remark })
}
