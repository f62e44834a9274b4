//! Other rotary settings than the file's: a base, a scaling rule, and the parameters of YaRN, in llama.cpp's terms.
//!
//! An override belongs to a [`Checkpoint`](crate::Checkpoint), so that whatever describes the model describes it alike, and
//! counts in its [signature](crate::Checkpoint::signature): sessions and plans of other settings are not taken up.
//!
//! It applies to the embedding that the file's scaling rule applies to. Where sliding-window layers have an embedding of their
//! own (Gemma 3, OLMo 3), they keep it.

use crate::description::RopeScaling;
use crate::error::{LoadError, Result};
use std::fmt;
use std::str::FromStr;

/// What to change about a model's rotary embedding; the default changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RopeOverride {
    /// Base of the frequencies.
    pub base: Option<f64>,
    /// The rule in place of the model's own.
    pub rule: Option<RopeRule>,
    /// How many times longer contexts are than the trained ones: the divisor of frequencies.
    pub factor: Option<f64>,
    /// YaRN: context of the first training, in tokens.
    pub original_context: Option<usize>,
    /// YaRN: how much of the trained frequencies fast pairs keep; 1 is all, 0 divides every pair.
    pub extrapolation: Option<f64>,
    /// YaRN: multiplies the usual multiplier of the rotated channels.
    pub attention: Option<f64>,
    /// YaRN: pairs with fewer turns than this within the original context are divided.
    pub beta_slow: Option<f64>,
    /// YaRN: pairs with more turns than this are kept.
    pub beta_fast: Option<f64>,
}

/// A rule that stretches frequencies, by the name of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeRule {
    /// As trained.
    None,
    /// Every frequency is divided.
    Linear,
    /// A ramp from divided to kept frequencies.
    Yarn,
}

impl RopeRule {
    /// The name of every rule.
    pub const NAMES: [&'static str; 3] = ["none", "linear", "yarn"];

    fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for RopeRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "linear" => Ok(Self::Linear),
            "yarn" => Ok(Self::Yarn),
            other => Err(format!("`{other}` is not a scaling rule: write none, linear or yarn")),
        }
    }
}

impl RopeOverride {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether frequencies are scaled in another way than the file says, a new base aside.
    pub fn changes_scaling(&self) -> bool {
        !Self { base: None, ..*self }.is_empty()
    }

    /// The first of the parameters of YaRN that are given, by its flag.
    fn yarn_flag(&self) -> Option<&'static str> {
        [
            (self.original_context.is_some(), "--yarn-orig-ctx"),
            (self.extrapolation.is_some(), "--yarn-ext-factor"),
            (self.attention.is_some(), "--yarn-attn-factor"),
            (self.beta_slow.is_some(), "--yarn-beta-slow"),
            (self.beta_fast.is_some(), "--yarn-beta-fast"),
        ]
        .into_iter()
        .find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Refuses numbers that no embedding has; whatever sets them says so earlier, and by the name of an option.
    fn check(&self) -> Result<()> {
        let positive = [self.base, self.factor, self.attention, self.beta_slow, self.beta_fast];
        let is_sound = positive.into_iter().flatten().all(|x| x.is_finite() && x > 0.0)
            && self.extrapolation.is_none_or(|x| x.is_finite() && x >= 0.0)
            && self.original_context != Some(0);
        match is_sound {
            true => Ok(()),
            false => Err(LoadError::unsupported(format!("rotary settings that cannot be: {self}"))),
        }
    }

    /// The rule that takes the place of a model's own. `truncate` is how the model rounds the ends of YaRN's ramp, `trained` the
    /// context it was first trained on.
    pub(super) fn apply(
        &self,
        own: RopeScaling,
        truncate: bool,
        trained: impl FnOnce() -> Result<usize>,
    ) -> Result<RopeScaling> {
        self.check()?;
        if !self.changes_scaling() {
            return Ok(own);
        }
        let (usual, own_factor) = match &own {
            RopeScaling::None => (Some(RopeRule::Linear), None),
            RopeScaling::Linear { factor } => (Some(RopeRule::Linear), Some(*factor)),
            RopeScaling::Yarn { factor, .. } => (Some(RopeRule::Yarn), Some(*factor)),
            RopeScaling::Llama3 { .. }
            | RopeScaling::LongRope { .. }
            | RopeScaling::Divisors(_)
            | RopeScaling::Proportional { .. }
            | RopeScaling::LargerBase { .. }
            | RopeScaling::Dynamic { .. } => (None, None),
        };
        let rule = self.rule.or(usual).ok_or_else(|| {
            LoadError::unsupported(
                "this model scales its rotary frequencies by a rule of its own; --rope-scaling none, linear or yarn says \
                 what takes its place",
            )
        })?;
        if let Some(flag) = self.yarn_flag().filter(|_| rule != RopeRule::Yarn) {
            let rule = rule.name();
            return Err(LoadError::unsupported(format!(
                "{flag} is a parameter of YaRN, and the rotary scaling is {rule}; add --rope-scaling yarn"
            )));
        }
        let factor = self.factor.or(own_factor).unwrap_or(1.0);
        match rule {
            RopeRule::None if self.factor.is_some() => Err(LoadError::unsupported(
                "--rope-scaling none scales nothing; leave out --rope-scale and --rope-freq-scale, or choose linear or yarn",
            )),
            RopeRule::None => Ok(RopeScaling::None),
            RopeRule::Linear => Ok(RopeScaling::Linear { factor }),
            RopeRule::Yarn => self.yarn(own, factor, truncate, trained),
        }
    }

