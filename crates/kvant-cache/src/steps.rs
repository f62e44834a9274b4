//! Prefixes come in steps.

use crate::layout::CacheLayout;
use crate::slot::STATE_CHUNK;

/// Where prefixes may end: after the sinks, in steps of the largest page; without pages, in steps of chunks of state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) sinks: usize,
    pub(crate) page: usize,
}

impl Steps {
    /// Those of a layout.
    pub(crate) fn of(layout: &CacheLayout) -> Steps {
        match layout.largest_page() {
            Some(page) => Steps { sinks: layout.exact_window().sinks, page },
            None => Steps { sinks: 0, page: STATE_CHUNK },
        }
    }

    /// The last such place in `len` tokens.
    pub(crate) fn whole(self, len: usize) -> usize {
        match len.saturating_sub(self.sinks) / self.page {
            0 => 0,
            pages => self.sinks + pages * self.page,
        }
    }

    /// The first such place at `len` tokens or after.
    pub(crate) fn next(self, len: usize) -> usize {
        self.sinks + len.saturating_sub(self.sinks).div_ceil(self.page).max(1) * self.page
    }

    /// Tokens of the step that begins at `at`.
    pub(crate) fn size(self, at: usize) -> usize {
        if at == 0 { self.sinks + self.page } else { self.page }
    }

    /// How many of `tokens`, which begin at `at`, agree with `label` up to the end of a step.
    pub(crate) fn common(self, at: usize, label: &[u32], tokens: &[u32]) -> usize {
        let same = label.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.whole(at + same).saturating_sub(at)
    }
}
