//! Ctrl-C, and a request to terminate: both ask whatever is generating to stop. Asked twice without an answer, the program ends.

use crate::failure::Failure;
use crate::keyboard;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);
/// Somebody types a line: there is nothing to stop, and a request to terminate is obeyed at once.
static IDLE: AtomicBool = AtomicBool::new(false);

/// The exit code after Ctrl-C, as shells have it: 128 and the signal's number.
pub const INTERRUPTED: u8 = 128 + 2;
/// The same after a request to terminate.
pub const TERMINATED_CODE: u8 = 128 + 15;

/// From now on Ctrl-C and a request to terminate only set a flag.
pub fn catch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            keyboard::restore();
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
    .map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))?;
    #[cfg(unix)]
    catch_terminate()?;
    Ok(())
}

/// Tells a request to terminate from Ctrl-C: the handler above is told of both alike.
#[cfg(unix)]
fn catch_terminate() -> Result<(), Failure> {
    extern "C" fn terminate(_: libc::c_int) {
        TERMINATED.store(true, Ordering::Relaxed);
        if REQUESTED.swap(true, Ordering::Relaxed) || IDLE.load(Ordering::Relaxed) {
            keyboard::restore();
            // SAFETY: async-signal-safe, and it does not return.
            unsafe { libc::_exit(i32::from(TERMINATED_CODE)) };
        }
    }
    let handler = terminate as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler calls what is async-signal-safe alone: atomics, `tcsetattr` and `_exit`.
    match unsafe { libc::signal(libc::SIGTERM, handler) } {
        libc::SIG_ERR => Err(Failure::new("cannot watch for a request to terminate")),
        _ => Ok(()),
    }
}

/// True if it was asked for since the last [`clear`].
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// True once the program was asked to terminate.
pub fn terminated() -> bool {
    TERMINATED.load(Ordering::Relaxed)
}

/// Forgets that Ctrl-C was pressed.
pub fn clear() {
    REQUESTED.store(false, Ordering::Relaxed);
}

/// Runs what waits for a person: a request to terminate ends the program meanwhile.
pub fn idle<T>(wait: impl FnOnce() -> T) -> T {
    IDLE.store(true, Ordering::Relaxed);
    let got = wait();
    IDLE.store(false, Ordering::Relaxed);
    got
}
