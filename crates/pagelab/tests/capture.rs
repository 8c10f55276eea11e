//! Tests of `pagelab capture`: its files read back the same, and it never leaves an incomplete one.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail like the tests")]

#[path = "support/binary.rs"]
mod binary;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use binary::binary;
use pagelab_host::root::Root;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

fn pagelab(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).current_dir(folder).output().unwrap()
}

#[track_caller]
fn expect(output: &Output, code: i32, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(part), "wanted {part:?} in {said:?}");
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A small tree in the form of `/`, so that a test does not depend on the machine.
fn small_tree(at: &Path) -> PathBuf {
    let tree = at.join("tree");
    for (path, text) in [
        ("proc/buddyinfo", "Node 0, zone   Normal      1      2      3 \n"),
        ("proc/meminfo", "MemTotal:       16 kB\n"),
        ("proc/sys/kernel/hostname", "kitchen-sink\n"),
        ("proc/sys/vm/swappiness", "60\n"),
        ("proc/sys/vm/drop_caches", "0\n"),
        ("proc/self/cgroup", "0::/job/kitchen\n"),
        (
            "proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n9 1 0:1 / / rw - ext4 /dev/kitchen rw\n",
        ),
        ("sys/fs/cgroup/job/kitchen/memory.max", "1048576\n"),
        ("sys/fs/cgroup/job/memory.max", "max\n"),
        ("proc/77/statm", "100 50 1 1 0 1 0\n"),
        ("proc/77/status", "Name:\tkitchend\nPid:\t77\nVmRSS:\t200 kB\nGroups:\t1 2\n"),
        ("proc/77/comm", "kitchend\n"),
        ("proc/77/cmdline", "kitchend\0--password=kitchen\0"),
        (
            "proc/77/smaps_rollup",
            "55d0c5a7e000-7ffd12345000 ---p 00000000 00:00 0    [rollup]\nRss:  200 kB\n",
        ),
        ("proc/78/statm", "0 0 0 0 0 0 0\n"),
        ("proc/kpageflags", "12345678abcdefgh"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 16 kB\n"),
        ("sys/devices/system/memory/memory7/state", "online\n"),
        ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1\n"),
        ("sys/kernel/debug/extfrag/unusable_index", "Node 0, zone   Normal 0.000 \n"),
        ("sys/kernel/debug/extfrag/extfrag_index", "Node 0, zone   Normal -1.000 \n"),
        ("dev/kmsg", "4,1,2,-;kitchend: page allocation failure: order:9\n6,2,3,-;kitchen fire\n"),
    ] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    symlink("../../memory/memory7", tree.join("sys/devices/system/node/node0/memory7")).unwrap();
    symlink("..", tree.join("sys/kernel/mm/transparent_hugepage/khugepaged/circle")).unwrap();
    tree
}

#[test]
fn a_tree_is_taken_without_names_and_reads_back_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let tree = Root::open(&small_tree(temp.path())).unwrap();
    for target in ["folder", "archive.tar.zst"] {
        let output = pagelab(temp.path(), &["capture", target, "--root", "tree"]);
        expect(&output, 0, "no watermarks");
        let taken = Root::open(&temp.path().join(target)).unwrap();
        let manifest = taken.manifest().unwrap();
        for file in &manifest.files {
            let (original, stored) = (tree.read(&file.path).unwrap(), taken.read(&file.path).unwrap());
            assert_eq!(original == stored, file.alteration.is_none(), "{}", file.path);
            assert_eq!(original.len() as u64, file.bytes, "{}", file.path);
        }
        let paths: BTreeSet<&str> = manifest.files.iter().map(|file| &*file.path).collect();
        let want = [
            "/dev/kmsg",
            "/proc/77/smaps_rollup",
            "/proc/77/statm",
            "/proc/77/status",
            "/proc/buddyinfo",
            "/proc/kpageflags",
            "/proc/meminfo",
            "/proc/self/cgroup",
            "/proc/self/mountinfo",
            "/proc/sys/vm/swappiness",
            "/sys/devices/system/memory/memory7/state",
            "/sys/devices/system/node/node0/meminfo",
            "/sys/fs/cgroup/job/kitchen/memory.max",
            "/sys/fs/cgroup/job/memory.max",
            "/sys/kernel/debug/extfrag/extfrag_index",
            "/sys/kernel/debug/extfrag/unusable_index",
            "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
        ];
        assert_eq!(paths, BTreeSet::from(want));
        // The link of the node to its memory block leads to the block.
        assert_eq!(taken.read("/sys/devices/system/node/node0/memory7/state").unwrap(), b"online\n");
        let log = taken.read("/dev/kmsg").unwrap();
        assert_eq!(log, b"4,1,2,-;process: page allocation failure: order:9\n");
        for file in &manifest.files {
            let text = String::from_utf8_lossy(&taken.read(&file.path).unwrap()).into_owned();
            // The path of a control group is captured, and listed.
            assert!(!text.contains("kitchen") || file.path == "/proc/self/cgroup", "{}: {text}", file.path);
            assert!(!text.contains("55d0c5a7e000"), "{}: {text}", file.path);
        }
        let status = taken.read("/proc/77/status").unwrap();
        assert_eq!(String::from_utf8_lossy(&status), "Name:\t\nPid:\t77\nVmRSS:\t200 kB\n");
        assert_eq!(manifest.host_name, None);
        assert!(manifest.redactions.iter().any(|text| text.contains("host name")));
    }
}

