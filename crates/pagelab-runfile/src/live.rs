//! The files that this process is writing.
//!
//! SQLite's locks are POSIX record locks, and those go when their process closes any descriptor of the file
//! (<https://www.sqlite.org/howtocorrupt.html>, section 2.2): what is written here is not opened a second
//! time but by SQLite, which knows.

use std::fs::{File, Metadata};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::header::identity;

static WRITTEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn written() -> MutexGuard<'static, Vec<(u64, u64)>> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says for as long as it lives that this process writes a file, and to other processes that somebody does:
/// it holds the one lock of flock(2), which SQLite does not use and which goes with the process.
///
/// It must outlive SQLite's own descriptors of the file, since closing its descriptor gives up their locks.
pub(crate) struct Live {
    file: (u64, u64),
    locked: File,
}

impl Live {
    /// An error is that of the file, or WouldBlock where another process writes it.
    pub fn new(file: File) -> io::Result<Live> {
        let identity = identity(&file.metadata()?);
        // A file system without this lock has no write-ahead log either, which is told in its place.
        if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        written().push(identity);
        Ok(Live { file: identity, locked: file })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut written = written();
        if let Some(at) = written.iter().position(|file| *file == self.file) {
            written.swap_remove(at);
        }
        // A child has all that is open here until its exec: to close the file would not end the lock.
        let _ = flock(&self.locked, FlockOperation::Unlock);
    }
}

/// Whether this process is writing the file.
pub(crate) fn is_written_here(metadata: &Metadata) -> bool {
    written().contains(&identity(metadata))
}
