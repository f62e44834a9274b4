//! Calls as Gemma 4 writes them: `call:name{key:value,…}`. Strings stand between `<|"|>` tokens, and keys without quotes.

use super::{ToolCall, ToolSet};
use serde_json::{Map, Value};

/// Around a string.
pub(super) const QUOTE: &str = "<|\"|>";

/// Arguments within arguments.
const MAX_DEPTH: usize = 64;

/// Reads one call; none if anything else is in the text.
pub(super) fn call(body: &str, tools: &ToolSet) -> Option<ToolCall> {
    let body = body.trim().strip_prefix("call:")?;
    let brace = body.find('{')?;
    let mut reader = GemmaReader { rest: &body[brace..] };
    let arguments = reader.value(MAX_DEPTH)?;
    reader.rest.trim().is_empty().then(|| tools.call(body[..brace].trim(), arguments))?
}

struct GemmaReader<'t> {
    rest: &'t str,
}

impl<'t> GemmaReader<'t> {
    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn string(&mut self) -> Option<&'t str> {
        let (text, rest) = self.rest.split_once(QUOTE)?;
        self.rest = rest;
        Some(text)
    }

    /// Up to what ends it.
    fn word(&mut self, ends: &[char]) -> Option<&'t str> {
        let end = self.rest.find(ends)?;
        let word = self.rest[..end].trim();
        self.rest = &self.rest[end..];
        Some(word)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        if self.take(QUOTE) {
            return Some(self.string()?.into());
        }
        if self.take("{") {
            let mut map = Map::new();
            while !self.take("}") {
                let key = match self.take(QUOTE) {
                    true => self.string()?,
                    false => self.word(&[':', ',', '}'])?,
                };
                if !self.take(":") {
                    return None;
                }
                if map.insert(key.to_owned(), self.value(depth)?).is_some() {
                    return None;
                }
                if !self.take(",") && !self.rest.trim_start().starts_with('}') {
                    return None;
                }
            }
            return Some(map.into());
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                items.push(self.value(depth)?);
                if !self.take(",") && !self.rest.trim_start().starts_with(']') {
                    return None;
                }
            }
            return Some(items.into());
        }
        let word = self.word(&[',', '}', ']'])?;
        match word {
            "" => None,
            "None" => Some(Value::Null),
            // A string whose quotes were forgotten is one all the same.
            word => Some(serde_json::from_str(word).unwrap_or_else(|_| word.into())),
        }
    }
}
