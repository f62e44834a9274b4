//! Ctrl-C: asks whatever is generating to stop. Asked twice without an answer, the program ends.

use crate::failure::Failure;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C (and a request to terminate) only sets a flag.
pub fn catch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))
}

/// True if it was pressed since the last [`clear`].
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Forgets that it was pressed.
pub fn clear() {
    REQUESTED.store(false, Ordering::Relaxed);
}
