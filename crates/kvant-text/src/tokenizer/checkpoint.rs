//! The tokenizer that comes with a checkpoint: in a GGUF file's metadata, or in files beside the weights.

use super::{GgufVocab, HfFiles, Tokenizer, TokenizerError};
use kvant_model::checkpoint::{Checkpoint, ConfigSource};
use kvant_model::error::{LoadError, LoadErrorKind, Result};

impl Tokenizer {
    /// The tokenizer of a checkpoint.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let refused = |e: TokenizerError| {
            LoadError::new(LoadErrorKind::Malformed, format!("the tokenizer cannot be used: {e}"))
                .in_file(checkpoint.path())
        };
        if let ConfigSource::Gguf(metadata) = checkpoint.config() {
            let vocab = GgufVocab::read(metadata).map_err(|e| e.in_file(checkpoint.path()))?;
            return Self::from_gguf(&vocab).map_err(refused);
        }
        let tokenizer = checkpoint.companion_text("tokenizer.json")?.ok_or_else(|| {
            LoadError::missing("there is no tokenizer.json beside the weights; fetch it from where they came")
                .in_file(checkpoint.path())
        })?;
        let tokenizer_config = checkpoint.companion_text("tokenizer_config.json")?;
        let generation_config = checkpoint.companion_text("generation_config.json")?;
        let config = checkpoint.companion_text("config.json")?;
        Self::from_hf(HfFiles {
            tokenizer: &tokenizer,
            tokenizer_config: tokenizer_config.as_deref(),
            generation_config: generation_config.as_deref(),
            config: config.as_deref(),
        })
        .map_err(refused)
    }
}