#[test]
fn names_are_captured_on_request() {
    let temp = tempfile::tempdir().unwrap();
    let tree = Root::open(&small_tree(temp.path())).unwrap();
    let arguments =
        ["capture", "x.tar.zst", "--root", "tree", "--with-processes", "--without-kpageflags", "--json"];
    let output = pagelab(temp.path(), &arguments);
    expect(&output, 0, "");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let taken = Root::open(&temp.path().join("x.tar.zst")).unwrap();
    for path in ["/proc/77/status", "/proc/77/cmdline", "/proc/77/comm", "/proc/sys/kernel/hostname"] {
        assert_eq!(taken.read(path), tree.read(path).map_err(|_| unreachable!()), "{path}");
    }
    assert!(taken.read("/proc/kpageflags").is_err());
    assert_eq!(summary["kind"], "capture");
    assert_eq!(summary["bytes"], fs::metadata(temp.path().join("x.tar.zst")).unwrap().len());
    let not_requested = |row: &&Value| row["path"] == "/proc/kpageflags" && row["kind"] == "not_requested";
    assert_eq!(summary["absent"].as_array().unwrap().iter().filter(not_requested).count(), 1);
}

#[test]
fn this_machine_is_taken_and_reads_back() {
    let temp = tempfile::tempdir().unwrap();
    expect(&pagelab(temp.path(), &["capture", "here.tar.zst"]), 0, "");
    assert_eq!(names(temp.path()), BTreeSet::from(["here.tar.zst".to_owned()]));
    let path = temp.path().join("here.tar.zst");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (live, taken) = (Root::live(), Root::open(&path).unwrap());
    let manifest = taken.manifest().unwrap();
    assert_eq!(manifest.page_size.unwrap().bytes(), rustix::param::page_size() as u64);
    for path in ["/proc/version", "/proc/cmdline", "/proc/self/cgroup", "/proc/sys/vm/swappiness"] {
        assert_eq!(taken.read(path), live.read(path), "{path}");
    }
    for file in &manifest.files {
        let mut stream = taken.open_reader(&file.path).unwrap();
        let length = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        match (&file.alteration, file.path.ends_with("kpageflags")) {
            (None, false) => assert_eq!((length, length), (file.bytes, file.stored_bytes), "{}", file.path),
            (None, true) => assert_eq!(length, file.bytes),
            (Some(_), _) => assert_eq!(length, file.stored_bytes, "{}", file.path),
        }
        assert!(file.read_start_ns >= manifest.boottime_ns.unwrap(), "{}", file.path);
    }
    if is_root() && Path::new("/proc/kpageflags").exists() {
        let mut stream = live.open_reader("/proc/kpageflags").unwrap();
        let length = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        assert_eq!(manifest.file("/proc/kpageflags").unwrap().bytes, length);
    } else {
        eprintln!("skipped: not-root: the length of kpageflags is not compared");
    }
}

