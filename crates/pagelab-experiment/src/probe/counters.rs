//! Counters of perf: hardware, software and tracepoints, of a process and all that it starts.

use std::io;

use pagelab_formats::cpuinfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::Tracefs;
use pagelab_model::experiment::{Better, Flag};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Reading};
use pagelab_sys::perf_count::{Count, Counter, Start, What};
use rustix::io::Errno;

use super::events::{CYCLES, Event, HARDWARE, SOFTWARE};
use super::{Found, Wanted, raw};

const PERF: &str = "perf_event_open";

/// What is counted, and the counters once they are open.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Events that are to be on the hardware together.
    groups: Vec<Vec<Planned>>,
    /// What is known not to be counted.
    absent: Vec<(String, Absence)>,
    opened: Vec<Opened>,
    /// `kernel.perf_event_paranoid`, for messages.
    paranoid: Option<String>,
    in_vm: bool,
}

/// An event to be opened.
#[derive(Clone, Debug)]
struct Planned {
    name: String,
    what: What,
    better: Better,
    source: String,
}

/// An event that was opened, or why not.
#[derive(Debug)]
struct Opened {
    planned: Planned,
    counter: Reading<Counter>,
    user_only: bool,
}

impl Counters {
    pub(super) fn prepare(root: &Root, wanted: &Wanted) -> Counters {
        let reader = Reader::new(root);
        let mut counters =
            Counters { paranoid: reader.line(paths::PERF_EVENT_PARANOID).ok(), ..Counters::default() };
        if wanted.software {
            counters.groups.extend(SOFTWARE.iter().map(|event| vec![planned(event, "perf, software")]));
        }
        if wanted.hardware {
            counters.groups.extend(
                HARDWARE
                    .iter()
                    .map(|group| group.iter().map(|event| planned(event, "perf, hardware")).collect()),
            );
            counters.plan_walks(&reader);
        }
        if !wanted.tracepoints.is_empty() {
            counters.plan_tracepoints(&reader, &wanted.tracepoints);
        }
        counters
    }

    fn plan_walks(&mut self, reader: &Reader<'_>) {
        match reader.parse(paths::CPUINFO, cpuinfo::parse) {
            Ok(cpu) => {
                self.in_vm = cpu.flags.iter().any(|flag| flag == "hypervisor");
                let walks = raw::walks(&cpu);
                let source = format!("perf, hardware; {}", walks.source);
                self.groups.push(walks.events.iter().map(|event| planned(event, &source)).collect());
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
                tracefs.format(system, event)
            });
            match format {
                Ok(format) => self.groups.push(vec![Planned {
                    name: name.clone(),
                    what: What::Tracepoint(format.id),
                    better: Better::Neither,
                    source: "perf, tracepoint".to_owned(),
                }]),
                Err(absence) => self.absent.push((name.clone(), absence)),
            }
        }
    }

    /// Opens all of them: for a process that waits at its gate, and whose exec they wait for, or for this
    /// thread, where 0 stands for it.
    pub(super) fn open(&mut self, pid: i32, start: Start) {
        let mut no_hardware = None;
        for group in std::mem::take(&mut self.groups) {
            // The place of the leader among those that are open.
            let mut leader: Option<usize> = None;
            for planned in group {
                if let Some(absence) = no_hardware.as_ref().filter(|_| is_hardware(planned.what)) {
                    let counter = Err(Absence::clone(absence));
                    self.opened.push(Opened { planned, counter, user_only: false });
                    continue;
                }
                let of_leader = leader.and_then(|at| self.opened[at].counter.as_ref().ok());
                let (counter, user_only) = open(planned.what, pid, start, of_leader);
                let counter = counter.map_err(|error| self.refused(planned.what, &error));
                if planned.what == CYCLES.what {
                    no_hardware = counter.as_ref().err().cloned();
                }
                if counter.is_ok() && leader.is_none() {
                    leader = Some(self.opened.len());
                }
                self.opened.push(Opened { planned, counter, user_only });
            }
        }
    }

    /// Why an event could not be opened.
    fn refused(&self, what: What, error: &io::Error) -> Absence {
        match Errno::from_io_error(error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) if what == CYCLES.what => match self.in_vm {
                true => Absence::new(
                    PERF,
                    AbsentWhy::NotThere,
                    "no PMU: the processor's counters are not passed to this VM",
                )
                .or("use a bare-metal machine, or a VM with a virtual PMU"),
                false => Absence::new(
                    PERF,
                    AbsentWhy::NotThere,
                    "no PMU: this kernel drives no counters of this processor",
                ),
            },
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL) => {
                Absence::new(PERF, AbsentWhy::NotThere, "this processor, or its driver, has no such event")
            }
            Some(Errno::ACCESS | Errno::PERM) => {
                let level = self.paranoid.as_deref().unwrap_or("unknown");
                let detail = format!("not permitted (kernel.perf_event_paranoid is {level})");
                Absence::new(PERF, AbsentWhy::NotPermitted, detail)
                    .or("run as root, or sysctl kernel.perf_event_paranoid=2")
            }
            Some(Errno::NOSYS) => {
                Absence::new(PERF, AbsentWhy::NotThere, "this kernel is built without CONFIG_PERF_EVENTS")
                    .or("boot a kernel built with CONFIG_PERF_EVENTS=y")
            }
            _ => Absence::new(PERF, AbsentWhy::Failed, error.to_string()),
        }
    }

    /// What they counted, under names that begin so.
    pub(super) fn measures(self, prefix: &str, found: &mut Found) {
        let mut shared = Vec::new();
        for opened in &self.opened {
            let Planned { name, what, better, source } = &opened.planned;
            let counter = opened.counter.as_ref().map_err(Clone::clone);
            let count = counter.and_then(|counter| {
                counter.read().map_err(|error| Absence::new(PERF, AbsentWhy::Failed, error.to_string()))
            });
            let value = count.and_then(|count| scaled(count, name, &mut shared));
            let unit = if *what == TASK_CLOCK { Unit::NANOSECONDS } else { Unit::COUNT };
            let source = if opened.user_only { format!("{source}, user space only") } else { source.clone() };
            found.put(format!("{prefix}{name}"), unit, *better, value, &source);
        }
        for (name, absence) in self.absent {
            let source = absence.source.clone();
            found.put(format!("{prefix}{name}"), Unit::COUNT, Better::Lower, Err(absence), &source);
        }
        if let Some(flag) = multiplexed(&shared) {
            found.flags.push(flag);
        }
    }
}

