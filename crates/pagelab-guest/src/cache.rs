//! Kernels that were fetched: one folder each, made under another name and renamed when it is whole.
//!
//! `kernels/PACKAGE_VERSION/` holds the package's own `boot` and `lib`, and `kernel.json` beside them.
//! Whoever makes one holds the lock of the folder, which ends with its holder; what a killed one left is
//! removed by the next.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::kernel::{Kernel, Package, is_of_series};

const RECORD: &str = "kernel.json";
const PARTIAL: &str = ".partial-";

/// The folder of fetched kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// The right to change the cache, until it is dropped or its holder dies.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl Cache {
    /// The cache below `folder`, which is pagelab's own folder for what can be fetched again.
    pub fn below(folder: &Path) -> Cache {
        Cache { folder: folder.join("kernels") }
    }

    /// `pagelab` in XDG_CACHE_HOME, else `.cache/pagelab` in HOME; `None` without either.
    pub fn usual_folder() -> Option<PathBuf> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let xdg = absolute("XDG_CACHE_HOME");
        xdg.or_else(|| absolute("HOME").map(|home| home.join(".cache"))).map(|cache| cache.join("pagelab"))
    }

    /// Where kernels lie.
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

    /// An empty folder to make a kernel in. What others left half made is removed.
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

    /// Gives a folder that is whole its name. What stood there was not whole, or was fetched again.
    pub fn finish(&self, _locked: &Locked, partial: &Path, package: &Package) -> io::Result<Kernel> {
        let record = serde_json::to_vec_pretty(package)?;
        fs::write(partial.join(RECORD), record)?;
        let place =
            self.folder.join(format!("{}_{}", package.name, package.version.replace(['/', ':'], "_")));
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        // Not before it is on the disk: the name says that it is whole, also after a loss of power.
        rustix::fs::syncfs(File::open(partial)?)?;
        fs::rename(partial, &place)?;
        read(&place).ok_or_else(|| io::Error::other(format!("{}: not whole", place.display())))
    }

    /// Whole kernels, the newest release last.
    pub fn kernels(&self) -> Vec<Kernel> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_done =
            |path: &PathBuf| !path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        let mut kernels: Vec<Kernel> =
            entries.map(|entry| entry.path()).filter(is_done).filter_map(|path| read(&path)).collect();
        kernels.sort_by_cached_key(|kernel| {
            let version = kernel.package.as_ref().map(|package| numbers(&package.version));
            (numbers(&kernel.release), version)
        });
        kernels
    }

    /// The newest kernel of a series, or of a package.
    pub fn find(&self, wanted: &str) -> Option<Kernel> {
        let is_it = |kernel: &Kernel| {
            is_of_series(&kernel.release, wanted) || kernel.package.as_ref().is_some_and(|p| p.name == wanted)
        };
        self.kernels().into_iter().rev().find(is_it)
    }
}

/// The kernel in a folder of the cache, if it is whole.
fn read(folder: &Path) -> Option<Kernel> {
    let package: Package = serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()?;
    let kernel = Kernel::at(folder, None).ok()?;
    let is_whole = fs::metadata(&kernel.image).is_ok_and(|meta| meta.len() == package.image_bytes);
    (is_whole && kernel.release == package.release).then_some(Kernel { package: Some(package), ..kernel })
}

/// The numbers in a version, for its order: `6.1.0-56` is after `6.1.0-9`.
pub fn numbers(version: &str) -> Vec<u64> {
    let digits = version.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    digits.map(|digits| digits.parse().unwrap_or(u64::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        assert!(numbers("linux-image-6.1.0-56-cloud") > numbers("linux-image-6.1.0-9-cloud"));
        assert!(numbers("6.12.117+deb12") > numbers("6.12.99+deb12"));
    }

    #[test]
    fn a_half_made_kernel_is_never_found_and_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::below(folder.path());
        assert!(cache.kernels().is_empty(), "without a folder");
        let locked = cache.lock(&mut || {}, &mut || false).unwrap().unwrap();
        let partial = cache.begin(&locked).unwrap();
        fs::write(partial.join("half"), "x").unwrap();
        assert!(cache.kernels().is_empty());
        // Somebody else waits while we are at work.
        let mut waited = false;
        assert!(cache.lock(&mut || waited = true, &mut || true).unwrap().is_none());
        assert!(waited);
        drop(locked);
        let locked = cache.lock(&mut || {}, &mut || false).unwrap().unwrap();
        let partial = cache.begin(&locked).unwrap();
        assert_eq!(fs::read_dir(&partial).unwrap().count(), 0);
        let dirs = fs::read_dir(cache.folder()).unwrap().flatten().filter(|entry| entry.path().is_dir());
        assert_eq!(dirs.count(), 1, "the one that was left is gone");
    }
}
