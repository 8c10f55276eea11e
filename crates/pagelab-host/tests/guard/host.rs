//! Tests of the guard on this machine, with real kills. As root only; the machine is left as it was found.

use std::fs;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelab_host::guard::{
    self, FileKernel, Guard, GuardOptions, GuardSite, JournalDir, Knob, SignalWatch, UndoOutcome,
};
use pagelab_model::Bytes;
use std::sync::Arc;

use crate::machine::{ENABLED, INSTANCES, MIN_FREE, POOL, SWAP_DIR, Stop};
use crate::victim::{DEBUGFS, Plan, Task, outcomes, thp_target};

/// One machine, one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// This machine, if the test may change it; its settings are put back at the end, come what may.
struct Host {
    saved: Vec<(&'static str, String)>,
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Host {
    fn new() -> Option<Host> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: not-root: settings of this machine are changed by root alone");
            return None;
        }
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut saved = Vec::new();
        for path in [ENABLED, POOL, MIN_FREE] {
            let Ok(text) = fs::read_to_string(path) else {
                eprintln!("skipped: no-setting: this machine has no {path}");
                return None;
            };
            if let Err(error) = fs::File::options().write(true).open(path) {
                eprintln!("skipped: not-writable: {path}: {error}");
                return None;
            }
            saved.push((path, selected_word(&text)));
        }
        Some(Host { saved, dir: tempfile::tempdir().unwrap(), _alone: alone })
    }

    fn journals(&self) -> std::path::PathBuf {
        self.dir.path().join("journals")
    }

    fn site(&self) -> GuardSite {
        GuardSite::new(Arc::new(FileKernel::live().unwrap()), JournalDir::from_path(&self.journals()))
            .unwrap()
    }

    fn kill(&self, task: Task, stop: Stop) {
        Plan { task, base: None, journals: &self.journals(), stop }.run_to_kill();
    }

    fn is_as_found(&self) -> bool {
        self.saved.iter().all(|(path, value)| value_of(path) == *value)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Cgroups and mounts of a failed test are known to its journals alone.
        let _ = guard::restore(&self.site(), false);
        for (path, value) in &self.saved {
            if value_of(path) != *value {
                fs::write(path, value).unwrap();
            }
        }
    }
}

fn selected_word(text: &str) -> String {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word).to_owned()
}

fn value_of(path: &str) -> String {
    selected_word(&fs::read_to_string(path).unwrap())
}

#[test]
fn thp_enabled_after_kills() {
    let Some(host) = Host::new() else { return };
    let target = thp_target(std::path::Path::new("/"));
    let cases = [
        (Stop::Before(ENABLED, 1), false, UndoOutcome::AlreadyRestored),
        (Stop::After(ENABLED, 1), true, UndoOutcome::Restored),
        (Stop::Before(ENABLED, 2), true, UndoOutcome::Restored),
    ];
    for (stop, is_changed, undo) in cases {
        host.kill(Task::Thp, stop);
        assert_eq!(value_of(ENABLED) == target, is_changed, "{stop:?}");
        let report = guard::restore(&host.site(), false).unwrap();
        assert_eq!(outcomes(&report)[0].undo, undo, "{stop:?}: {report:?}");
        assert!(host.is_as_found(), "{stop:?}");
        assert!(!host.journals().exists());
    }
}

#[test]
fn nr_hugepages_after_kills() {
    let Some(host) = Host::new() else { return };
    for (stop, undo) in [
        (Stop::Before(POOL, 1), UndoOutcome::AlreadyRestored),
        (Stop::After(POOL, 1), UndoOutcome::Restored),
        (Stop::Before(POOL, 2), UndoOutcome::Restored),
    ] {
        let before: u64 = value_of(POOL).parse().unwrap();
        host.kill(Task::Pool, stop);
        if undo == UndoOutcome::Restored {
            assert_eq!(value_of(POOL), (before + 4).to_string(), "{stop:?}");
        }
        let report = guard::restore(&host.site(), false).unwrap();
        assert_eq!(outcomes(&report)[0].undo, undo, "{stop:?}: {report:?}");
        assert!(host.is_as_found(), "{stop:?}");
    }
    // Another file of the kernel says the same.
    let site = host.site();
    let guard = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    let applied = guard.set_knob(&Knob::from_path(POOL).unwrap(), "3").unwrap();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    if meminfo.contains("Hugepagesize:       2048 kB") {
        let total = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Total:"));
        assert_eq!(total.map(str::trim), Some("3"), "{applied:?}");
    }
    drop(guard);
    assert!(host.is_as_found());
}

