//! Error of an operation on another program.

use std::fmt;

use rustix::io::Errno;

/// Reason, in one sentence with a hint.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// Kind of an error; it determines the exit code.
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
    /// A signal of this number stopped pagelab.
    Stopped(i32),
}

impl Error {
    /// Error with its complete message: operation, reason and hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// What the kernel, the user's rights or this machine do not have.
    pub fn not_available(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotAvailable, message)
    }

    /// Bad input: a plan, a file, a process id.
    pub fn bad_input(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::BadInput, message)
    }

    /// What the machine refused, or did in part only.
    pub fn refused(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Refused, message)
    }

    /// A program that could not be started.
    pub fn cannot_start(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::CannotStart, message)
    }

    /// A process that cannot be opened: it does not exist, or the kernel refuses. `verb` is the operation.
    pub(crate) fn cannot_open_process(verb: &str, pid: u32, errno: Errno) -> Error {
        match errno {
            Errno::SRCH | Errno::NOENT => Error::no_such_process(verb, pid),
            _ => Error::not_available(format!("cannot {verb} process {pid}: {errno}")),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A process that does not exist; `verb` is the intended operation.
    pub(crate) fn no_such_process(verb: &str, pid: u32) -> Error {
        Error::bad_input(format!(
            "cannot {verb} process {pid}: no such process; hint: list processes with `ps -e`"
        ))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
