//! Who gets a CPU first.

use rustix::process::{getpriority_process, setpriority_process};

/// The nice value of sweeps, and of who makes calls in a program's name.
const SOONER: i32 = -10;

/// This thread gets a CPU before others, if it may: a sweep that waits for one finds all pages accessed, and
/// calls in a program's name wait for it several times each. The duty bounds what it takes from them. Returns
/// the priority before.
pub(crate) fn sooner() -> Option<i32> {
    let usual = getpriority_process(None).ok()?;
    setpriority_process(None, usual.min(SOONER)).ok().map(|()| usual)
}
