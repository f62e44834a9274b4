//! Why a folder cannot be used.

use std::io;
use std::path::PathBuf;

/// Why a folder cannot be used for prefixes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The system refuses.
    #[error("{}: cannot {doing}: {source}; prefixes need a folder that can be read and written", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Another program has it.
    #[error("{}: another server keeps its prefixes here; give each a folder of its own, or end the other", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
}
