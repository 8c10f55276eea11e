//! Failures of opening another process.

use pagelab_model::Failure;
use rustix::io::Errno;

/// A process that cannot be opened: it does not exist, or the kernel refuses. `verb` is the operation.
pub fn cannot_open_process(verb: &str, pid: u32, errno: Errno) -> Failure {
    match errno {
        Errno::SRCH | Errno::NOENT => no_such_process(verb, pid),
        _ => Failure::not_available(format!("cannot {verb} process {pid}: {errno}")),
    }
}

/// A process that does not exist; `verb` is the intended operation.
pub fn no_such_process(verb: &str, pid: u32) -> Failure {
    Failure::bad_input(format!(
        "cannot {verb} process {pid}: no such process; hint: list processes with `ps -e`"
    ))
}
