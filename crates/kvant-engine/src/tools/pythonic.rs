//! Calls as Python writes them: `[f(x=1, y='a'), g()]` (LFM2), or one to a line (Olmo 3).

use super::{ToolCall, ToolSet, json};
use serde_json::{Map, Value};

/// Arguments within arguments.
const MAX_DEPTH: usize = 64;

/// Reads them; a list of JSON objects, which LFM2 writes when it is asked to, is understood too.
pub(super) fn calls(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    python(body, tools).or_else(|| json::calls(body, tools))
}

fn python(body: &str, tools: &ToolSet) -> Option<Vec<ToolCall>> {
    let body = body.trim();
    let inner = body.strip_prefix('[').and_then(|body| body.strip_suffix(']')).unwrap_or(body);
    let mut reader = PythonicReader { rest: inner };
    let mut calls = Vec::new();
    loop {
        // Commas between calls, or lines.
        reader.take(',');
        reader.skip();
        if reader.rest.is_empty() {
            break;
        }
        calls.push(reader.call(tools)?);
    }
    (!calls.is_empty()).then_some(calls)
}

struct PythonicReader<'t> {
    rest: &'t str,
}

impl<'t> PythonicReader<'t> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        self.skip();
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn name(&mut self) -> Option<&'t str> {
        self.skip();
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let name = &self.rest[..end];
        self.rest = &self.rest[end..];
        (!name.is_empty()).then_some(name)
    }

    fn call(&mut self, tools: &ToolSet) -> Option<ToolCall> {
        let name = self.name()?;
        if !self.take('(') {
            return None;
        }
        let mut arguments = Map::new();
        while !self.take(')') {
            let key = self.name()?;
            if !self.take('=') {
                return None;
            }
            if arguments.insert(key.to_owned(), self.value(MAX_DEPTH)?).is_some() {
                return None;
            }
            self.between(')')?;
        }
        tools.call_with(name, arguments)
    }

    /// A comma, or what closes.
    fn between(&mut self, close: char) -> Option<()> {
        (self.take(',') || self.rest.starts_with(close)).then_some(())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.skip();
        match self.rest.chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            open @ ('[' | '(') => {
                self.take(open);
                let close = if open == '[' { ']' } else { ')' };
                let mut items = Vec::new();
                while !self.take(close) {
                    items.push(self.value(depth)?);
                    self.between(close)?;
                }
                Some(items.into())
            }
            '{' => {
                self.take('{');
                let mut map = Map::new();
                while !self.take('}') {
                    let Value::String(key) = self.value(depth)? else { return None };
                    if !self.take(':') {
                        return None;
                    }
                    if map.insert(key, self.value(depth)?).is_some() {
                        return None;
                    }
                    self.between('}')?;
                }
                Some(map.into())
            }
            _ => {
                let end = self.rest.find([',', ')', ']', '}']).unwrap_or(self.rest.len());
                let word = self.rest[..end].trim();
                self.rest = &self.rest[end..];
                match word {
                    "True" => Some(true.into()),
                    "False" => Some(false.into()),
                    "None" => Some(Value::Null),
                    word => serde_json::from_str(word).ok(),
                }
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[1 + at + c.len_utf8()..];
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'u' => {
                        let hex: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        text.push(char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?);
                    }
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    // Python keeps a backslash that escapes nothing.
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        None
    }
}
