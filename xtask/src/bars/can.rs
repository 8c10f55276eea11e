//! The bars of `pagelab can`.

use super::{AT_MOST, Bar};

/// An error of the prediction, in the worst state.
const ERROR: Bar = Bar {
    limit: 1.0,
    source: "the contiguity instruments, can",
    unavailable_if: "not tool qemu-system-x86_64 or not tool apt-get",
    ..AT_MOST
};

pub(super) const BARS: &[Bar] = &[
    Bar {
        name: "can_error_now",
        comparison: "error of `can` / max(5 % of the allocated pages, 1 % of the blocks): now, in the worst \
                     state",
        ..ERROR
    },
    Bar {
        name: "can_error_compacted",
        comparison: "error of `can` / max(5 % of the allocated pages, 1 % of the blocks): after compaction",
        ..ERROR
    },
    Bar {
        name: "can_error_dropped",
        comparison: "error of `can` / max(5 % of the allocated pages, 1 % of the blocks): after dropping \
                     cache",
        ..ERROR
    },
    Bar {
        name: "can_outside_share_released",
        limit: 0.1,
        comparison: "share of states (fragmented, cache read, pieces released) whose truth is outside of the \
                     bounds that `can` prints, at any step; 6.1, 6.12 and this kernel",
        source: "compaction that says why it stopped; can",
        ..ERROR
    },
];
