//! The configuration file, `~/.config/kvant/config.toml`: what holds when no flag says otherwise, and presets by name.
//!
//! ```toml
//! model = "qwen3:8b"            # when none is named
//! threads = 8
//!
//! [presets.coder]               # kvant chat coder, or kvant run --preset coder "…"
//! model = "qwen2.5-coder:7b"
//! system = "Answer with code first."
//! temperature = 0.2
//! ctx = "32k"
//! ```
//!
//! Keys are the long flags. Flags win over the preset, the preset over `KVANT_MODEL` and `KVANT_DEVICE`, and
//! those over what stands at the top.

use crate::failure::Failure;
use crate::options::{Size, Think, Tokens};
use kvant_engine::{DeviceChoice, KvChoice};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

/// The variable that names another file.
const FILE_VARIABLE: &str = "KVANT_CONFIG";
/// The variable that names the model.
const MODEL_VARIABLE: &str = "KVANT_MODEL";
/// The variable that names what computes.
const DEVICE_VARIABLE: &str = "KVANT_DEVICE";
/// The model when nobody names one.
const DEFAULT_MODEL: &str = "smollm2-135m";

/// Values for flags that were not given.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Preset {
    pub model: Option<String>,
    pub system: Option<String>,
    #[serde(deserialize_with = "as_text")]
    pub device: Option<DeviceChoice>,
    #[serde(deserialize_with = "as_text")]
    pub kv: Option<KvChoice>,
    #[serde(deserialize_with = "as_text")]
    pub ctx: Option<Tokens>,
    #[serde(deserialize_with = "as_text")]
    pub window: Option<Tokens>,
    #[serde(deserialize_with = "as_text")]
    pub kv_memory: Option<Size>,
    pub threads: Option<u16>,
    pub chat_template: Option<PathBuf>,
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    #[serde(deserialize_with = "as_text")]
    pub think: Option<Think>,
}

/// A value as a flag takes it, written as text or as a number.
fn as_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(u64),
    }
    let text = match Written::deserialize(from)? {
        Written::Text(text) => text,
        Written::Number(number) => number.to_string(),
    };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

impl Preset {
    /// The same with what another says where this one says nothing.
    fn over(self, other: Self) -> Self {
        let stop = if self.stop.is_empty() { other.stop } else { self.stop };
        // A context and a window cannot both be: the nearer of the two decides.
        let has_length = self.ctx.is_some() || self.window.is_some();
        let (ctx, window) = if has_length { (self.ctx, self.window) } else { (other.ctx, other.window) };
        Self {
            model: self.model.or(other.model),
            system: self.system.or(other.system),
            device: self.device.or(other.device),
            kv: self.kv.or(other.kv),
            ctx,
            window,
            kv_memory: self.kv_memory.or(other.kv_memory),
            threads: self.threads.or(other.threads),
            chat_template: self.chat_template.or(other.chat_template),
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repeat_penalty: self.repeat_penalty.or(other.repeat_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            seed: self.seed.or(other.seed),
            max_tokens: self.max_tokens.or(other.max_tokens),
            stop,
            think: self.think.or(other.think),
        }
    }
}

/// What the file says.
#[derive(Debug, Default)]
pub struct Config {
    path: PathBuf,
    usual: Preset,
    /// A preset that is wrong is an error for those who ask for it.
    presets: BTreeMap<String, Result<Preset, String>>,
}

impl Config {
    /// Reads the file; one that is not there says nothing, unless the variable names it.
    pub fn read() -> Result<Self, Failure> {
        let Some(path) = place(|name| std::env::var_os(name)) else { return Ok(Self::default()) };
        let is_named = set(FILE_VARIABLE).is_some();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !is_named => return Ok(Self::default()),
            Err(e) if is_named => {
                return Err(Failure::new(format!("{FILE_VARIABLE}={}: cannot read it: {e}", path.display())));
            }
            Err(e) => return Err(Failure::new(format!("{}: cannot read it: {e}", path.display()))),
        };
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: PathBuf) -> Result<Self, Failure> {
        let wrong = |place: &str, e: toml::de::Error| format!("{}{place}: {}", path.display(), e.message());
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            Failure::new(format!("{}: {}", path.display(), e.to_string().trim_end()))
        })?;
        let mut presets = BTreeMap::new();
        match table.remove("presets") {
            None => {}
            Some(toml::Value::Table(named)) => {
                for (name, preset) in named {
                    let preset = flags(preset).try_into().map_err(|e| wrong(&format!(": preset {name}"), e));
                    presets.insert(name, preset);
                }
            }
            Some(_) => {
                return Err(Failure::new(format!("{}: presets are tables: [presets.NAME]", path.display())));
            }
        }
        let usual = flags(toml::Value::Table(table)).try_into().map_err(|e| Failure::new(wrong("", e)))?;
        Ok(Self { path, usual, presets })
    }

    /// What holds under the name of a preset, or under none.
    pub fn preset(&self, name: Option<&str>) -> Result<Preset, Failure> {
        let named = match name {
            None => Preset::default(),
            Some(name) => match self.presets.get(name) {
                Some(preset) => preset.clone().map_err(Failure::Message)?,
                None => {
                    let known: Vec<&str> = self.presets.keys().map(String::as_str).collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    return Err(Failure::Usage(format!(
                        "--preset {name}: {} has {known}",
                        self.path.display()
                    )));
                }
            },
        };
        let wrong = |e: String| Failure::Usage(format!("{DEVICE_VARIABLE}: {e}"));
        let device = set(DEVICE_VARIABLE).map(|name| name.parse().map_err(wrong)).transpose()?;
        let by_variable = Preset { model: set(MODEL_VARIABLE), device, ..Preset::default() };
        Ok(named.over(by_variable).over(self.usual.clone()))
    }

    /// Whether there is a preset of this name.
    pub fn has(&self, name: &str) -> bool {
        self.presets.contains_key(name)
    }
}

