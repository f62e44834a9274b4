//! Why a plan cannot be used.

use crate::snapshot::SnapshotError;
use std::io;

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The system refused to read.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused to write.
    #[error(transparent)]
    Write(#[from] SnapshotError),
    /// Something else than a plan.
    #[error("is not a .kvplan file")]
    Foreign,
    /// A version that this program does not know.
    #[error("has format version {found}, and this program reads version {}; calibrate again", super::VERSION)]
    Version {
        /// Its version.
        found: u32,
    },
    /// Another length than the file says it has.
    #[error("has {got} bytes where it should have {want}: it was cut off or added to; calibrate again")]
    Length {
        /// Bytes there are.
        got: u64,
        /// Bytes there should be.
        want: u64,
    },
    /// Bytes that are not those that were written.
    #[error("is damaged: it does not match its checksum; calibrate again")]
    Damaged,
    /// Contents that no writer of ours has written.
    #[error("corrupt plan: {what}; calibrate again")]
    Absurd {
        /// Which.
        what: String,
    },
    /// A plan for another model.
    #[error("was made for another model ({made}); calibrate this one with `kvant calibrate`")]
    Model {
        /// How it was made.
        made: String,
    },
}

impl PlanError {
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> PlanError {
        move |source| PlanError::Io { doing, source }
    }

    pub(super) fn absurd(what: impl Into<String>) -> PlanError {
        PlanError::Absurd { what: what.into() }
    }
}
