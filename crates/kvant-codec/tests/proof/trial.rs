//! One encoded page, what it decodes to, and the verdict on a kernel that reads it.

use crate::bound;
use crate::case::{Case, decoded, encoded};
use crate::oracle::Twin;
use crate::oracle::page::View;
use kvant_codec::{Accumulator, PageCodec, Query, Side};

/// A page under test.
pub struct Trial {
    side: Side,
    dim: usize,
    tokens: usize,
    twin: Option<Twin>,
    pub page: Vec<u8>,
    /// What the page decodes to, (tokens, dim).
    decoded: Vec<f32>,
}

/// What decode says, and how far a kernel may be from it.
pub struct Expected {
    /// The name of an entry's row and column.
    names: [&'static str; 2],
    columns: usize,
    want: Vec<f64>,
    bound: Vec<f64>,
}

impl Trial {
    pub fn new(case: &Case, codec: &dyn PageCodec, rows: &[f32]) -> Trial {
        Trial::of(case, codec, encoded(codec, rows))
    }

    pub fn of(case: &Case, codec: &dyn PageCodec, page: Vec<u8>) -> Trial {
        let decoded = decoded(codec, &page);
        Trial {
            side: case.side,
            dim: case.dim,
            tokens: codec.page_tokens(),
            twin: case.twin(),
            page,
            decoded,
        }
    }

    fn view(&self, side: Side) -> Option<View<'_>> {
        let twin = self.twin.as_ref().filter(|_| self.side == side)?;
        Some(View::new(twin, &self.page))
    }

    /// Scores, (heads, tokens), by decode-then-dot.
    pub fn scores(&self, queries: &[f32]) -> Expected {
        let view = self.view(Side::Key);
        let mut expected = Expected::new(["head", "token"], self.tokens);
        for q in queries.chunks_exact(self.dim) {
            let moved = view.as_ref().map(|view| view.twin.basis.query(q)).unwrap_or_default();
            for (t, row) in self.decoded.chunks_exact(self.dim).enumerate() {
                let terms = || q.iter().zip(row).map(|(q, k)| f64::from(*q) * f64::from(*k));
                expected.want.push(terms().sum());
                expected.bound.push(match &view {
                    Some(view) => bound::score(view, q, &moved, t, row),
                    None => bound::summation(self.dim) * terms().map(f64::abs).sum::<f64>(),
                });
            }
        }
        expected
    }

    /// Sums, (heads, dim), by decode-then-sum, in the basis of [`Trial::comparable`].
    pub fn sums(&self, weights: &[f32]) -> Expected {
        let view = self.view(Side::Value);
        let mut expected = Expected::new(["head", "channel"], self.dim);
        for weights in weights.chunks_exact(self.tokens) {
            let mut want = vec![0.0; self.dim];
            let mut magnitude = vec![0.0; self.dim];
            for (w, row) in weights.iter().zip(self.decoded.chunks_exact(self.dim)) {
                for (c, x) in row.iter().enumerate() {
                    let term = f64::from(*w) * f64::from(*x);
                    want[c] += term;
                    magnitude[c] += term.abs();
                }
            }
            match &view {
                Some(view) => {
                    expected.want.extend(view.twin.basis.linear(&want));
                    expected.bound.extend(bound::sum(view, weights));
                }
                None => {
                    expected.want.extend(want);
                    expected.bound.extend(magnitude.iter().map(|m| bound::summation(self.tokens) * m));
                }
            }
        }
        expected
    }

    /// A kernel's sums, (heads, dim), in the basis in which their bound is: the codec's, where it has one.
    pub fn comparable(&self, sums: &[f32]) -> Vec<f64> {
        let wide: Vec<f64> = sums.iter().map(|x| f64::from(*x)).collect();
        match self.twin.as_ref().filter(|_| self.side == Side::Value) {
            Some(twin) => wide.chunks_exact(self.dim).flat_map(|head| twin.basis.linear(head)).collect(),
            None => wide,
        }
    }
}

impl Expected {
    fn new(names: [&'static str; 2], columns: usize) -> Expected {
        Expected { names, columns, want: Vec::new(), bound: Vec::new() }
    }

    /// The largest error in units of its bound, or where it is too large.
    pub fn check(&self, got: &[f64]) -> Result<f64, String> {
        assert_eq!(got.len(), self.want.len());
        let mut worst = 0.0f64;
        for (n, (got, (want, bound))) in got.iter().zip(self.want.iter().zip(&self.bound)).enumerate() {
            let error = (got - want).abs();
            if error.is_nan() || error > *bound {
                let [row, column] = self.names;
                let place = format!("{row} {}, {column} {}", n / self.columns, n % self.columns);
                return Err(format!("{place}: {got:e}, decode says {want:e}, off by {error:e} of {bound:e}"));
            }
            worst = worst.max(if error > 0.0 { error / bound } else { 0.0 });
        }
        Ok(worst)
    }
}

/// A kernel's scores, (heads, tokens).
pub fn scores(codec: &dyn PageCodec, queries: &[f32], page: &[u8]) -> Vec<f64> {
    let mut query = Query::new();
    codec.prepare(queries, &mut query).unwrap();
    let mut scores = vec![f32::NAN; query.heads() * codec.page_tokens()];
    codec.scores(&query, page, &mut scores).unwrap();
    scores.iter().map(|x| f64::from(*x)).collect()
}

/// A kernel's sums over one page in the model's basis, (heads, dim).
pub fn sums(codec: &dyn PageCodec, weights: &[f32], page: &[u8]) -> Vec<f32> {
    let mut sums = Accumulator::new(weights.len() / codec.page_tokens(), codec.dim());
    codec.accumulate(weights, page, &mut sums).unwrap();
    let mut out = vec![f32::NAN; sums.heads() * codec.dim()];
    codec.finish(&sums, &mut out).unwrap();
    out
}
