//! The bars of `pagelab trace`.

use super::{Bar, Good};

pub(super) const TRACED: Bar = Bar {
    name: "trace_traced_us",
    good: Good::AtMost,
    limit: 0.3,
    unit: "us",
    what: "CPU that one traced event costs the program whose it is: memory mapped, touched, given back",
    source: "issue 7, Must hold",
    absent_where: "not root",
    changes: &[],
};

pub(super) const CHURN_BYTES: Bar = Bar {
    name: "trace_churn_bytes",
    good: Good::AtMost,
    limit: 2.5,
    unit: "bytes",
    what: "an event in the file of a trace of memory mapped, touched and given back",
    source: "issue 7, Must hold",
    absent_where: "not root",
    changes: &[],
};

pub(super) const BUILD_BYTES: Bar = Bar {
    name: "trace_build_bytes",
    good: Good::AtMost,
    limit: 4.5,
    unit: "bytes",
    what: "an event in the file of a trace of a build by cargo",
    source: "issue 7, Must hold",
    absent_where: "not root",
    changes: &[],
};

pub(super) const READ: Bar = Bar {
    name: "trace_read_ns",
    good: Good::AtMost,
    limit: 33.0,
    unit: "ns",
    what: "CPU to read one event of a trace: 30 million a second",
    source: "issue 7, replay of 20 million events a second",
    absent_where: "not root",
    changes: &[],
};
