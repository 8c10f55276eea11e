//! Benchmark of the run file: a million samples written and read, and the cost of one tick of a recording.
//!
//! Prints one JSON line for each bar on stdout. The samples are those of eight streams in turn: times a
//! microsecond apart, values from splitmix64 with seed 1. A file is written from `create` to the end of
//! `close`, so with its last write to the disk. A tick is one row of 300 columns, a hundred of which change.

use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use pagelab_model::order_statistics::median;
use pagelab_model::random::SplitMix64;
use pagelab_model::run::{ClockReading, ColumnHeader, Manifest, RunEnd, StreamHeader, Unit};
use pagelab_model::{PageSize, Snapshot};
use pagelab_runfile::{Error, RunWriter, read_run_file};
use rustix::time::{ClockId, clock_gettime};

const SAMPLES: u64 = 1_000_000;
const STREAMS: u64 = 8;
const ROUNDS: usize = 5;
const COLUMNS: usize = 300;
const CHANGING_COLUMNS: usize = 100;
const TICKS: u64 = 2_000;

fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("pagelab-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let measured = bench(&folder);
    std::fs::remove_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    measured
}

fn bench(folder: &Path) -> Result<(), Error> {
    let path = folder.join("bench.pagelab");
    let (mut rates, mut reads, mut ticks, mut whole_ticks) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        write_samples(&path)?;
        rates.push(SAMPLES as f64 / start.elapsed().as_secs_f64());
        let start = Instant::now();
        let run = black_box(read_run_file(&path)?);
        reads.push(start.elapsed().as_secs_f64());
        assert_eq!(run.streams.iter().map(|stream| stream.values.len() as u64).sum::<u64>(), SAMPLES);
        remove(&path);
        let before = thread_cpu_time(ClockId::ProcessCPUTime);
        ticks.push(write_rows(&path)?.as_secs_f64() * 1e6 / TICKS as f64);
        let whole = thread_cpu_time(ClockId::ProcessCPUTime) - before;
        whole_ticks.push(whole.as_secs_f64() * 1e6 / TICKS as f64);
        remove(&path);
    }
    let method = "1 M samples of 8 streams, create to close; seed 1";
    print_median("runfile_samples_per_s", "1/s", rates, method);
    print_median("runfile_read_s", "s", reads, "read() of the same file, its pages in the cache");
    print_median(
        "runfile_row_cpu_us",
        "us",
        ticks,
        "CPU of the caller for one row of 300 columns, 100 changing",
    );
    let method = "CPU of the process for the same row: caller, writing thread, create and close";
    print_median("runfile_tick_cpu_us", "us", whole_ticks, method);
    Ok(())
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn write_samples(path: &Path) -> Result<(), Error> {
    let mut writer = RunWriter::create(path, &manifest())?;
    let stream = |at: u64| StreamHeader {
        name: "access time".to_owned(),
        unit: Unit::NANOSECONDS.into(),
        labels: vec![("variant".to_owned(), at.to_string())],
    };
    let streams = (0..STREAMS).map(|at| writer.add_stream(&stream(at))).collect::<Result<Vec<_>, _>>()?;
    let mut random = SplitMix64::new(1);
    for at in 0..SAMPLES {
        let value = random.next_below(1 << 52) as f64 / 1024.0;
        writer.add_sample(streams[(at % STREAMS) as usize], at * 1_000, value)?;
    }
    writer.close(RunEnd::Complete { after_ns: SAMPLES * 1_000 })
}

/// CPU time of this thread for all ticks.
fn write_rows(path: &Path) -> Result<Duration, Error> {
    let mut writer = RunWriter::create(path, &manifest())?;
    let head = |at: usize| ColumnHeader {
        name: format!("nr_column_{at}"),
        unit: Unit::PAGES.into(),
        is_counter: true,
    };
    let series = writer.add_series("vmstat", "vmstat", &(0..COLUMNS).map(head).collect::<Vec<_>>())?;
    let mut random = SplitMix64::new(1);
    let mut values = vec![Some(1_000_000_i64); COLUMNS];
    let mut spent = Duration::ZERO;
    for tick in 0..TICKS {
        for value in values[..CHANGING_COLUMNS].iter_mut().flatten() {
            *value += random.next_below(1000) as i64;
        }
        let before = thread_cpu_time(ClockId::ThreadCPUTime);
        writer.add_row(series, tick, &values)?;
        spent += thread_cpu_time(ClockId::ThreadCPUTime) - before;
    }
    writer.close(RunEnd::Complete { after_ns: TICKS })?;
    Ok(spent)
}

fn manifest() -> Manifest {
    let snapshot = Snapshot::new_unread("a bench", PageSize::DEFAULT);
    Manifest {
        kind: "bench".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: Vec::new(),
        seed: Some(1),
        started: ClockReading { realtime_ns: 0, boottime_ns: 0 },
        machine: snapshot.machine,
        settings: snapshot.settings,
    }
}

/// One line for `cargo xtask bench`: the median.
fn print_median(bar: &str, unit: &str, samples: Vec<f64>, method: &str) {
    let shown: Vec<String> = samples.iter().map(|sample| format!("{sample:.4}")).collect();
    let _ = writeln!(
        io::stdout(),
        r#"{{"bar":"{bar}","value":{:.4},"unit":"{unit}","samples":[{}],"how":"{method}"}}"#,
        median(&mut samples.clone()).unwrap_or(f64::NAN),
        shown.join(",")
    );
}

fn thread_cpu_time(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
