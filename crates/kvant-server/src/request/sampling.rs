//! The fields that chats and texts have in common.

use super::format::answer_format;
use crate::app::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, whole};
use crate::models::Served;
use kvant_engine::SamplingParams;
use kvant_engine::grammar::Grammar;
use serde_json::Value;

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
        let usual = served.sampling.clone();
        let most = served.handle.engine().model().vocabulary() as u64;
        let sampling = SamplingParams {
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(usual.temperature),
            top_p: top_p(fields)?.unwrap_or(usual.top_p),
            top_k: top_k(fields, most)?.unwrap_or(usual.top_k),
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(usual.min_p),
            repetition_penalty: repetition(fields, "repetition_penalty")?
                .or(repetition(fields, "repeat_penalty")?)
                .unwrap_or(usual.repetition_penalty),
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            penalty_window: usual.penalty_window,
            logit_bias: [biases(fields, limits.biases)?, endings(fields, served)?].concat(),
            seed: seed(fields)?.or(usual.seed),
        };
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

/// Above 0, which a range of two ends cannot say; 0 itself means the likeliest token to some clients.
pub fn top_p(fields: &mut Fields) -> Result<Option<f32>, ApiError> {
    Ok(fields.number("top_p", 0.0..=1.0)?.map(|top_p| top_p.max(f32::MIN_POSITIVE)))
}

/// 0 and, as some clients have it, −1 keep all tokens.
pub fn top_k(fields: &mut Fields, most: u64) -> Result<Option<usize>, ApiError> {
    match fields.take("top_k") {
        None => Ok(None),
        Some(value) => match whole::<i64>(&value) {
            Some(-1) => Ok(Some(0)),
            Some(count @ 0..) => Ok(Some((count as u64).min(most) as usize)),
            _ => Err(fields.wrong("top_k", "a whole number from -1", &value)),
        },
    }
}

pub fn repetition(fields: &mut Fields, name: &str) -> Result<Option<f32>, ApiError> {
    fields.number(name, 0.01..=10.0)
}

/// Any whole number: negative ones count from the end. The smallest is no seed: JSON's readers take numbers below it for it.
pub fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let seed = whole::<u64>(&value)
        .or_else(|| whole::<i64>(&value).filter(|seed| *seed > i64::MIN).map(|seed| seed as u64));
    seed.map(Some).ok_or_else(|| fields.wrong("seed", "a whole number of 64 bits", &value))
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

/// With `ignore_eos` nothing but its length ends an answer: to measure with, and to test.
fn endings(fields: &mut Fields, served: &Served) -> Result<Vec<(u32, f32)>, ApiError> {
    let tokenizer = served.handle.engine().tokenizer();
    let ends = match fields.flag("ignore_eos")? {
        Some(true) => tokenizer.end_of_generation(),
        _ => &[],
    };
    Ok(ends.iter().map(|&id| (id, f32::NEG_INFINITY)).collect())
}

/// `{"50256": -100}`: token ids as the names of an object.
fn biases(fields: &mut Fields, most: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(entries) = value else {
        return Err(fields.wrong("logit_bias", "an object from token ids to numbers", &value));
    };
    if entries.len() > most {
        return Err(ApiError::field("logit_bias", format!("at most {most} tokens may have a bias")));
    }
    let bias = |(name, value): (String, Value)| {
        let id = name.parse().ok();
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        id.zip(bias).map(|(id, bias)| (id, bias as f32)).ok_or_else(|| {
            let message = format!("logit_bias: {name:?} must be a token id, with a number from -100 to 100");
            ApiError::field("logit_bias", message)
        })
    };
    entries.into_iter().map(bias).collect()
}
