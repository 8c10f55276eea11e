//! Tests of observations of the machines of the corpus, and of this machine.
#![allow(clippy::unwrap_used)]

#[path = "../../pagelab-formats/tests/support/corpus.rs"]
mod corpus;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use corpus::corpus_folder;
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsenceReason, Snapshot};

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("pagelab-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn why<T>(reading: &Result<T, Absence>) -> Option<AbsenceReason> {
    reading.as_ref().err().map(|absence| absence.why)
}

#[test]
fn machines_of_the_corpus_show_what_was_saved_and_nothing_else() {
    let Some(corpus) = corpus_folder("proc") else { return };
    let mut machines = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        let from = entry.unwrap().path();
        let folder = Folder::new("corpus");
        let proc = folder.0.join("proc");
        fs::create_dir_all(proc.join("sys/kernel")).unwrap();
        for file in fs::read_dir(&from).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            let to = match name.as_str() {
                "osrelease" => "sys/kernel/osrelease",
                "BUDDYINFO_1" => "buddyinfo",
                other => other,
            };
            fs::copy(file.path(), proc.join(to)).unwrap();
        }
        let root = Root::open(&folder.0).unwrap();
        let reader = Reader::new(&root);
        let options = CollectOptions { pagetypeinfo: true, ..CollectOptions::default() };
        let snapshot = collect(&reader, &options);
        let place = from.display();
        assert_eq!(snapshot.problems, [], "{place}");
        for (file, absent) in [
            ("buddyinfo", why(&snapshot.buddyinfo)),
            ("meminfo", why(&snapshot.meminfo)),
            ("vmstat", why(&snapshot.vmstat)),
            ("zoneinfo", why(&snapshot.zoneinfo)),
            ("pagetypeinfo", why(&snapshot.pagetypeinfo)),
            ("version", why(&snapshot.machine.kernel_version)),
            ("cmdline", why(&snapshot.machine.kernel_cmdline)),
            ("cpuinfo", why(&snapshot.machine.cpu)),
            ("swaps", why(&snapshot.settings.swap)),
            ("kmsg.txt", why(&snapshot.alloc_failures)),
            ("slabinfo", why(&snapshot.slabs)),
        ] {
            let expected = (!proc.join(file).exists()).then_some(AbsenceReason::NotSaved);
            assert_eq!(absent, expected, "{place}: {file}");
        }
        if proc.join("version").exists() {
            assert!(snapshot.machine.kernel_release.is_ok(), "{place}");
        }
        if let Ok(types) = &snapshot.pagetypeinfo {
            assert_eq!(Some(snapshot.pageblock_order), types.pageblock_order, "{place}");
        }
        assert_eq!(snapshot.machine.page_size_source, "assumed", "{place}");
        assert!(snapshot.instruments.iter().any(|i| i.absence().is_some()), "{place}");
        machines += 1;
    }
    assert_eq!(machines, 12);
}

/// Files that a snapshot of a machine parses.
const FILES: [&str; 24] = [
    "proc/buddyinfo",
    "proc/meminfo",
    "proc/vmstat",
    "proc/zoneinfo",
    "proc/pagetypeinfo",
    "proc/pressure/memory",
    "proc/slabinfo",
    "proc/allocinfo",
    "proc/swaps",
    "proc/cpuinfo",
    "proc/iomem",
    "proc/uptime",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/smaps",
    "proc/7/statm",
    "proc/7/status",
    "proc/7/smaps_rollup",
    "proc/7/smaps",
    "dev/kmsg",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/devices/system/node/online",
    "sys/devices/system/memory/block_size_bytes",
];

/// Snapshot of a tree in which `make` creates each of [`FILES`], with all options on.
fn of_hostile(name: &str, make: impl Fn(&Path)) -> Snapshot {
    let folder = Folder::new(name);
    for file in FILES {
        let path = folder.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        make(&path);
    }
    let root = Root::open(&folder.0).unwrap();
    let reader = Reader::new(&root);
    let mut options = CollectOptions { pagetypeinfo: true, ..CollectOptions::default() };
    options.processes.with_smaps = true;
    collect(&reader, &options)
}

