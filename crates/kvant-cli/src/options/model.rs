//! Flags about the model and how it runs.

use crate::config::{Preset, default_model};
use crate::failure::Failure;
use crate::options::rope::HEADING;
use crate::options::{ForeignFlags, kv_choice, llama_cpp_spec};
use crate::progress;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kvant_engine::OpenOptions;
use kvant_engine::open::{LoraFile, OPENING, OpenSetting};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The model, and how it runs.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// A model: a file, a folder, a short name such as qwen3:8b, or org/repo:file or
    /// an address on Hugging Face [default: KVANT_MODEL, the configuration file's, or
    /// smollm2-135m]
    #[arg(short, long, default_value_t = default_model(), hide_default_value = true,
          aliases = ["hf-repo", "model-url"])]
    pub model: String,

    /// Use a preset from ~/.config/kvant/config.toml
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,

    #[command(flatten)]
    opening: OpeningFlags,

    /// Use this chat template (a Jinja file) instead of the model's own
    #[arg(long, value_name = "FILE", alias = "chat-template-file")]
    chat_template: Option<PathBuf>,

    /// The type of keys as llama.cpp calls it (-ctk)
    #[arg(long, value_name = "TYPE", hide = true, conflicts_with = "kv")]
    cache_type_k: Option<String>,

    /// The type of values as llama.cpp calls it (-ctv)
    #[arg(long, value_name = "TYPE", hide = true, conflicts_with = "kv")]
    cache_type_v: Option<String>,

    /// Flash attention (-fa)
    #[arg(long, value_name = "SWITCH", hide = true, require_equals = true)]
    flash_attn: Option<String>,

    /// A LoRA adapter and its scale, as llama.cpp has it
    #[arg(long, num_args = 2, value_names = ["FILE", "SCALE"], hide = true, allow_hyphen_values = true)]
    lora_scaled: Vec<String>,

    /// Apply no LoRA adapter to requests that name none, as llama.cpp has it
    #[arg(long, hide = true)]
    lora_init_without_apply: bool,

    /// Templates are always Jinja.
    #[arg(long, hide = true)]
    jinja: bool,

    /// Print more notes: unverified short names, and contexts that memory makes shorter
    #[arg(short = 'v', long, alias = "log-verbose")]
    pub verbose: bool,

    #[command(flatten)]
    foreign: ForeignFlags,
}

