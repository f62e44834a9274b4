//! Calls as JSON: `{"name": …, "arguments": {…}}`, alone, in a list, or one after another.

use super::{ToolCall, ToolSet};
use serde_json::Value;

/// Reads them; none if one of them is not a call of a known function.
pub(super) fn calls(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    let values: Vec<Value> =
        serde_json::Deserializer::from_str(body).into_iter().collect::<Result<_, _>>().ok()?;
    let values = values.into_iter().flat_map(|value| match value {
        Value::Array(items) => items,
        value => vec![value],
    });
    let calls: Vec<ToolCall> = values.map(|value| one(&value, tools)).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

/// Reads the calls before the place where a text was cut, and the bytes that they take. None if nothing was cut, or something before
/// that place is not a call of a known function.
pub(super) fn calls_before_cut(body: &str, tools: &ToolSet) -> Option<(Vec<ToolCall>, usize)> {
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
    let (mut calls, mut end) = (Vec::new(), 0);
    loop {
        match values.next()? {
            Ok(value) => calls.push(one(&value, tools)?),
            Err(error) if error.is_eof() && !calls.is_empty() => return Some((calls, end)),
            Err(_) => return None,
        }
        end = values.byte_offset();
    }
}

/// Reads a block of code; none unless all of it are calls that name their arguments.
pub(crate) fn fenced_calls(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    let values: Value = serde_json::from_str(body).ok()?;
    let has_arguments = |value: &Value| value.get("arguments").or(value.get("parameters")).is_some();
    match &values {
        Value::Array(items) if items.iter().all(has_arguments) => calls(body, tools),
        value if has_arguments(value) => calls(body, tools),
        _ => None,
    }
}

/// The arguments of a call, where only they are JSON.
pub(super) fn arguments(name: &str, body: &str, tools: &ToolSet) -> Option<ToolCall> {
    match serde_json::from_str(body.trim()).ok()? {
        arguments @ Value::Object(_) => tools.call(name.trim(), arguments),
        _ => None,
    }
}

fn one(value: &Value, tools: &ToolSet) -> Option<ToolCall> {
    let given =
        ["arguments", "parameters"].into_iter().filter_map(|key| value.get(key)).find(|v| !v.is_null());
    tools.call(value["name"].as_str()?, given.cloned().unwrap_or_default())
}
