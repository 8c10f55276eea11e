//! Directory whose entries are complete or absent: each is created under another name, and renamed at the
//! end.
//!
//! The process that creates one holds the lock of the directory until it exits; the next one removes what a
//! killed process left.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pagelab_model::{Failure, FailureKind};
use rustix::fs::{FlockOperation, flock};

use crate::apt::FetchObserver;

const PARTIAL_PREFIX: &str = ".partial-";

/// The folder.
#[derive(Clone, Debug)]
pub struct DirectoryStore {
    dir: PathBuf,
}

/// The right to change the store, until it is dropped or its holder dies.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

/// `pagelab` in XDG_CACHE_HOME, else `.cache/pagelab` in HOME: the folder of this user for what can be
/// fetched or made again; `None` without either.
pub fn default_cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let xdg = absolute("XDG_CACHE_HOME");
    xdg.or_else(|| absolute("HOME").map(|home| home.join(".cache"))).map(|cache| cache.join("pagelab"))
}

impl DirectoryStore {
    /// The store in this folder, which need not be there yet.
    pub fn new(dir: PathBuf) -> DirectoryStore {
        DirectoryStore { dir }
    }

    /// Directory of the entries.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits for the lock; `waiting` is called once if another process holds it. `None`: stopped by `stop`.
    pub fn lock(
        &self,
        waiting: &mut dyn FnMut(),
        stop: &mut dyn FnMut() -> bool,
    ) -> io::Result<Option<StoreLock>> {
        fs::create_dir_all(&self.dir)?;
        let file = File::options().create(true).append(true).open(self.dir.join(".lock"))?;
        let mut told = false;
        while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(errno.into());
            }
            if !std::mem::replace(&mut told, true) {
                waiting();
            }
            if stop() {
                return Ok(None);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(Some(StoreLock { _file: file }))
    }

    /// The same for a set-up that is observed; `waiting_message` is reported if another process held the
    /// lock.
    pub fn lock_observed(
        &self,
        waiting_message: &str,
        remedy: &str,
        observer: &mut dyn FetchObserver,
    ) -> Result<StoreLock, Failure> {
        let (mut signal, mut waits) = (None, false);
        let lock = self.lock(&mut || waits = true, &mut || {
            signal = observer.stop_signal();
            signal.is_some()
        });
        let locked = lock.map_err(|error| self.access_error(&error, remedy))?;
        let locked = locked.ok_or_else(|| Failure::stopped(signal.unwrap_or(0)))?;
        if waits {
            observer.report_progress(waiting_message);
        }
        Ok(locked)
    }

    /// The error for an unusable directory; `remedy` ends it.
    pub fn access_error(&self, error: &io::Error, remedy: &str) -> Failure {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => FailureKind::NotAvailable,
            _ => FailureKind::Partial,
        };
        Failure::new(kind, format!("cannot use {}: {error}; {remedy}", self.dir.display()))
    }

    /// Makes an entry: `fill` fills an empty folder and returns the entry's name.
    pub fn build_entry<E>(
        &self,
        lock: &StoreLock,
        to_error: impl Fn(io::Error) -> E,
        fill: impl FnOnce(&Path) -> Result<String, E>,
    ) -> Result<PathBuf, E> {
        let partial = self.create_partial(lock).map_err(&to_error)?;
        let made =
            fill(&partial).and_then(|name| self.commit_entry(lock, &partial, &name).map_err(&to_error));
        if made.is_err() {
            // What cannot be removed now is removed when the next entry is made.
            let _ = fs::remove_dir_all(&partial);
        }
        made
    }

    /// An empty folder to make an entry in. What others left half made is removed.
    fn create_partial(&self, _locked: &StoreLock) -> io::Result<PathBuf> {
        for entry in fs::read_dir(&self.dir)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PARTIAL_PREFIX) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let partial = self.dir.join(format!("{PARTIAL_PREFIX}{}", std::process::id()));
        fs::create_dir(&partial)?;
        Ok(partial)
    }

    /// Gives a folder that is whole its name. The old entry was incomplete, or is replaced.
    fn commit_entry(&self, _locked: &StoreLock, partial: &Path, name: &str) -> io::Result<PathBuf> {
        let place = self.dir.join(name.replace(['/', ':'], "_"));
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        // Not before it is on the disk: the name says that it is whole, also after a loss of power.
        rustix::fs::syncfs(File::open(partial)?)?;
        fs::rename(partial, &place)?;
        Ok(place)
    }

    /// Folders that have their name, in no order.
    pub fn entries(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let is_done = |path: &PathBuf| {
            path.is_dir() && !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
        };
        entries.map(|entry| entry.path()).filter(is_done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_made_entry_is_never_found_and_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let store = DirectoryStore::new(folder.path().join("x"));
        assert_eq!(store.entries().count(), 0, "without a folder");
        let locked = store.lock(&mut || {}, &mut || false).unwrap().unwrap();
        let partial = store.create_partial(&locked).unwrap();
        fs::write(partial.join("half"), "x").unwrap();
        assert_eq!(store.entries().count(), 0);
        // Somebody else waits while we are at work.
        let mut waited = false;
        assert!(store.lock(&mut || waited = true, &mut || true).unwrap().is_none());
        assert!(waited);
        drop(locked);
        let locked = store.lock(&mut || {}, &mut || false).unwrap().unwrap();
        let partial = store.create_partial(&locked).unwrap();
        assert_eq!(fs::read_dir(&partial).unwrap().count(), 0, "the one that was left is gone");
        let place = store.commit_entry(&locked, &partial, "a_1:2/3").unwrap();
        assert_eq!(store.entries().collect::<Vec<_>>(), std::slice::from_ref(&place));
        assert_eq!(place.file_name().unwrap(), "a_1_2_3");
    }
}