/// The flags of options that models are opened with, as they were typed.
#[derive(Clone, Default)]
struct OpeningFlags(BTreeMap<&'static str, String>);

impl Args for OpeningFlags {
    fn augment_args(command: Command) -> Command {
        let flags = OPENING.iter().filter(|setting| setting.is_flag);
        flags.fold(command, |command, setting| command.arg(flag(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The flag of an option.
pub fn flag(setting: &'static OpenSetting) -> Arg {
    let arg = Arg::new(setting.name).long(setting.flag).help(setting.help);
    let arg = if setting.is_rope { arg.help_heading(HEADING) } else { arg };
    let arg = setting.short.into_iter().fold(arg, Arg::short);
    let arg = setting.aliases.iter().fold(arg, |arg, alias| arg.visible_alias(*alias));
    let arg = if setting.name == "window" { arg.conflicts_with("ctx") } else { arg };
    if setting.value.is_empty() {
        return arg.action(ArgAction::SetTrue);
    }
    // llama.cpp says -1 for all layers.
    let arg = arg.value_name(setting.value).allow_hyphen_values(setting.name == "gpu_layers");
    let arg = if setting.is_list { arg.action(ArgAction::Append) } else { arg };
    match setting.choices {
        [] => arg.value_parser(move |text: &str| checked(setting, text).map(|()| text.to_owned())),
        choices => arg.value_parser(PossibleValuesParser::new(choices)),
    }
}

/// Refuses a value that cannot be had, with a guess at what was meant.
pub fn checked(setting: &OpenSetting, text: &str) -> Result<(), String> {
    match setting.name {
        "kv" => kv_choice(text).map(drop),
        _ => setting.check(text),
    }
}

impl FromArgMatches for OpeningFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in OPENING.iter().filter(|setting| setting.is_flag) {
            let given = match setting.value.is_empty() {
                true => matches.get_flag(setting.name).then(|| "true".to_owned()),
                false => matches.get_many::<String>(setting.name).map(|given| {
                    let all: Vec<&str> = given.map(String::as_str).collect();
                    all.join(",")
                }),
            };
            self.0.extend(given.map(|text| (setting.name, text)));
        }
        Ok(())
    }
}

impl ModelOptions {
    /// Whether LoRA adapters are asked for.
    pub fn has_adapters(&self) -> bool {
        self.opening.0.contains_key("lora") || !self.lora_scaled.is_empty()
    }

    /// Whether a conversation without end is asked for.
    pub fn has_window(&self) -> bool {
        self.opening.0.contains_key("window")
    }

    /// Takes from a preset what no flag said.
    pub fn apply(&mut self, preset: &Preset) {
        if let Some(model) = preset.model.clone().filter(|_| self.model == default_model()) {
            self.model = model;
        }
        let has_types = self.cache_type_k.is_some() || self.cache_type_v.is_some();
        let mut more = preset.opening.clone();
        more.retain(|name, _| *name != "kv" || !has_types);
        add_options(&mut self.opening.0, more);
        if self.chat_template.is_none() {
            self.chat_template = preset.chat_template.clone();
        }
    }

    /// What flags of other programs mean here, for people.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if matches!(self.flash_attn.as_deref(), Some("off" | "0")) {
            remarks.push(
                "-fa off: attention always runs in one pass over the cache, without a matrix of scores"
                    .into(),
            );
        }
        if self.cache_type_k.is_some() || self.cache_type_v.is_some() {
            let spec = self.cache_types().unwrap_or_default();
            remarks.push(format!("-ctk, -ctv: keys and values are kept as --kv {spec}"));
        }
        if let Some(name) = self.template_name() {
            remarks.push(format!(
                "--chat-template {name}: ignored: the model's own template is used; a file takes its place"
            ));
        }
        remarks.extend(self.foreign.remarks());
        remarks
    }

    /// A template that llama.cpp knows by name, and that is no file.
    fn template_name(&self) -> Option<&str> {
        let name = self.chat_template.as_ref()?.to_str()?;
        let is_word = !name.contains(['/', '\\', '.'])
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
        (is_word && !std::path::Path::new(name).exists()).then_some(name)
    }

    fn cache_types(&self) -> Result<String, String> {
        llama_cpp_spec(self.cache_type_k.as_deref(), self.cache_type_v.as_deref())
    }

    /// What the engine is asked for.
    ///
    /// # Errors
    /// If the chat template cannot be read, or llama.cpp's types of a cache are mistyped.
    pub fn open_options(&self) -> Result<OpenOptions, Failure> {
        let template = self.chat_template.as_ref().filter(|_| self.template_name().is_none()).map(|path| {
            std::fs::read_to_string(path).map_err(|e| {
                let path = path.display();
                Failure::new(format!("--chat-template {path}: {e}; it takes a file with a Jinja template"))
            })
        });
        let mut options = OpenOptions {
            measurements: kvant_hub::cache_folder().ok(),
            chat_template: template.transpose()?,
            progress: Some(progress::loading),
            ..OpenOptions::default()
        };
        self.opening.0.iter().try_for_each(|(name, text)| options.set(name, text)).map_err(Failure::Usage)?;
        for given in self.lora_scaled.chunks(2) {
            let [file, scale] = given else { continue };
            let adapter = format!("{file}:{scale}").parse::<LoraFile>();
            let adapter = adapter.ok().filter(|_| scale.parse::<f32>().is_ok());
            let wrong = || Failure::Usage(format!("--lora-scaled {file} {scale}: SCALE is not a number"));
            options.lora.push(adapter.ok_or_else(wrong)?);
        }
        if self.lora_init_without_apply {
            options.lora.iter_mut().for_each(LoraFile::wait);
        }
        if self.cache_type_k.is_some() || self.cache_type_v.is_some() {
            options.kv = Some(self.cache_types().and_then(|spec| kv_choice(&spec)).map_err(Failure::Usage)?);
        }
        Ok(options)
    }
}

/// Takes options that were not given. A context and a window cannot both be: the nearer of the two decides.
pub fn add_options(given: &mut BTreeMap<&'static str, String>, more: BTreeMap<&'static str, String>) {
    let has_length = given.contains_key("ctx") || given.contains_key("window");
    for (name, text) in more {
        if !(has_length && ["ctx", "window"].contains(&name)) {
            given.entry(name).or_insert(text);
        }
    }
}
