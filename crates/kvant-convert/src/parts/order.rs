//! Where the rows of a part lie in what stores them.
//!
//! Files of the two formats have the same rows in other orders: rotated channels in halves or in neighbouring pairs, value heads
//! by key head or taking turns, queries, keys and values together or by head. An order goes from the one that both agree on, the
//! *common* one, to that of a file. The common order has rotated channels in halves and value heads by key head.

use kvant_model::description::{Pairing, RowRange};
use std::sync::Arc;

/// From rows in the common order to rows of what stores them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    /// One after another from this one on.
    Run(usize),
    /// One by one.
    Listed(Arc<[u32]>),
}

impl Order {
    /// All rows, as they lie.
    pub const ALL: Self = Self::Run(0);

    /// Row `index` is row `place(index)` of the file.
    pub fn listed(count: usize, place: impl Fn(usize) -> usize) -> Self {
        let first = if count == 0 { 0 } else { place(0) };
        if (0..count).all(|index| place(index) == first + index) {
            return Self::Run(first);
        }
        Self::Listed((0..count).map(|index| place(index) as u32).collect())
    }

    /// Heads of `dim` channels, of which `rotated` from `first` on turn in pairs.
    pub fn rotated(count: usize, dim: usize, (first, rotated): (usize, usize), pairing: Pairing) -> Self {
        let half = rotated / 2;
        Self::listed(count, |row| match (pairing, (row % dim).checked_sub(first)) {
            (Pairing::Neighbours, Some(channel)) if channel < 2 * half => {
                row - channel + 2 * (channel % half) + channel / half
            }
            _ => row,
        })
    }

    /// The file's row.
    pub fn at(&self, index: usize) -> usize {
        match self {
            Self::Run(first) => first + index,
            Self::Listed(list) => list[index] as usize,
        }
    }

    /// The same rows, `by` further on.
    pub fn shifted(self, count: usize, by: usize) -> Self {
        match self {
            Self::Run(first) => Self::Run(first + by),
            Self::Listed(_) => Self::listed(count, |index| self.at(index) + by),
        }
    }

    /// The same rows of those that a range has.
    pub fn through(self, count: usize, range: Option<RowRange>) -> Self {
        match range {
            None => self,
            Some(range) => Self::listed(count, |index| range.row(self.at(index))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(order: &Order, count: usize) -> Vec<usize> {
        (0..count).map(|row| order.at(row)).collect()
    }

    #[test]
    fn pairs_become_neighbours_within_the_rotated_channels() {
        let order = Order::rotated(16, 8, (0, 6), Pairing::Neighbours);
        assert_eq!(rows(&order, 16), [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15]);
        let order = Order::rotated(6, 6, (2, 4), Pairing::Neighbours);
        assert_eq!(rows(&order, 6), [0, 1, 2, 4, 3, 5]);
        assert_eq!(Order::rotated(16, 8, (0, 6), Pairing::Halves), Order::ALL);
    }

    #[test]
    fn orders_are_moved_and_taken_out_of_ranges() {
        let order = Order::listed(4, |row| 3 - row);
        assert_eq!(rows(&order.clone().shifted(4, 5), 4), [8, 7, 6, 5]);
        let range = RowRange { first: 2, step: 4, run: 2, count: 4 };
        assert_eq!(rows(&order.through(4, Some(range)), 4), [7, 6, 3, 2]);
        let whole = RowRange::from(7, 3);
        assert_eq!(Order::ALL.through(3, Some(whole)), Order::Run(7));
    }
}
