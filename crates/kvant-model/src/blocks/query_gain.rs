//! Queries that grow with their position, so that attention over long contexts stays sharp (Llama 4, Ministral 3).

use crate::blocks::Rows;

/// A query at position `p` is multiplied by `1 + beta · ln(1 + ⌊p / every⌋)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGain {
    /// How fast they grow.
    pub beta: f64,
    /// Positions between two steps: the context of the first training.
    pub every: usize,
}

impl QueryGain {
    /// Multiplies each row by the gain of its position.
    pub fn apply(&self, queries: &mut Rows, positions: impl Iterator<Item = usize>) {
        for (row, position) in positions.enumerate() {
            let gain = self.at(position);
            queries.row_mut(row).iter_mut().for_each(|x| *x *= gain);
        }
    }

    fn at(&self, position: usize) -> f32 {
        (1.0 + self.beta * ((position / self.every) as f64).ln_1p()) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_grow_in_steps_and_not_within_the_first() {
        let gain = QueryGain { beta: 0.1, every: 16 };
        let mut rows = Rows::from_vec(vec![2.0; 8], 2);
        gain.apply(&mut rows, [0, 15, 16, 16 * 7 + 3].into_iter());
        let grown = [2.0, 2.0, 2.0 * (1.0 + 0.1 * 2f32.ln()), 2.0 * (1.0 + 0.1 * 8f32.ln())];
        for (row, expected) in grown.into_iter().enumerate() {
            assert!(rows.row(row).iter().all(|x| (x - expected).abs() < 1e-6), "{row}: {:?}", rows.row(row));
        }
    }
}