/// A small min_free_kbytes of an administrator: the real kernel moves it with each write of a THP mode.
#[test]
fn min_free_kbytes_moves_along_and_comes_back() {
    let Some(host) = Host::new() else { return };
    let target = thp_target(std::path::Path::new("/"));
    fs::write(MIN_FREE, "9000").unwrap();
    host.kill(Task::Thp, Stop::After(ENABLED, 1));
    assert_eq!(value_of(ENABLED), target);
    let report = guard::restore(&host.site(), false).unwrap();
    assert_eq!(value_of(MIN_FREE), "9000", "{report:?}");
    assert_eq!(outcomes(&report)[0].undo, UndoOutcome::Restored);
    // Any mode that runs khugepaged has the kernel recompute it again.
    fs::write(ENABLED, target).unwrap();
    fs::write(ENABLED, &host.saved[0].1).unwrap();
}

/// A child in the cgroup outlives the victim; it is moved out, not killed.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cgroup_after_kills() {
    let Some(host) = Host::new() else { return };
    let site = host.site();
    let probe = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    let parent = match probe.cgroup_parent("memory") {
        Ok(parent) => parent,
        Err(error) => return eprintln!("skipped: no-memory-cgroup: {error}"),
    };
    drop(probe);
    let ours = || -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(&parent).unwrap().map(|entry| entry.unwrap().path());
        entries
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("pagelab-test-"))
            .collect()
    };
    assert!(ours().is_empty(), "left by an earlier test");
    let own_before = fs::read_to_string("/proc/self/cgroup").unwrap();
    for (stop, is_made) in
        [(Stop::Before("/sys/fs/cgroup", 1), false), (Stop::After("/sys/fs/cgroup", 1), true)]
    {
        host.kill(Task::Cgroup, stop);
        assert_eq!(ours().len(), usize::from(is_made), "{stop:?}");
        let sleeper = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
        if let Some(cgroup) = ours().first() {
            fs::write(cgroup.join("cgroup.procs"), sleeper.0.id().to_string()).unwrap();
        }
        let report = guard::restore(&host.site(), false).unwrap();
        let undo = if is_made { UndoOutcome::Restored } else { UndoOutcome::AlreadyRestored };
        assert_eq!(outcomes(&report)[0].undo, undo, "{report:?}");
        assert!(ours().is_empty());
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", sleeper.0.id())).unwrap();
        assert_eq!(cgroups, own_before, "the sleeper is where it was started");
    }
}

#[test]
fn debugfs_after_kills() {
    let Some(host) = Host::new() else { return };
    let is_mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {DEBUGFS} "));
    if is_mounted() {
        return eprintln!("skipped: debugfs-mounted: somebody mounted it, so it is not ours to take away");
    }
    if let Err(error) = fs::read_dir(DEBUGFS) {
        return eprintln!("skipped: no-debugfs: {error}");
    }
    for (stop, undo) in [
        (Stop::Before(DEBUGFS, 1), UndoOutcome::AlreadyRestored),
        (Stop::After(DEBUGFS, 1), UndoOutcome::Restored),
        (Stop::Before(DEBUGFS, 2), UndoOutcome::Restored),
    ] {
        host.kill(Task::Debugfs, stop);
        assert_eq!(is_mounted(), undo == UndoOutcome::Restored, "{stop:?}");
        if is_mounted() {
            // Busy: it stays, and the next restore tries again.
            let held =
                fs::File::open(format!("{DEBUGFS}/sleep_time")).or_else(|_| fs::File::open(DEBUGFS)).unwrap();
            let report = guard::restore(&host.site(), false).unwrap();
            assert_eq!(outcomes(&report)[0].undo, UndoOutcome::Failed, "{report:?}");
            assert!(is_mounted() && host.journals().exists());
            drop(held);
        }
        let report = guard::restore(&host.site(), false).unwrap();
        assert_eq!(outcomes(&report)[0].undo, undo, "{stop:?}: {report:?}");
        assert!(!is_mounted() && !host.journals().exists());
    }
}

