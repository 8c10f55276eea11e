//! Tests of `pagelab checkup --root` on hostile trees: every file that it reads, with every kind of damage.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail where they stand")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use support::{Lab, binary};

/// Files that a look reads, and whether their harm is bad input (exit 3) or no part of a saved tree.
const FILES: [&str; 16] = [
    "proc/buddyinfo",
    "proc/meminfo",
    "proc/vmstat",
    "proc/zoneinfo",
    "proc/pagetypeinfo",
    "proc/slabinfo",
    "proc/allocinfo",
    "proc/pressure/memory",
    "proc/cpuinfo",
    "proc/swaps",
    "proc/iomem",
    "proc/kpageflags",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/devices/system/memory/block_size_bytes",
];

/// Does harm at a path that does not exist yet.
type Harm = fn(&Path);

/// Kinds of harm.
const HARMS: [(&str, Harm); 7] = [
    ("binary garbage", |path| {
        let noise: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(path, noise).unwrap();
    }),
    ("one endless line", |path| fs::write(path, "9".repeat(3_000_000)).unwrap()),
    ("many short lines", |path| fs::write(path, "Node 0, zone x 1\n".repeat(200_000)).unwrap()),
    ("1 GiB of nothing", |path| File::create(path).unwrap().set_len(1 << 30).unwrap()),
    ("a FIFO", |path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }),
    ("a directory", |path| fs::create_dir_all(path.join("below")).unwrap()),
    ("a link out of the tree", |path| symlink("../../../../../../../../../etc/passwd", path).unwrap()),
];

/// A small tree that is in order.
fn sound() -> Lab {
    let lab = Lab::new();
    lab.write("proc/buddyinfo", "Node 0, zone   Normal      1      2      3      4 \n");
    lab.write("proc/meminfo", "MemTotal:        4194304 kB\nMemFree:             196 kB\n");
    lab.write("proc/vmstat", "nr_free_pages 1\nthp_fault_alloc 1\nthp_fault_fallback 0\n");
    lab.write(
        "proc/zoneinfo",
        "Node 0, zone   Normal\n  pages free     49\n        min      1\n        spanned  4096\n\
                  present  4096\n        managed  4096\n  start_pfn:           0\n",
    );
    lab
}

/// Runs with 1 GiB of address space and 20 s of CPU time: what needs more has no bound. It is killed if it
/// blocks in a file.
fn bounded(lab: &Lab) -> Output {
    let limits = "ulimit -v 1048576; ulimit -t 20; exec timeout -s KILL 300";
    let script = format!("{limits} \"$0\" checkup -v --deep --migratetypes --root .");
    Command::new("sh").args(["-c", &script]).arg(binary()).current_dir(lab.path()).output().unwrap()
}

#[test]
fn a_checkup_of_hostile_files_ends_with_a_report_or_an_error() {
    let whole = bounded(&sound());
    assert_eq!(whole.status.code(), Some(0), "{}", String::from_utf8_lossy(&whole.stderr));
    let mut named = 0;
    for file in FILES {
        for (kind, harm) in HARMS {
            let lab = sound();
            let path = lab.path().join(file);
            let _ = fs::remove_file(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            harm(&path);
            let output = bounded(&lab);
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            // 0 is right where the harm reads as nothing: a link out of the tree that ends inside of it.
            assert!(
                matches!(output.status.code(), Some(0 | 3)),
                "{file}: {kind}: {:?}\n{text}",
                output.status
            );
            assert!(!text.contains("panicked") && !text.contains("daemon:x:"), "{file}: {kind}:\n{text}");
            if output.status.code() == Some(3) {
                assert!(text.contains(file), "{file}: {kind} is not named:\n{text}");
                named += 1;
            }
        }
    }
    // All but links, and what some formats cannot tell from a longer list of the same.
    assert!(named >= FILES.len() * 4, "only {named} harms were noticed");
}
