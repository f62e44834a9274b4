//! Grammars in GBNF, llama.cpp's notation, as grammars in Lark's.
//!
//! ```
//! use kvant_engine::grammar::Grammar;
//!
//! let grammar = Grammar::gbnf("root ::= \"yes\" | \"no\" \"!\"{1,3}")?;
//! assert_eq!(grammar, Grammar::Lark("start: /(?:yes|no!{1,3})/\n".into()));
//! # Ok::<(), kvant_engine::grammar::GbnfError>(())
//! ```
//!
//! GBNF is about characters. What follows grammars here cuts a text into lexemes first, each as long as it can be, so that
//! `[0-9]* "0"` would never come to its end. A grammar without recursion is therefore written as one regular expression, in which
//! nothing is cut; in any other every lexeme is one character, and all that is left to decide is decided by the parser. Both take
//! exactly the texts that the grammar says.
//!
//! Not supported, and refused by name: tokens (`<[1234]>`, `<think>`) and their negation.

mod lark;
mod parse;

use std::fmt;

/// Repetitions beyond this are refused, as llama.cpp refuses them.
const MOST_REPETITIONS: u32 = 2000;

/// How deep groups may be nested.
const MOST_NESTED: usize = 24;

/// A grammar in GBNF that cannot be read, with the line and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct GbnfError {
    line: usize,
    reason: String,
}

/// Characters that one place of a text may have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Text(String),
    Class(Class),
    /// Another rule, by its number.
    Rule(usize),
    Group(Vec<Sequence>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Repeated {
    item: Item,
    least: u32,
    most: Option<u32>,
}

type Sequence = Vec<Repeated>;

/// A rule, which may be used before it is defined.
#[derive(Debug, Clone)]
struct Rule {
    name: String,
    /// Where it was first named.
    line: usize,
    alternatives: Option<Vec<Sequence>>,
}

/// In Lark's notation.
///
/// # Errors
/// If the grammar is not valid, or uses what is not supported.
pub(super) fn to_lark(text: &str) -> Result<String, GbnfError> {
    let rules = parse::rules(text)?;
    let root = rules.iter().position(|rule| rule.name == "root");
    let root =
        root.ok_or_else(|| GbnfError::new(1, "there is no rule `root`, with which every text begins"))?;
    Ok(lark::write(&rules, root))
}

impl GbnfError {
    fn new(line: usize, reason: impl fmt::Display) -> Self {
        Self { line, reason: reason.to_string() }
    }
}

impl Rule {
    fn alternatives(&self) -> &[Sequence] {
        self.alternatives.as_deref().unwrap_or_default()
    }
}
