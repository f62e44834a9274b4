//! Sessions: sequences of a model that grow.

use crate::engine::{KvantEngine, Model};
use crate::memory::{borrow, fill, handle, list, optional, release, text};
use crate::status::{Failure, KvantStatus, guard};
use kvant_engine::{Session, Snapshot};
use std::ffi::c_char;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// A session. One thread at a time may use it, and another one gets KVANT_STATUS_BUSY; only kvant_session_cancel may be called at
/// any time.
pub struct KvantSession {
    pub(crate) model: Arc<Model>,
    session: Mutex<Session>,
    cancelled: AtomicBool,
}

impl KvantSession {
    fn new(model: &Arc<Model>, session: Session) -> Self {
        let (model, session) = (Arc::clone(model), Mutex::new(session));
        Self { model, session, cancelled: AtomicBool::new(false) }
    }

    /// The session, if nobody else is using it.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Session>, Failure> {
        self.session.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Failure::new(
                KvantStatus::Busy,
                "another thread, or the caller of this callback, is using the session",
            ),
            TryLockError::Poisoned(_) => {
                Failure::new(KvantStatus::Internal, "a bug of kvant has left the session in pieces: free it")
            }
        })
    }

    /// Whether it was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// What was cancelled is over.
    pub(crate) fn forget_cancelling(&self) {
        self.cancelled.store(false, Ordering::Release);
    }
}

/// Makes an empty session.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_new(
    engine: *const KvantEngine,
    session: *mut *mut KvantSession,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (session, model) = unsafe { (handle(session, "session")?, &borrow(engine, "engine")?.0) };
        session.give(KvantSession::new(model, model.opened.session()?));
        Ok(())
    })
}

/// Makes another session that holds the same. Pages are shared, and only the newest tokens are copied.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_fork(
    session: *const KvantSession,
    fork: *mut *mut KvantSession,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (fork, session) = unsafe { (handle(fork, "fork")?, borrow(session, "session")?) };
        let copy = session.lock()?.fork()?;
        fork.give(KvantSession::new(&session.model, copy));
        Ok(())
    })
}

/// Stops the generation that is under way, or else the next one: it ends with KVANT_FINISH_CANCELLED after the token, or the part of
/// the prompt, that is being read. Any thread may call this at any time while the session lives. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_cancel(session: *const KvantSession) {
    // SAFETY: the caller's contract.
    if let Ok(session) = unsafe { borrow(session, "session") } {
        session.cancelled.store(true, Ordering::Release);
    }
}

/// Brings the session to hold exactly these tokens: what it holds of them from the beginning is not read again. `logits` gets
/// the logits after the last one, `length` their number (either may be NULL). They are the session's, until the next call that
/// takes it.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_prefill(
    session: *const KvantSession,
    tokens: *const u32,
    count: usize,
    logits: *mut *const f32,
    length: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (session, tokens) = unsafe { (borrow(session, "session")?, list(tokens, count, "tokens")?) };
        let mut session = session.lock()?;
        // SAFETY: the caller's contract.
        unsafe { show(session.prefill(tokens)?, logits, length) }
    })
}

/// Reads one more token. `logits` and `length` as in kvant_session_prefill.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_step(
    session: *const KvantSession,
    token: u32,
    logits: *mut *const f32,
    length: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let mut session = unsafe { borrow(session, "session") }?.lock()?;
        // SAFETY: the caller's contract.
        unsafe { show(session.step(token)?, logits, length) }
    })
}

/// Lends logits.
///
/// # Safety
/// Both are NULL, or can be written.
unsafe fn show(found: &[f32], logits: *mut *const f32, length: *mut usize) -> Result<(), Failure> {
    // SAFETY: the caller's contract.
    let (logits, length) = unsafe { (optional(logits, "logits")?, optional(length, "length")?) };
    logits.set(found.as_ptr());
    length.set(found.len());
    Ok(())
}

/// Goes back to at most `length` tokens. `left` (which may be NULL) gets how many are left: fewer where the cut lies inside a page
/// that is encoded already, and those from there on have to be read again.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_rollback(
    session: *const KvantSession,
    length: usize,
    left: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let mut session = unsafe { borrow(session, "session") }?.lock()?;
        // SAFETY: the caller's contract.
        let left = unsafe { optional(left, "left") }?;
        let now = session.rollback(length);
        left.set(now);
        Ok(())
    })
}

/// Tells which tokens a session holds, as kvant_engine_tokenize tells them.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_tokens(
    session: *const KvantSession,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let session = unsafe { borrow(session, "session") }?.lock()?;
        // SAFETY: the caller's contract.
        unsafe { fill(session.tokens(), (tokens, capacity), count, "tokens") }
    })
}

/// Tells how many tokens a session holds, and how many bytes their keys and values take. Either may be NULL.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_size(
    session: *const KvantSession,
    tokens: *mut usize,
    bytes: *mut u64,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let session = unsafe { borrow(session, "session") }?.lock()?;
        // SAFETY: the caller's contract.
        let (tokens, bytes) = unsafe { (optional(tokens, "tokens")?, optional(bytes, "bytes")?) };
        tokens.set(session.tokens().len());
        bytes.set(session.kv().bytes());
        Ok(())
    })
}

/// Saves what a session holds in a file, which is replaced as a whole or not at all. It holds what was said.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_save(
    session: *const KvantSession,
    path: *const c_char,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (session, path) = unsafe { (borrow(session, "session")?, text(path, "path")?) };
        let signature = session.model.opened.signature()?;
        let saved = session.lock()?.save(Path::new(path), signature, b"");
        saved.map(drop).map_err(|e| Failure::from(e).of(path))
    })
}

/// Goes on where a saved session was left: what it held is held again, and nothing needs to be read. It has to be of the same
/// model, cache and weights. `other_rounding` (which may be NULL) gets 1 if it was computed by another version or instruction
/// set, so that answers may differ in a last bit, else 0. On failure nothing has changed.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_resume(
    session: *const KvantSession,
    path: *const c_char,
    other_rounding: *mut i32,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (session, path) = unsafe { (borrow(session, "session")?, text(path, "path")?) };
        // SAFETY: the caller's contract.
        let other_rounding = unsafe { optional(other_rounding, "other_rounding") }?;
        let signature = session.model.opened.signature()?;
        let mut session = session.lock()?;
        let saved = Snapshot::open(Path::new(path)).map_err(|e| Failure::from(e).of(path))?;
        session.resume(&saved, &signature).map_err(|e| Failure::from(e).of(path))?;
        other_rounding.set(i32::from(session.has_other_numerics()));
        Ok(())
    })
}

/// Frees a session. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_free(session: *mut KvantSession) {
    // SAFETY: the caller's contract.
    unsafe { release(session) }
}