    fn yarn(
        &self,
        own: RopeScaling,
        factor: f64,
        truncate: bool,
        trained: impl FnOnce() -> Result<usize>,
    ) -> Result<RopeScaling> {
        let usual = |factor: f64| 0.1 * factor.max(1.0).ln() + 1.0;
        // The model's own parameters, or the usual ones; `by` is what it multiplies the usual amplitude with.
        let (context, fast, slow, truncate, mix, amplitude, by) = match own {
            RopeScaling::Yarn {
                factor: own,
                original_context,
                beta_fast,
                beta_slow,
                truncate,
                extrapolation,
                amplitude,
            } => {
                let kept = (own == factor && self.extrapolation.is_none()).then_some(amplitude);
                let by = amplitude / usual(own);
                (Some(original_context), beta_fast, beta_slow, truncate, extrapolation, kept, by)
            }
            _ => (None, 32.0, 1.0, truncate, 1.0, None, 1.0),
        };
        let original_context = match (self.original_context, context) {
            (Some(asked), _) => asked as f64,
            (None, Some(own)) => own,
            (None, None) => trained()? as f64,
        };
        let extrapolation = self.extrapolation.unwrap_or(mix);
        // Without a ramp the usual multiplier falls away, as in llama.cpp.
        let ramped = || by * if extrapolation == 0.0 { 1.0 } else { usual(factor) };
        let (beta_fast, beta_slow) = (self.beta_fast.unwrap_or(fast), self.beta_slow.unwrap_or(slow));
        if beta_fast <= beta_slow {
            return Err(LoadError::unsupported(format!(
                "--yarn-beta-fast {beta_fast} must be more than --yarn-beta-slow {beta_slow}"
            )));
        }
        Ok(RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            truncate,
            extrapolation,
            amplitude: amplitude.unwrap_or_else(ramped) * self.attention.unwrap_or(1.0),
        })
    }
}

