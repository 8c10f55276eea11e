//! The bars of the simulated machine and of sweeps. An allocation of `highalloc` was 0.79 to 0.84 of a pair
//! of plain sets on EPYC of family 25, model 17, beside 15 other tasks; a sweep on two threads needs a
//! machine on which nobody else computes.

use super::{Bar, Good};

pub(super) const MACHINE: Bar = Bar {
    name: "sim_machine_to_plain",
    good: Good::AtLeast,
    limit: 0.5,
    unit: "ratio",
    what: "allocations a second of a run of highalloc, all that it brings along included, to pairs a second \
           of plain ordered sets",
    source: "issue 7, Must hold",
    absent_where: "",
    changes: &[],
};

pub(super) const SWEEP: Bar = Bar {
    name: "sim_sweep_two_threads",
    good: Good::AtLeast,
    limit: 1.6,
    unit: "ratio",
    what: "wall time of a sweep on one thread, to two",
    source: "issue 7, Must hold",
    absent_where: "not cpus 2",
    changes: &[],
};
