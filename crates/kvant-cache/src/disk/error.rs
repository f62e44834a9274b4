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
    /// Another program does not let it go.
    #[error("{}: another program has locked this folder for itself; end it, or name another folder", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
}
