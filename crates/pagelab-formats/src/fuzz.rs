//! Fuzz targets: every parser as a function over bytes, which asserts what holds for any input.
//!
//! `tests/fuzz.rs` drives the table with [`mutate()`]; `fuzz/` drives it with cargo-fuzz. A new parser gets a
//! row in [`TARGETS`] and a function that asserts something about what was parsed.

mod mutate;

pub use mutate::mutate;

use pagelab_model::size::{format_argument, parse, parse_share};
use pagelab_model::{Bytes, HugePlan};

use crate::perf_data::Event;
use crate::text::{filled_lines, lines, words};
use crate::{
    ParseError, alloc_attempts, alloc_trace, allocinfo, buddyinfo, cgroup, cpu_list, cpuinfo, duration,
    exposition, free_text, iomem, kallsyms, kernel_log, kpagecount, kpageflags, maps, meminfo, mountinfo,
    node_exporter, pagemap, pagetypeinfo, perf_data, perf_record, perf_stat, plan_toml, pressure,
    process_status, region_list, ring_page, setting, shell_time, size, slabinfo, smaps, swap, trace_format,
    vmstat, zoneinfo,
};

/// A parser under fuzzing.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// The parser's name.
    pub name: &'static str,
    /// Parses any bytes, and panics if something does not hold that must.
    pub run: fn(&[u8]),
    /// Inputs that the parser accepts, for the mutator to start from.
    pub seeds: &'static [&'static [u8]],
}

/// All parsers.
pub const TARGETS: &[FuzzTarget] = &[
    target("buddyinfo", run_buddyinfo, &[BUDDYINFO]),
    target("meminfo", run_meminfo, &[MEMINFO]),
    target("vmstat", run_vmstat, &[VMSTAT]),
    target("zoneinfo", run_zoneinfo, &[ZONEINFO_NEW, ZONEINFO_OLD]),
    target("pagetypeinfo", run_pagetypeinfo, &[PAGETYPEINFO]),
    target("pressure", run_pressure, &[PRESSURE]),
    target("slabinfo", run_slabinfo, &[SLABINFO]),
    target("allocinfo", run_allocinfo, &[ALLOCINFO]),
    target("smaps", run_smaps, &[SMAPS]),
    target("smaps_rollup", run_smaps_rollup, &[ROLLUP]),
    target("choice", run_choice, &[b"always defer+madvise [madvise] never\n", b"[a]"]),
    target("scalar", run_scalar, &[b"512\n", b"18446744073709551615"]),
    target("cpuinfo", run_cpuinfo, &[CPUINFO_X86, CPUINFO_ARM]),
    target("swaps", run_swaps, &[SWAPS_TEXT]),
    target("mountinfo", run_mountinfo, &[MOUNTINFO_TEXT]),
    target("cgroup", run_cgroup, &[b"4:cpu,memory:/a:b\n0::/user.slice\n"]),
    target("status", run_status, &[STATUS_TEXT]),
    target(
        "statm",
        |input| _ = check_parse(input, process_status::parse_statm(input)),
        &[b"765 410 382 5 0 123 0\n"],
    ),
    target("process_stat", run_process_stat, &[PROCESS_STAT]),
    target("kernel_log", run_kernel_log, &[KMSG, DMESG]),
    target("iomem", run_iomem, &[IOMEM_TEXT]),
    target("cpu_list", run_cpu_list, &[b"0-3,7,9-11\n", b"65535"]),
    target("cache_size", |input| _ = check_parse(input, size::parse_cache_size(input)), &[b"48K\n", b"1G"]),
    target("size_or_share", run_size_or_share, &[b"1.5GiB", b"12 KiB", b"50 %"]),
    target(
        "duration",
        |input| _ = duration::parse(&String::from_utf8_lossy(input)),
        &[b"1h30m", "12 min 5 s, 1.25 µs".as_bytes()],
    ),
    target(
        "hexadecimal_size",
        |input| _ = check_parse(input, size::parse_hexadecimal(input)),
        &[b"8000000\n"],
    ),
    target("uptime", |input| _ = check_parse(input, size::parse_uptime(input)), &[b"350735.47 234388.90\n"]),
    target("kpageflags", kpageflags::fuzz, &[b"\x09\x08", PAGE_ENTRIES]),
    target("kpagecount", kpagecount::fuzz, &[PAGE_ENTRIES]),
    target("pagemap", pagemap::fuzz, &[b"\x10\0\0\0\0\0\0\x80\x21\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0"]),
    target("free_text", run_free_text, &[SHOW_MEM, COPIED_BUDDYINFO]),
    target("plan_toml", run_plan, &[GENERATED_PLAN, ADDRESS_PLAN, b"0x187b1400000\n2097152\n"]),
    target("largepages", run_largepages, &[b"1682305974272 # first\n\n0x187b5000000\r\n", b"0\n2097152\n"]),
    target("region_counts", run_region_counts, &[REGION_COUNT_LINES]),
    target("exposition", run_exposition, &[PLAIN_SAMPLES, OPEN_METRICS]),
    target("node_exporter", run_node_exporter, &[SCRAPE, TIMESTAMPED_SCRAPE]),
    target("perf_stat", run_perf_stat, &[SINGLE_RUN, REPEATED_RUNS]),
    target("perf_data", run_file, &[FILE, PIPE_FILE, COMPRESSED_FILE]),
    target("perf_script", run_script, &[SCRIPT]),
    target("perf_report", run_report, &[REPORT]),
    target("shell_time", run_shell_time, &[BASH_TIME, b"real 239.51\nuser 1\nsys 0.02\n"]),
    target("trace_format", run_trace_format, &[TRACE_FORMAT_TEXT]),
    target("perf_record", perf_record::fuzz, &[SAMPLE, LOST]),
    target("kallsyms", run_kallsyms, &[KALLSYMS_TEXT, b"0000000000000000 T _text\n"]),
    target("maps", run_maps, &[MAPS_TEXT]),
    target("alloc_trace", alloc_trace::fuzz, &[TRACE_BLOCK, TRACE_EMPTY, TRACE_RUNS]),
    target("alloc_attempts", run_alloc_attempts, &[ATTEMPTS_TEXT]),
    target("ring_page", |data| _ = ring_page::fuzz(data), &[PAGE]),
];

