//! The activations of a pass: one row of f32 per token.

use kvant_simd::Tier;
use kvant_threads::for_each_chunk;
use kvant_weights::Activations;
use std::cell::RefCell;
use std::sync::OnceLock;

/// Row-parallel work is handed out in stretches of about this many values: some microseconds of it, so that
/// starting a thread on it pays. Less than two of them stay where they are.
const STRETCH: usize = 1 << 14;

/// A dense `(tokens, width)` matrix of activations.
///
/// Rows come and go by the hundred in a pass, so their memory is kept for the next ones.
#[derive(Debug)]
pub struct Rows {
    data: Vec<f32>,
    width: usize,
    /// The same rounded to bytes, made when first asked for: several products often share an input.
    quantised: OnceLock<Activations>,
}

thread_local! {
    /// Memory of rows that are gone.
    static SPARE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Buffers kept by a thread: more than a pass has at a time.
const SPARES: usize = 16;
/// The most values of a buffer that is kept; logits of many tokens take more, and are rare.
const SPARE_LEN: usize = 4 << 20;

impl Drop for Rows {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
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

/// The same, empty.
fn buffer(len: usize) -> Vec<f32> {
    let mut data = spare(len);
    data.clear();
    data
}

impl Clone for Rows {
    fn clone(&self) -> Self {
        let mut data = buffer(self.data.len());
        data.extend_from_slice(&self.data);
        Self::from_vec(data, self.width)
    }
}

impl Rows {
    /// `tokens` rows of zeros.
    pub fn zeros(tokens: usize, width: usize) -> Self {
        let mut rows = Self::unset(tokens, width);
        rows.data.fill(0.0);
        rows
    }

    /// `tokens` rows of whatever numbers were there before, to be overwritten.
    pub fn unset(tokens: usize, width: usize) -> Self {
        let mut data = spare(tokens * width);
        data.resize(tokens * width, 0.0);
        Self::from_vec(data, width)
    }

    /// Rows over existing values.
    ///
    /// # Panics
    /// When `data` is not a whole number of rows of a positive `width`.
    pub fn from_vec(data: Vec<f32>, width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "{} values in rows of {width}", data.len());
        Self { data, width, quantised: OnceLock::new() }
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
        self.quantised.take();
        &mut self.data[token * self.width..][..self.width]
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All values, for writing.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.quantised.take();
        &mut self.data
    }

    /// The rows rounded to bytes.
    pub fn quantised(&self, tier: Tier) -> &Activations {
        self.quantised.get_or_init(|| Activations::new(tier, &self.data, self.width))
    }

    /// The values themselves.
    pub fn into_vec(mut self) -> Vec<f32> {
        std::mem::take(&mut self.data)
    }

    /// `self += scale · other`, value by value: the residual connection.
    pub fn add_scaled(&mut self, other: &Rows, scale: f32) {
        assert_eq!(self.data.len(), other.data.len(), "rows of different shapes");
        self.quantised.take();
        for (x, y) in self.data.iter_mut().zip(&other.data) {
            *x += scale * y;
        }
    }

    /// A copy of the named rows, in the order named.
    pub fn gather(&self, tokens: &[usize]) -> Rows {
        let mut data = buffer(tokens.len() * self.width);
        tokens.iter().for_each(|&t| data.extend_from_slice(self.row(t)));
        Self::from_vec(data, self.width)
    }

    /// Columns `range` of every row.
    pub fn columns(&self, range: std::ops::Range<usize>) -> Rows {
        let mut data = buffer(self.tokens() * range.len());
        self.data.chunks_exact(self.width).for_each(|row| data.extend_from_slice(&row[range.clone()]));
        Self::from_vec(data, range.len())
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
