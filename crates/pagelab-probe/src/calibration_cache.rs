//! Cache of costs measured on this machine: one file per cost and machine in the cache directory.

use std::fs;
use std::path::PathBuf;

use pagelab_formats::checksum;
use pagelab_packages::store;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum size of a cache file, in bytes; larger files are ignored.
const FILE_MAX: u64 = 1 << 16;

/// File of one cost, and the key under which it is valid.
pub struct CacheEntry<'a> {
    /// Name of the cost, which is the start of the file name.
    pub name: &'a str,
    /// Machine; each has its own file.
    pub machine: &'a str,
    /// Everything that the cost depends on. A file with another key is overwritten.
    pub key: &'a str,
}

impl CacheEntry<'_> {
    /// Returns the cached cost, if there is one with this key.
    pub fn load<T: DeserializeOwned>(&self) -> Option<T> {
        let path = self.path()?;
        if fs::metadata(&path).ok()?.len() > FILE_MAX {
            return None;
        }
        let (key, found): (String, T) = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (key == self.key).then_some(found)
    }

    /// Stores a cost. If that fails, the next run measures it again.
    pub fn save<T: Serialize>(&self, value: &T) {
        let write = || {
            let path = self.path()?;
            fs::create_dir_all(path.parent()?).ok()?;
            let text = serde_json::to_string(&(self.key, value)).ok()?;
            let new = path.with_extension(std::process::id().to_string());
            fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).ok()
        };
        let _ = write();
    }

    fn path(&self) -> Option<PathBuf> {
        let name = format!("{}-{:08x}.json", self.name, checksum::crc32(self.machine.as_bytes()));
        Some(store::default_cache_dir()?.join(name))
    }
}
