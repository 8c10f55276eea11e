//! Every parser as a fuzz target: a plain function over bytes that asserts what must hold for any input.
//!
//! `tests/fuzz.rs` drives the table with [`mutate()`]; `fuzz/` drives it with cargo-fuzz. A new parser gets a
//! row in [`TARGETS`] and a function that asserts something about what was parsed.

mod mutate;
mod pages;
mod perf_data;
mod plans;
mod scrapes;
mod stats;
mod system;
mod tracing;

pub use mutate::mutate;

use crate::text::lines;
use crate::{
    ParseError, allocinfo, buddyinfo, choice, meminfo, pagetypeinfo, pressure, scalar, slabinfo, smaps,
    vmstat, zoneinfo,
};

/// A parser under fuzzing.
#[derive(Clone, Copy)]
pub struct Target {
    /// The parser's name.
    pub name: &'static str,
    /// Parses any bytes, and panics if something does not hold that must.
    pub run: fn(&[u8]),
    /// Inputs that the parser accepts, for the mutator to start from.
    pub seeds: &'static [&'static [u8]],
}

/// All parsers.
pub const TARGETS: &[Target] = &[
    Target { name: "buddyinfo", run: run_buddyinfo, seeds: &[BUDDYINFO] },
    Target { name: "meminfo", run: run_meminfo, seeds: &[MEMINFO] },
    Target { name: "vmstat", run: run_vmstat, seeds: &[VMSTAT] },
    Target { name: "zoneinfo", run: run_zoneinfo, seeds: &[ZONEINFO_NEW, ZONEINFO_OLD] },
    Target { name: "pagetypeinfo", run: run_pagetypeinfo, seeds: &[PAGETYPEINFO] },
    Target { name: "pressure", run: run_pressure, seeds: &[PRESSURE] },
    Target { name: "slabinfo", run: run_slabinfo, seeds: &[SLABINFO] },
    Target { name: "allocinfo", run: run_allocinfo, seeds: &[ALLOCINFO] },
    Target { name: "smaps", run: run_smaps, seeds: &[SMAPS] },
    Target { name: "smaps_rollup", run: run_smaps_rollup, seeds: &[ROLLUP] },
    Target { name: "choice", run: run_choice, seeds: &[b"always defer+madvise [madvise] never\n", b"[a]"] },
    Target { name: "scalar", run: run_scalar, seeds: &[b"512\n", b"18446744073709551615"] },
    system::CPUINFO,
    system::SWAPS,
    system::MOUNTINFO,
    system::CGROUP,
    system::STATUS,
    system::STATM,
    system::PROCESS_STAT,
    system::KERNEL_LOG,
    system::IOMEM,
    system::CPU_LIST,
    system::SUFFIXED_SIZE,
    system::HEXADECIMAL_SIZE,
    system::UPTIME,
    pages::KPAGEFLAGS,
    pages::KPAGECOUNT,
    pages::PAGEMAP,
    pages::FREE_TEXT,
    plans::PLAN,
    plans::LARGEPAGES,
    plans::REGION_COUNTS,
    scrapes::EXPOSITION,
    scrapes::NODE_EXPORTER,
    stats::PERF_STAT,
    perf_data::PERF_DATA,
    perf_data::PERF_SCRIPT,
    perf_data::PERF_REPORT,
    stats::SHELL_TIME,
    tracing::TRACE_FORMAT,
    tracing::PERF_RECORD,
    tracing::KALLSYMS,
    tracing::MAPS,
    tracing::ALLOC_TRACE,
    tracing::RING_PAGE,
];

const BUDDYINFO: &[u8] =
    b"Node 0, zone      DMA      0      0      1 \nNode 1, zone   Normal      7     10      2 \n";

const MEMINFO: &[u8] = b"MemTotal:         252308 kB\nMemFree:  138776 kB\nActive(anon):      17316 kB\n\
HardwareCorrupted:    -4 kB\nHugePages_Total:       3\n";

const VMSTAT: &[u8] = b"nr_free_pages 34683\nnr_bounce -2\n 537792\npgfault 18446744073709551615\n";

const ZONEINFO_NEW: &[u8] = b"Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 2763\n\
  pages free     3840\n\
        boost    0\n        min      36\n        high     54\n        spanned  4095\n        managed  3840\n\
        protection: (0, 3019, 6987)\n      nr_free_pages 3840\n  pagesets\n    cpu: 0\n\
              count:    11\n              high:     12\n              high_min: 22\n\
  vm stats threshold: 4\n  node_unreclaimable:  0\n\
  start_pfn:           1\nNode 1, zone  Movable\n  pages free     0\n        protection: (0, 0, 0)\n";

