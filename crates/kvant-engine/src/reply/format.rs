//! What a model's template and vocabulary show of the way it replies.

use super::harmony;
use crate::tools::{ToolStyle, is_harmony};
use kvant_text::chat::Message;
use kvant_text::tokenizer::{TokenKind, Tokenizer};
use serde_json::{Map, Value};

/// How a model marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStyle {
    /// `<think>…</think>`: Qwen, DeepSeek, GLM, MiniMax, Nemotron and most others.
    Think,
    /// The same, and the answer between `<answer>` tags: Hunyuan.
    ThinkAnswer,
    /// The same, and the answer between `<response>` tags: Granite 3.3, ERNIE.
    ThinkResponse,
    /// `<seed:think>…</seed:think>`: Seed-OSS.
    SeedOss,
    /// `[THINK]…[/THINK]`: Mistral.
    Mistral,
    /// `<|channel>thought …<channel|>`: Gemma 4.
    Gemma4,
    /// The channel `analysis`: gpt-oss.
    Harmony,
}

impl ReasoningStyle {
    /// Opening and closing markers; harmony has channels instead.
    pub(super) fn brackets(self) -> (&'static str, &'static str) {
        match self {
            Self::Think | Self::ThinkAnswer | Self::ThinkResponse => ("<think>", "</think>"),
            Self::SeedOss => ("<seed:think>", "</seed:think>"),
            Self::Mistral => ("[THINK]", "[/THINK]"),
            Self::Gemma4 => ("<|channel>thought", "<channel|>"),
            Self::Harmony => ("", ""),
        }
    }

    /// Around the answer, where a model writes them.
    pub(super) fn wrapper(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::ThinkAnswer => Some(("<answer>", "</answer>")),
            Self::ThinkResponse => Some(("<response>", "</response>")),
            Self::Think | Self::SeedOss | Self::Mistral | Self::Gemma4 | Self::Harmony => None,
        }
    }

    /// Whether reasoning may also begin after something was said. Tags that are plain text may be talked about.
    pub(super) fn is_anywhere(self) -> bool {
        matches!(self, Self::Mistral | Self::Gemma4)
    }
}

/// How a model replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChatFormat {
    /// How it marks its reasoning; none for one that does not reason, or in ways that we do not know.
    pub reasoning: Option<ReasoningStyle>,
    /// How it writes tool calls.
    pub tools: Option<ToolStyle>,
    /// What the template calls the reasoning of an earlier turn.
    field: Option<&'static str>,
    /// The variable that switches reasoning on and off.
    switch: Option<&'static str>,
    /// The template asks how much is to be reasoned.
    has_effort: bool,
}

impl ChatFormat {
    /// The format of the model that has this template; `has_token` tells whether the vocabulary has a control token.
    pub fn detect(template: &str, has_token: impl Fn(&str) -> bool) -> Self {
        const SIGNS: [(&str, ReasoningStyle); 5] = [
            ("<|channel>", ReasoningStyle::Gemma4),
            ("<seed:think>", ReasoningStyle::SeedOss),
            ("[THINK]", ReasoningStyle::Mistral),
            ("<think>", ReasoningStyle::Think),
            ("</think>", ReasoningStyle::Think),
        ];
        let tools = ToolStyle::detect(template, has_token);
        let shown = SIGNS.into_iter().find(|(sign, _)| template.contains(sign)).map(|(_, style)| style);
        let reasoning = match shown {
            _ if is_harmony(template) => Some(ReasoningStyle::Harmony),
            Some(ReasoningStyle::Think) if template.contains("<answer>") => Some(ReasoningStyle::ThinkAnswer),
            // MiniMax has the results of tools between such tags.
            Some(ReasoningStyle::Think)
                if template.contains("<response>") && tools != Some(ToolStyle::MiniMax) =>
            {
                Some(ReasoningStyle::ThinkResponse)
            }
            shown => shown,
        };
        let first = |names: &[&'static str]| names.iter().find(|name| template.contains(**name)).copied();
        let field = match first(&["reasoning_content"]) {
            None => first(&[".thinking", "'thinking'", "\"thinking\""]).map(|_| "thinking"),
            field => field,
        };
        Self {
            reasoning,
            tools,
            field,
            switch: match first(&["enable_thinking"]) {
                // The variable, and not a field of that name.
                None => first(&["if thinking ", "not thinking ", "and thinking "]).map(|_| "thinking"),
                switch => switch,
            },
            has_effort: template.contains("reasoning_effort"),
        }
    }

    /// The format of a model with this template and vocabulary.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        let is_whole = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
        Self::detect(template, |name| token(tokenizer, name, is_whole).is_some())
    }

