//! Writing GGUF files: fixtures, synthetic models, tests of the reader.
//!
//! Tensors are held, or made row by row while the file is written: a model of any size needs memory for a block of
//! rows and for its metadata.

use super::ggml_type::number_of;
use super::header::{DEFAULT_ALIGNMENT, MAGIC};
use super::value::ValueType;
use crate::dtype::DType;
use crate::error::{LoadError, LoadErrorKind, Result};
use crate::tensor::Tensor;
use std::fmt;
use std::io::{self, Write};

/// Bytes of rows that are made before they are written.
const BLOCK: usize = 1 << 20;

/// A value to write. The owned twin of [`super::Value`].
#[derive(Debug, Clone, PartialEq)]
pub enum WriterValue {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Values of the named type; each element must be of it.
    Array(ValueType, Vec<WriterValue>),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// Double precision.
    F64(f64),
}

impl WriterValue {
    /// An array of strings.
    pub fn strings<S: Into<String>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::Array(ValueType::String, items.into_iter().map(|s| Self::String(s.into())).collect())
    }

    /// An array of single-precision numbers.
    pub fn f32s(items: impl IntoIterator<Item = f32>) -> Self {
        Self::Array(ValueType::F32, items.into_iter().map(Self::F32).collect())
    }

    /// An array of signed 32-bit integers.
    pub fn i32s(items: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(ValueType::I32, items.into_iter().map(Self::I32).collect())
    }

    fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(..) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::U8(v) => out.push(*v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(u8::from(*v)),
            Self::String(v) => write_string(out, v),
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
            Self::Array(element, items) => {
                out.extend((*element as u32).to_le_bytes());
                out.extend((items.len() as u64).to_le_bytes());
                for item in items {
                    if item.value_type() != *element {
                        return Err(LoadError::mismatch(format!(
                            "an array of {element:?} cannot hold {:?}",
                            item.value_type()
                        )));
                    }
                    item.write(out)?;
                }
            }
        }
        Ok(())
    }
}

/// Collects metadata and tensors, then writes them as GGUF version 3.
#[derive(Debug, Default)]
pub struct Writer {
    pairs: Vec<(String, WriterValue)>,
    tensors: Vec<Content>,
    alignment: Option<u32>,
}

/// Makes a row by its number.
type MakeRow = dyn Fn(usize, &mut [u8]) + Send + Sync;

enum Content {
    Held(Tensor),
    Made { name: String, dtype: DType, shape: Vec<usize>, row_bytes: usize, bytes: usize, make: Box<MakeRow> },
}

impl Content {
    fn name(&self) -> &str {
        match self {
            Self::Held(tensor) => tensor.name(),
            Self::Made { name, .. } => name,
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Self::Held(tensor) => tensor.dtype(),
            Self::Made { dtype, .. } => *dtype,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Held(tensor) => tensor.shape(),
            Self::Made { shape, .. } => shape,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Held(tensor) => tensor.bytes().len(),
            Self::Made { bytes, .. } => *bytes,
        }
    }

