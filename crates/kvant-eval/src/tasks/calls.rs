//! Tool calls by an agent, deep in what it has done so far: is the call an object of the form asked for, with the right arguments?
//!
//! A transcript of files, logs and earlier calls is made up; a call is asked for whose arguments stand somewhere in it. The answer is
//! written, not compared token by token: the model has to find the value *and* keep to the form.
//!
//! ```text
//! user       You are an agent … {"name": TOOL, "arguments": {…}} …
//! assistant  {"name": "read_file", "arguments": {"path": "/srv/app-48213.toml", "first_line": 1, "last_line": 12}}
//! user       Result: # settings of the service brisk-harbour …
//! …
//! user       Read lines 3 to 9 of the settings of the service brisk-harbour again.
//! ```

use super::answer::Asker;
use super::lines::names;
use super::random::Random;
use super::report::Score;
use super::{Step, exact};
use crate::error::EvalError;
use kvant_cache::Mode;
use kvant_engine::{Engine, Policy, PromptError};
use kvant_text::chat::Message;
use serde_json::{Value, json};

/// Calls that are asked for in a transcript.
pub const CALLS: usize = 10;
/// The most tokens of an answer.
const LENGTH: usize = 80;

const TASK: &str = "You are an agent that looks after the services of a computer. You act by calling tools. To call one, reply with \
one JSON object and nothing else:\n{\"name\": TOOL, \"arguments\": {…}}\n\nThe tools and their arguments:\n\
read_file: path (string), first_line (number), last_line (number)\n\
run_command: command (string), timeout_seconds (number)\n\
open_ticket: service (string), code (number), severity (number)\n\nBegin.";

/// What has been done about a service, and a call that needs it.
struct Turn {
    call: String,
    result: String,
    request: String,
    expected: Value,
}

impl Turn {
    fn new(service: &str, kind: usize, random: &mut Random) -> Self {
        let number = 10_000 + random.below(90_000);
        let (first, count) = (2 + random.below(40), 1 + random.below(20));
        let (call, heading, request, expected) = match kind {
            0 => {
                let path = format!("/srv/app-{number}.toml");
                (
                    json!({"name": "read_file", "arguments": {"path": path, "first_line": 1, "last_line": 80}}),
                    format!("# settings of the service {service}"),
                    format!(
                        "Read lines {first} to {} of the settings of the service {service} again.",
                        first + count
                    ),
                    json!({"name": "read_file", "arguments": {"path": path, "first_line": first, "last_line": first + count}}),
                )
            }
            1 => (
                json!({"name": "run_command", "arguments": {"command": format!("tail /var/log/{service}.log"), "timeout_seconds": 5}}),
                format!("ERROR {service}: the request failed with code {number}"),
                format!(
                    "Open a ticket for the service {service} with the code of its error and severity {count}."
                ),
                json!({"name": "open_ticket", "arguments": {"service": service, "code": number, "severity": count}}),
            ),
            _ => {
                let command = format!("restart {service} --shard {number}");
                (
                    json!({"name": "run_command", "arguments": {"command": command, "timeout_seconds": 60}}),
                    format!("restarted {service}"),
                    format!(
                        "Run the command that restarted the service {service} once more, with a timeout of {} seconds.",
                        first + 60
                    ),
                    json!({"name": "run_command", "arguments": {"command": command, "timeout_seconds": first + 60}}),
                )
            }
        };
        let mut result = format!("Result:\n{heading}\n");
        for _ in 0..6 + random.below(6) {
            let line = LINES[random.below(LINES.len())];
            result.push_str(&format!("{line} {}\n", random.below(100_000)));
        }
        Self { call: call.to_string(), result, request, expected }
    }
}

/// What files and logs are full of.
const LINES: [&str; 8] = [
    "workers =",
    "INFO connection accepted from port",
    "cache_bytes =",
    "INFO request answered in microseconds",
    "retry_after =",
    "DEBUG queue length",
    "max_connections =",
    "WARN slow response, bytes",
];

/// A transcript, and calls that are asked for at its end.
pub struct Transcript {
    /// Prompts that share all but their last message.
    pub prompts: Vec<Vec<u32>>,
    /// The calls that are right.
    pub expected: Vec<Value>,
}

impl Transcript {
    /// A transcript of about `context` tokens, answers included; what is asked for is spread over all of it.
    ///
    /// # Errors
    /// If the model cannot be told it, or the context is too short for two turns.
    pub fn new(engine: &Engine, context: usize, seed: u64) -> Result<Self, EvalError> {
        let mut random = Random::new(seed);
        let names = names(&mut random);
        let mut turns: Vec<Turn> = Vec::new();
        let most = context.checked_sub(LENGTH).ok_or(EvalError::ContextTooShort { context })?;
        // Turns are of about one length: estimate, then take away what is too much.
        let length = |turns: &[Turn]| -> Result<usize, EvalError> {
            let longest = turns.iter().map(|turn| turn.request.as_str()).max_by_key(|request| request.len());
            Ok(prompt(engine, turns, longest.unwrap_or_default())?.len())
        };
        for service in &names {
            let enough = turns.len() >= 8 && turns.len().is_multiple_of(8) && length(&turns)? > most;
            if enough {
                break;
            }
            turns.push(Turn::new(service, turns.len() % 3, &mut random));
        }
        while turns.len() > 1 && length(&turns)? > most {
            turns.pop();
        }
        if turns.len() < 2 {
            return Err(EvalError::ContextTooShort { context });
        }
        let asked = CALLS.min(turns.len());
        let places: Vec<usize> = (0..asked).map(|i| (2 * i + 1) * turns.len() / (2 * asked)).collect();
        let prompts = places.iter().map(|&place| prompt(engine, &turns, &turns[place].request));
        Ok(Self {
            prompts: prompts.collect::<Result<_, _>>()?,
            expected: places.iter().map(|&place| turns[place].expected.clone()).collect(),
        })
    }
}

