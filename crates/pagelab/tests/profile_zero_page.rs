//! `pagelab profile --source accessed` of memory that is only read: the kernel's page of zeros.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail and print as tests do")]
#![cfg(target_arch = "x86_64")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagelab_model::profile::{ImageProfile, MappingKind, UnseenWhy};
use serde_json::Value;
use support::Lab;
use support::running::{Running, profile, until};

const BINARY: &str = env!("CARGO_BIN_EXE_pagelab");

/// Whether the kernel tells where the page of zeros is mapped.
fn is_told() -> bool {
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let told = pagelab_sys::pagemap_scan::is_known(&pagemap).is_ok();
    if !told {
        eprintln!("skipped: no-pagemap-scan: the kernel has no PAGEMAP_SCAN");
    }
    told
}

/// Regions of 2 MiB by address: those with most walks first.
fn regions(image: &ImageProfile) -> Vec<u64> {
    let mut walks: BTreeMap<u64, u64> = BTreeMap::new();
    for mapping in &image.mappings {
        let base = if mapping.key.kind == MappingKind::Placed { 0 } else { mapping.start };
        for (at, misses) in mapping.cells.at.iter().zip(&mapping.cells.misses) {
            *walks.entry((base + at * mapping.grain.0) >> 21 << 21).or_default() += misses;
        }
    }
    let mut regions: Vec<(u64, u64)> = walks.into_iter().map(|(address, walks)| (walks, address)).collect();
    regions.sort_unstable_by(|a, b| b.cmp(a));
    regions.into_iter().map(|(_, address)| address).collect()
}

fn hot(out: &str) -> BTreeSet<u64> {
    let start = out.find("{\"pagelab_json\"").unwrap();
    let said: Value = serde_json::Deserializer::from_str(&out[start..]).into_iter().next().unwrap().unwrap();
    said["hot_regions"].as_array().unwrap().iter().map(|r| r["address"].as_u64().unwrap()).collect()
}

const HEAD: [&str; 7] = ["profile", "--source", "accessed", "--duty", "100", "-o", "p.pagelab"];
const ONLY_READ: [&str; 8] =
    ["workload", "hot-regions", "--size", "256M", "--first", "read", "--rounds", "40000000"];

