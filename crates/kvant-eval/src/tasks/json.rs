//! Requests for JSON objects, tool calls among them: is the answer one, with the keys and types asked for?

use super::report::Score;
use super::{Step, exact};
use crate::error::EvalError;
use kvant_engine::{Engine, Policy, Request, SamplingParams};
use kvant_text::chat::Message;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The most tokens of an answer.
const LENGTH: usize = 128;

/// One request.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    /// What is asked.
    pub prompt: String,
    /// Keys the object must have, with the kinds of their values.
    pub keys: BTreeMap<String, String>,
}

/// The requests that come with kvant.
pub fn prompts() -> Vec<Prompt> {
    serde_json::from_str(include_str!("../../tasks/json.json")).expect("a test reads it")
}

/// Whether a text has a JSON object, and the first one all keys with values of the right kinds.
pub fn is_valid(text: &str, keys: &BTreeMap<String, String>) -> bool {
    let Some(start) = text.find('{') else { return false };
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    let Some(Ok(Value::Object(object))) = values.next() else { return false };
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    keys.iter().all(|(key, wanted)| object.get(key).is_some_and(|value| kind(value) == wanted))
}

/// Asks everything with every cache; the first score is that of the exact one.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, or a prompt cannot be made or answered.
pub fn scores(
    engine: &Arc<Engine>,
    prompts: &[Prompt],
    caches: &[Policy],
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Score>, EvalError> {
    let total = (caches.len() + 1) * prompts.len();
    let (mut truth, mut scores, mut done): (Vec<String>, _, _) = (Vec::new(), Vec::new(), 0);
    for (number, cache) in [exact()].iter().chain(caches).enumerate() {
        let mut score = Score::default();
        for (place, prompt) in prompts.iter().enumerate() {
            let text = answer(engine, cache, prompt)?;
            if number == 0 {
                truth.push(text.clone());
            }
            score.take(f64::from(u8::from(is_valid(&text, &prompt.keys))), text == truth[place]);
            done += 1;
            progress(Step { done, total });
        }
        scores.push(score);
    }
    Ok(scores)
}

fn answer(engine: &Arc<Engine>, cache: &Policy, prompt: &Prompt) -> Result<String, EvalError> {
    let tokens = if engine.converses() {
        engine.chat_prompt(&[Message::new("user", prompt.prompt.as_str())])
    } else {
        engine.text_prompt(&format!("{}\n\nJSON:\n", prompt.prompt))
    };
    let failed = |reason: &dyn std::fmt::Display| EvalError::Generation { reason: reason.to_string() };
    let tokens = tokens.map_err(|e| failed(&e))?;
    let mut session = engine.session(cache.clone(), tokens.len() + LENGTH)?;
    let request = Request {
        prompt: tokens,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(LENGTH),
        ..Request::default()
    };
    let reply = session.generate(&request, &mut |_| ControlFlow::Continue(()));
    Ok(reply.map_err(|e| failed(&e))?.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_and_their_kinds_checked() {
        let keys =
            BTreeMap::from([("a".to_owned(), "number".to_owned()), ("b".to_owned(), "array".to_owned())]);
        for good in [r#"{"a": 1, "b": []}"#, "Sure:\n```json\n{\"b\": [1], \"a\": 2.5, \"c\": null}\n```"] {
            assert!(is_valid(good, &keys), "{good}");
        }
        for bad in
            ["", "no", r#"{"a": 1}"#, r#"{"a": "1", "b": []}"#, r#"{"a": 1, "b": []"#, "[1]", "{'a': 1}"]
        {
            assert!(!is_valid(bad, &keys), "{bad}");
        }
    }

    #[test]
    fn prompts_name_kinds_that_exist() {
        let kinds = ["boolean", "number", "string", "array", "object"];
        assert!(prompts().len() >= 10);
        for prompt in prompts() {
            assert!(
                !prompt.keys.is_empty() && prompt.keys.values().all(|kind| kinds.contains(&kind.as_str()))
            );
            assert!(
                prompt.keys.keys().all(|key| prompt.prompt.contains(&format!("\"{key}\""))),
                "{}",
                prompt.prompt
            );
        }
    }
}
