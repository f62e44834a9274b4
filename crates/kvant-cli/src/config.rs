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
//! Keys are the long flags that a preset can hold. Flags win over the preset, the preset over `KVANT_MODEL` and `KVANT_DEVICE`, and
//! those over what stands at the top.

use crate::failure::Failure;
use crate::options::{Think, add_options, checked};
use kvant_engine::open::{OPENING, OpenSetting};
use kvant_engine::{SAMPLING, SamplingOverrides};
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
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// Values for flags that were not given.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Preset {
    pub model: Option<String>,
    pub system: Option<String>,
    pub chat_template: Option<PathBuf>,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    #[serde(deserialize_with = "as_text")]
    pub think: Option<Think>,
    /// Options that models are opened with, as a flag takes them.
    #[serde(skip)]
    pub opening: BTreeMap<&'static str, String>,
    /// Settings of the sampler.
    #[serde(skip)]
    pub sampling: SamplingOverrides,
}

/// A value as a flag takes it.
fn as_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<Option<T>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(serde::de::Error::custom)
}

impl Preset {
    /// The same with what another says where this one says nothing.
    fn over(self, other: Self) -> Self {
        let stop = if self.stop.is_empty() { other.stop } else { self.stop };
        let (mut opening, mut sampling) = (self.opening, self.sampling);
        add_options(&mut opening, other.opening);
        sampling.or(&other.sampling);
        Self {
            model: self.model.or(other.model),
            system: self.system.or(other.system),
            chat_template: self.chat_template.or(other.chat_template),
            max_tokens: self.max_tokens.or(other.max_tokens),
            stop,
            think: self.think.or(other.think),
            opening,
            sampling,
        }
    }

    /// Reads keys, which are flags.
    fn read(mut table: toml::Table) -> Result<Self, String> {
        let mut take = |name: &str| {
            let names = [name.replace('_', "-"), name.to_owned()];
            names.iter().find_map(|name| table.remove(name)).map(|value| match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(is_on) => is_on.to_string(),
                // Several values have commas between them, and what is empty is refused by name.
                toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => String::new(),
            })
        };
        let (mut opening, mut sampling) = (BTreeMap::new(), SamplingOverrides::default());
        for setting in OPENING.iter().filter(|setting| setting.is_flag) {
            if let Some(text) = take(setting.name) {
                checked(setting, &text).map_err(|why| format!("{}: {why}", setting.name))?;
                opening.insert(setting.name, text);
            }
        }
        for setting in SAMPLING {
            if let Some(text) = take(setting.short_name()) {
                let value = setting.parse(&text).map_err(|why| format!("{}: {why}", setting.short_name()))?;
                sampling.insert(setting, value);
            }
        }
        let rest: Self = flags(table).try_into().map_err(|e: toml::de::Error| e.message().to_owned())?;
        Ok(Self { opening, sampling, ..rest })
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
        let wrong = |place: &str, why: String| format!("{}{place}: {why}", path.display());
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            Failure::new(format!("{}: {}", path.display(), e.to_string().trim_end()))
        })?;
        let mut presets = BTreeMap::new();
        match table.remove("presets") {
            None => {}
            Some(toml::Value::Table(named)) => {
                for (name, preset) in named {
                    let place = format!(": preset {name}");
                    let preset = match preset {
                        toml::Value::Table(table) => Preset::read(table).map_err(|why| wrong(&place, why)),
                        _ => Err(wrong(&place, "not a table: begin one with [presets.NAME]".to_owned())),
                    };
                    presets.insert(name, preset);
                }
            }
            Some(_) => {
                return Err(Failure::new(format!("{}: presets are tables: [presets.NAME]", path.display())));
            }
        }
        let usual = Preset::read(table).map_err(|why| Failure::new(wrong("", why)))?;
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
        let mut by_variable = Preset { model: set(MODEL_VARIABLE), ..Preset::default() };
        if let (Some(device), Some(setting)) = (set(DEVICE_VARIABLE), OpenSetting::named("device")) {
            let wrong = |why: String| Failure::Usage(format!("{DEVICE_VARIABLE}: {why}"));
            checked(setting, &device).map_err(wrong)?;
            by_variable.opening.insert(setting.name, device);
        }
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
    let named = preset.ok().and_then(|preset| preset.model);
    named.or_else(remembered_model).unwrap_or_else(|| DEFAULT_MODEL.to_owned())
}

/// The file with the model that was chosen when `kvant chat` asked.
fn model_file() -> Option<PathBuf> {
    Some(kvant_hub::cache_folder().ok()?.join("default-model"))
}

fn remembered_model() -> Option<String> {
    let text = std::fs::read_to_string(model_file()?).ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Whether `kvant chat` has asked which model to use.
pub fn was_asked() -> bool {
    model_file().is_some_and(|file| file.exists())
}

/// Keeps the answer, so that nobody is asked again. Where it cannot be kept, the question comes again.
pub fn remember_model(name: &str) {
    let Some(file) = model_file() else { return };
    let _ = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(file, format!("{name}\n")));
}

/// Keys as flags are spelt.
fn flags(table: toml::Table) -> toml::Table {
    table.into_iter().map(|(key, value)| (key.replace('_', "-"), value)).collect()
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
    use kvant_engine::SamplingParams;

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
        let sampling = code.sampling.over(SamplingParams::usual());
        assert_eq!((code.model.as_deref(), sampling.top_k, sampling.temperature), (Some("b"), 3, 0.0));
        assert_eq!((code.opening.get("ctx"), code.opening["window"].as_str()), (None, "2k"));
        assert_eq!(config.preset(None).unwrap().opening["ctx"], "4096");
        assert!(config.has("code") && !config.has("b"));
        assert!(config.preset(Some("poetry")).is_err());
    }

    #[test]
    fn a_bad_preset_stops_only_those_who_ask_for_it() {
        let config = parse("model = 'a'\n[presets.x]\nctx = 'many'\n[presets.y]\nmodel = 'b'").unwrap();
        assert_eq!(config.preset(None).unwrap().model.as_deref(), Some("a"));
        assert_eq!(config.preset(Some("y")).unwrap().model.as_deref(), Some("b"));
        let not_a_table = parse("[presets]\nx = 3").unwrap().preset(Some("x"));
        assert!(matches!(not_a_table, Err(Failure::Message(error)) if error.contains("preset x")));
        let Err(Failure::Message(error)) = config.preset(Some("x")) else { panic!("x is refused") };
        assert!(error.contains("preset x") && error.contains("many"), "{error}");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, words) in [
            ("modell = 'a'", "modell"),
            ("kv = 'int5'", "int5"),
            ("presets = 3", "[presets.NAME]"),
            ("top-k = 'many'", "top_k: `many`"),
            ("device = 'tpu'", "device: `tpu`"),
            ("model = ", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("config.toml") && error.contains(words), "{text}: {error}");
        }
    }
}
