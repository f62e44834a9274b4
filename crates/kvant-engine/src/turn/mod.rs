//! The next turn of a conversation, put together in one place: the prompt, what the reply is kept to, how it is split, and which
//! control tokens have to be seen for that. `kvant run` and `chat`, C and Python ask [`Engine::turn`]; the server's protocols ask
//! [`Prompts::turn`], which refuses what cannot fit before it is encoded.
//!
//! ```no_run
//! use kvant_engine::{Engine, Event, LoadOptions, SamplingParams, TurnOptions};
//! use kvant_model::Checkpoint;
//! use kvant_text::chat::Message;
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! let engine = Arc::new(Engine::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?);
//! let mut session = engine.session("int4".parse::<kvant_engine::Policy>()?, 2048)?;
//! let mut turn = engine.turn(&[Message::new("user", "Why is the sky blue?")], TurnOptions::default())?;
//! let request = turn.request(SamplingParams::usual(), Vec::new(), None);
//! session.generate(&request, &mut |event| {
//!     if let Event::Text(text) = event {
//!         println!("{:?}", turn.parser.push(text));
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod generic_tools;

use crate::engine::{Engine, PromptError};
use crate::grammar::Grammar;
use crate::prompts::Prompts;
use crate::reply::ReplyParser;
use crate::sampler::SamplingParams;
use crate::session::Request;
use crate::tools::ToolStyle;
use kvant_text::chat::{Message, RenderOptions};
use serde_json::{Map, Value};

/// What the next turn is to be.
#[derive(Debug, Clone, Default)]
pub struct TurnOptions {
    /// Functions that may be called, in OpenAI's form.
    pub tools: Vec<Value>,
    /// Whether one of them has to be.
    pub tool_choice: ToolChoice,
    /// What the answer has to be; where tools are offered too, it is a call or keeps to this.
    pub format: Option<Grammar>,
    /// Variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The answer comes without reasoning. One that is kept to something does anyway.
    pub at_once: bool,
    /// The model goes on with the last message, which is the assistant's, instead of beginning a turn.
    pub continue_final_message: bool,
}

impl TurnOptions {
    /// Whether the last of these messages is an answer that was begun: text of the assistant without calls.
    pub fn ends_with_answer(messages: &[Message]) -> bool {
        messages.last().is_some_and(|last| {
            let has_text = last.content.as_ref().is_some_and(|text| !text.is_empty());
            last.role == "assistant" && has_text && !last.fields.contains_key("tool_calls")
        })
    }
}

/// Whether a tool is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// Any of them.
    Required,
    /// This function.
    Function(String),
}

/// A turn that can be generated.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The conversation as the model reads it.
    pub prompt: Vec<u32>,
    /// Splits the reply into reasoning, answer and calls.
    pub parser: ReplyParser,
    /// What the reply is kept to: for the compiler of [`grammar`](crate::grammar).
    pub grammar: Option<Grammar>,
    /// Control tokens that the parser has to see.
    markers: Vec<u32>,
    /// The reply goes on with a message: spaces at its beginning belong to it.
    continues: bool,
}

impl Turn {
    /// What a session or the scheduler is asked for.
    pub fn request(&self, sampling: SamplingParams, stop: Vec<String>, max_tokens: Option<usize>) -> Request {
        let (prompt, markers) = (self.prompt.clone(), self.markers.clone());
        Request { prompt, sampling, stop, max_tokens, trim_start: !self.continues, markers, adapters: None }
    }
}

/// Why a turn cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The prompt cannot be made.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The function that has to be called is not there.
    #[error("tool_choice asks for a tool that is not among the tools")]
    NoSuchTool,
    /// Calls of this model cannot be forced.
    #[error(
        "tool_choice cannot require a call of this model: the way it writes calls is understood, but cannot be forced; leave it at auto"
    )]
    CannotRequire,
    /// Calls of this model and texts of the format cannot be told apart.
    #[error(
        "response_format cannot be combined with tools of this model: the way it writes calls is understood, but cannot be told from a format; leave out one of them"
    )]
    CannotCombine,
    /// A format or a call is a whole reply.
    #[error(
        "a format or a required call cannot continue the last message, which is the assistant's: leave that message out, or set continue_final_message to false for a new answer after it"
    )]
    CannotContinue,
}

impl Engine {
    /// The turn that answers a conversation.
    ///
    /// # Errors
    /// If the model has no chat template or the template refuses the conversation, and if a call that is required, or a format beside
    /// tools, cannot be made sure of.
    pub fn turn(&self, messages: &[Message], options: TurnOptions) -> Result<Turn, TurnError> {
        self.unbounded_prompts().turn(messages, options)
    }
}

