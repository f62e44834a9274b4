//! Flags about what is generated.

use crate::config::Preset;
use crate::failure::Failure;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use kvant_engine::sampler::{SamplingSetting, SettingValue};
use kvant_engine::{SAMPLING, SamplingOverrides, SamplingParams};

/// How tokens are chosen, and when to stop.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Generation")]
pub struct GenerationOptions {
    #[command(flatten)]
    sampling: SamplingFlags,

    /// Always choose the most likely token; the same as --temperature 0
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,

    /// Add BIAS to the logit of a token, such as 15043+1.5 or 15043-inf (never choose it); may be
    /// repeated
    #[arg(short = 'l', long, value_name = "TOKEN(+|-)BIAS", value_parser = logit_bias)]
    logit_bias: Vec<(u32, f32)>,

    /// Stop before this string; may be repeated
    #[arg(long, value_name = "TEXT", alias = "reverse-prompt", allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Maximum tokens to generate; -1 for no limit, which is the default: until the model
    /// stops or the context is full
    #[arg(short = 'n', long, value_name = "N", visible_alias = "n-predict", alias = "predict",
          value_parser = max_tokens)]
    pub max_tokens: Option<usize>,
}

/// The flags of the sampler's settings.
#[derive(Clone, Default)]
pub struct SamplingFlags(pub SamplingOverrides);

