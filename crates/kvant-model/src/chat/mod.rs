//! Chat templates: a conversation to the text a model was trained to continue.
//!
//! A template is a Jinja program carried by the model file. It is run by `minijinja` in the environment that
//! Hugging Face's `apply_chat_template` gives it: blocks trimmed, loop controls, Python's string and dictionary
//! methods and numbers, `raise_exception`, `strftime_now`, and a `tojson` that writes as Python's `json.dumps` does.
//!
//! ```
//! use kvant_model::chat::{ChatTemplate, Message, RenderOptions};
//!
//! let template = ChatTemplate::new(
//!     "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}
//!      {%- if add_generation_prompt %}<assistant>{% endif %}",
//! )?;
//! let text = template.render(&[Message::new("user", " Hi ")], &RenderOptions::default())?;
//! assert_eq!(text, "<user>Hi\n<assistant>");
//! # Ok::<(), kvant_model::chat::ChatError>(())
//! ```
//!
//! The text is encoded with [`Tokenizer::encode_chat`](crate::tokenizer::Tokenizer::encode_chat).

mod checkpoint;
mod date;
mod json;
mod message;
mod python;
mod source;

pub use message::Message;
pub use source::template_of_tokenizer_config;

use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

/// Instructions a template may spend: a long conversation takes a few thousand, an endless loop all of them.
const FUEL: u64 = 20_000_000;

const NAME: &str = "chat_template";

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
    /// A `tokenizer_config.json` that holds the template cannot be read.
    #[error("tokenizer_config.json: {0}")]
    BadConfig(String),
}

/// What a template is given besides the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// End with the beginning of an assistant's turn, so that the model answers.
    pub add_generation_prompt: bool,
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
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// If it is not valid Jinja.
    pub fn new(template: &str) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| ChatError::Syntax(e.to_string()))?);
        environment.set_fuel(Some(FUEL));
        python::add_to(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", json::tojson);
        environment
            .add_template_owned(NAME, source::normalized(template))
            .map_err(|e| ChatError::Syntax(describe(&e)))?;
        Ok(Self { environment, source: template.to_owned() })
    }

    /// The template itself, which shows what the model was taught.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Writes the conversation.
    ///
    /// # Errors
    /// If the template refuses it, or fails on it.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, ChatError> {
        let now = options.now;
        let strftime = move |format: &str| date::strftime(now, format);
        let tools = (!options.tools.is_empty()).then(|| Value::from(Serde(&options.tools)));
        let mut context: BTreeMap<String, Value> =
            options.variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))).collect();
        context.extend(
            [
                ("messages", Value::from(Serde(messages))),
                ("tools", tools.unwrap_or_else(|| Value::from(()))),
                ("add_generation_prompt", options.add_generation_prompt.into()),
                ("bos_token", options.bos_token.as_str().into()),
                ("eos_token", options.eos_token.as_str().into()),
                ("strftime_now", Value::from_function(strftime)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let template = self.environment.get_template(NAME).map_err(|e| ChatError::Failed(describe(&e)))?;
        template.render(Value::from(context)).map_err(|e| match raised(&e) {
            Some(message) => ChatError::Refused(message),
            None => ChatError::Failed(describe(&e)),
        })
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
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or_else(|| what.clone(), |line| format!("{what} (line {line})"))
}
