//! Rows of a tensor that does not exist yet, from where their numbers lie.

use crate::encode::encode_row;
use crate::parts::{Layout, Part, Stored};
use half::{bf16, f16};
use kvant_model::description::{Matrix, Pairing, RowRange};
use kvant_model::error::{LoadError, Result};
use kvant_model::{Checkpoint, DType, Tensor};
use std::sync::Arc;

/// A tensor to be written.
pub(crate) struct Made {
    pub name: String,
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    pub rows: Rows,
}

/// Where the rows of a tensor come from.
pub(crate) enum Rows {
    /// As they are stored, byte for byte.
    Same(Tensor),
    /// Numbers in memory: vectors.
    Numbers(Vec<f32>),
    /// Matrices of equally many rows, one after another.
    Matrices(Vec<Source>),
}

/// The rows of one matrix.
pub(crate) struct Source {
    /// `(outputs, inputs)`, or `(inputs, outputs)` where it is to be turned.
    pub tensor: Tensor,
    pub transposed: bool,
    pub taken: RowRange,
    pub order: Order,
    /// Weight of each input in the rounding.
    pub importance: Option<Arc<[f32]>>,
}

/// Which row of the source becomes a row of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// Channels `i` and `i + rotated/2` of a head become neighbours.
    Paired {
        dim: usize,
        rotated: usize,
    },
    /// From `(heads, 3, dim)` to `(3, heads, dim)`.
    Joined {
        dim: usize,
        heads: usize,
    },
}

impl Order {
    /// The way from one layout to another, where there is one.
    pub fn between(from: Layout, to: Layout, outputs: usize) -> Option<Self> {
        match (from, to) {
            _ if from == to => Some(Self::Same),
            // A vector over a single head and one over all heads are the same to a rotation.
            (
                Layout::Rotated { dim, rotated, pairing: Pairing::Halves },
                Layout::Rotated { dim: other, rotated: also, pairing: Pairing::Neighbours },
            ) if dim == other && rotated == also => Some(Self::Paired { dim, rotated }),
            (Layout::ByHead { dim }, Layout::Joined { dim: other }) if dim == other => {
                Some(Self::Joined { dim, heads: outputs / 3 / dim })
            }
            (Layout::LogDecay, Layout::Decay) => Some(Self::Same),
            _ => None,
        }
    }

    pub fn source(self, row: usize) -> usize {
        match self {
            Self::Same => row,
            Self::Paired { dim, rotated } => {
                let channel = row % dim;
                let from =
                    if channel < rotated { channel / 2 + channel % 2 * (rotated / 2) } else { channel };
                row / dim * dim + from
            }
            Self::Joined { dim, heads } => {
                let (kind, head, channel) = (row / (heads * dim), row / dim % heads, row % dim);
                (head * 3 + kind) * dim + channel
            }
        }
    }
}

impl Source {
    /// All rows of a tensor with two extents or more.
    pub fn whole(tensor: Tensor, importance: Option<Arc<[f32]>>) -> Self {
        let taken = RowRange::from(0, tensor.rows());
        Self { tensor, transposed: false, taken, order: Order::Same, importance }
    }

    /// The rows of a matrix of the description.
    pub fn of(
        matrix: &Matrix,
        order: Order,
        checkpoint: &Checkpoint,
        importance: Option<Arc<[f32]>>,
    ) -> Result<Self> {
        let mut tensor = matrix.tensor.read(checkpoint)?;
        if let Some(expert) = matrix.expert {
            tensor = tensor.index(expert)?;
        }
        let outputs = if matrix.transposed { tensor.columns() } else { tensor.rows() };
        let taken = matrix.rows.unwrap_or(RowRange::from(0, outputs));
        let last = taken.count.checked_sub(1).map(|n| taken.row(n));
        if last.is_none_or(|last| last >= outputs) {
            return Err(LoadError::mismatch(format!(
                "tensor {:?} has {outputs} outputs; {taken:?} of them are needed",
                tensor.name()
            )));
        }
        if matrix.transposed && !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            let (name, dtype) = (tensor.name(), tensor.dtype());
            return Err(LoadError::unsupported(format!("tensor {name:?} is {dtype} and cannot be turned")));
        }
        Ok(Self { tensor, transposed: matrix.transposed, taken, order, importance })
    }

    pub fn rows(&self) -> usize {
        self.taken.count
    }

    fn fill(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let row = self.taken.row(self.order.source(row));
        if !self.transposed {
            return self.tensor.row_f32(row, out);
        }
        let (bytes, outputs) = (self.tensor.bytes(), self.tensor.columns());
        let two = |at: usize| [bytes[2 * at], bytes[2 * at + 1]];
        for (input, x) in out.iter_mut().enumerate() {
            let at = input * outputs + row;
            *x = match self.tensor.dtype() {
                DType::F16 => f16::from_le_bytes(two(at)).to_f32(),
                DType::BF16 => bf16::from_le_bytes(two(at)).to_f32(),
                _ => f32::from_le_bytes(*bytes[4 * at..].first_chunk().expect("inside the tensor")),
            };
        }
        Ok(())
    }
}

