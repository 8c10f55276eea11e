//! The bar of `profile --source accessed`: what it slows a program down by that does nothing but read memory.
//!
//! The same workload runs with sweeps all the time and with next to none, in turns; its own CPU time by read
//! tells the slow-down at full duty. A run at the default duty tells the duty that is kept and how long the
//! program was stopped. What counts is slow-down × duty + the part of the time stopped.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]
#![allow(clippy::unwrap_used, reason = "a bench panics to fail")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const BAR: &str = "profile_accessed_slow_down";
const PAIRS: usize = 3;
const WORKLOAD: [&str; 6] = ["workload", "hot-regions", "--size", "512M", "--rounds", "12000000"];

/// Of one run: ns of CPU a read, the duty, and the part of the time stopped.
struct Measured {
    read_ns: f64,
    duty: f64,
    stopped: f64,
}

fn run(folder: &Path, duty: &str) -> Measured {
    let file = folder.join("bench.pagelab");
    let binary = env!("CARGO_BIN_EXE_pagelab");
    let mut command = Command::new(binary);
    command.args(["profile", "--source", "accessed", "--duty", duty, "-o"]).arg(&file);
    let output = command.arg("--").arg(binary).args(WORKLOAD).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let start = said.find("{\"pagelab_json\"").unwrap();
    let said = serde_json::Deserializer::from_str(&said[start..]).into_iter::<Value>().next();
    let profile = pagelab_runfile::read(&file).unwrap().profile.unwrap();
    std::fs::remove_file(&file).unwrap();
    let effort = &profile.effort;
    Measured {
        read_ns: said.unwrap().unwrap()["merit"]["value"].as_f64().unwrap(),
        duty: f64::from(effort.duty_permille.unwrap()) / 1000.0,
        stopped: effort.stopped_ns.unwrap_or(0) as f64 / profile.wall_ns as f64,
    }
}

fn main() {
    let folder = std::env::temp_dir().join(format!("pagelab-bench-accessed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (mut ratios, mut duties, mut stops) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let in_turns = if pair % 2 == 0 { ["100", "0.1"] } else { ["0.1", "100"] };
        let mut times = in_turns.map(|duty| run(&folder, duty).read_ns);
        if pair % 2 == 1 {
            times.reverse();
        }
        ratios.push(times[0] / times[1]);
        let usual = run(&folder, "1.5");
        duties.push(usual.duty);
        stops.push(usual.stopped);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let full = median(&ratios) - 1.0;
    let value = full.max(0.0) * median(&duties) + median(&stops);
    let samples: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
    println!(
        r#"{{"bar":"{BAR}","value":{value:.4},"unit":"ratio","samples":[{}],"how":"slow-down at full duty {full:.3}, duty kept {:.3}, stopped {:.4} of the time; medians of {PAIRS}"}}"#,
        samples.join(","),
        median(&duties),
        median(&stops),
    );
}
