//! A folder of its own for each run, gone at its end. What a killed one left is removed by the next.
//!
//! Beside each folder stands a file that is locked by the run and by all that it starts: the lock ends when
//! the last of them has ended, however that was.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pagelab_packages::store::Store;
use rustix::fs::{FlockOperation, flock};

const LOCK: &str = "lock";

/// The folder of one run.
#[derive(Debug)]
pub(super) struct Trial {
    /// Where the run is.
    pub folder: PathBuf,
    /// Kept open by the run and by all that it starts.
    pub lock: File,
    lock_path: PathBuf,
}

impl Trial {
    /// A new folder, after those of runs that are over were removed.
    pub fn begin(store: &Store) -> io::Result<Trial> {
        // Nobody sweeps between the making of a file and its locking.
        let locked = store.lock(&mut || {}, &mut || false)?;
        sweep(store.folder())?;
        let mut number = 1;
        let (lock_path, lock) = loop {
            let path = store.folder().join(format!("{number}.{LOCK}"));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let folder = lock_path.with_extension("");
        fs::create_dir(&folder)?;
        drop(locked);
        Ok(Trial { folder, lock, lock_path })
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // What cannot be removed is removed by the next run.
        if fs::remove_dir_all(&self.folder).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// Removes the folders of which nobody holds the lock any more.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != LOCK) || path.file_stem().is_none() {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match fs::remove_dir_all(path.with_extension("")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn folders_go_with_their_runs_and_those_of_killed_ones_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("trials"));
        let names = || {
            let entries = fs::read_dir(store.folder()).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.retain(|name| name != ".lock");
            names.sort();
            names
        };
        let first = Trial::begin(&store).unwrap();
        fs::write(first.folder.join("data"), "x").unwrap();
        let second = Trial::begin(&store).unwrap();
        assert_eq!(names(), ["1", "1.lock", "2", "2.lock"]);
        drop(second);
        assert_eq!(names(), ["1", "1.lock"], "a run that is alive is left alone");
        drop(first);
        assert!(names().is_empty());
        // As a kill leaves it: nothing is removed, and the lock ends with its last holder.
        fs::create_dir(store.folder().join("1")).unwrap();
        fs::write(store.folder().join("1/data"), "x").unwrap();
        let what_it_started = File::create(store.folder().join("1.lock")).unwrap();
        flock(&what_it_started, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(Trial::begin(&store).unwrap());
        assert_eq!(names(), ["1", "1.lock"], "what it started is alive");
        drop(what_it_started);
        // Another test's child has all that is open here from its fork to its exec, this lock too.
        let end = Instant::now() + Duration::from_secs(60);
        while !names().is_empty() && Instant::now() < end {
            drop(Trial::begin(&store).unwrap());
        }
        assert_eq!(names(), [""; 0]);
    }
}
