//! The files of a model on disk: which one stands for it, and the small ones beside it.

use crate::error::{LoadError, Result};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// JSON beside a model is small; a larger file is not what it claims to be.
const MAX_JSON: u64 = 64 << 20;

/// Reads a JSON file of bounded size.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    crate::config::parse_json(&read_bounded(path)?)
        .map_err(|e| LoadError::malformed(format!("is not the JSON it should be: {e}")).in_file(path))
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bounded(path)?)
        .map_err(|e| LoadError::malformed(format!("is not UTF-8 text: {e}")).in_file(path))
}

pub(crate) fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| LoadError::io("open the file", path, e))?;
    let mut text = Vec::new();
    file.take(MAX_JSON + 1).read_to_end(&mut text).map_err(|e| LoadError::io("read the file", path, e))?;
    if text.len() as u64 > MAX_JSON {
        return Err(LoadError::malformed(format!("is larger than {MAX_JSON} bytes")).in_file(path));
    }
    Ok(text)
}

pub(crate) fn is_gguf(path: &Path) -> Result<bool> {
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(|e| LoadError::io("open the file", path, e))?;
    match file.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *b"GGUF"),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(LoadError::io("read the file", path, e)),
    }
}

/// The model in a folder: single safetensors, then an index, then the only GGUF file or split set.
pub(crate) fn choose_in_folder(folder: &Path) -> Result<PathBuf> {
    for name in ["model.safetensors", "model.safetensors.index.json"] {
        let candidate = folder.join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    let entries = fs::read_dir(folder).map_err(|e| LoadError::io("list the folder", folder, e))?;
    let mut gguf: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension().is_some_and(|e| e == "gguf") && path.is_file() && !is_later_part(path)
        })
        .collect();
    gguf.sort();
    match gguf.len() {
        1 => Ok(gguf.remove(0)),
        0 => Err(LoadError::missing(
            "holds no model.safetensors, no model.safetensors.index.json and no .gguf file",
        )
        .in_file(folder)),
        n => Err(LoadError::mismatch(format!(
            "holds {n} GGUF models; name one of them, for example {}",
            gguf[0].display()
        ))
        .in_file(folder)),
    }
}

/// True for `NAME-00002-of-00003.gguf` and on: only the first part stands for a split model.
pub(crate) fn is_later_part(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let Some((rest, count)) = stem.rsplit_once("-of-") else { return false };
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    match rest.rsplit_once('-') {
        Some((_, number)) => digits(count) && digits(number) && number != "00001",
        None => false,
    }
}
