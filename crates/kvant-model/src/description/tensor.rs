//! Weights by name: what a description says of a tensor, and how its numbers are read from a checkpoint.
//!
//! Checkpoints store the same matrix in several ways: transposed, as one of many experts in a 3-D tensor, gate and up rows
//! interleaved, codes and scales apart. A [`Matrix`] says which, and [`Matrix::read`] gives every backend the same `(outputs,
//! inputs)` tensor; nothing is copied where the rows lie together in the file.

use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::scales::joined;
use crate::tensor::Tensor;

/// A tensor of the checkpoint by its full name, in the shape it must have there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRef {
    /// The name, `.weight` and all.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

impl TensorRef {
    /// The tensor, held to its shape.
    pub fn read(&self, checkpoint: &Checkpoint) -> Result<Tensor> {
        let tensor = checkpoint.tensor(&self.name)?;
        tensor.expect_shape(&self.shape)?;
        Ok(tensor)
    }
}

/// Some rows of a matrix: `run` of them from `first` on, `run` from `first + step` on, …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRange {
    /// The first of them.
    pub first: usize,
    /// From the start of one run to that of the next: 2 where gate and up rows are interleaved.
    pub step: usize,
    /// Rows of a run, which lie together.
    pub run: usize,
    /// How many in all.
    pub count: usize,
}

impl RowRange {
    /// Rows that lie together.
    pub fn from(first: usize, count: usize) -> Self {
        Self { first, step: count, run: count, count }
    }

    /// Every `step`th row.
    pub fn every(step: usize, first: usize, count: usize) -> Self {
        Self { first, step, run: 1, count }
    }

    /// The row of the matrix that is the `index`th of these.
    pub fn row(&self, index: usize) -> usize {
        self.first + index / self.run * self.step + index % self.run
    }

    /// Whether they lie together, in order.
    fn is_one_run(&self) -> bool {
        self.run == self.step || self.count <= self.run
    }

    fn check(&self, of: &TensorRef, rows: usize) -> Result<()> {
        let last = |index: usize| {
            let (run, rest) = (index.checked_div(self.run)?, index.checked_rem(self.run)?);
            run.checked_mul(self.step)?.checked_add(self.first)?.checked_add(rest)
        };
        // Rows of a run come before those of the next, so the last is the farthest.
        let last = self.count.checked_sub(1).filter(|_| self.run <= self.step).and_then(last);
        match last {
            Some(last) if last < rows => Ok(()),
            _ => Err(LoadError::mismatch(format!(
                "tensor {:?} has {rows} rows; {self:?} of them are needed",
                of.name
            ))),
        }
    }
}

/// A matrix that multiplies activations, `(outputs, inputs)` however the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// Where it is stored.
    pub tensor: TensorRef,
    /// Which part of the outermost extent it is, in a tensor of all experts.
    pub expert: Option<usize>,
    /// The file has `(inputs, outputs)`.
    pub transposed: bool,
    /// Which of the outputs; all where `None`.
    pub rows: Option<RowRange>,
}

impl Matrix {
    /// A whole tensor `(outputs, inputs)`.
    pub fn whole(tensor: TensorRef) -> Self {
        Self { tensor, expert: None, transposed: false, rows: None }
    }

    /// Width of an output row.
    pub fn outputs(&self) -> usize {
        self.rows.map_or_else(|| self.extents().0, |rows| rows.count)
    }

    /// Width of an input row.
    pub fn inputs(&self) -> usize {
        self.extents().1
    }

    /// All outputs of the stored matrix, and its inputs.
    fn extents(&self) -> (usize, usize) {
        match *self.tensor.shape {
            [.., a, b] if self.transposed => (b, a),
            [.., a, b] => (a, b),
            // A single row may be stored as a vector.
            [inputs] => (1, inputs),
            [] => (1, 1),
        }
    }

