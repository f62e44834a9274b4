//! A response in Anthropic's words.

use crate::turn::{Ending, Turn, TurnUsage};
use serde_json::{Value, json};

/// A whole message.
pub fn message(id: &str, model: &str, turn: Turn) -> Value {
    let Turn { reasoning, text, calls, ending, usage, .. } = turn;
    let mut content = Vec::new();
    if !reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": reasoning, "signature": ""}));
    }
    if !text.is_empty() || calls.is_empty() {
        content.push(json!({"type": "text", "text": text}));
    }
    for named in calls {
        let input = input(&named.call.arguments);
        content.push(json!({"type": "tool_use", "id": named.id, "name": named.call.name, "input": input}));
    }
    let (reason, stop) = ending_words(ending.as_ref());
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage_of(usage.prompt, usage.cached, usage.generated),
    })
}

/// The arguments of a call, which may only be an object.
fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

/// Why it ended.
pub fn ending_words(ending: Option<&Ending>) -> (Value, Value) {
    match ending {
        None => (Value::Null, Value::Null),
        Some(Ending::Done) => ("end_turn".into(), Value::Null),
        Some(Ending::Stop(stop)) => ("stop_sequence".into(), stop.as_str().into()),
        Some(Ending::Length) => ("max_tokens".into(), Value::Null),
        Some(Ending::Calls) => ("tool_use".into(), Value::Null),
    }
}

/// What it took. Tokens from the cache are no part of the input, as clients of this protocol know it.
pub fn usage_of(prompt: usize, cached: usize, generated: usize) -> Value {
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    })
}

/// The same of a job.
pub fn usage(usage: &TurnUsage) -> Value {
    usage_of(usage.prompt, usage.cached, usage.generated)
}
