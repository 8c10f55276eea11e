//! Tests of the application workloads: each at a small size, leftovers, rejected arguments.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

mod support;

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
