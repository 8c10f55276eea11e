//! The files that this process is writing.
//!
//! SQLite's locks are POSIX record locks, and those go when their process closes any descriptor of the file
//! (<https://www.sqlite.org/howtocorrupt.html>, section 2.2): what is written here is not opened a second
//! time but by SQLite, which knows.

use std::fs::Metadata;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::header::identity;

static WRITTEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn written() -> MutexGuard<'static, Vec<(u64, u64)>> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says for as long as it lives that this process writes a file.
pub(crate) struct Live((u64, u64));

impl Live {
    pub fn new(metadata: &Metadata) -> Live {
        written().push(identity(metadata));
        Live(identity(metadata))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut written = written();
        if let Some(at) = written.iter().position(|file| *file == self.0) {
            written.swap_remove(at);
        }
    }
}

/// Whether this process is writing the file.
pub(crate) fn is_written_here(metadata: &Metadata) -> bool {
    written().contains(&identity(metadata))
}
