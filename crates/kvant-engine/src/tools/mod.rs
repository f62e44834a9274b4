//! Tool calls: functions that a model may ask its caller to call.
//!
//! Tools go into the prompt through the chat template (`RenderOptions::tools`). The template also shows how the model was
//! taught to write calls ([`ToolStyle::detect`]); a [`ToolCallParser`] takes them out of the text as it comes, and
//! [`ToolStyle::grammar`] makes a text a call where one is required.
//!
//! ```
//! use kvant_engine::tools::{ReplyPart, ToolCall, ToolCallParser, ToolStyle};
//!
//! let style = ToolStyle::detect("{% if tools %}Write <tool_call>{…}</tool_call>{% endif %}").unwrap();
//! let mut parser = ToolCallParser::new(style, vec!["weather".into()]);
//! assert_eq!(parser.push("One moment. <tool_call>{\"name\": \"wea"), [ReplyPart::Text("One moment. ".into())]);
//! let call = ToolCall { name: "weather".into(), arguments: "{\"city\":\"Oslo\"}".into() };
//! let rest = "ther\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
//! assert_eq!(parser.push(rest), [ReplyPart::Call(call)]);
//! ```
//!
//! **Invariant:** a model whose way of writing calls is not known has no style. It is never guessed at.

mod parser;
mod style;

pub use parser::{ReplyPart, ToolCall, ToolCallParser};
pub use style::ToolStyle;
