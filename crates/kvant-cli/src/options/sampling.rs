//! Flags about what is generated.

use crate::failure::Failure;
use clap::Args;
use kvant_engine::SamplingParams;

/// How tokens are chosen, and when to stop.
#[derive(Args, Clone)]
#[command(next_help_heading = "Generation")]
pub struct GenerationOptions {
    /// Randomness: 0 always takes the most likely token, 1 the model's own distribution
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f32,

    /// Always take the most likely token; the same as --temperature 0
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,

    /// Keep only the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,

    /// Keep the fewest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,

    /// Keep tokens at least this fraction as likely as the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,

    /// Above 1, makes tokens that were used lately (see --repeat-last-n) less likely
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,

    /// Subtracted from a token's logit for each time it was used lately
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// Subtracted from a token's logit if it was used lately
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// How many of the last tokens the three penalties look at, those of the prompt included; 0 for none
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeat_last_n: usize,

    /// Makes the choice repeatable; without it every run differs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// End the text before this string; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// The most tokens to generate [default: until the model ends, or the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    pub max_tokens: Option<usize>,
}

impl GenerationOptions {
    /// Refuses settings out of range.
    pub fn check(&self) -> Result<(), Failure> {
        self.sampling().check().map_err(|e| Failure::Usage(e.to_string()))
    }

    /// The sampler's settings.
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: if self.greedy { 0.0 } else { self.temperature },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: Some(self.repeat_last_n),
            logit_bias: Vec::new(),
            seed: self.seed,
        }
    }
}