    /// The weights, `(outputs, inputs)`.
    pub fn read(&self, checkpoint: &Checkpoint) -> Result<Tensor> {
        let mut stored = self.tensor.read(checkpoint)?;
        if let Some(expert) = self.expert {
            stored = stored.index(expert)?;
        }
        let (outputs, inputs) = self.extents();
        if stored.shape() != [outputs, inputs] && !self.transposed {
            stored = stored.reshape(vec![outputs, inputs])?;
        }
        if self.transposed {
            return self.turned(&stored, outputs, inputs);
        }
        let Some(rows) = self.rows else { return joined(stored) };
        rows.check(&self.tensor, outputs)?;
        joined(match rows.is_one_run() {
            true => stored.narrow(rows.first..rows.first + rows.count)?,
            false => stored.gather(rows)?,
        })
    }

    /// The transpose of what is stored, `(inputs, outputs)`, in plain numbers.
    fn turned(&self, stored: &Tensor, outputs: usize, inputs: usize) -> Result<Tensor> {
        let rows = self.rows.unwrap_or(RowRange::from(0, outputs));
        rows.check(&self.tensor, outputs)?;
        let values = stored.to_f32()?; // (inputs, outputs)
        let row = |o: usize| values[rows.row(o)..].iter().step_by(outputs).copied();
        let turned: Vec<f32> = (0..rows.count).flat_map(row).collect();
        stored.bytes().release();
        Tensor::from_f32(stored.name(), vec![rows.count, inputs], &turned)
    }
}

/// A list of numbers: a norm's weights, a bias, a logit per head.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// Where it is stored.
    pub tensor: TensorRef,
    /// Which part of the outermost extent it is, in a tensor of all experts.
    pub expert: Option<usize>,
    /// Which of its numbers; all where `None`.
    pub rows: Option<RowRange>,
    /// Added to every number: 1 in families whose files hold `weight − 1`.
    pub offset: f32,
}

impl Vector {
    /// A whole tensor.
    pub fn whole(tensor: TensorRef) -> Self {
        Self { tensor, expert: None, rows: None, offset: 0.0 }
    }

    /// How many numbers.
    pub fn len(&self) -> usize {
        let skipped = usize::from(self.expert.is_some());
        self.rows.map_or_else(|| self.tensor.shape.iter().skip(skipped).product(), |rows| rows.count)
    }

    /// True for no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers.
    pub fn read(&self, checkpoint: &Checkpoint) -> Result<Vec<f32>> {
        let mut stored = self.tensor.read(checkpoint)?;
        if let Some(expert) = self.expert {
            stored = stored.index(expert)?;
        }
        let all = stored.to_f32()?;
        let mut numbers = match self.rows {
            None => all,
            Some(rows) => {
                rows.check(&self.tensor, all.len())?;
                (0..rows.count).map(|index| all[rows.row(index)]).collect()
            }
        };
        // Not where there is none to add: minus zero plus zero is another number.
        if self.offset != 0.0 {
            numbers.iter_mut().for_each(|x| *x += self.offset);
        }
        Ok(numbers)
    }
}

/// How freely a backend may store a layer's weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// It may pack and round them as the user allowed.
    #[default]
    Packed,
    /// They stay as they are: routers and gates, small layers that decide much.
    Exact,
}

/// A linear layer `y = W x + b`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// W, `(outputs, inputs)`.
    pub weight: Matrix,
    /// b, `(outputs)`.
    pub bias: Option<Vector>,
    /// How its weights may be stored.
    pub precision: Precision,
}

impl Linear {
    /// A layer without bias whose weights may be packed.
    pub fn new(weight: Matrix) -> Self {
        Self { weight, bias: None, precision: Precision::Packed }
    }

    /// Width of an output row.
    pub fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    /// Width of an input row.
    pub fn inputs(&self) -> usize {
        self.weight.inputs()
    }
}

/// A normalisation over stretches of `width` values: over a row, or over each head of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// What is divided by.
    pub kind: NormKind,
    /// Values that are normed together.
    pub width: usize,
    /// Multiplier of each value; none where all are 1.
    pub weight: Option<Vector>,
    /// Added after it.
    pub bias: Option<Vector>,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

/// The two norms there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / rms(x)`.
    Rms,
    /// `(x − mean) / deviation`.
    Layer,
}

