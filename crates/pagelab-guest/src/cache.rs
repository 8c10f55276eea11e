//! Kernels that were fetched: one folder each, whole or not there.
//!
//! `kernels/PACKAGE_VERSION/` holds the package's own `boot` and `lib`, and `kernel.json` beside them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pagelab_packages::store::{Locked, Store};

use crate::kernel::{Kernel, Package, is_of_series};

const RECORD: &str = "kernel.json";

/// The folder of fetched kernels.
#[derive(Clone, Debug)]
pub struct Cache(Store);

impl Cache {
    /// The cache below `folder`, which is pagelab's own folder for what can be fetched again.
    pub fn below(folder: &Path) -> Cache {
        Cache(Store::at(folder.join("kernels")))
    }

    /// Where kernels lie.
    pub fn folder(&self) -> &Path {
        self.0.folder()
    }

    /// Waits for the lock, as [`Store::lock`] does.
    pub fn lock(
        &self,
        waiting: &mut dyn FnMut(),
        stop: &mut dyn FnMut() -> bool,
    ) -> io::Result<Option<Locked>> {
        self.0.lock(waiting, stop)
    }

    /// An empty folder to make a kernel in. What others left half made is removed.
    pub fn begin(&self, locked: &Locked) -> io::Result<PathBuf> {
        self.0.begin(locked)
    }

    /// Gives a folder that is whole its name. What stood there was not whole, or was fetched again.
    pub fn finish(&self, locked: &Locked, partial: &Path, package: &Package) -> io::Result<Kernel> {
        fs::write(partial.join(RECORD), serde_json::to_vec_pretty(package)?)?;
        let place = self.0.finish(locked, partial, &format!("{}_{}", package.name, package.version))?;
        read(&place).ok_or_else(|| io::Error::other(format!("{}: not whole", place.display())))
    }

    /// Whole kernels, the newest release last.
    pub fn kernels(&self) -> Vec<Kernel> {
        let mut kernels: Vec<Kernel> = self.0.entries().filter_map(|path| read(&path)).collect();
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
}
