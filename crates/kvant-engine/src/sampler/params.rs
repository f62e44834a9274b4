//! What a user may ask of the sampler: the one place where a setting is declared.
//!
//! A row below is a field of [`SamplingParams`] and an entry of [`SAMPLING`]. From the table come the flags of `kvant run`, `chat`
//! and `serve`, the keys of presets, the names of `/set`, the fields of requests of all protocols with their descriptions in
//! `/openapi.json`, what models' makers may say, and the settings of C and Python. A new sampler is a row here and its step in the
//! chain of [`Sampler`](super::Sampler).

use super::SampleError;
use super::setting::{
    ABOVE_0, ANY_WHOLE, AT_LEAST_0, FINITE, SHARE, SHARE_ABOVE_0, SamplingSetting, SettingValue,
};

/// `field: type = what does nothing, usually what `kvant run` takes, kind { the rest of a [`SamplingSetting`] }`.
macro_rules! sampling_params {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $neutral:expr, usually $usual:expr, $kind:ident {
        $($key:ident: $value:expr),* $(,)?
    })*) => {
        /// The settings of a [`Sampler`](super::Sampler). The default samples from the model's own distribution.
        #[derive(Debug, Clone, PartialEq)]
        pub struct SamplingParams {
            $($(#[$doc])* pub $field: $type,)*
            /// Added to the logits of these tokens; −∞ forbids one.
            pub logit_bias: Vec<(u32, f32)>,
        }

        impl Default for SamplingParams {
            fn default() -> Self {
                Self { $($field: $neutral,)* logit_bias: Vec::new() }
            }
        }

        /// Every setting of the sampler that is a number, in the order in which they are shown.
        pub const SAMPLING: &[SamplingSetting] = &[$(SamplingSetting {
            name: stringify!($field),
            usual: SettingValue::$kind($usual),
            get: |params| SettingValue::$kind(params.$field),
            set: |params, value| if let SettingValue::$kind(value) = value { params.$field = value },
            $($key: $value,)*
            ..SamplingSetting::UNNAMED
        }),*];
    };
}

sampling_params! {
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 always takes the most likely token.
    temperature: f32 = 1.0, usually 0.7, Number {
        flag: "temperature", alias: Some("temp"), value: "T",
        help: "Randomness: 0 always takes the most likely token, 1 the model's own distribution",
        range: AT_LEAST_0, request: Some([0.0, 2.0]), makers: Some("temp"),
    }
    /// Keep only this many of the most likely tokens; 0 keeps all.
    top_k: usize = 0, usually 40, Count {
        flag: "top-k", value: "K",
        help: "Keep only the K most likely tokens; 0 keeps all",
        request: ANY_WHOLE, makers: Some("top_k"),
    }
    /// Keep the fewest most likely tokens whose probabilities reach this sum; 1 keeps all.
    top_p: f32 = 1.0, usually 0.95, Number {
        flag: "top-p", value: "P",
        help: "Keep the fewest tokens whose probabilities reach this sum",
        range: SHARE_ABOVE_0, request: Some([0.0, 1.0]), makers: Some("top_p"),
    }
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    min_p: f32 = 0.0, usually 0.05, Number {
        flag: "min-p", value: "P",
        help: "Keep tokens at least this fraction as likely as the most likely one",
        range: SHARE, request: Some([0.0, 1.0]), makers: Some("min_p"),
    }
    /// Divides the positive and multiplies the negative logits of tokens in the history; 1 does nothing.
    repetition_penalty: f32 = 1.0, usually 1.0, Number {
        flag: "repeat-penalty", other_name: Some("repeat_penalty"), value: "X",
        help: "Above 1, makes tokens that were used lately less likely",
        range: ABOVE_0, request: Some([0.01, 10.0]), makers: Some("penalty_repeat"),
    }
    /// Subtracted from a token's logit for each time it is in the history.
    frequency_penalty: f32 = 0.0, usually 0.0, Number {
        flag: "frequency-penalty", value: "X",
        help: "Subtracted from a token's logit for each time it was used lately",
        range: FINITE, request: Some([-2.0, 2.0]),
    }
    /// Subtracted from a token's logit if it is in the history.
    presence_penalty: f32 = 0.0, usually 0.0, Number {
        flag: "presence-penalty", value: "X",
        help: "Subtracted from a token's logit if it was used lately",
        range: FINITE, request: Some([-2.0, 2.0]),
    }
    /// How many of the last tokens the penalties look at, those of the prompt included; `None` for all.
    penalty_window: Option<usize> = Some(64), usually Some(64), Window {
        flag: "repeat-last-n", other_name: Some("repeat_last_n"), value: "N",
        help: "How many of the last tokens the three penalties look at, those of the prompt included; 0 for none",
    }
    /// Makes a run repeatable; `None` picks a seed.
    seed: Option<u64> = None, usually None, Seed {
        flag: "seed", short: Some('s'), value: "N",
        help: "Makes the choice repeatable; without it, or with -1, every run differs",
        request: ANY_WHOLE,
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// What holds in `kvant run` when nobody says otherwise.
    pub fn usual() -> Self {
        let mut params = Self::default();
        SAMPLING.iter().for_each(|setting| (setting.set)(&mut params, setting.usual));
        params
    }

    /// Refuses values outside their range.
    ///
    /// # Errors
    /// Names the setting, its value and the range.
    pub fn check(&self) -> Result<(), SampleError> {
        SAMPLING.iter().try_for_each(|setting| setting.check((setting.get)(self)))?;
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