const ZONEINFO_OLD: &[u8] =
    b"Node 0, zone      DMA\n  pages free     5410\n        min      181\n        active   367\n\
        scanned  0 (a: 0 i: 0)\n        protection: (0, 0)\n  pagesets\n    cpu: 0 pcp: 0\n\
              count: 2\n              batch: 1\n  all_unreclaimable: 0\n  start_pfn:         196608\n";

const PAGETYPEINFO: &[u8] = b"Page block order: 9\nPages per block:  512\n\n\
Free pages count per migrate type at order       0      1      2 \n\
Node    0, zone      DMA, type    Unmovable      1      0 >100000 \n\
Node    0, zone      DMA, type      Isolate      0      4      7 \n\n\
Number of blocks type     Unmovable      Isolate \nNode 0, zone      DMA            1            7 \n\n\
Number of mixed blocks    Unmovable      Isolate \nNode 0, zone      DMA            0            2 \n";

const PRESSURE: &[u8] = b"some avg10=0.26 avg60=100.00 avg300=0.07 total=7826028\n\
full avg10=0.00 avg60=1.50 avg300=0.00 total=0\n";

const SLABINFO: &[u8] = b"slabinfo - version: 2.1\n# name <active_objs>\n\
dentry 4242   4263    192   21    2 : tunables    0    0    0 : slabdata    203    203      0\n\
scsi cmd 1 2 3 4 5 : tunables 0 0 0 : slabdata 6 7 0 : globalstat 1 2 : cpustat 3\n";

const ALLOCINFO: &[u8] = b"allocinfo - version: 1.0\n#     <size>  <calls> <tag info>\n\
       45056       11 mm/page_ext.c:271 func:alloc_page_ext\n        -512        1 a.c:8 [mod] func:b\n";

const SMAPS: &[u8] = b"564a0e427000-564a0e429000 r-xp 00002000 fe:00 247026      /opt/a b\\012c (deleted)\n\
Size:                  8 kB\nRss:                   4 kB\nTHPeligible:           1\n\
ProtectionKey:         3\nVmFlags: rd ex zz \nffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 \n\
Size:                  4 kB\n";

const ROLLUP: &[u8] = b"557d99862000-7ffe241ae000 ---p 00000000 00:00 0              [rollup]\n\
Rss:                1764 kB\nAnonHugePages:      2048 kB\n";

/// What holds for every parser: an error names a line that is there, in a message of bounded length.
fn checked<T>(input: &[u8], parsed: Result<T, ParseError>) -> Option<T> {
    match parsed {
        Ok(value) => Some(value),
        Err(error) => {
            let message = error.in_file("f");
            assert!(message.len() < 1 << 10, "{message}");
            assert!(message.chars().all(|c| !c.is_control()), "{message:?}");
            if let Some(line) = error.line() {
                assert!((1..=lines(input).count() as u64).contains(&line), "{message}");
            }
            None
        }
    }
}

/// What holds for every parser that reads again in place: whatever it accepts, the parser reads alike; and it
/// accepts, over a value of the same text, what the parser reads, unless that has a shape of its own.
fn checked_again<T: Clone + PartialEq + std::fmt::Debug>(
    input: &[u8],
    seed: &[u8],
    parse: fn(&[u8]) -> Result<T, ParseError>,
    parse_again: fn(&[u8], &mut T) -> bool,
) -> Option<T> {
    let value = checked(input, parse(input));
    let known = checked(seed, parse(seed));
    for mut known in known.into_iter().chain(value.clone()) {
        if parse_again(input, &mut known) {
            assert_eq!(Some(&known), value.as_ref());
        }
    }
    value
}

fn filled(input: &[u8]) -> usize {
    lines(input).filter(|(_, line)| !line.trim_ascii().is_empty()).count()
}

fn starting(input: &[u8], word: &[u8]) -> usize {
    lines(input).filter(|(_, line)| line.trim_ascii_start().starts_with(word)).count()
}

fn run_buddyinfo(input: &[u8]) {
    let Some(info) = checked_again(input, BUDDYINFO, buddyinfo::parse, buddyinfo::parse_again) else {
        return;
    };
    assert_eq!(info.zones.len(), filled(input));
    let orders = info.zones.first().map(|zone| zone.areas.orders());
    assert!(info.zones.iter().all(|zone| Some(zone.areas.orders()) == orders));
    let by_zone: u128 = info.zones.iter().map(|zone| zone.areas.free_pages()).sum();
    assert_eq!(info.free_pages(), by_zone);
}

