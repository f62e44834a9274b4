//! Any text as the reply of any family of models: parsed the same in pieces and as a whole, and nothing panics.
#![no_main]

use kvant_engine::reply::{ChatFormat, ParsedReply, ReplyParser};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::sync::LazyLock;

/// Formats of released families, by what their templates contain.
static FORMATS: LazyLock<Vec<ChatFormat>> = LazyLock::new(|| {
    let templates = [
        include_str!("../../crates/kvant-text/tests/data/chat/qwen2.5.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/qwen3.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/qwen3.5.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/mistral.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/deepseek.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/harmony.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/glm4.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/minimax.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/gemma4.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/lfm2.jinja"),
        include_str!("../../crates/kvant-text/tests/data/chat/families/seed_oss.jinja"),
    ];
    templates.iter().map(|template| ChatFormat::detect(template, |_| true)).collect()
});

fuzz_target!(|input: (u8, u8, &str)| {
    let (format, piece, text) = input;
    let format = &FORMATS[usize::from(format) % FORMATS.len()];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"x": {"type": "string"}, "n": {"type": "integer"}}}}})];
    let whole = ReplyParser::new(format, &tools).read(text);
    let mut parser = ReplyParser::new(format, &tools);
    let mut pieces = ParsedReply::default();
    let letters: Vec<char> = text.chars().collect();
    for part in letters.chunks(usize::from(piece) % 7 + 1) {
        pieces.extend(parser.push(&part.iter().collect::<String>()));
    }
    pieces.extend(parser.finish());
    assert_eq!((&whole.reasoning, &whole.text), (&pieces.reasoning, &pieces.text));
    assert_eq!(whole.calls.len(), pieces.calls.len());
});