#[test]
fn an_existing_output_is_not_overwritten() {
    let temp = tempfile::tempdir().unwrap();
    small_tree(temp.path());
    let capture = |target: &str, more: &[&str]| {
        let arguments = [&["capture", target, "--root", "tree"], more].concat();
        pagelab(temp.path(), &arguments)
    };
    fs::create_dir(temp.path().join("precious")).unwrap();
    fs::write(temp.path().join("precious/photo"), "x").unwrap();
    fs::write(temp.path().join("old.tar.zst"), "old").unwrap();
    symlink("precious", temp.path().join("link")).unwrap();
    symlink("precious/photo", temp.path().join("link.tar.zst")).unwrap();
    for (target, more, part) in [
        ("old.tar.zst", &[][..], "cannot write old.tar.zst: it already exists"),
        ("precious", &[], "cannot write precious: it already exists"),
        ("precious", &["--force"], "not a directory written by capture"),
        ("link", &["--force"], "not a directory written by capture"),
        ("link.tar.zst", &["--force"], "not a file"),
        ("x.tar.gz", &[], ".tar.gz is not supported"),
        ("..", &[], "expected a file name"),
    ] {
        expect(&capture(target, more), 2, part);
    }
    expect(&capture("no/where", &[]), 3, "no directory no");
    // This folder is there, and takes no files.
    for target in ["/proc/x", "/proc/x.tar.zst"] {
        expect(&capture(target, &[]), 4, "the directory is not writable");
    }
    assert_eq!(fs::read(temp.path().join("old.tar.zst")).unwrap(), b"old");
    expect(&capture("old.tar.zst", &["--force"]), 0, "");
    assert!(Root::open(&temp.path().join("old.tar.zst")).unwrap().manifest().is_some());
    expect(&capture("again", &[]), 0, "");
    fs::write(temp.path().join("again/mark"), "old").unwrap();
    expect(&capture("again", &["--force"]), 0, "");
    assert!(!temp.path().join("again/mark").exists());
    assert_eq!(fs::read(temp.path().join("precious/photo")).unwrap(), b"x");
    assert!(!names(temp.path()).iter().any(|name| name.contains(".part")), "{:?}", names(temp.path()));
}

