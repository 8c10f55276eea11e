//! Benchmark of `pagelab record`: the cost of a sample, and the size of a day.
//!
//! Prints one JSON line for each bar on stdout. 8641 samples of this machine's real files are taken as fast
//! as possible, at the times of ticks 5 s apart, and written as the command writes them. Before each, memory
//! is allocated and freed and a file grows, with random sizes from splitmix64 with seed 1, so that counters
//! and free lists change as on a busy machine; the CPU time of that is not counted.

// The command's own way from a sample to rows.
use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;

use pagelab_host::root::Root;
use pagelab_host::sampler::{Metrics, Sampler};
use pagelab_metrics::standard_series::{self, TickCost};
use pagelab_model::random::SplitMix64;
use pagelab_model::run::{ClockReading, Manifest, RunEnd};
use pagelab_model::{PageSize, Snapshot};
use pagelab_record::rows::SeriesWriter;
use pagelab_runfile::{Error, RunWriter};
use pagelab_sys::clock;

/// Twelve hours at five seconds, both ends included.
const TICKS: u64 = 12 * 3600 / 5 + 1;
const EVERY_NS: u64 = 5_000_000_000;
/// Maximum allocation before a sample.
const ALLOCATION_MAX: u64 = 4 << 20;

fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("pagelab-bench-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let measured = measure_all(&folder);
    std::fs::remove_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    measured
}

fn measure_all(folder: &Path) -> Result<(), Error> {
    let four = Metrics::parse("meminfo,vmstat,buddyinfo,pressure").unwrap_or_default();
    let (_, bytes) = measure_day(folder, "four.pagelab", &four)?;
    let (cpu_ms, bytes_default) = measure_day(folder, "default.pagelab", &Metrics::default())?;
    let how = "process CPU over 8641 samples, writing thread included, load excluded; the mean";
    print_bar("record_sample_cpu_ms", "ms", cpu_ms, how);
    let how = "the closed file after 8641 samples with memory and a file moving in between; seed 1";
    print_bar("record_day_mb", "MB", bytes as f64 / 1e6, how);
    print_bar("record_default_day_mb", "MB", bytes_default as f64 / 1e6, how);
    Ok(())
}

/// Milliseconds of CPU for a sample, and bytes of the file.
fn measure_day(folder: &Path, name: &str, metrics: &Metrics) -> Result<(f64, u64), Error> {
    let path = folder.join(name);
    let mut sampler = Sampler::open(&Root::live(), metrics);
    let mut writer = RunWriter::create(&path, &manifest())?;
    let (mut rows, mut load) = (SeriesWriter::default(), MemoryLoad::new(folder));
    let began_ns = process_cpu_ns();
    for tick in 0..TICKS {
        load.churn();
        let at_ns = tick * EVERY_NS;
        let before_ns = clock::boottime_ns();
        sampler.sample(at_ns);
        for part in sampler.metric_samples() {
            rows.write(&mut writer, at_ns, &part)?;
        }
        let cost = TickCost {
            cpu_ns: process_cpu_ns() - began_ns,
            wall_ns: clock::boottime_ns() - before_ns,
            ..TickCost::default()
        };
        standard_series::push_recorder_row(&cost, rows.clear_row());
        rows.write_row(
            &mut writer,
            at_ns,
            standard_series::RECORDER,
            "bench",
            0,
            standard_series::recorder_columns,
        )?;
        writer.request_commit();
    }
    writer.close(RunEnd::Complete { after_ns: TICKS * EVERY_NS })?;
    let cpu_ns = process_cpu_ns() - began_ns - load.cpu_ns;
    let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
    Ok((cpu_ns as f64 / 1e6 / TICKS as f64, bytes))
}

/// Something that moves memory, and the CPU time that it took.
struct MemoryLoad {
    random: SplitMix64,
    file: std::fs::File,
    cpu_ns: u64,
}

impl MemoryLoad {
    fn new(folder: &Path) -> MemoryLoad {
        let path = folder.join("load");
        let file = std::fs::File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        MemoryLoad { random: SplitMix64::new(1), file, cpu_ns: 0 }
    }

    fn churn(&mut self) {
        let before_ns = clock::thread_cpu_ns();
        let taken = vec![1_u8; self.random.next_below(ALLOCATION_MAX) as usize];
        let part = &taken[..taken.len() / 256];
        // A full disk makes the file smaller, and nothing else.
        let _ = black_box(&mut self.file).write_all(part);
        drop(black_box(taken));
        self.cpu_ns += clock::thread_cpu_ns() - before_ns;
    }
}

fn process_cpu_ns() -> u64 {
    clock::process_cpu_ns(std::process::id()).unwrap_or(0)
}

fn manifest() -> Manifest {
    let look = Snapshot::new_unread("bench", PageSize::DEFAULT);
    Manifest {
        kind: "record".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: vec!["bench".to_owned()],
        seed: Some(1),
        started: ClockReading { realtime_ns: 0, boottime_ns: 0 },
        machine: look.machine,
        settings: look.settings,
    }
}

fn print_bar(bar: &str, unit: &str, value: f64, method: &str) {
    let _ =
        writeln!(io::stdout(), r#"{{"bar":"{bar}","value":{value:.4},"unit":"{unit}","how":"{method}"}}"#);
}
