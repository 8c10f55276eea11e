//! Why something could not be done with another program.

use std::fmt;

/// Why, in one sentence with the way out.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// What kind of trouble it was; exit codes go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The kernel, the user's rights or this machine do not have it.
    NotAvailable,
    /// The input (a plan, a file, a process id) was bad.
    BadInput,
    /// The machine refused, or only part was done.
    Refused,
    /// The program could not be started.
    CannotStart,
    /// A signal of this number asked us to stop.
    Stopped(i32),
}

impl Error {
    /// An error with its whole message: what was wanted, what stood in the way, and the way out.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// What kind of trouble it was.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
