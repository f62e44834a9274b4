//! One error type for finding and fetching models.

use std::fmt;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = HubError> = std::result::Result<T, E>;

/// What went wrong, for callers that decide by kind; the message is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HubErrorKind {
    /// The operating system refused a read, write or rename.
    Io,
    /// An answer or a file contradicts its format.
    Malformed,
    /// A repository, a file or a folder that is needed is not there.
    Missing,
    /// What was asked for is ambiguous or out of range.
    Mismatch,
    /// A server could not be reached, or the connection broke.
    Network,
    /// The server refused us: a login or an accepted licence is needed.
    Unauthorised,
    /// The downloaded bytes are not the promised ones.
    Checksum,
    /// This build has no downloads: the feature `fetch` was left out.
    CannotFetch,
}

/// A model that cannot be found or fetched: what was wrong, where, and what to do about it.
#[derive(Debug)]
pub struct HubError {
    kind: HubErrorKind,
    message: String,
    file: Option<PathBuf>,
    source: Option<std::io::Error>,
}

impl HubError {
    pub(crate) fn new(kind: HubErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), file: None, source: None }
    }

    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self::new(HubErrorKind::Missing, message)
    }

    pub(crate) fn mismatch(message: impl Into<String>) -> Self {
        Self::new(HubErrorKind::Mismatch, message)
    }

    /// An operating-system error while doing `action` to `path`.
    pub(crate) fn io(action: &str, path: &Path, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => HubErrorKind::Missing,
            _ => HubErrorKind::Io,
        };
        Self {
            kind,
            message: format!("cannot {action}: {source}"),
            file: Some(path.to_path_buf()),
            source: Some(source),
        }
    }

    /// The kind, for decisions.
    pub fn kind(&self) -> HubErrorKind {
        self.kind
    }
}

/// Characters of a message that quotes what was sent.
#[cfg(feature = "fetch")]
const MOST_QUOTED: usize = 300;

#[cfg(feature = "fetch")]
impl HubError {
    /// Something that was sent makes no sense. It may be quoted in the message, and be as long as its sender likes.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MOST_QUOTED) {
            message.truncate(end);
            message.push('…');
        }
        Self::new(HubErrorKind::Malformed, message)
    }

    pub(crate) fn network(message: impl Into<String>) -> Self {
        Self::new(HubErrorKind::Network, message)
    }

    /// The same error, naming the file it came from unless it names one already.
    #[must_use]
    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        self.file.get_or_insert_with(|| path.to_path_buf());
        self
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}: {}", file.display(), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for HubError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
