//! The model cache, and the way into it.

use crate::choice;
use crate::error::{HubError, Result};
use crate::manifest::{self, Manifest};
use crate::name::{KNOWN, ModelName};
use crate::options::{Options, Report};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A model that is complete in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// A name that [`Hub::find`] finds it by.
    pub name: String,
    /// The file to open.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// The model cache and the sources that fill it.
#[derive(Debug, Clone)]
pub struct Hub {
    pub(crate) options: Options,
}

impl Hub {
    /// A hub with the given options; nothing is touched or contacted yet.
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// A hub as the environment describes it.
    pub fn from_env() -> Result<Self> {
        Options::from_env().map(Self::new)
    }

    /// The folder that holds all models.
    pub fn folder(&self) -> PathBuf {
        self.options.cache.join("models")
    }

    /// The file to open for a model that is already complete in the cache. No network.
    pub fn find(&self, name: &ModelName) -> Option<PathBuf> {
        let folder = self.folder().join(name.folder());
        let manifest = Manifest::read(&folder, name.repo());
        let choice = choice::choose(&manifest.complete(&folder), name.file()).ok()?;
        Some(folder.join(choice.open))
    }

    /// Every complete model in the cache, by name.
    pub fn models(&self) -> Result<Vec<CachedModel>> {
        let folder = self.folder();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(HubError::io("list the folder", &folder, e)),
        };
        let mut models: Vec<CachedModel> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .flat_map(|folder| models_in(&folder))
            .collect();
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// Removes a model from the cache and returns the bytes that its files had. Files that other models in the same folder need stay.
    ///
    /// # Errors
    /// If it is not in the cache, or a file cannot be removed.
    pub fn remove(&self, name: &ModelName) -> Result<u64> {
        let folder = self.folder().join(name.folder());
        let mut listed = Manifest::read(&folder, name.repo());
        let choice = choice::choose(&listed.complete(&folder), name.file())
            .map_err(|e| HubError::new(e.kind(), format!("{name} is not in the cache: {e}")))?;
        let mut bytes = 0;
        // The list first: what it does not name is no model, even if a file cannot be removed.
        let files: Vec<String> =
            choice.files.iter().filter(|file| listed.files.contains_key(*file)).cloned().collect();
        for file in &files {
            bytes += listed.files.remove(file).map_or(0, |entry| entry.size);
        }
        listed.write(&folder)?;
        for file in &files {
            let path = folder.join(file);
            fs::remove_file(&path).map_err(|e| HubError::io("remove the file", &path, e))?;
        }
        if listed.files.is_empty() {
            let left = [manifest::FILE, ".lock"].map(|name| folder.join(name));
            // An empty folder is no harm; one with other files in it stays.
            let _ = left.iter().try_for_each(fs::remove_file).and_then(|()| fs::remove_dir(&folder));
        }
        Ok(bytes)
    }

    /// The file to open for a model, fetched first when it is not in the cache.
    ///
    /// # Errors
    /// If it can be had from no source; without the feature `fetch`, if it is not in the cache.
    pub fn pull(&self, name: &ModelName, report: &mut Report<'_>) -> Result<PathBuf> {
        match self.find(name) {
            Some(path) => Ok(path),
            None => self.fetch(name, report),
        }
    }

    /// A file that describes a model without its weights: the beginning of its GGUF file, or its `config.json`, fetched anew.
    ///
    /// # Errors
    /// If the hub cannot be reached or does not have it; without the feature `fetch`, always.
    pub fn describe(&self, name: &ModelName) -> Result<PathBuf> {
        self.fetch_description(name)
    }

    /// Whether the hub answers within this time; without the feature `fetch`, it does not.
    pub fn is_reachable(&self, within: Duration) -> bool {
        self.answers(within)
    }

    #[cfg(not(feature = "fetch"))]
    fn answers(&self, _: Duration) -> bool {
        false
    }

    #[cfg(not(feature = "fetch"))]
    fn fetch_description(&self, name: &ModelName) -> Result<PathBuf> {
        self.fetch(name, &mut |_| {})
    }

    #[cfg(not(feature = "fetch"))]
    fn fetch(&self, name: &ModelName, _: &mut Report<'_>) -> Result<PathBuf> {
        let folder = self.folder().join(name.folder());
        let message = format!(
            "this build of kvant cannot fetch models, and {name} is not in {}; name a model file, or use a build with \
             the feature `hub`",
            folder.display()
        );
        Err(HubError::new(crate::error::HubErrorKind::CannotFetch, message))
    }
}

/// The complete models of one repository folder: each GGUF model, and the safetensors one.
fn models_in(folder: &Path) -> Vec<CachedModel> {
    let manifest = Manifest::read(folder, "");
    let complete = manifest.complete(folder);
    let weights = complete.iter().filter(|name| name.ends_with(".gguf")).map(|name| Some(*name));
    let mut models: Vec<CachedModel> = Vec::new();
    for wanted in std::iter::once(None).chain(weights) {
        let Ok(choice) = choice::choose(&complete, wanted) else { continue };
        let path = folder.join(&choice.open);
        if models.iter().any(|model| model.path == path) {
            continue;
        }
        let bytes =
            choice.files.iter().filter_map(|file| manifest.files.get(file)).map(|entry| entry.size).sum();
        let name = if choice.open.ends_with(".gguf") {
            let known = KNOWN.iter().find(|known| known.repo == manifest.repo && known.file == choice.open);
            known.map_or_else(|| format!("{}:{}", manifest.repo, choice.open), |known| known.short.to_owned())
        } else {
            manifest.repo.clone()
        };
        models.push(CachedModel { name, path, bytes });
    }
    models
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Patience;

    fn hub(cache: &Path) -> Hub {
        Hub::new(Options {
            cache: cache.to_path_buf(),
            endpoint: "http://127.0.0.1:1".into(),
            token: None,
            python: "no-such-python".into(),
            certificates: None,
            timeout: Patience::default(),
        })
    }

    #[test]
    fn what_is_complete_in_the_cache_is_found_and_pulled_without_a_network() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models/org--repo");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("m.gguf"), b"GGUF").unwrap();
        let list = r#"{"version": 1, "repo": "org/repo", "files":
            {"m.gguf": {"size": 4, "sha256": "", "origin": ""}, "gone.gguf": {"size": 4, "sha256": "", "origin": ""}}}"#;
        fs::write(folder.join("kvant.json"), list).unwrap();
        let (hub, name) = (hub(cache.path()), ModelName::parse("org/repo").unwrap());
        let path = folder.join("m.gguf");
        assert_eq!(hub.find(&name), Some(path.clone()));
        assert_eq!(hub.pull(&name, &mut |_| {}).unwrap(), path);
        let models = hub.models().unwrap();
        assert_eq!(models, [CachedModel { name: "org/repo:m.gguf".into(), path: path.clone(), bytes: 4 }]);
        assert!(
            hub.remove(&ModelName::parse("org/other").unwrap())
                .unwrap_err()
                .to_string()
                .contains("not in the cache")
        );
        assert_eq!(hub.remove(&name).unwrap(), 4);
        assert!(!path.exists() && hub.find(&name).is_none() && hub.models().unwrap().is_empty());
    }

    #[cfg(not(feature = "fetch"))]
    #[test]
    fn a_build_without_downloads_says_so() {
        let cache = tempfile::tempdir().unwrap();
        let name = ModelName::parse("org/repo").unwrap();
        let error = hub(cache.path()).pull(&name, &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), crate::HubErrorKind::CannotFetch);
        assert!(error.to_string().contains("cannot fetch models, and org/repo is not in"), "{error}");
    }
}
