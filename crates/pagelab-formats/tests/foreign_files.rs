//! Tests that no parser accepts the text of another kernel file: a number under a wrong name is a wrong
//! answer.
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

#[path = "support/corpus.rs"]
mod corpus;

use std::fs;

use corpus::corpus_folder;
use pagelab_formats::{
    alloc_attempts, allocinfo, buddyinfo, cgroup, cpu_list, cpuinfo, free_text, fuzz, iomem, kallsyms, maps,
    meminfo, mountinfo, node_exporter, pagetypeinfo, perf_stat, plan_toml, pressure, process_status,
    region_list, setting, shell_time, size, slabinfo, smaps, swap, trace_format, vmstat, zoneinfo,
};
use pagelab_model::Bytes;

/// Whether a parser finds records in a text.
type Accepts = fn(&[u8]) -> bool;

/// The parsers of texts, by the names of [`fuzz::TARGETS`].
const PARSERS: [(&str, Accepts); 34] = [
    ("buddyinfo", |text| buddyinfo::parse(text).is_ok()),
    ("meminfo", |text| meminfo::parse(text).is_ok()),
    ("vmstat", |text| vmstat::parse(text).is_ok()),
    ("zoneinfo", |text| zoneinfo::parse(text).is_ok()),
    ("pagetypeinfo", |text| pagetypeinfo::parse(text).is_ok()),
    ("pressure", |text| pressure::parse(text).is_ok()),
    ("slabinfo", |text| slabinfo::parse(text).is_ok()),
    ("allocinfo", |text| allocinfo::parse(text).is_ok()),
    ("smaps", |text| smaps::parse(text).is_ok()),
    ("smaps_rollup", |text| smaps::parse_rollup(text).is_ok()),
    ("choice", |text| setting::parse(text).is_ok()),
    ("scalar", |text| setting::parse_u64(text).is_ok()),
    ("cpuinfo", |text| cpuinfo::parse(text).is_ok()),
    ("swaps", |text| swap::parse(text).is_ok()),
    ("mountinfo", |text| mountinfo::parse(text).is_ok()),
    ("cgroup", |text| cgroup::parse(text).is_ok()),
    ("status", |text| process_status::parse(text).is_ok()),
    ("statm", |text| process_status::parse_statm(text).is_ok()),
    ("process_stat", |text| process_status::parse_stat(text).is_ok()),
    ("iomem", |text| iomem::parse(text).is_ok()),
    ("cpu_list", |text| cpu_list::parse(text).is_ok()),
    ("cache_size", |text| size::parse_cache_size(text).is_ok()),
    ("hexadecimal_size", |text| size::parse_hexadecimal(text).is_ok()),
    ("uptime", |text| size::parse_uptime(text).is_ok()),
    ("free_text", |text| free_text::parse(text, None).is_ok()),
    ("plan_toml", |text| plan_toml::parse(text, Bytes(2 << 20)).is_ok()),
    ("region_counts", |text| region_list::parse_counts(text).is_ok()),
    // Without a metric of memory there is no scrape.
    ("node_exporter", |text| node_exporter::parse(text).is_ok_and(|scrapes| !scrapes.is_empty())),
    ("perf_stat", |text| perf_stat::parse(text).is_ok()),
    ("shell_time", |text| shell_time::parse(text).is_ok()),
    ("trace_format", |text| trace_format::parse(text).is_ok()),
    ("kallsyms", |text| kallsyms::parse(text).is_ok()),
    ("maps", |text| maps::parse(text).is_ok()),
    ("alloc_attempts", |text| alloc_attempts::parse(text).is_ok()),
];

/// Parser, text, and why the parser may read it: the texts themselves do not differ.
const LEGITIMATE: [(&str, &str, &str); 19] = [
    ("free_text", "buddyinfo", "frag detects the kind of a text"),
    ("free_text", "pagetypeinfo", "frag detects the kind of a text"),
    ("scalar", "cache_size", "a number is a number: the path of a setting tells what it is"),
    ("scalar", "cpu_list", "one CPU is a number"),
    ("scalar", "hexadecimal_size", "digits"),
    ("cpu_list", "scalar", "one CPU is a number"),
    ("cpu_list", "hexadecimal_size", "one CPU is a number"),
    ("cache_size", "scalar", "a size without a unit"),
    ("cache_size", "cpu_list", "a size without a unit"),
    ("cache_size", "hexadecimal_size", "a size without a unit"),
    ("hexadecimal_size", "scalar", "digits"),
    ("hexadecimal_size", "cpu_list", "digits"),
    ("hexadecimal_size", "cache_size", "digits"),
    ("plan_toml", "scalar", "a plan may be a list of addresses"),
    ("plan_toml", "hexadecimal_size", "a plan may be a list of addresses"),
    ("plan_toml", "largepages", "the same list"),
    ("region_counts", "largepages", "a list of addresses"),
    ("scalar", "size_or_share", "a number"),
    ("cache_size", "size_or_share", "a number"),
];

