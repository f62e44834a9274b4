//! Chat templates: a conversation to the text a model was trained to continue.
//!
//! A template is a Jinja program carried by the model file. It is run by `minijinja` in the environment that
//! Hugging Face's `apply_chat_template` gives it: blocks trimmed, loop controls, Python's string and dictionary
//! methods and numbers, `raise_exception`, `strftime_now`, and a `tojson` that writes as Python's `json.dumps` does.
//!
//! ```
//! use kvant_text::chat::{ChatTemplate, Message, RenderOptions};
//!
//! let template = ChatTemplate::new(
//!     "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}
//!      {%- if add_generation_prompt %}<assistant>{% endif %}",
//! )?;
//! let text = template.render(&[Message::new("user", " Hi ")], &RenderOptions::default())?;
//! assert_eq!(text, "<user>Hi\n<assistant>");
//! # Ok::<(), kvant_text::chat::ChatError>(())
//! ```
//!
//! A template is not trusted: [limits](ChatTemplate::new) hold for its length, its expressions and all that it makes.
//!
//! The text is encoded with [`Tokenizer::encode_chat`](crate::tokenizer::Tokenizer::encode_chat).

mod checkpoint;
mod continuation;
mod date;
mod filters;
mod json;
mod limits;
mod message;
mod program;
mod python;
mod source;

pub use message::Message;
pub use source::template_of_tokenizer_config;

use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use program::{Program, on_large_stack};

/// Instructions a template may spend: a long conversation takes a few thousand, an endless loop all of them.
const FUEL: u64 = 20_000_000;

/// Letters of a template's own message that are shown.
const MESSAGE_LETTERS: usize = 1000;

/// Why a conversation could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template does not parse.
    #[error("the chat template of this model is not valid: {0}")]
    Syntax(String),
    /// The template refused the conversation (`raise_exception`), in its own words.
    #[error("the chat template of this model refuses this conversation: {0}")]
    Refused(String),
    /// The template failed while running.
    #[error("the chat template of this model failed: {0}")]
    Failed(String),
    /// The last message cannot be continued.
    #[error("the last message cannot be continued: {0}")]
    CannotContinue(&'static str),
    /// A `tokenizer_config.json` that holds the template cannot be read.
    #[error("tokenizer_config.json: {0}")]
    BadConfig(String),
}

/// What a template is given besides the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// End with the beginning of an assistant's turn, so that the model answers.
    pub add_generation_prompt: bool,
    /// End inside the last message, which is the assistant's, so that the model goes on with it. Nothing begins another turn then.
    pub continue_final_message: bool,
    /// Function descriptions in OpenAI's form (`{"type": "function", "function": {…}}`); empty for none.
    pub tools: Vec<serde_json::Value>,
    /// The text of the beginning-of-text token.
    pub bos_token: String,
    /// The text of the end-of-text token.
    pub eos_token: String,
    /// The date for templates that mention it; UTC.
    pub now: SystemTime,
    /// Further variables some templates know, such as `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

impl Default for RenderOptions {
    /// An answer is wanted; no tools, no special tokens.
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            continue_final_message: false,
            tools: Vec::new(),
            bos_token: String::new(),
            eos_token: String::new(),
            now: SystemTime::now(),
            variables: serde_json::Map::new(),
        }
    }
}

/// A template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// The source as it is compiled, for each rendering anew: instructions borrow from it.
    normalized: String,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// A template has at most 1 MiB and 4000 tokens in an expression. What it makes later is bounded too: a value has at most 16 MiB of
    /// text, a million items and 192 lists or maps within each other; the output has at most 64 MiB, and the number of instructions is
    /// bounded. Beyond that [`render`](Self::render) fails.
    ///
    /// # Errors
    /// If it is not valid Jinja, or too long.
    pub fn new(template: &str) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        program::add_to(&mut environment);
        filters::add_to(&mut environment);
        python::add_to(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", json::tojson);
        let normalized = source::normalized(template);
        on_large_stack(|| {
            Program::compile(&normalized).map(drop).map_err(|e| ChatError::Syntax(describe(&e)))
        })
        .unwrap_or_else(|| Err(ChatError::Syntax(NO_ANSWER.into())))?;
        Ok(Self { environment, source: template.to_owned(), normalized })
    }

    /// The template itself, which shows what the model was taught.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Writes the conversation.
    ///
    /// # Errors
    /// If the template refuses it, or fails on it, and if the last message is to be continued and cannot be.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, ChatError> {
        if !options.continue_final_message {
            return self.render_whole(messages, options, options.add_generation_prompt);
        }
        let (marked, end) = continuation::marked(messages)?;
        continuation::cut(self.render_whole(&marked, options, false)?, &end)
    }

    fn render_whole(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let now = options.now;
        let strftime = move |format: &str| date::strftime(now, format);
        let tools = (!options.tools.is_empty()).then(|| Value::from(Serde(&options.tools)));
        // What is no name cannot be meant for a template, and must not replace the functions that measure.
        let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let variables = options.variables.iter().filter(|(name, _)| is_name(name));
        let mut context: BTreeMap<String, Value> =
            variables.map(|(name, value)| (name.clone(), Value::from(Serde(value)))).collect();
        context.extend(
            [
                ("messages", Value::from(Serde(messages))),
                ("tools", tools.unwrap_or_else(|| Value::from(()))),
                ("add_generation_prompt", add_generation_prompt.into()),
                ("bos_token", options.bos_token.as_str().into()),
                ("eos_token", options.eos_token.as_str().into()),
                ("strftime_now", Value::from_function(strftime)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let context = Value::from(context);
        let render = || {
            let text = Program::compile(&self.normalized).and_then(|it| it.run(&self.environment, context));
            text.map_err(|e| match raised(&e) {
                Some(message) => ChatError::Refused(shortened(message)),
                None => ChatError::Failed(describe(&e)),
            })
        };
        on_large_stack(render).unwrap_or_else(|| Err(ChatError::Failed(NO_ANSWER.into())))
    }
}

/// What is said where the thread ended without a result.
const NO_ANSWER: &str = "the template engine stopped; the template asks for something it cannot do";

fn shortened(message: String) -> String {
    match message.char_indices().nth(MESSAGE_LETTERS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

/// Marks an error as the template's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn raised(error: &Error) -> Option<String> {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return Some(message.clone());
        }
        cause = inner.source();
    }
    None
}

/// The error in one line, with the line of the template.
fn describe(error: &Error) -> String {
    let what = shortened(error.detail().map_or_else(|| error.kind().to_string(), str::to_owned));
    error.line().map_or_else(|| what.clone(), |line| format!("{what} (line {line})"))
}
