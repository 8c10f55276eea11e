//! Bars of the simulated machine and of sweeps: allocations a second of a whole run of `highalloc`, to pairs
//! a second of the allocator that one writes in an afternoon; and a sweep on two threads, to one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::process::Command;
use std::time::Instant;

use pagelab_sim::bench::{Load, Pairs};
use pagelab_sim::plain::Plain;
use pagelab_sim::study::{self, Scheme, Spec};
use pagelab_sim::words::Shape;
use pagelab_sys::clock;

/// The paper's x86 machine, in frames.
const FRAMES: u32 = 379 << 10;
const PAIRS: u64 = 1_000_000;
const TURNS: usize = 3;
/// Blocks of one thread, two, two, one.
const BLOCKS: usize = 3;

fn main() {
    let mut ratios = Vec::new();
    let mut last = (0.0, 0.0);
    for turn in 0..TURNS {
        last = (machine(turn as u64 + 1), plain());
        ratios.push(last.1 / last.0);
    }
    said(
        "sim_machine_to_plain",
        &ratios,
        &format!("{:.0} ns an allocation, {:.0} ns a pair", last.0, last.1),
    );
    let gains: Vec<f64> = (0..BLOCKS)
        .map(|_| {
            let [one, two, again, last] = [1, 2, 2, 1].map(sweep);
            (one + last) / (two + again)
        })
        .collect();
    said("sim_sweep_two_threads", &gains, "16 runs of streaming on 256M, wall time, blocks of four");
}

/// The line of a bar: the middle of its samples.
fn said(bar: &str, samples: &[f64], how: &str) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted[sorted.len() / 2];
    let samples: Vec<String> = samples.iter().map(|sample| format!("{sample:.3}")).collect();
    let samples = samples.join(",");
    println!(r#"{{"bar":"{bar}","value":{middle:.3},"unit":"ratio","samples":[{samples}],"how":"{how}"}}"#);
}

/// CPU nanoseconds for each allocation of a run, with all that it brings along: the load's own books,
/// reclaim, LRU lists, per-CPU lists.
fn machine(seed: u64) -> f64 {
    let spec = Spec {
        machine: "x86".to_owned(),
        kernelcore: None,
        scheme: Scheme::parse("standard").unwrap(),
        load: "highalloc".to_owned(),
        parameters: Vec::new(),
        seed,
        pictures: 0,
    };
    let before = clock::thread_cpu_ns();
    let outcome = study::run(&spec, &mut |_| true).unwrap();
    let took = clock::thread_cpu_ns() - before;
    let is_it = |figure: &&study::Figure| figure.phase == "in all" && figure.name == "allocations";
    let allocations = outcome.figures.iter().find(is_it).unwrap().value;
    assert!(allocations > 1_000_000, "{allocations} allocations");
    took as f64 / allocations as f64
}

/// CPU nanoseconds of a pair in the mix at 75 % of as much memory, by ordered sets and a hash table.
fn plain() -> f64 {
    let shape = Shape { first: 0, frames: FRAMES, max_order: 10, block_order: 9 };
    let mut pairs = Pairs::new(Plain::new(shape).unwrap(), Load::Mix, 1).unwrap();
    let before = clock::thread_cpu_ns();
    pairs.run(PAIRS).unwrap();
    (clock::thread_cpu_ns() - before) as f64 / PAIRS as f64
}

/// Seconds of a sweep whose runs are alike.
fn sweep(threads: u32) -> f64 {
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
