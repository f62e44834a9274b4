//! Models that judge how well a document answers a query, as Qwen3-Reranker does: a conversation asks for "yes" or "no", and the score
//! is how much likelier "yes" is.

use crate::engine::PromptError;
use crate::prompts::Prompts;
use kvant_model::{Checkpoint, ConfigSource};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};

/// What the judge is told before a query, word by word as Qwen3-Reranker was trained.
const OPENING: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
                       Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";

/// And after a document.
const CLOSING: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The task where a request names none.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// GGUF's number for models whose pooling is a rank.
const POOLING_RANK: u32 = 4;

/// What of a model that judges documents is the same for all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Judge {
    opening: Vec<u32>,
    closing: Vec<u32>,
    yes: u32,
    no: u32,
    is_declared: bool,
}

impl Judge {
    /// None where the model does not know the words that the conversation is written in.
    pub(crate) fn of(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Option<Self> {
        let template =
            |text| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true }).ok();
        // As the rest, though neither holds a control token: reading those as text takes a second copy of the vocabulary.
        let word = |text| match template(text)?.as_slice() {
            &[id] => Some(id),
            _ => None,
        };
        let (opening, closing) = (template(OPENING)?, template(CLOSING)?);
        // The names of turns are control tokens, or this is no model of the kind.
        let is_control =
            |id: Option<&u32>| id.is_some_and(|&id| tokenizer.text_bytes(id).is_ok_and(<[u8]>::is_empty));
        if !is_control(opening.first()) || !is_control(closing.first()) {
            return None;
        }
        let (yes, no) = (word("yes")?, word("no")?);
        Some(Self { opening, closing, yes, no, is_declared: is_declared(checkpoint) })
    }

    /// Whether the model's files say that it was made for this: by the kind of its pooling, or by its name.
    pub fn is_declared(&self) -> bool {
        self.is_declared
    }

    /// The tokens whose logits after a prompt [`score`](Judge::score) takes.
    pub fn tokens(&self) -> [u32; 2] {
        [self.yes, self.no]
    }

    /// How likely "yes" is rather than "no", from 0 to 1, by their logits.
    pub fn score(&self, logits: [f32; 2]) -> f64 {
        1.0 / (1.0 + (f64::from(logits[1]) - f64::from(logits[0])).exp())
    }
}

impl Prompts<'_> {
    /// What a judge reads about a document. What looks like a control token in the three texts stays plain text.
    ///
    /// # Errors
    /// As [`Prompts::text`].
    pub fn judged(
        &self,
        judge: &Judge,
        instruction: Option<&str>,
        query: &str,
        document: &str,
    ) -> Result<Vec<u32>, PromptError> {
        let instruction = instruction.unwrap_or(INSTRUCTION);
        let asked = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
        let asked = self.encode(&asked, EncodeOptions::default())?;
        Ok([judge.opening.as_slice(), &asked, &judge.closing].concat())
    }
}

/// A checkpoint says what it is made for in its metadata; those of Hugging Face only by their names.
fn is_declared(checkpoint: &Checkpoint) -> bool {
    let says = |name: &str| name.to_lowercase().contains("rerank");
    match checkpoint.config() {
        ConfigSource::Gguf(metadata) => {
            let architecture = metadata.architecture().unwrap_or_default();
            let pooling = metadata.get::<u32>(&format!("{architecture}.pooling_type")).ok().flatten();
            let named = |key| metadata.get::<&str>(key).ok().flatten().is_some_and(says);
            pooling == Some(POOLING_RANK) || named("general.name") || named("general.basename")
        }
        ConfigSource::Config(config) => {
            let folder = checkpoint.path().file_name().map(|name| name.to_string_lossy().into_owned());
            config["_name_or_path"].as_str().is_some_and(says) || folder.as_deref().is_some_and(says)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_share_of_yes() {
        let judge = Judge { opening: vec![1], closing: vec![2], yes: 3, no: 4, is_declared: true };
        for (yes, no) in [(0.0, 0.0), (2.0, -1.0), (-40.0, 60.0), (90.0, 1.0)] {
            let (a, b) = (f64::from(yes).exp(), f64::from(no).exp());
            assert!((judge.score([yes, no]) - a / (a + b)).abs() < 1e-12, "{yes} {no}");
        }
    }
}
