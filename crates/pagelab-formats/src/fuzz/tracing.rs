//! Fuzz targets of what tracing reads: formats of tracepoints, records in rings and pages, symbols, mappings.

use super::{Target, checked, filled, starting};
use crate::{alloc_trace, kallsyms, maps, perf_record, ring_page, trace_format};

pub(super) const TRACE_FORMAT: Target =
    Target { name: "trace_format", run: run_trace_format, seeds: &[TRACE_FORMAT_TEXT] };

pub(super) const PERF_RECORD: Target =
    Target { name: "perf_record", run: perf_record::fuzz, seeds: &[SAMPLE, LOST] };

pub(super) const KALLSYMS: Target =
    Target { name: "kallsyms", run: run_kallsyms, seeds: &[KALLSYMS_TEXT, b"0000000000000000 T _text\n"] };

pub(super) const MAPS: Target = Target { name: "maps", run: run_maps, seeds: &[MAPS_TEXT] };

pub(super) const ALLOC_TRACE: Target =
    Target { name: "alloc_trace", run: alloc_trace::fuzz, seeds: &[TRACE_BLOCK, TRACE_EMPTY, TRACE_RUNS] };

pub(super) const RING_PAGE: Target = Target { name: "ring_page", run: run_ring_page, seeds: &[PAGE] };

/// Two records of one word, a longer distance between them, and what was lost before.
const PAGE: &[u8] = b"\x10\x27\0\0\0\0\0\0\x18\0\0\xc0\xff\xff\xff\xff\
\xe1\0\0\0\x01\0\0\0\x7e\0\0\0\x02\0\0\0\xe1\0\0\0\x02\0\0\0\
\x07\0\0\0\0\0\0\0";

fn run_ring_page(data: &[u8]) {
    let _ = ring_page::fuzz(data);
}

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
    let Some(format) = checked(input, trace_format::fuzz(input)) else { return };
    assert!(format.fields.len() + format.other.len() < filled(input));
    assert!(format.fields.len() <= starting(input, b"field"));
}

fn run_kallsyms(input: &[u8]) {
    let Some(symbols) = checked(input, kallsyms::parse(input)) else { return };
    assert!(symbols.len() <= filled(input));
    for address in [0, 1, 0xffff_ffff_8100_0080, u64::MAX] {
        if let Some(symbol) = symbols.find(address) {
            assert!(symbol.address <= address && !symbol.name.is_empty());
        }
    }
}

fn run_maps(input: &[u8]) {
    let Some(maps) = checked(input, maps::parse(input)) else { return };
    assert!(maps.len() <= filled(input));
    assert!(maps.iter().all(|map| map.start < map.end));
}
