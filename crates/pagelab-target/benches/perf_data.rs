//! Benchmark of the reader of perf files: records per second, compared with `perf script` on the same file.
//!
//! Prints one JSON line. The file is recorded here: page faults with addresses of programs that take memory,
//! all samples with mappings between them. Both sides read it from the page cache, in the order ABBA, wall
//! time; ours makes a profile's input of each record, perf's prints the address alone into nothing.

#![allow(clippy::unwrap_used, reason = "a bench panics to fail")]

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use pagelab_formats::perf_data;
use pagelab_model::order_statistics::median;

const BAR: &str = "perf_data_records_ratio";
/// Blocks of the order ABBA; odd, so that the median is one of them.
const ABBA_BLOCKS: usize = 5;
/// Fewer samples measure the start of a process.
const SAMPLES_MIN: u64 = 100_000;
const PROGRAM: &str = "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=/dev/null bs=128M count=1; done";

fn main() {
    let line = measure().unwrap_or_else(|why| {
        let why = why.replace(['"', '\\', '\n'], " ");
        format!(r#"{{"bar":"{BAR}","value":null,"unit":"ratio","why":"{why}"}}"#)
    });
    let _ = writeln!(io::stdout(), "{line}");
}

fn measure() -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("perf.data");
    let record = ["record", "-q", "-e", "page-faults", "-c", "1", "-d", "-o"];
    let mut command = Command::new("perf");
    command.args(record).arg(&file).args(["--", "sh", "-c", PROGRAM]).stderr(Stdio::null());
    let ran = command.status().map_err(|error| format!("perf: {error}"))?;
    if !ran.success() {
        return Err(format!("perf record: {ran}"));
    }
    let (records, samples) = read_with_pagelab(&file);
    if samples < SAMPLES_MIN {
        return Err(format!("{samples} samples are too few: huge pages are on for all"));
    }
    let (mut ratios, mut rate) = (Vec::new(), Vec::new());
    for block in 0..=ABBA_BLOCKS {
        let (mut our_s, mut their_s) = (0.0, 0.0);
        for is_ours in [true, false, false, true] {
            let started = Instant::now();
            match is_ours {
                true => assert_eq!(read_with_pagelab(&file), (records, samples)),
                false => read_with_perf(&file)?,
            }
            *(if is_ours { &mut our_s } else { &mut their_s }) += started.elapsed().as_secs_f64();
        }
        // The first block warms up caches.
        if block > 0 {
            ratios.push(their_s / our_s);
            rate.push(2.0 * records as f64 / our_s);
        }
    }
    let middle = |values: &[f64]| median(&mut values.to_vec()).unwrap_or(f64::NAN);
    let listed: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    let how = format!(
        "records a second of the reader ({:.2} M/s) over those of perf script -F addr, {records} records; \
         median of {ABBA_BLOCKS} blocks ABBA",
        middle(&rate) / 1e6
    );
    let (value, listed) = (middle(&ratios), listed.join(","));
    Ok(format!(r#"{{"bar":"{BAR}","value":{value:.2},"unit":"ratio","samples":[{listed}],"how":"{how}"}}"#))
}

/// Reads the whole file: records and samples.
fn read_with_pagelab(path: &Path) -> (u64, u64) {
    let bytes = std::fs::read(path).unwrap();
    let mut samples = 0;
    let mut no_zstd = |_: &[u8], _: &mut [u8]| Err("packed".to_owned());
    let read = perf_data::read_perf_data(&mut &bytes[..], &mut no_zstd, &mut |_, event| {
        if let perf_data::Event::Sample(sample) = event {
            samples += u64::from(std::hint::black_box(sample).address != 0);
        }
    });
    (read.unwrap().1.records, samples)
}

fn read_with_perf(path: &Path) -> Result<(), String> {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "addr", "-i"]).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    let ran = command.status().map_err(|error| format!("perf: {error}"))?;
    if ran.success() { Ok(()) } else { Err(format!("perf script: {ran}")) }
}
