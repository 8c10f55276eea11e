//! Counters of the trial's control group: faults, refaults, pressure, and the events of its limit.

use pagelab_model::experiment::BetterDirection;
use pagelab_model::pressure::Pressure;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Counters, Reading};

use super::{ProbeReadings, ProbeTarget};
use crate::cgroup::{CgroupCpuTime, TrialCgroup};

/// Resources for which a group of version 2 reports pressure.
const RESOURCES: [&str; 3] = ["memory", "io", "cpu"];

/// Lines of memory.stat that count events. Version 1 has the sums over child groups as `total_…`, and its
/// refaults since 5.9.
const MEMORY_STAT_EVENTS: [&str; 4] =
    ["pgfault", "pgmajfault", "workingset_refault_anon", "workingset_refault_file"];

/// Values of the group when the trial began: the gate itself has used a little.
#[derive(Debug, Default)]
pub(super) struct CgroupBaseline {
    pub cpu: Option<CgroupCpuTime>,
    memory_stat: Option<(Counters, bool)>,
    pressure: [Option<Pressure>; RESOURCES.len()],
}

impl CgroupBaseline {
    pub(super) fn read_baseline(group: Option<&TrialCgroup>) -> CgroupBaseline {
        let Some(group) = group else { return CgroupBaseline::default() };
        CgroupBaseline {
            cpu: group.read_cpu_time().ok(),
            memory_stat: group.read_memory_stat().ok(),
            pressure: RESOURCES.map(|resource| group.read_pressure(resource).ok()),
        }
    }

    pub(super) fn add_measures(&self, target: &ProbeTarget<'_>, readings: &mut ProbeReadings) {
        let Some(group) = target.cgroup else { return };
        let after = group.read_memory_stat();
        for name in MEMORY_STAT_EVENTS {
            let value = after.as_ref().map_err(Clone::clone).and_then(|after| self.event_delta(name, after));
            let name = format!("group.{name}");
            readings.push_count(&name, BetterDirection::Lower, value, "memory.stat of its cgroup");
        }
        let events = group.read_limit_events();
        let kills = events.clone().and_then(|events| {
            let kills_absence = || {
                Absence::new("memory.oom_control", AbsenceReason::NotThere, "no oom_kill line")
                    .with_hint("use Linux 4.13 or later")
            };
            events.kills.ok_or_else(kills_absence)
        });
        let source = "memory.oom_control or memory.events of its cgroup";
        readings.push_count("group.oom_kill", BetterDirection::Lower, kills, source);
        // The kernel counts a hit in the group that has the limit, not in its child groups.
        let (hits, limit_owner) = match target.limited_cgroup {
            Some(limited) => (limited.read_limit_events(), "the cgroup whose limit it shares"),
            None => (events, "its cgroup"),
        };
        let source = format!("memory.failcnt or memory.events of {limit_owner}");
        let hits = hits.map(|events| events.hits);
        readings.push_count("group.limit_hits", BetterDirection::Lower, hits, &source);
        for (resource, before) in RESOURCES.iter().zip(&self.pressure) {
            let (name, after) = (format!("pressure.group.{resource}"), group.read_pressure(resource));
            push_pressure(&name, before.as_ref(), after.as_ref(), "of its cgroup", readings);
        }
    }

    fn event_delta(&self, name: &str, (after, is_v2): &(Counters, bool)) -> Reading<u64> {
        let line = if *is_v2 { name.to_owned() } else { format!("total_{name}") };
        let missing =
            || Absence::new("memory.stat", AbsenceReason::NotThere, format!("no {line} line in this kernel"));
        let before = self.memory_stat.as_ref().and_then(|(before, _)| before.get(&line)).unwrap_or(0);
        after.get(&line).map(|after| after.saturating_sub(before)).ok_or_else(missing)
    }
}

/// The two differences of a pressure: `NAME.some` and `NAME.full`.
pub(super) fn push_pressure(
    name: &str,
    before: Option<&Pressure>,
    after: Result<&Pressure, &Absence>,
    owner: &str,
    readings: &mut ProbeReadings,
) {
    let source = format!("PSI total {owner}");
    let mut push_delta = |line: &str, value: Reading<u64>| {
        let value = value.map(|us| us as f64);
        readings.push(format!("{name}.{line}"), Unit::MICROSECONDS, BetterDirection::Lower, value, &source);
    };
    let not_readable =
        || Absence::new(&source, AbsenceReason::Failed, "it was not readable at the start of the trial");
    let both = after.map_err(Clone::clone).and_then(|after| Ok((before.ok_or_else(not_readable)?, after)));
    let some = both.clone().map(|(before, after)| after.some.total_us.saturating_sub(before.some.total_us));
    push_delta("some", some);
    let full = both.and_then(|(before, after)| match (before.full, after.full) {
        (Some(before), Some(after)) => Ok(after.total_us.saturating_sub(before.total_us)),
        _ => Err(Absence::new(&source, AbsenceReason::NotThere, "this kernel has no `full` line for it")
            .with_hint("use Linux 5.13 or later")),
    });
    push_delta("full", full);
}
