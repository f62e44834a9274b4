//! A suffix automaton over tokens, grown one token at a time.
//!
//! It answers one question at once, after every token: which is the longest end of the text that stood in it before, and where? In
//! a suffix automaton that end is the string of the suffix link of the last state, so nothing has to be searched. A text of `n`
//! tokens has at most `2n` states and `3n` edges, and growing it takes `O(n)` steps in all, whatever the text.
//!
//! Of *another* text a [`Cursor`] answers the same: it keeps the longest end of that text that stands in this one. Following a token
//! takes one step on average, and the automaton may grow meanwhile.

use std::collections::HashMap;

/// No state, no edge.
const NONE: u32 = u32::MAX;

/// The state of the empty string.
const ROOT: u32 = 0;

/// What it is before there is a text.
const EMPTY: EndState = EndState { length: 0, link: NONE, end: NONE, edges: NONE };

/// Strings that end at the same places.
#[derive(Clone, Copy)]
struct EndState {
    /// Length of the longest of them.
    length: u32,
    /// The state of the longest shorter string that ends elsewhere too.
    link: u32,
    /// The last token of an occurrence.
    end: u32,
    /// The first edge.
    edges: u32,
}

#[derive(Clone, Copy)]
struct Edge {
    token: u32,
    target: u32,
    /// The next edge of the same state.
    next: u32,
}

/// The end of a text, found before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Its tokens.
    pub length: usize,
    /// Where its earlier occurrence ends: the position of its last token, before the end of the text.
    pub end: usize,
}

/// The longest end of another text that stands in the automaton's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    state: u32,
    /// Its tokens.
    length: u32,
}

/// A text and its repetitions.
pub(super) struct SuffixAutomaton {
    text: Vec<u32>,
    states: Vec<EndState>,
    edges: Vec<Edge>,
    /// By state and token.
    index: HashMap<(u32, u32), u32>,
    last: u32,
    found: Option<Match>,
}

impl SuffixAutomaton {
    /// Of the empty text.
    pub fn new() -> Self {
        Self {
            text: Vec::new(),
            states: vec![EMPTY],
            edges: Vec::new(),
            index: HashMap::new(),
            last: ROOT,
            found: None,
        }
    }

    /// Becomes that of the empty text again, and keeps its memory for the next.
    pub fn clear(&mut self) {
        self.text.clear();
        self.states.truncate(1);
        self.states[ROOT as usize] = EMPTY;
        self.edges.clear();
        self.index.clear();
        (self.last, self.found) = (ROOT, None);
    }

    /// The text.
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// The longest end of the text that it has elsewhere too; of its occurrences a late one.
    pub fn longest(&self) -> Option<Match> {
        self.found
    }

    /// Adds a token to the text, which must stay shorter than 2³¹ tokens.
    pub fn push(&mut self, token: u32) {
        let end = self.text.len() as u32;
        self.text.push(token);
        let new = self.state(EndState { length: end + 1, link: ROOT, end, edges: NONE });
        let mut state = self.last;
        while state != NONE && self.edge(state, token).is_none() {
            self.connect(state, token, new);
            state = self.states[state as usize].link;
        }
        let link = match self.edge(state, token) {
            Some(edge) => self.split(state, token, self.edges[edge].target),
            None => ROOT,
        };
        self.states[new as usize].link = link;
        self.last = new;
        let linked = &mut self.states[link as usize];
        self.found =
            (link != ROOT).then_some(Match { length: linked.length as usize, end: linked.end as usize });
        // The string of the link ends here as well.
        linked.end = end;
    }

    /// Goes on with the next token of another text.
    pub fn follow(&self, cursor: &mut Cursor, token: u32) {
        loop {
            let EndState { link, .. } = self.states[cursor.state as usize];
            // Its state may have been split since.
            if link != NONE && cursor.length <= self.states[link as usize].length {
                cursor.state = link;
            } else if let Some(edge) = self.edge(cursor.state, token) {
                *cursor = Cursor { state: self.edges[edge].target, length: cursor.length + 1 };
                return;
            } else if link == NONE {
                return;
            } else {
                *cursor = Cursor { state: link, length: self.states[link as usize].length };
            }
        }
    }

