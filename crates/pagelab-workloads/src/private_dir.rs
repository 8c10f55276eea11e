//! Private directory of a workload or a session that needs files, removed after the run, or a file without a
//! name, which the kernel frees even after kill -9. [`find_leftovers`] lists what killed runs left.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagelab_sys::kernel_support;

use crate::WorkloadError;
use crate::options::{OptionSpec, WorkloadOptions, path_option};

/// The option of workloads that need files.
pub const FOLDER_OPTION: OptionSpec = path_option(
    "folder",
    "Directory for its files while it runs; default: the directory for temporary files",
);

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
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
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

/// Removes the directories of killed runs that have a lock.
fn remove_stale(parent: &Path) {
    for leftover in find_leftovers(parent).iter().filter(|leftover| leftover.is_lockable()) {
        // One that cannot be removed keeps a name that identifies its process.
        let _ = leftover.remove();
    }
}

/// What a temporary name of pagelab stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TempKind {
    /// A [`PrivateDir`], which its owner locks.
    Private,
    /// A directory for the summary of a supervisor, as earlier versions made it, without a lock.
    Summary,
    /// A QEMU plugin that was not renamed yet.
    Plugin,
    /// A guest's disk whose name was not removed yet.
    Disk,
}

impl TempKind {
    /// The kind of a name, and the PID in it.
    fn parse(name: &str) -> Option<(TempKind, u32)> {
        let pid = |text: &str| {
            let is_pid = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
            text.parse().ok().filter(|_| is_pid)
        };
        // `PID-COUNT`
        let counted_pid = |text: &str| {
            let (number, count) = text.split_once('-')?;
            count.parse::<u64>().ok()?;
            pid(number)
        };
        if let Some(rest) = name.strip_prefix(NAME_PREFIX) {
            let at = rest.rmatch_indices('-').nth(1)?.0;
            return Some((TempKind::Private, counted_pid(rest.get(at + 1..)?)?));
        }
        let kinds = [(".tlb-trace-", TempKind::Plugin), (".pagelab-disk-", TempKind::Disk)];
        if let Some((rest, kind)) =
            kinds.iter().find_map(|(start, kind)| Some((name.strip_prefix(start)?, kind)))
        {
            return Some((*kind, pid(rest)?));
        }
        Some((TempKind::Summary, counted_pid(name.strip_prefix("pagelab-")?)?))
    }
}

/// A temporary file or directory whose pagelab has ended without removing it.
#[derive(Debug)]
pub struct Leftover {
    /// Its path.
    pub path: PathBuf,
    /// The process in its name.
    pub pid: u32,
    kind: TempKind,
    identity: (u64, u64),
    /// The directory or file, locked: no second process removes it at the same time.
    _locked: File,
}

/// Lists what dead processes of this user left in a directory. A name is not enough: it has the kind, the
/// owner and the contents that pagelab gives it, no process holds its lock, and the process in its name has
/// ended. A PID that is used again by another process does not keep a locked kind, as its owner would hold
/// the lock; the minute is for an owner between the creation and the lock.
pub fn find_leftovers(parent: &Path) -> Vec<Leftover> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<_> = entries.flatten().filter_map(|entry| check_leftover(&entry.path())).collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// An age at which a directory is surely locked by its owner.
const LOCKED_AFTER: Duration = Duration::from_secs(60);

fn check_leftover(path: &Path) -> Option<Leftover> {
    let (kind, pid) = TempKind::parse(path.file_name()?.to_str()?)?;
    let meta = path.symlink_metadata().ok()?;
    let is_dir = matches!(kind, TempKind::Private | TempKind::Summary);
    // A FIFO would block the open below, and a link leads elsewhere.
    if meta.uid() != kernel_support::effective_uid() || meta.is_dir() != is_dir || meta.is_file() == is_dir {
        return None;
    }
    let file = File::open(path).ok()?;
    let identity = (meta.dev(), meta.ino());
    let opened = file.metadata().ok()?;
    if (opened.dev(), opened.ino()) != identity || file.try_lock().is_err() {
        return None;
    }
    let is_old = meta.modified().ok()?.elapsed().is_ok_and(|age| age > LOCKED_AFTER);
    let has_ended = !kernel_support::process_exists(pid) || (kind == TempKind::Private && is_old);
    let leftover = Leftover { path: path.to_owned(), pid, kind, identity, _locked: file };
    (has_ended && leftover.has_own_contents(&meta)).then_some(leftover)
}

impl Leftover {
    fn is_lockable(&self) -> bool {
        self.kind == TempKind::Private
    }

