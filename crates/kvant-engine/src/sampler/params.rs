//! What a user may ask of the sampler.

use super::SampleError;

/// The settings of a [`Sampler`](super::Sampler). The default samples from the model's own distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 always takes the most likely token.
    pub temperature: f32,
    /// Keep only this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in the history; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the history.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it is in the history.
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties look at, those of the prompt included; `None` for all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of these tokens; −∞ forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes a run repeatable; `None` picks a seed.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: Some(64),
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Refuses values outside their range.
    ///
    /// # Errors
    /// Names the setting, its value and the range.
    pub fn check(&self) -> Result<(), SampleError> {
        let require = |name: &'static str, value: f32, ok: bool, range: &'static str| {
            if ok && value.is_finite() { Ok(()) } else { Err(SampleError::BadSetting { name, value, range }) }
        };
        require("temperature", self.temperature, self.temperature >= 0.0, "0 or more")?;
        require("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1")?;
        require("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        require("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0")?;
        require("frequency_penalty", self.frequency_penalty, true, "a finite number")?;
        require("presence_penalty", self.presence_penalty, true, "a finite number")?;
        for &(_, bias) in &self.logit_bias {
            if bias.is_nan() || bias == f32::INFINITY {
                let range = "a finite number or minus infinity";
                return Err(SampleError::BadSetting { name: "logit_bias", value: bias, range });
            }
        }
        Ok(())
    }

    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}
