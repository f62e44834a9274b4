//! How a model's makers want it sampled.
//!
//! A folder of Hugging Face's says so in `generation_config.json`, a GGUF file in its keys `general.sampling.*`. What neither says
//! is left to whoever asks.

use crate::sampler::SamplingParams;
use kvant_model::{Checkpoint, ConfigSource, LoadError};
use serde_json::Value;

/// Settings that came with a model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// See [`SamplingParams::temperature`], and so on.
    pub temperature: Option<f32>,
    /// The likeliest tokens that are kept.
    pub top_k: Option<usize>,
    /// The probability that is kept.
    pub top_p: Option<f32>,
    /// The least share of the likeliest token's probability.
    pub min_p: Option<f32>,
    /// The penalty of tokens that were used.
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Those of a checkpoint. A file that cannot be understood says nothing.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Ok(match checkpoint.config() {
            ConfigSource::Gguf(metadata) => {
                let number = |name: &str| {
                    let key = format!("general.sampling.{name}");
                    metadata.get::<f64>(&key).ok().flatten()
                };
                Self::from_numbers(number("temp"), number("top_k"), number("top_p"), number("min_p"))
                    .with_penalty(number("penalty_repeat"))
            }
            ConfigSource::Config(_) => {
                let text = checkpoint.companion_text("generation_config.json")?;
                let config: Value =
                    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
                let number = |name: &str| config[name].as_f64();
                Self::from_numbers(number("temperature"), number("top_k"), number("top_p"), number("min_p"))
                    .with_penalty(number("repetition_penalty"))
            }
        })
    }

    fn from_numbers(
        temperature: Option<f64>,
        top_k: Option<f64>,
        top_p: Option<f64>,
        min_p: Option<f64>,
    ) -> Self {
        let single = |number: Option<f64>| number.map(|number| number as f32);
        Self {
            temperature: single(temperature),
            // Saturates; a negative one keeps all tokens, as 0 does.
            top_k: top_k.map(|count| count as usize),
            top_p: single(top_p),
            min_p: single(min_p),
            repetition_penalty: None,
        }
    }

    fn with_penalty(self, penalty: Option<f64>) -> Self {
        Self { repetition_penalty: penalty.map(|number| number as f32), ..self }
    }

    /// `otherwise` with these in place of its own. What is out of range is left out.
    pub fn over(&self, otherwise: SamplingParams) -> SamplingParams {
        let mut params = otherwise;
        let mut set = |change: &dyn Fn(&mut SamplingParams)| {
            let mut changed = params.clone();
            change(&mut changed);
            if changed.check().is_ok() {
                params = changed;
            }
        };
        if let Some(value) = self.temperature {
            set(&|params| params.temperature = value);
        }
        if let Some(value) = self.top_k {
            set(&|params| params.top_k = value);
        }
        if let Some(value) = self.top_p {
            set(&|params| params.top_p = value);
        }
        if let Some(value) = self.min_p {
            set(&|params| params.min_p = value);
        }
        if let Some(value) = self.repetition_penalty {
            set(&|params| params.repetition_penalty = value);
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makers_say_goes_over_what_is_usual_and_nonsense_does_not() {
        let usual = SamplingParams { min_p: 0.05, ..SamplingParams::default() };
        let said =
            SamplingDefaults::from_numbers(Some(0.6), Some(20.0), Some(0.95), None).with_penalty(Some(-1.0));
        let params = said.over(usual.clone());
        assert_eq!((params.temperature, params.top_k, params.top_p, params.min_p), (0.6, 20, 0.95, 0.05));
        assert_eq!(params.repetition_penalty, 1.0, "a penalty below 0 means nothing");
        assert_eq!(SamplingDefaults::default().over(usual.clone()), usual);
    }

    #[test]
    fn a_folder_says_it_in_its_generation_config() {
        let folder = tempfile::tempdir().unwrap();
        let fixture =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/qwen2");
        for file in std::fs::read_dir(fixture).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let read = || SamplingDefaults::of(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        std::fs::write(folder.path().join("generation_config.json"), r#"{"temperature": 0.6, "top_k": 20}"#)
            .unwrap();
        let said = read();
        assert_eq!((said.temperature, said.top_k, said.top_p), (Some(0.6), Some(20), None));
        std::fs::write(folder.path().join("generation_config.json"), "nonsense").unwrap();
        assert_eq!(read(), SamplingDefaults::default());
    }
}
