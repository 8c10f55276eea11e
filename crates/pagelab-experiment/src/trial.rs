//! One trial: a process tree under the settings of its variant, in its own control group, observed from
//! before its program begins until after it has ended.

mod caches;
mod fragmentation;
mod hog;
mod launched_process;
mod other_processes;
pub(crate) mod output;
mod settings;
mod supervisor_summary;
mod system_activity;
mod warming;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use pagelab_contig::reserve::Reserve;
use pagelab_host::guard::GuardSite;
use pagelab_model::experiment::{Flag, Measure, TrialEnd, measures};
use pagelab_model::machine::Machine;
use pagelab_model::simulation::TrialSeries;
use pagelab_model::{Bytes, Snapshot};
use pagelab_packages::apt::FetchObserver;
use rustix::process::Signal;

use crate::probe;
use crate::recipe::{OutputMetric, WorkloadCommand};
use crate::resolve::ResolvedExperiment;
use crate::swap_file::ExperimentSwap;
use launched_process::{GatedProcess, ProcessOutcome};
use other_processes::{BusyProcess, ProcessTimes, busy_others_flag};
use settings::TrialSettings;
use supervisor_summary::SummaryError;

pub(crate) use settings::machine_wide_modes;
pub use system_activity::{ActivitySample, describe_load};

/// Minimum share of the peak memory in huge pages; below it the result is not an effect of huge pages.
const HUGE_PAGE_SHARE_MIN: f64 = 0.05;

/// Shared context of all trials of an experiment.
pub struct TrialContext<'a> {
    /// Directories of settings and journals, or the reason for their absence.
    pub site: Result<GuardSite, String>,
    /// The machine, its caches and TLBs.
    pub machine: &'a Machine,
    /// Total memory.
    pub total_memory: Bytes,
    /// Memory that stays available.
    pub reserve: Reserve,
    /// Its swap file, if a variant needs one.
    pub swap_file: RefCell<ExperimentSwap>,
    /// The experiment.
    pub resolved: &'a ResolvedExperiment,
    /// The signal that requested a stop, if any.
    pub stop_signal: &'a dyn Fn() -> Option<i32>,
    /// Snapshot of the machine.
    pub take_snapshot: &'a dyn Fn() -> Snapshot,
    /// Progress of the set-up of external workloads, and what stops it.
    pub setup_observer: RefCell<&'a mut dyn FetchObserver>,
    /// The highest peak so far of each workload, bytes: the amount that is warmed before its next trial.
    pub peak_bytes: RefCell<BTreeMap<usize, u64>>,
    /// Counts of a processor model for a workload under a variant, if counters are not readable.
    pub model: Option<&'a ProcessorModel<'a>>,
}

/// Runs a workload (its index) under a variant (its index) in a model of the processor.
pub type ProcessorModel<'a> = dyn Fn(usize, usize) -> Result<Vec<Measure>, String> + 'a;

/// The number that a program printed for a metric: that of the last matching line. An error is the text in
/// its place.
pub fn find_metric(metric: &OutputMetric, text: &str) -> Option<Result<f64, String>> {
    text.lines().rev().find_map(|line| output::find_metric(metric, line.trim_end()))
}

/// Result of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialResult {
    /// Its end.
    pub end: TrialEnd,
    /// Measures of the probes and of the workload.
    pub measures: Vec<Measure>,
    /// Caveats of its numbers.
    pub flags: Vec<Flag>,
    /// Series of values along the workload.
    pub series: Vec<TrialSeries>,
    /// The last lines of its output, if it did not end well.
    pub last_output: String,
    /// Equal in all trials of the same command.
    pub checksum: Option<String>,
    /// Further notes for the run file.
    pub notes: Vec<String>,
}

