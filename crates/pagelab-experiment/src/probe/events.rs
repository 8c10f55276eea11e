//! The events that every processor's driver may know, in groups that share the hardware's time.
//!
//! Groups are small: a processor has four to eight counters, a watchdog may hold one, and a group that does
//! not fit as a whole is never counted.

use pagelab_model::experiment::Better;
use pagelab_sys::perf_count::{Cache, Operation, Outcome, What};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// As `perf` names it, where it does.
    pub name: &'static str,
    pub what: What,
    pub better: Better,
}

const fn event(name: &'static str, what: What, better: Better) -> Event {
    Event { name, what, better }
}

const fn cache(name: &'static str, cache: Cache, operation: Operation, outcome: Outcome) -> Event {
    let better = match outcome {
        Access => Better::Neither,
        Miss => Better::Lower,
    };
    Event { name, what: What::Cache(cache, operation, outcome), better }
}

use Cache::{Dtlb, Itlb, L1d, L1i, LastLevel};
use Operation::{Prefetch, Read, Write};
use Outcome::{Access, Miss};

/// The first event tells whether there is any hardware to count with.
pub(super) const CYCLES: Event = event("cycles", What::Hardware(0), Better::Lower);

/// Hardware events, accesses and misses of one cache together.
pub(super) const HARDWARE: [&[Event]; 11] = [
    &[CYCLES, event("instructions", What::Hardware(1), Better::Neither)],
    &[cache("L1-dcache-loads", L1d, Read, Access), cache("L1-dcache-load-misses", L1d, Read, Miss)],
    &[cache("L1-dcache-stores", L1d, Write, Access), cache("L1-dcache-store-misses", L1d, Write, Miss)],
    &[
        cache("L1-dcache-prefetches", L1d, Prefetch, Access),
        cache("L1-dcache-prefetch-misses", L1d, Prefetch, Miss),
    ],
    &[cache("dTLB-loads", Dtlb, Read, Access), cache("dTLB-load-misses", Dtlb, Read, Miss)],
    &[cache("dTLB-stores", Dtlb, Write, Access), cache("dTLB-store-misses", Dtlb, Write, Miss)],
    // No processor counts stores through it; perf has a name for that all the same (`iTLB-store-misses`).
    &[cache("iTLB-loads", Itlb, Read, Access), cache("iTLB-load-misses", Itlb, Read, Miss)],
    &[cache("LLC-loads", LastLevel, Read, Access), cache("LLC-load-misses", LastLevel, Read, Miss)],
    &[cache("LLC-stores", LastLevel, Write, Access), cache("LLC-store-misses", LastLevel, Write, Miss)],
    // What the maker calls references and misses of its caches: on Intel those of the last level, on AMD of
    // the second (arch/x86/events/).
    &[
        event("cache-references", What::Hardware(2), Better::Neither),
        event("cache-misses", What::Hardware(3), Better::Lower),
    ],
    &[cache("L1-icache-loads", L1i, Read, Access), cache("L1-icache-load-misses", L1i, Read, Miss)],
];

/// Software events: the kernel counts them itself, so that they never share anything.
pub(super) const SOFTWARE: [Event; 8] = [
    event("task-clock", What::Software(1), Better::Lower),
    event("page-faults", What::Software(2), Better::Lower),
    event("context-switches", What::Software(3), Better::Neither),
    event("cpu-migrations", What::Software(4), Better::Neither),
    event("minor-faults", What::Software(5), Better::Lower),
    event("major-faults", What::Software(6), Better::Lower),
    event("alignment-faults", What::Software(7), Better::Lower),
    event("emulation-faults", What::Software(8), Better::Lower),
];
