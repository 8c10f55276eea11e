//! Tests of `pagelab workload`: each workload at a small size, its document against the docs, rejected
//! arguments.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use pagelab_workloads::WORKLOADS;
use pagelab_workloads::options::ValueKind;
use serde_json::Value;
use support::{CommandOutput, Lab};

fn run_pagelab(code: i32, arguments: &[&str]) -> CommandOutput {
    let lab = Lab::new();
    let ran = lab.run(arguments);
    assert_eq!(ran.code, Some(code), "pagelab {arguments:?}\n{}{}", ran.out, ran.err);
    ran
}

/// The one line of a run.
fn document(arguments: &[&str]) -> Value {
    let text = run_pagelab(0, &[&["workload"], arguments].concat()).out;
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// What makes each of the workloads small; those that are not named here have tests of their own.
const SMALL: [(&str, &[&str]); 8] = [
    ("chase", &["--size", "1M", "--steps", "1000"]),
    ("hot-regions", &["--size", "8M", "--rounds", "100", "--base", "0"]),
    ("gups", &["--size", "16K"]),
    ("stream", &["--size", "48K"]),
    ("quicksort", &["--size", "40K"]),
    ("btree", &["--size", "128K", "--lookups", "1000"]),
    ("hash", &["--size", "64K", "--lookups", "1000"]),
    ("bfs", &["--size", "100K"]),
];

#[test]
fn every_run_prints_one_line_that_says_all() {
    for (name, small) in SMALL {
        let said = document(&[&[name], small].concat());
        let known = WORKLOADS.iter().find(|workload| workload.name == name).unwrap();
        assert_eq!((said["name"].as_str(), said["kind"].as_str()), (Some(name), Some("workload")));
        assert_eq!(said["generator"].as_str(), Some(known.generator));
        assert_eq!(said["version"].as_str(), Some(env!("CARGO_PKG_VERSION")));
        let options = said["options"].as_object().unwrap();
        assert!(options.keys().eq(known.options.iter().map(|head| head.name)), "{options:?}");
        assert!(said["merit"]["value"].as_f64().is_some_and(|value| value > 0.0), "{said}");
        let bytes = said["working_set_bytes"].as_u64().unwrap();
        let size = said["options"]["size"].as_u64().unwrap();
        assert!(bytes > size / 3 && bytes <= size, "{name}: {bytes} of {size}");
        let checksum = said["checksum"].as_str().unwrap();
        assert!(checksum.len() == 16 && u64::from_str_radix(checksum, 16).is_ok(), "{checksum}");
        assert!(said["generated"].as_str().is_some_and(|text| !text.is_empty()), "{said}");
        let again = document(&[&[name, "--seed", "1"], small].concat());
        assert_eq!(again["checksum"], said["checksum"], "{name}: the default seed is 1");
        // Resolved options are valid input.
        let typed: Vec<String> = options
            .iter()
            .filter(|(_, value)| value.as_str() != Some(""))
            .flat_map(|(name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                [format!("--{name}"), value]
            })
            .collect();
        let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
        assert_eq!(document(&[&[name], &typed[..]].concat())["checksum"], said["checksum"], "{name}");
    }
}

#[test]
fn latencies_are_reported_if_operations_are_timed() {
    let said = document(&["hash", "--size", "64K", "--lookups", "1600"]);
    let latency = &said["latency"];
    assert_eq!(latency["count"], 100);
    let of = |name: &str| latency[name].as_u64().unwrap();
    let rising = ["p50_ns", "p90_ns", "p99_ns", "p99.9_ns", "p99.99_ns", "max_ns"].map(of);
    assert!(rising.is_sorted() && rising[0] > 0, "{latency}");
    let said = document(&["gups", "--size", "16K"]);
    assert!(said["latency"].is_null() && said["latency_absent_reason"].is_string());
}

#[test]
fn hot_regions_of_a_run_are_those_of_its_accesses() {
    let said = document(&["hot-regions", "--size", "8M", "--rounds", "100", "--base", "0x18800000000"]);
    let regions = said["hot_regions"].as_array().unwrap();
    assert!(!regions.is_empty() && regions.len() <= 4, "{regions:?}");
    for region in regions {
        let offset = region["offset_bytes"].as_u64().unwrap();
        assert!(offset < 8 << 20 && offset.is_multiple_of(2 << 20), "{region}");
        assert_eq!(region["address"].as_u64(), Some(0x188_0000_0000 + offset));
    }
    let said = document(&["chase", "--size", "8M", "--steps", "100", "--pattern", "hot", "--hot", "1"]);
    assert_eq!(said["hot_regions"].as_array().unwrap().len(), 1);
    assert!((said["hot_regions"][0]["share"].as_f64().unwrap() - 0.9).abs() < 1e-9);
}

/// Names of all fields, at any depth, except the names of options.
fn fields(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            into.insert(name.clone());
            if name != "options" || value.is_array() {
                fields(value, into);
            }
        }),
        Value::Array(items) => items.iter().for_each(|item| fields(item, into)),
        _ => {}
    }
}