/// End of a trial, before it is judged.
#[derive(Debug)]
struct TrialExit {
    status: ExitStatus,
    /// Its end, if pagelab ended it.
    cut: Option<TrialEnd>,
    target_exit: probe::TargetExit,
    /// Processes that outlived the first one.
    left_processes: u64,
    /// Processes that the kernel killed by the OOM killer.
    oom_kills: u64,
}

/// Runs one trial.
pub fn run_trial(context: &TrialContext<'_>, workload: usize, variant: usize) -> TrialResult {
    let recipe = &context.resolved.recipe;
    let (workload_recipe, variant_recipe) = (&recipe.workloads[workload], &recipe.variants[variant]);
    let mut settings = match TrialSettings::apply(context, workload_recipe, variant_recipe) {
        Ok(settings) => settings,
        Err(why) => return TrialResult::not_started(context, why),
    };
    let mut result = run_with_settings(context, workload, variant, &mut settings);
    settings.finish(&mut result);
    // The supervisor reports what it did.
    let asks_for_huge_pages =
        variant_recipe.supervised_plan.is_none() && context.resolved.asks_for_huge_pages(workload, variant);
    // A trial that failed needs no further flags.
    if asks_for_huge_pages && result.end == TrialEnd::Done {
        result.flags.extend(probe::missing_huge_pages_flag(&result.measures, HUGE_PAGE_SHARE_MIN));
    }
    result
}

fn run_with_settings(
    context: &TrialContext<'_>,
    workload: usize,
    variant: usize,
    settings: &mut TrialSettings,
) -> TrialResult {
    let recipe = &context.resolved.recipe;
    let workload_recipe = &recipe.workloads[workload];
    let probes = probe::prepare_probes(&recipe.probes);
    let launched = match GatedProcess::start_at_gate(context, workload, variant, settings) {
        Ok(launched) => launched,
        Err(why) => return TrialResult::not_started(context, why),
    };
    // While the child waits at its gate: nothing else happens in between.
    let warming = warming::TrialWarming::warm_for_trial(context, workload, variant);
    let mut notes = Vec::new();
    let mut flags: Vec<Flag> = launched.not_applied.iter().map(|text| not_applied(text.clone())).collect();
    // Workloads of pagelab start the processes that work for them.
    let is_command = matches!(workload_recipe.command, WorkloadCommand::Command { .. });
    let processes_before = is_command.then(ProcessTimes::read);
    let (before, hog_ns) = (ActivitySample::read(), settings.hog_cpu_ns());
    let limit = context.resolved.time_limit(workload);
    let ProcessOutcome { exit, output, readings, supervisor_summary: summary } =
        launched.run_to_end(probes, settings, limit, context.stop_signal);
    let after = ActivitySample::read();
    let our_cpu_ns = total_cpu_ns(&exit.target_exit, &readings.measures);
    let own_ns = our_cpu_ns.saturating_add(settings.hog_cpu_ns().saturating_sub(hog_ns));
    let activity = (&before, &after, processes_before.as_ref());
    flags.extend(other_activity_flags(activity, (our_cpu_ns, own_ns)));
    if settings.hog.as_mut().is_some_and(|hog| !hog.is_alive()) {
        flags.push(not_applied("the memory hog exited before the trial ended".to_owned()));
    }
    flags.extend(readings.flags);
    let mut measures = readings.measures;
    if let Some(warming) = warming {
        warming.add_measures(&mut measures, &mut flags);
    }
    let workload_report = output::read_report(&workload_recipe.command, &output);
    if let (Some(summary), Some(plan)) = (&summary, &recipe.variants[variant].supervised_plan) {
        if exit.target_exit.orphan_count == 0 {
            supervisor_summary::mark_not_waited_for(&mut measures);
        }
        supervisor_summary::add_measures(summary, plan, &mut measures, &mut flags);
    }
    let (command, report_error) = (&workload_recipe.command, workload_report.as_ref().err());
    let summary_error = summary.as_ref().and_then(|summary| summary.as_ref().err());
    let mut end = judge_end(&exit, &output, command, report_error, summary_error);
    let (mut checksum, mut series) = (None, Vec::new());
    if let (TrialEnd::Done, Ok(said)) = (&end, workload_report) {
        let is_new = |of: &Measure| !measures.iter().any(|known| known.key() == of.key());
        let fresh: Vec<Measure> = said.measures.into_iter().filter(is_new).collect();
        measures.extend(fresh);
        flags.extend(said.flags);
        (checksum, series) = (said.checksum, said.series);
    }
    if end == TrialEnd::Done && after.has_dropped_caches_since(&before) {
        end = TrialEnd::Rejected("another process dropped the page cache during the trial".to_owned());
    }
    let last_output = if end == TrialEnd::Done { String::new() } else { output.last_lines() };
    if exit.left_processes > 0 && !matches!(end, TrialEnd::LeftProcesses(_)) {
        notes.push(format!("{} leftover processes were killed", exit.left_processes));
    }
    TrialResult { end, measures, flags, series, last_output, checksum, notes }
}

