//! Rows of numbers as callers have them: in three types, with gaps.

use crate::memory::check_count;
use crate::status::Failure;
use half::{bf16, f16};
use std::ffi::c_void;

/// The type of a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantDtype {
    /// IEEE 754, 32 bits.
    F32 = 0,
    /// IEEE 754, 16 bits.
    F16 = 1,
    /// bfloat16: the upper half of an f32.
    Bf16 = 2,
}

impl KvantDtype {
    fn of(number: i32) -> Result<Self, Failure> {
        [Self::F32, Self::F16, Self::Bf16]
            .into_iter()
            .find(|kind| *kind as i32 == number)
            .ok_or_else(|| Failure::argument(format!("dtype is {number}, and no kvant_dtype")))
    }

    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Numbers that are read: (rows, heads, dim), where the last are always side by side. This structure never changes.
///
/// A tensor (heads, tokens, dim), as most frameworks keep one sequence, has a row_stride of dim and a head_stride of tokens times
/// dim.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvantRows {
    /// The first number.
    pub data: *const c_void,
    /// Numbers from there to the end of the memory: nothing beyond is read.
    pub length: usize,
    /// Numbers from a row to the next; 0 for rows without gaps.
    pub row_stride: usize,
    /// Numbers from a head to the next; 0 for heads without gaps.
    pub head_stride: usize,
    /// A kvant_dtype.
    pub dtype: i32,
}

/// The same for numbers that are written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvantOutput {
    /// The first number.
    pub data: *mut c_void,
    /// Numbers from there to the end of the memory: nothing beyond is written.
    pub length: usize,
    /// Numbers from a row to the next; 0 for rows without gaps.
    pub row_stride: usize,
    /// Numbers from a head to the next; 0 for heads without gaps.
    pub head_stride: usize,
    /// A kvant_dtype.
    pub dtype: i32,
}

/// (rows, heads, dim).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub rows: usize,
    pub heads: usize,
    pub dim: usize,
}

impl Shape {
    /// Numbers in all.
    pub fn len(self) -> Option<usize> {
        self.rows.checked_mul(self.heads)?.checked_mul(self.dim)
    }
}

/// Where the numbers of a shape lie, checked.
struct Places {
    kind: KvantDtype,
    row_stride: usize,
    head_stride: usize,
}

