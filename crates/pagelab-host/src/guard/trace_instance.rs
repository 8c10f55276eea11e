//! A trace instance of pagelab's own: a buffer of ftrace's beside the kernel's, made and removed as a folder.
//!
//! It holds memory, and its events cost everybody time, as long as it is there. Whoever records into it has
//! its buffer freed by the kernel when he dies (`tracepoints/ftrace.rs`); what is left is removed here.

use std::io;
use std::thread;
use std::time::Duration;

use super::error::{ErrorKind, GuardError};
use super::journal::{Act, Entry};
use super::kernel::Kernel;
use super::undo::{Undone, not_ours, removed};
use super::{Guard, created};
use crate::paths;

/// Every instance of pagelab begins so; no other is ever removed.
const PREFIX: &str = "pagelab-";
/// A file of it that is still open keeps it: those of a killed process are closed one after another.
const TRIES: usize = 25;
const PAUSE: Duration = Duration::from_millis(10);

/// A trace instance that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceInstance {
    /// Its name among the instances.
    pub name: String,
}

impl Guard {
    /// Makes a trace instance, in which nothing is recorded yet. It is removed when the guard ends; all of
    /// its files must be closed by then. What killed pagelabs had left is removed first.
    pub fn trace_instance(&self) -> Result<TraceInstance, GuardError> {
        let kernel = self.site.kernel.as_ref();
        let name = format!("{PREFIX}{}", self.unique());
        let path = format!("{}/{name}", paths::TRACE_INSTANCES);
        let (mut ledger, locked) = self.claim(&path, "trace instance")?;
        if kernel.inode(&path).is_ok() {
            let message = format!("{path} is there already; one guard has one trace instance");
            return Err(GuardError::new(ErrorKind::Usage, message));
        }
        let at = self.announce(&mut ledger, locked, Act::TraceInstance { path: path.clone() })?;
        self.make_dir(&mut ledger, at, &path)?;
        Ok(TraceInstance { name })
    }
}

/// Whether a path may be a trace instance that pagelab made.
pub(super) fn is_ours(path: &str) -> bool {
    let name = path.strip_prefix(paths::TRACE_INSTANCES).and_then(|rest| rest.strip_prefix('/'));
    created::is_plain(path) && name.is_some_and(|name| name.starts_with(PREFIX) && !name.contains('/'))
}

/// Takes the instance away, with its buffer and whatever is recorded into it.
pub(super) fn undo(kernel: &dyn Kernel, entry: &Entry, path: &str) -> Undone {
    if let Some(fate) = not_ours(kernel.inode(path), entry, "another trace instance has its name now")? {
        return Ok(fate);
    }
    let mut tries = 0;
    loop {
        match kernel.remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < TRIES => tries += 1,
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let text = "a program has one of its files open: end it, then run pagelab restore";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => break,
        }
        thread::sleep(PAUSE);
    }
    removed(kernel.inode(path))
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn only_our_instances_are_ours() {
        for path in [
            "/sys/kernel/tracing/instances/other",
            "/sys/kernel/tracing/instances/pagelab-1/../other",
            "/sys/kernel/tracing/instances/pagelab-1/events",
            "/sys/kernel/tracing/pagelab-1",
            "/sys/kernel/tracing/instances",
        ] {
            assert!(!is_ours(path), "{path}");
        }
        assert!(is_ours("/sys/kernel/tracing/instances/pagelab-1-2-0"));
    }
}
