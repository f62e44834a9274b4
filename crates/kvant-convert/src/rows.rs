//! Rows of a tensor that does not exist yet, from where their numbers lie.

use crate::encode::encode_row;
use crate::parts::{Form, Order, Part};
use half::{bf16, f16};
use kvant_model::error::{LoadError, Result};
use kvant_model::{Checkpoint, DType, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

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
    Matrices(Vec<Dealt>),
    /// The same, `(inputs, outputs)` each.
    Turned(Turned),
}

/// A matrix whose rows come from one source after another, or from several in turns.
pub(crate) struct Dealt {
    pub sources: Vec<Source>,
    /// For every row its source and its row there; none where sources follow each other.
    pub turns: Option<Vec<(u32, u32)>>,
}

/// Matrices whose columns come from rows, a few of which are in memory.
pub(crate) struct Turned {
    pub matrices: Vec<Dealt>,
    pub inputs: usize,
    recent: Mutex<Vec<(usize, Arc<Vec<f32>>)>>,
}

/// The rows of one matrix, in the common order.
pub(crate) struct Source {
    /// `(outputs, inputs)`, or `(inputs, outputs)` where it is to be turned.
    tensor: Tensor,
    transposed: bool,
    count: usize,
    rows: Order,
    /// For every column of the result that of the source.
    columns: Option<Vec<u32>>,
    /// What every number is multiplied with.
    scale: f32,
    /// Weight of each column in the rounding.
    importance: Option<Arc<[f32]>>,
    /// All numbers `(inputs, outputs)`, where the type has no numbers to pick out.
    decoded: Mutex<Option<Arc<Vec<f32>>>>,
}

impl Source {
    /// All rows of a tensor with two extents or more.
    pub fn whole(tensor: Tensor, importance: Option<Arc<[f32]>>) -> Self {
        let count = tensor.rows();
        Self {
            tensor,
            transposed: false,
            count,
            rows: Order::ALL,
            columns: None,
            scale: 1.0,
            importance,
            decoded: Mutex::default(),
        }
    }

    /// The rows of a part, whose columns the result has in another order and whose scale it has in its numbers.
    pub fn of(
        part: &Part,
        to: &Part,
        scale: f32,
        checkpoint: &Checkpoint,
        importance: Option<Arc<[f32]>>,
    ) -> Result<Self> {
        let (Form::Matrix { transposed, inputs, columns }, Form::Matrix { columns: wanted, .. }) =
            (&part.form, &to.form)
        else {
            return Err(LoadError::mismatch(format!("tensor {:?} is not a matrix", part.tensor.name)));
        };
        let mut tensor = part.tensor.read(checkpoint)?;
        if let Some(expert) = part.expert {
            tensor = tensor.index(expert)?;
        }
        let outputs = if *transposed { tensor.columns() } else { tensor.rows() };
        if (0..part.count).any(|row| part.rows.at(row) >= outputs) {
            return Err(LoadError::mismatch(format!(
                "tensor {:?} has {outputs} outputs; more of them are needed",
                tensor.name()
            )));
        }
        let permuted = (columns != wanted).then(|| {
            let mut list = vec![0; *inputs];
            (0..*inputs).for_each(|input| list[wanted.at(input)] = columns.at(input) as u32);
            list
        });
        let pick = |weights: Arc<[f32]>| match &permuted {
            Some(list) => list.iter().map(|&column| weights[column as usize]).collect(),
            None => weights,
        };
        let importance = importance.filter(|weights| weights.len() == *inputs).map(pick);
        Ok(Self {
            tensor,
            transposed: *transposed,
            count: part.count,
            rows: part.rows.clone(),
            columns: permuted,
            scale,
            importance,
            decoded: Mutex::default(),
        })
    }

