//! What can go wrong in a conversion.

use kvant_model::LoadError;
use std::io;
use std::path::PathBuf;

/// Why there is no converted file.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The model cannot be read, or says nothing that could be written.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// What was asked for does not exist in that format.
    #[error("{0}")]
    Refused(String),
    /// The file could not be written; nothing was left behind.
    #[error("{}: {what}", path.display())]
    Output {
        /// The file that was to be written.
        path: PathBuf,
        /// What happened, and what to do.
        what: String,
    },
    /// The caller asked to stop; nothing was left behind.
    #[error("interrupted; nothing was written")]
    Interrupted,
}

impl ConvertError {
    /// An error of the system about the file `path`, of which `needed` bytes were to be written.
    pub(crate) fn output(path: PathBuf, needed: u64, error: &io::Error) -> Self {
        let what = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                format!("no room for {needed} bytes: {error}; make room or choose another place")
            }
            _ => format!("cannot be written: {error}"),
        };
        Self::Output { path, what }
    }
}

impl ConvertError {
    /// A refusal with the other format as the way out.
    pub(crate) fn or_safetensors(self) -> Self {
        match self {
            Self::Refused(why) => Self::Refused(format!("{why}; write safetensors (--to safetensors)")),
            other => other,
        }
    }
}

/// What functions here give.
pub(crate) type Result<T> = std::result::Result<T, ConvertError>;
