//! Records for the files of tests.

use std::path::Path;

use pagelab_model::page_map::FrameSpan;
use pagelab_model::random::SplitMix64;
use pagelab_model::run::*;
use pagelab_model::{Order, PageClass, PageMap, PageMapLayout, PageSize, Pages, Pfn, Snapshot};
use pagelab_runfile::RunWriter;

/// A machine of which unknown.
pub fn snapshot() -> Snapshot {
    Snapshot::new_unread("a machine of this test", PageSize::DEFAULT)
}

pub fn manifest() -> Manifest {
    let snapshot = snapshot();
    Manifest {
        kind: "record".to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: ["pagelab", "record", "--every", "5s"].map(str::to_owned).to_vec(),
        seed: Some(u64::MAX),
        started: ClockReading { realtime_ns: 1_700_000_000_000_000_000, boottime_ns: 3_600_000_000_000 },
        machine: snapshot.machine,
        settings: snapshot.settings,
    }
}

pub fn head(name: &str, unit: &str, is_counter: bool) -> ColumnHeader {
    ColumnHeader { name: name.to_owned(), unit: unit.into(), is_counter }
}

/// The columns of a small series, with names that SQL takes for equal or for special.
pub fn heads() -> [ColumnHeader; 4] {
    [
        head("nr_free_pages", Unit::PAGES, false),
        head("pgfault", Unit::COUNT, true),
        head("PgFault", Unit::COUNT, true),
        head("Node 0, \"odd\"", Unit::COUNT, false),
    ]
}

/// Rows of it: constant, changing and coming back, failing at first, failing later.
pub const ROWS: [[Option<i64>; 4]; 4] = [
    [Some(7), Some(10), None, Some(i64::MAX)],
    [Some(7), Some(12), None, None],
    [Some(7), Some(10), Some(-1), None],
    [Some(7), Some(1 << 40), Some(-1), Some(i64::MIN)],
];

pub const SAMPLES: [f64; 4] = [0.5, -1e300, 3.0, 5e-324];

pub fn stream_head() -> StreamHeader {
    let labels = vec![("variant".to_owned(), "huge".to_owned()), ("bytes".to_owned(), "67108864".to_owned())];
    StreamHeader { name: "access time".to_owned(), unit: Unit::NANOSECONDS.into(), labels }
}

pub fn ending() -> RunEnd {
    RunEnd::Stopped { after_ns: 20_000_000_000, reason: "SIGINT".to_owned() }
}

/// The map with this number of a day: runs of pages, of which some change from map to map.
pub fn map(frames: u64, number: u64) -> PageMap {
    let mut random = SplitMix64::new(1);
    let mut classes = Vec::new();
    while (classes.len() as u64) < frames {
        let (run, class) = (1 + random.next_below(600), PageClass::ALL[random.next_below(15) as usize]);
        classes.extend(std::iter::repeat_n(class, run.min(frames - classes.len() as u64) as usize));
    }
    for change in 0..number {
        let mut random = SplitMix64::new(change);
        for _ in 0..frames / 2_000 {
            classes[random.next_below(frames) as usize] = PageClass::ALL[random.next_below(15) as usize];
        }
    }
    let layout = PageMapLayout {
        page_size: PageSize::DEFAULT,
        pageblock_order: Order(9),
        pmd_order: Order(9),
        spans: vec![FrameSpan { first: Pfn(1), count: Pages(frames) }],
        zones: Vec::new(),
        blocks: Vec::new(),
    };
    PageMap { started_ns: number * 60, ended_ns: number * 60 + 1, layout, classes }
}

/// The records above in a file, as far as schema version 1 supports them.
pub fn fill(writer: &mut RunWriter, snapshot: &Snapshot) {
    let series = writer.add_series("vmstat", "/proc/vmstat", &heads()).unwrap();
    let stream = writer.add_stream(&stream_head()).unwrap();
    for (at, (row, sample)) in (1..).zip(ROWS.iter().zip(SAMPLES)) {
        writer.add_row(series, at * 5_000_000_000, row).unwrap();
        writer.add_sample(stream, at * 1_000, sample).unwrap();
    }
    writer.add_blob("map", 7, "a blob of a kind to come", 12, b"0123456789").unwrap();
    writer.add_snapshot(snapshot).unwrap();
}

/// A small file with every kind of record.
pub fn file(path: &Path) {
    let mut writer = RunWriter::create(path, &manifest()).unwrap();
    fill(&mut writer, &snapshot());
    writer
        .add_event(&RunEvent { at_ns: 9, kind: "missed".to_owned(), text: "two ticks".to_owned() })
        .unwrap();
    writer.close(ending()).unwrap();
}

/// Asserts that a run holds the records of [`fill`].
pub fn check(run: &Run) {
    assert_eq!(run.ending, ending());
    let [series] = &run.series[..] else { panic!("{:?}", run.series) };
    assert_eq!((&*series.name, &*series.source), ("vmstat", "/proc/vmstat"));
    assert_eq!(series.at_ns, [5, 10, 15, 20].map(|s| s * 1_000_000_000));
    assert_eq!(series.columns.iter().map(|column| column.header.clone()).collect::<Vec<_>>(), heads());
    assert_eq!(series.columns[0].values, ColumnValues::Constant(Some(7)));
    for (at, row) in ROWS.iter().enumerate() {
        let read: Vec<_> = series.columns.iter().map(|column| column.values.value_at(at)).collect();
        assert_eq!(read, row);
    }
    let [stream] = &run.streams[..] else { panic!("{:?}", run.streams) };
    assert_eq!(stream.header, stream_head());
    assert_eq!((&stream.at_ns[..], &stream.values[..]), (&[1000, 2000, 3000, 4000][..], &SAMPLES[..]));
    assert_eq!(run.unknown_content, ["a blob of kind map, version 7: a blob of a kind to come"]);
}
