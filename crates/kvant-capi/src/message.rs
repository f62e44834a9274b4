//! Turns of a conversation.

use crate::memory::{optional_text, text};
use crate::status::Failure;
use kvant_text::chat::Message;
use serde_json::{Map, Value};
use std::ffi::c_char;

/// One turn of a conversation. This structure never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvantMessage {
    /// "system", "user", "assistant", "tool", or what else the template knows.
    pub role: *const c_char,
    /// What is said; NULL for a turn that only calls tools.
    pub content: *const c_char,
    /// Further fields as a JSON object: tool_calls, tool_call_id, name, reasoning_content. NULL for none.
    pub fields: *const c_char,
}

/// The conversation as templates know it.
///
/// # Safety
/// What its pointers lead to is as the header says.
pub(crate) unsafe fn conversation(messages: &[KvantMessage]) -> Result<Vec<Message>, Failure> {
    let turn = |(index, message): (usize, &KvantMessage)| {
        // SAFETY: the caller's contract.
        unsafe { turn(message) }.map_err(|e| e.of(format!("message {index}")))
    };
    messages.iter().enumerate().map(turn).collect()
}

/// # Safety
/// As [`conversation`].
unsafe fn turn(message: &KvantMessage) -> Result<Message, Failure> {
    // SAFETY: the caller's contract.
    let (role, content, fields) = unsafe {
        (
            text(message.role, "role")?,
            optional_text(message.content, "content")?.map(str::to_owned),
            optional_text(message.fields, "fields")?,
        )
    };
    let fields = fields.map(serde_json::from_str::<Map<String, Value>>).transpose();
    let mut fields = fields
        .map_err(|e| Failure::argument(format!("fields are not a JSON object: {e}")))?
        .unwrap_or_default();
    let mut turn = match fields.remove("tool_calls") {
        Some(Value::Array(calls)) => Message::calling(content, calls),
        Some(_) => return Err(Failure::argument("fields: tool_calls is not an array")),
        None => Message { role: String::new(), content, fields: Map::new() },
    };
    role.clone_into(&mut turn.role);
    turn.fields.extend(fields);
    Ok(turn)
}
