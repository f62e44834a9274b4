//! safetensors with integers and scales in tensors of their own.
//!
//! A matrix `NAME`, `(…, inputs)`, of `int4` or `int8` becomes three tensors, as the `pack-quantized` format of
//! compressed-tensors has them (vLLM and Transformers read it):
//!
//! | tensor | type, shape | what |
//! |---|---|---|
//! | `NAME_packed` | I32 `(…, inputs / 8)`, for int8 `(…, inputs / 4)` | code `i` of a row is bits `4·(i % 8)` of word `i / 8` (int8: `8·(i % 4)` of word `i / 4`), plus 8 (128) |
//! | `NAME_scale` | F16 `(…, inputs / group)` | value = scale · code |
//! | `NAME_shape` | I64 | the extents of `NAME` |
//!
//! A group is of 16, 32 or 64. `config.json` beside them says so under `quantization_config`. `kvant_model::safetensors` reads them
//! back as [`DType::Int4G32`] and the like.

use crate::convert::{Guarded, Progress};
use crate::error::{ConvertError, Result};
use crate::output::Output;
use crate::rows::Made;
use kvant_model::{Checkpoint, DType, LoadError};
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Bytes of rows that are made before they are written.
const BLOCK: usize = 1 << 20;
/// Values whose codes lie together in a block.
const RUN: usize = 32;
/// Files that belong to a model and do not change with its weights.
const COMPANIONS: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "LICENSE",
];

/// Bits of a code; none where values are stored as they are.
fn bits(dtype: DType) -> Option<usize> {
    let group = dtype.own_group();
    [4, 8].into_iter().find(|&bits| group > 0 && DType::own(bits, group) == Some(dtype))
}

/// What goes beside the weights.
pub(crate) struct Folder {
    config: Value,
    companions: Vec<PathBuf>,
    /// Files that were made, by name.
    made: Vec<(&'static str, Vec<u8>)>,
}

impl Folder {
    pub fn new(checkpoint: &Checkpoint, config: &Value, tensors: &[Made]) -> Result<Self> {
        let companions = COMPANIONS.iter().filter_map(|name| checkpoint.companion(name)).collect();
        Ok(Self { companions, ..Self::made(config, Vec::new(), tensors)? })
    }

    /// With files that are made and none that are copied.
    pub fn made(config: &Value, made: Vec<(&'static str, Vec<u8>)>, tensors: &[Made]) -> Result<Self> {
        let mut config = config.clone();
        let Some(object) = config.as_object_mut() else {
            return Err(LoadError::malformed("config.json does not hold an object").into());
        };
        // What the source said about its types is not so any more.
        object.remove("quantization_config");
        let packed = tensors.iter().find_map(|made| Some((bits(made.dtype)?, made.dtype.own_group())));
        if let Some((bits, group)) = packed {
            object.insert("quantization_config".into(), quantization(bits, group, tensors));
        }
        Ok(Self { config, companions: Vec::new(), made })
    }

    /// Writes the files beside `path`; those that are there and say the same stay.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_vec_pretty(&self.config).map_err(|e| LoadError::malformed(e.to_string()))?;
        put(&path.with_file_name("config.json"), &text)?;
        for (name, bytes) in &self.made {
            put(&path.with_file_name(name), bytes)?;
        }
        for companion in &self.companions {
            let to = path.with_file_name(companion.file_name().unwrap_or_default());
            if fs::canonicalize(&to).ok() != fs::canonicalize(companion).ok() {
                let bytes = fs::read(companion).map_err(|e| LoadError::io("read the file", companion, e))?;
                put(&to, &bytes)?;
            }
        }
        Ok(())
    }
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    match fs::read(path) {
        Ok(there) if there == bytes => return Ok(()),
        Ok(_) => {
            return Err(ConvertError::Output {
                path: path.to_path_buf(),
                what: "belongs to another model; write to a folder of its own".into(),
            });
        }
        Err(_) => {}
    }
    let failed = |e: &io::Error| ConvertError::output(path.to_path_buf(), bytes.len() as u64, e);
    let mut output = Output::create(path)?;
    output.writer().write_all(bytes).map_err(|e| failed(&e))?;
    output.finish().map_err(|e| failed(&e))
}

/// What readers of compressed-tensors need to know.
fn quantization(bits: usize, group: usize, tensors: &[Made]) -> Value {
    let module = |made: &Made| Some(made.name.strip_suffix(".weight")?.to_owned());
    let wide = |made: &&Made| made.shape.len() == 2 && self::bits(made.dtype).is_none();
    let ignore: Vec<String> = tensors.iter().filter(wide).filter_map(module).collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": bits, "type": "int", "symmetric": true, "strategy": "group", "group_size": group,
                "dynamic": false,
            },
            "input_activations": null,
            "output_activations": null,
        }},
        "ignore": ignore,
    })
}

