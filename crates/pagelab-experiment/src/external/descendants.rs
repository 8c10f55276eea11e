//! Ending what a run has started: everything, also what was left by a parent that has ended, comes to us and
//! is killed and waited for.

use std::fs;

use pagelab_host::paths;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// Orphans come to this process from now on.
pub(super) fn come_to_us() {
    // Before 3.4 they go to PID 1, and only children are ended.
    let _ = set_child_subreaper(Some(getpid()));
}

/// The children of this thread. Empty where the kernel does not list them.
pub(super) fn children() -> Vec<Pid> {
    let listed = fs::read_to_string(paths::OWN_CHILDREN).unwrap_or_default();
    listed.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

/// Those that still run; ones that have ended are waited for on the way.
pub(super) fn running() -> usize {
    children().into_iter().filter(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None))).count()
}

/// Kills all, level by level: the children of a killed one come to us.
pub(super) fn end_all() {
    loop {
        let children = children();
        if children.is_empty() {
            return;
        }
        for pid in children {
            let _ = kill_process(pid, Signal::KILL);
            if waitpid(Some(pid), WaitOptions::empty()).is_err() {
                return;
            }
        }
    }
}
