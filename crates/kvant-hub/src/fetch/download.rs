//! One file into the cache: resumed when interrupted, checked, then renamed into place.

use super::http::{Answer, Http};
use crate::error::{HubError, HubErrorKind, Result};
use crate::options::{Patience, Progress, Report};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const CHUNK: usize = 1 << 17;
/// An attempt that brought less than this counts as one without progress.
const WORTH_ANOTHER: u64 = 1 << 16;

/// What is promised about a file before its bytes arrive.
#[derive(Debug, Clone, Default)]
pub(super) struct Promise {
    pub(super) size: Option<u64>,
    /// Lower-case hexadecimal.
    pub(super) sha256: Option<String>,
    /// A revision or the like that fixes the content when no checksum is known.
    pub(super) revision: Option<String>,
}

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) size: u64,
    pub(super) sha256: String,
}

/// A file that grows beside its destination and is renamed over it when complete.
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
}

impl Partial {
    /// Opens what an earlier attempt at the *same content* left, or starts afresh. The name carries the
    /// promise, so bytes of another revision are never continued.
    pub(super) fn open(destination: &Path, promise: &Promise) -> Result<Self> {
        let identity = promise.sha256.as_ref().or(promise.revision.as_ref());
        let tag: String = identity
            .map(|id| id.chars().filter(char::is_ascii_hexdigit).take(16).collect())
            .unwrap_or_default();
        let name = destination.file_name().unwrap_or_default().to_string_lossy();
        let path = destination.with_file_name(format!(".{name}.{tag}.part"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(tag.is_empty());
        let file = options.open(&path).map_err(|e| HubError::io("create the file", &path, e))?;
        let mut partial = Self { path, file, hash: Sha256::new(), len: 0 };
        partial.len = std::io::copy(&mut partial.file, &mut partial.hash)
            .map_err(|e| HubError::io("read what was downloaded before", &partial.path, e))?;
        if promise.size.is_some_and(|size| partial.len > size) {
            partial.restart()?;
        }
        Ok(partial)
    }

    /// Throws away what is there.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(|e| HubError::io("empty the file", &self.path, e))?;
        self.hash = Sha256::new();
        self.len = 0;
        Ok(())
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| HubError::io("write (is the disk full?)", &self.path, e))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Leaves what is there for a later attempt; an empty file is not worth leaving.
    fn close(self) -> Result<()> {
        drop(self.file);
        if self.len > 0 {
            return Ok(());
        }
        fs::remove_file(&self.path).map_err(|e| HubError::io("remove the empty file", &self.path, e))
    }

    /// Checks the promise and moves the file into place; bytes that break it are thrown away.
    pub(super) fn finish(self, destination: &Path, promise: &Promise) -> Result<Arrived> {
        let sha256 = hex(&self.hash.finalize());
        let wrong_size = promise.size.is_some_and(|size| size != self.len);
        let wrong_hash = promise.sha256.as_ref().is_some_and(|expected| *expected != sha256);
        if wrong_size || wrong_hash {
            drop(self.file);
            fs::remove_file(&self.path)
                .map_err(|e| HubError::io("remove the damaged file", &self.path, e))?;
            return Err(HubError::new(
                HubErrorKind::Checksum,
                format!(
                    "{} arrived damaged ({} bytes, sha256 {sha256}; promised {}, sha256 {}); it was removed, pull again",
                    destination.file_name().unwrap_or_default().to_string_lossy(),
                    self.len,
                    promise.size.map_or("any size".to_owned(), |size| format!("{size} bytes")),
                    promise.sha256.as_deref().unwrap_or("unknown"),
                ),
            ));
        }
        self.file.sync_all().map_err(|e| HubError::io("write to disk", &self.path, e))?;
        drop(self.file);
        fs::rename(&self.path, destination).map_err(|e| HubError::io("rename into place", destination, e))?;
        Ok(Arrived { size: self.len, sha256 })
    }
}

/// Downloads `url` to `destination`, picking up after broken connections.
pub(super) fn download(
    http: &Http,
    timeout: &Patience,
    url: &str,
    destination: &Path,
    mut promise: Promise,
    report: &mut Report<'_>,
) -> Result<Arrived> {
    let label = destination.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut partial = Partial::open(destination, &promise)?;
    match fill(http, timeout, url, &label, &mut partial, &mut promise, report) {
        Ok(()) => partial.finish(destination, &promise),
        Err(error) => {
            partial.close()?;
            Err(error)
        }
    }
}

/// Attempts until everything is there, no attempt can help, or timeout ends.
fn fill(
    http: &Http,
    timeout: &Patience,
    url: &str,
    label: &str,
    partial: &mut Partial,
    promise: &mut Promise,
    report: &mut Report<'_>,
) -> Result<()> {
    let mut failures = 0;
    while promise.size != Some(partial.len) {
        let before = partial.len;
        match attempt(http, url, label, partial, promise, report) {
            Ok(()) => break,
            Err(Stop::For(error)) => return Err(error),
            Err(Stop::Trying(error)) => {
                failures = if partial.len >= before.saturating_add(WORTH_ANOTHER) { 1 } else { failures + 1 };
                let kept = partial.len;
                if failures >= timeout.attempts {
                    if kept == 0 {
                        return Err(error);
                    }
                    let message = format!("{error}; {kept} bytes of {label} are kept; pull again to resume");
                    return Err(HubError::new(error.kind(), message));
                }
                let next = if kept == 0 { "trying again".into() } else { format!("going on at byte {kept}") };
                report(Progress::Note(&format!("{error}; {next}")));
                std::thread::sleep(timeout.pause * failures);
            }
        }
    }
    Ok(())
}

/// Why an attempt ended early.
enum Stop {
    /// No further attempt can help.
    For(HubError),
    /// Another attempt may bring the rest.
    Trying(HubError),
}

impl From<HubError> for Stop {
    fn from(error: HubError) -> Self {
        Self::For(error)
    }
}

/// One request and as much of its body as comes. `Ok` means that the server sent everything it announced.
fn attempt(
    http: &Http,
    url: &str,
    label: &str,
    partial: &mut Partial,
    promise: &mut Promise,
    report: &mut Report<'_>,
) -> Result<(), Stop> {
    let answer = http.get(url, partial.len).map_err(Stop::Trying)?;
    match answer.status {
        206 if range_start(&answer) == Some(partial.len) => {}
        // A server without ranges sends everything again; one that cannot place ours gets a fresh start.
        200 => partial.restart()?,
        206 | 416 if partial.len > 0 => {
            partial.restart()?;
            return Err(Stop::Trying(HubError::network(format!("the server cannot resume {label}"))));
        }
        408 | 429 | 500..=599 => return Err(Stop::Trying(http.refusal(answer.status, label))),
        status => return Err(Stop::For(http.refusal(status, label))),
    }
    promise.sha256 = promise.sha256.take().or(answer.linked_sha256.clone());
    let announced = content_length(&answer).and_then(|n| n.checked_add(partial.len));
    let total = promise.size.or(announced);
    receive(answer, label, partial, total, report)?;
    match announced {
        Some(announced) if partial.len < announced => {
            Err(Stop::Trying(HubError::network(format!("the connection for {label} ended early"))))
        }
        _ => Ok(()),
    }
}

fn receive(
    mut answer: Answer,
    label: &str,
    partial: &mut Partial,
    total: Option<u64>,
    report: &mut Report<'_>,
) -> Result<(), Stop> {
    let mut chunk = vec![0; CHUNK];
    loop {
        report(Progress::File { name: label, done: partial.len, total });
        let count = match answer.body.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => {
                return Err(Stop::Trying(HubError::network(format!(
                    "the connection for {label} broke ({e})"
                ))));
            }
        };
        if total.is_some_and(|total| partial.len + count as u64 > total) {
            partial.restart()?;
            return Err(Stop::For(HubError::new(
                HubErrorKind::Checksum,
                format!("the server sends more of {label} than it promised; pull again"),
            )));
        }
        partial.append(&chunk[..count])?;
    }
}

/// The first byte of a partial answer: `Content-Range: bytes START-END/TOTAL`.
fn range_start(answer: &Answer) -> Option<u64> {
    let range = answer.headers.get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn content_length(answer: &Answer) -> Option<u64> {
    answer.headers.get("content-length")?.to_str().ok()?.parse().ok()
}

/// True when the file at `path` is already what is promised. Only a checksum can tell.
pub(super) fn already_there(path: &Path, promise: &Promise) -> Result<Option<Arrived>> {
    let Some(expected) = &promise.sha256 else { return Ok(None) };
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let mut hash = Sha256::new();
    let size = std::io::copy(&mut file, &mut hash).map_err(|e| HubError::io("read the file", path, e))?;
    let sha256 = hex(&hash.finalize());
    Ok((sha256 == *expected).then_some(Arrived { size, sha256 }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
