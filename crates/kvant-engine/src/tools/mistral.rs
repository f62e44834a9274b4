//! Calls after `[TOOL_CALLS]`: a list of JSON objects, or since version 11 of the tokenizer `name[ARGS]{…}`, with `[CALL_ID]`
//! and an id in between for some.

use super::{ToolCall, ToolSet, json};

/// Before an id.
pub(super) const ID: &str = "[CALL_ID]";

/// Before the arguments.
pub(super) const ARGUMENTS: &str = "[ARGS]";

/// Reads what follows one `[TOOL_CALLS]`.
pub(super) fn calls(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    match body.split_once(ARGUMENTS) {
        Some((head, arguments)) => {
            let name = head.split_once(ID).map_or(head, |(name, _)| name);
            Some(vec![json::arguments(name, arguments, tools)?])
        }
        None => json::calls(body, tools),
    }
}
