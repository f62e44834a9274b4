//! ModelConfig-parameters, read alike from `config.json` (old and new spelling) and from GGUF metadata.
//!
//! An architecture asks for a parameter by a [`Key`] that gives its name in both formats, and gets a checked
//! value or an error that names the key it looked for. Nothing here believes a file: sizes are positive and
//! bounded, numbers finite, and what does not divide is refused before anything is allocated for it.

mod by_layer;
mod dims;
mod json;
mod rope;
mod rope_override;

pub use dims::Dims;
pub use json::parse_json;
pub use rope::{RopeKeys, YARN_LOG_MULTIPLIER, query_gain, yarn_score_gain};
pub use rope_override::{RopeOverride, RopeRule};

use crate::checkpoint::ConfigSource;
use crate::description::Activation;
use crate::error::{LoadError, Result};
use crate::gguf::{Metadata, Value};
use serde_json::{Map, Value as Json};

/// Where a multimodal configuration keeps the parameters of its text side.
pub const TEXT_CONFIG: &str = "text_config";

/// No extent, count or context of a real model is larger.
pub(crate) const MAX_SIZE: usize = 1 << 24;

/// The name of a parameter: in `config.json` (alternatives apart by `|`, the first one present counts) and in
/// GGUF metadata (without the architecture's prefix). An empty name is in no file.
#[derive(Debug, Clone, Copy)]
pub struct Key(pub &'static str, pub &'static str);

/// The config-parameters of a checkpoint.
#[derive(Clone, Copy)]
pub struct ModelConfig<'a> {
    source: Source<'a>,
    /// Only sizes are asked about: what does not change them may be missing.
    is_outline: bool,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Json(&'a Map<String, Json>),
    Gguf { metadata: &'a Metadata, architecture: &'a str },
}

/// A value of either format, as much of it as config-parameters need.
enum Setting {
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<Setting>),
    Table,
}

impl<'a> ModelConfig<'a> {
    /// The parameters a checkpoint describes itself by.
    pub fn new(source: ConfigSource<'a>) -> Result<Self> {
        let source = match source {
            ConfigSource::Gguf(metadata) => Source::Gguf { metadata, architecture: metadata.architecture()? },
            ConfigSource::Config(Json::Object(map)) => Source::Json(map),
            ConfigSource::Config(_) => {
                return Err(LoadError::malformed("config.json does not hold an object"));
            }
        };
        Ok(Self { source, is_outline: false })
    }

    /// The same for a description that is sized and never run: an activation that it does not name is the architecture's usual one.
    #[must_use]
    pub(crate) fn for_sizes(self, is_outline: bool) -> Self {
        Self { is_outline, ..self }
    }

