//! One trial: one process tree under the settings of its variant, in a control group of its own, watched
//! from before its program begins until after it has ended.

mod cache;
mod fragmentation;
mod hog;
mod launch;
mod others;
pub(crate) mod output;
mod result;
mod settings;
mod supervised;
mod warming;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use pagelab_host::guard::Site;
use pagelab_model::experiment::{Flag, Measure, TrialEnd, measures};
use pagelab_model::machine::Machine;
use pagelab_model::{Bytes, Snapshot};

use crate::probe;
use crate::recipe::{Metric, Runs};
use crate::resolve::Resolved;
use crate::swap::Swap;
use launch::{Launched, Watched};
use settings::Settings;

pub use others::{Others, averages};

/// Less of the peak memory than this in huge pages, and what is measured is no effect of them.
const ASKED: probe::Asked = probe::Asked { share_min: 0.05 };

/// What all trials of an experiment share.
pub struct Bench<'a> {
    /// Where settings and journals are, or why they cannot be had.
    pub site: Result<Site, String>,
    /// The machine, its caches and TLBs.
    pub machine: &'a Machine,
    /// All memory.
    pub total: Bytes,
    /// Its swap file, where a variant wants one.
    pub swap: Swap,
    /// What is carried out.
    pub resolved: &'a Resolved,
    /// The signal that asked to stop, if one has.
    pub stop: &'a dyn Fn() -> Option<i32>,
    /// A look at the machine.
    pub look: &'a dyn Fn() -> Snapshot,
    /// For each workload why it cannot run, where that is known before: its trials are not begun.
    pub missing: &'a [Option<String>],
    /// The highest peak so far of each workload, bytes: as much is warmed before its next trial.
    pub peaks: RefCell<BTreeMap<usize, u64>>,
    /// What a model of the processor counts of a workload under a variant, where counters cannot be read.
    pub model: Option<&'a Model<'a>>,
}

/// Runs a workload (its place) under a variant (its place) in a model of the processor.
pub type Model<'a> = dyn Fn(usize, usize) -> Result<Vec<Measure>, String> + 'a;

/// The number that a program said in the way of a metric: that of the last line that is like it. An error is
/// what stands there instead.
pub fn number_in(metric: &Metric, text: &str) -> Option<Result<f64, String>> {
    text.lines().rev().find_map(|line| output::find(metric, line.trim_end()))
}

/// What a trial came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// How it ended.
    pub end: TrialEnd,
    /// What the probes and the workload itself said.
    pub measures: Vec<Measure>,
    /// What must be known before its numbers are believed.
    pub flags: Vec<Flag>,
    /// The last lines of its output, where it did not end well.
    pub last_output: String,
    /// Equal in all trials of the same command.
    pub checksum: Option<String>,
    /// What was done besides, that the run file should tell.
    pub notes: Vec<String>,
}

/// Why a trial was ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Stopped,
    TooLong,
}

/// How a trial ended, before it is judged.
#[derive(Debug)]
struct Over {
    status: ExitStatus,
    cut: Option<Cut>,
    ended: probe::Ended,
    /// Processes that outlived the first one.
    left_behind: u64,
    /// Processes that the kernel killed for want of memory.
    oom_kills: u64,
}

/// Carries out one trial.
pub fn run(bench: &Bench<'_>, workload: usize, variant: usize) -> Ran {
    let recipe = &bench.resolved.recipe;
    let (of, under) = (&recipe.workloads[workload], &recipe.variants[variant]);
    if let Some(Some(why)) = bench.missing.get(workload) {
        return Ran::without(TrialEnd::NotBegun(why.clone()), String::new());
    }
    let mut settings = match Settings::make(bench, of, under, recipe.seed) {
        Ok(settings) => settings,
        Err(why) if (bench.stop)().is_some() => return Ran::without(TrialEnd::Stopped, why),
        Err(why) => return Ran::without(TrialEnd::NotBegun(why), String::new()),
    };
    let mut ran = in_settings(bench, workload, variant, &mut settings);
    let undone = settings.finish();
    ran.measures.extend(undone.measures);
    ran.flags.extend(undone.flags);
    ran.notes.extend(undone.notes);
    // What a supervisor looked after was told by it.
    let asks = under.plan.is_none() && bench.resolved.asks_for_huge_pages(workload, variant);
    // A trial that did not end well has said enough.
    if asks && ran.end == TrialEnd::Done {
        ran.flags.extend(probe::huge_pages_missing(&ran.measures, ASKED));
    }
    ran
}

