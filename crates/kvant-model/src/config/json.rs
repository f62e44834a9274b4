//! JSON as Python writes it.

use serde::de::DeserializeOwned;

/// Parses JSON in which `Infinity`, `-Infinity` and `NaN` may stand for numbers, as Python's writer does; they read as null.
///
/// # Errors
/// If the text is not even that.
pub fn parse_json<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    // Nearly no file has such numbers, and its own error is the better one where that is not what is wrong.
    serde_json::from_slice(text)
        .or_else(|error| serde_json::from_slice(&without_infinities(text)).map_err(|_| error))
}

/// The text with `null` for every such number that is not inside a string.
fn without_infinities(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let (mut at, mut in_string) = (0, false);
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        let words: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
        if let Some(word) = words.into_iter().find(|word| !in_string && rest.starts_with(word)) {
            out.extend_from_slice(b"null");
            at += word.len();
            continue;
        }
        let taken = if in_string && byte == b'\\' { rest.len().min(2) } else { 1 };
        in_string ^= byte == b'"';
        out.extend_from_slice(&rest[..taken]);
        at += taken;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn numbers_that_json_has_no_words_for_are_null_outside_strings() {
        let text = br#"{"a": [0.0, Infinity, -Infinity], "b": NaN, "c": "Infinity \" NaN", "Infinity": 1}"#;
        let found: Value = parse_json(text).unwrap();
        assert_eq!(found, json!({"a": [0.0, null, null], "b": null, "c": "Infinity \" NaN", "Infinity": 1}));
        for bad in ["{\"a\": Infinit}", "{\"a\": \"\\", "nan"] {
            assert!(parse_json::<Value>(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
