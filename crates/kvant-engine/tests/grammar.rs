//! Constrained decoding on a tiny vocabulary: whatever the logits, what comes out is what the grammar says.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_engine::grammar::{Grammar, GrammarCompiler, GrammarConstraint};
use kvant_engine::reply::{ChatFormat, ParsedReply, ReplyParser};
use kvant_engine::{Constraint, ConstraintError};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// More than any text here needs.
const LONGEST: usize = 400;

fn tokenizer() -> Tokenizer {
    Tokenizer::of(&Checkpoint::from_gguf(Gguf::from_bytes(tiny::model_bytes(true)).unwrap())).unwrap()
}

/// Numbers without a pattern, from a seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }
}

/// The text that comes of random logits, and whether it ended.
fn text(tokenizer: &Tokenizer, mut constraint: GrammarConstraint, seed: u64) -> (String, bool) {
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15 ^ (seed << 8));
    let mut tokens = Vec::new();
    for _ in 0..LONGEST {
        // Some more than there are tokens, as models pad their vocabularies.
        let mut logits: Vec<f32> = (0..tokenizer.vocab_len() + 3).map(|_| noise.next()).collect();
        constraint.allow(&mut logits).unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert!(logits[best].is_finite(), "something is allowed");
        let token = best as u32;
        constraint.accept(token).unwrap();
        if tokenizer.end_of_generation().contains(&token) {
            return (tokenizer.decode(&tokens).unwrap(), true);
        }
        tokens.push(token);
    }
    (tokenizer.decode(&tokens).unwrap(), false)
}

/// Texts of a grammar by many seeds; all of them end.
fn texts(grammar: &Grammar) -> Vec<String> {
    let tokenizer = tokenizer();
    let first = GrammarCompiler::new(&tokenizer).unwrap().compile(grammar).unwrap();
    let one = |seed| {
        let (text, ended) = text(&tokenizer, first.clone(), seed);
        assert!(ended, "{grammar:?}: {text}");
        text
    };
    (0..20).map(one).collect()
}

#[test]
fn a_schema_is_followed_whatever_the_logits() {
    let grammar = Grammar::JsonSchema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    }));
    let texts = texts(&grammar);
    for text in &texts {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["name", "age", "tags"]);
        assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{text}");
        assert!(value["age"].as_u64().unwrap() <= 130, "{text}");
        assert!(value["tags"].as_array().unwrap().iter().all(|tag| tag == "red" || tag == "green"), "{text}");
        assert!(
            text.contains("\", \"age\": ") && !text.contains('\n'),
            "one space after commas and colons: {text}"
        );
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "the logits decide what is left open");
}

#[test]
fn expressions_and_grammars_are_followed() {
    for text in texts(&Grammar::Regex("[12][0-9]{3}-[01][0-9]".into())) {
        let bytes = text.as_bytes();
        let digits = [0, 1, 2, 3, 5, 6].iter().all(|&i| bytes[i].is_ascii_digit());
        assert!(bytes.len() == 7 && bytes[4] == b'-' && digits && b"12".contains(&bytes[0]), "{text}");
    }
    for text in texts(&Grammar::Lark("start: \"a\" (\",\" item)~1..4\nitem: /[xyz]{2}/".into())) {
        let items: Vec<&str> = text.strip_prefix("a,").unwrap().split(',').collect();
        assert!((1..=4).contains(&items.len()), "{text}");
        assert!(
            items.iter().all(|item| item.len() == 2 && item.bytes().all(|b| b"xyz".contains(&b))),
            "{text}"
        );
    }
}

#[test]
fn a_required_call_is_what_the_parser_of_its_style_finds() {
    let properties = json!({"days": {"enum": [1, 2, 7]}, "unit": {"type": "string", "enum": ["C", "F"]}});
    let days = json!({"type": "object", "properties": properties, "required": ["days"],
                      "additionalProperties": false});
    let functions = [json!({"name": "weather", "parameters": days}), json!({"name": "time"})];
    for signs in
        ["<tool_call>", "\"name\": \"parameters\":", "<TOOLCALL>", "<tool_calls>", "<function=", "<arg_key>"]
    {
        let format = ChatFormat::detect(&format!("{{{{ tools }}}} {signs}"), |_| false);
        let style = format.tools.unwrap();
        let texts = texts(&style.grammar(&functions.each_ref()).unwrap());
        let mut called = Vec::new();
        for text in &texts {
            let parsed = ReplyParser::new(&format, &functions).read(text);
            let ParsedReply { calls, text: said, reasoning } = &parsed;
            let [call] = &calls[..] else { panic!("{style:?}: {text}: {parsed:?}") };
            assert_eq!((said.as_str(), reasoning.as_str()), ("", ""));
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            match call.name.as_str() {
                "weather" => assert!([1, 2, 7].contains(&arguments["days"].as_i64().unwrap()), "{text}"),
                _ => assert_eq!(arguments, json!({})),
            }
            called.push(call.name.clone());
        }
        for name in ["weather", "time"] {
            assert!(called.iter().any(|called| called == name), "{style:?}: {name} is never called");
        }
    }
}

#[test]
fn arguments_that_are_text_stand_as_they_are() {
    let parameters = json!({"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}, "required": ["s"]});
    let function = json!({"name": "f", "parameters": parameters});
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer).unwrap();
    for (signs, text) in [
        (
            "<function=",
            "<tool_call>\n<function=f>\n<parameter=s>\na < b\n\nc\n</parameter>\n</function>\n</tool_call>",
        ),
        ("<arg_key>", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a < b\n\nc</arg_value>\n</tool_call>"),
    ] {
        let format = ChatFormat::detect(&format!("{{{{ tools }}}} {signs}"), |_| false);
        let grammar = format.tools.unwrap().grammar(&[&function]).unwrap();
        let mut constraint = compiler.compile(&grammar).unwrap();
        let of_char = |c: char| {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            (0..tokenizer.vocab_len() as u32)
                .find(|&id| tokenizer.text_bytes(id).is_ok_and(|text| text == bytes))
        };
        for (at, c) in text.char_indices() {
            constraint.accept(of_char(c).unwrap()).unwrap_or_else(|e| panic!("{e}: {}", &text[..at]));
        }
        let calls = ReplyParser::new(&format, std::slice::from_ref(&function)).read(text).calls;
        assert_eq!(calls[0].arguments, json!({"s": "a < b\n\nc"}).to_string());
    }
}

#[test]
fn what_cannot_be_followed_is_refused_with_a_reason() {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(&tokenizer).unwrap();
    for grammar in [
        Grammar::JsonSchema(json!({"type": "nonsense"})),
        Grammar::JsonSchema(json!({"$ref": "https://example.org/schema.json"})),
        Grammar::Lark("start: missing".into()),
        Grammar::Regex("(".into()),
    ] {
        let error = compiler.compile(&grammar).map(drop).unwrap_err();
        assert!(!error.to_string().is_empty(), "{grammar:?}");
    }
    // What is not allowed is not taken either.
    let mut constraint = compiler.compile(&Grammar::Regex("a".into())).unwrap();
    let wrong =
        (0..tokenizer.vocab_len() as u32).find(|&id| tokenizer.text_bytes(id).is_ok_and(|text| text == b"b"));
    assert!(matches!(constraint.accept(wrong.unwrap()), Err(ConstraintError(_))));
}