/// The same by the supervisor, by a process that attaches, and not at all.
#[test]
fn hot_regions_that_were_never_written_come_first() {
    if !is_told() {
        return;
    }
    for options in [&[][..], &["--no-supervise"], &["--zero-page", "no"]] {
        let lab = Lab::new();
        let ran = lab.run(&[&HEAD[..], options, &["--", BINARY], &ONLY_READ].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let found = profile(&lab, "p.pagelab");
        let [image] = &found.images[..] else { panic!("{:?}", found.notes) };
        let zero = |m: &&pagelab_model::profile::Unseen| m.why == UnseenWhy::ZeroPage;
        let unseen: u64 =
            image.mappings.iter().flat_map(|m| &m.unseen).filter(zero).map(|unseen| unseen.bytes.0).sum();
        if options.contains(&"no") {
            assert!(unseen >= 200 << 20, "{unseen} {:?}", found.notes);
            assert!(found.notes.iter().any(|note| note.contains("--zero-page no")), "{:?}", found.notes);
            assert_eq!(found.effort.zero_scans, None);
            continue;
        }
        let hot = hot(&ran.out);
        let first: BTreeSet<u64> = regions(image).into_iter().take(hot.len()).collect();
        // Drawn by chance 2 would come first. Alone all do; beside other work a few are taken for others, the
        // more of a process that is attached to, whose stops are longer.
        let missed = hot.difference(&first).count();
        let most = if options.is_empty() { 2 } else { 4 };
        assert!(missed <= most, "{missed} of {} {options:?} {:?}", hot.len(), found.notes);
        assert_eq!(unseen, 0, "{options:?} {:?}", found.notes);
        let (dropped, returned) = found.effort.zero_pages.unwrap();
        assert!(returned > 0 && returned <= dropped && found.effort.zero_scans > Some(8));
        let said = found.notes.iter().find(|note| note.contains("never written")).unwrap();
        assert!(said.contains("stops of all threads"), "{said}");
    }
}

/// With the share of the time that is usual some are earned, and all that was dropped is in the account.
#[test]
fn drops_are_paid_from_the_share_of_sweeps() {
    if !is_told() {
        return;
    }
    let lab = Lab::new();
    let head = ["profile", "--source", "accessed", "-o", "p.pagelab", "--", BINARY];
    let rounds = ["workload", "hot-regions", "--size", "64M", "--first", "read", "--rounds", "12000000"];
    let ran = lab.run(&[&head[..], &rounds].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let found = profile(&lab, "p.pagelab");
    let spent = found.effort.slow_down_ppm.unwrap_or_else(|| panic!("{:?}", found.notes));
    let (dropped, _) = found.effort.zero_pages.unwrap_or_else(|| panic!("{:?}", found.notes));
    // A page fault takes a tenth of a microsecond at the very least, and all dropped entries are paid.
    let at_least = dropped * 100 * 1_000_000 / found.wall_ns;
    assert!(spent >= at_least && dropped > 0, "{spent} of {at_least} {:?}", found.notes);
    // What scans saw is known, without a sweep too, and not told as unseen.
    assert!(found.misses() > Some(0) && found.misses_interval().is_some(), "{:?}", found.notes);
    let is_misleading = |note: &String| note.starts_with("there was no sweep");
    assert!(!found.notes.iter().any(is_misleading), "{:?}", found.notes);
}

/// Memory that is written and memory that is only read, side by side.
const MIXED: &str = "
import mmap, os, random, time
def made(): return mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
a, b = made(), made()
for at in range(0, len(a), 4096): a[at] = 1
for at in range(0, len(b), 4096): b[at]
print('ready')
draw = random.Random(1).random
end = time.time() + SECONDS
while time.time() < end and not os.path.exists('STOP'):
    for n in range(1000): a[int(draw() * 8192) * 4096]; b[int(draw() * 8192) * 4096]
assert b[:] == bytes(len(b)) and set(a[::4096]) == {1}
print('all right')
";

#[test]
fn where_both_kinds_are_ranked_that_is_said() {
    let lab = Lab::new();
    lab.write("program.py", MIXED.replace("SECONDS", "2.5"));
    let program = ["--", "/usr/bin/env", "python3", "program.py"];
    let ran = lab.run(&[&HEAD[..], &program].concat());
    if ran.err.contains("No such file") {
        eprintln!("skipped: python3-absent: no program with these habits");
        return;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    if !is_told() {
        return;
    }
    assert!(ran.out.contains("all right"));
    let found = profile(&lab, "p.pagelab");
    assert!(found.effort.sweeps > Some(0) && found.effort.zero_scans > Some(0), "{:?}", found.notes);
    let is_said = |note: &String| note.contains("the order of the two kinds is less sure");
    assert!(found.notes.iter().any(is_said), "{:?}", found.notes);
}

/// Works until the file `stop` is there. `None` after saying why: there is no python3.
fn mixed(lab: &Lab) -> Option<Running> {
    let mut command = Command::new("python3");
    let script = MIXED.replace("SECONDS", "300").replace("STOP", lab.path().join("stop").to_str().unwrap());
    command.args(["-u", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(child) = command.spawn() else {
        eprintln!("skipped: python3-absent: no program with these habits");
        return None;
    };
    let mut running = Running(child, None);
    running.1 = running.0.stdout.take().map(std::io::BufReader::new);
    assert_eq!(running.line(), "ready");
    Some(running)
}

/// Of a process that runs, entries are dropped where that is asked for, and the reason stands there if not.
#[test]
fn a_process_that_runs_is_scanned_where_that_is_asked_for() {
    if !is_told() {
        return;
    }
    let lab = Lab::new();
    let Some(mut running) = mixed(&lab) else { return };
    let pid = running.0.id().to_string();
    for options in [&[][..], &["--zero-page", "yes"]] {
        let ran = lab.run(&[&HEAD[..], options, &["--pid", &pid, "--for", "1s"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let found = profile(&lab, "p.pagelab");
        let is_asked = !options.is_empty();
        assert_eq!(found.effort.zero_scans.is_some(), is_asked, "{:?}", found.notes);
        let is_told = found.notes.iter().any(|note| note.contains("--zero-page yes"));
        assert_eq!(is_told, !is_asked, "{:?}", found.notes);
        std::fs::remove_file(lab.path().join("p.pagelab")).unwrap();
    }
    lab.write("stop", "");
    assert_eq!(running.line(), "all right");
}

/// pagelab is killed again and again between drops; contents are zeros all the same, and the program goes on.
#[test]
fn a_killed_pagelab_leaves_zeros_where_it_dropped() {
    if !is_told() {
        return;
    }
    let lab = Lab::new();
    let Some(mut running) = mixed(&lab) else { return };
    let pid = running.0.id().to_string();
    for round in 0..8u64 {
        let _ = std::fs::remove_file(lab.path().join("p.pagelab"));
        let mut command = lab.command(&[&HEAD[..], &["--zero-page", "yes", "--pid", &pid]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut pagelab = Running(command.spawn().unwrap(), None);
        std::thread::sleep(Duration::from_millis(250 + 37 * round));
        pagelab.0.kill().unwrap();
        pagelab.0.wait().unwrap();
        assert!(running.0.try_wait().unwrap().is_none(), "round {round}");
    }
    lab.write("stop", "");
    // The splitter ends by itself, and the program has its own registers again.
    until("the program's end", || running.0.try_wait().unwrap().is_some());
    assert_eq!(running.line(), "all right");
    assert!(running.0.wait().unwrap().success());
}

/// A program that was started dies with pagelab, as by any kill.
#[test]
fn a_program_that_was_started_dies_with_a_killed_pagelab() {
    if !is_told() {
        return;
    }
    let lab = Lab::new();
    let mut command = lab.command(&[&HEAD[..], &["--", BINARY], &ONLY_READ].concat());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut pagelab = Running(command.spawn().unwrap(), None);
    let children = || {
        let id = pagelab.0.id();
        let text = std::fs::read_dir(format!("/proc/{id}/task"))
            .ok()?
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        let all: Vec<u32> = text
            .flat_map(|t| t.split_whitespace().filter_map(|w| w.parse().ok()).collect::<Vec<_>>())
            .collect();
        let has_zeros = |pid: &u32| {
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
            exe.is_some_and(|exe| exe == std::path::Path::new(BINARY))
        };
        all.into_iter().find(has_zeros)
    };
    let end = Instant::now() + Duration::from_secs(60);
    let mut child = None;
    while child.is_none() && Instant::now() < end {
        child = children();
        std::thread::sleep(Duration::from_millis(5));
    }
    let child = child.expect("it was started");
    std::thread::sleep(Duration::from_millis(500));
    pagelab.0.kill().unwrap();
    pagelab.0.wait().unwrap();
    until("the program's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z")
    });
}
