//! Where a workload that needs files keeps them: a folder of its own that is gone when the run is over, or a
//! file without a name, which the kernel takes back even after kill -9.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pagelab_sys::presence;

use crate::Failed;
use crate::options::{Kind, OptionHead, Options};

/// The option of workloads that need files.
pub const FOLDER: OptionHead = OptionHead {
    name: "folder",
    kind: Kind::Path,
    default: "",
    help: "Where its files are kept while it runs; else the folder for temporary files",
};

/// How names of these folders begin; the workload, the process and a count follow.
const PREFIX: &str = "pagelab-workload-";

/// Tells folders of one process apart.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A folder that is removed on drop, with all that is in it.
#[derive(Debug)]
pub struct OwnFolder {
    path: PathBuf,
    /// The folder itself, locked as long as it is in use.
    _lock: File,
}

impl OwnFolder {
    /// Makes one where the option `folder` says.
    pub fn new(options: &Options, workload: &str) -> Result<OwnFolder, Failed> {
        OwnFolder::at(place(options).join(name(workload)))
    }

    /// Makes one in the folder for temporary files.
    pub fn temporary(workload: &str) -> Result<OwnFolder, Failed> {
        OwnFolder::at(std::env::temp_dir().join(name(workload)))
    }

    fn at(path: PathBuf) -> Result<OwnFolder, Failed> {
        sweep(path.parent().unwrap_or(Path::new(".")));
        let failed = |error| Failed::system(format_args!("cannot make {}", path.display()), error);
        fs::create_dir(&path).map_err(failed)?;
        let lock = File::open(&path).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(OwnFolder { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        // What cannot be removed stays under a name that says whose it is.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what runs left that were killed: folders with our name whose process is gone, and which nobody has
/// locked: the process may be one that is not seen from here.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| {
            let (rest, count) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
            count.parse::<u64>().ok()?;
            rest.rsplit_once('-')?.1.parse::<u32>().ok()
        });
        let is_free = || File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if owner.is_some_and(|pid| !presence::process(pid)) && is_free() {
            // Somebody else's folder stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A file for reading and writing without a name, where the option `folder` says.
pub fn nameless_file(options: &Options, workload: &str) -> Result<File, Failed> {
    let path = place(options).join(name(workload));
    let failed = |error| Failed::system(format_args!("cannot make {}", path.display()), error);
    let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}

/// The folder that the option names, or that for temporary files.
fn place(options: &Options) -> PathBuf {
    match options.text("folder") {
        "" => std::env::temp_dir(),
        folder => PathBuf::from(folder),
    }
}

fn name(workload: &str) -> String {
    format!("{PREFIX}{workload}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEED, size};

    const HEADS: [OptionHead; 3] = [size("1M", "Bytes"), SEED, FOLDER];

    #[test]
    fn nothing_is_left() {
        let mut options = Options::defaults(&HEADS);
        let outer = OwnFolder::new(&options, "test").unwrap();
        options.set("folder", outer.path().to_str().unwrap()).unwrap();
        let inner = OwnFolder::new(&options, "test").unwrap();
        fs::write(inner.path().join("file"), "text").unwrap();
        let _nameless = nameless_file(&options, "test").unwrap();
        drop(inner);
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
        let path = outer.path().to_owned();
        drop(outer);
        assert!(!path.exists());
        let refused = nameless_file(&options, "test").unwrap_err().to_string();
        assert!(refused.contains("pagelab-workload-test"), "{refused}");
    }

    #[test]
    fn what_a_killed_run_left_goes_with_the_next() {
        let outer = OwnFolder::temporary("test").unwrap();
        let names = [
            (format!("{PREFIX}desktop-{}-0", i32::MAX), false),
            (format!("{PREFIX}alloc-storm-{}-7", i32::MAX), false),
            (format!("{PREFIX}desktop-{}-99", std::process::id()), true),
            (format!("{PREFIX}desktop"), true),
            ("other-1-1".to_owned(), true),
        ];
        for (name, _) in &names {
            fs::create_dir(outer.path().join(name)).unwrap();
            fs::write(outer.path().join(name).join("file"), "text").unwrap();
        }
        OwnFolder::at(outer.path().join("next")).unwrap();
        let locked = outer.path().join(format!("{PREFIX}desktop-{}-1", i32::MAX));
        let in_use = OwnFolder::at(locked.clone()).unwrap();
        OwnFolder::at(outer.path().join("again")).unwrap();
        assert!(locked.exists(), "a folder that is locked stays");
        drop(in_use);
        for (name, stays) in &names {
            assert_eq!(outer.path().join(name).exists(), *stays, "{name}");
        }
    }
}
