//! Rows of numbers: logits, and activations that somebody looks at.

/// A dense `(rows, width)` matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    data: Vec<f32>,
    width: usize,
}

impl Rows {
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
}
