//! perf counters: hardware, software and tracepoints, of a process and its descendants.

use std::io;

use CacheOperation::{Prefetch, Read, Write};
use CacheResult::{Access, Miss};
use HardwareCache::{Dtlb, Itlb, L1d, L1i, LastLevel};
use pagelab_formats::cpuinfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::Tracefs;
use pagelab_model::experiment::{BetterDirection, Flag};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Reading};
use pagelab_sys::perf_event::{
    CacheOperation, CacheResult, CounterEvent, CounterReading, CounterStart, HardwareCache, PerfCounter,
};
use rustix::io::Errno;

use super::{ProbeReadings, ProbeSelection, page_walk_events};

const PERF: &str = "perf_event_open";

/// Planned events, and their counters once they are open.
#[derive(Debug, Default)]
pub(super) struct PerfCounters {
    /// Events that must be on the hardware together.
    groups: Vec<Vec<PlannedEvent>>,
    absent: Vec<(String, Absence)>,
    events: Vec<OpenedEvent>,
    /// `kernel.perf_event_paranoid`, for messages.
    paranoid: Option<String>,
    is_vm: bool,
}

#[derive(Clone, Debug)]
struct PlannedEvent {
    name: String,
    event_type: CounterEvent,
    better: BetterDirection,
    source: String,
}

/// Opened event, or the reason why not.
#[derive(Debug)]
struct OpenedEvent {
    planned: PlannedEvent,
    counter: Reading<PerfCounter>,
    user_only: bool,
}

impl PerfCounters {
    pub(super) fn prepare(root: &Root, selection: &ProbeSelection) -> PerfCounters {
        let reader = Reader::new(root);
        let mut counters = PerfCounters {
            paranoid: reader.read_line(paths::PERF_EVENT_PARANOID).ok(),
            ..PerfCounters::default()
        };
        if selection.software {
            counters.groups.extend(SOFTWARE.iter().map(|event| vec![plan_event(event, "perf, software")]));
        }
        if selection.hardware {
            let plan_group = |group: &&[PerfEventSpec]| -> Vec<PlannedEvent> {
                group.iter().map(|event| plan_event(event, "perf, hardware")).collect()
            };
            counters.groups.extend(HARDWARE.iter().map(plan_group));
            counters.plan_page_walks(&reader);
        }
        if !selection.tracepoints.is_empty() {
            counters.plan_tracepoints(&reader, &selection.tracepoints);
        }
        counters
    }

    fn plan_page_walks(&mut self, reader: &Reader<'_>) {
        match reader.parse(paths::CPUINFO, cpuinfo::parse) {
            Ok(cpu) => {
                self.is_vm = cpu.flags.iter().any(|flag| flag == "hypervisor");
                let walks = page_walk_events::page_walk_events(&cpu);
                let source = format!("perf, hardware; {}", walks.source);
                self.groups.push(walks.events.iter().map(|event| plan_event(event, &source)).collect());
                self.absent
                    .extend(walks.absent.into_iter().map(|(name, absence)| (name.to_owned(), absence)));
            }
            Err(absence) => self.absent.push(("walk-cycles.load".to_owned(), absence)),
        }
    }

    fn plan_tracepoints(&mut self, reader: &Reader<'_>, names: &[String]) {
        let tracefs = Tracefs::find(reader);
        for name in names {
            let format = tracefs.as_ref().map_err(Clone::clone).and_then(|tracefs| {
                let (system, event) = name.split_once(':').unwrap_or((name, ""));
                tracefs.read_format(system, event)
            });
            match format {
                Ok(format) => self.groups.push(vec![PlannedEvent {
                    name: name.clone(),
                    event_type: CounterEvent::Tracepoint(format.id),
                    better: BetterDirection::Neither,
                    source: "perf, tracepoint".to_owned(),
                }]),
                Err(absence) => self.absent.push((name.clone(), absence)),
            }
        }
    }

