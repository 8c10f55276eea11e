//! Tests of files that the installed perf records: pagelab and perf agree on every sample.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use pagelab_formats::perf_data::{self, Event, FileInfo, ReadSummary};
use pagelab_model::PageSize;
use pagelab_target::sampling::{self, file};
use zstd::stream::raw::{Decoder, Operation};

/// Runs perf in a folder; `None` if it is not installed or may not record, after saying so.
fn run_perf(folder: &Path, words: &[&str]) -> Option<Vec<u8>> {
    let ran = Command::new("perf").args(words).current_dir(folder).stdin(Stdio::null()).output();
    let (id, problem) = match ran {
        Ok(ran) if ran.status.success() => return Some(ran.stdout),
        Ok(ran) => ("no-perf-events", String::from_utf8_lossy(&ran.stderr).trim().replace('\n', " ")),
        Err(error) => ("no-perf", error.to_string()),
    };
    let line = format!("skipped: {id}: perf {}: {problem}\n", words[0]);
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}

fn read_events(bytes: &[u8]) -> (FileInfo, ReadSummary, Vec<Event>) {
    let mut decompressor = Decoder::new().unwrap();
    let mut decompress = |packed: &[u8], room: &mut [u8]| {
        let done = decompressor.run_on_buffers(packed, room).map_err(|error| error.to_string())?;
        Ok((done.bytes_read, done.bytes_written))
    };
    let mut events = Vec::new();
    let mut input = bytes;
    let read = perf_data::read_perf_data(&mut input, &mut decompress, &mut |_, event| events.push(event));
    let (file_info, summary) = read.unwrap();
    (file_info, summary, events)
}

/// `pid/tid time: period event: address` of each sample, as `perf script` prints them.
fn format_samples(file_info: &FileInfo, events: &[Event]) -> Vec<String> {
    let line = |event: &Event| {
        let Event::Sample(of) = event else { return None };
        let time = of.time_ns.unwrap();
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        let (name, address) = (&file_info.events[of.event_index].name, of.address);
        let period = of.period.unwrap_or(file_info.events[of.event_index].attr.period_or_frequency);
        Some(format!("{}/{} {seconds}.{rest:09}: {period} {name}: {address:x}", of.pid, of.tid))
    };
    events.iter().filter_map(line).collect()
}

/// A shell that starts others: forks, execs, faults.
const PROGRAM: [&str; 3] = ["sh", "-c", "ls /usr/bin >/dev/null; (:); seq 20000 | sort -r | tail -1"];

/// Options of perf record for samples with many fields.
const WIDE_SAMPLES: &[&str] =
    &["-e", "page-faults", "-c", "2", "-d", "--phys-data", "-W", "--data-page-size", "--intr-regs=ip"];