const fn target(name: &'static str, run: fn(&[u8]), seeds: &'static [&'static [u8]]) -> FuzzTarget {
    FuzzTarget { name, run, seeds }
}

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

/// Check of every parser: an error names an existing line, in a message of bounded length.
fn check_parse<T>(input: &[u8], parsed: Result<T, ParseError>) -> Option<T> {
    match parsed {
        Ok(value) => Some(value),
        Err(error) => {
            let message = error.message_in_file("f");
            assert!(message.len() < 1 << 10, "{message}");
            assert!(message.chars().all(|c| !c.is_control()), "{message:?}");
            if let Some(line) = error.line() {
                assert!((1..=lines(input).count() as u64).contains(&line), "{message}");
            }
            None
        }
    }
}

/// Invariant of every parser that reads again in place: it accepts only text that the full parser reads with
/// the same result; and over a value of the same text it accepts what the full parser reads, unless the shape
/// has changed.
fn check_reparse<T: Clone + PartialEq + std::fmt::Debug>(
    input: &[u8],
    seed: &[u8],
    parse: fn(&[u8]) -> Result<T, ParseError>,
    reparse: fn(&[u8], &mut T) -> bool,
) -> Option<T> {
    let value = check_parse(input, parse(input));
    let known = check_parse(seed, parse(seed));
    for mut known in known.into_iter().chain(value.clone()) {
        if reparse(input, &mut known) {
            assert_eq!(Some(&known), value.as_ref());
        }
    }
    value
}

fn count_nonblank_lines(input: &[u8]) -> usize {
    filled_lines(input).count()
}

fn count_lines_with_prefix(input: &[u8], word: &[u8]) -> usize {
    lines(input).filter(|(_, line)| line.trim_ascii_start().starts_with(word)).count()
}

fn run_buddyinfo(input: &[u8]) {
    let Some(info) = check_reparse(input, BUDDYINFO, buddyinfo::parse, buddyinfo::reparse) else {
        return;
    };
    assert_eq!(info.zones.len(), count_nonblank_lines(input));
    let orders = info.zones.first().map(|zone| zone.areas.orders());
    assert!(info.zones.iter().all(|zone| Some(zone.areas.orders()) == orders));
    let by_zone: u128 = info.zones.iter().map(|zone| zone.areas.free_pages()).sum();
    assert_eq!(info.free_pages(), by_zone);
}

fn run_meminfo(input: &[u8]) {
    let Some(info) = check_reparse(input, MEMINFO, meminfo::parse, meminfo::reparse) else { return };
    assert_eq!(info.fields.len(), count_nonblank_lines(input));
    assert_eq!(info.fields.len(), info.in_kib.len());
    assert_eq!(info.fields.names().len(), info.fields.values().len());
}

fn run_vmstat(input: &[u8]) {
    let Some(counters) = check_reparse(input, VMSTAT, vmstat::parse, vmstat::reparse) else { return };
    assert_eq!(counters.len(), count_nonblank_lines(input));
    assert_eq!(counters.names().len(), counters.values().len());
}

fn run_zoneinfo(input: &[u8]) {
    let Some(info) = check_parse(input, zoneinfo::parse(input)) else { return };
    assert_eq!(info.zones.len(), count_lines_with_prefix(input, b"Node"));
    for zone in &info.zones {
        assert_eq!(info.zone(&zone.key), Some(zone), "duplicate zone");
        assert!(zone.free.is_none_or(|pages| pages.0 >> 63 == 0));
    }
    let sets: usize = info.zones.iter().map(|zone| zone.pagesets.len()).sum();
    assert!(sets <= count_lines_with_prefix(input, b"cpu"));
}

fn run_pagetypeinfo(input: &[u8]) {
    let Some(info) = check_parse(input, pagetypeinfo::parse(input)) else { return };
    assert_eq!(
        info.free.len() + info.blocks.len() + info.mixed.len(),
        count_lines_with_prefix(input, b"Node")
    );
    assert!(info.free.iter().all(|row| !row.migratetype.is_empty() && !row.counts.is_empty()));
    assert!(info.blocks.iter().chain(&info.mixed).all(|row| !row.counts.is_empty()));
}

fn run_pressure(input: &[u8]) {
    let parsed = check_reparse(input, PRESSURE, pressure::parse, pressure::reparse);
    let has_full_line = lines(input).any(|(_, line)| words(line).next() == Some(b"full"));
    assert_eq!(parsed.is_some_and(|pressure| pressure.full.is_some()), parsed.is_some() && has_full_line);
}

fn run_slabinfo(input: &[u8]) {
    let Some(caches) = check_parse(input, slabinfo::parse(input)) else { return };
    assert!(caches.len() < lines(input).count());
    assert!(caches.iter().all(|cache| !cache.name.is_empty()));
}

fn run_allocinfo(input: &[u8]) {
    let Some(sites) = check_parse(input, allocinfo::parse(input)) else { return };
    assert!(sites.len() <= count_nonblank_lines(input));
    assert!(sites.iter().all(|site| !site.call_site.is_empty() && site.bytes.0 >> 63 == 0));
}

fn run_smaps(input: &[u8]) {
    let Some(mappings) = check_parse(input, smaps::parse(input)) else { return };
    let lines_kept: usize = mappings
        .iter()
        .map(|of| {
            assert!(of.start <= of.end && !of.fields_kib.is_empty() && !of.permissions.is_empty());
            1 + of.fields_kib.len() + of.other.len()
        })
        .sum();
    let flags = count_lines_with_prefix(input, b"VmFlags") + count_lines_with_prefix(input, b"THPeligible");
    let all = lines(input).count();
    assert!((all.saturating_sub(flags)..=all).contains(&lines_kept), "{lines_kept} of {all} lines");
}

fn run_smaps_rollup(input: &[u8]) {
    let Some(rollup) = check_parse(input, smaps::parse_rollup(input)) else { return };
    let kept = rollup.fields_kib.len() + rollup.other.len();
    let all = lines(input).count();
    assert!(kept == all || kept + 1 == all, "{kept} of {all} lines");
}

fn run_choice(input: &[u8]) {
    let Some(choice) = check_parse(input, setting::parse(input)) else { return };
    assert!(choice.has_option(choice.selected()));
    assert!(choice.options.iter().all(|option| !option.is_empty()));
}

fn run_scalar(input: &[u8]) {
    let Some(value) = check_parse(input, setting::parse_u64(input)) else { return };
    let text = String::from_utf8_lossy(input);
    let digits = text.trim().trim_start_matches('0');
    assert_eq!(if digits.is_empty() { "0" } else { digits }, value.to_string());
}

/// Three entries of a file with a 64-bit word for each page: free, anonymous, without a flag.
const PAGE_ENTRIES: &[u8] = b"\0\x04\0\0\0\0\0\0\x28\x58\0\0\x04\0\0\0\0\0\0\0\0\0\0\0";

const SHOW_MEM: &[u8] =
    b"[ 1.5] Node 0 DMA: 3*4kB (UE) 1*8kB (M) 0*16kB = 20kB\n[ 1.5] Node 0 Normal: empty\n";

const COPIED_BUDDYINFO: &[u8] =
    b"cat /proc/buddyinfo\nNode 0, zone      DMA      4      0      1 \nNode 0, zone   Normal 1 2 3\n";

const PROCESS_STAT: &[u8] = b"7 (a) b) S 1 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 3 0 9731 1 1\n";

const BASH_TIME: &[u8] = b"real\t3m59.511s\nuser\t3m59.059s\nsys\t0m0.452s\n";

/// The result has zones with equal numbers of orders, each zone once.
fn run_free_text(data: &[u8]) {
    let Ok(found) = free_text::parse(data, None) else { return };
    let zones = &found.buddyinfo.zones;
    assert!(!zones.is_empty() || !found.unpopulated.is_empty());
    for (at, zone) in zones.iter().enumerate() {
        assert_eq!(zone.areas.orders(), zones[0].areas.orders());
        assert!(zones[..at].iter().all(|other| other.key != zone.key), "duplicate {:?}", zone.key);
    }
}

const SCRIPT: &[u8] =
    b" a b 17/19 [028] 13.19: 40 cpu/mem-loads/P: 55ffba5cda08 11868100242 |OP LOAD|LVL L2 miss|\
SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A   225 a44\nls 2 e: 10 6 |OP STORE|TLB Walker hit|LCK No\n\
ls PERF_RECORD_LOST lost 12\n";

const REPORT: &[u8] = b"# Total Lost Samples: 7\n# Samples: 3  of event 'e'\n\
# Overhead  Samples  Data Symbol              TLB access\n\
# ........  .......  .......................  ..........\n\
    83.57%        2  [.] 0x00007fc3ada9f408  L2 miss\n";

/// A file of one event: a name, a mapping, a sample, a loss, the end of a round, the architecture.
const FILE: &[u8] = b"PERFILE2h\0\0\0\0\0\0\0\x80\0\0\0\0\0\0\0h\0\0\0\0\0\0\0\x80\0\0\0\0\0\0\0\xf0\0\0\
\0\0\0\0\0\x10\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0@\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0p\0\0\0\xcd\x01\0\0\0\0\0\0\xa0\x0f\0\0\0\0\0\0\x8e\xc1\0\0\0\0\0\0\0\0\
\0\0\0\0\0\0\0\x03\x84\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xe8\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x01\0\0\0\
\0\0\0\0\x03\0\0\0\0\x200\0\x07\0\0\0\x07\0\0\0a\0\0\0\0\0\0\0\x07\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\x01\
\0\0\0\0\0\0\0\x0a\0\0\0\x02\0h\0\x07\0\0\0\x07\0\0\0\0\0@\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\x08\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\x02\0\0\0/bin/a\0\0\x07\0\0\0\x07\0\0\0\
\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x09\0\0\0\x02\0@\0\x07\0\0\0\x07\0\0\0\x05\0\0\0\0\0\0\0\x10\x10@\0\
\0\0\0\0\x01\0\0\0\0\0\0\0d\0\0\0\0\0\0\0\x1e\0\0\0\0\0\0\0B\0\0P\0\0\0\0\x02\0\0\0\0\x000\0\x01\0\0\0\0\0\
\0\0\x0c\0\0\0\0\0\0\0\x07\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0D\0\0\0\0\0\x08\0\x10\x02\
\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0\x08\0\0\0x86_64\0\0";

/// The same as a pipe.
const PIPE_FILE: &[u8] = b"PERFILE2\x10\0\0\0\0\0\0\0@\0\0\0\0\0\x80\0\x04\0\0\0p\0\0\0\xcd\x01\0\0\0\0\0\0\
\xa0\x0f\0\0\0\0\0\0\x8e\xc1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x84\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\x01\0\0\0\0\0\0\0P\0\0\0\0\0\x1c\0\x06\0\0\0\0\0\0\0\x08\0\0\0x86_64\0\0\x03\0\0\0\0\x200\0\x07\0\0\0\
\x07\0\0\0a\0\0\0\0\0\0\0\x07\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x0a\0\0\0\x02\0h\0\x07\
\0\0\0\x07\0\0\0\0\0@\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\
\0\0\0\0\0\0\0\0\x05\0\0\0\x02\0\0\0/bin/a\0\0\x07\0\0\0\x07\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\
\x09\0\0\0\x02\0@\0\x07\0\0\0\x07\0\0\0\x05\0\0\0\0\0\0\0\x10\x10@\0\0\0\0\0\x01\0\0\0\0\0\0\0d\0\0\0\0\
\0\0\0\x1e\0\0\0\0\0\0\0B\0\0P\0\0\0\0\x02\0\0\0\0\x000\0\x01\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0\x07\0\0\0\
\x07\0\0\0\x06\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0D\0\0\0\0\0\x08\0";

/// The same with the records in two packed ones; what packs here is no packing.
const COMPRESSED_FILE: &[u8] =
    b"PERFILE2\x10\0\0\0\0\0\0\0@\0\0\0\0\0\x80\0\x04\0\0\0p\0\0\0\xcd\x01\0\0\0\0\0\0\
\xa0\x0f\0\0\0\0\0\0\x8e\xc1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\x84\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
\x01\0\0\0\0\0\0\0Q\0\0\0\0\0:\0\x03\0\0\0\0\x200\0\x07\0\0\0\x07\0\0\0a\0\0\0\0\0\0\0\x07\0\0\0\x07\0\0\
\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x0a\0S\0\0\0\0\0\xf0\0\xde\0\0\0\0\0\0\0\0\0\x02\0h\0\x07\0\0\0\
\x07\0\0\0\0\0@\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\
\0\0\0\0\0\x05\0\0\0\x02\0\0\0/bin/a\0\0\x07\0\0\0\x07\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x09\0\0\
\0\x02\0@\0\x07\0\0\0\x07\0\0\0\x05\0\0\0\0\0\0\0\x10\x10@\0\0\0\0\0\x01\0\0\0\0\0\0\0d\0\0\0\0\0\0\0\
\x1e\0\0\0\0\0\0\0B\0\0P\0\0\0\0\x02\0\0\0\0\x000\0\x01\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0\x07\0\0\0\x07\0\0\
\0\x06\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0D\0\0\0\0\0\x08\0\0\0";

/// Copies, in place of zstd.
fn copy_uncompressed(packed: &[u8], room: &mut [u8]) -> Result<(usize, usize), String> {
    let count = packed.len().min(room.len());
    room[..count].copy_from_slice(&packed[..count]);
    Ok((count, count))
}

fn run_file(input: &[u8]) {
    let (mut events, mut samples) = (0, 0);
    let mut bytes = input;
    let read = perf_data::read_perf_data(&mut bytes, &mut copy_uncompressed, &mut |about, event| {
        events += 1;
        if let Event::Sample(sample) = event {
            samples += 1;
            assert!(sample.event_index < about.events.len());
        }
    });
    // A record has at least 8 bytes, and so has one that is packed.
    assert!(samples <= events && 8 * events <= input.len());
    if let Some((about, tally)) = check_parse(input, read) {
        assert!(8 * tally.records <= input.len() as u64 && tally.unknown_samples <= tally.records);
        assert!(about.events.len() <= input.len());
    }
}

fn run_script(input: &[u8]) {
    let Some(script) = check_parse(input, perf_data::parse_script(input)) else { return };
    assert!(
        !script.samples.is_empty()
            && script.samples.len() + script.other_lines as usize <= count_nonblank_lines(input)
    );
}

fn run_report(input: &[u8]) {
    let Some(report) = check_parse(input, perf_data::parse_report(input)) else { return };
    assert!(
        report.rows.len() < count_nonblank_lines(input) && report.events.len() <= count_nonblank_lines(input)
    );
}

const REGION_COUNT_LINES: &[u8] =
    b"Region (Hex): 0x187bae00000, Region (Decimal): 1682467454976, L2 Misses: 99\n\
Region (Hex): 0x1879b000000, Region (Decimal): 1681932681216, L2 Misses: 221\n";

const GENERATED_PLAN: &[u8] = b"pagelab-plan = 1\nsource = \"exact\"\ncommand = [\"a\", \"b\\\"\"]\n\
predicted = { speedup = 1.240, all = 1.3, share = 0.9 }\n[[program]]\npath = \"/a\"\nbytes = 12\n\
identity = \"ff\"\n[[program.mapping]]\nkind = \"anonymous\"\nmapping-bytes = 8388608\nnth = 1\n\
start = 0x7f0000001000\nbytes = 8388608\n\
regions = [\n  { offset = 0x1ff000, page = \"2M\", cost-ns = 7 },\n]\n\
cells = [\n  [0x0, 0x8000, 1], [0x8000, 0x1000, 2],\n]\n\
[[program.mapping]]\nkind = \"file\"\nfile = \"/b\"\nregions = [{ offset = 0 }]\n";

const ADDRESS_PLAN: &[u8] = b"addresses = [0x187b1400000, 2097152]\npage = \"2M\"\n";

/// Any plan that is read is written as a text that is read as the same plan.
fn run_plan(input: &[u8]) {
    let Some(plan) = check_parse(input, plan_toml::parse(input, Bytes(1 << 21))) else { return };
    let regions = |plan: &HugePlan| {
        plan.programs.iter().flat_map(|program| &program.mappings).map(|of| of.regions.len()).sum::<usize>()
    };
    assert!(regions(&plan) > 0 && regions(&plan) <= input.len());
    let text = plan_toml::write_plan(&plan, &["a\nb".to_owned()]);
    assert_eq!(plan_toml::parse(text.as_bytes(), Bytes(1)).unwrap_or_else(|error| panic!("{error}")), plan);
}

fn run_largepages(input: &[u8]) {
    let Some(addresses) = check_parse(input, region_list::parse(input)) else { return };
    assert!(!addresses.is_empty() && addresses.len() <= count_nonblank_lines(input));
    assert_eq!(region_list::parse(region_list::write_list(&addresses).as_bytes()).ok(), Some(addresses));
}

fn run_region_counts(input: &[u8]) {
    let Some(counts) = check_parse(input, region_list::parse_counts(input)) else { return };
    assert!(!counts.is_empty() && counts.len() <= count_nonblank_lines(input));
    assert!(region_list::is_region_counts(input));
}

const PLAIN_SAMPLES: &[u8] =
    b"# TYPE a gauge\na 1\nb{x=\"1\",y=\"a\\\"b\\\\\\n\",} -2.5e+3 1770127506000\n{\"c.d\",e=\"f\"} NaN\n";

const OPEN_METRICS: &[u8] = b"a_total 3 1770127506.25\nb_bucket{le=\"1\"} 17 # {id=\"x\"} 0.67\n# EOF\n";

const SCRAPE: &[u8] = b"node_buddyinfo_blocks{node=\"0\",size=\"0\",zone=\"DMA\"} 1\n\
node_buddyinfo_blocks{node=\"0\",size=\"1\",zone=\"DMA\"} 9\nnode_memory_Active_anon_bytes 2.068484096e+09\n\
node_memory_HugePages_Total 3\nnode_uname_info{machine=\"x\",nodename=\"vm-17\",release=\"6.1\"} 1\n\
node_pressure_memory_waiting_seconds_total 0.262\nnode_time_seconds 1.7e+09\nnode_vmstat_pgfault 2.3e+09\n";

const TIMESTAMPED_SCRAPE: &[u8] =
    b"node_vmstat_pgfault{instance=\"a:9100\"} 2 2000\nnode_vmstat_pgfault 1 1000\n";

fn run_exposition(input: &[u8]) {
    let mut samples = 0;
    let parsed = exposition::for_each_sample(
        input,
        |_| true,
        |sample| {
            samples += 1;
            assert!(!sample.name.is_empty() && sample.labels.iter().all(|(label, _)| !label.is_empty()));
            assert!(
                sample
                    .count()
                    .is_none_or(|count| count as f64 == sample.value && i64::try_from(count).is_ok())
            );
            Ok(())
        },
    );
    assert!(samples <= count_nonblank_lines(input));
    check_parse(input, parsed);
}

fn run_node_exporter(input: &[u8]) {
    let Some(scrapes) = check_parse(input, node_exporter::parse(input)) else { return };
    assert!(scrapes.len() <= count_nonblank_lines(input));
    for scrape in &scrapes {
        if let Some(buddyinfo) = &scrape.buddyinfo {
            let orders = buddyinfo.zones.first().map(|zone| zone.areas.orders());
            assert!(
                orders.is_some() && buddyinfo.zones.iter().all(|zone| Some(zone.areas.orders()) == orders)
            );
        }
        if let Some(meminfo) = &scrape.meminfo {
            assert_eq!(meminfo.fields.len(), meminfo.in_kib.len());
        }
    }
}

const SINGLE_RUN: &[u8] =
    b"# started on Sun Nov 22 08:07:13 2026\n\n0.98,msec,task-clock,976863,100.00,0.501,CPUs utilized\n\
<not supported>,,dTLB-load-misses,0,100.00,,\n<not counted>,,cpu/event=0x3c,umask=0/,0,0.00,,\n,,,,,0.2,a\n";

const REPEATED_RUNS: &[u8] = b"49;;page-faults;/a;1.18%;552381;100.00;87.478;K/sec\n";

fn run_perf_stat(input: &[u8]) {
    let Some(counters) = check_parse(input, perf_stat::parse(input)) else { return };
    assert!(!counters.is_empty() && counters.len() <= count_nonblank_lines(input));
    for counter in &counters {
        assert!(!counter.event.is_empty());
        assert!(counter.value.as_ref().is_ok_and(|value| value.is_finite()) || counter.value.is_err());
        assert!(counter.running_percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)));
        assert!(counter.metrics.iter().all(|(value, unit)| value.is_finite() && !unit.is_empty()));
    }
}

