//! How models write tool calls. Each was taught its own way, which its chat template shows.

use super::{ToolCall, ToolSet, deepseek, gemma, glm, json, mistral, pythonic, xml};

/// A way to write tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolStyle {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once or several times: Hermes, Qwen, SmolLM, Granite 4, EXAONE 4.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": {…}}`: Llama 3.
    Llama3,
    /// `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5, Nemotron 3.
    QwenXml,
    /// The same between `<seed:tool_call>` tags: Seed-OSS.
    SeedOss,
    /// `<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>`: GLM-4.5 and later.
    Glm,
    /// `<|tool_call>call:f{x:1}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<|tool_call_start|>[f(x=1)]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `<function_calls>f(x=1)</function_calls>`: Olmo 3.
    Olmo3,
    /// `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`: DeepSeek up to V3.1.
    DeepSeek,
    /// `<｜DSML｜function_calls><｜DSML｜invoke name="f">…`: DeepSeek V3.2 and later.
    DeepSeekDsml,
    /// `<minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke></minimax:tool_call>`: MiniMax M2.
    MiniMax,
    /// `[TOOL_CALLS]f[ARGS]{…}`, or a list of JSON objects: Mistral.
    Mistral,
    /// `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`: Nemotron Nano 2.
    Nemotron,
    /// `<tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>`: Hunyuan.
    Hunyuan,
    /// `<|tool_call|>[{"name": …, "arguments": {…}}]`: Granite 3.
    Granite3,
    /// A message to `functions.f`: gpt-oss. [`reply`](crate::reply) reads it together with its channels.
    Harmony,
}

/// A call as it stands in a text, between its markers.
pub(crate) struct RawCall<'t> {
    pub open: &'t str,
    pub body: &'t str,
    /// False where the text ended before the closing marker came.
    pub closed: bool,
}

impl ToolStyle {
    /// What shows a style in a template, the telling ones first: some markers are found in more than one.
    const SIGNS: [(&str, Self); 16] = [
        ("<|tool_call>", Self::Gemma4),
        ("｜DSML｜", Self::DeepSeekDsml),
        (deepseek::CALL.0, Self::DeepSeek),
        ("<|tool_call_start|>", Self::Lfm2),
        ("<|tool_list_start|>", Self::Lfm2),
        ("<minimax:tool_call>", Self::MiniMax),
        ("<seed:tool_call>", Self::SeedOss),
        ("<TOOLCALL>", Self::Nemotron),
        ("[TOOL_CALLS]", Self::Mistral),
        ("<function_calls>", Self::Olmo3),
        ("<arg_key>", Self::Glm),
        ("<tool_calls>", Self::Hunyuan),
        ("<function=", Self::QwenXml),
        ("<tool_call>", Self::Hermes),
        ("<|tool_call|>", Self::Granite3),
        ("\"parameters\":", Self::Llama3),
    ];

    /// The way of the model that has this template; none if it knows no tools, or only ways that we do not. `has_token` tells
    /// whether the vocabulary has a control token: some models write calls with tokens that their template leaves out.
    pub fn detect(template: &str, has_token: impl Fn(&str) -> bool) -> Option<Self> {
        if !template.contains("tools") {
            return None;
        }
        if is_harmony(template) {
            return Some(Self::Harmony);
        }
        let shown = Self::SIGNS.into_iter().find(|(sign, _)| template.contains(sign)).map(|(_, style)| style);
        // Others have parameters too, of what they call by another name.
        let shown = shown.filter(|style| *style != Self::Llama3 || template.contains("\"name\":"));
        match shown {
            None | Some(Self::Llama3) if has_token("<|tool_call_start|>") => Some(Self::Lfm2),
            shown => shown,
        }
    }

