//! What a user may ask of the sampler: the one place where a setting is declared.
//!
//! A row below is a field of [`SamplingParams`] and an entry of [`SAMPLING`]. From the table come the flags of `kvant run`, `chat`
//! and `serve`, the keys of presets, the names of `/set`, the fields of requests of all protocols with their descriptions in
//! `/openapi.json`, what models' makers may say, and the settings of C and Python. A new sampler is a row here and its step in the
//! chain of [`Sampler`](super::Sampler).

use super::setting::{
    ABOVE_0, ANY_WHOLE, AT_LEAST_0, AT_LEAST_1, FINITE, SHARE, SHARE_ABOVE_0, SamplingSetting, SettingValue,
};
use super::{SampleError, SamplerOrder};
use std::sync::Arc;

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
            /// Tokens that end the sequences DRY looks at, in rising order. Without them a generation takes those with a line break,
            /// a colon, a quotation mark or an asterisk in their text.
            pub dry_breakers: Option<Arc<[u32]>>,
        }

        impl Default for SamplingParams {
            fn default() -> Self {
                Self { $($field: $neutral,)* logit_bias: Vec::new(), dry_breakers: None }
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
        help: "Penalty for recent tokens; above 1 makes them less likely",
        range: ABOVE_0, request: Some([0.01, 10.0]), makers: Some("penalty_repeat"),
    }
    /// Subtracted from a token's logit for each time it is in the history.
    frequency_penalty: f32 = 0.0, usually 0.0, Number {
        flag: "frequency-penalty", value: "X",
        help: "Penalty for each recent use of a token, subtracted from its logit",
        range: FINITE, request: Some([-2.0, 2.0]),
    }
    /// Subtracted from a token's logit if it is in the history.
    presence_penalty: f32 = 0.0, usually 0.0, Number {
        flag: "presence-penalty", value: "X",
        help: "Penalty for a token that was used recently, subtracted from its logit",
        range: FINITE, request: Some([-2.0, 2.0]),
    }
    /// How many of the last tokens the penalties look at, those of the prompt included; `None` for all.
    penalty_window: Option<usize> = Some(64), usually Some(64), Window {
        flag: "repeat-last-n", other_name: Some("repeat_last_n"), value: "N",
        help: "How many recent tokens the three penalties look at, prompt included; 0 for none",
    }
    /// Keep the tokens whose surprisal is nearest to the entropy until their probabilities reach this sum; 1 keeps all.
    typical_p: f32 = 1.0, usually 1.0, Number {
        flag: "typical-p", alias: Some("typical"), value: "P",
        help: "Locally typical sampling: keep the tokens whose surprisal is nearest to the entropy, up to this sum of probabilities; 1 keeps all",
        range: SHARE_ABOVE_0, request: Some([0.0, 1.0]),
    }
    /// Keep logits within so many standard deviations of the highest; 0 and less keeps all.
    top_n_sigma: f32 = 0.0, usually 0.0, Number {
        flag: "top-n-sigma", alias: Some("top-nsigma"), value: "N",
        help: "Keep logits within N standard deviations of the highest; 0 or -1 keeps all",
        range: FINITE, request: Some([-1.0, 1000.0]),
    }
    /// How often XTC cuts; 0 never.
    xtc_probability: f32 = 0.0, usually 0.0, Number {
        flag: "xtc-probability", value: "P",
        help: "XTC: probability of removing all likely tokens but the least likely of them; 0 for never",
        range: SHARE, request: Some([0.0, 1.0]),
    }
    /// The probability from which on XTC takes a token for a likely one; above 0.5 there are never two.
    xtc_threshold: f32 = 0.1, usually 0.1, Number {
        flag: "xtc-threshold", value: "P",
        help: "XTC: tokens with at least this probability are likely",
        range: SHARE, request: Some([0.0, 1.0]),
    }
    /// The temperature is between `temperature` less and more this, by the entropy of the tokens; 0 for a fixed one.
    dynatemp_range: f32 = 0.0, usually 0.0, Number {
        flag: "dynatemp-range", value: "T",
        help: "Dynamic temperature: vary --temperature by up to T with the entropy; 0 for a fixed temperature",
        range: AT_LEAST_0, request: Some([0.0, 10.0]),
    }
    /// The power of the share of the entropy that the dynamic temperature follows.
    dynatemp_exponent: f32 = 1.0, usually 1.0, Number {
        flag: "dynatemp-exponent", alias: Some("dynatemp-exp"), value: "X",
        help: "Dynamic temperature: exponent applied to the normalized entropy",
        range: AT_LEAST_0, request: Some([0.0, 100.0]),
    }
    /// 2 keeps the surprisal of tokens near `mirostat_tau` in place of all cuts; 0 does not.
    mirostat: usize = 0, usually 0, Count {
        flag: "mirostat", value: "N",
        help: "2 for mirostat 2.0, which replaces top-k, top-p and the like; 0 for none",
        request: ANY_WHOLE,
    }
    /// The surprisal that mirostat aims at, in bits.
    mirostat_tau: f32 = 5.0, usually 5.0, Number {
        flag: "mirostat-tau", alias: Some("mirostat-ent"), value: "BITS",
        help: "Mirostat: target surprisal (entropy)",
        range: AT_LEAST_0, request: Some([0.0, 100.0]),
    }
    /// How fast mirostat moves its bound.
    mirostat_eta: f32 = 0.1, usually 0.1, Number {
        flag: "mirostat-eta", alias: Some("mirostat-lr"), value: "X",
        help: "Mirostat: learning rate",
        range: AT_LEAST_0, request: Some([0.0, 10.0]),
    }
    /// The penalty of a repeated sequence of `dry_allowed_length` tokens; 0 for none.
    dry_multiplier: f32 = 0.0, usually 0.0, Number {
        flag: "dry-multiplier", value: "X",
        help: "DRY: penalty for a token that extends a repeated sequence; 0 for none",
        range: AT_LEAST_0, request: Some([0.0, 100.0]),
    }
    /// The penalty grows by this factor with every further token of the sequence.
    dry_base: f32 = 1.75, usually 1.75, Number {
        flag: "dry-base", value: "X",
        help: "DRY: factor by which the penalty grows with each token of the sequence",
        range: AT_LEAST_1, request: Some([1.0, 100.0]),
    }
    /// The longest sequence that may be repeated without a penalty, and one token more.
    dry_allowed_length: usize = 2, usually 2, Count {
        flag: "dry-allowed-length", value: "N",
        help: "DRY: shortest repeated sequence that is penalized, in tokens; longer ones more",
        request: ANY_WHOLE,
    }
    /// How many of the last tokens DRY looks at; `None` for all.
    dry_penalty_last_n: Option<usize> = None, usually None, Window {
        flag: "dry-penalty-last-n", value: "N",
        help: "DRY: how many recent tokens to look at; -1 for all, 0 for none",
        request: ANY_WHOLE,
    }
    /// Nothing but its length, and stop strings, ends a text.
    ignore_eos: bool = false, usually false, Flag {
        flag: "ignore-eos", value: "on",
        help: "Do not let the model end the text (ignore end-of-text tokens)",
        request: ANY_WHOLE,
    }
    /// The steps of the chain in their order; those left out are not done.
    samplers: SamplerOrder = SamplerOrder::USUAL, usually SamplerOrder::USUAL, Order {
        flag: "samplers", alias: Some("sampling-seq"), value: "NAMES",
        help: "Sampler steps in order, separated by ; (or llama.cpp's letters); steps not listed are skipped",
        request: ANY_WHOLE,
    }
    /// Makes a run repeatable; `None` picks a seed.
    seed: Option<u64> = None, usually None, Seed {
        flag: "seed", short: Some('s'), value: "N",
        help: "Random seed: the same seed gives the same text; -1, or none, differs every run",
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
        if ![0, 2].contains(&self.mirostat) {
            let (value, range) = (self.mirostat as f32, "0 or 2");
            return Err(SampleError::BadSetting { name: "mirostat", value, range });
        }
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