fn run_shell_time(input: &[u8]) {
    if check_parse(input, shell_time::parse(input)).is_some() {
        assert!(count_nonblank_lines(input) >= 1);
    }
}

const CPUINFO_X86: &[u8] =
    b"processor\t: 0\nvendor_id\t: X\ncpu family\t: 6\nmodel\t\t: 207\nstepping\t: 2\n\
physical id\t: 0\ncore id\t\t: 0\nflags\t\t: pse hypervisor\n\
address sizes\t: 46 bits physical, 57 bits virtual\n\n";

const CPUINFO_ARM: &[u8] =
    b"Processor\t: ARMv7\nprocessor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";

const SWAPS_TEXT: &[u8] = b"Filename Type Size Used Priority\n/swap\\040file file 2097148 1024 -2\n";

const MOUNTINFO_TEXT: &[u8] = b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
36 35 98:0 /mnt\\0401 /mnt2 rw master:1 propagate_from:2 - ext3 /dev/root rw\n";

const STATUS_TEXT: &[u8] =
    b"Name:\tx\nVmRSS:\t 1640 kB\nTHP_enabled:\t1\nCapEff:\t000001fffeffffff\nKthread:\t0\n";

const KMSG: &[u8] = b"4,900,5140900,-;a:1: page allocation failure: order:5, mode:0x1\n SUBSYSTEM=x\n\
6,901,5140901,-;other\n";

