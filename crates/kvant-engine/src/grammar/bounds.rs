//! Bounds of what is given to the compiler, held before it begins.
//!
//! The compiler follows rules, groups and references by calling itself, and merges alternatives one with each other. A text of a few
//! kilobytes can ask for more stack than a thread has, or for more time than anybody waits. What is counted here bounds both; the
//! compiler runs on a thread whose [stack](super::compiler) has room for all of it.
//!
//! **Invariant:** every count is at least what the compiler will meet.

use super::{Grammar, GrammarError};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Bytes of a grammar, an expression, or a schema as text.
pub const MOST_BYTES: usize = 1 << 20;

/// Rules and terminals of a grammar.
pub const MOST_RULES: usize = 4096;

/// Brackets, or values of a schema, inside each other.
pub const MOST_NESTED: usize = 128;

/// Properties of one object of a schema, and names that it requires.
pub const MOST_PROPERTIES: usize = 4096;

/// Levels of a schema with everything that its references lead to, each reference counted once.
pub const MOST_LEVELS: usize = 8192;

/// Alternatives of one part of a schema, where several lists of them apply at once.
pub const MOST_ALTERNATIVES: usize = 1 << 16;

/// Patterns that one text has to keep to at once: the compiler intersects them, and looks for a text that suits all.
pub const MOST_PATTERNS: usize = 4;

/// Checks a grammar of any kind.
pub fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    match grammar {
        Grammar::JsonSchema(schema) => check_schema(schema),
        Grammar::Lark(text) => {
            within("bytes", text.len(), MOST_BYTES)?;
            check_lark(text)
        }
        // How deep its groups may be is the parser's own bound.
        Grammar::Regex(text) => within("bytes", text.len(), MOST_BYTES),
    }
}

fn within(what: &str, found: usize, most: usize) -> Result<(), GrammarError> {
    match found > most {
        true => Err(GrammarError(format!("it has {found} {what}; {most} are the most"))),
        false => Ok(()),
    }
}

/// Counts rules by their colons, and brackets, outside of texts, expressions, comments and values of JSON. Where the grammar is not
/// valid the compiler says so: it stops there, and so may this.
fn check_lark(text: &str) -> Result<(), GrammarError> {
    let bytes = text.as_bytes();
    let (mut at, mut rules, mut depth, mut deepest) = (0, 0, 0_usize, 0);
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        at += match byte {
            b'#' => line(rest),
            b'/' if rest.get(1) == Some(&b'/') => line(rest),
            b'"' | b'/' => quoted(rest, byte),
            b'<' => special(rest),
            b'%' => embedded(&text[at..])?.unwrap_or(1),
            b':' if rest.get(1) == Some(&b':') => 2,
            b':' => {
                rules += 1;
                1
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
                1
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ => 1,
        };
    }
    within("rules", rules, MOST_RULES)?;
    within("brackets inside each other", deepest, MOST_NESTED)
}

/// Bytes up to the end of a line.
fn line(rest: &[u8]) -> usize {
    rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
}

/// Bytes of a text or an expression, with the marks around it.
fn quoted(rest: &[u8], mark: u8) -> usize {
    let mut at = 1;
    while let Some(&byte) = rest.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if byte == mark => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Bytes of a token's name, `<…>`; of the bracket alone where it is none.
fn special(rest: &[u8]) -> usize {
    let ends = |byte: &u8| matches!(byte, b'<' | b'>') || byte.is_ascii_whitespace();
    match rest[1..].iter().position(ends) {
        Some(length) if length > 0 && rest[1 + length] == b'>' => length + 2,
        _ => 1,
    }
}

/// Checks the value of JSON after a keyword that has one; its bytes with those of the keyword.
fn embedded(rest: &str) -> Result<Option<usize>, GrammarError> {
    for keyword in ["%json", "%llguidance", "%regex"] {
        let Some(after) = rest.strip_prefix(keyword) else { continue };
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return Ok(None) };
        if keyword == "%json" {
            check_schema(&value)?;
        }
        return Ok(Some(keyword.len() + values.byte_offset()));
    }
    Ok(None)
}

fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    let mut levels = Levels { of: HashMap::new(), references: HashSet::new(), has_inner_id: false };
    let own = levels.measure(schema, 0)?;
    within("bytes", schema.to_string().len(), MOST_BYTES)?;
    // A reference is followed once, from wherever it is met first: at worst each inside the one before.
    let reached = |reference: &&str| match target(schema, reference) {
        Some(found) if !levels.has_inner_id => levels.of[&std::ptr::from_ref(found)],
        _ => own,
    };
    let all = own + levels.references.iter().map(reached).sum::<usize>();
    within("levels with what its references lead to", all, MOST_LEVELS)?;
    Alternatives { schema, of: HashMap::new() }.check(schema)?;
    Patterns { schema, of: HashMap::new() }.check(schema)
}

