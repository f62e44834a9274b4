//! The options that change a model's rotary embedding, by llama.cpp's names.

use super::OpenOptions;
use super::amount::parse_tokens;
use super::setting::{OpenSetting, UNNAMED, parsed};
use kvant_model::config::{RopeOverride, RopeRule};

/// A row of the table.
macro_rules! row {
    ($name:literal, $flag:literal, $value:literal, $help:literal, $set:expr) => {
        OpenSetting {
            name: $name,
            flag: $flag,
            value: $value,
            help: $help,
            set: $set,
            is_rope: true,
            ..UNNAMED
        }
    };
}

pub(super) const FREQ_BASE: OpenSetting = row!(
    "rope_freq_base",
    "rope-freq-base",
    "N",
    "Base of the rotary frequencies [default: the model's own]",
    |options, text| number(text).map(|base| options.rope.base = base)
);

pub(super) const SCALING: OpenSetting = OpenSetting {
    choices: &RopeRule::NAMES,
    ..row!(
        "rope_scaling",
        "rope-scaling",
        "RULE",
        "How rotary frequencies are scaled for longer contexts [default: the model's own rule, or linear]",
        |options, text| parsed(text).map(|rule| options.rope.rule = Some(rule))
    )
};

pub(super) const SCALE: OpenSetting = row!(
    "rope_scale",
    "rope-scale",
    "N",
    "Scale rotary frequencies for contexts N times as long as the trained ones",
    |options, text| factor(&mut options.rope, number(text)?)
);

pub(super) const FREQ_SCALE: OpenSetting = row!(
    "rope_freq_scale",
    "rope-freq-scale",
    "N",
    "Multiply rotary frequencies by N: --rope-scale 4 is --rope-freq-scale 0.25",
    |options, text| factor(&mut options.rope, number(text)?.map(f64::recip))
);

pub(super) const ORIG_CTX: OpenSetting = row!(
    "yarn_orig_ctx",
    "yarn-orig-ctx",
    "TOKENS",
    "YaRN: context of the first training [default: the model's own]",
    |options, text| {
        options.rope.original_context = if text == "0" { None } else { Some(parse_tokens(text)?) };
        Ok(())
    }
);

pub(super) const EXT_FACTOR: OpenSetting = row!(
    "yarn_ext_factor",
    "yarn-ext-factor",
    "N",
    "YaRN: extrapolation mix; 1 keeps the fast frequencies, 0 scales all alike [default: 1]",
    |options, text| {
        let mix = finite(text)?;
        options.rope.extrapolation = (mix >= 0.0).then_some(mix);
        Ok(())
    }
);

pub(super) const ATTN_FACTOR: OpenSetting = row!(
    "yarn_attn_factor",
    "yarn-attn-factor",
    "N",
    "YaRN: multiply the usual scale of attention by N [default: 1]",
    |options, text| number(text).map(|factor| options.rope.attention = factor)
);

pub(super) const BETA_SLOW: OpenSetting = row!(
    "yarn_beta_slow",
    "yarn-beta-slow",
    "N",
    "YaRN: channels that rotate fewer times than this within the original context are scaled [default: 1]",
    |options, text| number(text).map(|beta| options.rope.beta_slow = beta)
);

pub(super) const BETA_FAST: OpenSetting = row!(
    "yarn_beta_fast",
    "yarn-beta-fast",
    "N",
    "YaRN: channels that rotate more times than this within the original context keep their frequency [default: 32]",
    |options, text| number(text).map(|beta| options.rope.beta_fast = beta)
);

fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("`{text}` is not a number"))
}

/// A number above zero; zero and below stand for the model's own, as in llama.cpp.
fn number(text: &str) -> Result<Option<f64>, String> {
    finite(text).map(|number| (number > 0.0).then_some(number))
}

/// Two options set it.
fn factor(rope: &mut RopeOverride, factor: Option<f64>) -> Result<(), String> {
    if rope.factor.is_some() {
        return Err("rope_scale and rope_freq_scale set the same factor: give one of them".to_owned());
    }
    rope.factor = factor;
    Ok(())
}

impl OpenOptions {
    /// What the notes of an opened model say of its rotary settings.
    pub(super) fn note_rope(&self, tables: usize) -> Option<super::OpenNote> {
        let settings = (!self.rope.is_empty()).then(|| self.rope.to_string())?;
        Some(super::OpenNote::Rope { settings, has_others: tables > 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Result<RopeOverride, String> {
        let mut options = OpenOptions::default();
        pairs.iter().try_for_each(|(name, text)| options.set(name, text)).map(|()| options.rope)
    }

    #[test]
    fn rotary_options_are_read_as_llama_cpp_reads_them() {
        let read = set(&[
            ("rope_freq_base", "500000"),
            ("rope_scaling", "yarn"),
            ("rope_freq_scale", "0.25"),
            ("yarn_orig_ctx", "4k"),
            ("yarn_ext_factor", "0.5"),
            ("yarn_attn_factor", "1.5"),
            ("yarn_beta_slow", "2"),
            ("yarn_beta_fast", "16"),
        ])
        .unwrap();
        let expected = RopeOverride {
            base: Some(500_000.0),
            rule: Some(RopeRule::Yarn),
            factor: Some(4.0),
            original_context: Some(4096),
            extrapolation: Some(0.5),
            attention: Some(1.5),
            beta_slow: Some(2.0),
            beta_fast: Some(16.0),
        };
        assert_eq!(read, expected);
        // What stands for the model's own.
        let own = [("rope_freq_base", "0"), ("yarn_orig_ctx", "0"), ("yarn_ext_factor", "-1")];
        assert!(set(&own).unwrap().is_empty());
        assert!(set(&[("rope_scale", "2"), ("rope_freq_scale", "0.5")]).unwrap_err().contains("same factor"));
        assert!(set(&[("rope_scaling", "ntk")]).unwrap_err().contains("none, linear or yarn"));
        assert!(set(&[("rope_scale", "nan")]).unwrap_err().contains("not a number"));
    }
}
