//! A private copy of a file and its log, for reading what cannot be read where it lies.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, kind_of};
use crate::header;
use crate::writer::beside;

/// Tries to copy a file that its writer is changing.
const TRIES: usize = 5;

/// A folder of our own with the copies in it; removed on drop.
pub(crate) struct PrivateCopy {
    folder: PathBuf,
}

impl PrivateCopy {
    /// Copies the file at `whole` and its `-wal`; errors name `path`.
    pub fn of(path: &Path, whole: &Path) -> Result<PrivateCopy, Error> {
        let temporary = std::env::temp_dir();
        let failed = |error: io::Error| {
            let problem = format_args!(
                "its log is to be read from a copy in {}: {error}; make room there, or name another folder \
                 in TMPDIR",
                temporary.display()
            );
            Error::read(kind_of(&error), path, problem)
        };
        // A file of holes can be larger than any disk, and filling one up harms others.
        let [file, wal] = state(whole).map_err(failed)?;
        let (wanted, room) = (file.0.saturating_add(wal.0), room(&temporary).map_err(failed)?);
        if wanted > room {
            let problem = format!("it has {wanted} bytes, and {room} are free there");
            return Err(failed(io::Error::new(io::ErrorKind::StorageFull, problem)));
        }
        let copy = PrivateCopy { folder: folder(&temporary).map_err(failed)? };
        for _ in 0..TRIES {
            let before = state(whole).map_err(failed)?;
            copy_file(whole, &copy.path()).map_err(failed)?;
            copy_file(&beside(whole, "-wal"), &beside(&copy.path(), "-wal")).map_err(failed)?;
            if state(whole).map_err(failed)? == before {
                return Ok(copy);
            }
        }
        Err(failed(io::Error::other("it changes faster than it can be copied")))
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join("copy.pagelab")
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // A copy that cannot be removed is in the folder for what may be removed at any time.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Bytes that this user may still write there.
fn room(folder: &Path) -> io::Result<u64> {
    let told = rustix::fs::statvfs(folder)?;
    Ok(told.f_bavail.saturating_mul(told.f_frsize))
}

/// A new folder that nobody else can enter.
fn folder(temporary: &Path) -> io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = temporary.join(format!("pagelab-read-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| folder),
        }
    }
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = header::open(from)?;
    let mut to = File::create(to)?;
    io::copy(&mut from, &mut to).map(|_| ())
}

/// Sizes and times of both files: equal before and after, nothing was written meanwhile.
fn state(whole: &Path) -> io::Result<[(u64, i64, i64); 2]> {
    let of = |path: &Path| {
        let metadata = fs::metadata(path)?;
        Ok::<_, io::Error>((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    Ok([of(whole)?, of(&beside(whole, "-wal"))?])
}