fn in_settings(bench: &Bench<'_>, workload: usize, variant: usize, settings: &mut Settings) -> Ran {
    let recipe = &bench.resolved.recipe;
    let of = &recipe.workloads[workload];
    let watching = probe::prepare(&recipe.probes, settings.group.as_ref());
    let launched = match Launched::at_gate(bench, workload, variant, settings) {
        Ok(launched) => launched,
        Err(why) if (bench.stop)().is_some() => return Ran::without(TrialEnd::Stopped, why),
        Err(why) => return Ran::without(TrialEnd::NotBegun(why), String::new()),
    };
    // While the child waits at its gate: nothing else comes between.
    let warming = warming::Warming::before(bench, workload, variant);
    let mut notes = Vec::new();
    let flags = launched.not_applied.iter().map(|text| flag(Flag::NOT_APPLIED, text.clone()));
    let mut flags: Vec<Flag> = flags.collect();
    let (before, hog_ns) = (Others::now(), settings.hog_cpu_ns());
    let limit = bench.resolved.time_limit(workload);
    let Watched { over, output, found, summary } = launched.run(watching, settings, limit, bench.stop);
    let after = Others::now();
    let own_ns = cpu_ns(&over.ended, &found.measures);
    let own_ns = own_ns.saturating_add(settings.hog_cpu_ns().saturating_sub(hog_ns));
    if let Some(share) = after.not_quiet_since(&before, own_ns) {
        let text = format!("other programs had {:.0} % of a CPU meanwhile", share * 100.0);
        flags.push(flag(Flag::NOT_QUIET, text));
    }
    if settings.hog.as_mut().is_some_and(|hog| !hog.is_alive()) {
        flags.push(flag(Flag::NOT_APPLIED, "the competitor did not live as long as the trial".to_owned()));
    }
    flags.extend(found.flags);
    let mut measures = found.measures;
    if let Some(warming) = warming {
        warming.tell(&mut measures, &mut flags);
    }
    let is_unsummed = matches!(summary, Some(Err(_)));
    let said = result::of(&of.runs, &output);
    if let (Some(summary), Some(plan)) = (&summary, &recipe.variants[variant].plan) {
        if over.ended.orphans == 0 {
            supervised::not_waited_for(&mut measures);
        }
        supervised::add(summary, plan, &mut measures, &mut flags);
    }
    let mut end = judge(&over, limit, &output, &of.runs, said.as_ref().err(), is_unsummed);
    let mut checksum = None;
    if let (TrialEnd::Done, Ok(said)) = (&end, said) {
        let is_new = |of: &Measure| !measures.iter().any(|known| known.name == of.name);
        let fresh: Vec<Measure> = said.measures.into_iter().filter(is_new).collect();
        measures.extend(fresh);
        flags.extend(said.flags);
        checksum = said.checksum;
    }
    if end == TrialEnd::Done && after.has_dropped_since(&before) {
        end = TrialEnd::Rejected("page cache was dropped from outside meanwhile".to_owned());
    }
    let last_output = if end == TrialEnd::Done { String::new() } else { output.last() };
    if over.left_behind > 0 && !matches!(end, TrialEnd::LeftBehind(_)) {
        notes.push(format!("{} processes that it left were ended", over.left_behind));
    }
    Ran { end, measures, flags, last_output, checksum, notes }
}

impl Ran {
    fn without(end: TrialEnd, last_output: String) -> Ran {
        Ran { end, measures: Vec::new(), flags: Vec::new(), last_output, checksum: None, notes: Vec::new() }
    }
}

/// CPU time of all of a trial's processes: its group counts those that nobody waited for, and a supervisor
/// waits for the program itself.
fn cpu_ns(ended: &probe::Ended, measures: &[Measure]) -> u64 {
    let waited_for = ended.rusage.utime_ns.saturating_add(ended.rusage.stime_ns);
    let cpu = measures.iter().find(|measure| measure.name == measures::CPU);
    let counted = cpu.and_then(|cpu| cpu.value.as_ref().ok().copied()).unwrap_or(0.0);
    waited_for.max(counted as u64)
}

fn flag(kind: &str, text: String) -> Flag {
    Flag { kind: kind.to_owned(), text }
}

/// What it means, the gravest first.
fn judge(
    over: &Over,
    limit: Duration,
    output: &output::Output,
    runs: &Runs,
    nonsense: Option<&String>,
    is_unsummed: bool,
) -> TrialEnd {
    let is_good = |code: i32| match runs {
        Runs::BuiltIn { .. } | Runs::External { .. } => code == 0,
        Runs::Command { good_codes, .. } => good_codes.contains(&code),
    };
    match over.cut {
        Some(Cut::Stopped) => return TrialEnd::Stopped,
        Some(Cut::TooLong) => {
            return TrialEnd::TimedOut(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        }
        None => {}
    }
    if over.oom_kills > 0 {
        return TrialEnd::OutOfMemory;
    }
    let code = over.status.code();
    if let (Some(127), Some(why)) = (code, output.complained(crate::gate::CANNOT_START)) {
        return TrialEnd::NotBegun(format!("it cannot be started: {why}"));
    }
    if let (Some(2..=5), true) = (code, is_unsummed)
        && let Some(why) = output.complained("pagelab: ")
    {
        return TrialEnd::NotBegun(format!("its supervisor did not start it: {why}"));
    }
    match (code, over.status.signal()) {
        (Some(code), _) if is_good(code) && over.left_behind > 0 => TrialEnd::LeftBehind(over.left_behind),
        (Some(code), _) if is_good(code) => {
            nonsense.map_or(TrialEnd::Done, |why| TrialEnd::Nonsense(why.clone()))
        }
        (Some(code), _) => TrialEnd::Failed(code),
        (None, signal) => TrialEnd::Killed(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::experiment::Better;
    use pagelab_model::run::Unit;

    use super::*;

    /// A supervised program is waited for by its supervisor, and its group knows it all the same.
    #[test]
    fn what_a_group_counted_is_no_other_programs_time() {
        let second = 1_000_000_000;
        let rusage = probe::Rusage { utime_ns: second / 100, stime_ns: second / 100, ..Default::default() };
        let ended = probe::Ended { wall_ns: second, rusage, orphans: 0 };
        let cpu = |value| Measure {
            name: measures::CPU.to_owned(),
            unit: Unit::from(Unit::NANOSECONDS),
            better: Better::Lower,
            value: Ok(value),
            source: String::new(),
        };
        assert_eq!(cpu_ns(&ended, &[cpu(1e9)]), second);
        assert_eq!(cpu_ns(&ended, &[cpu(1.0)]), second / 50, "never less than what was waited for");
        assert_eq!(cpu_ns(&ended, &[]), second / 50);
    }
}