    /// The name of the architecture: `general.architecture` of a GGUF file, `model_type` of a `config.json`.
    pub fn architecture(&self) -> Result<&'a str> {
        match self.source {
            Source::Gguf { architecture, .. } => Ok(architecture),
            Source::Json(map) => map.get("model_type").and_then(Json::as_str).ok_or_else(|| {
                LoadError::missing("config.json: key \"model_type\" is missing or not a text")
            }),
        }
    }

    /// True for GGUF files, whose conventions (norm offsets, channel order) differ from the original's.
    pub fn is_gguf(&self) -> bool {
        matches!(self.source, Source::Gguf { .. })
    }

    /// A size that must be there: a whole number from 1 to 2²⁴.
    pub fn size(&self, key: Key) -> Result<usize> {
        self.size_if(key)?.ok_or_else(|| self.missing(key))
    }

    /// A size that may be absent (or null).
    pub fn size_if(&self, key: Key) -> Result<Option<usize>> {
        self.get(key, "a whole number from 1 to 16777216", |setting| {
            let n = number(uniform(setting)?)?;
            (n.fract() == 0.0 && (1.0..=MAX_SIZE as f64).contains(&n)).then_some(n as usize)
        })
    }

    /// A count that may be zero or absent, which then mean the same.
    pub fn count(&self, key: Key) -> Result<Option<usize>> {
        let count = self.get(key, "a whole number from 0 to 16777216", |setting| {
            let n = number(uniform(setting)?)?;
            (n.fract() == 0.0 && (0.0..=MAX_SIZE as f64).contains(&n)).then_some(n as usize)
        })?;
        Ok(count.filter(|&n| n > 0))
    }

    /// A whole number that may be negative or absent.
    pub fn integer(&self, key: Key) -> Result<Option<i64>> {
        self.get(key, "a whole number within ±16777216", |setting| {
            let n = number(setting)?;
            (n.fract() == 0.0 && n.abs() <= MAX_SIZE as f64).then_some(n as i64)
        })
    }

    /// A positive, finite number that must be there.
    pub fn positive(&self, key: Key) -> Result<f64> {
        self.positive_if(key)?.ok_or_else(|| self.missing(key))
    }

    /// A positive, finite number that may be absent.
    pub fn positive_if(&self, key: Key) -> Result<Option<f64>> {
        self.get(key, "a finite number above zero", |setting| {
            number(setting).filter(|n| n.is_finite() && *n > 0.0)
        })
    }

    /// A truth value, or `default` when absent.
    pub fn flag(&self, key: Key, default: bool) -> Result<bool> {
        Ok(self.flag_if(key)?.unwrap_or(default))
    }

    /// A truth value that may be absent.
    pub fn flag_if(&self, key: Key) -> Result<Option<bool>> {
        self.get(key, "true or false", |setting| match setting {
            Setting::Flag(flag) => Some(flag),
            _ => None,
        })
    }

    /// A text that may be absent.
    pub fn text(&self, key: Key) -> Result<Option<String>> {
        self.get(key, "a text", |setting| match setting {
            Setting::Text(text) => Some(text),
            _ => None,
        })
    }

    /// A list of texts, of any length.
    pub fn all_texts(&self, key: Key) -> Result<Option<Vec<String>>> {
        self.get(key, "a list of texts", |setting| {
            let text = |item| if let Setting::Text(text) = item { Some(text) } else { None };
            list(setting)?.into_iter().map(text).collect()
        })
    }

    /// A list with one text per layer.
    pub fn texts(&self, key: Key, layers: usize) -> Result<Option<Vec<String>>> {
        match self.all_texts(key)? {
            Some(texts) if texts.len() != layers => {
                let found = texts.len();
                Err(self.refused(
                    key,
                    format!("a list of {layers} texts, one per layer, is needed, {found} were found"),
                ))
            }
            texts => Ok(texts),
        }
    }

    /// A list of whole numbers, of any length.
    pub fn numbers(&self, key: Key) -> Result<Option<Vec<f64>>> {
        self.get(key, "a list of finite numbers", |setting| {
            let finite = |item| number(item).filter(|n| n.is_finite());
            list(setting)?.into_iter().map(finite).collect()
        })
    }

    /// The activation function; GGUF files do not name it, so each architecture says its own.
    pub fn activation(&self, key: Key, of_gguf: Activation) -> Result<Activation> {
        let Some(name) = self.text(key)? else {
            return if self.is_gguf() || self.is_outline { Ok(of_gguf) } else { Err(self.missing(key)) };
        };
        Activation::from_name(&name).ok_or_else(|| {
            LoadError::unsupported(format!("{}: kvant does not know the activation {name:?}", self.name(key)))
        })
    }

    /// An error about a key whose value is of the right type but makes no sense here.
    pub fn refused(&self, key: Key, why: impl std::fmt::Display) -> LoadError {
        LoadError::mismatch(format!("{}: {why}", self.name(key)))
    }

    fn missing(&self, key: Key) -> LoadError {
        let mut names = key.0.split('|');
        match (self.source, names.next(), names.next_back()) {
            (Source::Json(_), Some(first), Some(last)) => {
                let others: String = names.map(|name| format!(", {name:?}")).collect();
                LoadError::missing(format!(
                    "config.json: one of {first:?}{others} or {last:?} is needed, and none is there"
                ))
            }
            _ => LoadError::missing(format!("{} is missing", self.name(key))),
        }
    }

    /// The key as the file spells it, for messages.
    fn name(&self, key: Key) -> String {
        match self.source {
            Source::Json(map) => {
                let mut names = key.0.split('|');
                let name = names.clone().find(|name| map.contains_key(*name)).or_else(|| names.next());
                format!("config.json: key {:?}", name.unwrap_or_default())
            }
            Source::Gguf { architecture, .. } => format!("key \"{architecture}.{}\"", key.1),
        }
    }

    fn get<T>(
        &self,
        key: Key,
        wanted: &str,
        convert: impl FnOnce(Setting) -> Option<T>,
    ) -> Result<Option<T>> {
        let setting = match self.source {
            Source::Json(map) => {
                key.0.split('|').find_map(|name| map.get(name).filter(|v| !v.is_null())).map(from_json)
            }
            Source::Gguf { .. } if key.1.is_empty() => None,
            Source::Gguf { metadata, architecture } => {
                metadata.value(&format!("{architecture}.{}", key.1)).map(|value| from_gguf(&value))
            }
        };
        let Some(setting) = setting else { return Ok(None) };
        let shown = setting.show();
        match convert(setting) {
            Some(value) => Ok(Some(value)),
            None => Err(self.refused(key, format!("{wanted} is needed, {shown} was found"))),
        }
    }

    /// The parameters inside the object `key`; the same ones for GGUF files, which do not nest.
    pub fn nested(&self, key: &'static str) -> Result<Self> {
        match (self.is_gguf(), self.table(key)?) {
            (true, _) => Ok(*self),
            (false, Some(table)) => Ok(table),
            (false, None) => Err(LoadError::missing(format!("config.json: key {key:?} is missing"))),
        }
    }

    /// The parameters inside the object `key`, where there is one.
    pub fn nested_if(&self, key: &str) -> Result<Option<Self>> {
        self.table(key)
    }

    /// The sub-table `key` of a `config.json`, as parameters of its own.
    fn table(&self, key: &str) -> Result<Option<ModelConfig<'a>>> {
        let Source::Json(map) = self.source else { return Ok(None) };
        match map.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Object(table)) => Ok(Some(ModelConfig { source: Source::Json(table), ..*self })),
            Some(_) => Err(LoadError::mismatch(format!("config.json: key {key:?} is not an object"))),
        }
    }
}