fn run_meminfo(input: &[u8]) {
    let Some(info) = checked_again(input, MEMINFO, meminfo::parse, meminfo::parse_again) else { return };
    assert_eq!(info.fields.len(), filled(input));
    assert_eq!(info.fields.len(), info.in_kib.len());
    assert_eq!(info.fields.names().len(), info.fields.values().len());
}

fn run_vmstat(input: &[u8]) {
    let Some(counters) = checked_again(input, VMSTAT, vmstat::parse, vmstat::parse_again) else { return };
    assert_eq!(counters.len(), filled(input));
    assert_eq!(counters.names().len(), counters.values().len());
}

fn run_zoneinfo(input: &[u8]) {
    let Some(info) = checked(input, zoneinfo::parse(input)) else { return };
    assert_eq!(info.zones.len(), starting(input, b"Node"));
    for zone in &info.zones {
        assert_eq!(info.zone(&zone.key), Some(zone), "a zone stands twice");
        assert!(zone.free.is_none_or(|pages| pages.0 >> 63 == 0));
    }
    let sets: usize = info.zones.iter().map(|zone| zone.pagesets.len()).sum();
    assert!(sets <= starting(input, b"cpu"));
}

fn run_pagetypeinfo(input: &[u8]) {
    let Some(info) = checked(input, pagetypeinfo::parse(input)) else { return };
    assert_eq!(info.free.len() + info.blocks.len() + info.mixed.len(), starting(input, b"Node"));
    assert!(info.free.iter().all(|row| !row.migratetype.is_empty() && !row.counts.is_empty()));
    assert!(info.blocks.iter().chain(&info.mixed).all(|row| !row.counts.is_empty()));
}

fn run_pressure(input: &[u8]) {
    let parsed = checked_again(input, PRESSURE, pressure::parse, pressure::parse_again);
    assert_eq!(parsed.is_some_and(|pressure| pressure.full.is_some()), parsed.is_some() && has_full(input));
}

fn has_full(input: &[u8]) -> bool {
    lines(input).any(|(_, line)| crate::text::words(line).next() == Some(b"full"))
}

fn run_slabinfo(input: &[u8]) {
    let Some(caches) = checked(input, slabinfo::parse(input)) else { return };
    assert!(caches.len() < lines(input).count());
    assert!(caches.iter().all(|cache| !cache.name.is_empty()));
}

fn run_allocinfo(input: &[u8]) {
    let Some(sites) = checked(input, allocinfo::parse(input)) else { return };
    assert!(sites.len() <= filled(input));
    assert!(sites.iter().all(|site| !site.place.is_empty() && site.bytes.0 >> 63 == 0));
}

fn run_smaps(input: &[u8]) {
    let Some(mappings) = checked(input, smaps::parse(input)) else { return };
    let lines_kept: usize = mappings
        .iter()
        .map(|of| {
            assert!(of.start <= of.end && !of.fields_kib.is_empty() && !of.permissions.is_empty());
            1 + of.fields_kib.len() + of.other.len()
        })
        .sum();
    let flags = starting(input, b"VmFlags") + starting(input, b"THPeligible");
    let all = lines(input).count();
    assert!((all.saturating_sub(flags)..=all).contains(&lines_kept), "{lines_kept} of {all} lines");
}

fn run_smaps_rollup(input: &[u8]) {
    let Some(rollup) = checked(input, smaps::parse_rollup(input)) else { return };
    let kept = rollup.fields_kib.len() + rollup.other.len();
    let all = lines(input).count();
    assert!(kept == all || kept + 1 == all, "{kept} of {all} lines");
}

fn run_choice(input: &[u8]) {
    let Some(choice) = checked(input, choice::parse(input)) else { return };
    assert!(choice.offers(choice.selected()));
    assert!(choice.options.iter().all(|option| !option.is_empty()));
}

fn run_scalar(input: &[u8]) {
    let Some(value) = checked(input, scalar::parse_u64(input)) else { return };
    let text = String::from_utf8_lossy(input);
    let digits = text.trim().trim_start_matches('0');
    assert_eq!(if digits.is_empty() { "0" } else { digits }, value.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_holds_and_names_differ() {
        for (at, target) in TARGETS.iter().enumerate() {
            assert!(!target.seeds.is_empty(), "{} has no seed", target.name);
            assert!(TARGETS[..at].iter().all(|other| other.name != target.name), "{}", target.name);
            target.seeds.iter().for_each(|seed| (target.run)(seed));
        }
    }
}
