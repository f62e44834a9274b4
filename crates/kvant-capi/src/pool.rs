//! Threads that compute.

use crate::memory::{handle, release};
use crate::status::{KvantStatus, guard};
use kvant_threads::Pool;

/// Threads that compute, for caches and products. Any thread may use it at any time: who finds it at work computes alone.
pub struct KvantPool(pub(crate) Pool);

/// Makes a pool of so many threads, the calling one included; 0 for as many as there are processors. They are started when
/// they are first needed.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pool_new(threads: usize, pool: *mut *mut KvantPool) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let pool = unsafe { handle(pool, "pool") }?;
        pool.give(KvantPool(if threads == 0 { Pool::default() } else { Pool::new(threads) }));
        Ok(())
    })
}

/// Frees a pool. What was made with it keeps its threads until it is freed too. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_pool_free(pool: *mut KvantPool) {
    // SAFETY: the caller's contract.
    unsafe { release(pool) }
}
