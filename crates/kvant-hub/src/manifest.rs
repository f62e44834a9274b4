//! What is complete in a cache folder: a small JSON file beside the models, written last.

use crate::error::{HubError, HubErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

pub(crate) const FILE: &str = "kvant.json";
const VERSION: u32 = 1;
/// No list of files is longer.
const MAX_BYTES: u64 = 1 << 24;

/// The complete files of one repository.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    pub(crate) repo: String,
    pub(crate) files: BTreeMap<String, Entry>,
}

/// One file as it arrived.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) size: u64,
    pub(crate) sha256: String,
    /// Where it came from, for people.
    pub(crate) origin: String,
}

impl Manifest {
    /// Reads the manifest of a folder. A missing, foreign or damaged one counts as empty: the files are then
    /// fetched or checked anew.
    pub(crate) fn read(folder: &Path, repo: &str) -> Self {
        match read(&folder.join(FILE)) {
            Some(manifest) if manifest.version == VERSION && (repo.is_empty() || manifest.repo == repo) => {
                manifest
            }
            _ => Self { version: VERSION, repo: repo.to_owned(), files: BTreeMap::new() },
        }
    }

    /// Writes the list beside itself and renames it into place.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let temporary = folder.join(format!(".{FILE}.part"));
        let text = serde_json::to_vec_pretty(self).map_err(|e| {
            HubError::new(HubErrorKind::Malformed, format!("cannot write the list of files: {e}"))
        })?;
        let replace = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        replace().map_err(|e| HubError::io("write the list of files", &path, e))
    }

    /// Names of the files that are there with the size they arrived with.
    pub(crate) fn complete(&self, folder: &Path) -> Vec<&str> {
        let is_whole = |name: &str, entry: &Entry| {
            crate::name::is_safe_path(name)
                && fs::metadata(folder.join(name))
                    .is_ok_and(|file| file.is_file() && file.len() == entry.size)
        };
        self.files
            .iter()
            .filter(|(name, entry)| is_whole(name, entry))
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

fn read(path: &Path) -> Option<Manifest> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