impl Args for SamplingFlags {
    fn augment_args(command: Command) -> Command {
        let usual = |setting: &SamplingSetting| match setting.usual {
            SettingValue::Seed(_) | SettingValue::Flag(_) | SettingValue::Order(_) => String::new(),
            value => format!(" [default: {value}]"),
        };
        SAMPLING.iter().fold(command, |command, setting| command.arg(flag(setting, &usual(setting))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SAMPLING {
            // A command may have fewer flags than there are settings.
            if let Ok(Some(value)) = matches.try_get_one::<SettingValue>(setting.flag) {
                self.0.insert(setting, *value);
            }
        }
        Ok(())
    }
}

/// The same for requests to a server that do not say; the penalties' window is always the whole text there.
#[derive(Clone, Default)]
pub struct RequestDefaults(SamplingFlags);

impl Args for RequestDefaults {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("Defaults of requests");
        SAMPLING.iter().filter(|setting| setting.request.is_some()).fold(command, |command, setting| {
            let makers = if setting.makers.is_some() { "as the model's makers want, else " } else { "" };
            let default = match setting.usual {
                SettingValue::Flag(_) | SettingValue::Order(_) => String::new(),
                value => format!(" [default: {makers}{value}]"),
            };
            command.arg(flag(setting, &default))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RequestDefaults {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        SamplingFlags::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl RequestDefaults {
    /// Refuses settings out of range.
    pub fn overrides(&self) -> Result<SamplingOverrides, Failure> {
        let given = &self.0.0;
        given.over(SamplingParams::default()).check().map_err(|e| Failure::Usage(e.to_string()))?;
        Ok(given.clone())
    }
}

/// The flag of a setting; `default` closes its help.
fn flag(setting: &'static SamplingSetting, default: &str) -> Arg {
    let arg = Arg::new(setting.flag)
        .long(setting.flag)
        .value_name(setting.value)
        .help(format!("{}{default}", setting.help))
        .value_parser(move |text: &str| setting.parse(text));
    let arg = match setting.usual {
        SettingValue::Flag(_) => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg,
    };
    let arg = setting.alias.into_iter().fold(arg, Arg::visible_alias);
    setting.short.into_iter().fold(arg, Arg::short)
}

/// llama.cpp has -1 for no end, and -2 for the end of the context.
fn max_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" | "-2" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| "a number of tokens, or -1 for no limit".to_owned()),
    }
}

/// A token's number, a sign and what is added to its logit.
fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || format!("`{text}`: write a token's number, + or -, and a number: 15043+1.5, or 15043-inf");
    let sign = text.find(['+', '-']).ok_or_else(wrong)?;
    let (token, bias) = (text[..sign].parse().ok(), text[sign..].parse().ok());
    match (token, bias) {
        (Some(token), Some(bias)) if f32::is_finite(bias) || bias == f32::NEG_INFINITY => Ok((token, bias)),
        _ => Err(wrong()),
    }
}

impl GenerationOptions {
    /// Refuses settings out of range.
    pub fn check(&self) -> Result<(), Failure> {
        self.sampling().check().map_err(|e| Failure::Usage(e.to_string()))
    }

    /// Takes from a preset what no flag said.
    pub fn apply(&mut self, preset: &Preset) {
        self.sampling.0.or(&preset.sampling);
        self.max_tokens = self.max_tokens.or(preset.max_tokens);
        if self.stop.is_empty() {
            self.stop.clone_from(&preset.stop);
        }
    }

    /// The sampler's settings.
    pub fn sampling(&self) -> SamplingParams {
        let mut params = self.sampling.0.over(SamplingParams::usual());
        params.logit_bias.extend(&self.logit_bias);
        if self.greedy { SamplingParams { temperature: 0.0, ..params } } else { params }
    }

    /// Changes one setting by its name, as `/set` does; what is out of range is refused and changes nothing.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let name = name.replace('-', "_");
        let mut new = self.clone();
        match (SamplingSetting::named(&name), name.as_str()) {
            (Some(setting), _) => {
                new.sampling.0.insert(setting, setting.parse(value)?);
                new.greedy &= setting.name != "temperature";
            }
            (None, "max_tokens" | "n_predict" | "n") => new.max_tokens = Some(max_tokens(value)?),
            (None, other) => return Err(format!("unknown setting {other}; /set lists the settings")),
        }
        new.sampling().check().map_err(|e| e.to_string())?;
        *self = new;
        Ok(())
    }

    /// All settings by name, for `/set` without a name.
    pub fn shown(&self) -> String {
        let params = self.sampling();
        let settings =
            SAMPLING.iter().map(|setting| format!("{} {}", setting.short_name(), (setting.get)(&params)));
        let most = self.max_tokens.filter(|most| *most < usize::MAX);
        let most = most.map_or_else(|| "no end".to_owned(), |most| most.to_string());
        format!("{}, max_tokens {most}", settings.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(settings: &[(&str, &str)]) -> SamplingOverrides {
        let mut given = SamplingOverrides::default();
        for (name, value) in settings {
            let setting = SamplingSetting::named(name).unwrap();
            given.insert(setting, setting.parse(value).unwrap());
        }
        given
    }

    #[test]
    fn settings_are_changed_by_name_and_refused_as_a_whole() {
        let mut options = GenerationOptions { greedy: true, ..GenerationOptions::default() };
        options.set("temperature", "1.5").unwrap();
        options.set("top-p", "0.5").unwrap();
        options.set("seed", "-1").unwrap();
        let sampling = options.sampling();
        assert_eq!((sampling.temperature, sampling.top_p, sampling.seed), (1.5, 0.5, None));
        assert!(options.set("top_p", "7").is_err() && options.set("warmth", "1").is_err());
        assert_eq!(options.sampling(), sampling);
        assert!(options.shown().contains("temperature 1.5"), "{}", options.shown());
    }

    #[test]
    fn flags_win_over_presets() {
        let preset =
            Preset { sampling: given(&[("temperature", "0.1"), ("top_k", "9")]), ..Preset::default() };
        let flags = SamplingFlags(given(&[("temperature", "0.9")]));
        let mut options = GenerationOptions { sampling: flags, ..GenerationOptions::default() };
        options.apply(&preset);
        let SamplingParams { temperature, top_k, .. } = options.sampling();
        assert_eq!((temperature, top_k), (0.9, 9));
        let mut greedy = GenerationOptions { greedy: true, ..GenerationOptions::default() };
        greedy.apply(&preset);
        assert_eq!(greedy.sampling().temperature, 0.0);
    }

    #[test]
    fn numbers_of_llama_cpp_are_understood() {
        assert_eq!(max_tokens("-1"), Ok(usize::MAX));
        assert_eq!(max_tokens("12"), Ok(12));
        assert!(max_tokens("-3").is_err());
        assert_eq!(logit_bias("15043+1.5"), Ok((15043, 1.5)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        assert!(
            ["7", "7+", "+1", "x+1", "7+inf", "7-nan", "7+1+1"].iter().all(|text| logit_bias(text).is_err())
        );
        let seed = SamplingSetting::named("seed").unwrap();
        assert_eq!(seed.parse("-1"), Ok(SettingValue::Seed(None)));
        assert_eq!(seed.parse("5"), Ok(SettingValue::Seed(Some(5))));
    }
}
