//! Tests of `pagelab can` and `pagelab compact`: rejected arguments, and answers for a saved tree.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "support/binary.rs"]
mod binary;

use std::path::PathBuf;
use std::process::{Command, Output};

use binary::binary;
use serde_json::Value;

fn pagelab(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().unwrap()
}

fn texts(output: &Output) -> (Option<i32>, String) {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(all).unwrap())
}

fn fixture(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn invalid_arguments_are_refused_with_a_hint() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["can"], 2, "<N>"),
        (&["can", "0"], 2, "at least 1"),
        (&["can", "-3"], 2, "expected a count"),
        (&["can", "1G"], 2, "use --size for a size"),
        (&["can", "99999999999999999999"], 2, "expected a count"),
        (&["can", "1.5"], 2, "expected a count"),
        (&["can", "1", "--size", "3M"], 2, "power of two"),
        (&["can", "1", "--size", "1K"], 2, "smaller than a base page"),
        (&["can", "1", "--size", "4K"], 2, "a single base page"),
        (&["can", "1", "--size", "-2M"], 2, "-2"),
        (&["can", "1", "--size", "8388608G"], 2, "of memory"),
        (&["can", "1", "--how", "luck"], 2, "thp, hugetlb, contig"),
        (&["can", "1", "--size", "32M", "--how", "hugetlb"], 2, "--how contig"),
        (&["can", "1", "--node", "77"], 2, "unknown node"),
        (&["can", "1", "--really", "--root", "x"], 2, "--really"),
        (&["can", "1", "--root", "/no/such/tree"], 3, "/no/such/tree"),
        (&["can", "1", "--from", "/no/such/file"], 3, "/no/such/file"),
        (&["compact", "--node", "77"], 2, "unknown node"),
        (&["compact", "--node", "-1"], 2, "-1"),
        (&["compact", "--drop-caches", "some"], 2, "none, page, all"),
    ];
    for (arguments, code, said) in cases {
        let (ended, text) = texts(&pagelab(arguments));
        assert!(ended == Some(*code) && text.contains(said), "{arguments:?}: {ended:?} {text}");
    }
}

#[test]
fn a_saved_tree_is_answered_from_its_files() {
    let folders = std::fs::read_dir(fixture("machines")).unwrap();
    let mut seen = 0;
    let trees = folders.map(|entry| entry.unwrap().path());
    for entry in trees.filter(|path| path.to_str().unwrap().ends_with(".tar.zst")) {
        let root = entry.to_str().unwrap();
        let output = pagelab(&["can", "1", "--json", "--root", root]);
        let (code, text) = texts(&output);
        if code != Some(0) && code != Some(1) {
            assert!(matches!(code, Some(2..=4)) && !text.is_empty(), "{root}: {code:?} {text}");
            continue;
        }
        seen += 1;
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answer = if code == Some(0) { "yes" } else { "no" };
        assert_eq!((&document["kind"], &document["answer"]), (&"can".into(), &answer.into()), "{root}");
        for step in ["now", "after_compaction", "after_dropping_cache"] {
            let Some(bounds) = document[step].as_object() else {
                assert!(document[format!("{step}_absent_reason")].is_string(), "{root}: {step}");
                continue;
            };
            let [low, expected, high] =
                ["low", "expected", "high"].map(|name| bounds[name].as_u64().unwrap());
            assert!(low <= expected && expected <= high, "{root}: {step}: {low} {expected} {high}");
        }
        check_upper_bounds(&document, root);
        check_headline(&document, root);
    }
    assert!(seen > 0, "no fixture was answered");
}

