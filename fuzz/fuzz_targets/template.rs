//! Any text as a chat template: compiled and run over a conversation, or refused; within its bounds, and the same text every time.
#![no_main]

use kvant_text::chat::{ChatTemplate, Message, RenderOptions};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

/// The most that a template may write.
const MOST: usize = 64 << 20;

fuzz_target!(|text: &str| {
    let Ok(template) = ChatTemplate::new(text) else { return };
    assert_eq!(template.source(), text);
    let call =
        json!({"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, "y"]}}});
    let messages = [
        Message::new("system", "Be short."),
        Message::new("user", " Hi \u{1F600}\n").with("name", "a"),
        Message::calling(Some("I call.".into()), vec![call]),
        Message::new("tool", "{\"y\": 3}"),
    ];
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}});
    let options = RenderOptions { tools: vec![tool], ..RenderOptions::default() };
    if let Ok(text) = template.render(&messages, &options) {
        assert!(text.len() <= MOST);
    }
});