    /// Opens all events: for a process that waits at its gate, enabled at its exec, or for this thread (0).
    pub(super) fn open(&mut self, pid: i32, start: CounterStart) {
        let mut no_hardware = None;
        for group in std::mem::take(&mut self.groups) {
            // Index of the leader among the open events.
            let mut leader: Option<usize> = None;
            for planned in group {
                if let Some(absence) = no_hardware.as_ref().filter(|_| is_hardware(planned.event_type)) {
                    let counter = Err(Absence::clone(absence));
                    self.events.push(OpenedEvent { planned, counter, user_only: false });
                    continue;
                }
                let of_leader = leader.and_then(|at| self.events[at].counter.as_ref().ok());
                let (counter, user_only) = open_event(planned.event_type, pid, start, of_leader);
                let counter = counter.map_err(|error| self.open_absence(planned.event_type, &error));
                if planned.event_type == CYCLES.event_type {
                    no_hardware = counter.as_ref().err().cloned();
                }
                if counter.is_ok() && leader.is_none() {
                    leader = Some(self.events.len());
                }
                self.events.push(OpenedEvent { planned, counter, user_only });
            }
        }
    }

    /// Reason why an event could not be opened.
    fn open_absence(&self, event_type: CounterEvent, error: &io::Error) -> Absence {
        let not_there = |detail: &str| Absence::new(PERF, AbsenceReason::NotThere, detail);
        match Errno::from_io_error(error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) if event_type == CYCLES.event_type => {
                match self.is_vm {
                    true => not_there("no PMU: hardware counters are not available in this VM")
                        .with_hint("use a bare-metal machine, or a VM with a virtual PMU"),
                    false => not_there("no PMU: this kernel does not support the counters of this processor"),
                }
            }
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => {
                not_there("this processor or its PMU driver does not support this event")
            }
            Some(Errno::ACCESS | Errno::PERM) => {
                let paranoid_level = self.paranoid.as_deref().unwrap_or("unknown");
                let detail = format!("not permitted (kernel.perf_event_paranoid is {paranoid_level})");
                Absence::new(PERF, AbsenceReason::NotPermitted, detail)
                    .with_hint("run as root, or sysctl kernel.perf_event_paranoid=2")
            }
            Some(Errno::NOSYS) => not_there("this kernel is built without CONFIG_PERF_EVENTS")
                .with_hint("boot a kernel built with CONFIG_PERF_EVENTS=y"),
            _ => Absence::new(PERF, AbsenceReason::Failed, error.to_string()),
        }
    }

    /// Adds the counts, with this prefix of their names.
    pub(super) fn add_measures(self, prefix: &str, readings: &mut ProbeReadings) {
        let mut multiplexed_events = Vec::new();
        for opened in &self.events {
            let PlannedEvent { name, event_type: what, better, source } = &opened.planned;
            let counter = opened.counter.as_ref().map_err(Clone::clone);
            let count = counter.and_then(|counter| {
                counter.read().map_err(|error| Absence::new(PERF, AbsenceReason::Failed, error.to_string()))
            });
            let value = count.and_then(|count| scale_count(count, name, &mut multiplexed_events));
            let unit = if *what == TASK_CLOCK { Unit::NANOSECONDS } else { Unit::COUNT };
            let source = if opened.user_only { format!("{source}, user space only") } else { source.clone() };
            readings.push(format!("{prefix}{name}"), unit, *better, value, &source);
        }
        for (name, absence) in self.absent {
            let source = absence.source.clone();
            readings.push_count(&format!("{prefix}{name}"), BetterDirection::Lower, Err(absence), &source);
        }
        readings.flags.extend(multiplexed_flag(&multiplexed_events));
    }
}

/// PERF_COUNT_SW_TASK_CLOCK counts nanoseconds.
const TASK_CLOCK: CounterEvent = CounterEvent::Software(1);

fn is_hardware(event_type: CounterEvent) -> bool {
    matches!(event_type, CounterEvent::Hardware(_) | CounterEvent::Cache(..) | CounterEvent::Raw { .. })
}