impl TrialResult {
    /// A trial that did not begin, for this reason or because of a request to stop.
    fn not_started(context: &TrialContext<'_>, why: String) -> TrialResult {
        match (context.stop_signal)() {
            Some(_) => TrialResult::without_measures(TrialEnd::Stopped, why),
            None => TrialResult::without_measures(TrialEnd::NotStarted(why), String::new()),
        }
    }

    pub(crate) fn without_measures(end: TrialEnd, last_output: String) -> TrialResult {
        let (measures, flags, notes) = (Vec::new(), Vec::new(), Vec::new());
        TrialResult { end, measures, flags, series: Vec::new(), last_output, checksum: None, notes }
    }
}

/// CPU time of all processes of a trial: its group counts those that were not waited for, and a supervisor
/// waits for the program itself.
fn total_cpu_ns(target_exit: &probe::TargetExit, measures: &[Measure]) -> u64 {
    let waited_for = target_exit.rusage.utime_ns.saturating_add(target_exit.rusage.stime_ns);
    let cpu = measures.iter().find(|measure| measure.name == measures::CPU);
    let counted = cpu.and_then(|cpu| cpu.value.as_ref().ok().copied()).unwrap_or(0.0);
    waited_for.max(counted as u64)
}

/// Flags of what other programs did between two samples: whether the machine was quiet, and, for a command,
/// before which the processes were read, whether one of them may have done its work. CPU times are of the
/// trial, without and with that of its settings.
fn other_activity_flags(
    (before, after, processes_before): (&ActivitySample, &ActivitySample, Option<&ProcessTimes>),
    (trial_ns, own_ns): (u64, u64),
) -> Vec<Flag> {
    let mut flags = Vec::new();
    if let Some(share) = after.busy_share_since(before, own_ns) {
        let text = format!("other processes used {:.0} % of a CPU meanwhile", share * 100.0);
        flags.push(Flag { kind: Flag::NOT_QUIET.to_owned(), text });
    }
    if let Some(processes_before) = processes_before
        && let Some(others) = after.foreign_share_since(before, own_ns)
    {
        let wall_ns = after.ns_since(before);
        let busiest = BusyProcess::find(processes_before, &ProcessTimes::read(), wall_ns);
        flags.extend(busy_others_flag(trial_ns as f64 / wall_ns as f64, others, busiest.as_ref()));
    }
    flags
}

fn not_applied(text: String) -> Flag {
    Flag { kind: Flag::NOT_APPLIED.to_owned(), text }
}

