//! Models split over several files named `NAME-00001-of-00007.gguf`.

use super::Part;
use super::metadata::Metadata;
use crate::error::{LoadError, Result};
use std::path::{Path, PathBuf};

/// Which part of how many a file says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartNumber {
    pub(super) number: u32,
    pub(super) count: u32,
}

/// The place a file's metadata gives it; `None` for a model in one piece.
pub(super) fn place(metadata: &Metadata) -> Result<Option<PartNumber>> {
    let Some(count) = metadata.get::<u32>("split.count")? else { return Ok(None) };
    let number = metadata.need::<u32>("split.no")?;
    if number >= count.max(1) {
        return Err(LoadError::malformed(format!("key \"split.no\": part {number} of {count} cannot be")));
    }
    Ok(Some(PartNumber { number, count }))
}

/// Maps the file at `path` and, when it is part of a split model, all the others in order.
pub(super) fn open_parts(path: &Path) -> Result<Vec<Part>> {
    let opened = Part::map(path)?;
    let Some(PartNumber { number, count }) = place(&opened.header.metadata).map_err(|e| e.in_file(path))?
    else {
        return Ok(vec![opened]);
    };
    if count <= 1 {
        return Ok(vec![opened]);
    }
    let base = base_name(path, number, count).ok_or_else(|| {
        LoadError::mismatch(format!(
            "says it is part {} of {count}, so its name must end in \"-{:05}-of-{count:05}.gguf\" for the others \
             to be found",
            number + 1,
            number + 1
        ))
        .in_file(path)
    })?;
    let mut parts = Vec::new();
    for expected in 0..count {
        let part_path = part_path(path, &base, expected, count);
        let part = Part::map(&part_path)?;
        let found = place(&part.header.metadata).map_err(|e| e.in_file(&part_path))?;
        if found != Some(PartNumber { number: expected, count }) {
            return Err(LoadError::mismatch(format!(
                "should be part {} of {count} of the split model, but its metadata says otherwise",
                expected + 1
            ))
            .in_file(&part_path));
        }
        parts.push(part);
    }
    check_total(&parts).map_err(|e| e.in_file(path))?;
    Ok(parts)
}

fn check_total(parts: &[Part]) -> Result<()> {
    let total: usize = parts.iter().map(|part| part.header.tensors.len()).sum();
    match parts[0].header.metadata.get::<usize>("split.tensors.count")? {
        Some(promised) if promised != total => Err(LoadError::malformed(format!(
            "the parts hold {total} tensors, but key \"split.tensors.count\" promises {promised}"
        ))),
        _ => Ok(()),
    }
}

/// The file name without the part suffix, when the suffix is the one that belongs to this part.
fn base_name(path: &Path, number: u32, count: u32) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(&suffix(number, count)).map(str::to_owned)
}

fn part_path(opened: &Path, base: &str, number: u32, count: u32) -> PathBuf {
    opened.with_file_name(format!("{base}{}", suffix(number, count)))
}

fn suffix(number: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}
