//! How a model's makers want it sampled.
//!
//! A folder of Hugging Face's says so in `generation_config.json`, a GGUF file in its keys `general.sampling.*`. What neither says
//! is left to whoever asks.

use crate::sampler::{SAMPLING, SamplingOverrides};
use kvant_model::{Checkpoint, ConfigSource, LoadError};
use serde_json::Value;

/// The settings that came with a checkpoint. A file that cannot be understood says nothing.
///
/// # Errors
/// If it cannot be read.
pub fn makers_sampling(checkpoint: &Checkpoint) -> Result<SamplingOverrides, LoadError> {
    Ok(match checkpoint.config() {
        ConfigSource::Gguf(metadata) => from_numbers(|_, key| {
            let key = format!("general.sampling.{key}");
            metadata.get::<f64>(&key).ok().flatten()
        }),
        ConfigSource::Config(_) => {
            let text = checkpoint.companion_text("generation_config.json")?;
            let config: Value = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            from_numbers(|name, _| config[name].as_f64())
        }
    })
}

/// Reads numbers by their names and by their keys in a GGUF file.
fn from_numbers(number: impl Fn(&str, &str) -> Option<f64>) -> SamplingOverrides {
    let mut said = SamplingOverrides::default();
    for setting in SAMPLING {
        if let Some(number) = setting.makers.and_then(|key| number(setting.name, key)) {
            said.insert(setting, setting.of_number(number));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{SamplingParams, SettingValue};

    #[test]
    fn what_makers_say_goes_over_what_is_usual_and_nonsense_does_not() {
        let usual = SamplingParams { min_p: 0.05, ..SamplingParams::default() };
        let said = from_numbers(|name, _| match name {
            "temperature" => Some(0.6),
            "top_k" => Some(20.0),
            "top_p" => Some(0.95),
            "repetition_penalty" => Some(-1.0),
            _ => None,
        });
        let params = said.valid_over(usual.clone());
        assert_eq!((params.temperature, params.top_k, params.top_p, params.min_p), (0.6, 20, 0.95, 0.05));
        assert_eq!(params.repetition_penalty, 1.0, "a penalty below 0 means nothing");
        assert_eq!(SamplingOverrides::default().valid_over(usual.clone()), usual);
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
        let read = || makers_sampling(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        std::fs::write(folder.path().join("generation_config.json"), r#"{"temperature": 0.6, "top_k": 20}"#)
            .unwrap();
        let said = read();
        assert_eq!(said.get("temperature"), Some(SettingValue::Number(0.6)));
        assert_eq!((said.get("top_k"), said.get("top_p")), (Some(SettingValue::Count(20)), None));
        std::fs::write(folder.path().join("generation_config.json"), "nonsense").unwrap();
        assert_eq!(read(), SamplingOverrides::default());
    }
}
