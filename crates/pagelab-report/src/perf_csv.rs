//! An experiment as files of `perf stat -x,` and `time`, for existing scripts.
//!
//! A directory `logs` has the times and a directory `results` the counters; each has a directory per workload
//! with a subdirectory `thp` for runs with huge pages and `no-thp` for those without. A file is a trial.

use std::collections::{BTreeMap, BTreeSet};

use pagelab_model::experiment::{Experiment, Flag, Measure, Trial, TrialEnd, TrialRole, measures};
use pagelab_model::run::Unit;
use pagelab_model::{AbsenceReason, Reading};

use crate::csv::unique_name;
use crate::style::escape_invisible;

/// Group of variants that request huge pages.
pub const THP_GROUP: &str = "thp";
/// Group of the other variants.
pub const NO_THP_GROUP: &str = "no-thp";

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvFile {
    /// Path in the directory, with plain names.
    pub path: String,
    /// Contents.
    pub text: String,
}

/// All files of an experiment, and the number of trials that are omitted because they do not count.
pub fn build_files(experiment: &Experiment) -> (Vec<CsvFile>, usize) {
    let plan = &experiment.plan;
    let mut taken = BTreeSet::new();
    let workloads: Vec<String> = plan.workloads.iter().map(|of| unique_name(&of.name, &mut taken)).collect();
    let mut taken = BTreeSet::new();
    let variants: Vec<String> = plan.variants.iter().map(|of| unique_name(&of.name, &mut taken)).collect();
    let mut files = Vec::new();
    let mut excluded_trials = 0;
    let mut rounds: BTreeMap<(usize, usize, u32), u32> = BTreeMap::new();
    for trial in &experiment.trials {
        let counts = |slot: &pagelab_model::experiment::ScheduleSlot| {
            slot.role == TrialRole::Measured && trial.end == TrialEnd::Done
        };
        let Some(slot) = plan.schedule.get(trial.slot).filter(counts) else {
            excluded_trials += 1;
            continue;
        };
        let again = rounds.entry((slot.workload, slot.variant, slot.round)).or_default();
        *again += 1;
        let (Some(workload), Some(variant)) = (workloads.get(slot.workload), variants.get(slot.variant))
        else {
            continue;
        };
        let group = if plan.variants[slot.variant].asks_for_huge_pages { THP_GROUP } else { NO_THP_GROUP };
        let number = match again {
            1 => format!("{}", u64::from(slot.round) + 1),
            more => format!("{}.{more}", u64::from(slot.round) + 1),
        };
        let path = |folder: &str, end: &str| format!("{folder}/{workload}/{group}/{variant}-{number}.{end}");
        let log = time_log(trial);
        if !log.is_empty() {
            files.push(CsvFile { path: path("logs", "log"), text: log });
        }
        let results = perf_stat_csv(trial);
        if !results.is_empty() {
            files.push(CsvFile { path: path("results", "csv"), text: results });
        }
    }
    (files, excluded_trials)
}

fn find_measure<'a>(trial: &'a Trial, name: &str) -> Option<&'a Reading<f64>> {
    trial.measures.iter().find(|measure| measure.name == name).map(|measure| &measure.value)
}

/// Formats times as the `time` keyword of bash.
fn time_log(trial: &Trial) -> String {
    let lines = [("real", measures::WALL), ("user", measures::CPU_USER), ("sys", measures::CPU_SYSTEM)];
    let line = |(word, name): (&str, &str)| {
        let ns = *find_measure(trial, name)?.as_ref().ok()?;
        let ms = (ns / 1e6).round().max(0.0) as u64;
        Some(format!("{word}\t{}m{}.{:03}s\n", ms / 60_000, ms / 1000 % 60, ms % 1000))
    };
    lines.into_iter().filter_map(line).collect()
}

/// Formats counters as `perf stat -x,`.
fn perf_stat_csv(trial: &Trial) -> String {
    let cpu = ["perf.running", measures::CPU, measures::WALL].into_iter().find_map(|name| {
        let ns = *find_measure(trial, name)?.as_ref().ok()?;
        (ns >= 0.0).then(|| format!("{ns:.0}"))
    });
    let is_shared = trial.flags.iter().any(|flag| flag.kind == Flag::MULTIPLEXED);
    // The run file does not keep the share of time for which each was counted.
    let percent = if is_shared { "" } else { "100.00" };
    let run = cpu.unwrap_or_default();
    let counters = trial.measures.iter().filter_map(|measure| {
        let event = measure.name.strip_prefix(measures::COUNTER_PREFIX)?;
        Some(perf_stat_line(event, measure, &run, percent))
    });
    counters.collect()
}

fn perf_stat_line(event: &str, measure: &Measure, run: &str, percent: &str) -> String {
    // Characters that would break the fields of a line, including a comma outside of the slashes of a PMU.
    let plain = escape_invisible(event);
    let is_pmu = plain.matches('/').count() == 2;
    let event = if is_pmu { plain } else { plain.replace(',', "_") };
    let (unit, value) = match (measure.unit.0.as_str(), &measure.value) {
        (_, Err(absence)) if absence.why == AbsenceReason::NotThere => {
            return format!("<not supported>,,{event},0,100.00,,\n");
        }
        (_, Err(_)) => return format!("<not counted>,,{event},0,0.00,,\n"),
        (Unit::NANOSECONDS, Ok(ns)) => ("msec".to_owned(), format!("{}", ns / 1e6)),
        (Unit::COUNT, Ok(value)) => (String::new(), format!("{value}")),
        (unit, Ok(value)) => (escape_invisible(unit).replace(',', "_"), format!("{value}")),
    };
    format!("{value},{unit},{event},{run},{percent},,\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::experiment::{hostile_experiment, paper_figures_experiment};

    #[test]
    fn the_lines_of_the_thp_report_come_out() {
        let (files, excluded_trials) = build_files(&paper_figures_experiment());
        assert_eq!(excluded_trials, 0);
        let text = |path: &str| {
            let found = files.iter().find(|file| file.path == path);
            found.unwrap_or_else(|| panic!("{path} is none of {files:?}")).text.clone()
        };
        assert_eq!(
            text("results/canneal/thp/enabled-1.csv"),
            "524074,,dTLB-load-misses,239317377674,100.00,,\n243742,,iTLB-load-misses,239317377674,100.00,,\n\
             12672653,,cache-misses,239317377674,100.00,,\n"
        );
        assert_eq!(
            text("logs/canneal/thp/enabled-1.log"),
            "real\t3m59.511s\nuser\t3m59.059s\nsys\t0m0.452s\n"
        );
        assert_eq!(
            text("logs/fmm/no-thp/disabled-1.log"),
            "real\t1m42.412s\nuser\t1m41.640s\nsys\t0m0.773s\n"
        );
        assert_eq!(files.len(), 12);
    }

    #[test]
    fn no_name_leaves_the_folder_or_its_field() {
        let (files, _) = build_files(&hostile_experiment());
        for file in &files {
            assert!(!file.path.contains("..") && !file.path.starts_with('/'), "{}", file.path);
            assert!(file.path.split('/').count() == 4, "{}", file.path);
            for line in file.text.lines().filter(|_| file.path.ends_with(".csv")) {
                assert_eq!(line.matches(',').count(), 6, "{line}");
            }
        }
        assert!(!files.is_empty());
    }
}
