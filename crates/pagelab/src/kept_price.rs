//! Prices that were measured on this machine, kept in the cache folder: one file for each kind of price and
//! machine.

use std::fs;
use std::path::PathBuf;

use pagelab_formats::checksum;
use pagelab_packages::store;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Larger files are none of ours.
const FILE_MAX: u64 = 1 << 16;

/// Where one price is kept, and what must be the same for it to hold.
pub struct Place<'a> {
    /// What it is the price of: the file's name begins so.
    pub name: &'a str,
    /// The machine: one file for each.
    pub machine: &'a str,
    /// All that it depends on. A file with another key is written over.
    pub key: &'a str,
}

impl Place<'_> {
    /// What was measured before, if it was.
    pub fn known<T: DeserializeOwned>(&self) -> Option<T> {
        let path = self.path()?;
        if fs::metadata(&path).ok()?.len() > FILE_MAX {
            return None;
        }
        let (key, found): (String, T) = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (key == self.key).then_some(found)
    }

    /// Keeps a price. Without a place to keep it, it is measured again the next time.
    pub fn keep<T: Serialize>(&self, found: &T) {
        let write = || {
            let path = self.path()?;
            fs::create_dir_all(path.parent()?).ok()?;
            let text = serde_json::to_string(&(self.key, found)).ok()?;
            let new = path.with_extension(std::process::id().to_string());
            fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).ok()
        };
        let _ = write();
    }

    fn path(&self) -> Option<PathBuf> {
        let name = format!("{}-{:08x}.json", self.name, checksum::crc32(self.machine.as_bytes()));
        Some(store::usual_folder()?.join(name))
    }
}
