//! From text to rules.
//!
//! ```text
//! rule         name "::=" alternatives
//! alternatives sequence ("|" sequence)*
//! sequence     (item ("*" | "+" | "?" | "{n}" | "{n,}" | "{n,m}")?)*
//! item         "text" | [class] | . | name | ( alternatives )
//! ```
//!
//! A rule ends with its line, except in parentheses and where the next line goes on with `|`. `#` begins a comment.

use super::{Class, GbnfError, Item, MOST_NESTED, MOST_REPETITIONS, Repeated, Rule, Sequence};
use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

/// All rules; each that is used is defined.
pub fn rules(text: &str) -> Result<Vec<Rule>, GbnfError> {
    let mut parser =
        Parser { rest: text.chars().peekable(), line: 1, rules: Vec::new(), numbers: HashMap::new() };
    loop {
        parser.space(true);
        if parser.rest.peek().is_none() {
            break;
        }
        parser.rule()?;
    }
    match parser.rules.iter().find(|rule| rule.alternatives.is_none()) {
        Some(rule) => Err(GbnfError::new(rule.line, format!("the rule `{}` is not defined", rule.name))),
        None => Ok(parser.rules),
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
    rules: Vec<Rule>,
    /// Rules by name.
    numbers: HashMap<String, usize>,
}

impl Parser<'_> {
    fn fail<T>(&self, reason: impl std::fmt::Display) -> Result<T, GbnfError> {
        Err(GbnfError::new(self.line, reason))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_there = self.rest.peek() == Some(&wanted);
        if is_there {
            self.next();
        }
        is_there
    }

    /// What comes next, for messages.
    fn found(&mut self) -> String {
        match self.rest.peek() {
            None => "the grammar ends".to_owned(),
            Some('\n' | '\r') => "the line ends".to_owned(),
            Some(next) => format!("there is {next:?}"),
        }
    }

    /// Skips blanks and comments, and ends of lines where they mean nothing.
    fn space(&mut self, newlines: bool) {
        while let Some(&next) = self.rest.peek() {
            match next {
                ' ' | '\t' => {}
                '\n' | '\r' if newlines => {}
                '#' => {
                    while self.rest.peek().is_some_and(|&next| next != '\n') {
                        self.next();
                    }
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn rule(&mut self) -> Result<(), GbnfError> {
        let line = self.line;
        let name = self.name();
        if name.is_empty() {
            let found = self.found();
            return self.fail(format!("the name of a rule is expected, but {found}"));
        }
        self.space(false);
        if !"::=".chars().all(|mark| self.take(mark)) {
            let found = self.found();
            return self.fail(format!("`::=` is expected after `{name}`, but {found}"));
        }
        self.space(true);
        let alternatives = self.alternatives(0)?;
        if !matches!(self.rest.peek(), None | Some('\n' | '\r')) {
            let found = self.found();
            return self.fail(format!("the rule `{name}` should end here, but {found}"));
        }
        let number = self.number(&name, line);
        match self.rules[number].alternatives.replace(alternatives) {
            None => Ok(()),
            Some(_) => Err(GbnfError::new(line, format!("the rule `{name}` is defined twice"))),
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(&next) = self.rest.peek().filter(|next| next.is_ascii_alphanumeric() || **next == '-')
        {
            name.push(next);
            self.next();
        }
        name
    }

    /// The number of a rule, which is a new one when it is named for the first time.
    fn number(&mut self, name: &str, line: usize) -> usize {
        let next = self.rules.len();
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.rules.push(Rule { name: name.to_owned(), line, alternatives: None });
        }
        number
    }

    fn alternatives(&mut self, depth: usize) -> Result<Vec<Sequence>, GbnfError> {
        let mut all = vec![self.sequence(depth)?];
        while self.bar(depth > 0) {
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(all)
    }

    /// A `|`, which may stand on the next line.
    fn bar(&mut self, newlines: bool) -> bool {
        self.space(newlines);
        if self.take('|') {
            return true;
        }
        // A look ahead: without a bar the end of the line is the rule's.
        let (rest, line) = (self.rest.clone(), self.line);
        self.space(true);
        let is_there = self.take('|');
        if !is_there {
            (self.rest, self.line) = (rest, line);
        }
        is_there
    }

    fn sequence(&mut self, depth: usize) -> Result<Sequence, GbnfError> {
        let mut sequence = Sequence::new();
        loop {
            self.space(depth > 0);
            let item = match self.rest.peek() {
                Some('"') => Item::Text(self.text()?),
                Some('[') => Item::Class(self.class()?),
                Some('.') => {
                    self.next();
                    Item::Class(Class { negated: true, ranges: Vec::new() })
                }
                Some('(') if depth == MOST_NESTED => {
                    return self
                        .fail(format!("groups are nested deeper than {MOST_NESTED}; give some a rule"));
                }
                Some('(') => {
                    self.next();
                    let group = self.alternatives(depth + 1)?;
                    self.space(true);
                    if !self.take(')') {
                        let found = self.found();
                        return self.fail(format!("`)` is expected, but {found}"));
                    }
                    Item::Group(group)
                }
                Some('<' | '!') => {
                    return self.fail("tokens in `<>` are not supported; write the text they stand for");
                }
                Some(next) if next.is_ascii_alphanumeric() || *next == '-' => {
                    let line = self.line;
                    let name = self.name();
                    Item::Rule(self.number(&name, line))
                }
                _ => return Ok(sequence),
            };
            let (least, most) = self.repetition(depth)?;
            sequence.push(Repeated { item, least, most });
        }
    }

    fn repetition(&mut self, depth: usize) -> Result<(u32, Option<u32>), GbnfError> {
        self.space(depth > 0);
        let found = match self.rest.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.next();
                return self.bounds();
            }
            _ => return Ok((1, Some(1))),
        };
        self.next();
        Ok(found)
    }

    /// What is left of `{n}`, `{n,}` or `{n,m}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GbnfError> {
        self.space(true);
        let Some(least) = self.count()? else {
            let found = self.found();
            return self.fail(format!("a number is expected after `{{`, but {found}"));
        };
        self.space(true);
        let mut most = Some(least);
        if self.take(',') {
            self.space(true);
            most = self.count()?;
            self.space(true);
        }
        if !self.take('}') {
            let found = self.found();
            return self.fail(format!("`}}` is expected, but {found}"));
        }
        match most.is_some_and(|most| most < least) {
            true => self.fail("the second number of a repetition is smaller than the first"),
            false => Ok((least, most)),
        }
    }

    fn count(&mut self) -> Result<Option<u32>, GbnfError> {
        let mut digits = String::new();
        while let Some(&next) = self.rest.peek().filter(|next| next.is_ascii_digit()) {
            digits.push(next);
            self.next();
        }
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse().ok().filter(|&count| count <= MOST_REPETITIONS) {
            Some(count) => Ok(Some(count)),
            None => self.fail(format!("{digits} repetitions are too many; {MOST_REPETITIONS} are the most")),
        }
    }

    fn text(&mut self) -> Result<String, GbnfError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.rest.peek() {
                Some('"') => {
                    self.next();
                    return Ok(text);
                }
                None | Some('\n') => return self.fail("a text in quotes has no end on its line"),
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Class, GbnfError> {
        self.next();
        let negated = self.take('^');
        let mut ranges = Vec::new();
        loop {
            match self.rest.peek() {
                Some(']') => {
                    self.next();
                    break;
                }
                None | Some('\n') => return self.fail("a class of characters has no `]` on its line"),
                Some(_) => {}
            }
            let first = self.character()?;
            let mut last = first;
            if self.rest.peek() == Some(&'-') {
                self.next();
                match self.rest.peek() {
                    // A hyphen at the end is itself.
                    Some(']') => ranges.push(('-', '-')),
                    _ => last = self.character()?,
                }
            }
            if last < first {
                return self.fail(format!("the range {first:?} to {last:?} of a class is empty"));
            }
            ranges.push((first, last));
        }
        match ranges.is_empty() && !negated {
            true => self.fail("a class of characters is empty"),
            false => Ok(Class { negated, ranges }),
        }
    }

    /// A character, which may be escaped.
    fn character(&mut self) -> Result<char, GbnfError> {
        match self.next() {
            Some('\\') => {}
            Some(plain) => return Ok(plain),
            None => return self.fail("the grammar ends within a text"),
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(plain @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/' | '.')) => return Ok(plain),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(other) => return self.fail(format!("the escape `\\{other}` is unknown")),
            None => return self.fail("the grammar ends after `\\`"),
        };
        let mut code = 0;
        for _ in 0..digits {
            match self.next().and_then(|digit| digit.to_digit(16)) {
                Some(digit) => code = (code << 4) | digit,
                None => return self.fail(format!("an escape needs {digits} hexadecimal digits")),
            }
        }
        match char::from_u32(code) {
            Some(found) => Ok(found),
            None => self.fail(format!("there is no character {code:#x}")),
        }
    }
}
