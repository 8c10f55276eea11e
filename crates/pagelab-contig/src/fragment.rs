//! Fragmenting memory on purpose, to a target of F_u, safely and fast.
//!
//! Huge pages are taken a few at a time, a page of each is kept, the rest is given back, and what is kept is
//! split off, so that at no moment much more than the kept pages is held. [`facts`] says what this machine
//! allows, [`spoiler`] holds the memory, [`watch`] sees to everybody else, [`reach`] goes to the target and
//! [`frames`] verifies where the kept pages lie.

pub mod facts;
pub mod frames;
pub mod reach;
pub mod spoiler;
pub mod watch;

use std::fmt;

/// Why memory cannot be fragmented as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Whose fault it is.
    pub kind: ErrorKind,
    message: String,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was asked for does not fit this machine.
    Usage,
    /// This machine does not have what it takes, or does not permit it.
    NotAvailable,
    /// The machine refused in the middle.
    Refused,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
