//! Run files that could not be read or written, as failures of a command.

use pagelab_model::failure::{Failure, FailureKind};

use crate::{Error, ErrorKind};

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.is_write() {
            true => run_file_write_failure(&error),
            false => read_failure(&error),
        }
    }
}

/// A run file that could not be written.
pub fn run_file_write_failure(error: &Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::AlreadyExists => FailureKind::Usage,
        ErrorKind::NotFound => FailureKind::BadInput,
        ErrorKind::NotPermitted => FailureKind::NotAvailable,
        ErrorKind::NotStorable => FailureKind::Bug,
        _ => FailureKind::Partial,
    };
    Failure::new(kind, error.to_string())
}

/// The same for a command that reads one kind of run file, which `command` makes.
pub fn read_failure_for(error: &Error, command: &str) -> Failure {
    let kind = read_error_kind(error);
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotARunFile => {
            Failure::new(kind, error.problem()).hint(format!("create one with {command}"))
        }
        _ => Failure::new(kind, error.to_string()),
    }
}

/// The kind of failure of a run file that cannot be read.
pub fn read_error_kind(error: &Error) -> FailureKind {
    match error.kind() {
        ErrorKind::NotPermitted | ErrorKind::Io => FailureKind::NotAvailable,
        ErrorKind::NoSpace => FailureKind::Partial,
        _ => FailureKind::BadInput,
    }
}

/// A trace that cannot be read, and what makes one.
pub fn read_trace_failure(error: &Error) -> Failure {
    read_failure_for(error, "`pagelab trace record -o FILE`")
}

/// A run file that cannot be read.
pub fn read_failure(error: &Error) -> Failure {
    let failure = Failure::new(read_error_kind(error), error.to_string());
    match error.kind() {
        ErrorKind::NotFound => failure.hint("create one with `pagelab record` or `pagelab checkup -o FILE`"),
        _ => failure,
    }
}
