//! How a command fails: one line on stderr and an exit code.

use crate::interrupt;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// What ended a command early.
#[derive(Debug)]
pub enum Failure {
    /// Something is wrong, and this says what, where and what to do.
    Message(String),
    /// The command line asks for something that cannot be.
    Usage(String),
    /// Whoever read our output has closed it: not an error.
    OutputClosed,
    /// The user pressed Ctrl-C, or the program was asked to terminate.
    Interrupted,
}

impl Failure {
    /// A failure with a message.
    pub fn new(message: impl Display) -> Self {
        Self::Message(message.to_string())
    }

    /// Says it on stderr and returns the exit code: 1 for errors, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Message(message) => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
            Self::Usage(message) => {
                eprintln!("error: {message}");
                ExitCode::from(2)
            }
            Self::OutputClosed => ExitCode::SUCCESS,
            Self::Interrupted if interrupt::terminated() => ExitCode::from(interrupt::TERMINATED_CODE),
            Self::Interrupted => ExitCode::from(interrupt::INTERRUPTED),
        }
    }
}

/// Every library error becomes its message.
impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let io = (&error as &(dyn Error + 'static)).downcast_ref::<io::Error>();
        if io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return Self::OutputClosed;
        }
        Self::new(error)
    }
}