    /// Opening and closing markers. Where nothing closes a call, the next one does, or the end.
    pub(crate) fn brackets(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Llama3 | Self::Harmony => &[],
            Self::Hermes | Self::Glm => &[("<tool_call>", "</tool_call>")],
            // Small models forget the outer tag.
            Self::QwenXml => &[("<tool_call>", "</tool_call>"), ("<function=", "</function>")],
            Self::SeedOss => &[("<seed:tool_call>", "</seed:tool_call>"), ("<function=", "</function>")],
            Self::Gemma4 => &[("<|tool_call>", "<tool_call|>")],
            Self::Lfm2 => &[("<|tool_call_start|>", "<|tool_call_end|>")],
            Self::Olmo3 => &[("<function_calls>", "</function_calls>")],
            Self::DeepSeek => &[("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), deepseek::CALL],
            Self::DeepSeekDsml => &[
                ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
                ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
            ],
            Self::MiniMax => &[("<minimax:tool_call>", "</minimax:tool_call>")],
            Self::Mistral => &[("[TOOL_CALLS]", "")],
            Self::Nemotron => &[("<TOOLCALL>", "</TOOLCALL>")],
            Self::Hunyuan => &[("<tool_calls>", "</tool_calls>")],
            Self::Granite3 => &[("<|tool_call|>", "")],
        }
    }

    /// Further markers within calls that may be control tokens.
    pub(crate) fn inner_markers(self) -> &'static [&'static str] {
        match self {
            Self::Glm => &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            Self::Gemma4 => &[gemma::QUOTE],
            Self::DeepSeek => &[deepseek::SEPARATOR],
            Self::DeepSeekDsml => &["｜DSML｜"],
            Self::Mistral => &[mistral::ID, mistral::ARGUMENTS],
            Self::Hermes
            | Self::Llama3
            | Self::QwenXml
            | Self::SeedOss
            | Self::Lfm2
            | Self::Olmo3
            | Self::MiniMax
            | Self::Nemotron
            | Self::Hunyuan
            | Self::Granite3
            | Self::Harmony => &[],
        }
    }

    /// Whether an answer that is a JSON object and nothing else may be a call: small models forget the tags.
    pub(crate) fn may_be_bare(self) -> bool {
        matches!(self, Self::Hermes | Self::Llama3)
    }

    /// What an answer in braces calls.
    pub(crate) fn bare(self, text: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
        json::calls(text, tools)
    }

    /// What an answer in braces calls before it was cut, and the bytes of these calls.
    pub(crate) fn bare_before_cut(self, text: &str, tools: &ToolSet) -> Option<(Vec<ToolCall>, usize)> {
        json::calls_before_cut(text, tools)
    }

    /// Reads a call, or several; none if it is not well formed or calls what is not there.
    pub(crate) fn read(self, call: &RawCall<'_>, tools: &ToolSet) -> Option<Vec<ToolCall>> {
        let body = call.body;
        match self {
            Self::Hermes | Self::Llama3 | Self::Nemotron | Self::Hunyuan | Self::Granite3 => {
                json::calls(body, tools)
            }
            Self::QwenXml | Self::SeedOss => match call.open {
                "<function=" => xml::functions(&format!("<function={body}</function>"), tools),
                _ => xml::functions(body, tools).or_else(|| json::calls(body, tools)),
            },
            // A call of GLM's has no end of its own: cut short it would be another call.
            Self::Glm if !call.closed => json::calls(body, tools),
            Self::Glm => glm::call(body, tools).map(|call| vec![call]).or_else(|| json::calls(body, tools)),
            Self::Gemma4 => gemma::call(body, tools).map(|call| vec![call]),
            Self::Lfm2 | Self::Olmo3 => pythonic::calls(body, tools),
            Self::DeepSeek if call.open == deepseek::CALL.0 => {
                deepseek::calls(&format!("{}{body}", call.open), tools)
            }
            Self::DeepSeek => deepseek::calls(body, tools),
            Self::DeepSeekDsml => xml::invocations(body, "｜DSML｜", tools),
            Self::MiniMax => xml::invocations(body, "", tools),
            Self::Mistral => mistral::calls(body, tools),
            Self::Harmony => None,
        }
    }

    /// What a message to `functions.NAME` calls, in harmony.
    pub(crate) fn harmony(name: &str, body: &str, tools: &ToolSet) -> Option<ToolCall> {
        match body.trim().is_empty() {
            true => json::arguments(name, "{}", tools),
            false => json::arguments(name, body, tools),
        }
    }
}

/// Whether a template writes channels and messages as gpt-oss knows them.
pub(crate) fn is_harmony(template: &str) -> bool {
    template.contains("<|channel|>") && template.contains("<|message|>")
}