fn plan_event(event: &PerfEventSpec, source: &str) -> PlannedEvent {
    PlannedEvent {
        name: event.name.to_owned(),
        event_type: event.event_type,
        better: event.better,
        source: source.to_owned(),
    }
}

/// Opens with the kernel's part, or without it if only that is permitted.
fn open_event(
    event_type: CounterEvent,
    pid: i32,
    start: CounterStart,
    leader: Option<&PerfCounter>,
) -> (io::Result<PerfCounter>, bool) {
    match PerfCounter::open(event_type, pid, start, leader, false) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::ACCESS | Errno::PERM)) => {
            (PerfCounter::open(event_type, pid, start, leader, true), true)
        }
        counter => (counter, false),
    }
}

/// The count, scaled up by the time that it was not on the hardware. Scaled events are added to
/// `multiplexed_events`, with their share of the time in percent.
fn scale_count(
    count: CounterReading,
    name: &str,
    multiplexed_events: &mut Vec<(String, f64)>,
) -> Reading<f64> {
    let CounterReading { count: times, enabled_ns, running_ns } = count;
    if enabled_ns == 0 {
        let detail = "not counted: the program, or its measured phase, did not run";
        return Err(Absence::new(PERF, AbsenceReason::Undefined, detail));
    }
    if running_ns == 0 {
        let detail = "never scheduled on the PMU: other events used all counters";
        return Err(Absence::new(PERF, AbsenceReason::Failed, detail).with_hint("use fewer counters"));
    }
    if running_ns >= enabled_ns {
        return Ok(times as f64);
    }
    let share = running_ns as f64 / enabled_ns as f64;
    multiplexed_events.push((name.to_owned(), 100.0 * share));
    Ok(times as f64 / share)
}

fn multiplexed_flag(multiplexed_events: &[(String, f64)]) -> Option<Flag> {
    let (name, smallest_share) = multiplexed_events.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let text = format!(
        "{} counters were multiplexed, so their counts are scaled; {name} ran {smallest_share:.0} % of the \
        time",
        multiplexed_events.len()
    );
    Some(Flag { kind: Flag::MULTIPLEXED.to_owned(), text })
}

// Groups are small: a processor has four to eight counters, a watchdog may hold one, and a group that does
// not fit completely is never counted.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PerfEventSpec {
    /// Its name in `perf`, if it has one.
    pub name: &'static str,
    pub event_type: CounterEvent,
    pub better: BetterDirection,
}

const fn event(name: &'static str, event_type: CounterEvent, better: BetterDirection) -> PerfEventSpec {
    PerfEventSpec { name, event_type, better }
}

const fn cache(
    name: &'static str,
    cache: HardwareCache,
    operation: CacheOperation,
    outcome: CacheResult,
) -> PerfEventSpec {
    let better = match outcome {
        Access => BetterDirection::Neither,
        Miss => BetterDirection::Lower,
    };
    PerfEventSpec { name, event_type: CounterEvent::Cache(cache, operation, outcome), better }
}

/// The first event shows whether there are hardware counters.
pub(super) const CYCLES: PerfEventSpec = event("cycles", CounterEvent::Hardware(0), BetterDirection::Lower);

