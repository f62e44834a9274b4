//! GGUF, versions 2 and 3: reading by memory map, split files, and writing.
//!
//! A file is `magic, version, counts`, then key-value metadata, then a directory of tensors, then padding to
//! the alignment, then the tensor data. All numbers are little-endian. Nothing in it is believed: counts only
//! bound loops that consume bytes, lengths are checked before a slice is taken, and extents, sizes and offsets
//! use checked arithmetic. Opening a file reads its header and touches no tensor data.

mod cursor;
mod ggml_type;
mod header;
mod metadata;
mod split;
mod value;
mod writer;

pub use ggml_type::{dtype_of, number_of};
pub use header::{Header, TensorInfo};
pub use metadata::{FromValue, Metadata};
pub use value::{Array, Value, ValueType};
pub use writer::{Writer, WriterValue};

use crate::bytes::Bytes;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::scales::Scales;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::path::Path;

/// A GGUF model: one file, or all parts of a split one.
#[derive(Debug, Clone)]
pub struct Gguf {
    parts: Vec<Part>,
    /// Name to (part, index in its directory).
    by_name: HashMap<String, (usize, usize)>,
    /// In place of weights that are not here: as many zeros as the largest tensor has bytes.
    stand_in: Option<Bytes>,
}

#[derive(Debug, Clone)]
struct Part {
    bytes: Bytes,
    header: Header,
}

impl Part {
    fn parse(bytes: Bytes) -> Result<Self> {
        let header = Header::parse(&bytes)?;
        Ok(Self { bytes, header })
    }

    fn map(path: &Path) -> Result<Self> {
        Self::parse(Bytes::map(path)?).map_err(|e| e.in_file(path))
    }
}

impl Gguf {
    /// Maps a file; for a split model any part may be named, the others are found beside it.
    pub fn open(path: &Path) -> Result<Self> {
        let parts = split::open_parts(path)?;
        Self::from_parts(parts).map_err(|e| e.in_file(path))
    }

    /// Reads a whole single-file model from memory.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        let part = Part::parse(bytes.into())?;
        if split::place(&part.header.metadata)?.is_some_and(|place| place.count > 1) {
            return Err(LoadError::unsupported("one part of a split model cannot be read alone"));
        }
        Self::from_parts(vec![part])
    }

    /// Maps a file of which perhaps only the beginning is here, the header with its directory of tensors. Where any weights
    /// are missing, all of them are zeros: enough to tell what a model takes, and nothing else.
    pub fn open_beginning(path: &Path) -> Result<Self> {
        let bytes = Bytes::map(path)?;
        let header = Header::parse_beginning(&bytes).map_err(|e| e.in_file(path))?;
        let is_split = split::place(&header.metadata)?.is_some_and(|place| place.count > 1);
        if is_split || header.tensors.iter().all(|tensor| tensor.range.end <= bytes.len()) {
            return Self::open(path);
        }
        let largest = header.tensors.iter().map(|tensor| tensor.range.len()).max().unwrap_or(0);
        let gguf = Self::from_parts(vec![Part { bytes, header }]).map_err(|e| e.in_file(path))?;
        let stand_in = Bytes::zeros(largest).map_err(|e| e.in_file(path))?;
        Ok(Self { stand_in: Some(stand_in), ..gguf })
    }

    /// Whether the weights are here.
    pub fn has_weights(&self) -> bool {
        self.stand_in.is_none()
    }

    fn from_parts(parts: Vec<Part>) -> Result<Self> {
        let mut by_name = HashMap::new();
        for (part_index, part) in parts.iter().enumerate() {
            for (index, tensor) in part.header.tensors.iter().enumerate() {
                if by_name.insert(tensor.name.clone(), (part_index, index)).is_some() {
                    return Err(LoadError::malformed(format!(
                        "tensor {:?} is in two parts of the split model",
                        tensor.name
                    )));
                }
            }
        }
        let gguf = Self { parts, by_name, stand_in: None };
        // Scales that do not fit are an error here, where it can be told, and not a tensor that seems to be missing.
        for info in gguf.tensors().filter(|info| info.dtype == DType::NVFP4) {
            let zeros = Bytes::zeros(info.range.len())?;
            let bare = Tensor::new(info.name.as_str(), info.dtype, info.shape.clone(), zeros)?;
            gguf.second_scales(&bare).transpose()?;
        }
        Ok(gguf)
    }

    /// Keys and values; of a split model, those of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.parts[0].header.metadata
    }

    /// The tensor directory, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.parts.iter().flat_map(|part| &part.header.tensors)
    }

    /// The tensor called `name`, its bytes shared with the map.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let &(part, index) = self.by_name.get(name)?;
        let part = &self.parts[part];
        let info = &part.header.tensors[index];
        let bytes = match &self.stand_in {
            Some(zeros) => zeros.slice(0..info.range.len())?,
            None => part.bytes.slice(info.range.clone())?,
        };
        let tensor = Tensor::new(info.name.as_str(), info.dtype, info.shape.clone(), bytes).ok()?;
        match self.second_scales(&tensor) {
            Some(scales) => Some(tensor.with_scales(scales.ok()?)),
            None => Some(tensor),
        }
    }

    /// The factors of the matrices of an NVFP4 tensor, where the file has any: `X.scale` beside `X.weight`.
    fn second_scales(&self, of: &Tensor) -> Option<Result<Scales>> {
        let stem = of.name().strip_suffix(".weight").filter(|_| of.dtype() == DType::NVFP4)?;
        let factors = self.tensor(&format!("{stem}.scale"))?;
        Some(Scales::new(of, &factors, (usize::MAX, usize::MAX)))
    }

    /// The header bytes of every part, as they lie in the files.
    pub(crate) fn header_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &part.bytes[..part.header.length])
    }
}
