//! Settings by name, with values that come as text, as JSON or from a model's file.

use super::{SampleError, SamplerOrder, SamplingParams, params::SAMPLING};
use std::collections::BTreeMap;
use std::fmt;

/// A value of a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum SettingValue {
    /// Any number.
    Number(f32),
    /// A number of tokens.
    Count(usize),
    /// A number of last tokens; none for all.
    Window(Option<usize>),
    /// A seed; none for another one each time.
    Seed(Option<u64>),
    /// On or off.
    Flag(bool),
    /// Steps of the chain.
    Order(SamplerOrder),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Count(count) | Self::Window(Some(count)) => count.fmt(f),
            Self::Window(None) => f.write_str("all"),
            Self::Seed(Some(seed)) => seed.fmt(f),
            Self::Seed(None) => f.write_str("random"),
            Self::Flag(on) => on.fmt(f),
            Self::Order(order) => order.fmt(f),
        }
    }
}

/// What a number may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The least.
    pub least: f32,
    /// The least itself is outside.
    pub is_above: bool,
    /// The most.
    pub most: f32,
    /// The same in words.
    pub words: &'static str,
}

pub(super) const FINITE: Range =
    Range { least: f32::MIN, is_above: false, most: f32::MAX, words: "a finite number" };
pub(super) const AT_LEAST_1: Range = Range { least: 1.0, words: "1 or more", ..FINITE };
pub(super) const AT_LEAST_0: Range = Range { least: 0.0, words: "0 or more", ..FINITE };
pub(super) const ABOVE_0: Range = Range { is_above: true, words: "above 0", ..AT_LEAST_0 };
pub(super) const SHARE: Range = Range { most: 1.0, words: "from 0 to 1", ..AT_LEAST_0 };
pub(super) const SHARE_ABOVE_0: Range = Range { most: 1.0, words: "above 0, at most 1", ..ABOVE_0 };

/// Requests may ask for every whole number of the setting's kind.
pub(super) const ANY_WHOLE: Option<[f64; 2]> = Some([f64::NEG_INFINITY, f64::INFINITY]);

impl Range {
    /// Whether a number is within.
    pub fn contains(&self, number: f32) -> bool {
        (self.least..=self.most).contains(&number) && !(self.is_above && number == self.least)
    }
}

/// A setting of the sampler; [`SAMPLING`] has them all.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SamplingSetting {
    /// The field of [`SamplingParams`], and the name in requests, in C and in Python.
    pub name: &'static str,
    /// The flag.
    pub flag: &'static str,
    /// What presets and `/set` call it, where that is not its name; requests may too.
    pub other_name: Option<&'static str>,
    /// The flag's letter.
    pub short: Option<char>,
    /// Another name of the flag.
    pub alias: Option<&'static str>,
    /// What stands for its value in help.
    pub value: &'static str,
    /// What it does.
    pub help: &'static str,
    /// What it is in `kvant run` when nobody says otherwise.
    pub usual: SettingValue,
    /// What a number may be.
    pub range: Range,
    /// The least and the most that requests may ask for, of numbers that are not whole; none where they cannot.
    pub request: Option<[f64; 2]>,
    /// Its name in a GGUF file's `general.sampling.*`; none where models' makers say nothing about it.
    pub makers: Option<&'static str>,
    /// Reads it.
    pub get: fn(&SamplingParams) -> SettingValue,
    /// Sets it to a value of its kind.
    pub set: fn(&mut SamplingParams, SettingValue),
}

impl SamplingSetting {
    /// What a row of the table leaves out.
    pub(super) const UNNAMED: Self = Self {
        name: "",
        flag: "",
        other_name: None,
        short: None,
        alias: None,
        value: "",
        help: "",
        usual: SettingValue::Seed(None),
        range: FINITE,
        request: None,
        makers: None,
        get: |_| SettingValue::Seed(None),
        set: |_, _| {},
    };

