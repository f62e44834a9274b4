//! A suffix automaton over tokens, grown one token at a time.
//!
//! It answers one question at once, after every token: which is the longest end of the text that stood in it before, and where? In
//! a suffix automaton that end is the string of the suffix link of the last state, so nothing has to be searched. A text of `n`
//! tokens has at most `2n` states and `3n` edges, and growing it takes `O(n)` steps in all, whatever the text.

use std::collections::HashMap;

/// No state, no edge.
const NONE: u32 = u32::MAX;

/// The state of the empty string.
const ROOT: u32 = 0;

/// Strings that end at the same places.
#[derive(Clone, Copy)]
struct State {
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

/// A text and its repetitions.
pub(super) struct SuffixAutomaton {
    text: Vec<u32>,
    states: Vec<State>,
    edges: Vec<Edge>,
    /// By state and token.
    index: HashMap<(u32, u32), u32>,
    last: u32,
    found: Option<Match>,
}

impl SuffixAutomaton {
    /// Of the empty text.
    pub fn new() -> Self {
        let root = State { length: 0, link: NONE, end: NONE, edges: NONE };
        Self {
            text: Vec::new(),
            states: vec![root],
            edges: Vec::new(),
            index: HashMap::new(),
            last: ROOT,
            found: None,
        }
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
        let new = self.state(State { length: end + 1, link: ROOT, end, edges: NONE });
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

    /// The state of exactly the string of `state` and `token`, which leads to `target` now.
    fn split(&mut self, mut state: u32, token: u32, target: u32) -> u32 {
        let length = self.states[state as usize].length + 1;
        let whole = self.states[target as usize];
        if whole.length == length {
            return target;
        }
        let part = self.state(State { length, edges: NONE, ..whole });
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

    fn state(&mut self, state: State) -> u32 {
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
    }
}
