//! The program of a command line.

use std::ffi::OsStr;
use std::path::PathBuf;

use pagelab_command::exit::Failure;
use pagelab_command::output;

/// Finds the executable of a command line, before any work is done for it.
pub fn resolve_program(name: &OsStr) -> Result<PathBuf, Failure> {
    pagelab_target::program::find_program(name).map_err(output::exit_if_stopped)
}
