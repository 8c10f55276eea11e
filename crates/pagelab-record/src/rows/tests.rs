//! Tests of the rows that a sampler's values become. They are separate from the code because a bench includes
//! the code too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pagelab_host::root::Root;
use pagelab_host::sampler::{Metric, Metrics, Sampler};
use pagelab_metrics::standard_series;
use pagelab_model::run::{ClockReading, ColumnHeader, Run, RunEnd, Unit};
use pagelab_model::{PageSize, Snapshot};
use pagelab_runfile::RunWriter;

use super::{SeriesWriter, sanitize_heads};

#[test]
fn any_name_can_be_stored() {
    let long = "ä".repeat(600);
    let names = ["a", "a", "", "", "a (2)", "zero\0\u{1b}[2J\"'\n", &long, &long];
    let head =
        |name: &&str| ColumnHeader { name: (*name).to_owned(), unit: Unit::COUNT.into(), is_counter: false };
    let stored = sanitize_heads(names.iter().map(head).collect());
    let names: Vec<_> = stored.iter().map(|head| head.name.as_str()).collect();
    assert_eq!(names[..5], ["a", "a (2)", "unnamed", "unnamed (2)", "a (2) (2)"]);
    assert!(names.iter().collect::<BTreeSet<_>>().len() == names.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.pagelab");
    let mut writer = RunWriter::create(&path, &manifest()).unwrap();
    let mut rows = SeriesWriter::default();
    rows.clear_row().extend((0..8).map(Some));
    rows.write_row(&mut writer, 1, &long, "a test", 0, || stored.clone()).unwrap();
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
    let run = pagelab_runfile::read_run_file(&path).unwrap();
    let read: Vec<_> = run.series[0].columns.iter().map(|column| column.header.clone()).collect();
    assert_eq!(read, stored);
    assert!(long.starts_with(&run.series[0].name), "a long name of a series is cut");
}

/// Samples a saved tree once per step, each of which may change it first, and reads the recording.
fn record(steps: &[&dyn Fn(&Path)]) -> (Run, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("proc/pressure")).unwrap();
    fs::write(tree.join("proc/meminfo"), "MemTotal: 8 kB\nMemFree: 4 kB\n").unwrap();
    fs::write(tree.join("proc/vmstat"), "nr_free_pages 1\npgfault 10\n").unwrap();
    fs::write(tree.join("proc/buddyinfo"), "Node 0, zone Normal 1 0\n").unwrap();
    for resource in ["memory", "cpu"] {
        fs::write(tree.join("proc/pressure").join(resource), psi("some", 7)).unwrap();
    }
    let path = folder.path().join("a.pagelab");
    let mut sampler = Sampler::open(&Root::open(&tree).unwrap(), &Metrics::default());
    let absent = sampler.absences().iter().map(|(metric, absence)| (metric.name(), absence.source.clone()));
    let absent: Vec<_> = absent.map(|(name, source)| (name, source.ends_with("pressure/io"))).collect();
    assert_eq!(absent, [("pressure", true), ("thp", false), ("tracepoints", false)]);
    let mut writer = RunWriter::create(&path, &manifest()).unwrap();
    let (mut rows, mut notices) = (SeriesWriter::default(), Vec::new());
    for (tick, step) in steps.iter().enumerate() {
        step(&tree.join("proc"));
        sampler.sample(tick as u64);
        for part in sampler.metric_samples() {
            rows.write(&mut writer, tick as u64, &part).unwrap();
        }
        notices.extend(sampler.notices().into_iter().map(|notice| format!("{tick} {}", notice.kind)));
    }
    writer.close(RunEnd::Complete { after_ns: 99 }).unwrap();
    (pagelab_runfile::read_run_file(&path).unwrap(), notices)
}

fn psi(line: &str, total: u64) -> String {
    format!("{line} avg10=0.10 avg60=0.00 avg300=0.00 total={total}\n")
}

