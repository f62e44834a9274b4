//! How a call ends: a status, a message for people, and no panic.

use kvant_attention::{KvUnsupported, StateError, StateErrorKind};
use kvant_cache::{ArenaError, AttendError, CacheError, PlanError, SnapshotError};
use kvant_engine::{GenerateError, OpenError, PromptError, ResumeError, TurnError};
use kvant_model::{ForwardError, LoadError, LoadErrorKind};
use kvant_weights::PackError;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. Values keep their meaning for ever; later versions may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantStatus {
    /// All is well.
    Ok = 0,
    /// A pointer is NULL where none may be, a size does not fit, a name is unknown.
    InvalidArgument = 1,
    /// The system refused to read or write a file.
    Io = 2,
    /// A file is not what it should be, or of a kind that kvant does not read.
    BadFile = 3,
    /// What was asked for cannot be had with this model or cache.
    Unsupported = 4,
    /// Memory, or the part of it that was allowed, is full.
    OutOfMemory = 5,
    /// The context is full.
    ContextFull = 6,
    /// A number is NaN, infinite or too large to be stored.
    BadNumber = 7,
    /// Another thread, a pass or a callback is using the handle.
    Busy = 8,
    /// The buffer is too small; the count says how large it has to be.
    BufferTooSmall = 9,
    /// A saved session or sequence belongs to another model or cache.
    Mismatch = 10,
    /// kvant has a bug. The handle can be freed, and nothing else.
    Internal = 11,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: KvantStatus,
    pub message: String,
}

impl Failure {
    pub fn new(status: KvantStatus, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// An argument that cannot be used.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(KvantStatus::InvalidArgument, message)
    }

    /// The same with what it is about before it.
    pub fn of(self, what: impl std::fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// What the last call on this thread that failed has to say: what was wrong, where, and what to do. Empty before the first.
///
/// The text is the library's, in UTF-8, and stays until the next call on this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn kvant_error_message() -> *const c_char {
    // A thread that is ending has no message any more.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs a call: its failure or panic becomes a status, and its message is kept for this thread.
///
/// **Invariant:** every function of the library that can fail or panic goes through here, so no panic reaches the caller.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> KvantStatus {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return KvantStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Failure::new(KvantStatus::Internal, format!("kvant has a bug: {said}; please report it"))
        }
    };
    let bytes = failure.message.into_bytes().into_iter().filter(|byte| *byte != 0).collect::<Vec<u8>>();
    let _ = MESSAGE.try_with(|message| message.replace(CString::new(bytes).unwrap_or_default()));
    failure.status
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        let is_system = std::error::Error::source(&error).is_some_and(|source| source.is::<std::io::Error>());
        let status = match is_system || error.kind() == LoadErrorKind::Io {
            true => KvantStatus::Io,
            false => KvantStatus::BadFile,
        };
        Self::new(status, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let status = match error {
            OpenError::Load(error) => return error.into(),
            OpenError::Plan(_) => KvantStatus::BadFile,
            OpenError::ExceedsCap { .. } | OpenError::DoesNotFit(_) => KvantStatus::OutOfMemory,
            _ => KvantStatus::Unsupported,
        };
        Self::new(status, error.to_string())
    }
}

impl From<KvUnsupported> for Failure {
    fn from(error: KvUnsupported) -> Self {
        Self::new(KvantStatus::Unsupported, error.to_string())
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Self::new(KvantStatus::BadFile, error.to_string())
    }
}

impl From<PromptError> for Failure {
    fn from(error: PromptError) -> Self {
        let status = match error {
            PromptError::NoTemplate | PromptError::Encoder => KvantStatus::Unsupported,
            _ => KvantStatus::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TurnError> for Failure {
    fn from(error: TurnError) -> Self {
        match error {
            TurnError::Prompt(error) => error.into(),
            error => Self::argument(error.to_string()),
        }
    }
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        let status = match error {
            GenerateError::PromptTooLong { .. } => KvantStatus::ContextFull,
            GenerateError::Forward(ForwardError::State(error)) => return error.into(),
            GenerateError::Forward(ForwardError::BeyondPositions { .. }) => KvantStatus::ContextFull,
            _ => KvantStatus::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        let status = match &error.kind {
            StateErrorKind::Full(_) => KvantStatus::ContextFull,
            StateErrorKind::Cache(CacheError::Memory(_)) => KvantStatus::OutOfMemory,
            StateErrorKind::Cache(
                CacheError::Number { .. } | CacheError::Row { .. } | CacheError::Codec { .. },
            ) => KvantStatus::BadNumber,
            StateErrorKind::Attend(AttendError::Codec(_)) => KvantStatus::BadNumber,
            _ => KvantStatus::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ArenaError> for Failure {
    fn from(error: ArenaError) -> Self {
        Self::new(KvantStatus::OutOfMemory, error.to_string())
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Self {
        let status = match error {
            SnapshotError::Io { .. } => KvantStatus::Io,
            SnapshotError::Signature { .. } | SnapshotError::Layout { .. } => KvantStatus::Mismatch,
            SnapshotError::Memory(_) => KvantStatus::OutOfMemory,
            SnapshotError::Unsaved { .. } => KvantStatus::InvalidArgument,
            _ => KvantStatus::BadFile,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ResumeError> for Failure {
    fn from(error: ResumeError) -> Self {
        match error {
            ResumeError::Snapshot(error) => error.into(),
            error => Self::new(KvantStatus::ContextFull, error.to_string()),
        }
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Self {
        let status = match error {
            PackError::Memory { .. } => KvantStatus::OutOfMemory,
            _ => KvantStatus::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: the library's own text, of this thread.
        unsafe { CStr::from_ptr(kvant_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn panics_and_failures_become_a_status_and_a_message() {
        assert_eq!(message(), "");
        assert_eq!(guard(|| Err(Failure::argument("a\0b"))), KvantStatus::InvalidArgument);
        assert_eq!(message(), "ab");
        assert_eq!(guard(|| Ok(())), KvantStatus::Ok);
        assert_eq!(message(), "ab", "success leaves it");
        let index = std::hint::black_box(3);
        assert_eq!(
            guard(|| [(); 2].get(index).map(drop).map_or_else(|| panic!("at {index}"), Ok)),
            KvantStatus::Internal
        );
        assert!(message().contains("at 3"), "{}", message());
        std::thread::spawn(|| assert_eq!(message(), "", "every thread has its own")).join().unwrap();
    }
}