#[test]
fn every_field_of_the_json_is_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## `workload`, `workloads`\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    let documented: BTreeSet<String> =
        rows.flat_map(|(names, _)| names.split(", ")).map(|name| name.trim_matches('`').to_owned()).collect();
    let mut printed = BTreeSet::new();
    for arguments in [
        &["hash", "--size", "64K", "--lookups", "1600"][..],
        &["chase", "--size", "8M", "--steps", "100", "--pattern", "hot", "--hot", "1"],
        &["--json"],
    ] {
        let text = run_pagelab(0, &[&["workload"], arguments].concat()).out;
        let mut said: Value = serde_json::from_str(&text).unwrap();
        // Those of external workloads have a section of their own, and a test.
        said.as_object_mut().unwrap().remove("external");
        fields(&said, &mut printed);
    }
    for general in ["pagelab_json", "kind", "workloads", "latency_absent_reason"] {
        printed.remove(general);
    }
    assert_eq!(printed, documented);
}

#[test]
fn every_workload_is_listed_and_has_its_help_and_its_section_in_the_docs() {
    let list = run_pagelab(0, &["workload"]).out;
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(docs.join("workloads.md")).unwrap();
    let more = std::fs::read_to_string(docs.join("workloads-applications.md")).unwrap_or_default();
    for workload in WORKLOADS {
        let line = format!("{} ", workload.name);
        assert!(list.lines().any(|listed| listed.starts_with(&line)), "{} in\n{list}", workload.name);
        let help = run_pagelab(0, &["workload", workload.name, "--help"]).out;
        let words: Vec<&str> = help.split_whitespace().collect();
        let said = words.join(" ");
        assert!(said.contains(workload.generator), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        for head in workload.options {
            assert!(said.contains(&format!("--{}", head.name)) && said.contains(head.help), "{help}");
            let is_shown =
                head.kind == ValueKind::Path || said.contains(&format!("[default: {}]", head.default));
            assert!(is_shown, "{} in\n{help}", head.name);
        }
        let heading = format!("\n## `{}`", workload.name);
        let section = [&page, &more].iter().find_map(|page| page.split_once(&heading));
        let section = section.unwrap_or_else(|| panic!("no section on {}", workload.name)).1;
        let section = section.split("\n## ").next().unwrap();
        let of_all = ["size", "seed", "advise"];
        for head in workload.options.iter().filter(|head| !of_all.contains(&head.name)) {
            assert!(section.contains(&format!("`{}", head.name)), "{} of {}", head.name, workload.name);
        }
    }
}

#[test]
fn refusals_have_the_exit_code_of_their_kind() {
    let lab = Lab::new();
    lab.write("list.txt", "1682368888832\nnonsense\n");
    lab.write("outside.txt", "5\n");
    for (code, arguments, words) in [
        (2, &["no-such"][..], "no-such"),
        (2, &["chase", "--size", "0"], "expected a size"),
        (2, &["chase", "--pattern", "spiral"], "zipf"),
        (2, &["chase", "--size", "1M", "--seed", "-1"], "expected an integer"),
        (2, &["chase", "--size", "3M", "--pattern", "zipf"], "multiple"),
        (2, &["chase", "--no-such", "1"], "--no-such"),
        (2, &["--json", "chase"], "--json"),
        (3, &["hot-regions", "--largepages", "list.txt"], "list.txt:2:"),
        (3, &["hot-regions", "--largepages", "outside.txt"], "outside"),
        (3, &["hot-regions", "--largepages", "none.txt"], "none.txt"),
        (4, &["chase", "--size", "900T"], "is reserved"),
        (5, &["hot-regions", "--size", "4M", "--rounds", "1", "--base", "0x1000"], "cannot map"),
    ] {
        let ran = lab.run(&[&["workload"], arguments].concat());
        assert_eq!(ran.code, Some(code), "{arguments:?}\n{}{}", ran.out, ran.err);
        assert_eq!(ran.out, "", "{arguments:?}");
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
}
