//! The vocabulary of a GGUF file, from its metadata.

use super::{GgufVocab, TokenKind};
use kvant_model::error::Result;
use kvant_model::gguf::{FromValue, Metadata};

impl GgufVocab {
    /// Reads what a file says under `tokenizer.ggml.*`.
    ///
    /// # Errors
    /// If the model name or the tokens are missing, or a key is of another type.
    pub fn read(metadata: &Metadata) -> Result<Self> {
        let keys = Keys { metadata };
        let model = metadata.need::<&str>("tokenizer.ggml.model")?;
        let is_phi3 = metadata.get::<&str>("general.architecture")? == Some("phi3");
        Ok(Self {
            model: model.to_owned(),
            pre: keys.get::<&str>("pre")?.map(str::to_owned),
            tokens: owned(metadata.need("tokenizer.ggml.tokens")?),
            scores: keys.get("scores")?.unwrap_or_default(),
            kinds: keys
                .get::<Vec<i32>>("token_type")?
                .unwrap_or_default()
                .into_iter()
                .map(TokenKind::from_gguf)
                .collect(),
            merges: owned(keys.get("merges")?.unwrap_or_default()),
            bos: keys.get("bos_token_id")?,
            eos: keys.get("eos_token_id")?,
            eot: keys.get("eot_token_id")?,
            eom: keys.get("eom_token_id")?,
            unknown: keys.get("unknown_token_id")?,
            padding: keys.get("padding_token_id")?,
            separator: keys.get("seperator_token_id")?,
            add_bos: keys.get("add_bos_token")?,
            add_eos: keys.get("add_eos_token")?,
            add_space_prefix: keys.get("add_space_prefix")?,
            strips_after_structure: is_phi3 && model == "llama",
        })
    }
}

struct Keys<'a> {
    metadata: &'a Metadata,
}

impl<'a> Keys<'a> {
    fn get<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.metadata.get(&format!("tokenizer.ggml.{key}"))
    }
}

fn owned(strings: Vec<&str>) -> Vec<String> {
    strings.into_iter().map(str::to_owned).collect()
}