    /// All markers that replies have.
    pub(crate) fn markers(&self) -> Vec<&'static str> {
        let tools = self.tools.into_iter().flat_map(|style| {
            let brackets = style.brackets().iter().flat_map(|&(open, close)| [open, close]);
            brackets.chain(style.inner_markers().iter().copied())
        });
        let reasoning: Vec<&str> = match self.reasoning {
            Some(ReasoningStyle::Harmony) => harmony::MARKERS.to_vec(),
            // The channel's name is text.
            Some(ReasoningStyle::Gemma4) => vec!["<|channel>", "<channel|>"],
            Some(style) => <[&str; 2]>::from(style.brackets()).to_vec(),
            None => Vec::new(),
        };
        reasoning.into_iter().chain(tools).filter(|marker| !marker.is_empty()).collect()
    }

    /// The control tokens of a vocabulary that a parser has to see.
    pub fn marker_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        // Others are text already.
        let is_control = |kind| kind == TokenKind::Control;
        self.markers().into_iter().filter_map(|name| token(tokenizer, name, is_control)).collect()
    }

    /// The conversation as the template wants it: `reasoning_content` of earlier turns under the name it has there, and for
    /// gpt-oss, whose template cannot do without, some content in every turn.
    pub fn prepare(&self, mut message: Message) -> Message {
        let reasoning = message.fields.remove("reasoning_content");
        match (reasoning, self.field) {
            (Some(Value::String(text)), Some(field)) if !text.is_empty() => {
                let calls = message.fields.contains_key("tool_calls");
                let content = message.content.as_deref().unwrap_or_default();
                // Its template takes one of them in a turn that calls.
                let both = self.reasoning == Some(ReasoningStyle::Harmony) && calls && !content.is_empty();
                let text = if both { format!("{text}\n\n{content}") } else { text };
                if both {
                    message.content = None;
                }
                message.fields.insert(field.into(), text.into());
            }
            _ => {}
        }
        if self.reasoning == Some(ReasoningStyle::Harmony) {
            message.content.get_or_insert_default();
        }
        message
    }

    /// Sets the variables of the template that switch reasoning on or off; false where it has none.
    #[must_use]
    pub fn set_thinking(&self, on: bool, variables: &mut Map<String, Value>) -> bool {
        self.switch.is_some_and(|name| {
            variables.insert(name.into(), on.into());
            true
        })
    }

    /// Sets how much is to be reasoned (`none`, `low`, `medium`, `high` …); false where the template cannot be told. One that
    /// only knows on and off is told that.
    #[must_use]
    pub fn set_effort(&self, effort: &str, variables: &mut Map<String, Value>) -> bool {
        if self.has_effort {
            variables.insert("reasoning_effort".into(), effort.into());
            return true;
        }
        self.set_thinking(effort != "none", variables) || (effort == "none" && self.reasoning.is_none())
    }

    /// What has to follow a prompt so that the answer comes at once, as a constraint needs it: the end of a reasoning that the
    /// prompt has opened, or the beginning of the last channel.
    pub fn answer_opening(&self, prompt_end: &str) -> &'static str {
        let Some(style) = self.reasoning else { return "" };
        let is_open = prompt_end.trim_end().ends_with(style.brackets().0);
        match style {
            ReasoningStyle::Harmony if prompt_end.ends_with("<|start|>assistant") => {
                "<|channel|>final<|message|>"
            }
            ReasoningStyle::Harmony => "",
            ReasoningStyle::Think if is_open && prompt_end.ends_with('\n') => "\n</think>\n\n",
            style if is_open => style.brackets().1,
            _ => "",
        }
    }
}

/// A token of some kind by its name.
fn token(tokenizer: &Tokenizer, name: &str, is_wanted: impl Fn(TokenKind) -> bool) -> Option<u32> {
    let count = u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
    let mut wanted = (0..count).filter(|&id| tokenizer.kind(id).is_some_and(&is_wanted));
    wanted.find(|&id| tokenizer.token_bytes(id).is_ok_and(|bytes| bytes == name.as_bytes()))
}