fn manifest() -> pagelab_model::run::Manifest {
    let started = ClockReading { realtime_ns: 0, boottime_ns: 0 };
    pagelab_command::manifest::build_for_process(
        "record",
        None,
        started,
        &Snapshot::new_unread("test", PageSize::DEFAULT),
    )
}

#[test]
fn another_shape_begins_another_series_of_the_same_name() {
    let plugged = |proc: &Path| {
        fs::write(proc.join("buddyinfo"), "Node 0, zone Normal 2 0\nNode 1, zone Movable 0 1\n").unwrap();
    };
    let full = |proc: &Path| {
        fs::write(proc.join("pressure/cpu"), psi("some", 8) + &psi("full", 5)).unwrap();
    };
    let unplugged = |proc: &Path| fs::write(proc.join("buddyinfo"), "Node 0, zone Normal 7 0\n").unwrap();
    let (run, notices) = record(&[&|_| {}, &plugged, &full, &unplugged]);
    assert_eq!(notices, Vec::<String>::new());
    let buddyinfo: Vec<_> = standard_series::series_named(&run, standard_series::BUDDYINFO).collect();
    let times: Vec<_> = buddyinfo.iter().map(|series| series.at_ns.as_slice()).collect();
    assert_eq!(times, [&[0][..], &[1, 2], &[3]]);
    let zones = standard_series::zone_series(&run);
    let blocks: Vec<_> =
        zones.iter().map(|zone| (zone.key.node.0, zone.free_areas(0).unwrap().counts().to_vec())).collect();
    assert_eq!(blocks, [(0, vec![1, 0]), (0, vec![2, 0]), (1, vec![0, 1]), (0, vec![7, 0])]);
    let pressure: Vec<_> = standard_series::series_named(&run, standard_series::PRESSURE).collect();
    let shapes: Vec<_> = pressure.iter().map(|series| (series.columns.len(), series.at_ns.len())).collect();
    assert_eq!(shapes, [(8, 2), (12, 2)]);
    assert_eq!(standard_series::series_named(&run, standard_series::MEMINFO).count(), 1);
}

#[test]
fn what_cannot_be_read_for_a_while_is_no_value_and_told_once_and_once_again() {
    let broken = |proc: &Path| {
        fs::write(proc.join("vmstat"), "nr_free_pages 1\npgfault\n").unwrap();
        fs::write(proc.join("pressure/cpu"), "nonsense\n").unwrap();
    };
    let mended = |proc: &Path| {
        fs::write(proc.join("vmstat"), "nr_free_pages 1\npgfault 12\n").unwrap();
        fs::write(proc.join("pressure/cpu"), psi("some", 9)).unwrap();
    };
    let (run, notices) = record(&[&|_| {}, &broken, &|_| {}, &mended, &|_| {}]);
    assert_eq!(notices, ["1 unreadable", "1 unreadable", "3 readable", "3 readable"]);
    let values = |series: &str, column: &str| -> Vec<Option<i64>> {
        let series = standard_series::series_named(&run, series).next().unwrap();
        let column = series.columns.iter().find(|known| known.header.name == column).unwrap();
        (0..series.at_ns.len()).map(|index| column.values.value_at(index)).collect()
    };
    assert_eq!(values("vmstat", "pgfault"), [Some(10), None, None, Some(12), Some(12)]);
    assert_eq!(values("pressure", "cpu.some.total"), [Some(7), None, None, Some(9), Some(9)]);
    assert_eq!(values("pressure", "memory.some.total"), [Some(7); 5], "the others continue");
    assert_eq!(values("meminfo", "MemFree"), [Some(4 << 10); 5]);
}

/// The sampler's crate does not know how recordings are read.
#[test]
fn series_are_called_as_readers_look_for_them() {
    let metrics = Metrics::default();
    let names: Vec<_> = metrics.iter().map(Metric::name).collect();
    for name in [
        standard_series::MEMINFO,
        standard_series::VMSTAT,
        standard_series::BUDDYINFO,
        standard_series::PRESSURE,
        standard_series::TRACEPOINTS,
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}
