//! A folder whose entries are whole or not there: each is made under another name and renamed at its end.
//!
//! Whoever makes one holds the lock of the folder, which ends with its holder; what a killed one left is
//! removed by the next.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

const PARTIAL: &str = ".partial-";

/// The folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// The right to change the store, until it is dropped or its holder dies.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

/// `pagelab` in XDG_CACHE_HOME, else `.cache/pagelab` in HOME: the folder of this user for what can be
/// fetched or made again; `None` without either.
pub fn usual_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let xdg = absolute("XDG_CACHE_HOME");
    xdg.or_else(|| absolute("HOME").map(|home| home.join(".cache"))).map(|cache| cache.join("pagelab"))
}

impl Store {
    /// The store in this folder, which need not be there yet.
    pub fn at(folder: PathBuf) -> Store {
        Store { folder }
    }

    /// Where its entries lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for the lock; `waiting` is called once if somebody else has it. `None`: `stop` said so.
    pub fn lock(
        &self,
        waiting: &mut dyn FnMut(),
        stop: &mut dyn FnMut() -> bool,
    ) -> io::Result<Option<Locked>> {
        fs::create_dir_all(&self.folder)?;
        let file = File::options().create(true).append(true).open(self.folder.join(".lock"))?;
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
        Ok(Some(Locked { _file: file }))
    }

    /// An empty folder to make an entry in. What others left half made is removed.
    pub fn begin(&self, _locked: &Locked) -> io::Result<PathBuf> {
        for entry in fs::read_dir(&self.folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let partial = self.folder.join(format!("{PARTIAL}{}", std::process::id()));
        fs::create_dir(&partial)?;
        Ok(partial)
    }

    /// Gives a folder that is whole its name. What stood there was not whole, or was made again.
    pub fn finish(&self, _locked: &Locked, partial: &Path, name: &str) -> io::Result<PathBuf> {
        let place = self.folder.join(name.replace(['/', ':'], "_"));
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
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
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
        let store = Store::at(folder.path().join("x"));
        assert_eq!(store.entries().count(), 0, "without a folder");
        let locked = store.lock(&mut || {}, &mut || false).unwrap().unwrap();
        let partial = store.begin(&locked).unwrap();
        fs::write(partial.join("half"), "x").unwrap();
        assert_eq!(store.entries().count(), 0);
        // Somebody else waits while we are at work.
        let mut waited = false;
        assert!(store.lock(&mut || waited = true, &mut || true).unwrap().is_none());
        assert!(waited);
        drop(locked);
        let locked = store.lock(&mut || {}, &mut || false).unwrap().unwrap();
        let partial = store.begin(&locked).unwrap();
        assert_eq!(fs::read_dir(&partial).unwrap().count(), 0, "the one that was left is gone");
        let place = store.finish(&locked, &partial, "a_1:2/3").unwrap();
        assert_eq!(store.entries().collect::<Vec<_>>(), std::slice::from_ref(&place));
        assert_eq!(place.file_name().unwrap(), "a_1_2_3");
    }
}