/// In a few words: `base 500000, scaling yarn, factor 4`.
impl fmt::Display for RopeOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |name: &str, value: Option<f64>| value.map(|value| format!("{name} {value}"));
        let parts = [
            number("base", self.base),
            self.rule.map(|rule| format!("scaling {}", rule.name())),
            number("factor", self.factor),
            number("original context", self.original_context.map(|tokens| tokens as f64)),
            number("extrapolation", self.extrapolation),
            number("attention factor", self.attention),
            number("beta slow", self.beta_slow),
            number("beta fast", self.beta_fast),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Checkpoint, ConfigSource};
    use crate::config::{ModelConfig, RopeKeys};
    use crate::description::{Description, Pairing, Rope};
    use serde_json::json;

    /// The embedding of a configuration, changed.
    fn rope(more: serde_json::Value, other: &RopeOverride) -> Result<Rope> {
        let mut config = json!({"max_position_embeddings": 4096, "rope_theta": 10000.0});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = ModelConfig::new(ConfigSource::Config(&config))?;
        RopeKeys::usual(Pairing::Halves).read(&config, 64, other, |_| Ok(None))
    }

    #[test]
    fn an_override_is_what_a_configuration_that_says_the_same_would_be() {
        let none = RopeOverride::default();
        let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024});
        let slow = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_slow": 2.0,
            "beta_fast": 16.0});
        let linear = |factor: f64| json!({"rope_scaling": {"rope_type": "linear", "factor": factor}});
        for (own, other, same) in [
            (json!({}), RopeOverride { base: Some(5e5), ..none }, json!({"rope_theta": 5e5})),
            (json!({}), RopeOverride { factor: Some(2.5), ..none }, linear(2.5)),
            (linear(8.0), RopeOverride { rule: Some(RopeRule::None), ..none }, json!({})),
            (linear(8.0), RopeOverride { factor: Some(2.0), ..none }, linear(2.0)),
            (
                json!({}),
                RopeOverride {
                    rule: Some(RopeRule::Yarn),
                    factor: Some(4.0),
                    original_context: Some(1024),
                    ..none
                },
                json!({"rope_scaling": yarn}),
            ),
            (
                json!({"rope_scaling": yarn}),
                RopeOverride { beta_slow: Some(2.0), beta_fast: Some(16.0), ..none },
                json!({"rope_scaling": slow}),
            ),
            // The parameters that the model has already.
            (
                json!({"rope_scaling": yarn}),
                RopeOverride { factor: Some(4.0), extrapolation: Some(1.0), attention: Some(1.0), ..none },
                json!({"rope_scaling": yarn}),
            ),
            (
                json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 512}}),
                RopeOverride { rule: Some(RopeRule::Linear), factor: Some(3.0), ..none },
                linear(3.0),
            ),
        ] {
            assert_eq!(rope(own, &other).unwrap(), rope(same, &none).unwrap(), "{other}");
        }
    }

    #[test]
    fn without_extrapolation_yarn_is_linear_and_its_multiplier_is_the_one_asked_for() {
        let own = json!({});
        let yarn = RopeOverride { rule: Some(RopeRule::Yarn), factor: Some(4.0), ..RopeOverride::default() };
        let flat = rope(own.clone(), &RopeOverride { extrapolation: Some(0.0), ..yarn }).unwrap();
        let linear = RopeOverride { factor: Some(4.0), ..RopeOverride::default() };
        assert_eq!(flat, rope(own.clone(), &linear).unwrap());
        let usual = rope(own.clone(), &yarn).unwrap().amplitude();
        assert_eq!(usual, (0.1 * 4f64.ln() + 1.0) as f32);
        let twice = rope(own, &RopeOverride { attention: Some(2.0), ..yarn }).unwrap();
        assert_eq!(twice.amplitude(), 2.0 * usual);
    }

    #[test]
    fn what_makes_no_embedding_is_refused_with_a_reason() {
        let none = RopeOverride::default();
        let llama3 = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 512}});
        for (own, other, words) in [
            (json!({}), RopeOverride { base: Some(1.0), ..none }, "is not a base"),
            (json!({}), RopeOverride { base: Some(f64::NAN), ..none }, "cannot be"),
            (json!({}), RopeOverride { beta_fast: Some(4.0), ..none }, "add --rope-scaling yarn"),
            (
                json!({}),
                RopeOverride { rule: Some(RopeRule::None), factor: Some(2.0), ..none },
                "scales nothing",
            ),
            (
                json!({}),
                RopeOverride { rule: Some(RopeRule::Yarn), beta_slow: Some(40.0), ..none },
                "must be more than",
            ),
            (llama3, RopeOverride { factor: Some(2.0), ..none }, "says what takes its place"),
        ] {
            let error = rope(own, &other).unwrap_err().to_string();
            assert!(error.contains(words), "{other}: {error}");
        }
    }

    fn fixture(name: &str, other: RopeOverride) -> Checkpoint {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        Checkpoint::open(std::path::Path::new(folder).join(name)).unwrap().with_rope(other)
    }

    #[test]
    fn an_override_is_part_of_the_description_and_of_the_signature() {
        let other = RopeOverride { base: Some(500.0), ..RopeOverride::default() };
        let [own, changed] = [RopeOverride::default(), other].map(|rope| fixture("gemma3", rope));
        assert_ne!(own.signature(), changed.signature());
        assert_eq!(own.signature(), changed.file_signature());
        // Its sliding-window layers have an embedding of their own, and keep it.
        let [own, changed] = [own, changed].map(|checkpoint| Description::of(&checkpoint).unwrap().ropes);
        assert!(own.len() == 2 && own[0] != changed[0] && own[1] == changed[1]);
    }

    #[test]
    fn models_that_an_override_does_not_suit_refuse_it() {
        let none = RopeOverride::default();
        let base = RopeOverride { base: Some(500.0), ..none };
        let factor = RopeOverride { factor: Some(2.0), ..none };
        assert!(Description::of(&fixture("deepseek_v3", base)).is_ok());
        for (name, other, words) in
            [("gpt2", base, "no rotary embedding"), ("deepseek_v3", factor, "only --rope-freq-base applies")]
        {
            let error = Description::of(&fixture(name, other)).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        }
    }
}