impl Made {
    /// Bytes of all rows.
    pub fn bytes(&self) -> Result<usize> {
        self.dtype.tensor_bytes(&self.shape).ok_or_else(|| {
            LoadError::mismatch(format!(
                "tensor {:?}: shape {:?} is impossible for type {}",
                self.name, self.shape, self.dtype
            ))
        })
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Stores one row; `numbers` is room for its values.
    pub fn store(&self, row: usize, numbers: &mut Vec<f32>, out: &mut [u8]) -> Result<()> {
        let columns = self.columns();
        numbers.resize(columns, 0.0);
        let named =
            |e: LoadError| LoadError::new(e.kind(), format!("tensor {:?}, row {row}: {e}", self.name));
        let mut importance = None;
        match &self.rows {
            Rows::Same(tensor) => {
                out.copy_from_slice(tensor.row(row));
                return Ok(());
            }
            Rows::Numbers(all) => numbers.copy_from_slice(&all[row * columns..][..columns]),
            Rows::Matrices(sources) => {
                let each = sources.first().map_or(1, Source::rows).max(1);
                let source = &sources[row / each];
                source.fill(row % each, numbers)?;
                importance = source.importance.as_deref();
            }
        }
        encode_row(self.dtype, numbers, importance, out).map_err(named)
    }

    /// Tells the system that the source's pages are not needed any more.
    pub fn release(&self) {
        match &self.rows {
            Rows::Same(tensor) => tensor.bytes().release(),
            Rows::Numbers(_) => {}
            Rows::Matrices(sources) => sources.iter().for_each(|source| source.tensor.bytes().release()),
        }
    }
}

/// The numbers of a vector under another layout, with what the other file leaves out taken off.
pub(crate) fn vector(from: &Part, to: &Part, checkpoint: &Checkpoint) -> Result<Option<Vec<f32>>> {
    let (Stored::Vector(source), Stored::Vector(wanted)) = (&from.stored, &to.stored) else {
        return Ok(None);
    };
    let numbers = source.read(checkpoint)?;
    let Some(order) = Order::between(from.layout, to.layout, numbers.len()) else { return Ok(None) };
    let is_log = from.layout == Layout::LogDecay && to.layout == Layout::Decay;
    let one = |row: usize| {
        let x = numbers[order.source(row)];
        let x = if is_log { -x.exp() } else { x };
        // Not where there is none to take: minus zero less zero is another number.
        if wanted.offset == 0.0 { x } else { x - wanted.offset }
    };
    Ok(Some((0..numbers.len()).map(one).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_neighbours_within_the_rotated_channels() {
        let from = Layout::Rotated { dim: 8, rotated: 6, pairing: Pairing::Halves };
        let to = Layout::Rotated { dim: 8, rotated: 6, pairing: Pairing::Neighbours };
        let order = Order::between(from, to, 16).unwrap();
        let rows: Vec<usize> = (0..16).map(|row| order.source(row)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15]);
        assert_eq!(Order::between(to, from, 16), None);
    }

    #[test]
    fn heads_are_dealt_to_queries_keys_and_values() {
        let order = Order::between(Layout::ByHead { dim: 2 }, Layout::Joined { dim: 2 }, 12).unwrap();
        let rows: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(rows, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }

    #[test]
    fn a_matrix_is_turned_and_every_other_output_taken() {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let tensor = Tensor::from_f32("w", vec![3, 4], &values).unwrap(); // (inputs, outputs)
        let taken = RowRange::every(2, 1, 2);
        let source = Source { tensor, transposed: true, taken, order: Order::Same, importance: None };
        let mut row = [0.0; 3];
        source.fill(1, &mut row).unwrap();
        assert_eq!(row, [3.0, 7.0, 11.0]);
    }
}