/// The end of a trial, the most severe first.
fn judge_end(
    exit: &TrialExit,
    output: &output::TrialOutput,
    command: &WorkloadCommand,
    invalid_result: Option<&String>,
    summary_error: Option<&SummaryError>,
) -> TrialEnd {
    if let Some(end) = &exit.cut {
        return end.clone();
    }
    if exit.oom_kills > 0 {
        return TrialEnd::OutOfMemory;
    }
    let code = exit.status.code();
    if let (Some(127), Some(why)) = (code, output.stderr_line_starting(crate::gate::CANNOT_START)) {
        return TrialEnd::NotStarted(format!("cannot start it: {why}"));
    }
    let signal = exit.status.signal();
    match summary_error {
        Some(SummaryError::Failed(why)) => {
            return TrialEnd::NotStarted(format!("the supervisor did not start it: {why}"));
        }
        Some(SummaryError::Missing(_)) => {
            if output.stderr_line_starting(crate::gate::SUPERVISOR_KILLED).is_some() {
                return TrialEnd::Lost("its supervisor was killed, and the program with it".to_owned());
            }
            // `pagelab apply` turns a signal of its program into an exit code.
            if signal == Some(Signal::KILL.as_raw()) {
                return TrialEnd::Lost("its `pagelab apply` was killed".to_owned());
            }
        }
        None => {}
    }
    match (code, signal) {
        (Some(code), _) if command.is_success(code) => match exit.left_processes {
            0 => invalid_result.map_or(TrialEnd::Done, |why| TrialEnd::InvalidResult(why.clone())),
            left => TrialEnd::LeftProcesses(left),
        },
        (Some(code), _) => TrialEnd::Failed(code),
        (None, signal) => TrialEnd::Killed(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::experiment::BetterDirection;
    use pagelab_model::run::Unit;

    use super::*;

    /// The supervisor waits for a supervised program; its group counts it all the same.
    #[test]
    fn what_a_group_counted_is_no_other_programs_time() {
        let second = 1_000_000_000;
        let rusage = probe::Rusage { utime_ns: second / 100, stime_ns: second / 100, ..Default::default() };
        let ended = probe::TargetExit { wall_ns: second, rusage, orphan_count: 0 };
        let cpu =
            |value| Measure::new(measures::CPU, Unit::NANOSECONDS, BetterDirection::Lower, Ok(value), "");
        assert_eq!(total_cpu_ns(&ended, &[cpu(1e9)]), second);
        assert_eq!(total_cpu_ns(&ended, &[cpu(1.0)]), second / 50, "never less than what was waited for");
        assert_eq!(total_cpu_ns(&ended, &[]), second / 50);
    }

    /// Without a summary, a trial is lost only if its supervisor or front end was killed.
    #[test]
    fn who_was_killed_decides_whether_a_trial_is_lost() {
        let end = |wait_status: i32, stderr: &str| {
            let exit = TrialExit {
                status: ExitStatus::from_raw(wait_status),
                cut: None,
                target_exit: probe::TargetExit::default(),
                left_processes: 0,
                oom_kills: 0,
            };
            let mut output = output::TrialOutput::new(Vec::new());
            while !output.out.is_at_end || !output.err.is_at_end {
                output.read_available(&mut &[][..], &mut stderr.as_bytes());
            }
            let (options, name) = (Vec::new(), "gups".to_owned());
            let missing = SummaryError::Missing("no summary".to_owned());
            judge_end(&exit, &output, &WorkloadCommand::BuiltIn { name, options }, None, Some(&missing))
        };
        let killed_code = 137 << 8;
        let line = crate::gate::SUPERVISOR_KILLED;
        let lost = |who: &str| TrialEnd::Lost(who.to_owned());
        let supervisor = lost("its supervisor was killed, and the program with it");
        assert_eq!(end(killed_code, &format!("{line}\n")), supervisor);
        assert_eq!(end(killed_code, "note: cannot write the summary: disk full\n"), TrialEnd::Failed(137));
        assert_eq!(end(9, ""), lost("its `pagelab apply` was killed"));
        assert_eq!(end(11, ""), TrialEnd::Killed(11));
        assert_eq!(end(0, ""), TrialEnd::Done);
    }
}
