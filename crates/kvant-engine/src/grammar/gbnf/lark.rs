//! From rules to Lark's notation.

use super::{Class, Item, Repeated, Rule, Sequence};
use std::fmt::Write;

/// An expression beyond this many bytes is written as rules after all.
const LONGEST_EXPRESSION: usize = 1 << 16;

/// The same for rules and groups within each other; expressions have a bound of their own that is not far from it.
const DEEPEST: usize = 100;

/// The grammar that begins with the rule `root`.
pub fn write(rules: &[Rule], root: usize) -> String {
    let mut expression = Expression { rules, within: Vec::new(), depth: 0, text: String::new() };
    if expression.rule(root) && !expression.text.is_empty() {
        return format!("start: /{}/\n", expression.text);
    }
    let mut text = String::new();
    let order = std::iter::once(root).chain((0..rules.len()).filter(|&number| number != root));
    for number in order {
        text +=
            &format!("{}: {}\n", name(rules, number, root), body(rules, root, rules[number].alternatives()));
    }
    text
}

/// One regular expression for all of it.
struct Expression<'a> {
    rules: &'a [Rule],
    /// Rules that are being written, each inside the one before.
    within: Vec<usize>,
    /// Those, and the groups that are.
    depth: usize,
    text: String,
}

impl Expression<'_> {
    /// Writes a rule; false where it comes back to itself, or becomes too long.
    fn rule(&mut self, number: usize) -> bool {
        if self.within.contains(&number) {
            return false;
        }
        self.within.push(number);
        let is_done = self.alternatives(self.rules[number].alternatives());
        self.within.pop();
        is_done
    }

    fn alternatives(&mut self, all: &[Sequence]) -> bool {
        if self.depth == DEEPEST {
            return false;
        }
        self.depth += 1;
        let is_done = self.write_alternatives(all);
        self.depth -= 1;
        is_done
    }

    fn write_alternatives(&mut self, all: &[Sequence]) -> bool {
        if let [sequence] = all
            && let [only] = sequence.as_slice()
        {
            return self.repeated(only);
        }
        self.text.push_str("(?:");
        for (index, sequence) in all.iter().enumerate() {
            if index > 0 {
                self.text.push('|');
            }
            if !sequence.iter().all(|item| self.repeated(item)) {
                return false;
            }
        }
        self.text.push(')');
        true
    }

    fn repeated(&mut self, repeated: &Repeated) -> bool {
        let times = times(repeated);
        let start = self.text.len();
        let is_done = match &repeated.item {
            Item::Text(text) => {
                text.chars().for_each(|character| escape(&mut self.text, character));
                true
            }
            Item::Class(class) => {
                self.text += &written(class);
                true
            }
            Item::Rule(number) => self.rule(*number),
            Item::Group(all) => self.alternatives(all),
        };
        let is_one = match &repeated.item {
            Item::Text(text) => text.chars().count() == 1,
            Item::Class(_) => true,
            Item::Rule(_) | Item::Group(_) => false,
        };
        if !times.is_empty() {
            if !is_one {
                self.text.insert_str(start, "(?:");
                self.text.push(')');
            }
            self.text += &times;
        }
        is_done && self.text.len() <= LONGEST_EXPRESSION
    }
}

/// How often something comes, in the notation that expressions and rules share.
fn times(repeated: &Repeated) -> String {
    match (repeated.least, repeated.most) {
        (1, Some(1)) => String::new(),
        (0, Some(1)) => "?".to_owned(),
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) if least == most => format!("{{{least}}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// What a rule is called: names that Lark would take for terminals are not, and each has its number.
fn name(rules: &[Rule], number: usize, root: usize) -> String {
    if number == root {
        return "start".to_owned();
    }
    let plain = rules[number].name.to_ascii_lowercase().replace('-', "_");
    format!("r{number}_{plain}")
}

/// The right side of a rule, in which every lexeme is one character.
fn body(rules: &[Rule], root: usize, all: &[Sequence]) -> String {
    let sequence = |sequence: &Sequence| match sequence.is_empty() {
        true => "\"\"".to_owned(),
        false => sequence.iter().map(|item| lexemes(rules, root, item)).collect::<Vec<_>>().join(" "),
    };
    all.iter().map(sequence).collect::<Vec<_>>().join(" | ")
}

fn lexemes(rules: &[Rule], root: usize, repeated: &Repeated) -> String {
    let times = times(repeated);
    let one = |character: char| {
        let mut text = "/".to_owned();
        escape(&mut text, character);
        text + "/"
    };
    match &repeated.item {
        Item::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Item::Text(text) if text.chars().nth(1).is_none() || times.is_empty() => {
            text.chars().map(one).collect::<Vec<_>>().join(" ") + &times
        }
        Item::Text(text) => format!("({}){times}", text.chars().map(one).collect::<Vec<_>>().join(" ")),
        Item::Class(class) => format!("/{}/{times}", written(class)),
        Item::Rule(number) => name(rules, *number, root) + &times,
        Item::Group(all) => format!("({}){times}", body(rules, root, all)),
    }
}

/// A class as regular expressions have it.
fn written(class: &Class) -> String {
    if class.ranges.is_empty() {
        return r"[\x{0}-\x{10FFFF}]".to_owned();
    }
    let mut text = if class.negated { "[^" } else { "[" }.to_owned();
    for (first, last) in &class.ranges {
        escape(&mut text, *first);
        if last != first {
            text.push('-');
            escape(&mut text, *last);
        }
    }
    text + "]"
}

/// A character that means itself in a regular expression, within a class or without.
fn escape(text: &mut String, character: char) {
    // Writing to a string cannot fail.
    let _ = match character {
        plain if plain.is_ascii_alphanumeric() || " ,:;=!@%_\"'<>".contains(plain) => write!(text, "{plain}"),
        other => write!(text, "\\x{{{:X}}}", u32::from(other)),
    };
}
