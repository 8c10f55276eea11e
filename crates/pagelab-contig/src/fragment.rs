//! Deliberate fragmentation of memory to a target F_u.
//!
//! Huge pages are allocated a few at a time; one page of each is kept and split off, and the rest is freed,
//! so that at no moment much more than the kept pages is held. [`inputs`] has the limits of this machine,
//! [`fragmenter`] holds the memory, [`memory_monitor`] watches the memory of other programs, [`control_loop`]
//! reaches the target, and [`fragmenter::KeptPageCheck`] verifies the positions of the kept pages.

pub mod control_loop;
pub mod fragmenter;
pub mod inputs;
pub mod memory_monitor;

use std::fmt;

/// Reason why memory cannot be fragmented as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentError {
    /// Kind of the error.
    pub kind: FragmentErrorKind,
    message: String,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentErrorKind {
    /// The request does not fit this machine.
    Usage,
    /// The machine lacks the required memory or permission.
    NotAvailable,
    /// The kernel rejected an operation during the run.
    Refused,
}

impl FragmentError {
    pub(crate) fn new(kind: FragmentErrorKind, message: impl Into<String>) -> FragmentError {
        FragmentError { kind, message: message.into() }
    }
}

impl fmt::Display for FragmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FragmentError {}
