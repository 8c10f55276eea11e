//! Tests: averages of recordings with known values.

use pagelab_model::run::{ClockReading, Column, ColumnHeader, Manifest, RunEnd};
use pagelab_model::{PageSize, Snapshot};

use super::*;

fn run(series: Vec<Series>) -> Run {
    let known = Snapshot::new_unread("a test", PageSize::DEFAULT);
    let manifest = Manifest {
        kind: "record".into(),
        tool_version: "0".into(),
        command_line: vec![],
        seed: None,
        started: ClockReading { realtime_ns: 0, boottime_ns: 0 },
        machine: known.machine,
        settings: known.settings,
    };
    Run { series, ..Run::new("a", manifest, RunEnd::NotClosed) }
}

fn series(name: &str, unit: &str, at_s: &[u64], columns: &[(&str, &[Option<i64>])]) -> Series {
    let column = |(name, values): &(&str, &[Option<i64>])| Column {
        header: ColumnHeader { name: (*name).into(), unit: unit.into(), is_counter: unit == "count" },
        values: ColumnValues::Varying(values.to_vec()),
    };
    let at_ns = at_s.iter().map(|at| at * 1_000_000_000).collect();
    Series {
        name: name.into(),
        source: "a test".into(),
        at_ns,
        columns: columns.iter().map(column).collect(),
    }
}

const MIB: i64 = 1 << 20;

/// The first line of the table in the document that asks for these averages, in MB.
const CSERVER1: [i64; 5] = [4056, 2800, 1256, 1090, 166];

#[test]
fn the_documents_line_comes_from_readings_around_it() {
    let around = |of: i64, swing: i64| [of - swing, of + swing, of].map(|mib| Some(mib * MIB));
    let [total, free, used, cache, rest] = CSERVER1;
    let columns: [(&str, &[Option<i64>]); 5] = [
        ("MemTotal", &[Some(total * MIB); 3]),
        ("MemFree", &around(free, 300)),
        ("Buffers", &around(90, 20)),
        ("Cached", &around(990, 80)),
        ("SwapCached", &around(10, 10)),
    ];
    let meminfo = series("meminfo", "bytes", &[0, 5, 10], &columns);
    let vmstat = series(
        "vmstat",
        "count",
        &[0, 5, 10],
        &[("pgfault", &[Some(100), Some(1100), Some(1600)]), ("pgmajfault", &[Some(0), Some(10), Some(10)])],
    );
    let found = compute_averages(&run(vec![meminfo, vmstat])).unwrap();
    let parts = [
        found.total,
        found.free,
        found.used,
        found.page_cache.clone().unwrap(),
        found.used_less_page_cache.clone().unwrap(),
    ];
    assert_eq!(
        parts.map(|part| part.mean / MIB as f64),
        [total, free, used, cache, rest].map(|mib| mib as f64)
    );
    assert_eq!((found.free.min, found.free.max), ((2500 * MIB) as f64, (3100 * MIB) as f64));
    assert_eq!(
        (found.readings, found.span_ns, found.typical_interval_ns),
        (3, 10_000_000_000, Some(5_000_000_000))
    );
    let faults = found.faults_per_second.unwrap();
    assert_eq!((faults.minor.mean, faults.major.mean, faults.minor.max), (149.0, 1.0, 198.0));
}

#[test]
fn a_reading_that_failed_is_left_out_of_all_columns() {
    let columns: [(&str, &[Option<i64>]); 2] =
        [("MemTotal", &[Some(10), Some(10), Some(10)]), ("MemFree", &[Some(4), None, Some(8)])];
    let found = compute_averages(&run(vec![series("meminfo", "bytes", &[0, 1, 2], &columns)])).unwrap();
    assert_eq!(
        (found.readings, found.readings_left_out, found.total.mean, found.used.mean),
        (2, 1, 10.0, 4.0)
    );
    assert_eq!(found.page_cache.unwrap_err().reason(), "the run has no samples of Buffers and Cached");
    assert_eq!(found.faults_per_second.unwrap_err().why, AbsenceReason::NotThere);
    assert!(compute_averages(&run(vec![])).is_err());
}

#[test]
fn extreme_numbers_are_no_reason_to_fail() {
    let wild = [Some(i64::MIN), Some(i64::MAX), Some(0)];
    let columns: [(&str, &[Option<i64>]); 4] =
        [("MemTotal", &wild), ("MemFree", &[Some(1); 3]), ("Buffers", &wild), ("Cached", &wild)];
    let meminfo = series("meminfo", "bytes", &[0, 1, 2], &columns);
    let vmstat = series("vmstat", "count", &[0, 1, 2], &[("pgfault", &wild), ("pgmajfault", &wild)]);
    let found = compute_averages(&run(vec![meminfo, vmstat])).unwrap();
    assert_eq!((found.readings, found.readings_left_out), (1, 2), "what overflows is no reading");
    assert!(found.faults_per_second.unwrap().major.max <= u64::MAX as f64);
}
