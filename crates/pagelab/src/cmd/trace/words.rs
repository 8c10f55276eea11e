//! The kinds of events, in words: the same for `record`, `info` and the JSON.

use pagelab_model::alloc_trace::{TraceEnd, TraceWhat};
use pagelab_report::quantity::duration;
use pagelab_report::style::{count, three_digits};

/// How many kinds there are.
pub const KINDS: usize = 9;

/// Their names in JSON.
pub const NAMES: [&str; KINDS] = [
    "alloc",
    "free",
    "fallback",
    "compaction_begin",
    "compaction_end",
    "migrated",
    "reclaim_begin",
    "reclaim_end",
    "kswapd_wake",
];

/// What a person would call them.
pub const SAID: [&str; KINDS] = [
    "allocations",
    "frees",
    "fallbacks",
    "compactions begun",
    "compactions ended",
    "migrations",
    "direct reclaims begun",
    "direct reclaims ended",
    "wakes of kswapd",
];

/// Events a second.
pub fn rate(a_second: f64) -> String {
    if a_second < 1000.0 { three_digits(a_second) } else { count(a_second.round() as u128) }
}

/// Fewer events than this share a CPU time that is the recorder's start and its waking, not their own.
const COSTED_EVENTS_MIN: u64 = 10_000;

/// What recording took, without the scan at its start: by event where there are enough of them.
pub fn recorder_cost(end: &TraceEnd, events: u64) -> String {
    let cpu_ns = end.cpu_ns.saturating_sub(end.scan_cpu_ns);
    if events >= COSTED_EVENTS_MIN {
        return format!("the recorder took {} ns of its own CPU an event", cpu_ns / events);
    }
    format!("the recorder took {} of CPU time; the events are too few for a cost of each", duration(cpu_ns))
}

/// Which kind an event is.
#[inline]
pub fn kind(what: &TraceWhat) -> usize {
    match what {
        TraceWhat::Alloc { .. } => 0,
        TraceWhat::Free { .. } => 1,
        TraceWhat::Fallback { .. } => 2,
        TraceWhat::CompactionBegin => 3,
        TraceWhat::CompactionEnd => 4,
        TraceWhat::Migrated { .. } => 5,
        TraceWhat::ReclaimBegin { .. } => 6,
        TraceWhat::ReclaimEnd { .. } => 7,
        TraceWhat::KswapdWake { .. } => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_trace_has_no_cost_by_event() {
        let end = TraceEnd { cpu_ns: 9_000_000, scan_cpu_ns: 3_000_000, ..TraceEnd::default() };
        let few = recorder_cost(&end, 1);
        assert!(few.contains("6 ms of CPU time; the events are too few"), "{few}");
        assert_eq!(recorder_cost(&end, 0), few);
        let many = recorder_cost(&end, 30_000);
        assert_eq!(many, "the recorder took 200 ns of its own CPU an event");
    }
}
