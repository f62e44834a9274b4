//! The activations of a pass: one row of f32 per token.

use kvant_model::Rows;
use kvant_simd::Tier;
use kvant_threads::for_each_chunk;
use kvant_weights::QuantizedActivations;
use std::cell::RefCell;
use std::sync::OnceLock;

/// Row-parallel work is handed out in stretches of about this many values: some microseconds of it, so that
/// starting a thread on it pays. Less than two of them stay where they are.
const CHUNK_LEN: usize = 1 << 14;

/// A dense `(tokens, width)` matrix of activations.
///
/// Activations come and go by the hundred in a pass, so their memory is kept for the next ones.
#[derive(Debug)]
pub struct Activations {
    rows: Rows,
    /// The same rounded to bytes, made when first asked for: several products often share an input.
    quantised: OnceLock<QuantizedActivations>,
}

thread_local! {
    /// Memory of rows that are gone.
    static SPARE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Buffers kept by a thread: more than a pass has at a time.
const SPARES: usize = 16;
/// The most values of a buffer that is kept; logits of many tokens take more, and are rare.
const SPARE_LEN: usize = 4 << 20;

impl Drop for Activations {
    fn drop(&mut self) {
        let data = self.take();
        // A thread that is ending has nowhere to keep them.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if (1..=SPARE_LEN).contains(&data.capacity()) && spare.len() < SPARES {
                spare.push(data);
            }
        });
    }
}

/// A buffer with room for `len` values, and with old values in it: the smallest spare one that has it, or a new one.
fn spare(len: usize) -> Vec<f32> {
    let spare = SPARE.with_borrow_mut(|spare| {
        let fits = (0..spare.len()).filter(|&i| spare[i].capacity() >= len);
        fits.min_by_key(|&i| spare[i].capacity()).map(|i| spare.swap_remove(i))
    });
    spare.unwrap_or_else(|| Vec::with_capacity(len))
}

impl Clone for Activations {
    fn clone(&self) -> Self {
        let mut copy = Self::unset(self.tokens(), self.width());
        for_each_row(copy.data_mut(), self.width(), |token, to| to.copy_from_slice(self.row(token)));
        copy
    }
}

impl Activations {
    /// `tokens` rows of zeros.
    pub fn zeros(tokens: usize, width: usize) -> Self {
        let mut zeros = Self::unset(tokens, width);
        zeros.rows.data_mut().fill(0.0);
        zeros
    }

    /// `tokens` rows of whatever numbers were there before, to be overwritten.
    pub fn unset(tokens: usize, width: usize) -> Self {
        let mut data = spare(tokens * width);
        data.resize(tokens * width, 0.0);
        Self::from_vec(data, width)
    }

    /// Activations over existing values.
    ///
    /// # Panics
    /// When `data` is not a whole number of rows of a positive `width`.
    pub fn from_vec(data: Vec<f32>, width: usize) -> Self {
        Self { rows: Rows::from_vec(data, width), quantised: OnceLock::new() }
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.rows.tokens()
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.rows.width()
    }

    /// One row.
    pub fn row(&self, token: usize) -> &[f32] {
        self.rows.row(token)
    }

    /// One row, for writing.
    pub fn row_mut(&mut self, token: usize) -> &mut [f32] {
        self.quantised.take();
        let width = self.rows.width();
        &mut self.rows.data_mut()[token * width..][..width]
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f32] {
        self.rows.data()
    }

    /// All values, for writing.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.quantised.take();
        self.rows.data_mut()
    }

    /// The rows rounded to bytes.
    pub fn quantised(&self, tier: Tier) -> &QuantizedActivations {
        self.quantised.get_or_init(|| QuantizedActivations::new(tier, self.rows.data(), self.rows.width()))
    }

    /// The values as plain rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The plain rows themselves.
    pub fn into_rows(mut self) -> Rows {
        let width = self.width();
        Rows::from_vec(self.take(), width)
    }

    /// The values themselves.
    pub fn into_vec(mut self) -> Vec<f32> {
        self.take()
    }

    /// Takes the values out.
    fn take(&mut self) -> Vec<f32> {
        std::mem::replace(&mut self.rows, Rows::from_vec(Vec::new(), 1)).into_vec()
    }

    /// `self += scale · other`, value by value: the residual connection.
    pub fn add_scaled(&mut self, other: &Activations, scale: f32) {
        let shape = |x: &Activations| (x.tokens(), x.width());
        assert_eq!(shape(self), shape(other), "rows of different shapes");
        let width = self.width();
        for_each_row(self.data_mut(), width, |row, x| {
            x.iter_mut().zip(other.row(row)).for_each(|(x, y)| *x += scale * y);
        });
    }

    /// A copy of the named rows, in the order named.
    pub fn gather(&self, tokens: &[usize]) -> Activations {
        let mut gathered = Self::unset(tokens.len(), self.width());
        for_each_row(gathered.data_mut(), self.width(), |row, to| to.copy_from_slice(self.row(tokens[row])));
        gathered
    }

    /// Columns `range` of every row.
    pub fn columns(&self, range: std::ops::Range<usize>) -> Activations {
        let mut columns = Self::unset(self.tokens(), range.len());
        for_each_row(columns.data_mut(), range.len(), |row, to| {
            to.copy_from_slice(&self.row(row)[range.clone()]);
        });
        columns
    }
}

/// Runs `work` on each stretch of `width` values of `data`, on several threads where there is enough to do.
///
/// **Invariant:** a stretch meets the same arithmetic however many there are, so results do not depend on the
/// number of tokens in a pass or on the number of threads.
pub fn for_each_row(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = (CHUNK_LEN / width).max(1);
    for_each_chunk(data, rows * width, |stretch, data| {
        data.chunks_exact_mut(width).enumerate().for_each(|(i, row)| work(stretch * rows + i, row));
    });
}
