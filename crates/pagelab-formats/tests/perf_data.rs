//! Tests of perf files in the corpus: the binary files and perf's texts of them agree.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

#[path = "support/corpus.rs"]
mod corpus;

use std::collections::BTreeMap;
use std::fs;

use corpus::corpus_folder;
use pagelab_formats::perf_data::{self, DataSource, Event, FileInfo, ReadSummary, Sample, TlbOutcome};
use pagelab_formats::region_list;

fn no_zstd(_: &[u8], _: &mut [u8]) -> Result<(usize, usize), String> {
    Err("packed".to_owned())
}

fn read(bytes: &[u8]) -> (FileInfo, ReadSummary, Vec<Event>) {
    let mut events = Vec::new();
    let mut input = bytes;
    let (about, tally) =
        perf_data::read_perf_data(&mut input, &mut no_zstd, &mut |_, event| events.push(event)).unwrap();
    (about, tally, events)
}

fn samples(events: &[Event]) -> Vec<Sample> {
    let sample = |event: &Event| if let Event::Sample(sample) = event { Some(*sample) } else { None };
    events.iter().filter_map(sample).collect()
}

const GOOGLE: &str = "google_pdc_intel_skx_loadlatency_14samples.perf.data";
const NUMATOP: &str = "numatop_fork.perf.data";

#[test]
fn bytes_and_texts_agree_sample_by_sample() {
    let Some(folder) = corpus_folder("perf") else { return };
    for (name, walked) in [(GOOGLE, 1), (NUMATOP, 0)] {
        let (about, tally, events) = read(&fs::read(folder.join(name)).unwrap());
        let ours = samples(&events);
        let text = fs::read(folder.join(format!("{name}.script.txt"))).unwrap();
        let script = perf_data::parse_script(&text).unwrap();
        assert_eq!(
            (ours.len(), script.samples.len(), tally.unknown_samples, tally.late_events),
            (14, 14, 0, 0),
            "{name}"
        );
        for (ours, theirs) in ours.iter().zip(&script.samples) {
            assert_eq!(Some(ours.address), theirs.address, "{name}");
            assert_eq!(ours.weight, theirs.weight, "{name}");
            // perf prints the process where it prints the thread too, else the thread.
            assert!([ours.pid, ours.tid].contains(&theirs.pid.unwrap()), "{name} {theirs:?}");
            let of_bits = DataSource::from_data_src(ours.data_src.unwrap());
            assert_eq!(of_bits.tlb_outcome(false), theirs.tlb.tlb_outcome(false), "{name}");
            assert_eq!(about.events[ours.event_index].name, theirs.event, "{name}");
        }
        let missed = |of: &&Sample| {
            DataSource::from_data_src(of.data_src.unwrap()).tlb_outcome(false) == TlbOutcome::PageWalk
        };
        assert_eq!(ours.iter().filter(missed).count(), walked, "{name}");
        let report = fs::read(folder.join(format!("{name}.memreport.txt"))).unwrap();
        let report = perf_data::parse_report(&report).unwrap();
        assert_eq!((report.rows.len(), report.lost_samples), (14, 0), "{name}");
        let mut addresses: Vec<_> = report.rows.iter().map(|row| row.address.unwrap()).collect();
        let mut expected: Vec<_> = ours.iter().map(|of| of.address).collect();
        addresses.sort_unstable();
        expected.sort_unstable();
        assert_eq!(addresses, expected, "{name}");
        let missed = report.rows.iter().filter(|row| row.tlb.tlb_outcome(false) == TlbOutcome::PageWalk);
        assert_eq!(missed.map(|row| row.samples).sum::<u64>(), walked as u64, "{name}");
    }
}

#[test]
fn parsed_samples_equal_the_output_of_perf_script() {
    let Some(folder) = corpus_folder("perf") else { return };
    let (about, tally, events) = read(&fs::read(folder.join(GOOGLE)).unwrap());
    assert_eq!((about.hostname.as_str(), about.arch.as_str()), ("oxco15.prod.google.com", "x86_64"));
    assert_eq!((about.cpuid.as_str(), about.pmu(4)), ("GenuineIntel,6,85,4", Some("cpu")));
    let command = "/usr/bin/perf5 record -a -c 10009 -d --pfm-events \
                   MEM_TRANS_RETIRED.LOAD_LATENCY:ldlat=64:precise=2:mh:mg:pinned -i -m 16 -N -o - -W sleep 10";
    assert_eq!(about.command.join(" "), command);
    // Counted by `perf report -D`: 6930 MMAP2, 15 MMAP, 2959 COMM, 2955 FORK, 59 EXIT, 14 SAMPLE, 30 rounds,
    // TIME_CONV and THREAD_MAP.
    assert_eq!(tally.records, 6930 + 15 + 2959 + 2955 + 59 + 14 + 30 + 2);
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Mapped(_))), 6930 + 15);
    assert_eq!(count(|event| matches!(event, Event::Named { .. })), 2959);
    assert_eq!(count(|event| matches!(event, Event::Forked { .. })), 2955);
    let periods: Vec<_> = about.events.iter().map(|event| event.attr.period_or_frequency).collect();
    assert_eq!((periods, about.events[0].attr.is_frequency()), (vec![10_009, 10_009], false));
    let (about, ..) = read(&fs::read(folder.join(NUMATOP)).unwrap());
    assert_eq!((about.hostname.as_str(), about.cpuid.as_str()), ("server3", "GenuineIntel,6,62,4"));
    assert!(about.events[0].attr.is_frequency() && about.events[0].attr.config == 0x1cd);
}

/// Every truncated file is an error with an offset. None blocks the reader.
#[test]
fn a_file_truncated_anywhere_is_an_error_with_its_offset() {
    let Some(folder) = corpus_folder("perf") else { return };
    let bytes = fs::read(folder.join(NUMATOP)).unwrap();
    let (.., whole) = read(&bytes);
    // Data after the last feature that is read may be missing.
    let needed = (0..=bytes.len()).rev().find(|&end| {
        let mut input = &bytes[..end];
        perf_data::read_perf_data(&mut input, &mut no_zstd, &mut |_, _| {}).is_err()
    });
    let needed = needed.unwrap();
    assert!(needed > 17_168, "{needed}: the features are needed");
    for end in (0..needed).step_by(7).chain(needed - 64..needed) {
        let mut seen = 0;
        let mut input = &bytes[..end];
        let error = perf_data::read_perf_data(&mut input, &mut no_zstd, &mut |_, _| seen += 1)
            .unwrap_err()
            .message_in_file("f");
        assert!(error.starts_with("f: byte "), "{end}: {error}");
        assert!(seen <= whole.len(), "{end}");
    }
}

#[test]
fn published_regions_are_read() {
    let Some(folder) = corpus_folder("perf") else { return };
    let read = |name: &str| region_list::parse_counts(&fs::read(folder.join(name)).unwrap()).unwrap();
    let (before, after) = (read("24623_all_regions_before.txt"), read("24623_all_regions_after.txt"));
    let top = |of: &BTreeMap<u64, u64>| of.iter().map(|(&at, &misses)| (at, misses)).max_by_key(|of| of.1);
    assert_eq!(top(&before), Some((0x187_b500_0000, 4257)));
    assert_eq!(top(&after), Some((0x187_b140_0000, 1583)));
}
