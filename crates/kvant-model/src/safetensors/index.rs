//! The index of a sharded model: which tensor is in which file.

use super::Shard;
use crate::error::{LoadError, Result};
use crate::model_files::read_json;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Component, Path};

#[derive(Deserialize)]
struct Index {
    weight_map: Option<BTreeMap<String, String>>,
}

/// Maps the shards and assigns each listed tensor to its own. Tensors that a shard holds but the index does
/// not list stay invisible.
pub(super) fn open_shards(path: &Path) -> Result<(Vec<Shard>, BTreeMap<String, usize>)> {
    let index: Index = read_json(path)?;
    let weight_map = index.weight_map.ok_or_else(|| {
        let what = "is not an index of safetensors files: it has no `weight_map`; for a config.json without weights there is `kvant fit`";
        LoadError::unsupported(what).in_file(path)
    })?;
    let mut shards: Vec<Shard> = Vec::new();
    let mut by_file: BTreeMap<&str, usize> = BTreeMap::new();
    let mut by_name = BTreeMap::new();
    for (name, file) in &weight_map {
        let shard = match by_file.get(file.as_str()) {
            Some(&shard) => shard,
            None => {
                refuse_path(file).map_err(|e| e.in_file(path))?;
                shards.push(Shard::map(&path.with_file_name(file))?);
                by_file.insert(file, shards.len() - 1);
                shards.len() - 1
            }
        };
        if !shards[shard].header.tensors.contains_key(name) {
            return Err(LoadError::malformed(format!(
                "tensor {name:?} should be in {file:?}, but that file does not have it"
            ))
            .in_file(path));
        }
        by_name.insert(name.clone(), shard);
    }
    Ok((shards, by_name))
}

/// A shard lies beside its index; anything but a plain file name is an attempt to read elsewhere.
fn refuse_path(file: &str) -> Result<()> {
    let mut parts = Path::new(file).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == file && !file.contains('\\') => Ok(()),
        _ => Err(LoadError::malformed(format!("the shard name {file:?} is not a plain file name"))),
    }
}
