//! Benchmark of `pagelab trace`: the cost of an event for the traced program, and its size in a file.
//!
//! Prints one JSON line for each bar on stdout. The load is the worst there is: memory is mapped, each page
//! touched, and all of it freed: two events per page and nothing else. Its CPU time is measured with and
//! without `pagelab trace record` beside it, in blocks of four turns (without, with, with, without), so that
//! what the machine does meanwhile is in both. A build is one of a crate made for it, by the cargo that runs
//! this.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagelab_metrics::alloc_trace::TraceAccount;
use pagelab_model::Bytes;
use pagelab_model::order_statistics;
use pagelab_runfile::TraceReader;
use pagelab_sys::clock;
use pagelab_sys::mapping::{Advice, Mapping};
use rustix::process::{Pid, Signal, kill_process};

/// Blocks of four turns; each so many of them, one of the other way is made too.
const BLOCKS: usize = 15;
const PERF_EVERY: usize = 3;
/// Memory of a round, and rounds of a turn: 0.2 s or so.
const ROUND_BYTES: Bytes = Bytes(32 << 20);
const ROUNDS: usize = 12;
/// From the file's first byte until the tracepoints are on: a file is made before.
const SETTLE: Duration = Duration::from_millis(300);
/// The times a trace is read.
const READS: usize = 9;
/// Builds of the crate.
const BUILDS: usize = 3;

type BoxedError = Box<dyn std::error::Error>;