#[test]
fn leftovers_of_a_killed_capture_are_replaced_and_foreign_files_kept() {
    let temp = tempfile::tempdir().unwrap();
    small_tree(temp.path());
    let at = |name: &str| temp.path().join(name);
    fs::write(at("a.tar.zst.part"), "half").unwrap();
    fs::create_dir(at("b.part")).unwrap();
    fs::write(at("b.part/pagelab-capture.part"), "").unwrap();
    fs::write(at("b.part/half"), "").unwrap();
    fs::create_dir(at("c.part")).unwrap();
    fs::write(at("c.part/photo"), "x").unwrap();
    symlink("c.part/photo", at("d.tar.zst.part")).unwrap();
    let busy = fs::File::create(at("e.tar.zst.part")).unwrap();
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for (target, code, part) in [
        ("a.tar.zst", 0, ""),
        ("b", 0, ""),
        ("c", 5, "c.part already exists"),
        ("d.tar.zst", 5, "cannot write d.tar.zst"),
        ("e.tar.zst", 5, "another pagelab process is writing it"),
    ] {
        expect(&pagelab(temp.path(), &["capture", target, "--root", "tree"]), code, part);
        assert_eq!(at(target).exists(), code == 0, "{target}");
    }
    assert_eq!(fs::read(at("c.part/photo")).unwrap(), b"x");
    assert!(!at("a.tar.zst.part").exists() && !at("b.part").exists());
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_under_the_name() {
    let temp = tempfile::tempdir().unwrap();
    let tree = small_tree(temp.path());
    // Long enough to be met half-way: noise, so that it does not shrink.
    let noise: Vec<u8> =
        (0..6u64 << 20).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    fs::write(tree.join("proc/kpageflags"), noise).unwrap();
    let mut met = 0;
    for (round, target) in ["x.tar.zst", "x"].iter().cycle().take(16).enumerate() {
        let mut child = Command::new(binary())
            .args(["capture", target, "--root", "tree"])
            .current_dir(temp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed when so much of the capture is written, or when it has ended.
        let part = temp.path().join(format!("{target}.part"));
        let bytes_min = round as u64 * (512 << 10);
        while written_bytes(&part) < bytes_min.max(1) && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        let killed = child.wait().unwrap().code().is_none();
        let path = temp.path().join(target);
        if killed {
            met += u32::from(temp.path().join(format!("{target}.part")).exists());
        }
        // It may have got its name just before the kill; then it is whole.
        if path.exists() {
            let taken = Root::open(&path).unwrap();
            assert!(taken.manifest().is_some(), "round {round}");
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.unwrap();
        }
    }
    assert!(met > 0, "no kill met a capture half-way: the test does not test");
    // After all these, a capture goes through and leaves nothing beside it.
    expect(&pagelab(temp.path(), &["capture", "x.tar.zst", "--root", "tree"]), 0, "");
    expect(&pagelab(temp.path(), &["capture", "x", "--root", "tree"]), 0, "");
    assert_eq!(names(temp.path()), BTreeSet::from(["tree", "x", "x.tar.zst"].map(str::to_owned)));
}

/// Bytes of a file, or of all files of a directory; 0 where it is absent.
fn written_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return fs::metadata(path).map_or(0, |file| file.len()) };
    entries.flatten().map(|entry| written_bytes(&entry.path())).sum()
}

#[test]
fn an_interrupted_capture_removes_its_partial_file() {
    let temp = tempfile::tempdir().unwrap();
    let tree = small_tree(temp.path());
    // Enough files that a signal meets the capture between two of them.
    for node in 0..40_000 {
        fs::write(tree.join(format!("proc/sys/vm/setting_{node}")), "1\n").unwrap();
    }
    for (target, signal, code) in
        [("x.tar.zst", Signal::TERM, 143), ("x", Signal::INT, 130), ("y", Signal::HUP, 129)]
    {
        let mut command = Command::new(binary());
        command.args(["capture", target, "--root", "tree"]).current_dir(temp.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        pagelab_sys::spawn::reset_signals(&mut command);
        let child = command.spawn().unwrap();
        let part = temp.path().join(format!("{target}.part"));
        let patience = Instant::now();
        while !part.exists() {
            assert!(patience.elapsed() < Duration::from_secs(120), "no {}", part.display());
            std::thread::sleep(Duration::from_millis(1));
        }
        // Not by a program, whose start takes a good part of the capture.
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        expect(&output, code, &format!("{target}: stopped"));
        assert_eq!(names(temp.path()), BTreeSet::from(["tree".to_owned()]), "{signal:?}");
    }
}

#[test]
fn a_full_disk_is_reported_and_leaves_nothing() {
    if !is_root() {
        eprintln!("skipped: not-root: a small tmpfs cannot be mounted");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let tree = small_tree(temp.path());
    let noise: Vec<u8> =
        (0..1u64 << 19).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    fs::write(tree.join("proc/kpageflags"), noise).unwrap();
    let disk = temp.path().join("disk");
    fs::create_dir(&disk).unwrap();
    for target in ["x.tar.zst", "x"] {
        let script = "mount -t tmpfs -o size=1m none disk || exit 99
            $1 capture disk/$2 --root tree; code=$?; ls -A disk; exit $code";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh", binary(), target])
            .current_dir(temp.path())
            .output()
            .unwrap();
        if output.status.code() == Some(99) || String::from_utf8_lossy(&output.stderr).contains("unshare:") {
            eprintln!("skipped: no-mount: {}", String::from_utf8_lossy(&output.stderr).trim());
            return;
        }
        expect(&output, 5, "no space");
        expect(&output, 5, "nothing was kept under that name");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{target}");
    }
}

