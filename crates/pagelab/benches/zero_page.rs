//! Benchmark of profiles of memory that is only read: the cost of dropped zero page entries at the default,
//! and how many hot regions rank first.
//!
//! The program is the built-in `hot-regions`: 1 GiB at 0x18780000000, each page read and never written, 16
//! draws of 512 regions as hot (15 distinct from seed 1), 3 reads of 10 there. Its cost is accounted, and not
//! a difference of two times: all entries that were dropped, each at the cost of a first touch by a read
//! that the run itself had, and the time in which all threads stood, to the time of the run.
//! `--reads N`: rounds of reads. The default is as long as the program of the source (22.5 s on its machine,
//! 15 to 23 s here).

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]
#![allow(clippy::unwrap_used, reason = "a bench panics to fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use pagelab_model::TlbProfile;
use pagelab_model::profile::MappingKind;
use serde_json::Value;

const PAGELAB: &str = env!("CARGO_BIN_EXE_pagelab");
const SEEDS: [&str; 3] = ["1", "2", "3"];
const READS: &str = "500000000";

/// Of one run.
struct RunFigures {
    /// Accounted slow-down, and the same by pagelab's own account.
    cost: f64,
    told: f64,
    /// Hot regions that come first, and how many there are.
    first: usize,
    hot: usize,
    profile: Box<TlbProfile>,
}

fn measure_run(folder: &Path, seed: &str, reads: &str) -> RunFigures {
    let file = folder.join("bench.pagelab");
    let mut command = Command::new(PAGELAB);
    command.args(["profile", "--source", "accessed", "-o"]).arg(&file).args(["--", PAGELAB, "workload"]);
    command.args(["hot-regions", "--first", "read", "--advise", "nohuge", "--seed", seed, "--rounds", reads]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let start = said.find("{\"pagelab_json\"").unwrap();
    let said: Value = serde_json::Deserializer::from_str(&said[start..]).into_iter().next().unwrap().unwrap();
    let profile = pagelab_runfile::read_run_file(&file).unwrap().profile.unwrap();
    std::fs::remove_file(&file).unwrap();
    let figures = said["figures"].as_array().unwrap();
    let touch = figures.iter().find(|figure| figure["name"] == "first_touch_cpu").unwrap();
    let pages = said["working_set_bytes"].as_u64().unwrap() / profile.page_size.bytes();
    let cost = touch["value"].as_f64().unwrap() / pages as f64;
    let (dropped, _) = profile.effort.zero_pages.unwrap_or((0, 0));
    let spent = dropped as f64 * cost + profile.effort.stopped_ns.unwrap_or(0) as f64;
    let hot: BTreeSet<u64> =
        said["hot_regions"].as_array().unwrap().iter().map(|of| of["address"].as_u64().unwrap()).collect();
    let first = regions_by_walks(&profile).into_iter().take(hot.len()).filter(|at| hot.contains(at)).count();
    RunFigures {
        cost: spent / profile.wall_ns as f64,
        told: profile.effort.slowdown_ppm.unwrap_or(0) as f64 / 1e6,
        first,
        hot: hot.len(),
        profile,
    }
}

/// Addresses of regions of 2 MiB, those with most walks first.
fn regions_by_walks(profile: &TlbProfile) -> Vec<u64> {
    let mut walks: BTreeMap<u64, u64> = BTreeMap::new();
    for mapping in profile.images.iter().flat_map(|image| &image.mappings) {
        let base = if mapping.key.kind == MappingKind::Placed { 0 } else { mapping.start };
        for (at, misses) in mapping.cells.at.iter().zip(&mapping.cells.misses) {
            *walks.entry((base + at * mapping.grain.0) >> 21 << 21).or_default() += misses;
        }
    }
    let mut regions: Vec<(u64, u64)> = walks.into_iter().map(|(address, walks)| (walks, address)).collect();
    regions.sort_unstable_by(|a, b| b.cmp(a));
    regions.into_iter().map(|(_, address)| address).collect()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let place = words.iter().position(|word| word == "--reads");
    let reads = place.and_then(|at| words.get(at + 1)).map_or(READS, String::as_str);
    let folder = tempfile::tempdir().unwrap();
    let runs: Vec<RunFigures> = SEEDS.iter().map(|seed| measure_run(folder.path(), seed, reads)).collect();
    for (run, seed) in runs.iter().zip(SEEDS) {
        let effort = &run.profile.effort;
        println!(
            "seed {seed}: {} of {} hot regions first; {:.2} s, {} scans, dropped and returned {:?}, stopped \
             {:.1} ms, pagelab's own work {:?} permille; cost {:.4}, by pagelab's account {:.4}",
            run.first,
            run.hot,
            run.profile.wall_ns as f64 / 1e9,
            effort.zero_scans.unwrap_or(0),
            effort.zero_pages,
            effort.stopped_ns.unwrap_or(0) as f64 / 1e6,
            effort.duty_permille,
            run.cost,
            run.told,
        );
    }
    let most = runs.iter().map(|run| run.cost.max(run.told)).fold(0.0, f64::max);
    let costs: Vec<String> = runs.iter().map(|run| format!("{:.4}", run.cost)).collect();
    println!(
        r#"{{"bar":"zero_page_slow_down","value":{most:.4},"unit":"ratio","samples":[{}],"how":"the most of three seeds, and of pagelab's account"}}"#,
        costs.join(","),
    );
    let missing = runs.iter().map(|run| run.hot - run.first).max().unwrap();
    let missed: Vec<String> = runs.iter().map(|run| (run.hot - run.first).to_string()).collect();
    println!(
        r#"{{"bar":"zero_page_hot_regions_missed","value":{missing},"unit":"regions","samples":[{}],"how":"of {} hot regions, with seed 1, that do not come first; the most of three seeds"}}"#,
        missed.join(","),
        runs[0].hot,
    );
}