impl KvantRows {
    /// Appends the numbers to `to`, (rows, heads, dim) without gaps.
    ///
    /// # Safety
    /// `data` is NULL, or `length` numbers of the type can be read from there.
    pub(crate) unsafe fn read(&self, shape: Shape, to: &mut Vec<f32>, what: &str) -> Result<(), Failure> {
        let Self { data, length, row_stride, head_stride, dtype } = *self;
        let strides = (row_stride, head_stride);
        let Some(places) = places(data, length, strides, dtype, shape).map_err(|e| e.of(what))? else {
            return Ok(());
        };
        to.reserve(shape.rows * shape.heads * shape.dim);
        for row in 0..shape.rows {
            for head in 0..shape.heads {
                let at = row * places.row_stride + head * places.head_stride;
                // SAFETY: `places` has found that all rows lie within the length, and the pointer aligned.
                unsafe {
                    match places.kind {
                        KvantDtype::F32 => to.extend_from_slice(side(data, at, shape.dim)),
                        KvantDtype::F16 => {
                            to.extend(side::<f16>(data, at, shape.dim).iter().map(|x| x.to_f32()));
                        }
                        KvantDtype::Bf16 => {
                            to.extend(side::<bf16>(data, at, shape.dim).iter().map(|x| x.to_f32()));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl KvantOutput {
    /// Refuses a shape that does not fit.
    pub(crate) fn check(&self, shape: Shape, what: &str) -> Result<(), Failure> {
        let strides = (self.row_stride, self.head_stride);
        places(self.data, self.length, strides, self.dtype, shape).map(drop).map_err(|e| e.of(what))
    }

    /// Writes `from`, (rows, heads, dim) without gaps.
    ///
    /// # Safety
    /// `data` is NULL, or `length` numbers of the type can be written there.
    pub(crate) unsafe fn write(&self, shape: Shape, from: &[f32], what: &str) -> Result<(), Failure> {
        let Self { data, length, row_stride, head_stride, dtype } = *self;
        let strides = (row_stride, head_stride);
        let Some(places) = places(data, length, strides, dtype, shape).map_err(|e| e.of(what))? else {
            return Ok(());
        };
        for (index, numbers) in from.chunks_exact(shape.dim).enumerate() {
            let (row, head) = (index / shape.heads, index % shape.heads);
            let at = row * places.row_stride + head * places.head_stride;
            for (i, &x) in numbers.iter().enumerate() {
                // SAFETY: `places` has found that all rows lie within the length, and the pointer aligned.
                unsafe {
                    match places.kind {
                        KvantDtype::F32 => data.cast::<f32>().add(at + i).write(x),
                        KvantDtype::F16 => data.cast::<f16>().add(at + i).write(f16::from_f32(x)),
                        KvantDtype::Bf16 => data.cast::<bf16>().add(at + i).write(bf16::from_f32(x)),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Numbers side by side.
///
/// # Safety
/// `count` numbers of the type can be read from number `at` on.
unsafe fn side<'a, T>(data: *const c_void, at: usize, count: usize) -> &'a [T] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(data.cast::<T>().add(at), count) }
}

/// Where the rows lie; `None` where there are none.
fn places(
    data: *const c_void,
    length: usize,
    (row_stride, head_stride): (usize, usize),
    kind: i32,
    shape: Shape,
) -> Result<Option<Places>, Failure> {
    let kind = KvantDtype::of(kind)?;
    let Shape { rows, heads, dim } = shape;
    let too_many =
        || Failure::argument(format!("{rows} rows of {heads} heads of {dim} are more than memory can hold"));
    check_count::<f32>(shape.len().ok_or_else(too_many)?, "rows")?;
    if shape.len() == Some(0) {
        return Ok(None);
    }
    let head_stride = if head_stride == 0 { dim } else { head_stride };
    let row_stride =
        if row_stride == 0 { heads.checked_mul(head_stride).ok_or_else(too_many)? } else { row_stride };
    let last = (rows - 1).checked_mul(row_stride).zip((heads - 1).checked_mul(head_stride));
    let end = last.and_then(|(row, head)| row.checked_add(head)?.checked_add(dim)).ok_or_else(too_many)?;
    if data.is_null() {
        return Err(Failure::argument("data is NULL"));
    }
    if !data.addr().is_multiple_of(kind.bytes()) {
        return Err(Failure::argument(format!("data is not aligned to {} bytes", kind.bytes())));
    }
    if end > length {
        return Err(Failure::argument(format!(
            "{rows} rows of {heads} heads of {dim} end at number {end}, but length is {length}"
        )));
    }
    check_count::<f32>(length, "length")?;
    Ok(Some(Places { kind, row_stride, head_stride }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { rows: 3, heads: 2, dim: 4 };

    fn rows<T>(numbers: &[T], dtype: KvantDtype, row_stride: usize, head_stride: usize) -> KvantRows {
        let (data, length) = (numbers.as_ptr().cast(), numbers.len());
        KvantRows { data, length, row_stride, head_stride, dtype: dtype as i32 }
    }

    fn read(rows: &KvantRows) -> Result<Vec<f32>, String> {
        let mut to = Vec::new();
        // SAFETY: made of a slice above.
        unsafe { rows.read(SHAPE, &mut to, "keys") }.map(|()| to).map_err(|e| e.message)
    }

    #[test]
    fn strides_and_types_are_told_by_a_naive_loop() {
        // (heads, rows, dim), with a gap of one number after every row.
        let wide: Vec<f32> = (0..2 * 3 * 5).map(|i| i as f32 * 0.5).collect();
        let expected: Vec<f32> = (0..3)
            .flat_map(|row| {
                (0..2).flat_map(move |head| (0..4).map(move |i| (head * 15 + row * 5 + i) as f32 * 0.5))
            })
            .collect();
        assert_eq!(read(&rows(&wide, KvantDtype::F32, 5, 15)).unwrap(), expected);
        let half: Vec<f16> = wide.iter().map(|x| f16::from_f32(*x)).collect();
        assert_eq!(read(&rows(&half, KvantDtype::F16, 5, 15)).unwrap(), expected);
        let brain: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(*x)).collect();
        assert_eq!(read(&rows(&brain, KvantDtype::Bf16, 5, 15)).unwrap(), expected);
        assert_eq!(read(&rows(&wide, KvantDtype::F32, 0, 0)).unwrap(), wide[..24]);

        let mut back = vec![f16::from_f32(-1.0); wide.len()];
        let (data, length) = (back.as_mut_ptr().cast(), back.len());
        let output = KvantOutput { data, length, row_stride: 5, head_stride: 15, dtype: 1 };
        // SAFETY: made of a vector above.
        unsafe { output.write(SHAPE, &expected, "out") }.unwrap();
        for (i, x) in back.iter().enumerate() {
            assert_eq!(x.to_f32(), if i % 5 == 4 { -1.0 } else { wide[i] }, "gaps stay as they are");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let numbers = [1.0f32; 24];
        assert!(read(&rows(&numbers[..23], KvantDtype::F32, 0, 0)).unwrap_err().contains("length is 23"));
        assert!(read(&rows(&numbers, KvantDtype::F32, 9, 0)).is_err());
        assert!(read(&rows(&numbers, KvantDtype::F32, usize::MAX, 0)).unwrap_err().contains("memory"));
        assert!(read(&rows(&numbers, KvantDtype::F32, 1, usize::MAX)).is_err());
        assert!(read(&KvantRows { dtype: 9, ..rows(&numbers, KvantDtype::F32, 0, 0) }).is_err());
        let null = KvantRows { data: std::ptr::null(), ..rows(&numbers, KvantDtype::F32, 0, 0) };
        assert_eq!(read(&null).unwrap_err(), "keys: data is NULL");
        let odd = KvantRows {
            data: numbers.as_ptr().cast::<u8>().wrapping_add(1).cast(),
            ..rows(&numbers, KvantDtype::F32, 0, 0)
        };
        assert!(read(&odd).unwrap_err().contains("aligned"));
        let huge = Shape { rows: usize::MAX, heads: 2, dim: 4 };
        // SAFETY: refused before anything is read.
        let refused = unsafe { rows(&numbers, KvantDtype::F32, 0, 0).read(huge, &mut Vec::new(), "keys") };
        assert!(refused.is_err());
    }
}
