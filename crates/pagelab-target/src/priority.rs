//! CPU priority of pagelab's threads.

use rustix::process::{getpriority_process, setpriority_process};

/// The nice value of threads that sweep or inject system calls.
const RAISED_NICE: i32 = -10;

/// Raises the priority of this thread, if permitted: a sweep that waits for a CPU finds all pages accessed,
/// and an injected call waits for this thread several times. The duty limits the time taken from other
/// programs. Returns the priority before.
pub(crate) fn raise_priority() -> Option<i32> {
    let usual = getpriority_process(None).ok()?;
    setpriority_process(None, usual.min(RAISED_NICE)).ok().map(|()| usual)
}