/// The model when no flag names one. A file that cannot be read is complained about where its other values are needed.
pub fn default_model() -> String {
    let preset = Config::read().and_then(|config| config.preset(None));
    preset.ok().and_then(|preset| preset.model).unwrap_or_else(|| DEFAULT_MODEL.to_owned())
}

/// Keys as flags are spelt.
fn flags(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::Table(table) => {
            toml::Value::Table(table.into_iter().map(|(key, value)| (key.replace('_', "-"), value)).collect())
        }
        other => other,
    }
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Where the file lies.
fn place(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = set(FILE_VARIABLE) {
        return Some(named);
    }
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    let base = if cfg!(windows) {
        absolute("APPDATA")
    } else {
        absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))
    };
    base.map(|base| base.join("kvant").join("config.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "config.toml".into()).map_err(|failure| match failure {
            Failure::Message(message) | Failure::Usage(message) => message,
            _ => String::new(),
        })
    }

    #[test]
    fn presets_come_before_what_stands_at_the_top() {
        let config = parse(
            "model = 'a'\ntop_k = 3\nctx = 4096\n[presets.code]\nmodel = 'b'\ntemperature = 0\nwindow = '2k'\nstop = ['x']",
        )
        .unwrap();
        let code = config.preset(Some("code")).unwrap();
        assert_eq!((code.model.as_deref(), code.top_k, code.temperature), (Some("b"), Some(3), Some(0.0)));
        assert_eq!((code.ctx, code.window), (None, Some(Tokens(2048))));
        assert_eq!(config.preset(None).unwrap().ctx, Some(Tokens(4096)));
        assert!(config.has("code") && !config.has("b"));
        assert!(config.preset(Some("poetry")).is_err());
    }

    #[test]
    fn a_bad_preset_stops_only_those_who_ask_for_it() {
        let config = parse("model = 'a'\n[presets.x]\nctx = 'many'\n[presets.y]\nmodel = 'b'").unwrap();
        assert_eq!(config.preset(None).unwrap().model.as_deref(), Some("a"));
        assert_eq!(config.preset(Some("y")).unwrap().model.as_deref(), Some("b"));
        let Err(Failure::Message(error)) = config.preset(Some("x")) else { panic!("x is refused") };
        assert!(error.contains("preset x") && error.contains("many"), "{error}");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, words) in [
            ("modell = 'a'", "modell"),
            ("kv = 'int5'", "int5"),
            ("presets = 3", "[presets.NAME]"),
            ("model = ", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("config.toml") && error.contains(words), "{text}: {error}");
        }
    }
}
