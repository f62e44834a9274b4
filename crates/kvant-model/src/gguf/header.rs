//! The header of one GGUF file: magic, counts, metadata, tensor directory.

use super::cursor::Cursor;
use super::ggml_type::dtype_of;
use super::metadata::Metadata;
use super::value::Value;
use crate::bytes::Bytes;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use std::collections::HashSet;
use std::ops::Range;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// What ggml itself allows.
const MAX_DIMENSIONS: u32 = 4;
/// Beyond any real use; a larger number is damage.
const MAX_ALIGNMENT: u32 = 1 << 16;

/// Where a tensor lies and what it is.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Storage type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Byte range in the whole file.
    pub range: Range<usize>,
}

/// Everything before the tensor data, checked against the size of the file.
#[derive(Debug, Clone)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// The tensor directory in the order of the file.
    pub tensors: Vec<TensorInfo>,
    /// Length of the header without the padding before the data.
    pub length: usize,
}

impl Header {
    /// Parses and checks the header at the start of `bytes`, which must be the whole file.
    pub fn parse(bytes: &Bytes) -> Result<Self> {
        Self::parse_of(bytes, bytes.len() as u64)
    }

    /// The same for bytes that may end anywhere after the header: the ranges of tensors may lie beyond them.
    pub fn parse_beginning(bytes: &Bytes) -> Result<Self> {
        Self::parse_of(bytes, isize::MAX as u64)
    }

    /// The header of a file of `file_len` bytes.
    fn parse_of(bytes: &Bytes, file_len: u64) -> Result<Self> {
        let mut cursor = Cursor::new(bytes);
        let magic: [u8; 4] = cursor.array()?;
        if magic != MAGIC {
            return Err(LoadError::malformed(format!(
                "does not start with \"GGUF\" but with {:?}: not a GGUF file",
                String::from_utf8_lossy(&magic)
            )));
        }
        let version = cursor.u32()?;
        check_version(version)?;
        let tensor_count = cursor.u64()?;
        let pair_count = cursor.u64()?;
        let metadata = Metadata::read(bytes, &mut cursor, pair_count)?;
        let alignment = alignment(&metadata)?;
        let entries = read_directory(&mut cursor, tensor_count)?;
        let length = cursor.position();
        let data_start = (length as u64).next_multiple_of(alignment);
        let tensors = place(entries, data_start, alignment, file_len)?;
        Ok(Self { version, metadata, tensors, length })
    }
}

fn check_version(version: u32) -> Result<()> {
    match version {
        2 | 3 => Ok(()),
        1 => Err(LoadError::unsupported("GGUF version 1 is not read; convert the file to version 3")),
        v if matches!(v.swap_bytes(), 1..=3) => {
            Err(LoadError::unsupported("the file is big-endian GGUF; kvant reads little-endian files"))
        }
        v => Err(LoadError::unsupported(format!("GGUF version {v} is not known (2 and 3 are)"))),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    match metadata.value("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n.into()),
        Some(other) => Err(LoadError::malformed(format!(
            "key \"general.alignment\": {other:?} is not a U32 power of two up to {MAX_ALIGNMENT}"
        ))),
    }
}

/// A directory entry before its place in the file is checked.
struct RawTensorInfo {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    offset: u64,
}

fn read_directory(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<RawTensorInfo>> {
    // Grows entry by entry: each consumes bytes of the file, so a false count cannot allocate.
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for index in 0..count {
        let name = cursor.string().map_err(|e| LoadError::malformed(format!("tensor {index}: {e}")))?;
        let entry = read_entry(cursor, name)
            .map_err(|e| LoadError::new(e.kind(), format!("tensor {name:?}: {e}")))?;
        if !names.insert(name) {
            return Err(LoadError::malformed(format!("tensor {name:?} is listed twice")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>, name: &str) -> Result<RawTensorInfo> {
    let dimensions = cursor.u32()?;
    if dimensions > MAX_DIMENSIONS {
        return Err(LoadError::malformed(format!("{dimensions} dimensions, more than {MAX_DIMENSIONS}")));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        let extent = cursor.u64()?;
        let extent = usize::try_from(extent)
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(|| LoadError::malformed(format!("an extent of {extent} is not possible")))?;
        shape.push(extent);
    }
    shape.reverse();
    let dtype = dtype_of(cursor.u32()?)?;
    let offset = cursor.u64()?;
    Ok(RawTensorInfo { name: name.to_owned(), dtype, shape, offset })
}

/// Turns offsets into file ranges, refusing what is misaligned, too large, out of the file or overlapping.
fn place(
    entries: Vec<RawTensorInfo>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::with_capacity(entries.len());
    for RawTensorInfo { name, dtype, shape, offset } in entries {
        let refuse = |why: String| LoadError::malformed(format!("tensor {name:?}: {why}"));
        if !offset.is_multiple_of(alignment) {
            return Err(refuse(format!("offset {offset} is not a multiple of the alignment {alignment}")));
        }
        let size = dtype.tensor_bytes(&shape).ok_or_else(|| {
            refuse(format!(
                "shape {shape:?} is impossible for type {dtype} (rows are blocks of {})",
                dtype.block_len()
            ))
        })?;
        let end = data_start.checked_add(offset).and_then(|start| start.checked_add(size as u64));
        match end {
            Some(end) if end <= file_len => {
                // Both ends are at most the length of a slice, or could be, so they fit a usize.
                let range = end as usize - size..end as usize;
                tensors.push(TensorInfo { name, dtype, shape, range });
            }
            _ => {
                return Err(refuse(format!(
                    "{size} bytes at data offset {offset} reach beyond the end of the file ({file_len} bytes); \
                     the file is truncated or damaged, fetch it again"
                )));
            }
        }
    }
    refuse_overlap(&tensors)?;
    Ok(tensors)
}

fn refuse_overlap(tensors: &[TensorInfo]) -> Result<()> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_unstable_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            return Err(LoadError::malformed(format!(
                "tensors {:?} and {:?} overlap in the file",
                pair[0].name, pair[1].name
            )));
        }
    }
    Ok(())
}
