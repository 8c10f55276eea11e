//! Tests of `workload hot-regions` with a real hugetlb pool: listed regions use it, results do not depend on
//! pages, and an empty pool is reported.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use pagelab_guest::message::StepExit;
use pagelab_model::size;
use serde_json::Value;
use trial::{finished, pagelab, plan};

/// Addresses of regions of the default buffer, in decimal.
fn list(regions: &[u64]) -> String {
    regions.iter().map(|region| format!("{}\n", 0x187_8000_0000 + region * (2 << 20))).collect()
}

#[test]
fn listed_regions_come_from_the_pool() {
    const RUN: &str = "workload hot-regions --size 16M --rounds 2000 --advise nohuge";
    let folder = tempfile::tempdir().unwrap();
    let (few, many) = (folder.path().join("few.txt"), folder.path().join("many.txt"));
    std::fs::write(&few, list(&[7, 0, 3])).unwrap();
    std::fs::write(&many, list(&[0, 1, 2, 3, 4])).unwrap();
    let steps = vec![
        pagelab(RUN),
        pagelab(&format!("{RUN} --largepages few.txt")),
        pagelab(&format!("{RUN} --largepages many.txt")),
        pagelab(&format!("{RUN} --largepages many.txt --backing thp")),
        // What the run that failed had taken is back.
        pagelab(&format!("{RUN} --largepages few.txt --first read")),
    ];
    let Some(mut plan) = plan("6.12", steps) else { return };
    plan.config.memory = size::parse("256M").unwrap();
    plan.config.append = "hugepages=4".to_owned();
    plan.input_files = vec![few, many];
    let ended = finished(&plan);
    let said = |step: usize| {
        let step = &ended.steps[step];
        assert_eq!(step.end, StepExit::Code(0), "{}", String::from_utf8_lossy(&step.stderr));
        serde_json::from_slice::<Value>(&step.stdout).unwrap()
    };
    let (plain, pool, advised, read) = (said(0), said(1), said(3), said(4));
    for (backed, of) in [(&plain, 0.0), (&pool, 3.0), (&advised, 5.0), (&read, 3.0)] {
        let figures = backed["figures"].as_array().unwrap();
        let figure = figures.iter().find(|figure| figure["name"] == "backed_regions").unwrap();
        assert_eq!(figure["value"].as_f64(), Some(of));
    }
    assert_eq!(plain["checksum"], pool["checksum"]);
    assert_eq!(plain["checksum"], advised["checksum"]);
    assert_ne!(plain["checksum"], read["checksum"]);
    let refused = &ended.steps[2];
    let words = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.end, StepExit::Code(5), "{words}");
    assert!(words.contains("(4 of 5 are backed)") && words.contains("vm.nr_hugepages"), "{words}");
}
