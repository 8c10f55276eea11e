//! Benchmark of a sweep of 10 000 points: its time, compared with that of its simulations alone; the size of
//! its run file; the memory of a reader.
//!
//! Load churn on 64 MiB, random points of seed 1, one thread; turns are sweep, simulations, simulations,
//! sweep.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use pagelab_model::order_statistics::median;
use pagelab_sim::study::{self, SimulationSpec};
use pagelab_study::simulation_plan::SimulationChoice;
use pagelab_study::sweep_plan::{SweepRequest, parse_range};
use pagelab_sys::wait::wait4;

const POINTS: u32 = 10_000;
const RANGES: [&str; 2] = ["pairs=100..1000", "full=10..50"];
/// Pairs of a sweep and its simulations.
const BLOCKS: usize = 2;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let specs = simulation_specs();
    let mut ratios = Vec::new();
    let mut seconds = (0.0, 0.0);
    for _ in 0..BLOCKS {
        let before = sweep_seconds(folder.path());
        let alone = [simulation_seconds(&specs), simulation_seconds(&specs)];
        seconds = (before + sweep_seconds(folder.path()), alone.iter().sum());
        ratios.push(seconds.0 / seconds.1);
    }
    let (sweep, alone) = (seconds.0 / 2.0, seconds.1 / 2.0);
    print_bar("overhead", "ratio", &ratios, &format!("{sweep:.1} s, simulations alone {alone:.1} s"));
    let bytes = std::fs::metadata(folder.path().join("sweep.pagelab")).unwrap().len();
    let size = [bytes as f64 / f64::from(POINTS)];
    print_bar("bytes_per_trial", "bytes", &size, &format!("{bytes} bytes, {POINTS} trials"));
    for (name, command) in [("reader_mb", &["report"][..]), ("json_mb", &["report", "--json"][..])] {
        print_bar(name, "MB", &[reader_mb(folder.path(), command)], &command.join(" "));
    }
}

/// The line of a bar: the median of its samples.
fn print_bar(name: &str, unit: &str, samples: &[f64], method: &str) {
    let middle = median(&mut samples.to_vec()).unwrap_or(f64::NAN);
    let samples: Vec<String> = samples.iter().map(|sample| format!("{sample:.3}")).collect();
    let samples = samples.join(",");
    println!(
        "{{\"bar\":\"sim_sweep_10k_{name}\",\"value\":{middle:.3},\"unit\":\"{unit}\",\
         \"samples\":[{samples}],\"how\":\"{method}\"}}"
    );
}

/// The simulations of the sweep.
fn simulation_specs() -> Vec<SimulationSpec> {
    let request = SweepRequest {
        ranges: RANGES.iter().map(|range| parse_range(range).unwrap()).collect(),
        random: Some(POINTS),
        load: Some("churn".to_owned()),
        choice: SimulationChoice { machine: Some("64M".to_owned()), ..SimulationChoice::default() },
        ..SweepRequest::default()
    };
    let plan = request.plan().unwrap().0;
    let specs: Vec<SimulationSpec> = (0..plan.schedule.len())
        .map(|slot| {
            let (at, seed) = plan.point_and_seed(slot).unwrap();
            let point = plan.point(at).unwrap();
            SimulationSpec::new(point.workload.clone(), point.scheme, seed, 0).unwrap()
        })
        .collect();
    assert_eq!(specs.len(), POINTS as usize);
    specs
}

fn simulation_seconds(specs: &[SimulationSpec]) -> f64 {
    let began = Instant::now();
    for spec in specs {
        study::run_simulation(spec, &mut |_| true).unwrap();
    }
    began.elapsed().as_secs_f64()
}

fn sweep_seconds(folder: &Path) -> f64 {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_pagelab"))
        .args(["sim", "sweep", "--machine", "64M", "--load", "churn", "--random", &POINTS.to_string()])
        .args(["--range", RANGES[0], "--range", RANGES[1]])
        .args(["--threads", "1", "--force", "-o", "sweep.pagelab"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    began.elapsed().as_secs_f64()
}

/// The largest resident set of a reader of the run file.
#[expect(clippy::zombie_processes, reason = "wait4 reaps it")]
fn reader_mb(folder: &Path, command: &[&str]) -> f64 {
    let reader = Command::new(env!("CARGO_BIN_EXE_pagelab"))
        .args(command)
        .arg("sweep.pagelab")
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (status, usage) = wait4(reader.id(), false).unwrap().unwrap();
    assert!(status.success());
    usage.maxrss_kib as f64 * 1024.0 / 1e6
}
