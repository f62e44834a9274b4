//! Prompts that have to fit into a context.

use crate::chat_prompt::Rendered;
use crate::engine::{Engine, PromptError};
use kvant_text::chat::{Message, RenderOptions};
use kvant_text::tokenizer::EncodeOptions;

/// Makes prompts of at most so many tokens. What cannot fit is refused by its length, before it is encoded.
///
/// **Invariant:** what fits is never refused here, and what is only a little too long may be encoded: whoever takes the tokens counts them.
#[derive(Clone, Copy)]
pub struct Prompts<'e> {
    pub(crate) engine: &'e Engine,
    /// None for no bound.
    most: Option<usize>,
}

impl Engine {
    /// Makes prompts for a context of so many tokens.
    pub fn prompts(&self, context: usize) -> Prompts<'_> {
        Prompts { engine: self, most: Some(context) }
    }

    /// Makes prompts of any length.
    pub(crate) fn unbounded_prompts(&self) -> Prompts<'_> {
        Prompts { engine: self, most: None }
    }
}

impl Prompts<'_> {
    /// As [`Engine::text_prompt`].
    ///
    /// # Errors
    /// If the text cannot fit, or the vocabulary cannot express it.
    pub fn text(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        self.encode(text, EncodeOptions { add_special: true, parse_special: false })
    }

    /// The ids of a text that is a part of a prompt.
    ///
    /// # Errors
    /// As [`Prompts::text`].
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, PromptError> {
        self.check(text)?;
        Ok(self.engine.tokenizer().encode(text, options)?)
    }

    /// As [`Engine::chat_prompt_with`].
    ///
    /// # Errors
    /// If the conversation cannot fit, the model has no chat template, or the template refuses it.
    pub fn chat(&self, messages: &[Message], options: RenderOptions) -> Result<Vec<u32>, PromptError> {
        self.encode_rendered(&self.engine.rendered(messages, options)?)
    }

    /// As [`Engine::answer_prompt_with`].
    ///
    /// # Errors
    /// As [`Prompts::chat`].
    pub fn answer(&self, messages: &[Message], options: RenderOptions) -> Result<Vec<u32>, PromptError> {
        self.encode_rendered(&self.engine.rendered_for_answer(messages, options)?)
    }

    fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>, PromptError> {
        self.check(&rendered.plain_text())?;
        rendered.encode(self.engine.tokenizer())
    }

    fn check(&self, text: &str) -> Result<(), PromptError> {
        let Some(context) = self.most else { return Ok(()) };
        let least = self.engine.least_tokens().of(text);
        match least > context {
            true => Err(PromptError::TooLong { least, context }),
            false => Ok(()),
        }
    }
}
