//! Why nothing was fetched.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// What kind of thing stood in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program, a package or a network that is not there.
    NotAvailable,
    /// The machine refused: a full disk, a failed call.
    Refused,
    /// A signal of this number asked to stop.
    Stopped(i32),
}

/// A whole sentence: what was wanted, what stood in the way, and the way out where there is one.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    cause: Option<io::Error>,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), cause: None }
    }

    /// Something that is not there.
    pub fn not_available(message: impl Into<String>) -> Error {
        Error::new(Kind::NotAvailable, message)
    }

    /// A call that the machine refused.
    pub fn refused(what: impl Into<String>, cause: impl Into<io::Error>) -> Error {
        Error { kind: Kind::Refused, message: what.into(), cause: Some(cause.into()) }
    }

    /// The end by a signal.
    pub fn stopped(signal: i32) -> Error {
        Error::new(Kind::Stopped(signal), "stopped; nothing is left of it")
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
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