    /// The setting of a name, whichever of its names that is.
    pub fn named(name: &str) -> Option<&'static Self> {
        SAMPLING.iter().find(|one| [Some(one.name), one.other_name, one.alias].contains(&Some(name)))
    }

    /// Names that requests have for it.
    pub fn request_names(&self) -> impl Iterator<Item = &'static str> {
        [Some(self.name), self.other_name].into_iter().flatten()
    }

    /// What people call it: presets and `/set`.
    pub fn short_name(&self) -> &'static str {
        self.other_name.unwrap_or(self.name)
    }

    /// Reads a value as people type it.
    ///
    /// # Errors
    /// Says what it has to be.
    pub fn parse(&self, text: &str) -> Result<SettingValue, String> {
        let whole = || text.parse::<usize>().map_err(|_| format!("`{text}` is not a whole number from 0"));
        Ok(match self.usual {
            SettingValue::Number(_) => {
                SettingValue::Number(text.parse().map_err(|_| format!("`{text}` is not a number"))?)
            }
            SettingValue::Count(_) => SettingValue::Count(whole()?),
            SettingValue::Window(_) if ["all", "-1"].contains(&text) => SettingValue::Window(None),
            SettingValue::Window(_) => SettingValue::Window(Some(whole()?)),
            SettingValue::Seed(_) if ["-1", "random"].contains(&text) => SettingValue::Seed(None),
            SettingValue::Seed(_) => SettingValue::Seed(Some(
                text.parse().map_err(|_| format!("`{text}` is not a whole number, or -1"))?,
            )),
            SettingValue::Flag(_) => SettingValue::Flag(match text {
                "true" | "on" | "1" => true,
                "false" | "off" | "0" => false,
                _ => return Err(format!("`{text}` is neither true nor false")),
            }),
            SettingValue::Order(_) => SettingValue::Order(SamplerOrder::parse(text)?),
        })
    }

    /// A number as a value of its kind: what is not whole loses its fraction, what is negative counts nothing, or all that there is. The end of a range
    /// that is not within it becomes the nearest number that is.
    pub fn of_number(&self, number: f64) -> SettingValue {
        match self.usual {
            SettingValue::Number(_) => {
                let single = number as f32;
                let is_end = self.range.is_above && single == self.range.least;
                SettingValue::Number(if is_end { single + f32::MIN_POSITIVE } else { single })
            }
            SettingValue::Count(_) => SettingValue::Count(number as usize),
            SettingValue::Window(_) => SettingValue::Window((number >= 0.0).then_some(number as usize)),
            SettingValue::Seed(_) => SettingValue::Seed(Some(number as u64)),
            SettingValue::Flag(_) => SettingValue::Flag(number != 0.0),
            // No number says an order.
            SettingValue::Order(order) => SettingValue::Order(order),
        }
    }

    pub(super) fn check(&self, value: SettingValue) -> Result<(), SampleError> {
        match value {
            SettingValue::Number(value) if !self.range.contains(value) => {
                Err(SampleError::BadSetting { name: self.name, value, range: self.range.words })
            }
            _ => Ok(()),
        }
    }
}

/// Settings that somebody has given: flags, a preset, a request, a model's makers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOverrides(BTreeMap<&'static str, SettingValue>);

impl SamplingOverrides {
    /// Gives a setting a value of its kind.
    pub fn insert(&mut self, setting: &SamplingSetting, value: SettingValue) {
        self.0.insert(setting.name, value);
    }

    /// Settings by their names from a JSON object; `null` says nothing.
    ///
    /// # Errors
    /// If there is no such setting, or it cannot have that value; both are named.
    pub fn from_object(object: &serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let mut given = Self::default();
        for (name, value) in object {
            match value {
                serde_json::Value::Null => {}
                serde_json::Value::String(text) => given.set(name, text)?,
                serde_json::Value::Array(items) => {
                    let names: Vec<&str> = items.iter().filter_map(serde_json::Value::as_str).collect();
                    given.set(name, &names.join(";"))?;
                }
                other => given.set(name, &other.to_string())?,
            }
        }
        Ok(given)
    }

