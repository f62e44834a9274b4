//! The activations of a pass: one row of f32 per token.

use kvant_threads::for_each_chunk;

/// Row-parallel work is handed out in stretches of about this many values: some microseconds of it, so that
/// starting a thread on it pays. Less than two of them stay where they are.
const STRETCH: usize = 1 << 14;

/// A dense `(tokens, width)` matrix of activations.
#[derive(Debug, Clone)]
pub struct Rows {
    data: Vec<f32>,
    width: usize,
}

impl Rows {
    /// `tokens` rows of zeros.
    pub fn zeros(tokens: usize, width: usize) -> Self {
        Self { data: vec![0.0; tokens * width], width }
    }

    /// Rows over existing values.
    ///
    /// # Panics
    /// When `data` is not a whole number of rows of a positive `width`.
    pub fn from_vec(data: Vec<f32>, width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "{} values in rows of {width}", data.len());
        Self { data, width }
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.data.len() / self.width
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    pub fn row(&self, token: usize) -> &[f32] {
        &self.data[token * self.width..][..self.width]
    }

    /// One row, for writing.
    pub fn row_mut(&mut self, token: usize) -> &mut [f32] {
        &mut self.data[token * self.width..][..self.width]
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All values, for writing.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The values themselves.
    pub fn into_vec(self) -> Vec<f32> {
        self.data
    }

    /// `self += scale · other`, value by value: the residual connection.
    pub fn add_scaled(&mut self, other: &Rows, scale: f32) {
        assert_eq!(self.data.len(), other.data.len(), "rows of different shapes");
        for (x, y) in self.data.iter_mut().zip(&other.data) {
            *x += scale * y;
        }
    }

    /// A copy of the named rows, in the order named.
    pub fn gather(&self, tokens: &[usize]) -> Rows {
        let data = tokens.iter().flat_map(|&t| self.row(t)).copied().collect();
        Rows { data, width: self.width }
    }

    /// Columns `range` of every row.
    pub fn columns(&self, range: std::ops::Range<usize>) -> Rows {
        let data = self.data.chunks_exact(self.width).flat_map(|row| &row[range.clone()]).copied().collect();
        Rows { data, width: range.len() }
    }
}

/// Runs `work` on each stretch of `width` values of `data`, on several threads where there is enough to do.
///
/// **Invariant:** a stretch meets the same arithmetic however many there are, so results do not depend on the
/// number of tokens in a pass or on the number of threads.
pub fn for_each_row(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = (STRETCH / width).max(1);
    for_each_chunk(data, rows * width, |stretch, data| {
        data.chunks_exact_mut(width).enumerate().for_each(|(i, row)| work(stretch * rows + i, row));
    });
}
