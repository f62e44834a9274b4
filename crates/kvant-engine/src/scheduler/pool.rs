//! Texts as vectors: what the last layer makes of their tokens, in one.

/// How the vectors of tokens become that of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token, which encoders teach to stand for the text (`cls`).
    First,
    /// That of the last token, which has seen all others.
    Last,
}

impl Pooling {
    /// That of a name that requests and files use: `mean`, `cls`, `last`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "mean" => Some(Self::Mean),
            "cls" => Some(Self::First),
            "last" => Some(Self::Last),
            _ => None,
        }
    }

    /// The vector, of length 1, of a text whose tokens are these `(tokens, hidden)`.
    pub fn of_rows(self, rows: &[f32], hidden: usize) -> Vec<f32> {
        let mut pool = Pool::new(self);
        pool.add(rows, hidden);
        pool.vector()
    }
}

/// A text's vector in the making.
pub(super) struct Pool {
    pub pooling: Pooling,
    /// (hidden): the sum, or the last.
    sum: Vec<f64>,
    rows: usize,
}

impl Pool {
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, sum: Vec::new(), rows: 0 }
    }

    /// Forgets what was added: the tokens are read anew.
    pub fn reset(&mut self) {
        (self.sum, self.rows) = (Vec::new(), 0);
    }

    /// Adds the tokens of a pass, `(tokens, hidden)`, one by one: how they were cut does not matter.
    pub fn add(&mut self, rows: &[f32], hidden: usize) {
        self.sum.resize(hidden, 0.0);
        for row in rows.chunks_exact(hidden) {
            self.rows += 1;
            if self.pooling == Pooling::First && self.rows > 1 {
                continue;
            }
            for (sum, &x) in self.sum.iter_mut().zip(row) {
                *sum = match self.pooling {
                    Pooling::Mean => *sum + f64::from(x),
                    Pooling::First | Pooling::Last => f64::from(x),
                };
            }
        }
    }

    /// The vector, of length 1.
    pub fn vector(&self) -> Vec<f32> {
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        self.sum.iter().map(|x| (x * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_do_not_matter_and_the_length_is_one() {
        let rows: Vec<f32> = (0..20).map(|i| (i * i % 7) as f32 - 2.5).collect();
        for (pooling, expected) in [
            (Pooling::Mean, [0, 1, 2, 3].map(|c| rows.iter().skip(c).step_by(4).sum::<f32>())),
            (Pooling::First, [rows[0], rows[1], rows[2], rows[3]]),
            (Pooling::Last, [rows[16], rows[17], rows[18], rows[19]]),
        ] {
            let length = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
            let (mut whole, mut parts) = (Pool::new(pooling), Pool::new(pooling));
            whole.add(&rows, 4);
            parts.add(&rows[..8], 4);
            parts.reset();
            parts.add(&rows[..4], 4);
            parts.add(&rows[4..], 4);
            assert_eq!(whole.vector(), parts.vector());
            assert!(whole.vector().iter().zip(expected).all(|(a, b)| (a - b / length).abs() < 1e-6));
        }
        assert!(Pool::new(Pooling::Mean).vector().is_empty());
    }
}