    /// Gives a setting a value as people type it.
    ///
    /// # Errors
    /// As [`SamplingOverrides::from_object`].
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let Some(setting) = SamplingSetting::named(name) else {
            let known: Vec<&str> = SAMPLING.iter().map(|setting| setting.name).collect();
            return Err(format!("there is no setting `{name}`; there are {}", known.join(", ")));
        };
        self.insert(setting, setting.parse(text).map_err(|why| format!("{name}: {why}"))?);
        Ok(())
    }

    /// The value of a setting, where it was given.
    pub fn get(&self, name: &str) -> Option<SettingValue> {
        self.0.get(name).copied()
    }

    /// Takes what others say where these say nothing.
    pub fn or(&mut self, others: &Self) {
        others.0.iter().for_each(|(name, value)| {
            self.0.entry(name).or_insert(*value);
        });
    }

    /// `otherwise` with these in place of its own.
    #[must_use]
    pub fn over(&self, otherwise: SamplingParams) -> SamplingParams {
        self.set_all(otherwise, |_, _| true)
    }

    /// The same; what is out of range is left out.
    #[must_use]
    pub fn valid_over(&self, otherwise: SamplingParams) -> SamplingParams {
        self.set_all(otherwise, |setting, value| setting.check(value).is_ok())
    }

    fn set_all(
        &self,
        mut params: SamplingParams,
        may: impl Fn(&SamplingSetting, SettingValue) -> bool,
    ) -> SamplingParams {
        for setting in SAMPLING {
            if let Some(value) = self.get(setting.name).filter(|value| may(setting, *value)) {
                (setting.set)(&mut params, value);
            }
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_settings_once() {
        let mut seen = BTreeSet::new();
        for setting in SAMPLING {
            let names: BTreeSet<&str> = setting.request_names().chain(setting.alias).collect();
            for name in names {
                assert!(seen.insert(name), "{name} is two settings");
                assert_eq!(SamplingSetting::named(name).unwrap().name, setting.name);
            }
            assert!(!setting.help.is_empty() && !setting.value.is_empty(), "{}", setting.name);
            assert_eq!(setting.flag, setting.short_name().replace('_', "-"));
        }
        assert!(SamplingSetting::named("warmth").is_none());
    }

    #[test]
    fn the_usual_and_the_neutral_values_are_in_range_and_can_be_written() {
        for params in [SamplingParams::usual(), SamplingParams::default()] {
            params.check().unwrap();
            for setting in SAMPLING {
                let (value, mut again) = ((setting.get)(&params), params.clone());
                (setting.set)(&mut again, value);
                assert_eq!(again, params, "{}", setting.name);
                assert_eq!(setting.parse(&value.to_string()), Ok(value), "{}", setting.name);
            }
        }
    }

    #[test]
    fn the_end_of_an_open_range_becomes_a_number_within() {
        let top_p = SamplingSetting::named("top_p").unwrap();
        let SettingValue::Number(number) = top_p.of_number(0.0) else { panic!("a number") };
        assert!(number > 0.0 && top_p.check(SettingValue::Number(number)).is_ok());
        assert_eq!(SamplingSetting::named("top_k").unwrap().of_number(-1.0), SettingValue::Count(0));
    }

    #[test]
    fn what_is_given_goes_over_what_is_not() {
        let top_k = SamplingSetting::named("top_k").unwrap();
        let top_p = SamplingSetting::named("top_p").unwrap();
        let (mut first, mut second) = (SamplingOverrides::default(), SamplingOverrides::default());
        first.insert(top_k, SettingValue::Count(3));
        second.insert(top_k, SettingValue::Count(9));
        second.insert(top_p, SettingValue::Number(7.0));
        first.or(&second);
        let params = first.over(SamplingParams::usual());
        assert_eq!((params.top_k, params.top_p, params.min_p), (3, 7.0, 0.05));
        assert_eq!(first.valid_over(SamplingParams::usual()).top_p, 0.95);
    }
}
