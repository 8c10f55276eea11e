//! Tests of `pagelab apply` on a real kernel before 6.18, in a guest: huge pages cannot be restricted to
//! advised memory, `never` does not prevent collapses, and smaller folios are read back.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagelab_formats::plan_toml;
use pagelab_guest::job::JobStep;
use pagelab_guest::message::StepExit;
use pagelab_model::Bytes;
use pagelab_model::huge_plan::{HugePlan, PlannedMapping, PlannedProgram, PlannedRegion};
use pagelab_model::profile::{MappingIdentity, MappingKind, Program};
use pagelab_model::size;
use serde_json::Value;
use trial::{finished, lock_guests, pagelab, plan};

/// Where the built-in workload has its buffer.
const BASE: u64 = 0x187_8000_0000;
const SMALL: u64 = 64 << 10;
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// A plan of regions of 64 KiB.
fn small(regions: &[u64]) -> String {
    let region = |at: &u64| PlannedRegion { offset: BASE + at * SMALL, page: Bytes(SMALL), cost_ns: None };
    let mapping = PlannedMapping {
        key: MappingIdentity { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 },
        start: BASE,
        bytes: Bytes(16 << 20),
        regions: regions.iter().map(region).collect(),
        cells: Vec::new(),
    };
    let programs = vec![PlannedProgram { program: Program::default(), mappings: vec![mapping] }];
    plan_toml::write_plan(&HugePlan { programs, ..HugePlan::default() }, &[])
}

fn apply(plan: &str, summary: &str) -> JobStep {
    pagelab(&format!(
        "apply {plan} --summary {summary}.json -- /proc/self/exe workload hot-regions --size 16M --rounds 2000 \
         --first write"
    ))
}

/// A program that ends when it has a huge page, compiled into `folder` without shared libraries.
fn until_huge(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("until_huge");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/until_huge.c");
    match Command::new("cc").args(["-O1", "-static", "-o"]).arg(&program).arg(source).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: no-cc: {error}");
            return None;
        }
    }
    Some(program)
}

fn setting(name: &str, text: &str) -> JobStep {
    JobStep::Write { path: format!("{THP}/{name}"), text: text.to_owned() }
}

#[test]
fn allocated_huge_pages_are_those_read_back_on_6_12() {
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("small.toml");
    fs::write(&given, small(&[3, 4, 100, 255])).unwrap();
    let Some(waits) = until_huge(folder.path()) else { return };
    let steps = vec![
        setting("enabled", "always"),
        apply("all", "always"),
        setting("enabled", "never"),
        pagelab("apply all --summary never.json -- ./until_huge"),
        setting("hugepages-64kB/enabled", "never"),
        apply("small.toml", "closed"),
        setting("hugepages-64kB/enabled", "madvise"),
        apply("small.toml", "small"),
    ];
    let Some(mut plan) = plan("6.12", steps) else { return };
    // Below 512 MiB of free memory at boot the kernel switches huge pages off.
    plan.config.memory = size::parse("640M").unwrap();
    plan.input_files = vec![given, waits];
    let counted = format!("{THP}/hugepages-64kB/stats/anon_fault_alloc");
    plan.output_paths =
        ["always.json", "never.json", "closed.json", "small.json", &counted].map(str::to_owned).to_vec();
    plan.output_dir = folder.path().join("taken");
    let turn = lock_guests();
    let ended = finished(&plan);
    drop(turn);
    let mut sums = Vec::new();
    for step in ended.steps.iter() {
        let said = String::from_utf8_lossy(&step.stderr);
        assert_eq!(step.end, StepExit::Code(0), "{said}");
        if let Ok(json) = serde_json::from_slice::<Value>(&step.stdout) {
            sums.push(json["checksum"].clone());
        }
    }
    assert!(sums.len() == 3 && sums.iter().all(|sum| sum == &sums[0]), "{sums:?}");
    let read = |name: &str| fs::read_to_string(plan.output_dir.join(name)).unwrap();
    let summary = |name: &str| serde_json::from_str::<Value>(&read(&format!("{name}.json"))).unwrap();
    let got = |of: &Value| {
        (of["regions"]["requested"].as_u64().unwrap(), of["regions"]["allocated"].as_u64().unwrap())
    };
    // A kernel without PR_THP_DISABLE_EXCEPT_ADVISED (6.18): said, and advised all the same.
    let always = summary("always");
    assert!(always["notes"].to_string().contains("6.18 can"), "{always}");
    assert!(got(&always).1 >= 7, "{always}");
    // MADV_COLLAPSE does not ask what the setting says (6.1).
    let never = summary("never");
    assert!(got(&never).1 >= 1, "{never}");
    // Folios of 64 KiB: what is read back of a closed size is nothing, of an open one what the kernel counts.
    let (closed, small) = (summary("closed"), summary("small"));
    assert_eq!(got(&closed), (4, 0), "{closed}");
    assert!(closed["regions"]["failed"].to_string().contains("hugepages-"), "{closed}");
    assert_eq!(got(&small).0, 4, "{small}");
    let counted: u64 = read("anon_fault_alloc").trim().parse().unwrap();
    assert_eq!(got(&small).1, counted, "{small}");
    assert!(counted > 0, "{small}");
}
