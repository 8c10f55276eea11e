//! Bars of memory that is only read, seen by dropped entries of the zero page: hot-regions, 1 GiB that is
//! read and never written, 16 draws of 512 regions as hot, seeds 1 to 3, at the default duty.

use super::{AT_MOST, Bar, LimitChange};

const SOURCE: &str = "profile --source accessed, memory that is only read";

pub(super) const BARS: &[Bar] = &[
    Bar {
        name: "zero_page_slow_down",
        limit: 0.02,
        comparison: "accounted cost of zero page scans for hot-regions --first read: dropped entries × a \
                     page fault + stops / time of the run",
        source: SOURCE,
        ..AT_MOST
    },
    Bar {
        name: "zero_page_hot_regions_missed",
        limit: 0.0,
        unit: "regions",
        comparison: "hot regions (of 15) that do not rank first; the maximum of three seeds",
        source: SOURCE,
        limit_changes: &[LimitChange {
            old_limit: 0.0,
            new_limit: 0.0,
            reason: "was 100 M rounds, 4.2 s: 0, 4, 0 regions missed (EPYC 25/17/1), where the run with 4 \
                     had 5 scans. 500 M rounds are as long as the program of the source: 41 to 48 scans, 0, \
                     0, 0 missed (EPYC 26/2/1, quiet)",
        }],
        ..AT_MOST
    },
];