    /// Where a cursor's text stands.
    pub fn at(&self, cursor: Cursor) -> Option<Match> {
        let end = self.states[cursor.state as usize].end;
        (cursor.length > 0).then_some(Match { length: cursor.length as usize, end: end as usize })
    }

    /// The state of exactly the string of `state` and `token`, which leads to `target` now.
    fn split(&mut self, mut state: u32, token: u32, target: u32) -> u32 {
        let length = self.states[state as usize].length + 1;
        let whole = self.states[target as usize];
        if whole.length == length {
            return target;
        }
        let part = self.state(EndState { length, edges: NONE, ..whole });
        let mut edge = whole.edges;
        while edge != NONE {
            let Edge { token, target, next } = self.edges[edge as usize];
            self.connect(part, token, target);
            edge = next;
        }
        self.states[target as usize].link = part;
        while state != NONE
            && let Some(edge) = self.edge(state, token).filter(|edge| self.edges[*edge].target == target)
        {
            self.edges[edge].target = part;
            state = self.states[state as usize].link;
        }
        part
    }

    fn state(&mut self, state: EndState) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn edge(&self, state: u32, token: u32) -> Option<usize> {
        self.index.get(&(state, token)).map(|edge| *edge as usize)
    }

    fn connect(&mut self, state: u32, token: u32, target: u32) {
        let edge = self.edges.len() as u32;
        let first = std::mem::replace(&mut self.states[state as usize].edges, edge);
        self.edges.push(Edge { token, target, next: first });
        self.index.insert((state, token), edge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The length of the longest end that stands in the text before, by trying all.
    fn naive(text: &[u32]) -> usize {
        let occurs = |length: usize| {
            let (end, before) = (&text[text.len() - length..], &text[..text.len() - 1]);
            before.windows(length).any(|window| window == end)
        };
        (1..text.len()).rev().find(|&length| occurs(length)).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_longest_end_is_what_a_search_finds(text in prop_oneof![
            prop::collection::vec(0u32..2, 0..60),
            prop::collection::vec(0u32..5, 0..90),
            prop::collection::vec(prop_oneof![Just(7u32), 0u32..40], 0..120),
        ]) {
            let mut automaton = SuffixAutomaton::new();
            // One that has had another text is as good as new.
            text.iter().rev().for_each(|&token| automaton.push(token));
            automaton.clear();
            for (count, &token) in (1..).zip(&text) {
                automaton.push(token);
                let so_far = &text[..count];
                let found = automaton.longest();
                prop_assert_eq!(found.map_or(0, |found| found.length), naive(so_far));
                if let Some(Match { length, end }) = found {
                    prop_assert!(end + 1 < count);
                    prop_assert_eq!(&so_far[end + 1 - length..=end], &so_far[count - length..]);
                }
            }
            prop_assert!(automaton.states.len() <= 2 * text.len().max(1));
            prop_assert!(automaton.edges.len() <= 3 * text.len().max(1));
        }

        #[test]
        fn a_cursor_finds_the_longest_end_of_another_text_while_the_automaton_grows(
            steps in prop::collection::vec((any::<bool>(), 0u32..3), 0..160),
        ) {
            let (mut automaton, mut cursor, mut other) = (SuffixAutomaton::new(), Cursor::default(), Vec::new());
            for (grows, token) in steps {
                if grows {
                    automaton.push(token);
                    continue;
                }
                let held = automaton.at(cursor).map_or(0, |found| found.length);
                automaton.follow(&mut cursor, token);
                other.push(token);
                let text = automaton.text();
                let stands = |length: usize| text.windows(length).any(|window| window == &other[other.len() - length..]);
                // What it held grows by one; what it had let go by then may have been added since.
                let longest = (1..=held + 1).rev().find(|&length| stands(length)).unwrap_or(0);
                prop_assert_eq!(automaton.at(cursor).map_or(0, |found| found.length), longest);
                if let Some(Match { length, end }) = automaton.at(cursor) {
                    prop_assert_eq!(&text[end + 1 - length..=end], &other[other.len() - length..]);
                }
            }
        }
    }
}