/// How deep every part of a schema is.
struct Levels<'a> {
    of: HashMap<*const Value, usize>,
    references: HashSet<&'a str>,
    /// A part has a name of its own, and paths within it begin there.
    has_inner_id: bool,
}

impl<'a> Levels<'a> {
    /// The levels of a value which lies inside so many others.
    fn measure(&mut self, value: &'a Value, depth: usize) -> Result<usize, GrammarError> {
        within("values inside each other", depth, MOST_NESTED)?;
        let mut inner = 0;
        match value {
            Value::Array(items) => {
                for item in items {
                    inner = inner.max(self.measure(item, depth + 1)?);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    match (name.as_str(), field) {
                        ("properties" | "patternProperties", Value::Object(all)) => {
                            within("properties in one object", all.len(), MOST_PROPERTIES)?;
                        }
                        ("required", Value::Array(all)) => {
                            within("required properties in one object", all.len(), MOST_PROPERTIES)?;
                        }
                        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                            self.references.insert(reference);
                        }
                        ("$id" | "id", Value::String(_)) if depth > 0 => self.has_inner_id = true,
                        _ => {}
                    }
                    inner = inner.max(self.measure(field, depth + 1)?);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        self.of.insert(std::ptr::from_ref(value), inner + 1);
        Ok(inner + 1)
    }
}

/// The part of a schema that a reference names by its path; none where it names it otherwise.
fn target<'a>(schema: &'a Value, reference: &str) -> Option<&'a Value> {
    schema.pointer(reference.strip_prefix('#')?)
}

/// How many alternatives every part of a schema has.
struct Alternatives<'a> {
    schema: &'a Value,
    /// None while it is being counted.
    of: HashMap<*const Value, Option<usize>>,
}

impl<'a> Alternatives<'a> {
    /// Counts those of every part.
    fn check(&mut self, value: &'a Value) -> Result<(), GrammarError> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.check(item)),
            Value::Object(fields) => {
                within("alternatives in one part", self.count(value), MOST_ALTERNATIVES)?;
                fields.values().try_for_each(|field| self.check(field))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// Those of a schema: of lists beside each other every one may meet every other.
    fn count(&mut self, value: &'a Value) -> usize {
        let Value::Object(fields) = value else { return 1 };
        match self.of.get(&std::ptr::from_ref(value)) {
            Some(known) => return known.unwrap_or(1),
            None => self.of.insert(std::ptr::from_ref(value), None),
        };
        let mut product = 1_usize;
        for (name, field) in fields {
            let found = match (name.as_str(), field) {
                ("enum", Value::Array(all)) => all.len(),
                ("anyOf" | "oneOf", Value::Array(all)) => {
                    all.iter().fold(0, |sum, one| self.count(one).saturating_add(sum))
                }
                ("allOf", Value::Array(all)) => {
                    all.iter().fold(1, |product, one| self.count(one).saturating_mul(product))
                }
                ("$ref", Value::String(reference)) => match target(self.schema, reference) {
                    Some(found) => self.count(found),
                    None => 1,
                },
                _ => 1,
            };
            product = product.saturating_mul(found.max(1));
        }
        self.of.insert(std::ptr::from_ref(value), Some(product));
        product
    }
}

/// How many patterns a text has to keep to, for every part of a schema.
struct Patterns<'a> {
    schema: &'a Value,
    /// None while it is being counted.
    of: HashMap<*const Value, Option<usize>>,
}

impl<'a> Patterns<'a> {
    /// Counts those of every part.
    fn check(&mut self, value: &'a Value) -> Result<(), GrammarError> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.check(item)),
            Value::Object(fields) => {
                within("patterns for one text", self.count(value), MOST_PATTERNS)?;
                fields.values().try_for_each(|field| self.check(field))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// Those of a schema: its own, those of all that applies with it, and the most of any alternative.
    fn count(&mut self, value: &'a Value) -> usize {
        let Value::Object(fields) = value else { return 0 };
        match self.of.get(&std::ptr::from_ref(value)) {
            Some(known) => return known.unwrap_or(0),
            None => self.of.insert(std::ptr::from_ref(value), None),
        };
        let mut sum = 0_usize;
        for (name, field) in fields {
            sum = sum.saturating_add(match (name.as_str(), field) {
                ("pattern" | "format", Value::String(_)) => 1,
                ("allOf", Value::Array(all)) => {
                    all.iter().fold(0, |sum, one| self.count(one).saturating_add(sum))
                }
                ("anyOf" | "oneOf", Value::Array(all)) => {
                    all.iter().map(|one| self.count(one)).max().unwrap_or(0)
                }
                ("$ref", Value::String(reference)) => {
                    target(self.schema, reference).map_or(0, |found| self.count(found))
                }
                _ => 0,
            });
        }
        self.of.insert(std::ptr::from_ref(value), Some(sum));
        sum
    }
}
