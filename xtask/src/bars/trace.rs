//! The bars of `pagelab trace`.

use super::{AT_MOST, Bar};

const TRACE: Bar = Bar { source: "trace record", unavailable_if: "not root", ..AT_MOST };

pub(super) const BARS: &[Bar] = &[
    Bar {
        name: "trace_traced_us",
        limit: 0.3,
        unit: "us",
        comparison: "CPU time that one traced event costs its program: memory mapped, touched and released",
        ..TRACE
    },
    Bar {
        name: "trace_churn_bytes",
        limit: 2.5,
        unit: "bytes",
        comparison: "size of an event in the file: memory mapped, touched and released",
        ..TRACE
    },
    Bar {
        name: "trace_build_bytes",
        limit: 4.5,
        unit: "bytes",
        comparison: "size of an event in the file: a build by cargo",
        ..TRACE
    },
    Bar {
        name: "trace_read_ns",
        limit: 33.0,
        unit: "ns",
        comparison: "CPU to read one event of a trace: 30 million a second",
        source: "sim replay, 20 million events per second",
        ..TRACE
    },
];
