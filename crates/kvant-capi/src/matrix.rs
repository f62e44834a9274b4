//! Packed weights and their products.

use crate::memory::{borrow, borrow_optional, handle, release};
use crate::pool::KvantPool;
use crate::rows::{KvantOutput, KvantRows, Shape};
use crate::status::{Failure, KvantStatus, guard};
use kvant_model::DType;
use kvant_model::quant::quantize_row;
use kvant_simd::Tier;
use kvant_weights::{Layout, Matrix, QuantizedActivations};

/// How weights are packed: in groups of 32 along a row, with a scale in f16.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantWeights {
    /// 4 bits and 16 for the scale of a group: 4.5 bits a weight.
    Int4 = 0,
    /// 8 bits and 16 for the scale of a group: 8.5 bits a weight.
    Int8 = 1,
}

impl KvantWeights {
    /// As the packed matrix and as the quantiser know it.
    fn formats(number: i32) -> Result<(Layout, DType), Failure> {
        match number {
            n if n == Self::Int4 as i32 => Ok((Layout::Q4_0, DType::Int4G32)),
            n if n == Self::Int8 as i32 => Ok((Layout::Q8_0, DType::Int8G32)),
            other => Err(Failure::argument(format!("format is {other}, and no kvant_weights"))),
        }
    }
}

/// A matrix of packed weights. Any number of threads may multiply with it at once.
pub struct KvantMatrix(Matrix);

/// Quantises and packs a matrix, (rows, columns); columns are a multiple of 32. Heads of the rows given do not matter.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_matrix_new(
    format: i32,
    rows: usize,
    columns: usize,
    weights: *const KvantRows,
    matrix: *mut *mut KvantMatrix,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (matrix, weights) = unsafe { (handle(matrix, "matrix")?, borrow(weights, "weights")?) };
        let (layout, dtype) = KvantWeights::formats(format)?;
        let refused = || {
            Failure::argument(format!(
                "{rows} rows of {columns} weights are not a matrix: columns must be a multiple of 32, and neither may be 0"
            ))
        };
        let row_bytes = dtype.row_bytes(columns).filter(|_| rows > 0 && columns > 0).ok_or_else(refused)?;
        let shape = Shape { rows, heads: 1, dim: columns };
        let mut numbers = Vec::new();
        // SAFETY: the caller's contract.
        unsafe { weights.read(shape, &mut numbers, "weights") }?;
        let mut bytes = vec![0; rows.checked_mul(row_bytes).ok_or_else(refused)?];
        for (row, (from, to)) in
            numbers.chunks_exact(columns).zip(bytes.chunks_exact_mut(row_bytes)).enumerate()
        {
            quantize_row(dtype, from, to)
                .map_err(|e| Failure::new(KvantStatus::BadNumber, format!("weights, row {row}: {e}")))?;
        }
        matrix.give(KvantMatrix(Matrix::pack(tier()?, layout, rows, columns, &bytes)?));
        Ok(())
    })
}

/// Multiplies: out, (tokens, rows), gets the products of every row of the matrix with every token of x, (tokens, columns). The
/// activations are rounded to 8 bits in groups of 32. NaN and infinities make NaN of their token's products.
///
/// A token gets the same bits alone and among others, with any number of threads. A pool of NULL is the calling thread alone.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_matrix_multiply(
    matrix: *const KvantMatrix,
    pool: *const KvantPool,
    tokens: usize,
    x: *const KvantRows,
    out: *const KvantOutput,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (matrix, x, out) = unsafe { (borrow(matrix, "matrix")?, borrow(x, "x")?, borrow(out, "out")?) };
        // SAFETY: the caller's contract.
        let pool = unsafe { borrow_optional(pool, "pool") }?;
        let matrix = &matrix.0;
        let (inputs, outputs) = (
            Shape { rows: tokens, heads: 1, dim: matrix.columns() },
            Shape { rows: tokens, heads: 1, dim: matrix.rows() },
        );
        out.check(outputs, "out")?;
        let mut numbers = Vec::new();
        // SAFETY: the caller's contract.
        unsafe { x.read(inputs, &mut numbers, "x") }?;
        let mut products = vec![0.0; tokens * matrix.rows()];
        let mut multiply = || {
            let x = QuantizedActivations::new(matrix.tier(), &numbers, matrix.columns());
            matrix.multiply(&x, &mut products);
        };
        match pool {
            Some(pool) => pool.0.install(multiply),
            None => multiply(),
        }
        // SAFETY: the caller's contract.
        unsafe { out.write(outputs, &products, "out") }
    })
}

/// Bytes that a matrix takes; 0 for NULL.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_matrix_bytes(matrix: *const KvantMatrix) -> usize {
    // SAFETY: the caller's contract.
    unsafe { borrow(matrix, "matrix") }.map_or(0, |matrix| matrix.0.bytes().len())
}

/// Frees a matrix. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_matrix_free(matrix: *mut KvantMatrix) {
    // SAFETY: the caller's contract.
    unsafe { release(matrix) }
}

/// The instruction set of this machine, or the one that KVANT_SIMD names.
fn tier() -> Result<Tier, Failure> {
    Tier::select().map_err(|e| Failure::new(KvantStatus::Unsupported, e.to_string()))
}