/// The type a tensor of a model without weights is taken to have: matrices `weights` where that divides their rows, f16
/// elsewhere; vectors f32, as converters keep them.
pub(crate) fn assumed_type(shape: &[usize], weights: DType) -> DType {
    match *shape {
        [.., _, columns] if weights.row_bytes(columns).is_some() => weights,
        [.., _, _] => DType::F16,
        _ => DType::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, Writer};

    fn checkpoint(name: &str, shape: &[usize], values: &[f32]) -> (Checkpoint, TensorRef) {
        let mut writer = Writer::new("llama");
        writer.tensor(Tensor::from_f32(name, shape.to_vec(), values).unwrap());
        let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap());
        (checkpoint, TensorRef { name: name.to_owned(), shape: shape.to_vec() })
    }

    fn count(n: usize) -> Vec<f32> {
        (0..n).map(|i| i as f32).collect()
    }

    #[test]
    fn a_matrix_is_found_however_it_is_stored() {
        // Two experts, (inputs 3, outputs 4) each, gate and up interleaved along the outputs.
        let (file, tensor) = checkpoint("w", &[2, 3, 4], &count(24));
        let rows = Some(RowRange::every(2, 1, 2));
        let up = Matrix { tensor: tensor.clone(), expert: Some(1), transposed: true, rows };
        assert_eq!((up.outputs(), up.inputs()), (2, 3));
        assert_eq!(up.read(&file).unwrap().to_f32().unwrap(), [13.0, 17.0, 21.0, 15.0, 19.0, 23.0]);
        let plain = Matrix { transposed: false, rows, ..up };
        let found = plain.read(&file).unwrap_err().to_string();
        assert!(found.contains("\"w\"") && found.contains("3 rows"), "{found}");
        let plain = Matrix { rows: Some(RowRange::every(2, 0, 2)), ..plain };
        assert_eq!(
            plain.read(&file).unwrap().to_f32().unwrap(),
            [12.0, 13.0, 14.0, 15.0, 20.0, 21.0, 22.0, 23.0]
        );
        let part = Matrix { rows: Some(RowRange::from(1, 1)), ..plain };
        assert_eq!(part.read(&file).unwrap().to_f32().unwrap(), [16.0, 17.0, 18.0, 19.0]);
    }

    #[test]
    fn vectors_are_parts_with_an_offset() {
        let (file, tensor) = checkpoint("b", &[2, 4], &count(8));
        let rows = Some(RowRange::every(2, 1, 2));
        let vector = Vector { tensor, expert: Some(1), rows, offset: 1.0 };
        assert_eq!((vector.len(), vector.read(&file).unwrap()), (2, vec![6.0, 8.0]));
        let whole = Vector { rows: None, offset: 0.0, ..vector };
        assert_eq!((whole.len(), whole.read(&file).unwrap()), (4, vec![4.0, 5.0, 6.0, 7.0]));
    }

    #[test]
    fn rows_may_lie_in_runs() {
        let (file, tensor) = checkpoint("ba", &[8, 1], &count(8));
        let read = |rows: RowRange| {
            let matrix = Matrix { rows: Some(rows), ..Matrix::whole(tensor.clone()) };
            let vector = Vector { rows: Some(rows), ..Vector::whole(tensor.clone()) };
            let numbers = matrix.read(&file)?.to_f32()?;
            assert_eq!(numbers, vector.read(&file)?);
            Ok::<_, LoadError>(numbers)
        };
        let runs = |first, count| RowRange { first, step: 4, run: 2, count };
        assert_eq!(read(runs(0, 4)).unwrap(), [0.0, 1.0, 4.0, 5.0]);
        assert_eq!(read(runs(2, 4)).unwrap(), [2.0, 3.0, 6.0, 7.0]);
        assert_eq!(read(RowRange::from(3, 2)).unwrap(), [3.0, 4.0]);
        for bad in [runs(2, 5), runs(3, 4), RowRange { run: 0, ..runs(0, 4) }, RowRange::from(3, 0)] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
