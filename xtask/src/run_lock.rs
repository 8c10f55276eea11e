//! Lock that keeps two test runs on one machine apart: they would change each other's settings and counts.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

/// Takes the lock of this machine, and waits while another run holds it. It is held until the file is dropped
/// or the process ends, however it ends.
pub fn lock_machine() -> io::Result<File> {
    lock_file(&std::env::temp_dir().join("pagelab-xtask.lock"), || {
        println!("waiting for another run of `cargo xtask` on this machine");
    })
}

fn lock_file(path: &Path, waiting: impl FnOnce()) -> io::Result<File> {
    // Another user's file in a sticky folder can be opened, but not with a request to create it.
    let file = File::open(path)
        .or_else(|_| OpenOptions::new().create(true).append(true).open(path))
        .map_err(|error| io::Error::other(format!("cannot open {}: {error}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            waiting();
            file.lock()?;
            Ok(file)
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_second_run_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = lock_file(&path, || panic!("it is free")).unwrap();
        let (is_waiting, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let file = lock_file(&path, || is_waiting.store(true, Ordering::SeqCst)).unwrap();
                assert!(is_released.load(Ordering::SeqCst));
                drop(file);
            });
            while !is_waiting.load(Ordering::SeqCst) {
                assert!(!second.is_finished());
                std::thread::yield_now();
            }
            is_released.store(true, Ordering::SeqCst);
            drop(first);
        });
        assert!(lock_file(&folder.path().join("none/lock"), || {}).is_err());
    }
}