#[test]
fn perf_and_we_read_the_same_samples_and_records() {
    let folder = tempfile::tempdir().unwrap();
    let faults: &[&str] = &["-e", "page-faults", "-c", "1", "-d"];
    let several: &[&str] = &["-e", "page-faults,context-switches,minor-faults", "-c", "1", "-d"];
    let kinds: &[(&str, &[&str])] = &[
        ("one event", faults),
        ("several events", several),
        (
            "call chains, registers, stacks",
            &["-e", "page-faults", "-c", "3", "-d", "--call-graph", "dwarf,512"],
        ),
        ("physical addresses, weights, sizes", WIDE_SAMPLES),
        ("packed", &["-e", "page-faults", "-c", "1", "-d", "-z"]),
        ("by frequency", &["-e", "cpu-clock", "-F", "2000", "-d", "-g"]),
    ];
    for (what, options) in kinds {
        let record = [&["record", "-q", "-o", "f"], *options, &["--"], &PROGRAM].concat();
        if run_perf(folder.path(), &record).is_none() {
            return;
        }
        let (file_info, summary, events) = read_events(&std::fs::read(folder.path().join("f")).unwrap());
        let fields = ["script", "-i", "f", "--ns", "-F", "pid,tid,time,period,event,addr"];
        let theirs = run_perf(folder.path(), &fields).unwrap();
        let theirs: Vec<String> = String::from_utf8_lossy(&theirs)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|line| !line.is_empty())
            .collect();
        // A sample each half millisecond of a short program: how many is the machine's to say.
        let least = if *what == "by frequency" { 1 } else { 20 };
        assert!(theirs.len() >= least, "{what}: {}", theirs.len());
        let mut ours = format_samples(&file_info, &events);
        let mut sorted = theirs.clone();
        // Equal times have no order among CPUs.
        ours.sort_unstable();
        sorted.sort_unstable();
        assert_eq!(ours, sorted, "{what}");
        assert_eq!((summary.unknown_samples, summary.late_events), (0, 0), "{what}");
        let others = ["script", "-i", "f", "--show-mmap-events", "--show-task-events", "-F", "time"];
        let others = String::from_utf8_lossy(&run_perf(folder.path(), &others).unwrap()).into_owned();
        let count_records = |word: &str| others.matches(word).count();
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        assert_eq!(count(|of| matches!(of, Event::Mapped(_))), count_records("PERF_RECORD_MMAP"), "{what}");
        assert_eq!(
            count(|of| matches!(of, Event::Named { .. })),
            count_records("PERF_RECORD_COMM"),
            "{what}"
        );
        assert_eq!(
            count(|of| matches!(of, Event::Forked { .. })),
            count_records("PERF_RECORD_FORK"),
            "{what}"
        );
        assert_eq!(
            count(|of| matches!(of, Event::Ended { .. })),
            count_records("PERF_RECORD_EXIT"),
            "{what}"
        );
    }
}

#[test]
fn the_pipe_format_has_the_same_contents_as_the_file_format() {
    let folder = tempfile::tempdir().unwrap();
    let record =
        [&["record", "-q", "-o", "-", "-e", "page-faults", "-c", "1", "-d", "--"], &PROGRAM[..]].concat();
    let Some(pipe) = run_perf(folder.path(), &record) else { return };
    std::fs::write(folder.path().join("pipe"), &pipe).unwrap();
    let (file_info, summary, events) = read_events(&pipe);
    let inject = ["script", "-i", "pipe", "--ns", "-F", "pid,tid,time,period,event,addr"];
    let theirs = run_perf(folder.path(), &inject).unwrap();
    let theirs: Vec<String> = String::from_utf8_lossy(&theirs)
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect();
    let (mut ours, mut sorted) = (format_samples(&file_info, &events), theirs);
    ours.sort_unstable();
    sorted.sort_unstable();
    assert_eq!((ours, summary.unknown_samples), (sorted, 0));
    assert_eq!((file_info.arch.as_str(), file_info.command[0].is_empty()), (std::env::consts::ARCH, false));
}

#[test]
fn page_faults_have_addresses_and_are_refused_with_that_reason() {
    let folder = tempfile::tempdir().unwrap();
    let record =
        [&["record", "-q", "-o", "f", "-e", "page-faults", "-c", "1", "-d", "--"], &PROGRAM[..]].concat();
    if run_perf(folder.path(), &record).is_none() {
        return;
    }
    let options = sampling::SamplingOptions::new(PageSize::DEFAULT, None);
    let why = file::read_profile(&folder.path().join("f"), options.clone()).unwrap_err().to_string();
    assert!(why.contains("page faults") && why.contains("perf mem record"), "{why}");
    // A trace without addresses, and one of a folder.
    let plain = [&["record", "-q", "-o", "g", "-e", "page-faults", "-c", "1", "--"], &PROGRAM[..]].concat();
    run_perf(folder.path(), &plain).unwrap();
    let why = file::read_profile(&folder.path().join("g"), options.clone()).unwrap_err().to_string();
    assert!(why.contains("no data address"), "{why}");
    let why = file::read_profile(folder.path(), options).unwrap_err().to_string();
    assert!(why.contains("expected a file, found a directory") && why.contains("without --threads"), "{why}");
}
