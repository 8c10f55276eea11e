//! Cache of downloaded kernels: one directory each, complete or absent.
//!
//! `kernels/PACKAGE_VERSION/` holds the package's own `boot` and `lib`, and `kernel.json` beside them.

use std::fs;
use std::io;
use std::path::Path;

use pagelab_packages::store::DirectoryStore;

use crate::kernel::{GuestKernel, KernelPackage, matches_series};

const RECORD_FILE: &str = "kernel.json";

/// The folder of fetched kernels.
#[derive(Clone, Debug)]
pub struct KernelCache(DirectoryStore);

impl KernelCache {
    /// The cache below `dir`, which is pagelab's own folder for what can be fetched again.
    pub fn in_dir(dir: &Path) -> KernelCache {
        KernelCache(DirectoryStore::new(dir.join("kernels")))
    }

    /// The store of the kernels.
    pub fn store(&self) -> &DirectoryStore {
        &self.0
    }

    /// Whole kernels, the newest release last.
    pub fn list_kernels(&self) -> Vec<GuestKernel> {
        let mut kernels: Vec<GuestKernel> = self.0.entries().filter_map(|path| read_kernel(&path)).collect();
        kernels.sort_by_cached_key(|kernel| {
            let version = kernel.package.as_ref().map(|package| version_numbers(&package.version));
            (version_numbers(&kernel.release), version)
        });
        kernels
    }

    /// The newest kernel of a series, or of a package.
    pub fn find_kernel(&self, selector: &str) -> Option<GuestKernel> {
        let is_it = |kernel: &GuestKernel| {
            matches_series(&kernel.release, selector)
                || kernel.package.as_ref().is_some_and(|p| p.name == selector)
        };
        self.list_kernels().into_iter().rev().find(is_it)
    }
}

/// Adds the record to a folder that is whole, and returns the name of its entry.
pub fn write_record(dir: &Path, package: &KernelPackage) -> io::Result<String> {
    fs::write(dir.join(RECORD_FILE), serde_json::to_vec_pretty(package)?)?;
    Ok(format!("{}_{}", package.name, package.version))
}

/// The kernel in a folder of the cache, if it is whole.
pub fn read_kernel(dir: &Path) -> Option<GuestKernel> {
    let package: KernelPackage = serde_json::from_slice(&fs::read(dir.join(RECORD_FILE)).ok()?).ok()?;
    let kernel = GuestKernel::open(dir, None).ok()?;
    let is_whole = fs::metadata(&kernel.image).is_ok_and(|meta| meta.len() == package.image_bytes);
    (is_whole && kernel.release == package.release)
        .then_some(GuestKernel { package: Some(package), ..kernel })
}

/// The numbers in a version, for its order: `6.1.0-56` is after `6.1.0-9`.
pub fn version_numbers(version: &str) -> Vec<u64> {
    let digits = version.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    digits.map(|digits| digits.parse().unwrap_or(u64::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        assert!(version_numbers("linux-image-6.1.0-56-cloud") > version_numbers("linux-image-6.1.0-9-cloud"));
        assert!(version_numbers("6.12.117+deb12") > version_numbers("6.12.99+deb12"));
    }
}