const DMESG: &[u8] = b"<4>[   12.000345] [   T7] a invoked oom-killer: gfp_mask=0x1, order=3\nprose\n\
memory: usage 64kB, limit 64kB, failcnt 4\noom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a\n\
Memory cgroup out of memory: Killed process 4 (a) total-vm:7kB\n";

const IOMEM_TEXT: &[u8] =
    b"00001000-0009fbff : System RAM\n  00002000-00002fff : Kernel code\nc0000000-cfffffff : PCI Bus\n";

fn run_cpuinfo(input: &[u8]) {
    let Some(cpu) = check_parse(input, cpuinfo::parse(input)) else { return };
    assert!(cpu.threads > 0 && cpu.threads as usize <= count_nonblank_lines(input).max(1));
    assert!(cpu.cores.is_none_or(|cores| cores > 0 && cores as usize <= count_nonblank_lines(input)));
}

const ATTEMPTS_TEXT: &[u8] = b"number order gfp ok pfn zone ns f_u_before f_i free reclaimed scanned retry\n\
0 9 movable 1 9728 DMA32 44429799 1000 - 1784 256 256 1\n1 9 movable 0 - - 3 1000 -971 28 82 73 1\n\
pages_held 512\n";

fn run_alloc_attempts(input: &[u8]) {
    let Some(table) = check_parse(input, alloc_attempts::parse(input)) else { return };
    assert_eq!(table.attempts.len() + 2, lines(input).count());
    assert!(table.attempts.iter().all(|attempt| attempt.unusable_before <= 1000));
}

