//! Time, CPU time and peak memory of the whole tree, with all sixteen fields of rusage beside them.

use pagelab_model::experiment::{Better, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Reading};

use super::group::Before;
use super::tree::Tree;
use super::{Ended, Found};
use crate::group::{Cpu, Group};

/// Where rusage is from, and whose it is.
const RUSAGE: &str = "rusage of wait4: the first process and those that were waited for";

pub(super) fn measures(
    group: Option<&Group>,
    before: &Before,
    tree: &Tree,
    ended: &Ended,
    found: &mut Found,
) {
    found.ns(measures::WALL, Better::Lower, Ok(ended.wall_ns), "CLOCK_MONOTONIC, from start to end");
    let used = group.and_then(|group| {
        let cpu = group.cpu().ok()?.since(before.cpu.unwrap_or_default());
        Some((cpu, group.cpu_source()))
    });
    let waited_for = Cpu { user_ns: ended.rusage.utime_ns, system_ns: ended.rusage.stime_ns };
    let (cpu, source) = used.unwrap_or((waited_for, RUSAGE));
    found.ns(measures::CPU_USER, Better::Lower, Ok(cpu.user_ns), source);
    found.ns(measures::CPU_SYSTEM, Better::Lower, Ok(cpu.system_ns), source);
    found.ns(measures::CPU, Better::Lower, Ok(cpu.total_ns()), source);
    let (peak, source) = peak(group, tree);
    found.bytes(measures::PEAK, Better::Lower, peak, &source);
    rusage(ended, found);
}

/// The peak that the kernel keeps; where it keeps none, the highest of the looks.
fn peak(group: Option<&Group>, tree: &Tree) -> (Reading<u64>, String) {
    let Some(group) = group else {
        let detail = "the trial had no control group of its own; rusage.maxrss is the largest process's";
        let absence = Absence::new("control groups", AbsentWhy::NotThere, detail).or("run as root");
        return (Err(absence), "its cgroup".to_owned());
    };
    match group.peak() {
        Err(absence) if absence.why == AbsentWhy::NotThere && group.usage().is_ok() => {
            (tree.sampled_usage(), "memory.current of its cgroup, the highest of the looks".to_owned())
        }
        peak => (peak.map(|bytes| bytes.0), group.peak_source().to_owned()),
    }
}

fn rusage(ended: &Ended, found: &mut Found) {
    let of = &ended.rusage;
    found.ns("rusage.utime", Better::Lower, Ok(of.utime_ns), RUSAGE);
    found.ns("rusage.stime", Better::Lower, Ok(of.stime_ns), RUSAGE);
    let largest =
        "rusage of wait4: the largest of these processes, and not less than what pagelab itself had";
    found.bytes("rusage.maxrss", Better::Lower, Ok(of.maxrss_kib.saturating_mul(1024)), largest);
    let never = ["ixrss", "idrss", "isrss"];
    never.iter().for_each(|name| never_filled(name, found));
    found.count("rusage.minflt", Better::Lower, Ok(of.minflt), RUSAGE);
    found.count("rusage.majflt", Better::Lower, Ok(of.majflt), RUSAGE);
    never_filled("nswap", found);
    found.count("rusage.inblock", Better::Lower, Ok(of.inblock), RUSAGE);
    found.count("rusage.oublock", Better::Lower, Ok(of.oublock), RUSAGE);
    let never = ["msgsnd", "msgrcv", "nsignals"];
    never.iter().for_each(|name| never_filled(name, found));
    found.count("rusage.nvcsw", Better::Neither, Ok(of.nvcsw), RUSAGE);
    found.count("rusage.nivcsw", Better::Neither, Ok(of.nivcsw), RUSAGE);
}

fn never_filled(name: &str, found: &mut Found) {
    let absence = Absence::new("wait4", AbsentWhy::NotThere, "Linux never fills this field of rusage");
    found.put(format!("rusage.{name}"), Unit::COUNT, Better::Neither, Err(absence), RUSAGE);
}
