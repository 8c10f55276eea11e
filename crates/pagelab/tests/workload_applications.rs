//! Tests of the application workloads: each at a small size, leftovers, rejected arguments.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::Lab;

fn document(lab: &Lab, arguments: &[&str]) -> Value {
    let ran = lab.run(&[&["workload"], arguments].concat());
    assert_eq!(ran.code, Some(0), "{arguments:?}\n{}{}", ran.out, ran.err);
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    serde_json::from_str(&ran.out).unwrap()
}

fn figure(said: &Value, name: &str) -> f64 {
    let figures = said["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {said}"))["value"].as_f64().unwrap()
}

#[test]
fn every_application_reports_all_figures_and_repeats_its_checksum() {
    let cases: [(&[&str], &str); 7] = [
        (&["canneal", "--size", "256K", "--swaps", "200"], "accepted"),
        (&["streamcluster", "--size", "64K", "--dimensions", "16", "--candidates", "10"], "distances"),
        (&["fmm", "--size", "128K"], "pairs_of_boxes"),
        (&["gc", "--size", "512K"], "collections"),
        (&["mmap-access", "--size", "256K"], "loads"),
        (&["aim9", "--until", "count", "--count", "20"], "jmp_test"),
        (&["desktop", "--size", "1M", "--operations", "40", "--pause", "0"], "wake_p50"),
    ];
    let lab = Lab::new();
    for (arguments, name) in cases {
        let said = document(&lab, arguments);
        assert_eq!(said["name"].as_str(), Some(arguments[0]));
        assert!(said["merit"]["value"].as_f64().is_some_and(|value| value > 0.0), "{said}");
        assert!(figure(&said, name) > 0.0, "{said}");
        assert_eq!(document(&lab, arguments)["checksum"], said["checksum"], "{arguments:?}");
    }
}

#[test]
fn files_and_processes_are_gone_afterwards() {
    let lab = Lab::new();
    let folder = lab.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    let place = folder.to_str().unwrap();
    for arguments in [
        &["mmap-access", "--size", "256K", "--mapping", "file", "--sharing", "shared"][..],
        &["aim9", "--until", "count", "--count", "5"],
        &["desktop", "--size", "1M", "--operations", "30", "--pause", "0"],
    ] {
        document(&lab, &[arguments, &["--folder", place]].concat());
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{arguments:?} left {left:?}");
    }
}

/// Forks of the whole machine since its boot.
fn forks() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    text.lines().find_map(|line| line.strip_prefix("processes ")).unwrap().parse().unwrap()
}

#[test]
fn aim9_forks_and_executes_once_for_each_operation() {
    let lab = Lab::new();
    for test in ["fork_test", "exec_test"] {
        let before = forks();
        let said = document(&lab, &["aim9", "--test", test, "--count", "1000"]);
        assert!(forks() - before >= 1000, "{test}: {} forks", forks() - before);
        assert!(figure(&said, test) > 0.0, "{said}");
    }
    // A program that says each time that it ran.
    lab.write("program", "#!/bin/sh\necho ran >>$0.log\n");
    let program = lab.path().join("program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let program = program.to_str().unwrap();
    document(&lab, &["aim9", "--test", "exec_test", "--count", "20", "--program", program]);
    let log = std::fs::read_to_string(lab.path().join("program.log")).unwrap();
    assert_eq!(log.lines().count(), 20);
    let former = document(&lab, &["alloc-storm", "--test", "signal_test", "--count", "10"]);
    assert_eq!((&former["name"], &former["options"]["test"]), (&"aim9".into(), &"signal_test".into()));
}

/// The parent of a process that runs, and has not ended as a zombie.
fn parent(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    (fields.next()? != "Z").then(|| fields.next().map(str::to_owned))?
}

fn child_of(pid: &str) -> Option<String> {
    let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).find(|name| parent(name).as_deref() == Some(pid))
}

#[test]
fn a_killed_aim9_leaves_no_child_and_its_files_to_the_next_run() {
    let lab = Lab::new();
    let folder = lab.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    let place = folder.to_str().unwrap();
    let files = || std::fs::read_dir(&folder).unwrap().count();
    for test in ["brk_test", "signal_test"] {
        let endless = ["workload", "aim9", "--test", test, "--count", "1000000000000", "--folder", place];
        let mut killed = lab.command(&endless).spawn().unwrap();
        let child = wait_for(|| child_of(&killed.id().to_string()));
        assert_eq!(files(), 1, "{test}");
        killed.kill().unwrap();
        killed.wait().unwrap();
        wait_for(|| parent(&child).is_none().then_some(()));
        assert_eq!(files(), 1, "{test}");
        document(&lab, &["aim9", "--test", "link_test", "--count", "1", "--folder", place]);
        assert_eq!(files(), 0, "{test}");
    }
}

/// Waits until there is a value, a minute at most.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn refusals_report_the_reason() {
    let lab = Lab::new();
    for (code, arguments, words) in [
        (2, &["mmap-access", "--size", "64K", "--pause", "5"][..], "memset+msync"),
        (2, &["canneal", "--size", "100"], "elements"),
        (2, &["gc", "--size", "1M", "--runtime", "java"], "64M"),
        (4, &["desktop", "--program", "/no/such/program"], "option program"),
    ] {
        let ran = lab.run(&[&["workload"], arguments].concat());
        assert_eq!(ran.code, Some(code), "{arguments:?}\n{}{}", ran.out, ran.err);
        assert!(ran.err.contains(words) && ran.out.is_empty(), "{arguments:?}: {}", ran.err);
    }
}