/// Kernel files that no parser reads, or only [`vmstat::parse_counters`], as a kernel prints them.
const OTHER_FILES: [(&str, &str); 24] = [
    ("loadavg", "0.20 0.18 0.12 1/80 11206\n"),
    ("uid_map", "         0          0 4294967295\n"),
    ("schedstat", "1234567 89012 34\n"),
    ("lowmem_reserve_ratio", "256\t256\t32\t0\t0\n"),
    ("io", "rchar: 3980\nwchar: 0\nsyscr: 9\nread_bytes: 4096\ncancelled_write_bytes: 0\n"),
    ("arch_status", "AVX512_elapsed_ms:\t-1\n"),
    ("memory.stat", "anon 40\nfile 50\nanon_thp 30\npgfault 6\npgmajfault 1\nthp_fault_alloc 2\n"),
    ("cpu.stat", "usage_usec 12345\nuser_usec 10000\nsystem_usec 2345\n"),
    (
        "numastat",
        "numa_hit 12345\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 12\nlocal_node 12345\nother_node 0\n",
    ),
    ("snmp6", "Ip6InReceives                   \t12\nIp6InHdrErrors                  \t0\n"),
    ("ioports", "0000-0cf7 : PCI Bus 0000:00\n  0000-001f : dma1\n"),
    ("diskstats", " 254       0 vda 1200 30 4500 60 70 80 90 100 0 110 120 0 0 0 0 0 0\n"),
    ("partitions", "major minor  #blocks  name\n\n 254        0   16777216 vda\n"),
    ("node meminfo", "Node 0 MemTotal:       24684092 kB\nNode 0 MemFree:         2100000 kB\n"),
    (
        "unusable_index",
        "Node 0, zone      DMA 0.000 0.000 0.066 \nNode 0, zone   Normal 0.000 0.428 0.809 \n",
    ),
    ("stat", "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 12 3\nctxt 44\nbtime 1700000000\n"),
    ("softirqs", "                    CPU0       CPU1       \n          HI:          0          1\n"),
    (
        "interrupts",
        "           CPU0       CPU1       \n  0:         12          0   IO-APIC   2-edge      timer\n",
    ),
    (
        "modules",
        "overlay 139264 1 - Live 0xffffffffc0a00000\nnls_utf8 16384 0 - Live 0x0000000000000000 (E)\n",
    ),
    ("limits", "Limit                     Soft Limit           Hard Limit           Units     \n"),
    ("numa_maps", "564a0e427000 default file=/bin/a mapped=2 N0=2 kernelpagesize_kB=4\n"),
    (
        "vmallocinfo",
        "0xffffc90000000000-0xffffc90000002000    8192 hpet_enable+0x2d/0x290 phys=fed00000 ioremap\n",
    ),
    ("version", "Linux version 6.18.0 (gcc (Debian 12.2.0-14) 12.2.0) #1 SMP PREEMPT_DYNAMIC\n"),
    ("cmdline", "console=ttyS0 root=/dev/vda rw transparent_hugepage=madvise\n"),
];

/// Checks that each text is accepted by the parser of its name alone, or by those of the table.
fn check_texts<'a>(texts: impl Iterator<Item = (&'a str, Vec<u8>, String)>) {
    let mut wrong = Vec::new();
    for (name, text, place) in texts {
        for (parser, accepts) in PARSERS {
            let is_legitimate =
                name == parser || LEGITIMATE.iter().any(|&(by, of, _)| (by, of) == (parser, name));
            if !is_legitimate && accepts(&text) {
                wrong.push(format!("{parser} accepts {name} ({place})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_parser_accepts_the_text_of_another() {
    let seeds = fuzz::TARGETS.iter().flat_map(|target| {
        target.seeds.iter().map(|seed| (target.name, seed.to_vec(), "a seed of the fuzzer".to_owned()))
    });
    check_texts(seeds);
    let others = OTHER_FILES.iter().map(|&(name, text)| (name, text.into(), "another file".to_owned()));
    check_texts(others);
    // Every parser accepts its own.
    for target in fuzz::TARGETS {
        let Some((_, accepts)) = PARSERS.iter().find(|(name, _)| *name == target.name) else { continue };
        assert!(target.seeds.iter().any(|seed| accepts(seed)), "{} refuses its own text", target.name);
    }
}

#[test]
fn no_parser_accepts_another_file_of_the_corpus() {
    let Some(corpus) = corpus_folder("proc") else { return };
    let mut texts = Vec::new();
    for machine in fs::read_dir(corpus).unwrap() {
        for file in fs::read_dir(machine.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let name = if name.starts_with("BUDDYINFO") { "buddyinfo".to_owned() } else { name };
            texts.push((name, fs::read(&path).unwrap(), path.display().to_string()));
        }
    }
    assert!(texts.len() > 60, "{}", texts.len());
    check_texts(texts.iter().map(|(name, text, place)| (name.as_str(), text.clone(), place.clone())));
}
