//! Failures of another program: exit codes of the errors of [`pagelab_target`].

use std::ffi::OsStr;
use std::path::PathBuf;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::output;
use pagelab_target::error::{Error, ErrorKind};

/// Returns the kind of failure for an error of a target program.
pub fn kind_of_target_error(kind: ErrorKind) -> FailureKind {
    match kind {
        ErrorKind::NotAvailable => FailureKind::NotAvailable,
        ErrorKind::BadInput | ErrorKind::CannotStart => FailureKind::BadInput,
        ErrorKind::Refused | ErrorKind::Stopped(_) => FailureKind::Partial,
    }
}

/// Converts an error of a target program to a failure. After a signal it ends this process.
pub fn failure_from_target_error(error: Error) -> Failure {
    if let ErrorKind::Stopped(signal) = error.kind() {
        output::exit_with_stopped(error, signal)
    }
    Failure::new(kind_of_target_error(error.kind()), error.to_string())
}

/// Finds the executable of a command line, before any work is done for it.
pub fn resolve_program(name: &OsStr) -> Result<PathBuf, Failure> {
    pagelab_target::program::find_program(name).map_err(failure_from_target_error)
}
