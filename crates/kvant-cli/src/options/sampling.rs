//! Flags about what is generated.

use crate::config::Preset;
use crate::failure::Failure;
use clap::Args;
use kvant_engine::SamplingParams;

/// What holds when nobody says otherwise.
const TEMPERATURE: f32 = 0.7;
const TOP_K: usize = 40;
const TOP_P: f32 = 0.95;
const MIN_P: f32 = 0.05;
const LAST_N: usize = 64;

/// How tokens are chosen, and when to stop.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Generation")]
pub struct GenerationOptions {
    /// Randomness: 0 always takes the most likely token, 1 the model's own distribution
    /// [default: 0.7]
    #[arg(long, value_name = "T", visible_alias = "temp")]
    temperature: Option<f32>,

    /// Always take the most likely token; the same as --temperature 0
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,

    /// Keep only the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Keep the fewest tokens whose probabilities reach this sum [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Keep tokens at least this fraction as likely as the most likely one
    /// [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,

    /// Above 1, makes tokens that were used lately (see --repeat-last-n) less likely
    /// [default: 1]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,

    /// Subtracted from a token's logit for each time it was used lately [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,

    /// Subtracted from a token's logit if it was used lately [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,

    /// How many of the last tokens the three penalties look at, those of the prompt
    /// included; 0 for none [default: 64]
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<usize>,

    /// Makes the choice repeatable; without it, or with -1, every run differs
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<Seed>,

    /// End the text before this string; may be given several times
    #[arg(long, value_name = "TEXT", alias = "reverse-prompt")]
    pub stop: Vec<String>,

    /// The most tokens to generate; -1 until the model ends, or the context is full,
    /// which is the default
    #[arg(short = 'n', long, value_name = "N", visible_alias = "n-predict", alias = "predict",
          value_parser = max_tokens, allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
}

/// A seed, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seed(Option<u64>);

impl std::str::FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "-1" => Ok(Self(None)),
            _ => text.parse().map(|seed| Self(Some(seed))).map_err(|_| "a whole number, or -1".to_owned()),
        }
    }
}

/// llama.cpp has -1 for no end, and -2 for the end of the context.
fn max_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" | "-2" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| "a number of tokens, or -1 for as many as there come".to_owned()),
    }
}

impl GenerationOptions {
    /// Refuses settings out of range.
    pub fn check(&self) -> Result<(), Failure> {
        self.sampling().check().map_err(|e| Failure::Usage(e.to_string()))
    }

    /// Takes from a preset what no flag said.
    pub fn apply(&mut self, preset: &Preset) {
        self.temperature = self.temperature.or(preset.temperature.filter(|_| !self.greedy));
        self.top_k = self.top_k.or(preset.top_k);
        self.top_p = self.top_p.or(preset.top_p);
        self.min_p = self.min_p.or(preset.min_p);
        self.repeat_penalty = self.repeat_penalty.or(preset.repeat_penalty);
        self.frequency_penalty = self.frequency_penalty.or(preset.frequency_penalty);
        self.presence_penalty = self.presence_penalty.or(preset.presence_penalty);
        self.seed = self.seed.or(preset.seed.map(|seed| Seed(Some(seed))));
        self.max_tokens = self.max_tokens.or(preset.max_tokens);
        if self.stop.is_empty() {
            self.stop.clone_from(&preset.stop);
        }
    }

    /// The sampler's settings.
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: if self.greedy { 0.0 } else { self.temperature.unwrap_or(TEMPERATURE) },
            top_k: self.top_k.unwrap_or(TOP_K),
            top_p: self.top_p.unwrap_or(TOP_P),
            min_p: self.min_p.unwrap_or(MIN_P),
            repetition_penalty: self.repeat_penalty.unwrap_or(1.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            penalty_window: Some(self.repeat_last_n.unwrap_or(LAST_N)),
            logit_bias: Vec::new(),
            seed: self.seed.and_then(|seed| seed.0),
        }
    }

    /// Changes one setting by its name, as `/set` does; what is out of range is refused and changes nothing.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<f32>().map_err(|_| format!("`{value}` is not a number"));
        let whole = || value.parse::<usize>().map_err(|_| format!("`{value}` is not a whole number"));
        let mut new = self.clone();
        match name.replace('-', "_").as_str() {
            "temperature" | "temp" => (new.temperature, new.greedy) = (Some(number()?), false),
            "top_k" => new.top_k = Some(whole()?),
            "top_p" => new.top_p = Some(number()?),
            "min_p" => new.min_p = Some(number()?),
            "repeat_penalty" => new.repeat_penalty = Some(number()?),
            "frequency_penalty" => new.frequency_penalty = Some(number()?),
            "presence_penalty" => new.presence_penalty = Some(number()?),
            "repeat_last_n" => new.repeat_last_n = Some(whole()?),
            "seed" => new.seed = Some(value.parse()?),
            "max_tokens" | "n_predict" | "n" => new.max_tokens = Some(max_tokens(value)?),
            other => return Err(format!("there is no setting {other}; /set lists them")),
        }
        new.sampling().check().map_err(|e| e.to_string())?;
        *self = new;
        Ok(())
    }

    /// All settings by name, for `/set` without a name.
    pub fn shown(&self) -> String {
        let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } =
            self.sampling();
        let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
        let seed = or(seed.map(|seed| seed.to_string()), "random");
        let most = self.max_tokens.filter(|most| *most < usize::MAX);
        let most = or(most.map(|most| most.to_string()), "no end");
        format!(
            "temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}, repeat_penalty {repetition_penalty}, \
             seed {seed}, max_tokens {most}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let preset = Preset { temperature: Some(0.1), top_k: Some(9), ..Preset::default() };
        let mut options = GenerationOptions { temperature: Some(0.9), ..GenerationOptions::default() };
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
        assert_eq!("-1".parse(), Ok(Seed(None)));
        assert_eq!("5".parse(), Ok(Seed(Some(5))));
    }
}
