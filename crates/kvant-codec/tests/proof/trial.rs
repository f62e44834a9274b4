//! One encoded page, what it decodes to, and the verdict on a kernel that reads it.

use crate::bound;
use crate::case::{Case, decoded, encoded};
use crate::oracle::page::View;
use crate::oracle::trellis::Reading;
use crate::oracle::{Twin, delta, norm};
use kvant_codec::{Accumulator, PageCodec, Query, Side};

/// A page under test.
pub struct Trial {
    case: Case,
    side: Side,
    dim: usize,
    tokens: usize,
    twin: Option<Twin>,
    trellis: Option<Reading>,
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
            case: case.clone(),
            side: case.side,
            dim: case.dim,
            tokens: codec.page_tokens(),
            twin: case.twin(),
            trellis: Reading::new(case, &page),
            page,
            decoded,
        }
    }

    fn view(&self) -> Option<View<'_>> {
        Some(View::new(self.twin.as_ref()?, &self.page))
    }

    /// Scores, (heads, tokens), by decode-then-dot.
    pub fn scores(&self, queries: &[f32]) -> Expected {
        let mut expected = Expected::new(["head", "token"], self.tokens);
        for q in queries.chunks_exact(self.dim) {
            let terms = |row: &[f32]| -> Vec<f64> {
                q.iter().zip(row).map(|(q, k)| f64::from(*q) * f64::from(*k)).collect()
            };
            let rows = || self.decoded.chunks_exact(self.dim);
            expected.want.extend(rows().map(|row| terms(row).iter().sum::<f64>()));
            let size = |row: &[f32]| terms(row).iter().map(|x| x.abs()).sum::<f64>();
            if let Some(trellis) = self.trellis.as_ref().filter(|_| self.side == Side::Key) {
                expected.bound.extend(trellis.score_bounds(q, &self.decoded));
                continue;
            }
            match self.case.spec.family.name {
                "turbo" => expected.bound.extend(self.turbo_bounds(q)),
                "delta" => expected.bound.extend(self.delta_bounds(q)),
                _ => match self.view() {
                    Some(view) => expected.bound.extend(score_bounds(&view, q, rows())),
                    None => expected.bound.extend(rows().map(|row| bound::summation(self.dim) * size(row))),
                },
            }
        }
        expected
    }

    /// Of two pages whose scores are added.
    fn turbo_bounds(&self, q: &[f32]) -> Vec<f64> {
        let (mut total, mut at) = (vec![0.0; self.tokens], 0);
        for part in self.case.parts() {
            let codec = part.best();
            let page = &self.page[at..at + codec.page_bytes()];
            at += page.len();
            let (twin, rows) = (part.twin().unwrap(), decoded(&*codec, page));
            let view = View::new(&twin, page);
            let bounds = score_bounds(&view, q, rows.chunks_exact(self.dim));
            let length = length(q);
            for (total, (bound, row)) in total.iter_mut().zip(bounds.zip(rows.chunks_exact(self.dim))) {
                *total += bound + bound::summation(2) * length * self::length(row);
            }
        }
        total
    }

    /// Of running sums: what is allowed for every difference so far, and the roundings of the sum.
    fn delta_bounds(&self, q: &[f32]) -> Vec<f64> {
        let parts = delta::Parts::new(&self.case, &self.page);
        let page = &self.page[parts.frame_bytes..];
        let twin = parts.differences.twin().unwrap();
        let rows = decoded(&*parts.differences.best(), page);
        let moved: Vec<f32> = parts.basis.query(q).iter().map(|x| *x as f32).collect();
        let (mut allowed, mut path) = (0.0, norm(&parts.frame));
        let view = View::new(&twin, page);
        let bounds = score_bounds(&view, &moved, rows.chunks_exact(self.dim));
        let longest = self.decoded.chunks_exact(self.dim).map(length).fold(0.0, f64::max);
        let bounds = bounds.zip(rows.chunks_exact(self.dim)).map(|(bound, row)| {
            allowed += bound;
            path += length(row);
            // One change of basis of the query, two of the keys that decode.
            allowed + bound::summation(self.dim + self.tokens) * length(q) * (path + longest)
        });
        bounds.collect()
    }

    /// Sums, (heads, dim), by decode-then-sum, in the basis of [`Trial::comparable`].
    pub fn sums(&self, weights: &[f32]) -> Expected {
        let view = self.view().filter(|_| self.side == Side::Value);
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
            if let Some(trellis) = self.trellis.as_ref().filter(|_| self.side == Side::Value) {
                expected.want.extend(trellis.basis.linear(&want));
                expected.bound.extend(trellis.sum_bounds(weights));
                continue;
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
        let basis = self
            .twin
            .as_ref()
            .map(|twin| &twin.basis)
            .or(self.trellis.as_ref().map(|trellis| &trellis.basis));
        match basis.filter(|_| self.side == Side::Value) {
            Some(basis) => wide.chunks_exact(self.dim).flat_map(|head| basis.linear(head)).collect(),
            None => wide,
        }
    }
}

/// The bound of every token of a scalar codec's page.
fn score_bounds<'a>(
    view: &View<'_>,
    q: &[f32],
    rows: impl Iterator<Item = &'a [f32]>,
) -> impl Iterator<Item = f64> {
    let moved = view.twin.basis.query(q);
    rows.enumerate().map(move |(t, row)| bound::score(view, q, &moved, t, row))
}

fn length(x: &[f32]) -> f64 {
    norm(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>())
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
