//! Tests of allocator traces in a file: each block is read back, also from files that were not closed; damage
//! is reported.

use std::path::Path;

use pagelab_model::alloc_trace::{
    FrameRun, FrameState, FreeAreasSample, LostEvents, TraceEvent, TraceEventKind, TraceHeader, TraceThread,
};
use pagelab_model::random::SplitMix64;
use pagelab_model::run::RunEnd;
use pagelab_model::{BuddyInfo, FreeAreas, NodeId, ZoneFreeAreas, ZoneKey};
use pagelab_runfile::{Error, ErrorKind, RunWriter, TraceEncoder, TraceReader};

use crate::fixtures;

/// Allocations and frees of two threads, in units of 32 ns.
fn events(block: u64) -> Vec<TraceEvent> {
    let mut random = SplitMix64::new(block);
    let mut at_ns = block * 1_000_000_000;
    let next = |_| {
        at_ns += 32 * random.next_below(200);
        let pfn = random.next_below(1 << 22) as u32;
        let what = match random.next_below(2) {
            0 => TraceEventKind::Alloc { pfn: Some(pfn), order: 0, migratetype: 1, gfp_flags: 0x140_dca },
            _ => TraceEventKind::Free { pfn, order: 0 },
        };
        TraceEvent { time_ns: at_ns, tid: 100 + random.next_below(2) as u32, cpu: 1, kind: what }
    };
    (0..1 + block * 500).map(next).collect()
}

fn runs() -> Vec<FrameRun> {
    (0..200_000)
        .map(|n| FrameRun { pfn: 3 * n, frames: 2, state: FrameState::ALL[n as usize % 4], read_ns: 9 })
        .collect()
}

fn sample(at_ns: u64) -> FreeAreasSample {
    let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
    let areas = FreeAreas::new(vec![at_ns, 2, 1]).unwrap();
    FreeAreasSample { at_ns, free: BuddyInfo { zones: vec![ZoneFreeAreas { key, areas }] } }
}

fn loss(at_ns: u64) -> LostEvents {
    LostEvents { at_ns, cpu: 3, events: at_ns + 1 }
}

fn threads() -> Vec<TraceThread> {
    let name = |tid: u32| (!tid.is_multiple_of(3)).then(|| format!("kworker/{tid}:1 \u{fffd}"));
    (1..500).map(|tid| TraceThread { tid, name: name(tid) }).collect()
}

const BLOCKS: u64 = 12;

fn write(path: &Path) -> RunWriter {
    let mut writer = RunWriter::create(path, &fixtures::manifest()).unwrap();
    writer.add_trace_header(&TraceHeader { kernel: "6.18".to_owned(), ..TraceHeader::default() }).unwrap();
    let mut encoder = TraceEncoder::new().unwrap();
    for block in 0..BLOCKS {
        writer.add_trace_block(encoder.encode_block(&events(block)).unwrap()).unwrap();
        writer.add_trace_samples(&[sample(block * 10), sample(block * 10 + 5)]).unwrap();
        writer.add_trace_losses(&[loss(block)]).unwrap();
    }
    writer.add_trace_runs(&runs()).unwrap();
    writer.add_trace_threads(BLOCKS, &threads()).unwrap();
    writer
}

fn check(path: &Path, ending: &RunEnd) {
    let mut reader = TraceReader::open(path).unwrap();
    assert_eq!((reader.run_end(), reader.header().kernel.as_str()), (ending, "6.18"));
    assert!(reader.read_frame_runs().unwrap() == runs());
    let times: Vec<u64> = reader.read_samples().unwrap().iter().map(|sample| sample.at_ns).collect();
    assert_eq!((times.len() as u64, times[3]), (2 * BLOCKS, 15));
    assert_eq!(reader.read_losses().unwrap(), (0..BLOCKS).map(loss).collect::<Vec<_>>());
    assert_eq!(reader.read_threads().unwrap(), threads());
    let mut read = Vec::new();
    for place in [0, 5, 3, 11, 0] {
        reader.read_block(place, &mut read).unwrap();
        assert!(read == events(place as u64), "block {place}");
        assert_eq!(reader.blocks()[place].events, read.len() as u64);
    }
    assert!(reader.read_block(BLOCKS as usize, &mut read).is_err() && read.is_empty());
}

#[test]
fn a_trace_comes_back_closed_or_not_and_a_report_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    let mut writer = write(&path);
    writer.flush().unwrap();
    check(&path, &RunEnd::NotClosed);
    writer.close(RunEnd::Complete { after_ns: 5 }).unwrap();
    check(&path, &RunEnd::Complete { after_ns: 5 });
    let run = pagelab_runfile::read_run_file(&path).unwrap();
    assert_eq!(run.unknown_content, ["a page allocator trace: use `pagelab trace info`"]);
}

/// Changes the file by one statement of SQL, and reads all of it.
fn read_after_sql(sql: &str) -> Result<(), Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    write(&path).close(RunEnd::Complete { after_ns: 5 }).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let mut reader = TraceReader::open(&path)?;
    reader.read_frame_runs()?;
    reader.read_samples()?;
    reader.read_losses()?;
    (0..reader.blocks().len()).try_for_each(|place| reader.read_block(place, &mut Vec::new()))
}

#[test]
fn damage_is_reported_with_its_place() {
    let events = "kind = 'trace_events' AND name = '2501'";
    for (sql, problem) in [
        // A bit of the packed bytes: zstd's own checksum or its format says so.
        (
            format!(
                "UPDATE blob SET data = substr(data, 1, 100) || x'ff' || substr(data, 102) WHERE {events}"
            ),
            "event block 6, 5.000 s after the start: ",
        ),
        (format!("UPDATE blob SET data = substr(data, 1, 500) WHERE {events}"), "event block 6"),
        (format!("UPDATE blob SET raw_bytes = raw_bytes - 1 WHERE {events}"), "event block 6"),
        (format!("UPDATE blob SET raw_bytes = raw_bytes + 1 WHERE {events}"), "it decompresses to"),
        (format!("UPDATE blob SET raw_bytes = 1 << 40 WHERE {events}"), "is not an event block"),
        (format!("UPDATE blob SET name = '2500' WHERE {events}"), "it has 2501 events; expected 2500"),
        (format!("UPDATE blob SET name = '-1' WHERE {events}"), "is not an event block"),
        (format!("UPDATE blob SET at_ns = 1 WHERE {events}"), "is not an event block"),
        (
            "UPDATE blob SET data = (SELECT data FROM blob WHERE name = '2501') WHERE name = '3001'"
                .to_owned(),
            "event block 7",
        ),
        ("DELETE FROM blob WHERE kind = 'trace_head'".to_owned(), "without a trace"),
        ("UPDATE blob SET version = 3 WHERE kind = 'trace_runs'".to_owned(), "hint: use a newer pagelab"),
        (
            "UPDATE blob SET data = (SELECT data FROM blob WHERE name = '2501') WHERE kind = 'trace_runs'"
                .to_owned(),
            "blob 38 (trace_runs)",
        ),
        ("UPDATE blob SET kind = 'trace_losses' WHERE kind = 'trace_samples'".to_owned(), "trace_losses"),
    ] {
        let error = read_after_sql(&sql).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("cannot read ") && message.contains(problem), "{sql}: {message}");
        assert!(error.kind() != ErrorKind::Io, "{sql}: {error:?}");
    }
}

#[test]
fn the_error_for_a_run_file_without_a_trace_names_trace_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.pagelab");
    fixtures::file(&path);
    let error = TraceReader::open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotARunFile);
    assert!(error.to_string().contains("it is a run file of `record` without a trace"), "{error}");
}
