//! Bars of memory that is only read, seen by dropped entries of the zero page: hot-regions, 1 GiB that is
//! read and never written, 16 draws of 512 regions as hot, seeds 1 to 3, at the default duty.

use super::{Bar, Change, Good};

const SOURCE: &str = "issue 15, section 1";

pub(super) const SLOW_DOWN: Bar = Bar {
    name: "zero_page_slow_down",
    good: Good::AtMost,
    limit: 0.02,
    unit: "ratio",
    what: "what scans of the zero page cost hot-regions --first read, accounted: dropped entries × a page \
           fault + stops, to the time of the run",
    source: SOURCE,
    absent_where: "",
    changes: &[],
};

pub(super) const MISSED: Bar = Bar {
    name: "zero_page_hot_regions_missed",
    good: Good::AtMost,
    limit: 0.0,
    unit: "regions",
    what: "of its 15 hot regions (16 draws), those that do not come first; the most of three seeds",
    source: SOURCE,
    absent_where: "",
    changes: &[Change {
        old: 0.0,
        new: 0.0,
        why: "was 100 M rounds, 4.2 s: 0, 4, 0 regions missed (EPYC 25/17/1), where the run with 4 had 5 \
              scans. 500 M rounds are as long as the program of the source: 41 to 48 scans, 0, 0, 0 missed \
              (EPYC 26/2/1, quiet)",
    }],
};