/// Bytes of all tensors.
pub(crate) fn tensor_bytes(tensors: &[Made]) -> u64 {
    tensors.iter().flat_map(|made| entries(made).unwrap_or_default()).map(|entry| entry.bytes as u64).sum()
}

/// A tensor of the file.
struct Entry {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: usize,
}

/// What a tensor becomes, in the order it is written.
fn entries(made: &Made) -> Result<Vec<Entry>> {
    let entry = |suffix: &str, dtype: &'static str, shape: Vec<usize>, bytes: usize| Entry {
        name: format!("{}{suffix}", made.name),
        dtype,
        shape,
        bytes,
    };
    let Some(bits) = bits(made.dtype) else {
        let bytes = made.bytes()?;
        return Ok(vec![entry("", made.dtype.name(), made.shape.clone(), bytes)]);
    };
    made.bytes()?;
    let with_columns = |columns: usize| {
        let mut shape = made.shape.clone();
        shape.last_mut().into_iter().for_each(|last| *last = columns);
        shape
    };
    let group = made.dtype.own_group();
    let (columns, values) = (made.columns(), made.shape.iter().product::<usize>());
    Ok(vec![
        entry("_packed", "I32", with_columns(columns * bits / 32), values * bits / 8),
        entry("_scale", "F16", with_columns(columns / group), values / group * 2),
        entry("_shape", "I64", vec![made.shape.len()], 8 * made.shape.len()),
    ])
}

/// The length of the header, and the header.
fn header(tensors: &[Made]) -> Result<Vec<u8>> {
    let mut map = Map::new();
    map.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0;
    for made in tensors {
        for entry in entries(made)? {
            let end = at + entry.bytes;
            let about = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [at, end]});
            map.insert(entry.name, about);
            at = end;
        }
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    Ok(out)
}

/// Writes header and tensors.
pub(crate) fn write(
    tensors: &[Made],
    output: &mut Output,
    path: &Path,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let (header, total) = (header(tensors)?, tensor_bytes(tensors));
    let (stopped, done) = (Cell::new(false), Cell::new(0u64));
    let mut out = Guarded { to: output.writer(), stops: || stopped.get() };
    let mut send = |out: &mut dyn Write, bytes: &[u8]| -> io::Result<()> {
        out.write_all(bytes)?;
        done.set(done.get() + bytes.len() as u64);
        if progress(done.get(), total).is_break() {
            stopped.set(true);
        }
        Ok(())
    };
    let failed = |e: io::Error| match stopped.get() {
        true => ConvertError::Interrupted,
        false => ConvertError::output(path.to_path_buf(), total, &e),
    };
    out.write_all(&header).map_err(failed)?;
    for made in tensors {
        let row_bytes = made.bytes()? / made.shape.iter().rev().skip(1).product::<usize>().max(1);
        let rows = made.bytes()?.checked_div(row_bytes).unwrap_or(0);
        let at_once = (BLOCK / row_bytes.max(1)).clamp(1, rows.max(1));
        let mut block = vec![0; at_once * row_bytes]; // (rows, row_bytes)
        let mut scales = Vec::new();
        for first in (0..rows).step_by(at_once) {
            let block = &mut block[..at_once.min(rows - first) * row_bytes];
            let failure = Mutex::new(None);
            kvant_threads::for_each_chunk(block, row_bytes, |row, bytes| {
                if let Err(error) = made.store(first + row, &mut Vec::new(), bytes) {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
            if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
                return Err(error.into());
            }
            match bits(made.dtype) {
                None => send(&mut out, block).map_err(failed)?,
                Some(bits) => send(&mut out, &split(bits, made.dtype, block, &mut scales)).map_err(failed)?,
            }
        }
        if bits(made.dtype).is_some() {
            send(&mut out, &scales).map_err(failed)?;
            let shape: Vec<u8> =
                made.shape.iter().flat_map(|&extent| (extent as i64).to_le_bytes()).collect();
            send(&mut out, &shape).map_err(failed)?;
        }
        made.release();
    }
    Ok(())
}

/// Takes blocks apart: codes as little-endian words, scales put after those that are there.
fn split(bits: usize, dtype: DType, blocks: &[u8], scales: &mut Vec<u8>) -> Vec<u8> {
    let mut codes = Vec::with_capacity(blocks.len());
    for block in blocks.chunks_exact(dtype.block_bytes()) {
        let (own_scales, stored) = block.split_at(2 * (dtype.block_len() / dtype.own_group()));
        scales.extend_from_slice(own_scales);
        if bits == 8 {
            codes.extend(stored.iter().map(|&code| code ^ 128));
            continue;
        }
        for run in stored.chunks_exact(RUN / 2) {
            let nibble = |i: usize| if i < RUN / 2 { run[i] & 15 } else { run[i - RUN / 2] >> 4 };
            codes.extend((0..RUN / 2).map(|i| nibble(2 * i) | nibble(2 * i + 1) << 4));
        }
    }
    codes
}
