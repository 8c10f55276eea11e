//! The bars of `pagelab can`.

use super::{Bar, Good};

pub(super) const ERROR_NOW: Bar = Bar {
    name: "can_error_now",
    good: Good::AtMost,
    limit: 1.0,
    unit: "ratio",
    what: "error of `can`, to max(5 % of what came, 1 % of the blocks): now, in the worst state",
    source: "the contiguity instruments, can",
    absent_where: "not tool qemu-system-x86_64 or not tool apt-get",
    changes: &[],
};

pub(super) const ERROR_COMPACTED: Bar = Bar {
    name: "can_error_compacted",
    good: Good::AtMost,
    limit: 1.0,
    unit: "ratio",
    what: "error of `can`, to max(5 % of what came, 1 % of the blocks): after compaction",
    source: "the contiguity instruments, can",
    absent_where: "not tool qemu-system-x86_64 or not tool apt-get",
    changes: &[],
};

pub(super) const ERROR_DROPPED: Bar = Bar {
    name: "can_error_dropped",
    good: Good::AtMost,
    limit: 1.0,
    unit: "ratio",
    what: "error of `can`, to max(5 % of what came, 1 % of the blocks): after dropping cache",
    source: "the contiguity instruments, can",
    absent_where: "not tool qemu-system-x86_64 or not tool apt-get",
    changes: &[],
};

pub(super) const OUTSIDE_SHARE_RELEASED: Bar = Bar {
    name: "can_outside_share_released",
    good: Good::AtMost,
    limit: 0.1,
    unit: "ratio",
    what: "share of states (fragmented, cache read, pieces released) whose truth is outside of the bounds \
           that `can` prints, at any step; 6.1, 6.12 and this kernel",
    source: "compaction that says why it stopped; can",
    absent_where: "not tool qemu-system-x86_64 or not tool apt-get",
    changes: &[],
};
