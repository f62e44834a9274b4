//! One error type for everything that reads or maps a model file.

use std::fmt;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate's loading side.
pub type Result<T, E = LoadError> = std::result::Result<T, E>;

/// What went wrong, for callers that decide by kind; the message is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// The operating system refused a read, write, map or rename.
    Io,
    /// The bytes contradict their format, or themselves.
    Malformed,
    /// Well formed, but of a kind kvant does not read.
    Unsupported,
    /// A tensor, key or file that is needed is not there.
    Missing,
    /// A tensor or key is there with another type, shape or range than asked for.
    Mismatch,
}

/// A failure to load: what was wrong, where, and what to do about it.
#[derive(Debug)]
pub struct LoadError {
    kind: LoadErrorKind,
    message: String,
    file: Option<PathBuf>,
    source: Option<std::io::Error>,
}

impl LoadError {
    /// An error of `kind` with a message that names the tensor, key or offset.
    pub fn new(kind: LoadErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), file: None, source: None }
    }

    /// The bytes are not what their format says they must be.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(LoadErrorKind::Malformed, message)
    }

    /// Something needed is absent.
    pub fn missing(message: impl Into<String>) -> Self {
        Self::new(LoadErrorKind::Missing, message)
    }

    /// Something is present but not as asked for.
    pub fn mismatch(message: impl Into<String>) -> Self {
        Self::new(LoadErrorKind::Mismatch, message)
    }

    /// Something is valid but beyond kvant.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(LoadErrorKind::Unsupported, message)
    }

    /// An operating-system error while doing `action` to `path`.
    pub fn io(action: &str, path: &Path, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => LoadErrorKind::Missing,
            _ => LoadErrorKind::Io,
        };
        Self {
            kind,
            message: format!("cannot {action}: {source}"),
            file: Some(path.to_path_buf()),
            source: Some(source),
        }
    }

    /// The same error, naming the file it came from unless it names one already; a message that begins with the file's own
    /// name does not say it twice.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        if self.file.is_none() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(rest) = self.message.strip_prefix(&format!("{name}: ")) {
                self.message = rest.to_owned();
            }
            self.file = Some(path.to_path_buf());
        }
        self
    }

    /// The kind, for decisions.
    pub fn kind(&self) -> LoadErrorKind {
        self.kind
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}: {}", file.display(), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