impl Setting {
    fn show(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Number(n) => n.to_string(),
            Self::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
            Self::List(items) => format!("a list of {}", items.len()),
            Self::Table => "an object".to_owned(),
        }
    }
}

fn from_json(value: &Json) -> Setting {
    match value {
        Json::Bool(flag) => Setting::Flag(*flag),
        Json::Number(n) => Setting::Number(n.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Setting::Text(text.clone()),
        Json::Array(items) => Setting::List(items.iter().map(from_json).collect()),
        Json::Object(_) | Json::Null => Setting::Table,
    }
}

fn from_gguf(value: &Value<'_>) -> Setting {
    match *value {
        Value::U8(n) => Setting::Number(n.into()),
        Value::I8(n) => Setting::Number(n.into()),
        Value::U16(n) => Setting::Number(n.into()),
        Value::I16(n) => Setting::Number(n.into()),
        Value::U32(n) => Setting::Number(n.into()),
        Value::I32(n) => Setting::Number(n.into()),
        Value::U64(n) => Setting::Number(n as f64),
        Value::I64(n) => Setting::Number(n as f64),
        Value::F32(n) => Setting::Number(n.into()),
        Value::F64(n) => Setting::Number(n),
        Value::Bool(flag) => Setting::Flag(flag),
        Value::String(text) => Setting::Text(text.to_owned()),
        Value::Array(items) => Setting::List(items.iter().map(|item| from_gguf(&item)).collect()),
    }
}

fn number(setting: Setting) -> Option<f64> {
    if let Setting::Number(n) = setting { Some(n) } else { None }
}

fn list(setting: Setting) -> Option<Vec<Setting>> {
    if let Setting::List(items) = setting { Some(items) } else { None }
}

/// GGUF may write a parameter once per layer; where all layers that have the part agree it is one parameter again. Layers
/// without it say zero.
fn uniform(setting: Setting) -> Option<Setting> {
    let Setting::List(items) = setting else { return Some(setting) };
    let numbers: Vec<f64> = items.into_iter().map(number).collect::<Option<_>>()?;
    let first = numbers.iter().copied().find(|&n| n != 0.0).or(numbers.first().copied())?;
    numbers.iter().all(|&n| n == first || n == 0.0).then_some(Setting::Number(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Json {
        serde_json::from_str(text).unwrap()
    }

    fn error_of(text: &str) -> String {
        let json = config(text);
        Dims::read(&ModelConfig::new(ConfigSource::Config(&json)).unwrap()).unwrap_err().to_string()
    }

    const GOOD: &str = r#"{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}"#;

    #[test]
    fn each_bad_value_is_refused_by_the_name_of_its_key() {
        let cases = [
            (r#""hidden_size": 64"#, r#""hidden_size": 0"#, "hidden_size"),
            (r#""hidden_size": 64"#, r#""hidden_size": -8"#, "hidden_size"),
            (r#""hidden_size": 64"#, r#""hidden_size": 1e15"#, "hidden_size"),
            (r#""hidden_size": 64"#, r#""hidden_size": 64.5"#, "hidden_size"),
            (r#""hidden_size": 64"#, r#""hidden_size": "64""#, "hidden_size"),
            (r#""hidden_size": 64"#, r#""hidden_size": null"#, "hidden_size"),
            (r#""num_hidden_layers": 2"#, r#""num_layers_": 2"#, "num_hidden_layers"),
            (r#""num_attention_heads": 4"#, r#""num_attention_heads": 0"#, "num_attention_heads"),
            (r#""num_attention_heads": 4"#, r#""num_attention_heads": 5"#, "head_dim"),
            (r#""hidden_size": 64"#, r#""hidden_size": 64, "num_key_value_heads": 3"#, "num_key_value_heads"),
            (
                r#""hidden_size": 64"#,
                r#""hidden_size": 64, "num_key_value_heads": [2, 4]"#,
                "num_key_value_heads",
            ),
            (r#""hidden_size": 64"#, r#""hidden_size": 64, "head_dim": 16777216"#, "head_dim"),
        ];
        for (good, bad, key) in cases {
            let text = GOOD.replace(good, bad);
            let error = error_of(&text);
            assert!(error.contains(&format!("{key:?}")), "{text}: {error}");
        }
    }

    #[test]
    fn numbers_must_be_finite_and_positive() {
        let json = config(r#"{"eps": 0.0, "negative": -1e-6, "text": "1e-6", "fine": 1e-6}"#);
        let config = ModelConfig::new(ConfigSource::Config(&json)).unwrap();
        for key in [Key("eps", ""), Key("negative", ""), Key("text", ""), Key("absent", "")] {
            let error = config.positive(key).unwrap_err().to_string();
            assert!(error.contains(key.0), "{error}");
        }
        assert_eq!(config.positive(Key("absent|fine", "")).unwrap(), 1e-6);
    }

    #[test]
    fn the_text_side_of_a_multimodal_configuration_is_one_of_its_own() {
        const LAST: Key = Key("last", "");
        let json = config(r#"{"last": 7, "text_config": {"last": -1}, "flat": 3}"#);
        let all = ModelConfig::new(ConfigSource::Config(&json)).unwrap();
        assert_eq!(all.integer(LAST).unwrap(), Some(7));
        assert_eq!(all.nested(TEXT_CONFIG).unwrap().integer(LAST).unwrap(), Some(-1));
        assert!(all.nested("flat").err().unwrap().to_string().contains("\"flat\""));
        assert!(all.nested("absent").err().unwrap().to_string().contains("\"absent\""));
    }
}
