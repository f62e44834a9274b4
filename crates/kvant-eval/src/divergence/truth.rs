//! The predictions that others are compared with, prepared once for all of them.

use kvant_model::Rows;

/// What the exact cache showed at a position.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// The most likely token; the first of equals.
    pub top: usize,
    /// −ln p of the token that came.
    pub nll: f64,
}

/// Rows of logits as distributions.
pub struct Truth {
    logits: Rows, // (positions, vocabulary)
    /// exp(z − largest); divided by `denominator` a distribution.
    weights: Vec<f64>, // (positions, vocabulary)
    positions: Vec<Position>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Position {
    seen: Seen,
    /// Sum of the weights.
    denominator: f64,
    /// ln Σ exp z.
    log_denominator: f64,
}

/// One row of a [`Truth`].
pub struct TruthRow<'t> {
    pub logits: &'t [f32],
    pub weights: &'t [f64],
    pub denominator: f64,
    pub log_denominator: f64,
    pub seen: Seen,
}

impl Seen {
    /// What rows of logits show about the tokens that came, or the first row that is no distribution.
    pub fn of_rows(logits: &Rows, next: &[u32]) -> Result<Vec<Self>, usize> {
        let mut found = vec![Self::default(); next.len()];
        kvant_threads::for_each_chunk(&mut found, 1, |row, found| {
            let logits = logits.row(row);
            let (top, log_denominator) = (top(logits), log_denominator(logits));
            found[0] = Self { top, nll: log_denominator - f64::from(logits[next[row] as usize]) };
        });
        match found.iter().position(|seen| !seen.nll.is_finite()) {
            Some(row) => Err(row),
            None => Ok(found),
        }
    }
}

impl Truth {
    /// Prepares logits with what they (or those they were rounded from) showed.
    pub fn new(logits: Rows, seen: &[Seen]) -> Self {
        let vocabulary = logits.width();
        let mut weights = vec![0.0; logits.data().len()];
        let mut positions = vec![Position::default(); seen.len()];
        let mut rows: Vec<(&mut [f64], &mut Position)> =
            weights.chunks_exact_mut(vocabulary).zip(&mut positions).collect();
        kvant_threads::for_each_chunk(&mut rows, 1, |number, row| {
            let (weights, position) = &mut row[0];
            let logits = logits.row(number);
            let largest = f64::from(logits[top(logits)]);
            let mut denominator = 0.0;
            for (weight, &z) in weights.iter_mut().zip(logits) {
                *weight = (f64::from(z) - largest).exp();
                denominator += *weight;
            }
            **position =
                Position { seen: seen[number], denominator, log_denominator: largest + denominator.ln() };
        });
        Self { logits, weights, positions }
    }

    /// One position.
    pub fn row(&self, row: usize) -> TruthRow<'_> {
        let Position { seen, denominator, log_denominator } = self.positions[row];
        let vocabulary = self.logits.width();
        let weights = &self.weights[row * vocabulary..][..vocabulary];
        TruthRow { logits: self.logits.row(row), weights, denominator, log_denominator, seen }
    }
}

/// The most likely token; the first of equals.
pub fn top(logits: &[f32]) -> usize {
    let mut top = 0;
    for (id, &z) in logits.iter().enumerate() {
        if z > logits[top] {
            top = id;
        }
    }
    top
}

/// ln Σ exp z.
pub fn log_denominator(logits: &[f32]) -> f64 {
    let largest = f64::from(logits[top(logits)]);
    let denominator: f64 = logits.iter().map(|&z| (f64::from(z) - largest).exp()).sum();
    largest + denominator.ln()
}
