//! Which positions a query reads, and in which form. Positions alone decide.
//!
//! ```text
//! 0 ... sinks | page 0 | page 1 | ... | page n | own page
//! exact        encoded  encoded        exact if within the last `recent` tokens
//! ```
//!
//! Pages start after the sinks, at sinks + j · tokens. Keys and values may have pages of different sizes, so each side
//! answers for itself.

/// How a page becomes visible as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// As in use: a query reads its own page exactly, and every page that ended `recent` tokens before it as bytes.
    #[default]
    Deployed,
    /// As in evaluation: every page is encoded before its own queries attend; the last one is padded with its last
    /// token. Chunks must end at page boundaries, or at the end of the text.
    Strict,
}

/// The rule of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExactWindow {
    /// First tokens that stay exact.
    pub sinks: usize,
    /// Tokens before a query whose pages it still reads exactly.
    pub recent: usize,
    /// When pages are encoded.
    pub mode: Mode,
    /// A streaming window: every query sees the sinks and this many last tokens, itself included.
    pub streaming: Option<usize>,
}

/// Sinks that are kept when nothing else is said.
pub const DEFAULT_SINKS: usize = 4;

/// The most sinks there can be: they share one small page.
pub const MAX_SINKS: usize = 32;

impl Default for ExactWindow {
    fn default() -> ExactWindow {
        ExactWindow { sinks: DEFAULT_SINKS, recent: 0, mode: Mode::Deployed, streaming: None }
    }
}

impl ExactWindow {
    /// The first position of page `page` of a side with pages of `tokens`.
    pub fn page_start(&self, page: usize, tokens: usize) -> usize {
        self.sinks + page * tokens
    }

    /// Pages that the query at `position` reads as bytes: those before this number. The later ones it reads exactly.
    pub fn encoded_for(&self, position: usize, tokens: usize) -> usize {
        match self.mode {
            Mode::Deployed => position.saturating_sub(self.sinks + self.recent) / tokens,
            Mode::Strict => (position + 1).saturating_sub(self.sinks).div_ceil(tokens),
        }
    }

    /// Pages that are encoded once `len` tokens are held.
    pub fn encoded_at(&self, len: usize, tokens: usize) -> usize {
        match self.mode {
            Mode::Deployed => self.encoded_for(len, tokens),
            Mode::Strict => len.saturating_sub(self.sinks).div_ceil(tokens),
        }
    }

    /// The first position after `position` whose query reads one more page as bytes.
    pub fn next_change(&self, position: usize, tokens: usize) -> usize {
        let first = match self.mode {
            Mode::Deployed => self.sinks + self.recent,
            Mode::Strict => self.sinks,
        };
        if position < first {
            return first;
        }
        first + ((position - first) / tokens + 1) * tokens
    }

    /// The window of a layer that has `native` of its own: the narrower of that and the streaming one.
    pub fn window(&self, native: Option<usize>) -> Option<usize> {
        match (native, self.streaming) {
            (Some(native), Some(streaming)) => Some(native.min(streaming)),
            (one, other) => one.or(other),
        }
    }

    /// The first position that the query at `position` sees, sinks of a streaming window aside.
    pub fn first_seen(&self, position: usize, native: Option<usize>) -> usize {
        self.window(native).map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Whether sinks stay visible after they have left the window.
    pub fn keeps_sinks(&self, native: Option<usize>) -> bool {
        self.streaming.is_some_and(|streaming| native.is_none_or(|native| streaming < native))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_reads_its_own_page_exactly_and_earlier_ones_as_bytes() {
        let rule = ExactWindow::default();
        // Sinks 0..4, page 0 is 4..68, page 1 68..132.
        for (position, encoded) in [(0, 0), (4, 0), (67, 0), (68, 1), (131, 1), (132, 2)] {
            assert_eq!(rule.encoded_for(position, 64), encoded, "{position}");
        }
        assert_eq!((rule.encoded_at(67, 64), rule.encoded_at(68, 64)), (0, 1));
        assert_eq!(
            (rule.next_change(0, 64), rule.next_change(4, 64), rule.next_change(68, 64)),
            (4, 68, 132)
        );
    }

    #[test]
    fn recent_pages_stay_exact() {
        let rule = ExactWindow { recent: 100, ..ExactWindow::default() };
        for (position, encoded) in [(167, 0), (168, 1), (231, 1), (232, 2)] {
            assert_eq!(rule.encoded_for(position, 64), encoded, "{position}");
        }
        assert_eq!((rule.next_change(103, 64), rule.next_change(104, 64)), (104, 168));
    }

    #[test]
    fn strict_mode_encodes_the_page_of_the_query() {
        let rule = ExactWindow { mode: Mode::Strict, ..ExactWindow::default() };
        for (position, encoded) in [(3, 0), (4, 1), (67, 1), (68, 2)] {
            assert_eq!(rule.encoded_for(position, 64), encoded, "{position}");
        }
        assert_eq!((rule.encoded_at(4, 64), rule.encoded_at(5, 64), rule.encoded_at(68, 64)), (0, 1, 1));
    }

    #[test]
    fn the_count_of_encoded_pages_changes_where_it_is_said_to() {
        for (mode, recent) in [(Mode::Deployed, 0), (Mode::Deployed, 70), (Mode::Strict, 0)] {
            let rule = ExactWindow { mode, recent, sinks: 3, streaming: None };
            for position in 0..500 {
                let next = rule.next_change(position, 32);
                assert!(next > position);
                let count = rule.encoded_for(position, 32);
                assert_eq!(rule.encoded_for(next - 1, 32), count, "{rule:?} {position} {next}");
            }
        }
    }

    #[test]
    fn windows_narrow_and_only_streaming_ones_keep_the_sinks() {
        let rule = ExactWindow { streaming: Some(100), ..ExactWindow::default() };
        assert_eq!((rule.first_seen(500, None), rule.first_seen(500, Some(50))), (401, 451));
        assert_eq!((rule.first_seen(20, None), ExactWindow::default().first_seen(500, None)), (0, 0));
        assert!(rule.keeps_sinks(None) && rule.keeps_sinks(Some(200)) && !rule.keeps_sinks(Some(50)));
        assert!(!ExactWindow::default().keeps_sinks(Some(50)));
    }
}