    /// The bytes in order, in as many pieces as suits.
    fn each_piece(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Held(tensor) => take(tensor.bytes()),
            Self::Made { row_bytes, bytes, make, .. } => {
                let rows = bytes.checked_div(*row_bytes).unwrap_or(0);
                let at_once = (BLOCK / (*row_bytes).max(1)).clamp(1, rows.max(1));
                let mut block = vec![0; at_once * row_bytes]; // (rows, row_bytes)
                for first in (0..rows).step_by(at_once) {
                    let block = &mut block[..at_once.min(rows - first) * row_bytes];
                    kvant_threads::for_each_chunk(block, *row_bytes, |row, bytes| make(first + row, bytes));
                    take(block)?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {:?}", self.name(), self.dtype(), self.shape())
    }
}

impl Writer {
    /// An empty file for `architecture`.
    pub fn new(architecture: &str) -> Self {
        let mut writer = Self::default();
        writer.set("general.architecture", WriterValue::String(architecture.to_owned()));
        writer
    }

    /// Adds a pair, or replaces the value of a key already there.
    pub fn set(&mut self, key: &str, value: WriterValue) -> &mut Self {
        match self.pairs.iter_mut().find(|(known, _)| known == key) {
            Some((_, slot)) => *slot = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
        self
    }

    /// Aligns tensor data to `alignment` bytes (a power of two) instead of 32, and says so in the metadata.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = Some(alignment);
        self.set("general.alignment", WriterValue::U32(alignment))
    }

    /// Adds a tensor under its own name.
    pub fn tensor(&mut self, tensor: Tensor) -> &mut Self {
        self.tensors.push(Content::Held(tensor));
        self
    }

    /// Adds a tensor that does not exist yet: `make` fills the bytes of a row, by its number, when the file is
    /// written. Rows are made by several threads and in no particular order.
    ///
    /// # Errors
    /// If no tensor of that type can have that shape.
    pub fn made(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        make: impl Fn(usize, &mut [u8]) + Send + Sync + 'static,
    ) -> Result<&mut Self> {
        let row_bytes = shape.last().and_then(|&columns| dtype.row_bytes(columns));
        let (Some(row_bytes), Some(bytes)) = (row_bytes, dtype.tensor_bytes(shape)) else {
            return Err(LoadError::mismatch(format!(
                "tensor {name:?}: shape {shape:?} is impossible for type {dtype} (rows are blocks of {})",
                dtype.block_len()
            )));
        };
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Content::Made { name, dtype, shape, row_bytes, bytes, make: Box::new(make) });
        Ok(self)
    }

    /// Bytes of all tensors, without what aligns them.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
    }

    /// Writes the file; tensor bytes go out piece by piece, so a large model needs no second copy.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        self.write_with(out, &mut |_| ())
    }

    /// The same; `progress` is told how many bytes of tensors have been written.
    pub fn write_with(&self, out: &mut impl Write, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let alignment = self.alignment.map_or(DEFAULT_ALIGNMENT, u64::from) as usize;
        if !alignment.is_power_of_two() {
            return Err(LoadError::mismatch(format!("alignment {alignment} is not a power of two")));
        }
        let header = self.header(alignment)?;
        let mut done = 0;
        let padding = |bytes: usize| vec![0; bytes.next_multiple_of(alignment) - bytes];
        let mut send = || -> io::Result<()> {
            out.write_all(&header)?;
            out.write_all(&padding(header.len()))?;
            for tensor in &self.tensors {
                tensor.each_piece(|piece| {
                    out.write_all(piece)?;
                    done += piece.len() as u64;
                    progress(done);
                    Ok(())
                })?;
                out.write_all(&padding(tensor.bytes()))?;
            }
            out.flush()
        };
        send().map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                let needed = header.len() as u64 + self.tensor_bytes();
                failed(format!(
                    "no room for a GGUF file of {needed} bytes: {e}; make room or choose another place"
                ))
            }
            _ => failed(format!("cannot write the GGUF file: {e}")),
        })
    }

    /// The whole file in memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    fn header(&self, alignment: usize) -> Result<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            write_string(&mut out, key);
            out.extend((value.value_type() as u32).to_le_bytes());
            value.write(&mut out).map_err(|e| LoadError::new(e.kind(), format!("key {key:?}: {e}")))?;
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            let number = number_of(tensor.dtype()).ok_or_else(|| {
                LoadError::unsupported(format!(
                    "tensor {:?}: type {} has no GGUF number",
                    tensor.name(),
                    tensor.dtype()
                ))
            })?;
            write_string(&mut out, tensor.name());
            out.extend((tensor.shape().len() as u32).to_le_bytes());
            for &extent in tensor.shape().iter().rev() {
                out.extend((extent as u64).to_le_bytes());
            }
            out.extend(number.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.bytes()).next_multiple_of(alignment);
        }
        Ok(out)
    }
}

fn failed(message: String) -> LoadError {
    LoadError::new(LoadErrorKind::Io, message)
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
