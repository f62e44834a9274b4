//! Work without the GIL. Python's signals and callbacks reach it between two of its steps; a panic becomes an exception.

use crate::error::failed;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long Ctrl-C may wait.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Runs `work` while other threads of Python run.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    // What a panic leaves half done is dropped with the work, or is behind a lock whose contents are whole between statements.
    let outcome = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    outcome.unwrap_or_else(|panic| Err(exception(panic)))
}

/// An exception on its way through code that knows no way to stop.
struct Stopped(PyErr);

/// The exception that ends work which panicked, or was stopped.
fn exception(panic: Box<dyn Any + Send>) -> PyErr {
    let panic = match panic.downcast::<Stopped>() {
        Ok(stopped) => return stopped.0,
        Err(panic) => panic,
    };
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    failed(format!("internal error, please report it: {said}"))
}

/// Who is told of progress.
pub struct Progress(Option<Py<PyAny>>);

impl Progress {
    /// A callable that takes what is done and what there is, or none.
    pub fn new(callback: Option<Py<PyAny>>) -> Self {
        Self(callback)
    }

    /// Tells it; an exception it raises, and Ctrl-C, are the error.
    pub fn tell(&self, done: u64, total: u64) -> PyResult<()> {
        Python::attach(|py| {
            py.check_signals()?;
            match &self.0 {
                Some(callback) => callback.call1(py, (done, total)).map(drop),
                None => Ok(()),
            }
        })
    }

    /// The same inside work that cannot be told to stop: it is left by unwinding, up to [`detached`]. No message is printed.
    pub fn tell_or_leave(&self, done: u64, total: u64) {
        if let Err(error) = self.tell(done, total) {
            resume_unwind(Box::new(Stopped(error)));
        }
    }
}

/// The next of what comes from another thread, or none when that is gone. Ctrl-C ends the wait.
pub fn receive<T: Send>(py: Python<'_>, from: &Mutex<Receiver<T>>) -> PyResult<Option<T>> {
    loop {
        match py.detach(|| lock(from).recv_timeout(TIMEOUT)) {
            Ok(event) => return Ok(Some(event)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
    }
}

/// What a lock keeps. Nothing here is left half changed by a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