/// PERF_COUNT_SW_TASK_CLOCK counts nanoseconds.
const TASK_CLOCK: What = What::Software(1);

fn is_hardware(what: What) -> bool {
    matches!(what, What::Hardware(_) | What::Cache(..) | What::Raw { .. })
}

fn planned(event: &Event, source: &str) -> Planned {
    Planned { name: event.name.to_owned(), what: event.what, better: event.better, source: source.to_owned() }
}

/// Opens with the kernel's part, or without where only that is permitted.
fn open(what: What, pid: i32, start: Start, leader: Option<&Counter>) -> (io::Result<Counter>, bool) {
    match Counter::open(what, pid, start, leader, false) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::ACCESS | Errno::PERM)) => {
            (Counter::open(what, pid, start, leader, true), true)
        }
        counter => (counter, false),
    }
}

/// The count, scaled up by the time that it was not on the hardware. What was scaled is added to `shared`,
/// with its share of the time in percent.
fn scaled(count: Count, name: &str, shared: &mut Vec<(String, f64)>) -> Reading<f64> {
    let Count { times, enabled_ns, running_ns } = count;
    if enabled_ns == 0 {
        let detail = "it never counted: the program, or its measured phase, was not run";
        return Err(Absence::new(PERF, AbsentWhy::Undefined, detail));
    }
    if running_ns == 0 {
        let detail = "it never came to the hardware, which was taken by other counters";
        return Err(Absence::new(PERF, AbsentWhy::Failed, detail).or("ask for fewer counters"));
    }
    if running_ns >= enabled_ns {
        return Ok(times as f64);
    }
    let share = running_ns as f64 / enabled_ns as f64;
    shared.push((name.to_owned(), 100.0 * share));
    Ok(times as f64 / share)
}

fn multiplexed(shared: &[(String, f64)]) -> Option<Flag> {
    let (name, least) = shared.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let text = format!(
        "{} counters took turns on the hardware and are scaled up; {name} counted {least:.0} % of the time",
        shared.len()
    );
    Some(Flag { kind: Flag::MULTIPLEXED.to_owned(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_scaled_by_their_share_of_the_time() {
        let mut shared = Vec::new();
        let count = |times, enabled_ns, running_ns| Count { times, enabled_ns, running_ns };
        assert_eq!(scaled(count(7, 10, 10), "a", &mut shared), Ok(7.0));
        assert_eq!(multiplexed(&shared), None);
        assert_eq!(scaled(count(100, 1000, 250), "b", &mut shared), Ok(400.0));
        assert_eq!(scaled(count(100, 1000, 500), "c", &mut shared), Ok(200.0));
        let flag = multiplexed(&shared).unwrap();
        assert_eq!(flag.kind, Flag::MULTIPLEXED);
        let text = "2 counters took turns on the hardware and are scaled up; b counted 25 % of the time";
        assert_eq!(flag.text, text);
        assert_eq!(scaled(count(0, 1000, 0), "d", &mut shared).unwrap_err().why, AbsentWhy::Failed);
        assert_eq!(scaled(count(0, 0, 0), "e", &mut shared).unwrap_err().why, AbsentWhy::Undefined);
    }

    #[test]
    fn a_refusal_says_what_stood_in_the_way() {
        let counters = |in_vm| Counters { in_vm, paranoid: Some("4".to_owned()), ..Counters::default() };
        let dtlb = HARDWARE[4][0].what;
        let cases = [
            (true, CYCLES.what, Errno::NOENT, "no PMU: the processor's counters are not passed to this VM"),
            (
                false,
                CYCLES.what,
                Errno::OPNOTSUPP,
                "no PMU: this kernel drives no counters of this processor",
            ),
            (true, dtlb, Errno::NOENT, "this processor, or its driver, has no such event"),
            (true, dtlb, Errno::ACCESS, "not permitted (kernel.perf_event_paranoid is 4)"),
            (true, dtlb, Errno::NOSYS, "this kernel is built without CONFIG_PERF_EVENTS"),
        ];
        for (in_vm, what, error, reason) in cases {
            assert_eq!(counters(in_vm).refused(what, &error.into()).reason(), reason);
        }
    }
}
