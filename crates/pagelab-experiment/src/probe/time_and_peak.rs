//! Time, CPU time and peak memory of the process tree, with all sixteen fields of rusage.

use pagelab_model::experiment::{BetterDirection, measures};
use pagelab_model::{Absence, AbsenceReason, Reading};

use super::cgroup_counters::CgroupBaseline;
use super::process_tree::ProcessTree;
use super::{ProbeReadings, Rusage, TargetExit};
use crate::cgroup::{CgroupCpuTime, TrialCgroup};

/// Source and scope of rusage.
const RUSAGE_SOURCE: &str = "rusage of wait4: the first process and its waited-for children";

pub(super) fn add_measures(
    cgroup: Option<&TrialCgroup>,
    baseline: &CgroupBaseline,
    processes: &ProcessTree,
    exit: &TargetExit,
    readings: &mut ProbeReadings,
) {
    let clock_source = "CLOCK_MONOTONIC, from start to end";
    readings.push_ns(measures::WALL, BetterDirection::Lower, Ok(exit.wall_ns), clock_source);
    let cpu_used = cgroup.and_then(|group| {
        let cpu = group.read_cpu_time().ok()?.since(baseline.cpu.unwrap_or_default());
        Some((cpu, group.cpu_time_source()))
    });
    let waited_for = CgroupCpuTime { user_ns: exit.rusage.utime_ns, system_ns: exit.rusage.stime_ns };
    let (cpu, source) = cpu_used.unwrap_or((waited_for, RUSAGE_SOURCE));
    readings.push_ns(measures::CPU_USER, BetterDirection::Lower, Ok(cpu.user_ns), source);
    readings.push_ns(measures::CPU_SYSTEM, BetterDirection::Lower, Ok(cpu.system_ns), source);
    readings.push_ns(measures::CPU, BetterDirection::Lower, Ok(cpu.total_ns()), source);
    let (peak, source) = memory_peak(cgroup, processes);
    readings.push_bytes(measures::PEAK_MEMORY, BetterDirection::Lower, peak, &source);
    add_rusage(exit, readings);
}

/// The peak that the kernel keeps; otherwise the highest reading.
fn memory_peak(group: Option<&TrialCgroup>, processes: &ProcessTree) -> (Reading<u64>, String) {
    let Some(group) = group else {
        let detail = "the trial had no cgroup; rusage.maxrss covers only the largest process";
        let absence =
            Absence::new("control groups", AbsenceReason::NotThere, detail).with_hint("run as root");
        return (Err(absence), "its cgroup".to_owned());
    };
    match group.read_memory_peak() {
        Err(absence) if absence.why == AbsenceReason::NotThere && group.read_memory_usage().is_ok() => {
            (processes.sampled_peak(), "memory.current of its cgroup, the highest reading".to_owned())
        }
        peak => (peak.map(|bytes| bytes.0), group.memory_peak_source().to_owned()),
    }
}

fn add_rusage(exit: &TargetExit, readings: &mut ProbeReadings) {
    let Rusage { utime_ns, stime_ns, minflt, majflt, inblock, oublock, nvcsw, nivcsw, .. } = exit.rusage;
    readings.push_ns("rusage.utime", BetterDirection::Lower, Ok(utime_ns), RUSAGE_SOURCE);
    readings.push_ns("rusage.stime", BetterDirection::Lower, Ok(stime_ns), RUSAGE_SOURCE);
    let largest = "rusage of wait4: the largest of these processes, at least the RSS of pagelab itself";
    let maxrss_bytes = exit.rusage.maxrss_kib.saturating_mul(1024);
    readings.push_bytes("rusage.maxrss", BetterDirection::Lower, Ok(maxrss_bytes), largest);
    ["ixrss", "idrss", "isrss"].iter().for_each(|name| push_never_filled(name, readings));
    readings.push_count("rusage.minflt", BetterDirection::Lower, Ok(minflt), RUSAGE_SOURCE);
    readings.push_count("rusage.majflt", BetterDirection::Lower, Ok(majflt), RUSAGE_SOURCE);
    push_never_filled("nswap", readings);
    readings.push_count("rusage.inblock", BetterDirection::Lower, Ok(inblock), RUSAGE_SOURCE);
    readings.push_count("rusage.oublock", BetterDirection::Lower, Ok(oublock), RUSAGE_SOURCE);
    ["msgsnd", "msgrcv", "nsignals"].iter().for_each(|name| push_never_filled(name, readings));
    readings.push_count("rusage.nvcsw", BetterDirection::Neither, Ok(nvcsw), RUSAGE_SOURCE);
    readings.push_count("rusage.nivcsw", BetterDirection::Neither, Ok(nivcsw), RUSAGE_SOURCE);
}

fn push_never_filled(name: &str, readings: &mut ProbeReadings) {
    let absence = Absence::new("wait4", AbsenceReason::NotThere, "Linux does not maintain this rusage field");
    let name = format!("rusage.{name}");
    readings.push_count(&name, BetterDirection::Neither, Err(absence), RUSAGE_SOURCE);
}
