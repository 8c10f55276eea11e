//! Bars of the source `exact`.

use super::{AT_MOST, Bar, LimitChange};

const EXACT: Bar =
    Bar { source: "profile --source exact", unavailable_if: "not tool xz or not tool apt-get", ..AT_MOST };

/// With a window.
const WINDOW: Bar = Bar { source: "profile --source exact --window", ..EXACT };

pub(super) const BARS: &[Bar] = &[
    Bar {
        name: "exact_memory_cpu_ratio",
        limit: 2.2,
        comparison: "CPU time of a chase over 1 GiB under the source exact / alone",
        ..EXACT
    },
    Bar {
        name: "exact_integer_cpu_ratio",
        limit: 12.0,
        comparison: "CPU time of xz -9 under the source exact / alone",
        ..EXACT
    },
    Bar {
        name: "exact_what_if_cpu_ratio",
        limit: 1.25,
        comparison: "CPU time with one more set of huge pages / without it; the worse of xz and chase",
        source: "profile --source exact, --what-if",
        ..EXACT
    },
    Bar {
        name: "exact_window_qemu_ratio",
        limit: 1.9,
        comparison: "CPU time of hot-regions --first read profiled with --window 1M/50M / under QEMU \
                     without the plugin",
        limit_changes: &[LimitChange {
            old_limit: 1.3,
            new_limit: 1.9,
            reason: "two of a hundred accesses at some 100 ns of model are 2 ns on QEMU's 3.4 for each: 1.7, \
                     quiet, EPYC 25/17/1; unobserved stretches take 1.1; with a callback for each access it \
                     was 3.3, on a busy machine",
        }],
        ..WINDOW
    },
    Bar {
        name: "exact_unwatched_qemu_ratio",
        limit: 1.3,
        comparison: "the same with --window 10k/50M: the cost of unobserved stretches",
        ..WINDOW
    },
];
