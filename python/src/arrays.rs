//! Numbers in and out by the buffer protocol.
//!
//! [`Floats`] are rows of f32, f16 or bf16 where Python has them; those that are f32 and contiguous are used in place, others are
//! read a few rows at a time. [`Memory`] is a vector that Python's arrays look at.
//!
//! **Invariant:** an array of contiguous f32 is never copied.

use crate::error::{bad_type, bad_value};
use half::{bf16, f16};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::{CStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Memory>()
}

/// Numbers of a kind, wherever they lie.
enum Buffer {
    F32(PyBuffer<f32>),
    /// The bits of f16.
    F16(PyBuffer<u16>),
    /// The bits of bf16.
    Bf16(PyBuffer<u16>),
}

/// An array of numbers, the last axis being rows: `(…, columns)`.
pub struct Floats {
    buffer: Buffer,
    shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
}

impl Floats {
    /// The numbers of an object with the buffer protocol. `kind` is `f32`, `f16` or `bf16`; the latter two come as 16-bit integers.
    pub fn of(object: &Bound<'_, PyAny>, kind: &str) -> PyResult<Self> {
        let buffer = match kind {
            "f32" => Buffer::F32(PyBuffer::get(object)?),
            "f16" => Buffer::F16(PyBuffer::get(object)?),
            "bf16" => Buffer::Bf16(PyBuffer::get(object)?),
            other => return Err(bad_type(format!("numbers are f32, f16 or bf16, not {other}"))),
        };
        let (shape, strides) = match &buffer {
            Buffer::F32(buffer) => (buffer.shape(), buffer.strides()),
            Buffer::F16(buffer) | Buffer::Bf16(buffer) => (buffer.shape(), buffer.strides()),
        };
        if shape.is_empty() {
            return Err(bad_value("a single number is no array: at least one axis is needed"));
        }
        Ok(Self { shape: shape.to_vec(), strides: strides.to_vec(), buffer })
    }

    /// The length of every axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The length of the last axis.
    pub fn columns(&self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// Refuses arrays with another number of axes than these.
    pub fn expect_axes(self, what: &str, axes: &str, least: usize, most: usize) -> PyResult<Self> {
        if (least..=most).contains(&self.shape.len()) {
            return Ok(self);
        }
        Err(bad_value(format!("{what} has the shape {:?}; it must be {axes}", self.shape)))
    }

    /// All numbers in order, where they lie like that as f32.
    fn in_place(&self) -> Option<&[f32]> {
        let Buffer::F32(buffer) = &self.buffer else { return None };
        if !buffer.is_c_contiguous() {
            return None;
        }
        let len = self.shape.iter().product();
        if len == 0 {
            return Some(&[]);
        }
        // SAFETY: the buffer is held and contiguous, and its pointer was checked for alignment. Whoever writes to an array while a
        // function works on it has a race of their own making, which the documentation of the package forbids.
        Some(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<f32>(), len) })
    }

    /// `count` rows from `first` on, `(count, columns)`: in place, or read into `scratch`.
    pub fn read<'a>(&'a self, first: usize, count: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        let columns = self.columns();
        if let Some(all) = self.in_place() {
            return &all[first * columns..(first + count) * columns];
        }
        scratch.clear();
        for row in first..first + count {
            let start = self.offset(row);
            let stride = self.strides[self.strides.len() - 1];
            scratch.extend((0..columns).map(|column| self.number(start + column as isize * stride)));
        }
        scratch
    }

    /// Bytes from the first number to the first of a row.
    fn offset(&self, row: usize) -> isize {
        let outer = self.shape.len() - 1;
        let (mut rest, mut offset) = (row, 0);
        for (&len, &stride) in self.shape[..outer].iter().zip(&self.strides[..outer]).rev() {
            offset += (rest % len) as isize * stride;
            rest /= len;
        }
        offset
    }

    /// The number this many bytes from the first one.
    fn number(&self, offset: isize) -> f32 {
        // SAFETY: offsets are sums of strides times indices within the shape, which the buffer vouches for; alignment was checked
        // for the first number, and is not assumed for others.
        unsafe {
            match &self.buffer {
                Buffer::F32(buffer) => buffer.buf_ptr().byte_offset(offset).cast::<f32>().read_unaligned(),
                Buffer::F16(buffer) => {
                    f16::from_bits(buffer.buf_ptr().byte_offset(offset).cast::<u16>().read_unaligned())
                        .to_f32()
                }
                Buffer::Bf16(buffer) => {
                    bf16::from_bits(buffer.buf_ptr().byte_offset(offset).cast::<u16>().read_unaligned())
                        .to_f32()
                }
            }
        }
    }
}

