//! Benchmark of `pagelab report` on a run file of a million samples: the whole process.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use pagelab_model::run::{ClockReading, Manifest, RunEnd, StreamHeader, Unit};
use pagelab_model::{PageSize, Snapshot};
use pagelab_runfile::RunWriter;

const SAMPLES: u64 = 1_000_000;
const STREAMS: u64 = 10;
const RUNS: usize = 5;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("million.pagelab");
    write_run_file(&file);
    let bytes = std::fs::metadata(&file).unwrap().len();
    let seconds = |more: &[&str]| {
        let started = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
        let status = command.arg("report").arg(&file).args(more).stdout(Stdio::null()).status().unwrap();
        assert!(status.success());
        started.elapsed().as_secs_f64()
    };
    let samples: Vec<f64> = (0..RUNS).map(|_| seconds(&[])).collect();
    let slowest = samples.iter().copied().fold(0.0, f64::max);
    let listed = samples.iter().map(|s| format!("{s:.3}")).collect::<Vec<_>>().join(",");
    println!(
        "{{\"bar\":\"report_1m_samples_wall_s\",\"value\":{slowest:.3},\"unit\":\"s\",\"samples\":[{listed}],\
         \"how\":\"pagelab report FILE of {bytes} bytes, 10 streams of 100 000, the slowest of {RUNS}\"}}"
    );
    println!("the same as JSON {:.2} s, with -v {:.2} s", seconds(&["--json"]), seconds(&["-v"]));
}

fn write_run_file(path: &Path) {
    let known = Snapshot::new_unread("a bench", PageSize::DEFAULT);
    let manifest = Manifest {
        kind: "bench".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: vec!["bench".to_owned()],
        seed: Some(1),
        started: ClockReading { realtime_ns: 0, boottime_ns: 0 },
        machine: known.machine,
        settings: known.settings,
    };
    let mut file = RunWriter::create(path, &manifest).unwrap();
    let streams: Vec<_> = (0..STREAMS)
        .map(|number| {
            let labels = vec![("number".to_owned(), number.to_string())];
            file.add_stream(&StreamHeader { name: "latency".into(), unit: Unit::NANOSECONDS.into(), labels })
                .unwrap()
        })
        .collect();
    let mut state = 1u64;
    for n in 0..SAMPLES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = 100.0 + (state >> 40) as f64 / 1e4;
        file.add_sample(streams[(n % STREAMS) as usize], n * 1000, value).unwrap();
    }
    file.close(RunEnd::Complete { after_ns: SAMPLES * 1000 }).unwrap();
}