    fn has_own_contents(&self, meta: &Metadata) -> bool {
        let is_summary = |name: &str| name == "summary.json" || name.starts_with(".summary.json.");
        match self.kind {
            TempKind::Private => true,
            TempKind::Summary => fs::read_dir(&self.path).is_ok_and(|mut entries| {
                entries
                    .all(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(is_summary)))
            }),
            TempKind::Plugin => meta.nlink() == 1,
            TempKind::Disk => meta.nlink() == 1 && meta.len() == 0,
        }
    }

    /// Removes it, if it is still what was found.
    pub fn remove(&self) -> io::Result<()> {
        let meta = self.path.symlink_metadata()?;
        if (meta.dev(), meta.ino()) != self.identity {
            return Err(io::Error::other("another file now has its name"));
        }
        match meta.is_dir() {
            // No link in it is followed.
            true => fs::remove_dir_all(&self.path),
            false => fs::remove_file(&self.path),
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
    use std::time::SystemTime;

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
            (format!("{NAME_PREFIX}aim9-{}-7", i32::MAX), false),
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

    #[test]
    fn only_own_leftovers_of_dead_processes_are_found_and_removed() {
        let outer = tempfile::tempdir().unwrap();
        let (dead, own) = (i32::MAX, std::process::id());
        let path = |name: &str| outer.path().join(name);
        let make = |name: String, file: &str| {
            fs::create_dir(path(&name)).unwrap();
            if !file.is_empty() {
                fs::write(path(&name).join(file), "{}").unwrap();
            }
        };
        // Left: each kind of a dead process, and one whose PID is another process by now.
        make(format!("pagelab-{dead}-0"), "summary.json");
        make(format!("pagelab-{dead}-1"), "");
        make(format!("pagelab-workload-tune-{dead}-0"), "profile.pagelab");
        make(format!("pagelab-workload-gc-{own}-77"), "");
        let old = SystemTime::now() - 2 * LOCKED_AFTER;
        File::open(path(&format!("pagelab-workload-gc-{own}-77"))).unwrap().set_modified(old).unwrap();
        fs::write(path(&format!(".tlb-trace-{dead}")), "ELF").unwrap();
        fs::write(path(&format!(".pagelab-disk-{dead}")), "").unwrap();
        let left: Vec<_> = fs::read_dir(outer.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        // Not ours, or in use: a live process, other contents, other kinds, links, names that look alike.
        make(format!("pagelab-{own}-0"), "summary.json");
        make(format!("pagelab-{dead}-2"), "summary.json.txt");
        make(format!("pagelab-workload-gc-{own}-78"), "");
        make(format!("pagelab-workload-{dead}-0"), "");
        make(format!("pagelab-{dead}-0.bak"), "");
        make(format!("pagelab-bench-maps-{dead}"), "");
        make(format!("my-pagelab-{dead}-0"), "");
        make(format!(".tlb-trace-0{dead}"), "");
        fs::write(path(&format!("pagelab-{dead}-3")), "a file").unwrap();
        fs::write(path(".pagelab-disk-2147483646"), "has contents").unwrap();
        make("elsewhere".to_owned(), "kept");
        std::os::unix::fs::symlink(path("elsewhere"), path(&format!("pagelab-workload-x-{dead}-9"))).unwrap();
        std::os::unix::fs::symlink(path("elsewhere/kept"), path(".tlb-trace-2147483646")).unwrap();
        let locked = PrivateDir::create_at(path("pagelab-workload-x-2147483646-0")).unwrap();
        let count = fs::read_dir(outer.path()).unwrap().count();
        // Creating the last one removed the locked kind.
        let found = find_leftovers(outer.path());
        let mut rest: Vec<_> = left.iter().filter(|path| path.exists()).cloned().collect();
        rest.sort();
        assert_eq!(found.iter().map(|one| one.path.clone()).collect::<Vec<_>>(), rest);
        assert_eq!(rest.len(), 4, "{rest:?}");
        for one in &found {
            one.remove().unwrap();
        }
        assert!(left.iter().all(|path| !path.exists()));
        assert!(path("elsewhere/kept").exists());
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), count - rest.len());
        drop(locked);
    }

    #[test]
    fn a_leftover_that_became_another_file_stays() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join(format!("pagelab-{}-0", i32::MAX));
        fs::create_dir(&path).unwrap();
        let found = find_leftovers(outer.path());
        fs::rename(&path, outer.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(found[0].remove().is_err());
        assert!(path.exists() && outer.path().join("moved").exists());
    }
}
