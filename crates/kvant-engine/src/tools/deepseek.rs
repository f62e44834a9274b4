//! Calls between DeepSeek's tokens: V3.1 writes `name<｜tool▁sep｜>{…}`, R1 and V3 write `function<｜tool▁sep｜>name` and a fenced
//! block of JSON.

use super::{ToolCall, ToolSet, json};

/// Around one call.
pub(super) const CALL: (&str, &str) = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>");

/// Between the parts of a call.
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";

/// Reads calls, each between its tokens.
pub(super) fn calls(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let inner = rest.strip_prefix(CALL.0)?;
        let (inner, after) = inner.split_once(CALL.1).unwrap_or((inner, ""));
        calls.push(call(inner, tools)?);
        rest = after.trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

fn call(inner: &str, tools: &ToolSet) -> Option<ToolCall> {
    let (head, tail) = inner.split_once(SEPARATOR)?;
    match tail.split_once("```json") {
        Some((name, fenced)) if head == "function" => {
            json::arguments(name, fenced.trim_end().strip_suffix("```")?, tools)
        }
        _ => json::arguments(head, tail, tools),
    }
}