fn run_swaps(input: &[u8]) {
    let Some(areas) = check_parse(input, swap::parse(input)) else { return };
    assert!(areas.len() < count_nonblank_lines(input));
}

fn run_mountinfo(input: &[u8]) {
    let Some(mounts) = check_parse(input, mountinfo::parse(input)) else { return };
    assert_eq!(mounts.len(), count_nonblank_lines(input));
}

fn run_cgroup(input: &[u8]) {
    let Some(groups) = check_parse(input, cgroup::parse(input)) else { return };
    assert!(groups.iter().all(|group| group.path.starts_with('/')));
}

fn run_status(input: &[u8]) {
    let Some(status) = check_parse(input, process_status::parse(input)) else { return };
    assert!(status.amounts_kib.len() < count_nonblank_lines(input));
}

fn run_process_stat(data: &[u8]) {
    let Ok(stat) = process_status::parse_stat(data) else { return };
    // The name of the command does not change the rest.
    let end = data.iter().rposition(|&byte| byte == b')').expect("a parsed stat file has a command");
    let renamed = [b"1 (x y", &data[end..]].concat();
    assert_eq!(process_status::parse_stat(&renamed), Ok(stat));
}

fn run_kernel_log(input: &[u8]) {
    check_parse(input, kernel_log::parse_record(input));
    let Some(failures) = check_parse(input, kernel_log::parse(input)) else { return };
    assert!(failures.reports.len() + failures.kills.len() <= count_nonblank_lines(input));
    for report in &failures.reports {
        assert!(report.process.chars().count() <= 81 && report.detail.chars().count() <= 401);
    }
}

