//! Benchmark of `profile --source accessed`: the slow-down of a program that only reads.
//!
//! The same workload runs in turns at the default, with next to no sweeps, and with sweeps all the time. The
//! first bar is the cost that a default run reports: each cleared page at this machine's measured cost, and
//! the stops. The second does not depend on that measurement: the workload's own CPU time per read gives the
//! share of time lost during sweeps; multiplied by the duty, with the stops, it bounds the same cost from
//! outside.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]
#![allow(clippy::unwrap_used, reason = "a bench panics to fail")]

use std::path::Path;
use std::process::Command;

use pagelab_model::order_statistics;
use serde_json::Value;

const RUNS: usize = 3;
/// Reads enough for some seconds; a tenth of it where reads take ten times as long.
const ROUNDS: u64 = 30_000_000;

/// Of one run: ns of CPU a read, sweeps, and parts of the time: in sweeps, stopped, and what they cost.
struct RunFigures {
    read_ns: f64,
    sweeps: u64,
    duty: f64,
    stopped: f64,
    cost: f64,
}

fn measure_run(folder: &Path, duty: &str, rounds: u64) -> RunFigures {
    let file = folder.join("bench.pagelab");
    let binary = env!("CARGO_BIN_EXE_pagelab");
    let mut command = Command::new(binary);
    command.args(["profile", "--source", "accessed", "--duty", duty, "-o"]).arg(&file);
    command.arg("--").arg(binary).args(["workload", "hot-regions", "--size", "512M", "--rounds"]);
    let output = command.arg(rounds.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let start = said.find("{\"pagelab_json\"").unwrap();
    let said = serde_json::Deserializer::from_str(&said[start..]).into_iter::<Value>().next();
    let profile = pagelab_runfile::read_run_file(&file).unwrap().profile.unwrap();
    std::fs::remove_file(&file).unwrap();
    let effort = &profile.effort;
    RunFigures {
        read_ns: said.unwrap().unwrap()["merit"]["value"].as_f64().unwrap(),
        sweeps: effort.sweeps.unwrap(),
        duty: f64::from(effort.duty_permille.unwrap()) / 1000.0,
        stopped: effort.stopped_ns.unwrap_or(0) as f64 / profile.wall_ns as f64,
        cost: effort.slowdown_ppm.unwrap_or(0) as f64 / 1e6,
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    order_statistics::median(&mut values.collect::<Vec<f64>>()).unwrap_or(f64::NAN)
}

fn main() {
    let folder = std::env::temp_dir().join(format!("pagelab-bench-accessed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut turns = Vec::new();
    for turn in 0..RUNS {
        let usual = |folder: &Path| measure_run(folder, "1.5%", ROUNDS);
        // Who comes first may find a quieter machine.
        let first = (turn % 2 == 0).then(|| usual(&folder));
        let none = measure_run(&folder, "0.1%", ROUNDS);
        let usual = first.unwrap_or_else(|| usual(&folder));
        turns.push((usual, none, measure_run(&folder, "100%", ROUNDS / 10)));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let of = |what: fn(&RunFigures) -> f64| median(turns.iter().map(|(usual, ..)| what(usual)));
    let (cost, duty, stopped) = (of(|run| run.cost), of(|run| run.duty), of(|run| run.stopped));
    let sweeps: Vec<u64> = turns.iter().map(|(usual, ..)| usual.sweeps).collect();
    assert!(sweeps.iter().any(|&sweeps| sweeps > 0), "nothing was swept, so nothing was measured");
    let seen = median(turns.iter().map(|(usual, none, _)| usual.read_ns / none.read_ns)) - 1.0;
    let full = median(turns.iter().map(|(_, none, full)| full.read_ns / none.read_ns));
    let costs: Vec<String> = turns.iter().map(|(usual, ..)| format!("{:.4}", usual.cost)).collect();
    let fulls: Vec<String> =
        turns.iter().map(|(_, none, full)| format!("{:.2}", full.read_ns / none.read_ns)).collect();
    println!(
        r#"{{"bar":"profile_accessed_slow_down","value":{cost:.4},"unit":"ratio","samples":[{}],"how":"accounted at the default, {sweeps:?} sweeps; by CPU time of reads {seen:.3}, which noise moves by some hundredths; medians of {RUNS}"}}"#,
        costs.join(","),
    );
    let lost = 1.0 - 1.0 / full.max(1.0);
    println!(
        r#"{{"bar":"profile_accessed_full_duty","value":{:.4},"unit":"ratio","samples":[{}],"how":"reads take {full:.2} times as long with sweeps all the time, so {lost:.3} of it is lost, × the duty kept {duty:.4} + stopped {stopped:.4}; slow-down - 1 × duty + stopped is {:.4}; medians of {RUNS}"}}"#,
        lost * duty + stopped,
        fulls.join(","),
        (full - 1.0).max(0.0) * duty + stopped,
    );
}
