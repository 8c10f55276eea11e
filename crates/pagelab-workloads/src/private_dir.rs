//! Private directory of a workload that needs files, removed after the run, or a file without a name, which
//! the kernel frees even after kill -9.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pagelab_sys::kernel_support;

use crate::WorkloadError;
use crate::options::{OptionSpec, WorkloadOptions, path_option};

/// The option of workloads that need files.
pub const FOLDER_OPTION: OptionSpec =
    path_option("folder", "Directory of its files while it runs; default: the directory for temporary files");

/// How names of these folders begin; the workload, the process and a count follow.
const NAME_PREFIX: &str = "pagelab-workload-";

/// Distinguishes directories of one process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A folder that is removed on drop, with all that is in it.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    /// The folder itself, locked as long as it is in use.
    _lock_file: File,
}

impl PrivateDir {
    /// Creates one in the directory of the option `folder`.
    pub fn new(options: &WorkloadOptions, workload: &str) -> Result<PrivateDir, WorkloadError> {
        PrivateDir::create_at(parent_dir(options).join(unique_name(workload)))
    }

    /// Makes one in the folder for temporary files.
    pub fn in_temp_dir(workload: &str) -> Result<PrivateDir, WorkloadError> {
        PrivateDir::create_at(std::env::temp_dir().join(unique_name(workload)))
    }

    fn create_at(path: PathBuf) -> Result<PrivateDir, WorkloadError> {
        remove_stale(path.parent().unwrap_or(Path::new(".")));
        let failed =
            |error| WorkloadError::system_error(format_args!("cannot create {}", path.display()), error);
        fs::create_dir(&path).map_err(failed)?;
        let lock = File::open(&path).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(PrivateDir { path, _lock_file: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // A directory that cannot be removed keeps a name that identifies its process.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes leftovers of killed runs: directories with this prefix whose process has exited and which are not
/// locked: the process may be in another PID namespace.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| {
            let (rest, count) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('-')?;
            count.parse::<u64>().ok()?;
            rest.rsplit_once('-')?.1.parse::<u32>().ok()
        });
        let is_free = || File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if owner.is_some_and(|pid| !kernel_support::process_exists(pid)) && is_free() {
            // Another user's directory stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// An unnamed file for reading and writing in the directory of the option `folder`.
pub fn create_tmpfile(options: &WorkloadOptions, workload: &str) -> Result<File, WorkloadError> {
    let path = parent_dir(options).join(unique_name(workload));
    let failed = |error| WorkloadError::system_error(format_args!("cannot create {}", path.display()), error);
    let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}

/// The folder that the option names, or that for temporary files.
fn parent_dir(options: &WorkloadOptions) -> PathBuf {
    match options.get_text("folder") {
        "" => std::env::temp_dir(),
        folder => PathBuf::from(folder),
    }
}

fn unique_name(workload: &str) -> String {
    format!("{NAME_PREFIX}{workload}-{}-{}", std::process::id(), NEXT_NUMBER.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEED_OPTION, size_option};

    const SPECS: [OptionSpec; 3] = [size_option("1M", "Bytes"), SEED_OPTION, FOLDER_OPTION];

    #[test]
    fn nothing_is_left() {
        let mut options = WorkloadOptions::with_defaults(&SPECS);
        let outer = PrivateDir::new(&options, "test").unwrap();
        options.set_value("folder", outer.path().to_str().unwrap()).unwrap();
        let inner = PrivateDir::new(&options, "test").unwrap();
        fs::write(inner.path().join("file"), "text").unwrap();
        let _nameless = create_tmpfile(&options, "test").unwrap();
        drop(inner);
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
        let path = outer.path().to_owned();
        drop(outer);
        assert!(!path.exists());
        let refused = create_tmpfile(&options, "test").unwrap_err().to_string();
        assert!(refused.contains("pagelab-workload-test"), "{refused}");
    }

    #[test]
    fn what_a_killed_run_left_goes_with_the_next() {
        let outer = PrivateDir::in_temp_dir("test").unwrap();
        let names = [
            (format!("{NAME_PREFIX}desktop-{}-0", i32::MAX), false),
            (format!("{NAME_PREFIX}alloc-storm-{}-7", i32::MAX), false),
            (format!("{NAME_PREFIX}desktop-{}-99", std::process::id()), true),
            (format!("{NAME_PREFIX}desktop"), true),
            ("other-1-1".to_owned(), true),
        ];
        for (name, _) in &names {
            fs::create_dir(outer.path().join(name)).unwrap();
            fs::write(outer.path().join(name).join("file"), "text").unwrap();
        }
        PrivateDir::create_at(outer.path().join("next")).unwrap();
        let locked = outer.path().join(format!("{NAME_PREFIX}desktop-{}-1", i32::MAX));
        let in_use = PrivateDir::create_at(locked.clone()).unwrap();
        PrivateDir::create_at(outer.path().join("again")).unwrap();
        assert!(locked.exists(), "a folder that is locked stays");
        drop(in_use);
        for (name, stays) in &names {
            assert_eq!(outer.path().join(name).exists(), *stays, "{name}");
        }
    }
}