/// Hardware events, accesses and misses of one cache together.
pub(super) const HARDWARE: [&[PerfEventSpec]; 11] = [
    &[CYCLES, event("instructions", CounterEvent::Hardware(1), BetterDirection::Neither)],
    &[cache("L1-dcache-loads", L1d, Read, Access), cache("L1-dcache-load-misses", L1d, Read, Miss)],
    &[cache("L1-dcache-stores", L1d, Write, Access), cache("L1-dcache-store-misses", L1d, Write, Miss)],
    &[
        cache("L1-dcache-prefetches", L1d, Prefetch, Access),
        cache("L1-dcache-prefetch-misses", L1d, Prefetch, Miss),
    ],
    &[cache("dTLB-loads", Dtlb, Read, Access), cache("dTLB-load-misses", Dtlb, Read, Miss)],
    &[cache("dTLB-stores", Dtlb, Write, Access), cache("dTLB-store-misses", Dtlb, Write, Miss)],
    // No processor counts stores through it; perf has a name for it all the same (`iTLB-store-misses`).
    &[cache("iTLB-loads", Itlb, Read, Access), cache("iTLB-load-misses", Itlb, Read, Miss)],
    &[cache("LLC-loads", LastLevel, Read, Access), cache("LLC-load-misses", LastLevel, Read, Miss)],
    &[cache("LLC-stores", LastLevel, Write, Access), cache("LLC-store-misses", LastLevel, Write, Miss)],
    // References and misses of caches, as the vendor defines them: on Intel those of the last level, on AMD
    // of the second (arch/x86/events/).
    &[
        event("cache-references", CounterEvent::Hardware(2), BetterDirection::Neither),
        event("cache-misses", CounterEvent::Hardware(3), BetterDirection::Lower),
    ],
    &[cache("L1-icache-loads", L1i, Read, Access), cache("L1-icache-load-misses", L1i, Read, Miss)],
];

/// Software events: the kernel counts them itself, so that they are never multiplexed.
pub(super) const SOFTWARE: [PerfEventSpec; 8] = [
    event("task-clock", CounterEvent::Software(1), BetterDirection::Lower),
    event("page-faults", CounterEvent::Software(2), BetterDirection::Lower),
    event("context-switches", CounterEvent::Software(3), BetterDirection::Neither),
    event("cpu-migrations", CounterEvent::Software(4), BetterDirection::Neither),
    event("minor-faults", CounterEvent::Software(5), BetterDirection::Lower),
    event("major-faults", CounterEvent::Software(6), BetterDirection::Lower),
    event("alignment-faults", CounterEvent::Software(7), BetterDirection::Lower),
    event("emulation-faults", CounterEvent::Software(8), BetterDirection::Lower),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_scaled_by_their_share_of_the_time() {
        let mut shared = Vec::new();
        let count = |times, enabled_ns, running_ns| CounterReading { count: times, enabled_ns, running_ns };
        assert_eq!(scale_count(count(7, 10, 10), "a", &mut shared), Ok(7.0));
        assert_eq!(multiplexed_flag(&shared), None);
        assert_eq!(scale_count(count(100, 1000, 250), "b", &mut shared), Ok(400.0));
        assert_eq!(scale_count(count(100, 1000, 500), "c", &mut shared), Ok(200.0));
        let flag = multiplexed_flag(&shared).unwrap();
        assert_eq!(flag.kind, Flag::MULTIPLEXED);
        let text = "2 counters were multiplexed, so their counts are scaled; b ran 25 % of the time";
        assert_eq!(flag.text, text);
        assert_eq!(scale_count(count(0, 1000, 0), "d", &mut shared).unwrap_err().why, AbsenceReason::Failed);
        assert_eq!(scale_count(count(0, 0, 0), "e", &mut shared).unwrap_err().why, AbsenceReason::Undefined);
    }

    #[test]
    fn a_refusal_says_what_stood_in_the_way() {
        let counters =
            |in_vm| PerfCounters { is_vm: in_vm, paranoid: Some("4".to_owned()), ..PerfCounters::default() };
        let dtlb = HARDWARE[4][0].event_type;
        let cases = [
            (true, CYCLES.event_type, Errno::NOENT, "no PMU: hardware counters are not available in this VM"),
            (
                false,
                CYCLES.event_type,
                Errno::OPNOTSUPP,
                "no PMU: this kernel does not support the counters of this processor",
            ),
            (true, dtlb, Errno::NOENT, "this processor or its PMU driver does not support this event"),
            (true, dtlb, Errno::ACCESS, "not permitted (kernel.perf_event_paranoid is 4)"),
            (true, dtlb, Errno::NOSYS, "this kernel is built without CONFIG_PERF_EVENTS"),
        ];
        for (in_vm, what, error, reason) in cases {
            assert_eq!(counters(in_vm).open_absence(what, &error.into()).reason(), reason);
        }
    }
}
