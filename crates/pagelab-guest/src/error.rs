//! Why no guest was started, or why it was ended before its job was done by something on the host.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// What kind of thing stood in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for makes no sense.
    Usage,
    /// A file that was named is not there, or is not what was wanted.
    Input,
    /// A program, a kernel or memory that is not there.
    NotAvailable,
    /// The machine refused: a full disk, a failed call.
    Refused,
    /// Our own output could not be written.
    Output,
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

    /// A call that the machine refused.
    pub fn refused(what: impl Into<String>, cause: impl Into<io::Error>) -> Error {
        Error { kind: Kind::Refused, message: what.into(), cause: Some(cause.into()) }
    }

    /// An error of writing what the guest said.
    pub fn output(cause: io::Error) -> Error {
        Error { kind: Kind::Output, message: "cannot write the output".to_owned(), cause: Some(cause) }
    }

    /// The end by a signal.
    pub fn stopped(signal: i32) -> Error {
        Error::new(Kind::Stopped(signal), "stopped; nothing is left of it")
    }

    /// The system's own error behind it.
    pub fn into_cause(self) -> Option<io::Error> {
        self.cause
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl From<pagelab_packages::error::Error> for Error {
    fn from(error: pagelab_packages::error::Error) -> Error {
        let kind = match error.kind() {
            pagelab_packages::error::Kind::NotAvailable => Kind::NotAvailable,
            pagelab_packages::error::Kind::Refused => Kind::Refused,
            pagelab_packages::error::Kind::Stopped(signal) => Kind::Stopped(signal),
        };
        Error { kind, message: error.to_string(), cause: error.into_cause() }
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
