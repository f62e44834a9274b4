//! Replies as chat models write them: reasoning, the answer, tool calls.
//!
//! Every family of models has markers of its own for these. A [`ChatFormat`] is what a model's template and vocabulary show of
//! them; a [`ReplyParser`] splits a reply as it comes, however it is cut into pieces.
//!
//! ```
//! use kvant_engine::reply::{ChatFormat, ReplyPart, ReplyParser};
//! use kvant_engine::tools::ToolCall;
//! use serde_json::json;
//!
//! let format = ChatFormat::detect("{% if tools %}<tool_call>{% endif %}<think>", |_| false);
//! let tools = [json!({"type": "function", "function": {"name": "weather"}})];
//! // The prompt has opened the reasoning.
//! let mut parser = ReplyParser::new(&format, &tools).after("<|im_start|>assistant\n<think>\n");
//! assert_eq!(parser.push("Rain?\n</thi"), [ReplyPart::Reasoning("Rain?".into())]);
//! assert_eq!(parser.push("nk>\n\nOne moment. <tool_call>{\"name\": \"wea"), [ReplyPart::Text("One moment. ".into())]);
//! let call = ToolCall { name: "weather".into(), arguments: "{\"city\":\"Oslo\"}".into() };
//! let rest = "ther\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
//! assert_eq!(parser.push(rest), [ReplyPart::Call(call)]);
//! ```
//!
//! Markers are often control tokens, which have no text. [`ChatFormat::marker_tokens`] are to be written by their names
//! ([`Request::markers`](crate::Request::markers)).
//!
//! **Invariant:** what is said does not depend on how it was cut. A call that is malformed, or calls what is not there, is text.

mod format;
mod harmony;
mod markers;
mod parser;
mod tagged;
#[cfg(test)]
mod tests;

pub use format::{ChatFormat, ReasoningStyle};
pub use parser::{ParsedReply, ReplyParser, ReplyPart};
