//! Fake machine: a tree of files that behaves like the kernel's, and can lie, reject a write, or stop.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagelab_host::guard::{
    FileKernel, FsSpace, Guard, GuardOptions, GuardSite, JournalDir, Kernel, SignalWatch,
};
use pagelab_model::Bytes;
use rustix::io::Errno;

pub const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
pub const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
pub const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
pub const SURPLUS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages";
pub const SWAPPINESS: &str = "/proc/sys/vm/swappiness";
pub const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
pub const COMPACT: &str = "/proc/sys/vm/compact_memory";
pub const SWAPS: &str = "/proc/swaps";
/// Where trace instances are.
pub const INSTANCES: &str = "/sys/kernel/tracing/instances";
/// Where swap files of a fake machine are.
pub const SWAP_DIR: &str = "/var/tmp";
pub const CGROUPS: &str = "/sys/fs/cgroup/memory";

/// What khugepaged recommends, and what the kernel computes without it: the values of a machine of 24 GiB.
const MIN_FREE_WITH_THP: u64 = 67_584;
const MIN_FREE_WITHOUT_THP: u64 = 19_832;

const NO_SWAPS: &str = "Filename Type Size Used Priority\n";

const FILES: [(&str, &str); 11] = [
    (ENABLED, "always [madvise] never\n"),
    (DEFRAG, "always defer defer+madvise [madvise] never\n"),
    (POOL, "0\n"),
    (SURPLUS, "0\n"),
    (SWAPPINESS, "60\n"),
    (MIN_FREE, "67584\n"),
    (COMPACT, ""),
    (SWAPS, NO_SWAPS),
    ("/proc/meminfo", "MemTotal: 24684092 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"),
    ("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
    ("/proc/self/cgroup", "4:memory:/\n"),
];

/// When a machine stops its process: in the middle of the n-th call on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Never,
    /// Before the call reaches the kernel: the journal is written, the setting is not.
    Before(&'static str, u64),
    /// After it: the setting is written, nothing is read back.
    After(&'static str, u64),
}

/// How a machine misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The pool never has more pages.
    PoolHolds(u64),
    /// The pool has the pages, and meminfo does not say so.
    MeminfoDiffers,
    /// A write succeeds and does nothing.
    Lies(&'static str),
    /// A write fails.
    Refuses(&'static str, Errno),
}

/// A kernel over a tree: the fake one's, or with `is_fake == false` this machine's.
#[derive(Debug)]
pub struct Machine {
    tree: FileKernel,
    is_fake: bool,
    fault: Fault,
    pub stop: Stop,
    calls: AtomicU64,
}

impl Machine {
    pub fn fake(base: &Path) -> Machine {
        let tree = FileKernel::with_base(base).unwrap();
        Machine { tree, is_fake: true, fault: Fault::None, stop: Stop::Never, calls: AtomicU64::new(0) }
    }

    pub fn with_fault(self, fault: Fault) -> Machine {
        Machine { fault, ..self }
    }

    pub fn live() -> Machine {
        let tree = FileKernel::live().unwrap();
        Machine { tree, is_fake: false, fault: Fault::None, stop: Stop::Never, calls: AtomicU64::new(0) }
    }

    /// The kernel's list of swap areas, which a fake machine keeps itself.
    fn list_swap(&self, path: &str, is_on: bool) -> io::Result<()> {
        let text = self.tree.read(SWAPS)?;
        let others = text.lines().filter(|line| line.split(' ').next() != Some(path));
        let mut text: String = others.map(|line| format!("{line}\n")).collect();
        if is_on {
            text += &format!("{path} file 1020 0 32767\n");
        }
        self.tree.write(SWAPS, &text)
    }

    fn stop_around<T>(&self, path: &str, call: impl FnOnce() -> T) -> T {
        let (wanted, is_before, nth) = match self.stop {
            Stop::Never => return call(),
            Stop::Before(path, nth) => (path, true, nth),
            Stop::After(path, nth) => (path, false, nth),
        };
        // A cgroup's name contains the PID, so the expected path is a prefix.
        let is_it = path.starts_with(wanted) && self.calls.fetch_add(1, Ordering::SeqCst) + 1 == nth;
        if is_it && is_before {
            stop_this_process();
        }
        let result = call();
        if is_it && !is_before {
            stop_this_process();
        }
        result
    }

    fn write_as_kernel(&self, path: &str, text: &str) -> io::Result<()> {
        match self.fault {
            Fault::Lies(lied) if lied == path => return Ok(()),
            Fault::Refuses(refused, errno) if refused == path => return Err(errno.into()),
            _ => {}
        }
        if !self.is_fake {
            return self.tree.write(path, text);
        }
        if path.starts_with("/sys/kernel/mm/transparent_hugepage/") {
            self.choose(path, text)?;
            return if path == ENABLED { self.recompute_min_free(text) } else { Ok(()) };
        }
        if path == POOL {
            let asked: u64 = text.parse().map_err(|_| Errno::INVAL)?;
            let got = if let Fault::PoolHolds(most) = self.fault { asked.min(most) } else { asked };
            let surplus: u64 = self.tree.read(SURPLUS)?.trim().parse().map_err(|_| Errno::INVAL)?;
            let total = got + surplus;
            let meminfo = format!("HugePages_Total:       {total}\nHugepagesize:       2048 kB\n");
            if self.fault != Fault::MeminfoDiffers {
                self.tree.write("/proc/meminfo", &meminfo)?;
            }
            return self.tree.write(path, &format!("{total}\n"));
        }
        self.tree.write(path, &format!("{text}\n"))
    }

    fn choose(&self, path: &str, word: &str) -> io::Result<()> {
        let now = self.tree.read(path)?.replace(['[', ']'], "");
        let options: Vec<&str> = now.split_ascii_whitespace().collect();
        if !options.contains(&word) {
            return Err(Errno::INVAL.into());
        }
        let bracketed: Vec<String> =
            options.iter().map(|&o| if o == word { format!("[{o}]") } else { o.to_owned() }).collect();
        self.tree.write(path, &(bracketed.join(" ") + "\n"))
    }

    /// As mm/khugepaged.c: never a smaller value with THP; without, its own where it is larger than the
    /// user's, which here is any value that is not one of the two computed ones.
    fn recompute_min_free(&self, mode: &str) -> io::Result<()> {
        let now: u64 = self.tree.read(MIN_FREE)?.trim().parse().map_err(|_| Errno::INVAL)?;
        let next = match mode {
            "never" => MIN_FREE_WITHOUT_THP,
            _ => now.max(MIN_FREE_WITH_THP),
        };
        self.tree.write(MIN_FREE, &format!("{next}\n"))
    }
}

fn stop_this_process() {
    // Sent to this thread itself, the signal takes effect before the call returns; it stops all threads.
    signal_hook::low_level::raise(signal_hook::consts::SIGSTOP).unwrap();
}

impl Kernel for Machine {
    fn read(&self, path: &str) -> io::Result<String> {
        self.tree.read(path)
    }
    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.stop_around(path, || self.write_as_kernel(path, text))
    }
    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.stop_around(path, || self.tree.make_dir(path))
    }
    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.stop_around(path, || self.tree.remove_dir(path))
    }
    fn inode(&self, path: &str) -> io::Result<u64> {
        self.tree.inode(path)
    }
    fn mount_debugfs(&self, at: &str) -> io::Result<()> {
        self.stop_around(at, || self.tree.mount_debugfs(at))
    }
    fn unmount(&self, at: &str) -> io::Result<()> {
        self.stop_around(at, || self.tree.unmount(at))
    }
    fn fs_space(&self, dir: &str) -> io::Result<FsSpace> {
        let (real, ext4) = (self.tree.fs_space(dir)?, 0xef53);
        if self.is_fake {
            Ok(FsSpace { magic: ext4, free: Bytes(8 << 30), total: Bytes(9 << 30) })
        } else {
            Ok(real)
        }
    }
    fn make_swap_file(&self, path: &str, size: Bytes, header: &[u8]) -> io::Result<()> {
        self.stop_around(path, || self.tree.make_swap_file(path, size, header))
    }
    fn swap_on(&self, path: &str, priority: u16) -> io::Result<()> {
        self.stop_around(path, || match (self.fault, self.is_fake) {
            (Fault::Refuses(SWAPS, errno), _) => Err(errno.into()),
            (Fault::Lies(SWAPS), _) => Ok(()),
            (_, true) => self.list_swap(path, true),
            (_, false) => self.tree.swap_on(path, priority),
        })
    }
    fn swap_off(&self, path: &str) -> io::Result<()> {
        self.stop_around(path, || match self.is_fake {
            true => self.list_swap(path, false),
            false => self.tree.swap_off(path),
        })
    }
    fn file_inode(&self, path: &str) -> io::Result<u64> {
        self.tree.file_inode(path)
    }
    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.stop_around(path, || self.tree.remove_file(path))
    }
}

