//! Calls as GLM-4.5 and later write them: the name, then `<arg_key>x</arg_key><arg_value>1</arg_value>` for each argument.

use super::{ToolCall, ToolSet};
use serde_json::Map;

/// Reads one; none if anything else is in the text.
pub(super) fn call(body: &str, tools: &ToolSet) -> Option<ToolCall> {
    let end = body.find("<arg_key>").unwrap_or(body.len());
    let (name, mut rest) = (body[..end].trim(), body[end..].trim_end());
    let mut arguments = Map::new();
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let (value, after) = after.trim_start().strip_prefix("<arg_value>")?.split_once("</arg_value>")?;
        let value = tools.argument(name, key.trim(), value);
        if arguments.insert(key.trim().to_owned(), value).is_some() {
            return None;
        }
        rest = after.trim_start();
    }
    tools.call_with(name, arguments)
}
