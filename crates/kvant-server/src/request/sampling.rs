//! The fields that chats and texts have in common.

use super::format::answer_format;
use crate::app::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, whole};
use crate::models::Served;
use kvant_engine::grammar::Grammar;
use kvant_engine::sampler::{SamplerOrder, SettingValue};
use kvant_engine::{SAMPLING, SamplingParams};
use serde_json::Value;

/// What stands for minus infinity while pairs are read.
const FORBIDDEN: &str = "forbidden";

/// How tokens are chosen, when to stop, and what to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How tokens are chosen; the first answer's seed.
    pub sampling: SamplingParams,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// What every answer has to be.
    pub grammar: Option<Grammar>,
    /// Answers to each prompt.
    pub n: usize,
    /// As they come, in place of all at once.
    pub stream: bool,
    /// A stream's last piece tells what it took.
    pub include_usage: bool,
    /// May begin with what others have read.
    pub cache_prompt: bool,
}

impl Settings {
    /// Those of a request that says nothing.
    pub fn usual(served: &Served) -> Self {
        Self {
            sampling: served.sampling.clone(),
            stop: Vec::new(),
            grammar: None,
            n: 1,
            stream: false,
            include_usage: false,
            cache_prompt: true,
        }
    }

    /// Reads them, and drops what cannot change an answer.
    pub fn read(fields: &mut Fields, served: &Served, limits: &Limits) -> Result<Self, ApiError> {
        let mut sampling = sampling(fields, served)?;
        sampling.logit_bias = biases(fields, limits.biases)?;
        sampling.dry_breakers = breakers(fields, served, limits)?.map(Into::into);
        let stream = fields.flag("stream")?.unwrap_or(false);
        let settings = Self {
            sampling,
            stop: stops(fields, limits.stops, limits.stop_bytes)?,
            grammar: answer_format(fields, limits.format_bytes)?,
            n: fields.integer("n", 1..=limits.answers as u64)?.unwrap_or(1) as usize,
            stream,
            include_usage: include_usage(fields, stream)?,
            cache_prompt: fields.flag("cache_prompt")?.unwrap_or(true),
        };
        fields.ignore(&[
            "user",
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "service_tier",
            "store",
        ]);
        Ok(settings)
    }

    /// The settings of one of several answers: with seeds of their own they differ.
    pub fn sampling_of(&self, choice: usize) -> SamplingParams {
        let seed = self.sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
        SamplingParams { seed, ..self.sampling.clone() }
    }
}

/// How tokens are chosen: what requests of every protocol say by the names of [`SAMPLING`], over what the model's requests begin
/// with.
pub fn sampling(fields: &mut Fields, served: &Served) -> Result<SamplingParams, ApiError> {
    let mut sampling = served.sampling.clone();
    for setting in SAMPLING {
        let Some([least, most]) = setting.request else { continue };
        let mut given = None;
        for name in setting.request_names() {
            let value = match setting.usual {
                SettingValue::Seed(_) => seed(fields, name)?.map(|seed| SettingValue::Seed(Some(seed))),
                SettingValue::Count(_) => {
                    count(fields, name)?.map(|count| setting.of_number(count.max(0) as f64))
                }
                SettingValue::Window(_) => count(fields, name)?.map(|count| setting.of_number(count as f64)),
                SettingValue::Flag(_) => fields.flag(name)?.map(SettingValue::Flag),
                SettingValue::Order(_) => order(fields, name)?.map(SettingValue::Order),
                _ => fields.number(name, least..=most)?.map(|number| setting.of_number(number.into())),
            };
            given = given.or(value);
        }
        if let Some(value) = given {
            (setting.set)(&mut sampling, value);
        }
    }
    Ok(sampling)
}

