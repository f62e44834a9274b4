//! Weights in groups of 16, 32 or 64 with an f16 scale, and their products with activations of 8 bits.

use crate::arrays::{self, Bytes, Floats};
use crate::codec::pool;
use crate::error::{bad_value, failed};
use crate::work::{detached, lock};
use half::f16;
use kvant_codec::Tier;
use kvant_model::DType;
use kvant_model::quant::{dequantize_row, quantize_row};
use kvant_weights::{Layout, Matrix, QuantizedActivations};
use pyo3::prelude::*;
use std::sync::{Mutex, OnceLock};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Weights>()
}

/// Packed rows, `(rows, columns)`.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Weights {
    dtype: DType,
    rows: usize,
    columns: usize,
    /// Blocks as a file has them: those of Q4_0 or Q8_0, or kvant's own.
    blocks: Vec<u8>,
    /// In the order that products read, made by the first of them.
    matrix: OnceLock<Result<Matrix, String>>,
}

impl Weights {
    fn layout(&self) -> Layout {
        match self.dtype {
            DType::Int4G16 => Layout::Int4G16,
            DType::Int4G32 => Layout::Q4_0,
            DType::Int4G64 => Layout::Int4G64,
            DType::Int8G16 => Layout::Int8G16,
            DType::Int8G64 => Layout::Int8G64,
            _ => Layout::Q8_0,
        }
    }

    fn is_wide(&self) -> bool {
        DType::own(8, self.dtype.own_group()) == Some(self.dtype)
    }

    /// Bytes of the scales of a block.
    fn scale_bytes(&self) -> usize {
        2 * (self.dtype.block_len() / self.dtype.own_group())
    }

    fn matrix(&self) -> PyResult<&Matrix> {
        let make = || {
            let tier = Tier::select().map_err(|e| e.to_string())?;
            Matrix::pack(tier, self.layout(), self.rows, self.columns, &self.blocks)
                .map_err(|e| e.to_string())
        };
        self.matrix.get_or_init(make).as_ref().map_err(failed)
    }

    fn row_bytes(&self) -> usize {
        self.columns / self.dtype.block_len() * self.dtype.block_bytes()
    }
}

fn of_precision(precision: &str, group: usize) -> PyResult<DType> {
    let bits = match precision {
        "int4" => 4,
        "int8" => 8,
        other => return Err(bad_value(format!("precision is {other:?}; it must be int4 or int8"))),
    };
    DType::own(bits, group)
        .ok_or_else(|| bad_value(format!("group_size is {group}; it must be 16, 32 or 64")))
}

fn check_shape(rows: usize, columns: usize, dtype: DType) -> PyResult<()> {
    if rows > 0 && columns > 0 && columns.is_multiple_of(dtype.block_len()) {
        return Ok(());
    }
    Err(bad_value(format!(
        "{rows} rows of {columns} weights: rows must be whole groups of {}, and not empty",
        dtype.block_len()
    )))
}

#[pymethods]
impl Weights {
    /// Rounds an array, `(rows, columns)`, to `int4` or `int8`.
    #[staticmethod]
    fn quantize(
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        kind: &str,
        precision: &str,
        group: usize,
    ) -> PyResult<Self> {
        let array = Floats::of(array, kind)?.expect_axes("weights", "(rows, columns)", 2, 2)?;
        let dtype = of_precision(precision, group)?;
        let (rows, columns) = (array.shape()[0], array.shape()[1]);
        check_shape(rows, columns, dtype)?;
        let size = columns / dtype.block_len() * dtype.block_bytes();
        let blocks = detached(py, || {
            let mut blocks = vec![0; rows * size];
            let failure = Mutex::new(None);
            pool().install(|| {
                kvant_threads::for_each_chunk(&mut blocks, size, |row, out| {
                    let mut scratch = Vec::new();
                    if let Err(error) = quantize_row(dtype, array.read(row, 1, &mut scratch), out) {
                        lock(&failure).get_or_insert((row, error));
                    }
                });
            });
            let failure = lock(&failure).take();
            failure.map_or(Ok(blocks), |(row, error)| Err(bad_value(format!("row {row}: {error}"))))
        })?;
        Ok(Self { dtype, rows, columns, blocks, matrix: OnceLock::new() })
    }

