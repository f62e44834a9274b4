//! What is complete in a cache folder: a small JSON file beside the models, written last.

use super::download::Arrived;
use crate::checkpoint::read_json;
use crate::error::{LoadError, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

pub(super) const FILE: &str = "kvant.json";
const VERSION: u32 = 1;

/// The complete files of one repository.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    pub(super) repo: String,
    pub(super) files: BTreeMap<String, Entry>,
}

/// One file as it arrived.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) size: u64,
    pub(super) sha256: String,
    /// Where it came from, for people.
    pub(super) origin: String,
}

impl Entry {
    pub(super) fn new(arrived: Arrived, origin: &str) -> Self {
        Self { size: arrived.size, sha256: arrived.sha256, origin: origin.to_owned() }
    }
}

impl Manifest {
    /// Reads the manifest of a folder. A missing, foreign or damaged one counts as empty: the files are then
    /// fetched or checked anew.
    pub(super) fn read(folder: &Path, repo: &str) -> Self {
        match read_json::<Self>(&folder.join(FILE)) {
            Ok(manifest) if manifest.version == VERSION && (repo.is_empty() || manifest.repo == repo) => {
                manifest
            }
            _ => Self { version: VERSION, repo: repo.to_owned(), files: BTreeMap::new() },
        }
    }

    /// Names of the files that are there with the size they arrived with.
    pub(super) fn complete(&self, folder: &Path) -> Vec<&str> {
        let is_whole = |name: &str, entry: &Entry| {
            super::name::is_safe_path(name)
                && fs::metadata(folder.join(name))
                    .is_ok_and(|file| file.is_file() && file.len() == entry.size)
        };
        self.files
            .iter()
            .filter(|(name, entry)| is_whole(name, entry))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Writes the manifest beside itself and renames it into place.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let temporary = folder.join(format!(".{FILE}.part"));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| LoadError::malformed(format!("cannot write the list of files: {e}")))?;
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|e| LoadError::io("write the list of files", &path, e))
    }
}
