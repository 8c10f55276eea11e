//! The kinds of events, in words: the same for `record`, `info` and the JSON.

use pagelab_model::alloc_trace::TraceWhat;
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