fn run_iomem(input: &[u8]) {
    let Some(iomem) = check_parse(input, iomem::parse(input)) else { return };
    assert_eq!(iomem.resources.len(), count_nonblank_lines(input));
    assert!(iomem.system_ram().all(|(start, last)| start <= last));
}

fn run_cpu_list(input: &[u8]) {
    let Some(numbers) = check_parse(input, cpu_list::parse(input)) else { return };
    assert!(numbers.is_sorted() && numbers.len() <= 1 << 16);
}

fn run_size_or_share(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(size) = parse(&text) {
        assert_eq!(parse(&format_argument(size)), Ok(size));
    }
    if let Ok(share) = parse_share(&text) {
        assert!((0.0..=1.0).contains(&share));
    }
}

/// Two records of one word, a longer distance between them, and an earlier loss.
const PAGE: &[u8] = b"\x10\x27\0\0\0\0\0\0\x18\0\0\xc0\xff\xff\xff\xff\
\xe1\0\0\0\x01\0\0\0\x7e\0\0\0\x02\0\0\0\xe1\0\0\0\x02\0\0\0\
\x07\0\0\0\0\0\0\0";

/// An allocation, a free, a migration and a fallback of two threads.
const TRACE_BLOCK: &[u8] =
    b"\x07\x09\xe8\x14\xc6\x0b\x05\x53\x01\x0f\x03\x09\x01\x20\x40\x80\x72\x03\x05\x05\x13\x0d\x01\x07\
\x10\x20\x01\x20\x20\0\x01\x01\0\0\x01\x02\x03\x0b\x01\xb5\xf2\x0a\x07\x0d\x04\x17\x11\x02\
\x10\x1b\x07\x3f\xb2\x04\0\0\0\0\0\0\0\0";