/// The transcript and a request, as the model is told them.
fn prompt(engine: &Engine, turns: &[Turn], request: &str) -> Result<Vec<u32>, EvalError> {
    let begin = [("user", TASK)].into_iter();
    let done =
        turns.iter().flat_map(|turn| [("assistant", turn.call.as_str()), ("user", turn.result.as_str())]);
    // The last result and the request are one message: roles take turns.
    let mut messages: Vec<(&str, String)> =
        begin.chain(done).map(|(role, text)| (role, text.to_owned())).collect();
    if let Some((_, last)) = messages.last_mut() {
        last.push_str(&format!("\n{request}"));
    }
    let tokens = if engine.converses() {
        let messages: Vec<Message> =
            messages.iter().map(|(role, text)| Message::new(*role, text.as_str())).collect();
        engine.chat_prompt(&messages)
    } else {
        let text: String = messages.iter().map(|(role, text)| format!("{role}: {text}\n")).collect();
        engine.text_prompt(&format!("{text}assistant: "))
    };
    tokens.map_err(|e: PromptError| EvalError::Generation { reason: e.to_string() })
}

/// The first object of a text, if it has the form of a call.
pub fn call_in(text: &str) -> Option<Value> {
    let start = text.find('{')?;
    let value = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>().next()?.ok()?;
    (value.get("name")?.is_string() && value.get("arguments")?.is_object()).then_some(value)
}

/// Asks for every call of every transcript with every cache; the first score is that of the exact one. A case is right when name and
/// arguments are, valid when it is a call at all; calls in one transcript are one document.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, or an answer cannot be generated.
pub fn scores(
    engine: &Engine,
    transcripts: &[Transcript],
    caches: &[Policy],
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Score>, EvalError> {
    let (model, tokenizer) = (engine.model(), engine.tokenizer());
    let longest = transcripts.iter().flat_map(|transcript| transcript.prompts.iter().map(Vec::len)).max();
    let capacity = longest.unwrap_or(0) + LENGTH;
    let total =
        (caches.len() + 1) * transcripts.iter().map(|transcript| transcript.prompts.len()).sum::<usize>();
    let (mut truth, mut scores, mut done): (Vec<Vec<u32>>, _, _) = (Vec::new(), Vec::new(), 0);
    for (number, cache) in [exact()].iter().chain(caches).enumerate() {
        let mut asker = Asker::new(model, cache, Mode::Deployed, capacity)?;
        let (mut all, mut place) = (Score::default(), 0);
        for transcript in transcripts {
            let mut score = Score::default();
            for (prompt, expected) in transcript.prompts.iter().zip(&transcript.expected) {
                let text = |found: &[u32]| tokenizer.decode(found).unwrap_or_default();
                let mut over = |found: &[u32]| {
                    let last = found.last().copied().unwrap_or_default();
                    tokenizer.is_end_of_generation(last) || call_in(&text(found)).is_some()
                };
                let found = asker.continuation(prompt, LENGTH, &mut over)?;
                let call = call_in(&text(&found));
                score.valid = (score.valid.0 + usize::from(call.is_some()), score.valid.1 + 1);
                if number == 0 {
                    truth.push(found.clone());
                }
                score.take(f64::from(u8::from(call.as_ref() == Some(expected))), found == truth[place]);
                place += 1;
                done += 1;
                progress(Step { done, total });
            }
            all.add(&score.as_document());
        }
        scores.push(all);
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_from_other_objects() {
        let call = json!({"name": "read_file", "arguments": {"path": "/a"}});
        for text in [call.to_string(), format!("Sure:\n```json\n{call}\n``` and more")] {
            assert_eq!(call_in(&text), Some(call.clone()), "{text}");
        }
        for text in [
            "",
            "none",
            "{}",
            r#"{"name": 3, "arguments": {}}"#,
            r#"{"name": "a", "arguments": []}"#,
            r#"{"name": "a","#,
        ] {
            assert_eq!(call_in(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_asked_for_stands_in_the_turn() {
        let mut random = Random::new(4);
        for kind in 0..3 {
            let turn = Turn::new("brisk-harbour", kind, &mut random);
            assert!(call_in(&turn.call).is_some() && turn.request.contains("brisk-harbour"));
            let stands = |value: &Value| {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                [&turn.call, &turn.result, &turn.request].iter().any(|part| part.contains(&text))
            };
            let arguments = turn.expected["arguments"].as_object().unwrap();
            assert!(arguments.values().all(stands), "{} of {}", turn.expected, turn.result);
        }
    }
}
