//! Tool calls: functions that a model may ask its caller to call.
//!
//! Tools go into the prompt through the chat template (`RenderOptions::tools`). The template also shows how the model was
//! taught to write calls ([`ToolStyle::detect`]); a [`ReplyParser`](crate::reply::ReplyParser) takes them out of the text as it
//! comes, and [`ToolStyle::grammar`] makes a text a call where one is required. One file for each way to write them.
//!
//! **Invariant:** a model whose way of writing calls is not known has no style. It is never guessed at.

mod call;
mod deepseek;
mod gemma;
mod glm;
mod grammar;
mod json;
mod mistral;
mod pythonic;
mod style;
mod xml;

pub use call::{ToolCall, ToolSet};
pub(crate) use json::fenced_calls;
pub use style::ToolStyle;
pub(crate) use style::{RawCall, is_harmony};