/// The files of a fake machine, and its journals beside them.
pub struct MachineFiles {
    base: tempfile::TempDir,
}

impl MachineFiles {
    pub fn new() -> MachineFiles {
        // In memory where possible: some tests make hundreds.
        let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for (path, text) in FILES {
            let path = base.path().join(&path[1..]);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for folder in [CGROUPS, SWAP_DIR, INSTANCES] {
            fs::create_dir_all(base.path().join(&folder[1..])).unwrap();
        }
        MachineFiles { base }
    }

    pub fn base(&self) -> &Path {
        self.base.path()
    }

    pub fn journals(&self) -> PathBuf {
        self.base().join("journals")
    }

    pub fn site(&self) -> GuardSite {
        self.site_with(Machine::fake(self.base()))
    }

    pub fn site_with(&self, machine: Machine) -> GuardSite {
        site_at(machine, &self.journals())
    }

    pub fn guard(&self) -> Guard {
        self.guard_with(Machine::fake(self.base()))
    }

    pub fn guard_with(&self, machine: Machine) -> Guard {
        Guard::new(&self.site_with(machine), SignalWatch::without_handler(), GuardOptions::default()).unwrap()
    }

    /// The value of a setting; the bracketed word of a choice.
    pub fn value(&self, path: &str) -> String {
        let text = fs::read_to_string(self.base().join(&path[1..])).unwrap();
        match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            Some((word, _)) => word.to_owned(),
            None => text.trim().to_owned(),
        }
    }

    /// Sets as an administrator would, past pagelab.
    pub fn set_file(&self, path: &str, value: &str) {
        Machine::fake(self.base()).write_as_kernel(path, value).unwrap();
    }

    /// All settings and cgroups, to compare before and after.
    pub fn contents(&self) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> = FILES
            .iter()
            .filter(|(path, _)| *path != COMPACT && *path != "/proc/meminfo")
            .map(|(path, _)| ((*path).to_owned(), self.value(path)))
            .collect();
        for folder in [CGROUPS, SWAP_DIR, INSTANCES] {
            let entries = fs::read_dir(self.base().join(&folder[1..])).unwrap();
            all.extend(entries.map(|entry| (entry.unwrap().path().display().to_string(), String::new())));
        }
        all
    }

    /// The journal files that are there now.
    pub fn journal_names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.journals()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub fn site_at(machine: Machine, journals: &Path) -> GuardSite {
    GuardSite::new(Arc::new(machine), JournalDir::from_path(journals)).unwrap()
}