/// A block without an event.
const TRACE_EMPTY: &[u8] = b"\x07\x01\x01\x01\x01\x01\x01\x01\0\0\0\0\0\0\0\0";

/// Three runs of frames.
const TRACE_RUNS: &[u8] = b"\x07\x21\x51\xc9\x01\x15\x01\x82\x3e\x0e\x40\x62\x6d\0\0\0\0\0\0\0\0";

const TRACE_FORMAT_TEXT: &[u8] = b"name: mm_compaction_end\nID: 669\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
\tfield:int status;\toffset:44;\tsize:4;\tsigned:1;\n\
\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n\
\tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\n\
print fmt: \"%s\", __print_symbolic(REC->status, {1, \"skipped\"}, {8, \"success\"})\n";

/// A sample of 48 bytes: TID, TIME, CPU, a raw record of 12 bytes; of 64 with a call chain of one.
const SAMPLE: &[u8] = b"\x09\0\0\0\0\0\x30\0\x07\0\0\0\x07\0\0\0\xe8\x03\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\
\x0c\0\0\0\x8a\x02\0\0\0\0\0\0\0\0\0\0\
\x09\0\0\0\0\0\x40\0\x07\0\0\0\x07\0\0\0\xe9\x03\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\
\x01\0\0\0\0\0\0\0\x80\xff\xff\xff\xff\xff\xff\xff\x0c\0\0\0\x8a\x02\0\0\0\0\0\0\0\0\0\0";