/// An instance of this machine's tracefs, mounted or not.
#[test]
fn a_trace_instance_after_kills() {
    let Some(host) = Host::new() else { return };
    let site = host.site();
    let probe = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    if let Err(error) = probe.trace_instance() {
        return eprintln!("skipped: no-trace-instance: {error}");
    }
    assert_eq!(probe.finish()[0].undo, UndoOutcome::Restored);
    for (stop, undo) in [
        (Stop::Before(INSTANCES, 1), UndoOutcome::AlreadyRestored),
        (Stop::After(INSTANCES, 1), UndoOutcome::Restored),
        (Stop::After(INSTANCES, 2), UndoOutcome::AlreadyRestored),
    ] {
        host.kill(Task::Trace, stop);
        let report = guard::restore(&host.site(), false).unwrap();
        assert_eq!(outcomes(&report)[0].undo, undo, "{stop:?}: {report:?}");
        let path = outcomes(&report)[0].path.clone();
        assert!(path.starts_with(INSTANCES) && !fs::exists(&path).unwrap_or(false), "{path}");
        assert!(!host.journals().exists());
    }
}

/// A small swap file; other swap areas of this machine stay as they are.
#[test]
fn a_swap_file_after_kills() {
    let Some(host) = Host::new() else { return };
    let site = host.site();
    let probe = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    // Others may swap meanwhile: their areas and contents stay.
    let areas = || -> Vec<String> {
        let text = fs::read_to_string("/proc/swaps").unwrap();
        text.lines().filter_map(|line| line.split_ascii_whitespace().next()).map(str::to_owned).collect()
    };
    let before = areas();
    match probe.swap_file(SWAP_DIR, Bytes(1 << 20)) {
        Err(error) => return eprintln!("skipped: no-swap-file: {error}"),
        Ok(made) => assert!(areas().contains(&made.path)),
    }
    assert_eq!(probe.finish()[0].undo, UndoOutcome::Restored);
    assert_eq!(areas(), before);
    let ours = || {
        let names = fs::read_dir(SWAP_DIR).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("pagelab-swap-")).count()
    };
    let there_already = ours();
    for (stop, undo, is_on) in [
        (Stop::Before(SWAP_DIR, 1), UndoOutcome::AlreadyRestored, false),
        (Stop::After(SWAP_DIR, 1), UndoOutcome::Restored, false),
        (Stop::After(SWAP_DIR, 2), UndoOutcome::Restored, true),
        (Stop::After(SWAP_DIR, 3), UndoOutcome::Restored, false),
        (Stop::After(SWAP_DIR, 4), UndoOutcome::AlreadyRestored, false),
    ] {
        host.kill(Task::Swap, stop);
        assert_eq!(areas() != before, is_on, "{stop:?}: {:?}", areas());
        assert_eq!(ours() - there_already, usize::from(undo == UndoOutcome::Restored), "{stop:?}");
        let report = guard::restore(&host.site(), false).unwrap();
        assert_eq!(outcomes(&report)[0].undo, undo, "{stop:?}: {report:?}");
        assert_eq!(areas(), before, "{stop:?}");
        assert_eq!(ours(), there_already, "{stop:?}");
        assert!(!host.journals().exists());
    }
    let memory = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    if fs::exists("/dev/shm").unwrap() {
        let error = memory.swap_file("/dev/shm", Bytes(1 << 20)).unwrap_err();
        assert!(error.to_string().contains("tmpfs"), "{error}");
    }
}