/// Contiguous bytes of an object with the buffer protocol.
pub struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// Refuses what is not contiguous: pages are bytes in their order.
    pub fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Self(buffer)),
            false => Err(bad_value(format!("{what} must be contiguous: use numpy.ascontiguousarray"))),
        }
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u8] {
        if self.0.item_count() == 0 {
            return &[];
        }
        // SAFETY: as in `Floats::in_place`.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.0.item_count()) }
    }
}

/// What a vector has.
#[derive(Clone, Copy)]
enum Item {
    F32,
    U8,
    I8,
}

impl Item {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::U8 | Self::I8 => 1,
        }
    }

    /// In the notation of Python's struct module.
    fn format(self) -> &'static CStr {
        match self {
            Self::F32 => c"f",
            Self::U8 => c"B",
            Self::I8 => c"b",
        }
    }
}

/// A vector that Python's arrays look at. It lives as long as one of them does.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Memory {
    item: Item,
    /// Of a vector, with its length and capacity.
    start: *mut c_void,
    len: usize,
    capacity: usize,
    shape: Vec<isize>,
    strides: Vec<isize>,
}

// SAFETY: Rust touches the numbers only before they are handed over and when they are freed.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new<T>(item: Item, values: Vec<T>, shape: &[usize]) -> Self {
        debug_assert_eq!(values.len(), shape.iter().product::<usize>());
        let mut strides = vec![item.bytes() as isize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as isize;
        }
        let mut values = ManuallyDrop::new(values);
        Self {
            item,
            start: values.as_mut_ptr().cast(),
            len: values.len(),
            capacity: values.capacity(),
            shape: shape.iter().map(|&len| len as isize).collect(),
            strides,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: these are the parts of a vector of this type, which nobody looks at any more.
        unsafe {
            match self.item {
                Item::F32 => drop(Vec::from_raw_parts(self.start.cast::<f32>(), self.len, self.capacity)),
                Item::U8 => drop(Vec::from_raw_parts(self.start.cast::<u8>(), self.len, self.capacity)),
                Item::I8 => drop(Vec::from_raw_parts(self.start.cast::<i8>(), self.len, self.capacity)),
            }
        }
    }
}

#[pymethods]
impl Memory {
    /// Shows the numbers.
    ///
    /// # Safety
    /// Python's: `view` is to be filled, and released before this is freed, which its reference sees to.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let memory = slf.get();
        let if_asked = |flag: c_int, pointer: *mut isize| {
            if flags & flag == flag { pointer } else { ptr::null_mut() }
        };
        // SAFETY: the view is Python's to be filled; what it points to lives in `slf`, which it keeps alive, and does not move.
        unsafe {
            (*view).buf = memory.start;
            (*view).len = (memory.len * memory.item.bytes()) as isize;
            (*view).readonly = 0;
            (*view).itemsize = memory.item.bytes() as isize;
            (*view).format = match flags & ffi::PyBUF_FORMAT {
                0 => ptr::null_mut(),
                _ => memory.item.format().as_ptr().cast_mut(),
            };
            (*view).ndim = memory.shape.len() as c_int;
            (*view).shape = if_asked(ffi::PyBUF_ND, memory.shape.as_ptr().cast_mut());
            (*view).strides = if_asked(ffi::PyBUF_STRIDES, memory.strides.as_ptr().cast_mut());
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}

/// A numpy array over a vector of f32.
pub fn floats<'py>(py: Python<'py>, values: Vec<f32>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    array(py, Memory::new(Item::F32, values, shape))
}

/// A numpy array over a vector of bytes.
pub fn bytes<'py>(py: Python<'py>, values: Vec<u8>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    array(py, Memory::new(Item::U8, values, shape))
}

/// A numpy array over a vector of signed bytes.
pub fn signed_bytes<'py>(py: Python<'py>, values: Vec<i8>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    array(py, Memory::new(Item::I8, values, shape))
}

fn array(py: Python<'_>, memory: Memory) -> PyResult<Bound<'_, PyAny>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ASARRAY.import(py, "numpy", "asarray")?.call1((Bound::new(py, memory)?,))
}
