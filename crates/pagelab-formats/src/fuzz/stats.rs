//! Fuzz targets of what other tools measure with.

use super::{Target, checked, filled};
use crate::{perf_stat, shell_time};

pub(super) const PERF_STAT: Target =
    Target { name: "perf_stat", run: run_perf_stat, seeds: &[ONE, REPEATED] };
pub(super) const SHELL_TIME: Target = Target {
    name: "shell_time",
    run: run_shell_time,
    seeds: &[b"real\t3m59.511s\nuser\t3m59.059s\nsys\t0m0.452s\n", b"real 239.51\nuser 1\nsys 0.02\n"],
};

const ONE: &[u8] =
    b"# started on Sun Nov 22 08:07:13 2026\n\n0.98,msec,task-clock,976863,100.00,0.501,CPUs utilized\n\
<not supported>,,dTLB-load-misses,0,100.00,,\n<not counted>,,cpu/event=0x3c,umask=0/,0,0.00,,\n,,,,,0.2,a\n";

const REPEATED: &[u8] = b"49;;page-faults;/a;1.18%;552381;100.00;87.478;K/sec\n";

fn run_perf_stat(input: &[u8]) {
    let Some(stat) = checked(input, perf_stat::parse(input)) else { return };
    assert!(!stat.counters.is_empty() && stat.counters.len() <= filled(input));
    for counter in &stat.counters {
        assert!(!counter.event.is_empty());
        assert!(counter.value.as_ref().is_ok_and(|value| value.is_finite()) || counter.value.is_err());
        assert!(counter.running_percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)));
        assert!(counter.metrics.iter().all(|(value, unit)| value.is_finite() && !unit.is_empty()));
    }
}

fn run_shell_time(input: &[u8]) {
    if checked(input, shell_time::parse(input)).is_some() {
        assert!(filled(input) >= 1);
    }
}
