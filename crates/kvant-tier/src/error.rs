//! Why a tier cannot do something.

use kvant_cache::LayoutError;
use kvant_codec::CodecError;
use std::io;
use std::path::PathBuf;

/// Why a tier cannot do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// A block is described in a way that cannot be.
    #[error("{0}")]
    Form(String),
    /// The policy does not fit the model.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Numbers cannot be encoded.
    #[error("layer {layer}, kv head {head}: {source}")]
    Codec {
        /// The layer, by its place in the block.
        layer: usize,
        /// The kv head.
        head: usize,
        /// What the codec says.
        source: CodecError,
    },
    /// Bytes are not an entry of this tier.
    #[error("{0}")]
    Entry(&'static str),
    /// A folder or a file cannot be used.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The folder or the file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An entry is larger than everything may be.
    #[error("an entry of {bytes} bytes does not fit the tier's limit of {limit}: raise the limit")]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The most there may be.
        limit: u64,
    },
}
