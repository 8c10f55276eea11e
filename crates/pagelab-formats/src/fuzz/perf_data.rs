//! Fuzz targets of what perf writes: its files, and texts that it prints.

use super::{Target, checked, filled};
use crate::perf_data::{self, Event};

pub(super) const PERF_DATA: Target =
    Target { name: "perf_data", run: run_file, seeds: &[FILE, PIPE, PACKED] };

pub(super) const PERF_SCRIPT: Target = Target { name: "perf_script", run: run_script, seeds: &[SCRIPT] };

pub(super) const PERF_REPORT: Target = Target { name: "perf_report", run: run_report, seeds: &[REPORT] };

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
const PIPE: &[u8] = b"PERFILE2\x10\0\0\0\0\0\0\0@\0\0\0\0\0\x80\0\x04\0\0\0p\0\0\0\xcd\x01\0\0\0\0\0\0\
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
const PACKED: &[u8] = b"PERFILE2\x10\0\0\0\0\0\0\0@\0\0\0\0\0\x80\0\x04\0\0\0p\0\0\0\xcd\x01\0\0\0\0\0\0\
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
fn copy(packed: &[u8], room: &mut [u8]) -> Result<(usize, usize), String> {
    let count = packed.len().min(room.len());
    room[..count].copy_from_slice(&packed[..count]);
    Ok((count, count))
}

fn run_file(input: &[u8]) {
    let (mut events, mut samples) = (0, 0);
    let mut bytes = input;
    let read = perf_data::read(&mut bytes, &mut copy, &mut |about, event| {
        events += 1;
        if let Event::Sample(sample) = event {
            samples += 1;
            assert!(sample.event < about.events.len());
        }
    });
    // A record has at least 8 bytes, and so has one that is packed.
    assert!(samples <= events && 8 * events <= input.len());
    if let Some((about, tally)) = checked(input, read) {
        assert!(8 * tally.records <= input.len() as u64 && tally.strange <= tally.records);
        assert!(about.events.len() <= input.len());
    }
}

fn run_script(input: &[u8]) {
    let Some(script) = checked(input, perf_data::script(input)) else { return };
    assert!(!script.samples.is_empty() && script.samples.len() + script.other as usize <= filled(input));
}

fn run_report(input: &[u8]) {
    let Some(report) = checked(input, perf_data::report(input)) else { return };
    assert!(report.rows.len() < filled(input) && report.events.len() <= filled(input));
}
