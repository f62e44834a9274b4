//! Sequences of a cache: they grow by passes, fork, go back, and live in files.

use crate::cache::{KvantCache, Shared};
use crate::memory::{borrow, handle, optional, release, text};
use crate::status::{Failure, KvantStatus, guard};
use kvant_attention::KvCache;
use kvant_cache::Snapshot;
use kvant_cache::snapshot::Record;
use std::ffi::c_char;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// A sequence of a cache. One thread at a time may use it; another one, or a use while it is in a pass, gets KVANT_STATUS_BUSY.
pub struct KvantSequence(pub(crate) Arc<Held>);

/// What a sequence holds.
pub(crate) struct Held {
    pub shared: Arc<Shared>,
    kv: Mutex<KvCache>,
    /// Between the beginning of a pass and its end.
    in_pass: AtomicBool,
}

impl KvantSequence {
    fn new(shared: &Arc<Shared>, kv: KvCache) -> Self {
        let shared = Arc::clone(shared);
        Self(Arc::new(Held { shared, kv: Mutex::new(kv), in_pass: AtomicBool::new(false) }))
    }
}

impl Held {
    /// The sequence, between passes.
    fn lock(&self) -> Result<MutexGuard<'_, KvCache>, Failure> {
        let kv = self.lock_for_pass()?;
        if self.in_pass.load(Ordering::Acquire) {
            return Err(Failure::new(
                KvantStatus::Busy,
                "the sequence is in a pass: end or abandon that first",
            ));
        }
        Ok(kv)
    }

    /// The sequence, by the pass that it is in.
    pub fn lock_for_pass(&self) -> Result<MutexGuard<'_, KvCache>, Failure> {
        self.kv.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                Failure::new(KvantStatus::Busy, "another thread is using the sequence")
            }
            TryLockError::Poisoned(_) => {
                Failure::new(KvantStatus::Internal, "a bug of kvant has left the sequence in pieces: free it")
            }
        })
    }

    /// Puts it into a pass; false if it is in one.
    pub fn enter_pass(&self) -> bool {
        !self.in_pass.swap(true, Ordering::AcqRel)
    }

    pub fn leave_pass(&self) {
        self.in_pass.store(false, Ordering::Release);
    }
}

/// Makes an empty sequence.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_new(
    cache: *const KvantCache,
    sequence: *mut *mut KvantSequence,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (sequence, cache) = unsafe { (handle(sequence, "sequence")?, borrow(cache, "cache")?) };
        let shared = &cache.0;
        sequence.give(KvantSequence::new(shared, shared.over(shared.sequence())));
        Ok(())
    })
}

/// Makes another sequence that holds the same. Pages are shared, and only the newest tokens are copied.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_fork(
    sequence: *const KvantSequence,
    fork: *mut *mut KvantSequence,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (fork, held) = unsafe { (handle(fork, "fork")?, &borrow(sequence, "sequence")?.0) };
        let copy = held.lock()?.sequence().fork()?;
        fork.give(KvantSequence::new(&held.shared, held.shared.over(copy)));
        Ok(())
    })
}

/// Goes back to at most `length` tokens. `left` (which may be NULL) gets how many are left: fewer where the cut lies inside a
/// page that is encoded already, and those from there on have to be appended again.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_rollback(
    sequence: *const KvantSequence,
    length: usize,
    left: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let held = unsafe { &borrow(sequence, "sequence")?.0 };
        let mut kv = held.lock()?;
        let now = if length < kv.len() { kv.truncate(length) } else { kv.len() };
        // SAFETY: the caller's contract.
        unsafe { optional(left, "left") }?.set(now);
        Ok(())
    })
}

/// Tells how many tokens a sequence holds, and how many bytes they take. Either may be NULL.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_size(
    sequence: *const KvantSequence,
    tokens: *mut usize,
    bytes: *mut u64,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let held = unsafe { &borrow(sequence, "sequence")?.0 };
        let kv = held.lock()?;
        // SAFETY: the caller's contract.
        let (tokens, bytes) = unsafe { (optional(tokens, "tokens")?, optional(bytes, "bytes")?) };
        tokens.set(kv.len());
        bytes.set(kv.bytes());
        Ok(())
    })
}

/// Saves a sequence in a file, which is replaced as a whole or not at all. `model` is any text that names what the keys and
/// values were computed with: it has to be the same when the file is loaded.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_save(
    sequence: *const KvantSequence,
    path: *const c_char,
    model: *const c_char,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (held, path, model) =
            unsafe { (&borrow(sequence, "sequence")?.0, text(path, "path")?, text(model, "model")?) };
        let kv = held.lock()?;
        let policy = kv.policy().to_string();
        let record = Record {
            signature: held.shared.signature(model),
            numerics: kvant_engine::numerics(),
            policy: &policy,
            // Which tokens they were is the caller's to know.
            tokens: &vec![0; kv.len()],
            note: b"",
        };
        kv.sequence().save(Path::new(path), &record).map(drop).map_err(|e| Failure::from(e).of(path))
    })
}

/// Makes a sequence of what was saved. Its pages stay in the file, which is mapped: replace such a file, never write into it.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_load(
    cache: *const KvantCache,
    path: *const c_char,
    model: *const c_char,
    sequence: *mut *mut KvantSequence,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let sequence = unsafe { handle(sequence, "sequence") }?;
        // SAFETY: the caller's contract.
        let (shared, path, model) =
            unsafe { (&borrow(cache, "cache")?.0, text(path, "path")?, text(model, "model")?) };
        let empty = shared.empty.sequence();
        let loaded = Snapshot::open(Path::new(path)).and_then(|saved| {
            saved.sequence(&shared.signature(model), Arc::clone(empty.layout()), empty.store().clone())
        });
        let loaded = loaded.map_err(|e| Failure::from(e).of(path))?;
        let (tokens, capacity) = (loaded.len(), shared.empty.capacity());
        if tokens > capacity {
            let message = format!(
                "{path}: holds {tokens} tokens, and a sequence of this cache holds {capacity} at most"
            );
            return Err(Failure::new(KvantStatus::ContextFull, message));
        }
        sequence.give(KvantSequence::new(shared, shared.over(loaded)));
        Ok(())
    })
}

/// Frees a sequence. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_sequence_free(sequence: *mut KvantSequence) {
    // SAFETY: the caller's contract.
    unsafe { release(sequence) }
}
