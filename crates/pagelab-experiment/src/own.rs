//! This program started once more: as a trial's first process at its gate, or as a process beside trials.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use pagelab_host::paths;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::resolve::PAGELAB;

/// This very program, also where its file was replaced meanwhile.
pub(crate) fn pagelab() -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0(PAGELAB);
    command
}

/// `pagelab gate` in a process group of its own, so that Ctrl-C on a terminal does not reach it.
pub(crate) fn gate() -> Command {
    let mut command = pagelab();
    command.process_group(0).arg("gate");
    command
}

/// From now on a read of it does not wait.
pub(crate) fn do_not_block(stream: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&stream)?;
    fcntl_setfl(&stream, flags | OFlags::NONBLOCK)
}
