//! The JSON header of one safetensors file.
//!
//! Parsed here and not by the `safetensors` crate, which (0.7) adds announced offsets without a check for
//! overflow and lets a name given twice pass.

use crate::dtype::DType;
use crate::error::{LoadError, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Bytes before the JSON: its length.
const PREFIX: usize = 8;
/// The format's own limit on the header.
const MAX_HEADER: u64 = 100_000_000;

/// Where a tensor lies and what it is. The type stays text, because files carry tensors (masks, counters) that
/// no model reads: one of a type we do not know is refused when it is asked for.
#[derive(Debug, Clone)]
pub struct TensorEntry {
    /// Storage type as the file spells it.
    pub dtype: String,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Byte range in the whole file.
    pub range: Range<usize>,
}

/// A checked header.
#[derive(Debug, Clone)]
pub struct Header {
    /// Tensors by name.
    pub tensors: HashMap<String, TensorEntry>,
    /// Length of prefix and JSON.
    pub length: usize,
}

/// Our type for a safetensors type name.
pub(super) fn dtype_of(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "F16" => Some(DType::F16),
        "BF16" => Some(DType::BF16),
        "F8_E4M3" => Some(DType::F8_E4M3),
        "U8" => Some(DType::U8),
        "I32" => Some(DType::I32),
        "I64" => Some(DType::I64),
        _ => None,
    }
}

impl Header {
    /// Parses and checks the header at the start of `file`, which must be the whole file.
    pub fn parse(file: &[u8]) -> Result<Self> {
        let Some((prefix, rest)) = file.split_first_chunk::<PREFIX>() else {
            return Err(LoadError::malformed("too short for a safetensors file"));
        };
        let announced = u64::from_le_bytes(*prefix);
        let json_len = usize::try_from(announced)
            .ok()
            .filter(|&n| n <= rest.len() && announced <= MAX_HEADER)
            .ok_or_else(|| {
                LoadError::malformed(format!(
                    "announces a header of {announced} bytes, of which {} are there (limit {MAX_HEADER}): not a \
                     safetensors file, or a truncated one",
                    rest.len()
                ))
            })?;
        let raw: RawHeader = serde_json::from_slice(&rest[..json_len])
            .map_err(|e| LoadError::malformed(format!("the safetensors header is not valid: {e}")))?;
        let length = PREFIX + json_len;
        let tensors = place(raw.tensors, length, file.len() - length)?;
        Ok(Self { tensors, length })
    }
}

/// Checks that the tensors tile the data section exactly, as the format demands, and turns their offsets into
/// file ranges.
fn place(
    raw: HashMap<String, RawTensor>,
    base: usize,
    data_len: usize,
) -> Result<HashMap<String, TensorEntry>> {
    let mut order: Vec<(&String, &RawTensor)> = raw.iter().collect();
    order.sort_unstable_by_key(|(_, tensor)| tensor.data_offsets);
    let mut expected = 0;
    for (name, RawTensor { dtype, shape, data_offsets: (start, end) }) in order {
        let refuse = |why: String| LoadError::malformed(format!("tensor {name:?}: {why}"));
        if start > end || *end > data_len {
            return Err(refuse(format!(
                "bytes {start}..{end} are not in the file, which has {data_len} bytes of data; it is truncated or \
                 damaged, fetch it again"
            )));
        }
        if *start != expected {
            let what = if *start < expected { "overlaps the tensor before it" } else { "follows a gap" };
            return Err(refuse(format!("bytes {start}..{end}: {what} (expected {expected})")));
        }
        expected = *end;
        let Some(known) = dtype_of(dtype) else { continue };
        let size = known.tensor_bytes(shape);
        if size != Some(end - start) {
            return Err(refuse(format!("{dtype} {shape:?} does not take {} bytes", end - start)));
        }
    }
    if expected != data_len {
        return Err(LoadError::malformed(format!(
            "the tensors take {expected} bytes, but {data_len} follow the header"
        )));
    }
    let tensors = raw.into_iter().map(|(name, tensor)| {
        let (start, end) = tensor.data_offsets;
        (name, TensorEntry { dtype: tensor.dtype, shape: tensor.shape, range: base + start..base + end })
    });
    Ok(tensors.collect())
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The JSON object: tensors by name, and free-form strings under `__metadata__`, which nothing here needs.
struct RawHeader {
    tensors: HashMap<String, RawTensor>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = HashMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<HashMap<String, String>>()?;
                        continue;
                    }
                    let tensor: RawTensor = map.next_value()?;
                    if tensors.contains_key(&name) {
                        return Err(A::Error::custom(format!("tensor {name:?} is listed twice")));
                    }
                    tensors.insert(name, tensor);
                }
                Ok(RawHeader { tensors })
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
