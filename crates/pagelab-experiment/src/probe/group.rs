//! What the trial's own control group counted meanwhile: faults, refaults, pressure, and what its limit did.

use pagelab_model::experiment::Better;
use pagelab_model::pressure::Pressure;
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Counters, Reading};

use super::{Found, Target};
use crate::group::{Cpu, Group};

/// Resources of which a group of version 2 knows the pressure.
const RESOURCES: [&str; 3] = ["memory", "io", "cpu"];

/// Lines of memory.stat that count events. Version 1 has the sums over groups below as `total_…`, and its
/// refaults since 5.9.
const EVENTS: [&str; 4] = ["pgfault", "pgmajfault", "workingset_refault_anon", "workingset_refault_file"];

/// What the group said when the trial began: the gate itself has used a little.
#[derive(Debug, Default)]
pub(super) struct Before {
    pub cpu: Option<Cpu>,
    stat: Option<(Counters, bool)>,
    pressure: [Option<Pressure>; RESOURCES.len()],
}

impl Before {
    pub(super) fn of(group: Option<&Group>) -> Before {
        let Some(group) = group else { return Before::default() };
        Before {
            cpu: group.cpu().ok(),
            stat: group.memory_stat().ok(),
            pressure: RESOURCES.map(|resource| group.pressure(resource).ok()),
        }
    }

    pub(super) fn measures(&self, target: &Target<'_>, found: &mut Found) {
        let Some(group) = target.group else { return };
        let after = group.memory_stat();
        for name in EVENTS {
            let value = after.as_ref().map_err(Clone::clone).and_then(|after| self.event(name, after));
            found.count(format!("group.{name}"), Better::Lower, value, "memory.stat of its cgroup");
        }
        let events = group.limit_events();
        let kills = events.clone().and_then(|events| {
            let absent = || {
                Absence::new("memory.oom_control", AbsentWhy::NotThere, "no line oom_kill").or("Linux 4.13")
            };
            events.kills.ok_or_else(absent)
        });
        found.count(
            "group.oom_kill",
            Better::Lower,
            kills,
            "memory.oom_control or memory.events of its cgroup",
        );
        // The kernel counts a hit at the group whose limit it is, and not below it.
        let (hits, whose) = match target.limited {
            Some(limited) => (limited.limit_events(), "the cgroup whose limit it shares"),
            None => (events, "its cgroup"),
        };
        let source = format!("memory.failcnt or memory.events of {whose}");
        found.count("group.limit_hits", Better::Lower, hits.map(|events| events.hits), &source);
        for (resource, before) in RESOURCES.iter().zip(&self.pressure) {
            let after = group.pressure(resource);
            pressure(
                &format!("pressure.group.{resource}"),
                before.as_ref(),
                after.as_ref(),
                "of its cgroup",
                found,
            );
        }
    }

    fn event(&self, name: &str, (after, is_v2): &(Counters, bool)) -> Reading<u64> {
        let line = if *is_v2 { name.to_owned() } else { format!("total_{name}") };
        let missing =
            || Absence::new("memory.stat", AbsentWhy::NotThere, format!("no line {line} in this kernel"));
        let before = self.stat.as_ref().and_then(|(before, _)| before.get(&line)).unwrap_or(0);
        after.get(&line).map(|after| after.saturating_sub(before)).ok_or_else(missing)
    }
}

/// The two differences of a pressure: `NAME.some` and `NAME.full`.
pub(super) fn pressure(
    name: &str,
    before: Option<&Pressure>,
    after: Result<&Pressure, &Absence>,
    whose: &str,
    found: &mut Found,
) {
    let source = format!("total of the pressure {whose}");
    let mut put = |line: &str, value: Reading<u64>| {
        let value = value.map(|us| us as f64);
        found.put(format!("{name}.{line}"), Unit::MICROSECONDS, Better::Lower, value, &source);
    };
    let Some(before) = before else {
        let absence = after.err().cloned().unwrap_or_else(|| {
            Absence::new(&source, AbsentWhy::Failed, "it could not be read when the trial began")
        });
        put("some", Err(absence.clone()));
        return put("full", Err(absence));
    };
    put(
        "some",
        after.map_err(Clone::clone).map(|after| after.some.total_us.saturating_sub(before.some.total_us)),
    );
    let full = after.map_err(Clone::clone).and_then(|after| match (before.full, after.full) {
        (Some(before), Some(after)) => Ok(after.total_us.saturating_sub(before.total_us)),
        _ => Err(Absence::new(&source, AbsentWhy::NotThere, "this kernel has no line `full` for it")
            .or("Linux 5.13")),
    });
    put("full", full);
}
