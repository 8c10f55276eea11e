//! The error of the guard: what was wanted, what stood in the way, the way out.

use std::fmt;
use std::io;

/// Why the guard did not do what it was asked for. In every case the setting is as it was found, or
/// the message says what it is now.
#[derive(Debug)]
pub struct GuardError {
    kind: ErrorKind,
    message: String,
    cause: Option<io::Error>,
}

/// The kinds of errors, as far as an exit code tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller asked for something that is no setting, or for a value that the setting cannot have.
    Usage,
    /// A journal cannot be understood.
    BadInput,
    /// Not available or not permitted here: no place for a journal, no such file in this kernel.
    NotAvailable,
    /// The machine refused, or did something else than it was told.
    Refused,
    /// Another process holds the setting.
    Held,
    /// This process is restoring after a signal and changes nothing any more.
    Stopping,
}

impl ErrorKind {
    /// The kind of a failed operation on a setting.
    pub(super) fn of(error: &io::Error) -> ErrorKind {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::NotAvailable
            }
            _ => ErrorKind::Refused,
        }
    }
}

impl GuardError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> GuardError {
        GuardError { kind, message: message.into(), cause: None }
    }

    pub(super) fn because(mut self, cause: impl Into<io::Error>) -> GuardError {
        self.cause = Some(cause.into());
        self
    }

    /// An operation on a file that failed; a file that is absent or forbidden counts as not available.
    pub(super) fn io(what: impl Into<String>, cause: impl Into<io::Error>) -> GuardError {
        let cause = cause.into();
        GuardError::new(ErrorKind::of(&cause), what).because(cause)
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

// The cause is part of the text, so `source` does not repeat it: the binary prints the chain.
impl std::error::Error for GuardError {}
