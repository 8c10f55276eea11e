//! Benchmark of the simulated machine and of sweeps: allocations per second of a complete run of `highalloc`,
//! compared with pairs per second of the simple allocator; a sweep on two threads, compared with one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::process::Command;
use std::time::Instant;

use pagelab_model::order_statistics::median;
use pagelab_model::simulation::SimulatedWorkload;
use pagelab_sim::bench::{BenchLoad, FreeAllocatePairs};
use pagelab_sim::btree_buddy::BTreeBuddy;
use pagelab_sim::study::{self, SimulationSpec};
use pagelab_sim::types::{Frame, ZoneGeometry};
use pagelab_sys::clock;

/// The paper's x86 machine, in frames.
const FRAMES: u32 = 379 << 10;
const PAIRS: u64 = 1_000_000;
const RUNS: usize = 3;
/// Blocks of one thread, two, two, one.
const BLOCKS: usize = 3;

fn main() {
    let mut ratios = Vec::new();
    let mut last = (0.0, 0.0);
    for turn in 0..RUNS {
        last = (machine_ns_per_allocation(turn as u64 + 1), btree_ns_per_pair());
        ratios.push(last.1 / last.0);
    }
    print_bar(
        "sim_machine_to_plain",
        &ratios,
        &format!("{:.0} ns an allocation, {:.0} ns a pair", last.0, last.1),
    );
    let gains: Vec<f64> = (0..BLOCKS)
        .map(|_| {
            let [one, two, again, last] = [1, 2, 2, 1].map(sweep_seconds);
            (one + last) / (two + again)
        })
        .collect();
    print_bar("sim_sweep_two_threads", &gains, "16 runs of streaming on 256M, wall time, blocks of four");
}

/// The line of a bar: the median of its samples.
fn print_bar(bar: &str, samples: &[f64], method: &str) {
    let middle = median(&mut samples.to_vec()).unwrap_or(f64::NAN);
    let samples: Vec<String> = samples.iter().map(|sample| format!("{sample:.3}")).collect();
    let samples = samples.join(",");
    println!(
        r#"{{"bar":"{bar}","value":{middle:.3},"unit":"ratio","samples":[{samples}],"how":"{method}"}}"#
    );
}

/// CPU nanoseconds for each allocation of a run, with everything included: the load's own metadata, reclaim,
/// LRU lists, pcp lists.
fn machine_ns_per_allocation(seed: u64) -> f64 {
    let workload = SimulatedWorkload {
        machine: "x86".to_owned(),
        kernelcore: None,
        load: "highalloc".to_owned(),
        parameters: Vec::new(),
    };
    let spec = SimulationSpec::new(workload, "standard", seed, 0).unwrap();
    let before = clock::thread_cpu_ns();
    let outcome = study::run_simulation(&spec, &mut |_| true).unwrap();
    let took = clock::thread_cpu_ns() - before;
    let is_it = |figure: &&study::SimulatedFigure| figure.phase == "in all" && figure.name == "allocations";
    let allocations = outcome.figures.iter().find(is_it).unwrap().value;
    assert!(allocations > 1_000_000, "{allocations} allocations");
    took as f64 / allocations as f64
}

/// CPU nanoseconds of a pair in the mix at 75 % of as much memory, by ordered sets and a hash table.
fn btree_ns_per_pair() -> f64 {
    let shape =
        ZoneGeometry { first_frame: Frame::new(0), frames: FRAMES, max_order: 10, pageblock_order: 9 };
    let mut pairs = FreeAllocatePairs::new(BTreeBuddy::new(shape).unwrap(), BenchLoad::Mix, 1).unwrap();
    let before = clock::thread_cpu_ns();
    pairs.run_pairs(PAIRS).unwrap();
    (clock::thread_cpu_ns() - before) as f64 / PAIRS as f64
}

/// Seconds of a sweep whose runs are alike.
fn sweep_seconds(threads: u32) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_pagelab"))
        .args(["sim", "sweep", "--machine", "256M", "--load", "streaming", "--set", "seconds=60"])
        .args(["--grid", "file_pages=8000,8001,8002,8003,8004,8005,8006,8007", "--seeds", "2"])
        .args(["--threads", &threads.to_string(), "-o", "r.pagelab"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    began.elapsed().as_secs_f64()
}