/// Each high end is the smallest of its bounds, and none is above what the zones and blocks permit.
fn check_upper_bounds(document: &Value, root: &str) {
    if document["upper_bounds"].is_null() {
        assert!(document["upper_bounds_absent_reason"].is_string(), "{root}");
        return;
    }
    let zones = document["zones"].as_array().unwrap();
    let sum = |number: &dyn Fn(&Value) -> u64| zones.iter().map(number).sum::<u64>();
    let blocks = sum(&|zone| zone["blocks"].as_u64().unwrap());
    let polluted: u64 =
        document["polluted_pageblocks"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    for (step, slug) in
        [("now", "nothing"), ("after_compaction", "compaction"), ("after_dropping_cache", "cache")]
    {
        let bounds = &document["upper_bounds"][slug];
        let [high, expected] = ["high", "expected"].map(|end| document[step][end].as_u64().unwrap());
        let smallest = bounds[bounds["smallest"].as_str().unwrap()].as_u64().unwrap();
        for part in ["scanners", "zones", "clean_blocks", "memory"] {
            assert!(smallest <= bounds[part].as_u64().unwrap(), "{root}: {step}: {bounds}");
        }
        assert_eq!(high, smallest.max(expected), "{root}: {step}: {bounds}");
        assert!(high <= sum(&|zone| zone[step]["high"].as_u64().unwrap()), "{root}: {step}");
        if slug != "cache" {
            assert!(high <= (blocks - polluted).max(expected), "{root}: {step}: {high} of {blocks}");
        }
    }
}

/// The answer no prints an interval that ends at the high end, and no number above it.
fn check_headline(document: &Value, root: &str) {
    const MORE_THAN_ANY_MACHINE: u64 = 1_000_000_000;
    if document["after_dropping_cache"].is_null() {
        return;
    }
    let text = texts(&pagelab(&["can", &MORE_THAN_ANY_MACHINE.to_string(), "--root", root])).1;
    let total = pagelab_report::style::format_count(MORE_THAN_ANY_MACHINE.into());
    let (numbers, _) = text.split_once(&format!(" of {total} ")).unwrap_or_else(|| panic!("{root}: {text}"));
    let bounds =
        ["expected", "low", "high"].map(|end| document["after_dropping_cache"][end].as_u64().unwrap());
    let [expected, low, high] = bounds.map(|number| pagelab_report::style::format_count(number.into()));
    let interval = if low == high { String::new() } else { format!(" ({low} to {high})") };
    assert_eq!(numbers, format!("no — {expected}{interval}"), "{root}");
}

const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
const MAX_PTES_NONE: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";

#[test]
fn restore_undoes_everything_after_a_kill_during_an_allocation() {
    let read = |path: &str| std::fs::read_to_string(path);
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let (Ok(defrag), Ok(none), true) = (read(DEFRAG), read(MAX_PTES_NONE), is_root) else {
        eprintln!("skipped: no-setting: this user may not, or this kernel has none");
        return;
    };
    let mut asking = Command::new(binary());
    let mut asking =
        asking.args(["can", "300", "--really"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    // Where it was `never` before, it is killed at once.
    while !read(DEFRAG).unwrap().contains("[never]") && asking.try_wait().unwrap().is_none() {
        assert!(began.elapsed().as_secs() < 60, "it never began to ask");
    }
    asking.kill().unwrap();
    asking.wait().unwrap();
    let restored = pagelab(&["restore"]);
    assert_eq!(restored.status.code(), Some(0), "{}", texts(&restored).1);
    assert_eq!((read(DEFRAG).unwrap(), read(MAX_PTES_NONE).unwrap()), (defrag, none));
}

#[test]
fn checkup_and_can_agree_on_a_capture() {
    let folders = std::fs::read_dir(fixture("machines")).unwrap();
    let trees = folders.map(|entry| entry.unwrap().path());
    let mut seen = 0;
    for entry in trees.filter(|path| path.to_str().unwrap().ends_with(".tar.zst")) {
        let root = entry.to_str().unwrap();
        let document = |arguments: &[&str]| -> Value {
            let output = pagelab(&[arguments, &["--json", "--root", root]].concat());
            serde_json::from_slice(&output.stdout).unwrap_or_default()
        };
        let (can, checkup) = (document(&["can", "1"]), document(&["checkup"]));
        if !can["after_compaction"].is_object() {
            continue;
        }
        seen += 1;
        let text = texts(&pagelab(&["checkup", "--root", root])).1;
        let text = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        for (step, words) in [
            ("after_compaction", "after compaction"),
            ("after_dropping_cache", "after also dropping the page cache"),
        ] {
            for end in ["low", "high"] {
                let supply = &checkup["supply"]["total"][step][end]["value"];
                assert_eq!(supply, &can[step][end], "{root}: {step}, {end}");
            }
            let expected = can[step]["expected"].as_u64().unwrap();
            let grouped = pagelab_report::style::format_count(expected.into());
            assert!(text.contains(&format!("{grouped} {words}")), "{root}: {grouped} {words}: {text}");
        }
    }
    assert!(seen > 0, "no fixture says what compaction brings");
}

/// No hint recommends a command for a pool that the forecast calls impossible.
#[test]
fn an_impossible_pool_is_not_promised() {
    let folders = std::fs::read_dir(fixture("machines")).unwrap();
    let (mut refused, mut promised) = (0, 0);
    for entry in folders.map(|entry| entry.unwrap().path()) {
        let root = entry.to_str().unwrap();
        for count in ["1", "100000000"] {
            let (code, text) = texts(&pagelab(&["can", count, "--how", "hugetlb", "--root", root]));
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_promised = text.contains("makes the pool large enough");
            assert!(!(code == Some(1) && is_promised), "{root}: {text}");
            refused += u32::from(code == Some(1));
            promised += u32::from(code == Some(0) && is_promised);
        }
    }
    assert!(refused > 0 && promised > 0, "{refused} {promised}");
}