#[test]
fn a_user_without_rights_gets_everything_that_is_readable() {
    let temp: TempDir = tempfile::tempdir().unwrap();
    let copy = temp.path().join("pagelab");
    fs::copy(binary(), &copy).unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(&copy);
    if is_root() {
        command.uid(65_534).gid(65_534);
    }
    let output = command.args(["capture", "x.tar.zst"]).current_dir(temp.path()).output().unwrap();
    expect(&output, 0, "/proc/kpageflags: permission denied (run as root): no count of polluted pageblocks");
    expect(&output, 0, "entries are missing");
    // The one who reads it here may not be the one who wrote it.
    let taken = Root::open(&temp.path().join("x.tar.zst")).unwrap();
    assert!(taken.read("/proc/buddyinfo").is_ok() && taken.read("/proc/kpageflags").is_err());
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o555)).unwrap();
    if is_root() {
        command = Command::new(&copy);
        command.uid(65_534).gid(65_534);
        let output = command.args(["capture", "y.tar.zst"]).current_dir(temp.path()).output().unwrap();
        expect(&output, 4, "hint: choose a writable location");
    }
}

#[test]
fn bad_roots_are_bad_input() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("garbage"), [7; 5000]).unwrap();
    fs::create_dir(temp.path().join("empty")).unwrap();
    for (root, part) in [
        ("nowhere", "nowhere: no such file or directory; expected a directory"),
        ("garbage", "garbage: neither a directory nor a tar archive"),
        ("empty", "empty: none of the expected files is there"),
        ("/dev/null", "neither a directory nor a file"),
    ] {
        expect(&pagelab(temp.path(), &["capture", "x", "--root", root]), 3, part);
    }
    expect(&pagelab(temp.path(), &["capture"]), 2, "DIR|FILE.tar.zst");
    assert_eq!(names(temp.path()), BTreeSet::from(["empty", "garbage"].map(str::to_owned)));
    let listed = pagelab(temp.path(), &["capture", "--list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("/proc/buddyinfo\n    memory: "));
}

#[test]
fn a_capture_keeps_the_oom_kills_that_checkup_reports() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    let log = "6,1,9,-;secret: prose\n\
               6,2,10,-;memory: usage 65536kB, limit 65536kB, failcnt 42\n\
               6,3,11,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/jobs/secret,task_memcg=/jobs/secret,task=secret\n\
               3,4,12,-;Memory cgroup out of memory: Killed process 7 (secret) total-vm:9kB\n";
    for (path, text) in [("dev/kmsg", log), ("proc/vmstat", "nr_free_pages 1\noom_kill 1\n")] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let kinds = |root: &str| {
        let output = pagelab(temp.path(), &["checkup", "--json", "--root", root]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ids: Vec<String> =
            json["findings"].as_array().unwrap().iter().map(|of| of["id"].to_string()).collect();
        let last = json["findings"][0]["next"].as_array().unwrap().last().unwrap().to_string();
        (ids, last, json["allocation_failures"]["kills"][0]["limit_bytes"].clone())
    };
    let (ids, remedy, limit) = kinds("tree");
    assert_eq!(ids, ["\"cgroup_oom_kills\""]);
    assert_eq!(remedy, "\"dmesg | grep -F /jobs/secret\"");
    assert_eq!(limit, 64 << 20);
    expect(&pagelab(temp.path(), &["capture", "taken", "--root", "tree"]), 0, "");
    let stored = Root::open(&temp.path().join("taken")).unwrap().read("/dev/kmsg").unwrap();
    assert!(!String::from_utf8(stored).unwrap().contains("secret"));
    let (ids, remedy, _) = kinds("taken");
    assert_eq!(ids, ["\"cgroup_oom_kills\""]);
    assert!(remedy.starts_with("\"grep -r --include=memory.events"), "{remedy}");
    expect(&pagelab(temp.path(), &["capture", "without", "--root", "tree", "--without-kernel-log"]), 0, "");
    assert!(!temp.path().join("without/dev/kmsg").exists());
}