/// A record of lost ones, 48 bytes.
const LOST: &[u8] = b"\x02\0\0\0\0\0\x30\0\x01\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x07\0\0\0\
\xe8\x03\0\0\0\0\0\0\x01\0\0\0\0\0\0\0";

const KALLSYMS_TEXT: &[u8] = b"ffffffff81000000 T _text\nffffffff81000100 t slow_path\n\
ffffffff81000200 D a_table\nffffffffa0000000 t load\t[dm_mod]\n";

const MAPS_TEXT: &[u8] = b"00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/a b\n\
7fff0000-7fff2000 rw-p 00000000 00:00 0                          [stack]\n\
7fff4000-7fff6000 r-xp 00000000 00:00 0 \n";

fn run_trace_format(input: &[u8]) {
    let Some(format) = check_parse(input, trace_format::fuzz(input)) else { return };
    assert!(format.fields.len() + format.other.len() < count_nonblank_lines(input));
    assert!(format.fields.len() <= count_lines_with_prefix(input, b"field"));
}

fn run_kallsyms(input: &[u8]) {
    let Some(symbols) = check_parse(input, kallsyms::parse(input)) else { return };
    assert!(symbols.len() <= count_nonblank_lines(input));
    for address in [0, 1, 0xffff_ffff_8100_0080, u64::MAX] {
        if let Some(symbol) = symbols.find(address) {
            assert!(symbol.address <= address && !symbol.name.is_empty());
        }
    }
}

fn run_maps(input: &[u8]) {
    let Some(maps) = check_parse(input, maps::parse(input)) else { return };
    assert!(maps.len() <= count_nonblank_lines(input));
    assert!(maps.iter().all(|map| map.start < map.end));
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
