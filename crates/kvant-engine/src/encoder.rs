//! Encoders: models that give vectors of texts, or scores of pairs, and no text.
//!
//! They are opened as every model is, and their jobs go through the scheduler. What makes text refuses them by name.

use crate::engine::{Engine, PromptError};
use crate::open::{KvChoice, OpenError, OpenOptions};
use crate::prompts::Prompts;
use crate::scheduler::Pooling;
use crate::session::GenerateError;
use kvant_model::{Checkpoint, ConfigSource, EncoderText, ForwardError, LoadError};
use serde_json::Value;

impl Engine {
    /// The vector of a text, of length 1, by an encoder.
    ///
    /// # Errors
    /// If the model is no encoder or a cross-encoder, or the text has no tokens or too many.
    pub fn embed_text(&self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>, GenerateError> {
        if ids.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if self.model().encoder().is_some_and(|encoder| encoder.classifier.is_some()) {
            let what = "is a cross-encoder: it scores pairs of texts, and gives no vectors";
            return Err(ForwardError::NotEncoder(what).into());
        }
        let rows = self.pool().install(|| self.model().encode(&[EncoderText::alone(ids)]))?;
        Ok(pooling.of_rows(rows.data(), rows.width()))
    }

    /// Whether it scores pairs of texts.
    pub fn is_cross_encoder(&self) -> bool {
        self.model().encoder().is_some_and(|encoder| encoder.classifier.is_some())
    }
}

impl Prompts<'_> {
    /// What a cross-encoder reads about a document, and where the document begins.
    ///
    /// # Errors
    /// As [`Prompts::text`], and if the tokenizer joins no pairs.
    pub fn pair(&self, query: &str, document: &str) -> Result<(Vec<u32>, usize), PromptError> {
        Ok(self.engine.tokenizer().encode_pair(query, document)?)
    }
}

impl OpenOptions {
    /// Refuses by name what encoders have no use for.
    pub(crate) fn check_encoder(&self) -> Result<(), OpenError> {
        let asked = [
            (self.kv.as_ref().is_some_and(|kv| *kv != KvChoice::Auto), "--kv: it keeps no keys and values"),
            (self.window.is_some(), "--window: it reads whole texts"),
            (self.gpu_layers.is_some_and(|layers| layers > 0), "--gpu-layers: it runs on CPUs alone"),
            (self.state.is_some(), "--state: it has no recurrent layers"),
            (!self.lora.is_empty(), "--lora: adapters are for decoders"),
            (self.chat_template.is_some(), "--chat-template: it does not converse"),
        ];
        match asked.into_iter().find(|(is_asked, _)| *is_asked) {
            Some((_, what)) => {
                Err(LoadError::unsupported(format!("this model is an encoder; leave out {what}")).into())
            }
            None => Ok(()),
        }
    }
}

/// How the vectors of tokens become that of a text, by the files of sentence-transformers or the metadata of a GGUF file; the mean where
/// neither says. What they ask for that is not known is an error in words, for whoever wants vectors.
pub(crate) fn pooling_of(checkpoint: &Checkpoint) -> Result<Result<Pooling, String>, LoadError> {
    const FILE: &str = "1_Pooling/config.json";
    if let ConfigSource::Gguf(metadata) = checkpoint.config() {
        let architecture = metadata.architecture().unwrap_or_default();
        return Ok(Ok(match metadata.get::<u32>(&format!("{architecture}.pooling_type")).ok().flatten() {
            Some(2) => Pooling::First,
            Some(3) => Pooling::Last,
            // Unspecified, none, mean; a rank is no vector's.
            _ => Pooling::Mean,
        }));
    }
    let json = |name: &str| -> Result<Option<Value>, LoadError> {
        let Some(text) = checkpoint.companion_text(name)? else { return Ok(None) };
        let bad =
            |e: serde_json::Error| LoadError::malformed(format!("{name}: {e}")).in_file(checkpoint.path());
        serde_json::from_str(&text).map(Some).map_err(bad)
    };
    if let Some(modules) = json("modules.json")? {
        let kinds = modules.as_array().into_iter().flatten().filter_map(|module| module["type"].as_str());
        let known = ["Transformer", "Pooling", "Normalize"];
        let is_other = |kind: &&str| !known.contains(&kind.rsplit('.').next().unwrap_or(kind));
        if let Some(kind) = kinds.clone().find(is_other) {
            return Ok(Err(format!(
                "modules.json has a module {kind:?} that kvant does not run: vectors without it would be others"
            )));
        }
    }
    let Some(config) = json(FILE)? else { return Ok(Ok(Pooling::Mean)) };
    let modes = config.as_object().into_iter().flatten();
    let asked: Vec<&str> = modes
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true)
        .map(|(key, _)| key.as_str())
        .collect();
    // Newer files name it.
    let named = config["pooling_mode"].as_str();
    Ok(match (named, asked.as_slice()) {
        (Some("mean"), _)
        | (None, [] | ["pooling_mode_mean_tokens" | "pooling_mode_mean_sqrt_len_tokens"]) => {
            Ok(Pooling::Mean)
        }
        (Some("cls"), _) | (None, ["pooling_mode_cls_token"]) => Ok(Pooling::First),
        (Some("lasttoken"), _) | (None, ["pooling_mode_lasttoken"]) => Ok(Pooling::Last),
        (named, asked) => Err(format!(
            "{FILE} asks for {}, which kvant does not have; name a pooling: mean, cls or last",
            named.map_or_else(|| asked.join(" and "), str::to_owned)
        )),
    })
}
