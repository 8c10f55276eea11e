//! Test of the size of a long recording: twelve hours of this machine's memory files at five seconds.

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::random::SplitMix64;
use pagelab_model::run::{RunEnd, Unit};
use pagelab_runfile::{RunWriter, read_run_file};

use crate::fixtures;

const TICKS: u64 = 12 * 3600 / 5;

const BYTES_MAX: u64 = 12 << 20;

/// Names and values of this machine's meminfo, vmstat, buddyinfo and pressure, now.
fn columns() -> Vec<(&'static str, Vec<(String, u64)>)> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let counters = |counters: &pagelab_model::Counters| -> Vec<(String, u64)> {
        counters.iter().map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let meminfo = reader.parse(paths::MEMINFO, pagelab_formats::meminfo::parse).unwrap();
    let vmstat = reader.parse(paths::VMSTAT, pagelab_formats::vmstat::parse).unwrap();
    let buddyinfo = reader.parse(paths::BUDDYINFO, pagelab_formats::buddyinfo::parse).unwrap();
    let blocks = buddyinfo.zones.iter().flat_map(|zone| {
        let name = |order| format!("node {} {} order {order}", zone.key.node.0, zone.key.zone);
        zone.areas.counts().iter().enumerate().map(move |(order, count)| (name(order), *count))
    });
    let pressure = ["some avg10", "some total", "full avg10", "full total"];
    vec![
        ("meminfo", counters(&meminfo.fields)),
        ("vmstat", counters(&vmstat)),
        ("buddyinfo", blocks.collect()),
        ("pressure", pressure.map(|name| (name.to_owned(), 1_000_000)).to_vec()),
    ]
}

/// A busier day than any: everything that is not zero on this machine changes at every tick.
#[test]
fn a_day_of_twelve_hours_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let mut random = SplitMix64::new(5);
    let mut files = Vec::new();
    let (mut all, mut changing) = (0, 0);
    for (name, values) in columns() {
        let heads: Vec<_> = values.iter().map(|(name, _)| fixtures::head(name, Unit::COUNT, true)).collect();
        let id = writer.add_series(name, name, &heads).unwrap();
        all += values.len();
        changing += values.iter().filter(|(_, value)| *value > 0).count();
        files.push((id, values));
    }
    for tick in 1..=TICKS {
        for (id, values) in &mut files {
            for (_, value) in values.iter_mut().filter(|(_, value)| *value > 0) {
                *value += random.next_below(*value / 500 + 2);
            }
            let row: Vec<_> = values.iter().map(|(_, value)| i64::try_from(*value).ok()).collect();
            writer.add_row(*id, tick * 5_000_000_000, &row).unwrap();
        }
    }
    writer.close(RunEnd::Complete { after_ns: TICKS * 5_000_000_000 }).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    eprintln!("{bytes} bytes for {TICKS} ticks of {all} columns, {changing} of which change at every tick");
    assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    let run = read_run_file(&path).unwrap();
    assert_eq!(run.series.iter().map(|series| series.columns.len()).sum::<usize>(), all);
    assert!(run.series.iter().all(|series| series.at_ns.len() as u64 == TICKS));
}