/// Names of the sampler's steps, as an array or in one text.
fn order(fields: &mut Fields, name: &str) -> Result<Option<SamplerOrder>, ApiError> {
    let text = match fields.take(name) {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(";")
        }
        Some(other) => return Err(fields.wrong(name, "an array of names", &other)),
    };
    let full = fields.name(name);
    SamplerOrder::parse(&text).map(Some).map_err(|why| ApiError::field(&full, format!("{full}: {why}")))
}

/// A whole number from −1, which is 0 or all that there is.
pub fn count(fields: &mut Fields, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    match whole::<i64>(&value) {
        Some(count @ -1..) => Ok(Some(count)),
        _ => Err(fields.wrong(name, "a whole number from -1", &value)),
    }
}

/// Any whole number: negative ones count from the end. The smallest is no seed: JSON's readers take numbers below it for it.
fn seed(fields: &mut Fields, name: &str) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let seed = whole::<u64>(&value)
        .or_else(|| whole::<i64>(&value).filter(|seed| *seed > i64::MIN).map(|seed| seed as u64));
    seed.map(Some).ok_or_else(|| fields.wrong(name, "a whole number of 64 bits", &value))
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        let message = "stream_options may only be given together with stream: true";
        return Err(ApiError::field("stream_options", message));
    }
    let wanted = options.flag("include_usage")?.unwrap_or(false);
    options.ignore(&["include_obfuscation", "continuous_usage_stats"]);
    options.end()?;
    Ok(wanted)
}

/// One string or several.
fn stops(fields: &mut Fields, most: usize, longest: usize) -> Result<Vec<String>, ApiError> {
    named_stops(fields, "stop", most, longest)
}

/// The same under another name.
pub fn named_stops(
    fields: &mut Fields,
    name: &str,
    most: usize,
    longest: usize,
) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take(name) {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(stop) => Ok(stop),
                other => Err(fields.wrong(name, "a string or an array of strings", &other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(fields.wrong(name, "a string or an array of strings", &other)),
    };
    if stops.len() > most {
        return Err(ApiError::field(fields.name(name), format!("at most {most} stop strings may be given")));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > longest) {
        let message = format!("a stop string has at least one byte and at most {longest}");
        return Err(ApiError::field(fields.name(name), message));
    }
    Ok(stops)
}

/// `dry_sequence_breakers`: texts that end the sequences which DRY looks at.
fn breakers(fields: &mut Fields, served: &Served, limits: &Limits) -> Result<Option<Vec<u32>>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    if fields.peek(NAME).is_none() {
        return Ok(None);
    }
    let texts = named_stops(fields, NAME, limits.stops, limits.stop_bytes)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Ok(Some(served.handle.engine().breakers_of(&texts)))
}

/// `{"50256": -100}`: token ids as the names of an object; or llama.cpp's pairs `[[50256, -100], [13, false]]`, where false forbids one.
fn biases(fields: &mut Fields, most: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let entries = match value {
        Value::Object(entries) => entries,
        Value::Array(pairs) if pairs.iter().all(|pair| pair[0].is_u64()) => {
            let one = |pair: &Value| {
                let bias = if pair[1] == false { FORBIDDEN.into() } else { pair[1].clone() };
                (pair[0].to_string(), bias)
            };
            pairs.iter().map(one).collect()
        }
        value => return Err(fields.wrong("logit_bias", "an object from token ids to numbers", &value)),
    };
    if entries.len() > most {
        return Err(ApiError::field("logit_bias", format!("at most {most} tokens may have a bias")));
    }
    let bias = |(name, value): (String, Value)| {
        let id = name.parse().ok();
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let forbids = value == FORBIDDEN;
        let bias = if forbids { Some(f64::NEG_INFINITY) } else { bias };
        id.zip(bias).map(|(id, bias)| (id, bias as f32)).ok_or_else(|| {
            let message = format!("logit_bias: {name:?} must be a token id, with a number from -100 to 100");
            ApiError::field("logit_bias", message)
        })
    };
    entries.into_iter().map(bias).collect()
}
