//! Token embeddings.

use crate::blocks::{Activations, Linear, for_each_row};
use kvant_model::Tensor;
use kvant_model::error::Result;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of a mapped table that are read before its pages are given back. Each brings many others into memory with it.
pub const ROWS_KEPT: usize = 64;

/// The table that turns token ids into the first activations.
pub struct Embedding {
    tokens: Tensor, // (vocabulary, hidden)
    /// Learned positions of models without rotary embedding.
    positions: Option<Tensor>, // (context, hidden)
    scale: f32,
    /// Rows read since the table's pages were given back; `None` when they are kept.
    read: Option<AtomicUsize>,
}

/// What a token of a pass brings.
#[derive(Clone, Copy)]
pub enum TokenInput<'a> {
    /// An id, which the table has a row for.
    Id(u32),
    /// A row of its own, `(hidden)`.
    Row(&'a [f32]),
}

impl Embedding {
    /// An embedding whose rows are multiplied by `scale`, and to which learned positions may be added.
    pub fn new(tokens: Tensor, positions: Option<Tensor>, scale: f32) -> Result<Self> {
        // One row of each now, so that types that cannot be unpacked are refused here.
        for table in std::iter::once(&tokens).chain(&positions) {
            table.row_f32(0, &mut vec![0.0; table.columns()])?;
        }
        Ok(Self { tokens, positions, scale, read: None })
    }

    /// The same embedding, whose pages of the file are given back now and then, unless `output` multiplies with the
    /// table where it lies.
    #[must_use]
    pub fn releasing_table_pages(self, output: &Linear) -> Self {
        let is_output = self.tokens.bytes().as_ptr_range().contains(&output.bytes().as_ptr());
        Self { read: (!is_output).then(AtomicUsize::default), ..self }
    }

    /// The embeddings of tokens with their positions, `(tokens, hidden)`. Ids, sizes and positions were checked.
    pub fn forward<'a>(&self, tokens: impl Iterator<Item = (TokenInput<'a>, usize)>) -> Activations {
        let (width, tokens) = (self.tokens.columns(), tokens.collect::<Vec<_>>());
        let mut out = Activations::unset(tokens.len(), width);
        for_each_row(out.data_mut(), width, |index, row| {
            let (token, position) = tokens[index];
            match token {
                TokenInput::Id(id) => {
                    self.tokens.row_f32(id as usize, row).expect("the type was tried in new()");
                    row.iter_mut().for_each(|x| *x *= self.scale);
                }
                TokenInput::Row(given) => row.copy_from_slice(given),
            }
            if let Some(positions) = &self.positions {
                let mut learned = vec![0.0; width];
                positions.row_f32(position, &mut learned).expect("the type was tried in new()");
                row.iter_mut().zip(&learned).for_each(|(x, p)| *x += p);
            }
        });
        if let Some(read) = &self.read
            && read.fetch_add(tokens.len(), Ordering::Relaxed) + tokens.len() >= ROWS_KEPT
        {
            self.tokens.bytes().release();
            read.store(0, Ordering::Relaxed);
        }
        out
    }
}
