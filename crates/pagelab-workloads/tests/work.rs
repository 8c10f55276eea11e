//! Test that the work of each workload grows with its option: no loop was optimised away.
//!
//! CPU time of the thread is compared, not wall time, and only as far as a loop that is gone would show.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

use pagelab_sys::clock;
use pagelab_workloads::options::WorkloadOptions;
use pagelab_workloads::phase::MeasuredPhase;

/// Workload, options of both runs, and the option that grows from one value to the other.
type GrowthCase = (&'static str, &'static [(&'static str, &'static str)], &'static str, [&'static str; 2]);

/// In each the larger run does 50 times as much or more.
const CASES: &[GrowthCase] = &[
    ("chase", &[("size", "64K")], "steps", ["20000", "2000000"]),
    ("chase", &[("size", "256K"), ("pattern", "zipf"), ("region", "16K")], "steps", ["10000", "1000000"]),
    ("hot-regions", &[("size", "64K"), ("base", "0"), ("region", "4K")], "rounds", ["1000", "100000"]),
    ("gups", &[("size", "16K")], "updates", ["2", "400"]),
    ("stream", &[("size", "48K")], "times", ["2", "200"]),
    ("quicksort", &[], "size", ["8K", "800K"]),
    ("btree", &[("size", "8K")], "lookups", ["2000", "200000"]),
    ("hash", &[("size", "8K")], "lookups", ["2000", "300000"]),
    ("bfs", &[("size", "10K")], "roots", ["5", "4000"]),
];

fn cpu_ns(case: &GrowthCase, value: &str) -> u64 {
    let (name, set, grows, _) = case;
    let workload = pagelab_workloads::find_workload(name).unwrap();
    let mut options = WorkloadOptions::with_defaults(workload.options);
    set.iter().chain([&(*grows, value)]).for_each(|(name, typed)| options.set_value(name, typed).unwrap());
    let before = clock::thread_cpu_ns();
    (workload.run)(&options, &mut MeasuredPhase::without_observer()).unwrap();
    clock::thread_cpu_ns() - before
}

#[test]
fn more_work_takes_more_time() {
    for case in CASES {
        // The first run warms up what both need.
        let small = (0..3).map(|_| cpu_ns(case, case.3[0])).min().unwrap();
        let large = cpu_ns(case, case.3[1]);
        assert!(large > 4 * small, "{case:?}: {small} ns and {large} ns");
    }
}
