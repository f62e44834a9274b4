//! Calls as elements, one parameter each: `<function=f><parameter=x>1</parameter></function>` (Qwen3-Coder, Qwen3.5,
//! Nemotron 3, Seed-OSS) and `<invoke name="f"><parameter name="x">1</parameter></invoke>` (MiniMax, DeepSeek V3.2).
//!
//! Values are written as they are; the schema tells a text from a number.

use super::{ToolCall, ToolSet, json};
use serde_json::{Map, Value};

/// Reads `<function=…>` elements; none unless all of the text is.
pub(super) fn functions(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let (name, mut inner) = rest.strip_prefix("<function=")?.split_once('>')?;
        // Llama 3.1 and functionary write an object instead of elements.
        if inner.trim_start().starts_with('{') {
            let (object, after) = inner.split_once("</function>")?;
            calls.push(json::arguments(name, object, tools)?);
            rest = after.trim_start();
            continue;
        }
        let mut arguments = Map::new();
        let after = loop {
            inner = inner.trim_start();
            if let Some(after) = inner.strip_prefix("</function>") {
                break after;
            }
            let (key, value) = inner.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, after) = value.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let value = tools.argument(name.trim(), key.trim(), value);
            if arguments.insert(key.trim().to_owned(), value).is_some() {
                return None;
            }
            inner = after;
        };
        calls.push(tools.call_with(name.trim(), arguments)?);
        rest = after.trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

/// Reads `<invoke …>` elements whose tags begin with `prefix`; none unless all of the text is.
pub(super) fn invocations(body: &str, prefix: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    let open = |element: &str| format!("<{prefix}{element} name=\"");
    let close = |element: &str| format!("</{prefix}{element}>");
    let (invoke, parameter) = (open("invoke"), open("parameter"));
    let (end, parameter_end) = (close("invoke"), close("parameter"));
    let mut calls = Vec::new();
    let mut rest = body.trim();
    while !rest.is_empty() {
        let (name, inner) = rest.strip_prefix(invoke.as_str())?.split_once('"')?;
        let mut inner = inner.trim_start().strip_prefix('>')?;
        let mut arguments = Map::new();
        let after = loop {
            inner = inner.trim_start();
            if let Some(after) = inner.strip_prefix(end.as_str()) {
                break after;
            }
            let (key, value) = inner.strip_prefix(parameter.as_str())?.split_once('"')?;
            // DeepSeek says which values are strings.
            let (attributes, value) = value.split_once('>')?;
            let (value, after) = value.split_once(parameter_end.as_str())?;
            let value = match attributes.trim() {
                "string=\"true\"" => Value::String(value.to_owned()),
                "string=\"false\"" => serde_json::from_str(value).ok()?,
                "" => tools.argument(name, key, value),
                _ => return None,
            };
            if arguments.insert(key.to_owned(), value).is_some() {
                return None;
            }
            inner = after;
        };
        calls.push(tools.call_with(name, arguments)?);
        rest = after.trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}
