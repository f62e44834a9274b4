//! Writing small GGUF files: fixtures, synthetic models, tests of the reader.

use super::ggml_type::number_of;
use super::header::{DEFAULT_ALIGNMENT, MAGIC};
use super::value::ValueType;
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use std::io::{self, Write};

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
    tensors: Vec<Tensor>,
    alignment: Option<u32>,
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
        self.tensors.push(tensor);
        self
    }

    /// Writes the file; tensor bytes go out one tensor at a time, so a large model needs no second copy.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let alignment = self.alignment.map_or(DEFAULT_ALIGNMENT, u64::from) as usize;
        if !alignment.is_power_of_two() {
            return Err(LoadError::mismatch(format!("alignment {alignment} is not a power of two")));
        }
        let header = self.header(alignment)?;
        let send = |out: &mut dyn Write, bytes: &[u8]| -> io::Result<()> {
            out.write_all(bytes)?;
            out.write_all(&vec![0; bytes.len().next_multiple_of(alignment) - bytes.len()])
        };
        let failed = |e: io::Error| {
            LoadError::new(crate::error::LoadErrorKind::Io, format!("cannot write the GGUF file: {e}"))
        };
        send(out, &header).map_err(failed)?;
        for tensor in &self.tensors {
            send(out, tensor.bytes()).map_err(failed)?;
        }
        out.flush().map_err(failed)
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
            offset = (offset + tensor.bytes().len()).next_multiple_of(alignment);
        }
        Ok(out)
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
