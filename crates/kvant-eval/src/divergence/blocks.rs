//! How a window is cut into passes that several caches take side by side.

use crate::token_nll::PassLimits;
use kvant_cache::{CacheLayout, ExactWindow, Mode};
use std::ops::Range;

/// Where passes may end. In strict mode, and where every page is the reference's, a pass holds whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// The sinks, before the first page.
    first: usize,
    /// Tokens of a page.
    unit: usize,
}

impl Grid {
    /// The grid a cache needs; `whole`: of whole pages whatever its mode.
    pub fn of(layout: &CacheLayout, whole: bool) -> Self {
        let ExactWindow { mode, sinks, .. } = *layout.exact_window();
        match mode {
            Mode::Deployed if !whole => Self { first: 0, unit: 1 },
            // Pages are powers of two: the ends of the largest are ends of all.
            Mode::Deployed | Mode::Strict => {
                let largest = layout.sides().map(|(.., side)| side.page_tokens()).max();
                Self { first: sinks, unit: largest.unwrap_or(1) }
            }
        }
    }

    /// The grid that suits both, if there is one.
    pub fn join(self, other: Self) -> Option<Self> {
        let unit = self.unit.max(other.unit);
        let (coarse, fine) = if self.unit == unit { (self, other) } else { (other, self) };
        let fits = coarse.first.abs_diff(fine.first).is_multiple_of(fine.unit);
        fits.then_some(Self { first: coarse.first, unit })
    }

    /// Passes over `positions`, as long as the limits allow but never less than a page.
    pub fn blocks(self, positions: usize, limits: PassLimits, vocabulary: usize) -> Vec<Range<usize>> {
        let length = (limits.rows(vocabulary) / self.unit).max(1) * self.unit;
        let mut blocks: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        while start < positions {
            let from = start.max(self.first);
            let end = (from + length).min(positions);
            blocks.push(start..end);
            start = end;
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PassLimits = PassLimits { tokens: 150, logit_bytes: 4 * 1000 * 150 };

    #[test]
    fn strict_passes_end_where_pages_do() {
        let grid = Grid { first: 4, unit: 64 };
        assert_eq!(grid.blocks(300, LIMITS, 1000), [0..132, 132..260, 260..300]);
        assert_eq!(grid.blocks(3, LIMITS, 1000).first(), Some(&(0..3)));
        let tight = PassLimits { tokens: 10, ..LIMITS };
        assert_eq!(grid.blocks(140, tight, 1000), [0..68, 68..132, 132..140]);
        let anywhere = Grid { first: 0, unit: 1 };
        assert_eq!(anywhere.blocks(300, LIMITS, 2000), [0..75, 75..150, 150..225, 225..300]);
    }

    #[test]
    fn grids_join_when_their_pages_end_together() {
        let grid = |first, unit| Grid { first, unit };
        assert_eq!(grid(4, 64).join(grid(4, 128)), Some(grid(4, 128)));
        assert_eq!(grid(4, 64).join(grid(0, 64)), None);
        assert_eq!(grid(0, 32).join(grid(32, 64)), Some(grid(32, 64)));
        assert_eq!(grid(0, 1).join(grid(3, 64)), Some(grid(3, 64)));
    }
}
