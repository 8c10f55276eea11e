//! Tests over the corpus of real machines: every file parses, and readings of one moment add up.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

#[path = "support/corpus.rs"]
mod corpus;

use std::fs;

use corpus::corpus_folder;
use pagelab_formats::{
    ParseError, allocinfo, buddyinfo, meminfo, pagetypeinfo, pressure, slabinfo, vmstat, zoneinfo,
};
use pagelab_model::pagetype::CappedCount;

/// How many records a text of this name holds, or `None` for a name that no parser here reads.
fn records(name: &str, text: &[u8]) -> Option<Result<usize, ParseError>> {
    Some(match name {
        "meminfo" => meminfo::parse(text).map(|mut info| {
            let copy = info.clone();
            assert!(meminfo::reparse(text, &mut info) && info == copy);
            info.fields.len()
        }),
        "vmstat" => vmstat::parse(text).map(|mut counters| {
            let copy = counters.clone();
            assert!(vmstat::reparse(text, &mut counters) && counters == copy);
            counters.len()
        }),
        _ if name == "buddyinfo" || name.starts_with("BUDDYINFO") => {
            buddyinfo::parse(text).map(|info| info.zones.len())
        }
        "zoneinfo" => zoneinfo::parse(text).map(|info| info.zones.len()),
        "pagetypeinfo" => pagetypeinfo::parse(text).map(|info| info.free.len() + info.blocks.len()),
        "slabinfo" => slabinfo::parse(text).map(|caches| caches.len()),
        "allocinfo" => allocinfo::parse(text).map(|sites| sites.len()),
        "pressure" => pressure::parse(text).map(|_| 1),
        _ => return None,
    })
}

/// How many records a text of this name should hold, counted in another way than the parsers do.
fn expected(name: &str, text: &str) -> usize {
    let starts = |word: &str| text.lines().filter(|line| line.trim_start().starts_with(word)).count();
    match name {
        "zoneinfo" => starts("Node"),
        "pagetypeinfo" => starts("Node"),
        _ => text.lines().filter(|line| !line.trim().is_empty()).count(),
    }
}

#[test]
fn every_file_of_every_machine_parses_completely() {
    let Some(corpus) = corpus_folder("proc") else { return };
    let (mut machines, mut files) = (0, 0);
    for machine in fs::read_dir(corpus).unwrap() {
        machines += 1;
        for file in fs::read_dir(machine.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if ["ORIGIN", "cmdline", "osrelease", "version"].contains(&name) {
                continue;
            }
            let text = fs::read(&path).unwrap();
            let shown = path.display().to_string();
            let read = records(name, &text).unwrap_or_else(|| panic!("{shown}: no parser for it"));
            let read = read.unwrap_or_else(|error| panic!("{}", error.message_in_file(&shown)));
            assert_eq!(read, expected(name, &String::from_utf8(text).unwrap()), "{shown}");
            files += 1;
        }
    }
    assert!(machines >= 12 && files >= 45, "{machines} machines, {files} files");
}

/// `pages_off`: by how many pages zoneinfo and pagetypeinfo differ from buddyinfo, zone by zone, because
/// the files were read one after the other.
fn check_machine(machine: &str, pages_off: &[(&str, [i128; 2])]) {
    let Some(corpus) = corpus_folder("proc") else { return };
    let folder = corpus.join(machine);
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let buddy = buddyinfo::parse(&read("buddyinfo")).unwrap();
    let zones = zoneinfo::parse(&read("zoneinfo")).unwrap();
    let types =
        folder.join("pagetypeinfo").is_file().then(|| pagetypeinfo::parse(&read("pagetypeinfo")).unwrap());
    let mut seen = Vec::new();
    for zone in &buddy.zones {
        let free = zone.areas.free_pages() as i128;
        let by_zoneinfo = i128::from(zones.zone(&zone.key).unwrap().free.unwrap().0);
        let by_types = types.as_ref().map_or(free, |types| {
            let rows = types.free.iter().filter(|row| row.key == zone.key);
            rows.flat_map(|row| row.counts.iter().enumerate())
                .map(|(order, count)| match count {
                    CappedCount::Exact(blocks) => i128::from(*blocks) << order,
                    CappedCount::MoreThan(_) => panic!("{machine} has a count that was cut"),
                })
                .sum()
        });
        seen.push((zone.key.zone.as_str(), [by_zoneinfo - free, by_types - free]));
    }
    assert_eq!(seen, pages_off, "{machine}");
}

#[test]
fn free_blocks_add_up_to_zoneinfo_and_pagetypeinfo() {
    check_machine("csci442", &[("DMA", [0, 0]), ("DMA32", [0, 0]), ("Normal", [76, 0])]);
    check_machine("router-jmr540", &[("Normal", [0, 0])]);
    check_machine("phytium-d2000", &[("DMA", [0, 0])]);
    check_machine("android-innofirmware", &[("Normal", [1, 1])]);
}

#[test]
fn the_free_line_of_a_zone_is_its_free_counter() {
    let Some(corpus) = corpus_folder("proc") else { return };
    let mut zones = 0;
    for machine in fs::read_dir(corpus).unwrap() {
        let Ok(text) = fs::read(machine.unwrap().path().join("zoneinfo")) else { continue };
        for zone in zoneinfo::parse(&text).unwrap().zones {
            let Some(counted) = zone.stats.get("nr_free_pages") else { continue };
            assert_eq!(zone.free.unwrap().0, counted, "{:?}", zone.key);
            assert!(!zone.pagesets.is_empty() && zone.start.is_some(), "{:?}", zone.key);
            assert!(zone.present <= zone.spanned && zone.min <= zone.low && zone.low <= zone.high);
            zones += 1;
        }
    }
    assert!(zones >= 20, "{zones}");
}
