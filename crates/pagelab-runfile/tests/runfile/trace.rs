//! Traces of the page allocator in a file: each block comes back, not closed too; what is damaged is named.

use std::path::Path;

use pagelab_model::alloc_trace::{
    TraceEvent, TraceHead, TraceLoss, TraceRun, TraceSample, TraceThread, TraceWhat, Was,
};
use pagelab_model::run::Ending;
use pagelab_model::seed::SplitMix64;
use pagelab_model::{BuddyInfo, FreeAreas, NodeId, ZoneFree, ZoneKey};
use pagelab_runfile::{Error, ErrorKind, TraceEncoder, TraceReader, Writer};

use crate::made;

/// Allocations and frees of two threads, in units of 32 ns.
fn events(block: u64) -> Vec<TraceEvent> {
    let mut random = SplitMix64::new(block);
    let mut at_ns = block * 1_000_000_000;
    let next = |_| {
        at_ns += 32 * random.below(200);
        let pfn = random.below(1 << 22) as u32;
        let what = match random.below(2) {
            0 => TraceWhat::Alloc { pfn: Some(pfn), order: 0, migratetype: 1, gfp: 0x140_dca },
            _ => TraceWhat::Free { pfn, order: 0 },
        };
        TraceEvent { at_ns, tid: 100 + random.below(2) as u32, cpu: 1, what }
    };
    (0..1 + block * 500).map(next).collect()
}

fn runs() -> Vec<TraceRun> {
    (0..200_000)
        .map(|n| TraceRun { pfn: 3 * n, frames: 2, was: Was::ALL[n as usize % 4], read_ns: 9 })
        .collect()
}

fn sample(at_ns: u64) -> TraceSample {
    let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
    let areas = FreeAreas::new(vec![at_ns, 2, 1]).unwrap();
    TraceSample { at_ns, free: BuddyInfo { zones: vec![ZoneFree { key, areas }] } }
}

fn loss(at_ns: u64) -> TraceLoss {
    TraceLoss { at_ns, cpu: 3, events: at_ns + 1 }
}

fn threads() -> Vec<TraceThread> {
    let name = |tid: u32| (!tid.is_multiple_of(3)).then(|| format!("kworker/{tid}:1 \u{fffd}"));
    (1..500).map(|tid| TraceThread { tid, name: name(tid) }).collect()
}

const BLOCKS: u64 = 12;

fn write(path: &Path) -> Writer {
    let mut writer = Writer::create(path, &made::manifest()).unwrap();
    writer.trace_head(&TraceHead { kernel: "6.18".to_owned(), ..TraceHead::default() }).unwrap();
    let mut encoder = TraceEncoder::new().unwrap();
    for block in 0..BLOCKS {
        writer.trace_events(encoder.encode(&events(block)).unwrap()).unwrap();
        writer.trace_samples(&[sample(block * 10), sample(block * 10 + 5)]).unwrap();
        writer.trace_losses(&[loss(block)]).unwrap();
    }
    writer.trace_runs(&runs()).unwrap();
    writer.trace_threads(BLOCKS, &threads()).unwrap();
    writer
}

fn check(path: &Path, ending: &Ending) {
    let mut reader = TraceReader::open(path).unwrap();
    assert_eq!((reader.ending(), reader.head().kernel.as_str()), (ending, "6.18"));
    assert!(reader.snapshot().unwrap() == runs());
    let times: Vec<u64> = reader.samples().unwrap().iter().map(|sample| sample.at_ns).collect();
    assert_eq!((times.len() as u64, times[3]), (2 * BLOCKS, 15));
    assert_eq!(reader.losses().unwrap(), (0..BLOCKS).map(loss).collect::<Vec<_>>());
    assert_eq!(reader.threads().unwrap(), threads());
    let mut read = Vec::new();
    for place in [0, 5, 3, 11, 0] {
        reader.block(place, &mut read).unwrap();
        assert!(read == events(place as u64), "block {place}");
        assert_eq!(reader.blocks()[place].events, read.len() as u64);
    }
    assert!(reader.block(BLOCKS as usize, &mut read).is_err() && read.is_empty());
}

#[test]
fn a_trace_comes_back_closed_or_not_and_a_report_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    let mut writer = write(&path);
    writer.flush().unwrap();
    check(&path, &Ending::NotClosed);
    writer.close(Ending::Complete { after_ns: 5 }).unwrap();
    check(&path, &Ending::Complete { after_ns: 5 });
    let run = pagelab_runfile::read(&path).unwrap();
    assert_eq!(run.not_shown, ["a trace of the page allocator, which `pagelab trace info` shows"]);
}

/// Changes the file by one statement of SQL, and reads all of it.
fn after(sql: &str) -> Result<(), Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    write(&path).close(Ending::Complete { after_ns: 5 }).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let mut reader = TraceReader::open(&path)?;
    reader.snapshot()?;
    reader.samples()?;
    reader.losses()?;
    (0..reader.blocks().len()).try_for_each(|place| reader.block(place, &mut Vec::new()))
}

#[test]
fn what_is_damaged_is_named_with_its_place() {
    let events = "kind = 'trace_events' AND name = '2501'";
    for (sql, problem) in [
        // A bit of the packed bytes: zstd's own checksum or its format says so.
        (
            format!(
                "UPDATE blob SET data = substr(data, 1, 100) || x'ff' || substr(data, 102) WHERE {events}"
            ),
            "block 6 of its events, 5.000 s after the start: ",
        ),
        (format!("UPDATE blob SET data = substr(data, 1, 500) WHERE {events}"), "block 6 of its events"),
        (format!("UPDATE blob SET raw_bytes = raw_bytes - 1 WHERE {events}"), "block 6 of its events"),
        (format!("UPDATE blob SET raw_bytes = raw_bytes + 1 WHERE {events}"), "it unpacks to"),
        (format!("UPDATE blob SET raw_bytes = 1 << 40 WHERE {events}"), "is no block of events"),
        (format!("UPDATE blob SET name = '2500' WHERE {events}"), "it has 2501 events, not 2500"),
        (format!("UPDATE blob SET name = '-1' WHERE {events}"), "is no block of events"),
        (format!("UPDATE blob SET at_ns = 1 WHERE {events}"), "is no block of events"),
        (
            "UPDATE blob SET data = (SELECT data FROM blob WHERE name = '2501') WHERE name = '3001'"
                .to_owned(),
            "block 7 of its events",
        ),
        ("DELETE FROM blob WHERE kind = 'trace_head'".to_owned(), "holds no trace"),
        ("UPDATE blob SET version = 2 WHERE kind = 'trace_runs'".to_owned(), "get a newer one"),
        (
            "UPDATE blob SET data = (SELECT data FROM blob WHERE name = '2501') WHERE kind = 'trace_runs'"
                .to_owned(),
            "blob 38 (trace_runs)",
        ),
        ("UPDATE blob SET kind = 'trace_losses' WHERE kind = 'trace_samples'".to_owned(), "trace_losses"),
    ] {
        let error = after(&sql).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("cannot read ") && message.contains(problem), "{sql}: {message}");
        assert!(error.kind() != ErrorKind::Io, "{sql}: {error:?}");
    }
}

#[test]
fn a_run_file_without_a_trace_says_what_makes_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.pagelab");
    made::file(&path);
    let error = TraceReader::open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotOurs);
    assert!(error.to_string().contains("it is a run file of `record` and holds no trace"), "{error}");
}
