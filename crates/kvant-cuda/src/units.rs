//! How page tables cut positions: keys and values may have pages of different sizes.

use kvant_cache::ExactWindow;

/// The entries of page tables are units: the smaller pages of both sides, of which a page of the other side is several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    /// Tokens of a unit.
    pub tokens: usize,
    /// Units of a page of keys, and of values; one of both is 1.
    pub pages: [usize; 2],
}

impl Units {
    /// Pages of 64 tokens on both sides.
    pub(crate) const PAGES: Units = Units { tokens: crate::layout::PAGE_TOKENS, pages: [1; 2] };

    /// Of pages of so many tokens of keys and of values.
    pub(crate) fn of(tokens: [usize; 2]) -> Units {
        let smaller = tokens[0].min(tokens[1]);
        Units { tokens: smaller, pages: tokens.map(|tokens| tokens / smaller) }
    }

    /// Units of the larger pages.
    pub(crate) fn most(&self) -> usize {
        self.pages[0].max(self.pages[1])
    }

    /// The side with the smaller pages: 0 for keys, 1 for values; values where they are of one size.
    pub(crate) fn smaller(&self) -> usize {
        usize::from(self.pages[0] >= self.pages[1])
    }

    /// Units whose keys, and whose values, the query at `position` reads as bytes.
    pub(crate) fn closed(&self, rule: &ExactWindow, position: usize) -> [usize; 2] {
        self.pages.map(|of| of * rule.encoded_for(position, of * self.tokens))
    }

    /// Units of which it reads both sides as bytes.
    pub(crate) fn both(&self, rule: &ExactWindow, position: usize) -> usize {
        let [keys, values] = self.closed(rule, position);
        keys.min(values)
    }

    /// Units of which it reads one side or both as bytes; those after them are exact.
    pub(crate) fn either(&self, rule: &ExactWindow, position: usize) -> usize {
        let [keys, values] = self.closed(rule, position);
        keys.max(values)
    }
}