    /// Takes blocks of Q4_0 (`int4`) or Q8_0 (`int8`), as GGUF files have them.
    #[staticmethod]
    fn from_blocks(
        blocks: &Bound<'_, PyAny>,
        precision: &str,
        rows: usize,
        columns: usize,
    ) -> PyResult<Self> {
        let dtype = of_precision(precision, 32)?;
        check_shape(rows, columns, dtype)?;
        let bytes = Bytes::of(blocks, "blocks")?;
        let want = rows.checked_mul(columns / dtype.block_len() * dtype.block_bytes());
        if want != Some(bytes.as_slice().len()) {
            let got = bytes.as_slice().len();
            return Err(bad_value(format!(
                "{got} bytes are not {rows} rows of {columns} weights in {precision}"
            )));
        }
        Ok(Self { dtype, rows, columns, blocks: bytes.as_slice().to_vec(), matrix: OnceLock::new() })
    }

    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// `int4` or `int8`.
    #[getter]
    fn precision(&self) -> &'static str {
        if self.is_wide() { "int8" } else { "int4" }
    }

    /// Weights under one scale.
    #[getter]
    fn group(&self) -> usize {
        self.dtype.own_group()
    }

    /// Bytes of all codes and scales.
    #[getter]
    fn nbytes(&self) -> usize {
        self.blocks.len()
    }

    /// The blocks, `(rows, bytes)`: a copy.
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        arrays::bytes(py, self.blocks.clone(), &[self.rows, self.row_bytes()])
    }

    /// The codes as signed integers around zero, `(rows, columns)`.
    fn codes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut codes = Vec::with_capacity(self.rows * self.columns);
        for block in self.blocks.chunks_exact(self.dtype.block_bytes()) {
            let stored = &block[self.scale_bytes()..];
            if self.is_wide() {
                codes.extend(stored.iter().map(|&byte| byte as i8));
                continue;
            }
            for run in stored.chunks_exact(16) {
                codes.extend(run.iter().map(|byte| (byte & 15) as i8 - 8));
                codes.extend(run.iter().map(|byte| (byte >> 4) as i8 - 8));
            }
        }
        arrays::signed_bytes(py, codes, &[self.rows, self.columns])
    }

    /// The scales, `(rows, groups)`.
    fn scales<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let blocks = self.blocks.chunks_exact(self.dtype.block_bytes());
        let own = blocks.flat_map(|block| block[..self.scale_bytes()].as_chunks().0);
        let scales = own.map(|&scale| f16::from_le_bytes(scale).to_f32()).collect();
        arrays::floats(py, scales, &[self.rows, self.columns / self.dtype.own_group()])
    }

    /// The numbers they stand for, `(rows, columns)`.
    fn dequantize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let values = detached(py, || {
            let mut values = vec![0.0; self.rows * self.columns];
            dequantize_row(self.dtype, &self.blocks, &mut values).map_err(failed)?;
            Ok(values)
        })?;
        arrays::floats(py, values, &[self.rows, self.columns])
    }

    /// x·Wᵀ for activations, `(tokens, columns)`, which are rounded to 8 bits in groups of 32: `(tokens, rows)`.
    fn matmul<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>, kind: &str) -> PyResult<Bound<'py, PyAny>> {
        let x = Floats::of(x, kind)?.expect_axes("activations", "(tokens, columns)", 2, 2)?;
        let (tokens, columns) = (x.shape()[0], self.columns);
        if x.columns() != columns {
            return Err(bad_value(format!("activations of {} columns, weights of {columns}", x.columns())));
        }
        let out = detached(py, || {
            let mut scratch = Vec::new();
            let x = x.read(0, tokens, &mut scratch);
            if let Some(at) = x.iter().position(|x| !x.is_finite()) {
                let (row, column) = (at / columns, at % columns);
                return Err(bad_value(format!(
                    "activation ({row}, {column}) is {}, not a finite number",
                    x[at]
                )));
            }
            let mut out = vec![0.0; tokens * self.rows];
            pool().install(|| {
                let matrix = self.matrix()?;
                matrix.multiply(&QuantizedActivations::new(matrix.tier(), x, columns), &mut out);
                Ok(out)
            })
        })?;
        arrays::floats(py, out, &[tokens, self.rows])
    }
}
