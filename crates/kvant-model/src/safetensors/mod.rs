//! safetensors: one file, or shards listed in an index.
//!
//! A file is the length of a JSON header, the header, then the tensor data without gaps. As with GGUF nothing is
//! believed before it is checked, and opening touches no tensor data.

mod header;
mod index;
mod packed;
mod scaled;

pub use header::{Header, TensorEntry};

use crate::bytes::Bytes;
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::path::Path;

/// The tensors of one safetensors file or of all shards of a model.
#[derive(Debug, Clone)]
pub struct Safetensors {
    shards: Vec<Shard>,
    /// Name to shard. Ordered, so that listings are stable (a JSON header has no order of its own).
    by_name: BTreeMap<String, usize>,
    /// Rows and columns under one scale of 8-bit floats.
    scale_block: (usize, usize),
}

#[derive(Debug, Clone)]
struct Shard {
    bytes: Bytes,
    header: Header,
}

impl Shard {
    fn parse(bytes: Bytes) -> Result<Self> {
        let header = Header::parse(&bytes)?;
        Ok(Self { bytes, header })
    }

    fn map(path: &Path) -> Result<Self> {
        Self::parse(Bytes::map(path)?).map_err(|e| e.in_file(path))
    }
}

impl Safetensors {
    /// Maps a single file.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::single(Shard::map(path)?))
    }

    /// Maps every shard that an index (`model.safetensors.index.json`) names.
    pub fn open_index(path: &Path) -> Result<Self> {
        let (shards, by_name) = index::open_shards(path)?;
        Ok(Self { shards, by_name, scale_block: scaled::USUAL_BLOCK })
    }

    /// Reads a whole file from memory.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        Ok(Self::single(Shard::parse(bytes.into())?))
    }

    fn single(shard: Shard) -> Self {
        let by_name = shard.header.tensors.keys().map(|name| (name.clone(), 0)).collect();
        Self { shards: vec![shard], by_name, scale_block: scaled::USUAL_BLOCK }
    }

    /// The same tensors, with the blocks of scales that a configuration (`quantization_config.weight_block_size`) names.
    pub(crate) fn with_scale_block(self, config: &serde_json::Value) -> Self {
        Self { scale_block: scaled::block_of(config).unwrap_or(self.scale_block), ..self }
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The directory entry of a tensor.
    pub fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.shards[*self.by_name.get(name)?].header.tensors.get(name)
    }

    /// The tensor called `name`, its bytes shared with the map unless it is packed; `None` when there is none, an error when
    /// it is of a type that is not read. Small floats come with the scales that lie beside them.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        match self.stored(name)? {
            None => packed::tensor(self, name),
            Some(tensor) => scaled::with_scales(self, tensor).map(Some),
        }
    }

    /// The tensor that the file has under exactly this name, as its bytes are.
    fn stored(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(entry) = self.entry(name) else { return Ok(None) };
        let dtype = header::dtype_of(&entry.dtype).ok_or_else(|| unsupported(name, &entry.dtype))?;
        let bytes = self.shards[self.by_name[name]].bytes.slice(entry.range.clone()).ok_or_else(|| {
            LoadError::malformed(format!("tensor {name:?} reaches beyond the end of its file"))
        })?;
        Tensor::new(name, dtype, entry.shape.clone(), bytes).map(Some)
    }

    /// The header bytes of every shard, as they lie in the files.
    pub(crate) fn header_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.iter().map(|shard| &shard.bytes[..shard.header.length])
    }
}

fn unsupported(name: &str, dtype: &str) -> LoadError {
    LoadError::unsupported(format!(
        "tensor {name:?}: type {dtype} is not supported (F32, F16 and BF16 are, F8_E4M3 and MXFP4 with their scales, and I32 \
         and I64 for tables)"
    ))
}