#[test]
fn garbage_is_named_by_file_and_never_believed() {
    let long = vec![b'9'; 1 << 20];
    let garbage: [&[u8]; 5] = [b"", b"\0\0\0\0", b"\xff\xfe:\n;,-[]\n", b"-1 kB\n", &long];
    for (number, content) in garbage.iter().enumerate() {
        let snapshot = of_hostile(&format!("garbage{number}"), |path| fs::write(path, content).unwrap());
        assert!(snapshot.problems.len() >= 10, "{number}: {:?}", snapshot.problems);
        for problem in &snapshot.problems {
            let named = FILES.iter().any(|file| problem.message.contains(file));
            assert!(problem.is_bad_input && named, "{number}: {problem:?}");
        }
        assert!(snapshot.meminfo.is_err() && snapshot.buddyinfo.is_err() && snapshot.processes.is_ok());
    }
}

#[test]
fn directories_and_links_out_of_the_tree_are_refused() {
    let dirs = of_hostile("dirs", |path| fs::create_dir(path).unwrap());
    assert_eq!(why(&dirs.meminfo), Some(AbsenceReason::Malformed));
    let links = of_hostile("links", |path| std::os::unix::fs::symlink("/proc/meminfo", path).unwrap());
    assert!(links.meminfo.is_err(), "{:?}", links.meminfo);
    let up = "../../../../../../../../proc/meminfo";
    let links = of_hostile("up", |path| std::os::unix::fs::symlink(up, path).unwrap());
    assert!(links.meminfo.is_err(), "{:?}", links.meminfo);
}

fn live() -> Snapshot {
    let root = Root::live();
    let reader = Reader::new(&root);
    collect(&reader, &CollectOptions::default())
}

/// The test below also runs it as an unprivileged user.
#[test]
fn this_machine_yields_all_readable_files_and_reasons_for_the_others() {
    let snapshot = live();
    assert_eq!(snapshot.problems, []);
    let free = snapshot.meminfo.as_ref().unwrap().bytes("MemFree").unwrap();
    assert!(free.0 > 0 && snapshot.buddyinfo.as_ref().unwrap().free_pages() > 0);
    assert!(snapshot.vmstat.as_ref().unwrap().get("nr_free_pages").is_some());
    assert!(!snapshot.zoneinfo.as_ref().unwrap().zones.is_empty());
    assert!(snapshot.machine.cpu.as_ref().unwrap().threads > 0);
    assert_eq!(snapshot.machine.page_size_source, "sysconf");
    assert_eq!(why(&snapshot.census), Some(AbsenceReason::NotRequested));
    assert_eq!(why(&snapshot.pagetypeinfo), Some(AbsenceReason::NotRequested));
    assert!(snapshot.settings.vm.get("min_free_kbytes").is_some());
    assert_eq!(snapshot.settings.vm.get("stat_refresh"), None);
    let own = std::process::id();
    let coverage = snapshot.processes.as_ref().unwrap();
    assert!(coverage.processes_total > 0, "process {own} at least");
    for instrument in &snapshot.instruments {
        if let Some(absence) = instrument.absence() {
            let whole = !absence.reason().is_empty() && !absence.reason().ends_with('.');
            let says_how = absence.hint.is_some() || absence.why == AbsenceReason::Failed;
            assert!(whole && says_how, "{}: {absence:?}", instrument.name);
        }
    }
    if snapshot.taken.euid != Some(0) {
        let state = |name: &str| {
            let found = snapshot.instruments.iter().find(|i| i.name == name).unwrap();
            found.absence().map(|absence| absence.why)
        };
        assert_ne!(state("kpageflags"), None);
        assert_eq!(state("pagemap_pfns"), Some(AbsenceReason::NotPermitted));
        assert_eq!(why(&snapshot.machine.ram), Some(AbsenceReason::NotPermitted));
        assert!(matches!(
            why(&snapshot.slabs),
            None | Some(AbsenceReason::NotPermitted | AbsenceReason::NotThere)
        ));
    }
}

#[test]
fn an_unprivileged_user_gets_the_same_without_privileged_files() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // The build folder need not be readable for others.
    let folder = Folder::new("unprivileged");
    let copy = folder.0.join("collect");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "this_machine_yields_all_readable_files_and_reasons_for_the_others"])
        .current_dir(&folder.0)
        .gid(65534)
        .uid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