impl Prompts<'_> {
    /// As [`Engine::turn`], for a context.
    ///
    /// # Errors
    /// As [`Engine::turn`], and if the conversation cannot fit.
    pub fn turn(&self, messages: &[Message], options: TurnOptions) -> Result<Turn, TurnError> {
        let engine = self.engine;
        let TurnOptions {
            tools,
            tool_choice,
            format: asked,
            variables,
            at_once,
            continue_final_message: continues,
        } = options;
        let own = engine.chat_format();
        let mut format = *own;
        if !tools.is_empty() {
            // Tools that its template does not know are called in the way that everybody knows.
            format.tools.get_or_insert(ToolStyle::Hermes);
        }
        let grammar = grammar(format.tools, &tools, &tool_choice, asked)?;
        let is_generic = format.tools != own.tools;
        let written = is_generic.then(|| generic_tools::written_out(messages, &tools));
        if continues && grammar.is_some() {
            return Err(TurnError::CannotContinue);
        }
        let mut render = RenderOptions { continue_final_message: continues, ..RenderOptions::default() };
        if grammar.is_some() {
            // Reasoning is no part of a format. Where the template has no switch, the answer is opened below.
            let _ = format.set_thinking(false, &mut render.variables);
        }
        render.variables.extend(variables);
        if !is_generic {
            render.tools.clone_from(&tools);
        }
        let messages = written.as_deref().unwrap_or(messages);
        let prompt = match (at_once && !continues) || grammar.is_some() {
            true => self.answer(messages, render)?,
            false => self.chat(messages, render)?,
        };
        let parser = ReplyParser::new(&format, &tools).after(&engine.prompt_end(&prompt));
        Ok(Turn { prompt, parser, grammar, markers: engine.reply_markers().to_vec(), continues })
    }
}

/// What a reply is kept to: a call that is required, a format, or either.
fn grammar(
    style: Option<ToolStyle>,
    tools: &[Value],
    choice: &ToolChoice,
    format: Option<Grammar>,
) -> Result<Option<Grammar>, TurnError> {
    let is_wanted = |function: &&Value| match choice {
        ToolChoice::Function(name) => function["name"] == name.as_str(),
        ToolChoice::Auto | ToolChoice::Required => true,
    };
    let functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
    let functions: Vec<&Value> = functions.filter(is_wanted).collect();
    let call = |functions: &[&Value]| style.and_then(|style| style.grammar(functions));
    match (choice, format) {
        (ToolChoice::Auto, format) if functions.is_empty() => Ok(format),
        (ToolChoice::Auto, None) => Ok(None),
        (ToolChoice::Auto, Some(format)) => {
            let either = call(&functions).and_then(|call| call.or(&format));
            either.map(Some).ok_or(TurnError::CannotCombine)
        }
        (ToolChoice::Required | ToolChoice::Function(_), _) if functions.is_empty() => {
            Err(TurnError::NoSuchTool)
        }
        (ToolChoice::Required | ToolChoice::Function(_), _) => {
            call(&functions).map(Some).ok_or(TurnError::CannotRequire)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn a_reply_is_kept_to_a_call_a_format_or_either() {
        let tools = [tool("a"), tool("b")];
        let made = |choice: &ToolChoice, format: Option<Grammar>| {
            grammar(Some(ToolStyle::Hermes), &tools, choice, format)
        };
        let text = |choice: &ToolChoice, format| format!("{:?}", made(choice, format).unwrap().unwrap());
        assert_eq!(made(&ToolChoice::Auto, None).unwrap(), None);
        let any = text(&ToolChoice::Required, None);
        assert!(any.contains("\\\"a\\\"") && any.contains("\\\"b\\\""), "{any}");
        let only = text(&ToolChoice::Function("b".into()), Some(Grammar::json_object()));
        assert!(!only.contains("\\\"a\\\"") && only.contains("\\\"b\\\""), "{only}");
        let either = text(&ToolChoice::Auto, Some(Grammar::json_object()));
        assert!(either.contains("first") && either.contains("\\\"a\\\""), "{either}");
        let plain = grammar(None, &[], &ToolChoice::Auto, Some(Grammar::json_object())).unwrap();
        assert_eq!(plain, Some(Grammar::json_object()));
    }

    #[test]
    fn what_cannot_be_made_sure_of_is_refused() {
        let tools = [tool("a")];
        let required = |style, choice| grammar(style, &tools, &choice, None).unwrap_err();
        let unforced = required(Some(ToolStyle::Mistral), ToolChoice::Required);
        assert!(matches!(unforced, TurnError::CannotRequire), "{unforced}");
        let missing = required(Some(ToolStyle::Hermes), ToolChoice::Function("c".into()));
        assert!(matches!(missing, TurnError::NoSuchTool), "{missing}");
        let none = grammar(Some(ToolStyle::Hermes), &[], &ToolChoice::Required, None).unwrap_err();
        assert!(matches!(none, TurnError::NoSuchTool), "{none}");
        let both = grammar(Some(ToolStyle::Mistral), &tools, &ToolChoice::Auto, Some(Grammar::json_object()));
        assert!(matches!(both.unwrap_err(), TurnError::CannotCombine));
    }
}
