//! Error of fetching packages, and of guests.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// Kind of the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is invalid.
    Usage,
    /// A named file does not exist, or is not of the expected kind.
    Input,
    /// A program, a package, a kernel, memory or the network is missing.
    NotAvailable,
    /// The machine refused: a full disk, a failed call.
    SystemRefused,
    /// Our own output could not be written.
    Output,
    /// Stopped by the signal of this number.
    Stopped(i32),
}

impl ErrorKind {
    /// Kind of an error of reading a named file.
    pub fn of_reading(error: &io::Error) -> ErrorKind {
        match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::NotAvailable,
            _ => ErrorKind::Input,
        }
    }
}

/// Complete message: operation, reason and hint.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    cause: Option<io::Error>,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), cause: None }
    }

    /// Error for a missing resource.
    pub fn not_available(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotAvailable, message)
    }

    /// A call that the machine refused.
    pub fn system_error(what: impl Into<String>, cause: impl Into<io::Error>) -> Error {
        Error { kind: ErrorKind::SystemRefused, message: what.into(), cause: Some(cause.into()) }
    }

    /// Error of writing the output of a guest.
    pub fn output_error(cause: io::Error) -> Error {
        let message = "cannot write the output".to_owned();
        Error { kind: ErrorKind::Output, message, cause: Some(cause) }
    }

    /// The end by a signal.
    pub fn stopped(signal: i32) -> Error {
        Error::new(ErrorKind::Stopped(signal), "stopped by a signal; nothing was kept")
    }

    /// What kind it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The system's own error behind it.
    pub fn into_cause(self) -> Option<io::Error> {
        self.cause
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}