    /// The bytes of a row, where they are what a tensor of this type would hold.
    fn bytes(&self, row: usize, dtype: DType) -> Option<&[u8]> {
        let own = self.tensor.dtype();
        let twins = [(DType::Q4_0, DType::Int4G32), (DType::Q8_0, DType::Int8G32)];
        let is_same = own == dtype || twins.contains(&(own, dtype)) || twins.contains(&(dtype, own));
        let is_plain = !self.transposed && self.columns.is_none() && self.scale == 1.0;
        // Floats are looked at on the way.
        (is_same && is_plain && own.block_len() > 1 && self.tensor.scales().is_none())
            .then(|| self.tensor.row(self.rows.at(row)))
    }

    fn fill(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let row = self.rows.at(row);
        match (&self.columns, self.transposed) {
            (None, false) => self.tensor.row_f32(row, out)?,
            (Some(list), false) => {
                let mut numbers = vec![0.0; out.len()];
                self.tensor.row_f32(row, &mut numbers)?;
                out.iter_mut().zip(list).for_each(|(x, &column)| *x = numbers[column as usize]);
            }
            (None, true) => self.fill_turned(row, 0..out.len(), out)?,
            (Some(list), true) => self.fill_turned(row, list.iter().map(|&c| c as usize), out)?,
        }
        // Not where there is nothing to do: every number stays as it is.
        if self.scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= self.scale);
        }
        Ok(())
    }

    fn fill_turned(&self, row: usize, inputs: impl Iterator<Item = usize>, out: &mut [f32]) -> Result<()> {
        let (bytes, outputs) = (self.tensor.bytes(), self.tensor.columns());
        let two = |at: usize| [bytes[2 * at], bytes[2 * at + 1]];
        let is_plain = self.tensor.scales().is_none();
        let places = out.iter_mut().zip(inputs.map(|input| input * outputs + row));
        match self.tensor.dtype() {
            DType::F16 if is_plain => places.for_each(|(x, at)| *x = f16::from_le_bytes(two(at)).to_f32()),
            DType::BF16 if is_plain => places.for_each(|(x, at)| *x = bf16::from_le_bytes(two(at)).to_f32()),
            DType::F32 if is_plain => places.for_each(|(x, at)| {
                *x = f32::from_le_bytes(*bytes[4 * at..].first_chunk().expect("inside the tensor"));
            }),
            _ => {
                let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
                let numbers = match &*decoded {
                    Some(numbers) => Arc::clone(numbers),
                    None => Arc::clone(decoded.insert(Arc::new(self.tensor.to_f32()?))),
                };
                drop(decoded);
                places.for_each(|(x, at)| *x = numbers[at]);
            }
        }
        Ok(())
    }

    fn release(&self) {
        self.tensor.bytes().release();
        *self.decoded.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Dealt {
    /// All rows of one source.
    pub fn one(source: Source) -> Self {
        Self { sources: vec![source], turns: None }
    }

    fn rows(&self) -> usize {
        self.sources.iter().map(|source| source.count).sum()
    }

    /// The source of a row, and its row there.
    fn source(&self, mut row: usize) -> (&Source, usize) {
        if let Some(turns) = &self.turns {
            let (source, row) = turns[row];
            return (&self.sources[source as usize], row as usize);
        }
        let mut last = &self.sources[0];
        for source in &self.sources {
            last = source;
            if row < source.count {
                break;
            }
            row -= source.count;
        }
        (last, row)
    }
}

impl Turned {
    pub fn new(matrices: Vec<Dealt>, inputs: usize) -> Self {
        Self { matrices, inputs, recent: Mutex::default() }
    }

    /// A matrix, `(inputs, outputs)`. Rows are asked for in order, by several threads: two matrices at most are in use.
    fn matrix(&self, index: usize, outputs: usize) -> Result<Arc<Vec<f32>>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = recent.iter().find(|(own, _)| *own == index) {
            return Ok(Arc::clone(found));
        }
        let mut turned = vec![0.0; self.inputs * outputs]; // (inputs, outputs)
        let mut numbers = vec![0.0; self.inputs];
        for output in 0..outputs {
            let (source, row) = self.matrices[index].source(output);
            source.fill(row, &mut numbers)?;
            let column = turned[output..].iter_mut().step_by(outputs);
            column.zip(&numbers).for_each(|(x, &number)| *x = number);
        }
        let turned = Arc::new(turned);
        if recent.len() > 1 {
            recent.remove(0);
        }
        recent.push((index, Arc::clone(&turned)));
        Ok(turned)
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
            Rows::Matrices(matrices) => {
                let each = matrices.first().map_or(1, Dealt::rows).max(1);
                let (source, row) = matrices[row / each].source(row % each);
                if let Some(bytes) = source.bytes(row, self.dtype) {
                    out.copy_from_slice(bytes);
                    return Ok(());
                }
                source.fill(row, numbers)?;
                importance = source.importance.as_deref();
            }
            Rows::Turned(turned) => {
                let matrix = turned.matrix(row / turned.inputs, columns)?;
                numbers.copy_from_slice(&matrix[row % turned.inputs * columns..][..columns]);
            }
        }
        encode_row(self.dtype, numbers, importance, out).map_err(named)
    }

    /// Tells the system that the source's pages are not needed any more.
    pub fn release(&self) {
        let matrices = match &self.rows {
            Rows::Same(tensor) => return tensor.bytes().release(),
            Rows::Numbers(_) => return,
            Rows::Matrices(matrices) => matrices,
            Rows::Turned(turned) => {
                turned.recent.lock().unwrap_or_else(PoisonError::into_inner).clear();
                &turned.matrices
            }
        };
        matrices.iter().flat_map(|matrix| &matrix.sources).for_each(Source::release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::description::RowRange;

    fn turned_source() -> Source {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let tensor = Tensor::from_f32("w", vec![3, 4], &values).unwrap(); // (inputs, outputs)
        let rows = Order::ALL.through(2, Some(RowRange::every(2, 1, 2)));
        Source { transposed: true, count: 2, rows, ..Source::whole(tensor, None) }
    }

    #[test]
    fn a_matrix_is_turned_and_every_other_output_taken() {
        let mut row = [0.0; 3];
        turned_source().fill(1, &mut row).unwrap();
        assert_eq!(row, [3.0, 7.0, 11.0]);
        let picked = Source { columns: Some(vec![2, 0, 1]), scale: 2.0, ..turned_source() };
        picked.fill(1, &mut row).unwrap();
        assert_eq!(row, [22.0, 6.0, 14.0]);
    }

    #[test]
    fn rows_are_dealt_in_turns_and_turned_back() {
        let values: Vec<f32> = (12..18).map(|i| i as f32).collect();
        let other = || Source::whole(Tensor::from_f32("v", vec![2, 3], &values).unwrap(), None);
        let turns = Some(vec![(0, 0), (1, 0), (0, 1), (1, 1)]);
        let stored = |rows: Rows, shape: Vec<usize>| {
            let made = Made { name: "x".into(), dtype: DType::F32, shape, rows };
            let each = 4 * made.columns();
            let mut bytes = vec![0; made.bytes().unwrap()];
            for (row, out) in bytes.chunks_mut(each).enumerate() {
                made.store(row, &mut Vec::new(), out).unwrap();
            }
            bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>()
        };
        let dealt = || Dealt { sources: vec![turned_source(), other()], turns: turns.clone() };
        let rows = [[1.0, 5.0, 9.0], [12.0, 13.0, 14.0], [3.0, 7.0, 11.0], [15.0, 16.0, 17.0]];
        assert_eq!(stored(Rows::Matrices(vec![dealt()]), vec![4, 3]), rows.as_flattened());
        let back = stored(Rows::Turned(Turned::new(vec![dealt(), dealt()], 3)), vec![2, 3, 4]);
        assert_eq!(back[..12], [1.0, 12.0, 3.0, 15.0, 5.0, 13.0, 7.0, 16.0, 9.0, 14.0, 11.0, 17.0]);
        assert_eq!(back[..12], back[12..]);
        let behind = Dealt { turns: None, ..dealt() };
        let rows = [[1.0, 5.0, 9.0], [3.0, 7.0, 11.0], [12.0, 13.0, 14.0], [15.0, 16.0, 17.0]];
        assert_eq!(stored(Rows::Matrices(vec![behind]), vec![4, 3]), rows.as_flattened());
    }
}
