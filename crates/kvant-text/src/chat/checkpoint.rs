//! The chat template that comes with a checkpoint.

use super::{ChatTemplate, template_of_tokenizer_config};
use kvant_model::checkpoint::{Checkpoint, ConfigSource};
use kvant_model::error::{LoadError, Result};

impl ChatTemplate {
    /// The template of a checkpoint; `None` where the model has none, as a base model has not.
    ///
    /// # Errors
    /// If there is one that cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let refused = |e: super::ChatError| LoadError::malformed(e.to_string()).in_file(checkpoint.path());
        let text = match checkpoint.config() {
            ConfigSource::Gguf(metadata) => metadata
                .get::<&str>("tokenizer.chat_template")
                .map_err(|e| e.in_file(checkpoint.path()))?
                .map(str::to_owned),
            ConfigSource::Config(_) => match checkpoint.companion_text("chat_template.jinja")? {
                Some(text) => Some(text),
                None => match checkpoint.companion_text("tokenizer_config.json")? {
                    Some(config) => template_of_tokenizer_config(&config).map_err(refused)?,
                    None => None,
                },
            },
        };
        text.filter(|text| !text.trim().is_empty()).map(|text| Self::new(&text).map_err(refused)).transpose()
    }
}