fn main() -> Result<(), BoxedError> {
    if !rustix::process::geteuid().is_root() {
        return Err("tracing is for root".into());
    }
    let folder = std::env::temp_dir().join(format!("pagelab-bench-trace-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let measured = bench_churn(&folder).and_then(|()| bench_build(&folder));
    fs::remove_dir_all(&folder)?;
    measured
}

/// Maps, touches and frees memory; returns nanoseconds of this thread's CPU time.
fn churn_memory() -> io::Result<u64> {
    let began = clock::thread_cpu_ns();
    for _ in 0..ROUNDS {
        let mut map = Mapping::anonymous(ROUND_BYTES, Bytes(2 << 20))?;
        map.advise(0..map.len().0, Advice::NoHugePage)?;
        map.words_mut().chunks_mut(rustix::param::page_size() / 8).for_each(|page| page[0] = 1);
    }
    Ok(clock::thread_cpu_ns() - began)
}

/// A recorder that is at work.
fn start_recorder(file: &Path, backend: &str) -> Result<Child, BoxedError> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
    command.args(["trace", "record", "--no-snapshot", "--backend", backend, "-o"]).arg(file);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !file.exists() {
        if Instant::now() > deadline {
            return Err("the recorder does not begin".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(SETTLE);
    Ok(child)
}

/// Data read from a trace.
struct TraceFigures {
    events: u64,
    lost: u64,
    bytes_per_event: f64,
    /// Events of this thread.
    own: u64,
    /// Nanoseconds of CPU for the recorder's work on an event.
    recorder_ns: f64,
}

fn read_trace(file: &Path) -> Result<TraceFigures, BoxedError> {
    let mut reader = TraceReader::open(file)?;
    let (mut account, mut events) = (TraceAccount::new(reader.header(), &[]), Vec::new());
    for place in 0..reader.blocks().len() {
        reader.read_block(place, &mut events)?;
        account.add(&events);
    }
    let count: u64 = reader.blocks().iter().map(|block| block.events).sum();
    let bytes: u64 = reader.blocks().iter().map(|block| block.packed_bytes).sum();
    let lost = reader.read_losses()?.iter().map(|loss| loss.events).sum();
    let own = account.threads.get(&std::process::id()).copied().unwrap_or_default();
    let cpu_ns = reader.read_summary()?.map_or(0, |end| end.cpu_ns);
    Ok(TraceFigures {
        events: count,
        lost,
        bytes_per_event: bytes as f64 / count.max(1) as f64,
        own: own.allocated.events + own.freed.events,
        recorder_ns: cpu_ns as f64 / count.max(1) as f64,
    })
}

/// A turn with a recorder beside it: CPU of the load, and the trace.
fn measure_traced(file: &Path, backend: &str) -> Result<(u64, TraceFigures), BoxedError> {
    let _ = fs::remove_file(file);
    let mut recorder = start_recorder(file, backend)?;
    let cpu_ns = churn_memory()?;
    let pid = Pid::from_raw(i32::try_from(recorder.id())?).ok_or("no process")?;
    kill_process(pid, Signal::INT)?;
    recorder.wait()?;
    let read = read_trace(file)?;
    let wanted = 2 * ROUNDS as u64 * ROUND_BYTES.0 / rustix::param::page_size() as u64;
    if read.own + read.lost < wanted * 9 / 10 {
        return Err(format!("{} events of this load were traced, not {wanted}", read.own).into());
    }
    Ok((cpu_ns, read))
}

/// A block of four turns.
struct MeasurementBlock {
    /// Microseconds of the load's CPU time that an event costs.
    cost_us: f64,
    /// Nanoseconds of an event without a recorder.
    alone_ns: f64,
    /// The second of its traces.
    trace: TraceFigures,
}

fn measure_block(file: &Path, backend: &str) -> Result<MeasurementBlock, BoxedError> {
    let without = churn_memory()?;
    let ((first, _), (second, read)) = (measure_traced(file, backend)?, measure_traced(file, backend)?);
    let without = without + churn_memory()?;
    let events = 2.0 * read.own as f64;
    let cost_us = (first as f64 + second as f64 - without as f64) / events / 1e3;
    Ok(MeasurementBlock { cost_us, alone_ns: without as f64 / events, trace: read })
}

fn bench_churn(folder: &Path) -> Result<(), BoxedError> {
    let file = folder.join("churn.pagelab");
    let (mut costs, mut sizes, mut recorders, mut alone) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut perf, mut perf_recorders, mut lost) = (Vec::new(), Vec::new(), 0);
    churn_memory()?;
    for number in 0..BLOCKS {
        if number % PERF_EVERY == 0 {
            let block = measure_block(&file, "perf")?;
            perf.push(block.cost_us);
            perf_recorders.push(block.trace.recorder_ns);
        }
        // What people get, and what is made of it: the file is read below.
        let block = measure_block(&file, "auto")?;
        costs.push(block.cost_us);
        alone.push(block.alone_ns);
        sizes.push(block.trace.bytes_per_event);
        recorders.push(block.trace.recorder_ns);
        lost += block.trace.lost;
    }
    let quartiles = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        (sorted[sorted.len() / 4], sorted[sorted.len() * 3 / 4])
    };
    let (low, high) = quartiles(&costs);
    let how = format!(
        "median of {BLOCKS} ABBA blocks of churn by its CPU time, quartiles {low:.3} to {high:.3}; alone \
         {:.0} ns an event; {lost} lost; through perf {:.3}, and {:.0} ns for its recorder",
        median(alone),
        median(perf),
        median(perf_recorders)
    );
    print_bar("trace_traced_us", "us", median(costs), &how);
    let how = format!("zstd blocks of churn; the recorder took {:.0} ns of CPU an event", median(recorders));
    print_bar("trace_churn_bytes", "bytes", median(sizes), &how);
    let (ns, events) = measure_reading(&file)?;
    let how = format!("median of {READS} readings of {events} events of churn, opened, unpacked, decoded");
    print_bar("trace_read_ns", "ns", ns, &how);
    Ok(())
}

/// Nanoseconds of CPU of an event that is read, and how many there are.
fn measure_reading(file: &Path) -> Result<(f64, u64), BoxedError> {
    let (mut times, mut events, mut read) = (Vec::new(), Vec::new(), 0);
    for _ in 0..READS {
        let began = clock::thread_cpu_ns();
        let mut reader = TraceReader::open(file)?;
        read = 0;
        for place in 0..reader.blocks().len() {
            reader.read_block(place, &mut events)?;
            read += events.len() as u64;
        }
        times.push((clock::thread_cpu_ns() - began) as f64 / read.max(1) as f64);
    }
    Ok((median(times), read))
}

/// A crate with something in it for the compiler to do.
fn bench_build(folder: &Path) -> Result<(), BoxedError> {
    let package = folder.join("package");
    fs::create_dir_all(package.join("src"))?;
    fs::write(
        package.join("Cargo.toml"),
        "[package]\nname = \"made\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    )?;
    let mut source = String::from("use std::collections::BTreeMap;\n");
    let mut calls = String::new();
    for number in 0..150 {
        source += &format!(
            "#[derive(Clone, Debug, Default, PartialEq, PartialOrd)]\npub struct S{number} {{ a: u{}, b: \
             Vec<String>, c: BTreeMap<u32, f64> }}\npub fn f{number}(s: &S{number}) -> String {{ let mut t = \
             s.clone(); t.b.push(format!(\"{{s:?}}\")); t.c.insert({number}, 1.5); format!(\"{{:?}}{{}}\", t, \
             t == *s) }}\n",
            [8, 16, 32, 64][number % 4]
        );
        calls += &format!("    println!(\"{{}}\", f{number}(&S{number}::default()));\n");
    }
    fs::write(package.join("src/main.rs"), format!("{source}fn main() {{\n{calls}}}\n"))?;
    let (mut sizes, mut events, mut lost) = (Vec::new(), 0, 0);
    for build in 0..BUILDS {
        let file = folder.join(format!("build-{build}.pagelab"));
        let _ = fs::remove_dir_all(package.join("target"));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
        command.args(["trace", "record", "--no-snapshot", "-o"]).arg(&file).arg("--").arg(cargo);
        command.args(["build", "--release", "--quiet"]).env_remove("CARGO_TARGET_DIR").current_dir(&package);
        if !command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
            return Err("the build was not traced".into());
        }
        let read = read_trace(&file)?;
        sizes.push(read.bytes_per_event);
        (events, lost) = (read.events, lost + read.lost);
    }
    let how =
        format!("median of {BUILDS} builds of a crate by cargo, {events} events in the last; {lost} lost");
    print_bar("trace_build_bytes", "bytes", median(sizes), &how);
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    order_statistics::median(&mut values).unwrap_or(f64::NAN)
}

fn print_bar(bar: &str, unit: &str, value: f64, method: &str) {
    let _ =
        writeln!(io::stdout(), r#"{{"bar":"{bar}","value":{value:.4},"unit":"{unit}","how":"{method}"}}"#);
}
