//! Outputs of `perf stat -x,` and of `time` as an experiment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::{input, output};
use pagelab_formats::perf_stat::{self, StatCounter};
use pagelab_formats::shell_time::{self, ShellTimes};
use pagelab_model::experiment::{
    BetterDirection, Experiment, Flag, Measure, Plan, PlannedVariant, PlannedWorkload, ScheduleSlot,
    Sequence, Trial, TrialRole, measures,
};
use pagelab_model::run::{ClockReading, RunEnd, RunEvent, Unit};

use crate::file_labels::{FileLabel, label_files};
use crate::source::{FileRejection, modified_ns};
use crate::{nothing_to_import, unknown_machine_manifest, write_failure};

/// The longest time for which a counter of a trial ran, of all tasks together.
const RUNNING_MEASURE: &str = "perf.running";
const IMPORTED_PLACE: &str = pagelab_report::effect_text::IMPORTED_PLACE;
/// A flag: each value is the mean of several runs.
const AVERAGED_FLAG: &str = "averaged";

/// Data of one trial.
#[derive(Default)]
struct TrialSources {
    stat: Option<Vec<StatCounter>>,
    times: Option<ShellTimes>,
    modified_ns: u64,
    sources: Vec<String>,
}

/// Workload, variant and round in order of appearance.
type TrialKey = (usize, usize, u32);

/// A file that is in: its path, the number in its name, and whether it holds times.
struct AcceptedFile {
    path: PathBuf,
    round: Option<u32>,
    has_times: bool,
}

/// Everything that was read.
#[derive(Default)]
pub struct ImportedExperiment {
    /// Names of workloads.
    pub workloads: Vec<String>,
    /// Names of variants, and whether each uses huge pages.
    pub variants: Vec<(String, bool)>,
    trials: BTreeMap<TrialKey, TrialSources>,
    /// By workload and variant, the files that no word in front of them named.
    unlabelled_files: BTreeMap<(usize, usize), Vec<AcceptedFile>>,
    /// Files that were left out, with the reason.
    pub rejected: Vec<String>,
    /// How many of them only permission was missing for.
    pub denied_count: usize,
}

fn find_or_insert<T>(known: &mut Vec<T>, matches: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    known.iter().position(matches).unwrap_or_else(|| {
        known.push(new());
        known.len() - 1
    })
}

impl ImportedExperiment {
    /// Reads all files. Those that cannot be used are rejected by name; the error is one that no other file
    /// mends.
    pub fn read_files(files: &[PathBuf], workload: Option<&str>) -> Result<ImportedExperiment, Failure> {
        let mut imported = ImportedExperiment::default();
        for place in label_files(files, workload)? {
            let Err(rejection) = imported.add_file(&place) else { continue };
            let why = rejection.into_reason(&mut imported.denied_count)?;
            output::warn(&format!("warning: {why}"));
            imported.rejected.push(why);
        }
        if imported.trials.is_empty() {
            let is_denied = imported.denied_count > 0 && imported.denied_count == imported.rejected.len();
            return Err(nothing_to_import(is_denied, "counters of `perf stat -x,` or times"));
        }
        Ok(imported)
    }

    /// Writes the run file.
    pub fn write(&self, file: &NewRunFile, experiment: &Experiment, first_ns: u64) -> Result<(), Failure> {
        let started = ClockReading { realtime_ns: first_ns, boottime_ns: 0 };
        let manifest = unknown_machine_manifest(started, None, &Default::default());
        let mut writer = file.create(&manifest)?;
        let failed = |error| write_failure(&error);
        writer.add_plan(0, &experiment.plan).map_err(failed)?;
        for trial in &experiment.trials {
            writer.add_trial(trial).map_err(failed)?;
        }
        for text in self.rejected.iter().cloned() {
            let event = RunEvent { at_ns: 0, kind: "left out".to_owned(), text };
            writer.add_event(&event).map_err(failed)?;
        }
        let after_ns = experiment.trials.iter().map(|trial| trial.ended_ns).max().unwrap_or_default();
        writer.close(RunEnd::Complete { after_ns }).map_err(failed)
    }

    fn add_file(&mut self, place: &FileLabel) -> Result<(), FileRejection> {
        let (name, text) = input::read_bounded_input(&place.path, input::InputConsumer::Import)
            .map_err(FileRejection::unreadable)?;
        let is_time = text.split(|&sign| sign == b'\n').any(|line| {
            let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.next() == Some(b"real") && words.next().is_some()
        });
        let bad = |error: pagelab_formats::ParseError| FileRejection::Unusable(error.message_in_file(&name));
        let (stat, times) = match is_time {
            true => (None, Some(shell_time::parse(&text).map_err(bad)?)),
            false => (Some(perf_stat::parse(&text).map_err(bad)?), None),
        };
        let workload =
            find_or_insert(&mut self.workloads, |of| *of == place.workload, || place.workload.clone());
        let new = || (place.variant.clone(), place.asks_for_huge_pages);
        let variant = find_or_insert(&mut self.variants, |(of, _)| *of == place.variant, new);
        if !place.is_labelled {
            let taken = self.unlabelled_files.entry((workload, variant)).or_default();
            let file = AcceptedFile { path: place.path.clone(), round: place.round, has_times: is_time };
            if let Some(other) = taken.iter().find(|other| other.is_ambiguous_with(&file)) {
                return Err(FileRejection::Fatal(ambiguous_variant(place, &other.path)));
            }
            taken.push(file);
        }
        let is_free = |all: &ImportedExperiment, round: u32| {
            all.trials.get(&(workload, variant, round)).is_none_or(|known| match stat {
                Some(_) => known.stat.is_none(),
                None => known.times.is_none(),
            })
        };
        // Rounds are counted from 0, files from 1. Another trial of a round, or a file without a number,
        // is of the next round that is free.
        let wanted = place.round.map_or(0, |number| number.saturating_sub(1));
        let round = (wanted..).find(|&round| is_free(self, round)).unwrap_or_default();
        let known = self.trials.entry((workload, variant, round)).or_default();
        known.stat = stat.or(known.stat.take());
        known.times = times.or(known.times.take());
        known.modified_ns = known.modified_ns.max(modified_ns(&place.path).unwrap_or(0));
        known.sources.push(name);
        Ok(())
    }

    /// The variant that was named, or the first one without huge pages.
    pub fn find_baseline(&self, requested: Option<&str>) -> Result<usize, Failure> {
        let Some(wanted) = requested else {
            return Ok(self.variants.iter().position(|(_, asks)| !asks).unwrap_or(0));
        };
        self.variants.iter().position(|(name, _)| name == wanted).ok_or_else(|| {
            let names: Vec<&str> = self.variants.iter().take(8).map(|(name, _)| name.as_str()).collect();
            Failure::unknown("variant", wanted, &names)
        })
    }

    /// The experiment, and when its first file was written.
    pub fn build_experiment(&self, name: &str, baseline: usize) -> (Experiment, u64) {
        let first_ns = self.trials.values().map(|of| of.modified_ns).min().unwrap_or_default();
        let has_times = |workload: usize| {
            let mut of = self.trials.iter().filter(|((place, _, _), _)| *place == workload);
            of.any(|(_, known)| known.times.is_some() || known.stat.as_deref().is_some_and(has_duration))
        };
        let workload = |(at, name): (usize, &String)| PlannedWorkload {
            name: name.clone(),
            command: vec!["imported from files".to_owned()],
            generator: "not stated in the files".to_owned(),
            merit: (!has_times(at)).then(|| RUNNING_MEASURE.to_owned()),
            simulated: None,
        };
        let variant = |(name, asks): &(String, bool)| PlannedVariant {
            name: name.clone(),
            settings: Vec::new(),
            asks_for_huge_pages: *asks,
            lists: Vec::new(),
        };
        let mut keys: Vec<TrialKey> = self.trials.keys().copied().collect();
        keys.sort_by_key(|&(workload, variant, round)| (workload, round, variant));
        let role = TrialRole::Measured;
        let slot = |&(workload, variant, round): &TrialKey| ScheduleSlot { workload, variant, round, role };
        let trial = |(slot, key): (usize, &TrialKey)| build_trial(slot, &self.trials[key], first_ns);
        let plan = Plan {
            name: name.to_owned(),
            question: "measurements of `perf stat` and `time`".to_owned(),
            explanation: String::new(),
            origin: "perf stat -x".to_owned(),
            simulator: None,
            sweep: None,
            pictures: 0,
            early_end: None,
            dropped_variants: Default::default(),
            recipe: String::new(),
            place: IMPORTED_PLACE.to_owned(),
            workloads: self.workloads.iter().enumerate().map(workload).collect(),
            variants: self.variants.iter().map(variant).collect(),
            baseline: Some(baseline),
            sequence: Sequence::Blocks,
            seed: 0,
            loss: pagelab_model::experiment::DEFAULT_LOSS,
            schedule: keys.iter().map(slot).collect(),
        };
        (Experiment { plan, trials: keys.iter().enumerate().map(trial).collect() }, first_ns)
    }
}

impl AcceptedFile {
    /// Whether two files would be two rounds of one variant only because nothing distinguishes them: equal
    /// contents, equal or no number, and different directories.
    fn is_ambiguous_with(&self, other: &AcceptedFile) -> bool {
        self.has_times == other.has_times
            && self.round == other.round
            && self.path.parent() != other.path.parent()
    }
}

/// Two files of different folders whose paths say the same.
fn ambiguous_variant(place: &FileLabel, other: &Path) -> Failure {
    let FileLabel { path, workload, variant, .. } = place;
    let [first, second] = distinct_variants(variant, other, path);
    let (one, two) = (other.display(), path.display());
    let message = format!(
        "cannot import {one} and {two}: by their paths, both are workload {workload} and variant {variant}, \
         and it is unclear whether they are two rounds or two variants\n\
         hint: use WORKLOAD/VARIANT=PATH; for two variants: {workload}/{first}={one} \
         {workload}/{second}={two}; for two rounds: {workload}/{variant}={one} {workload}/{variant}={two}"
    );
    Failure::new(FailureKind::BadInput, message)
}

/// Names of two variants for files of different folders: the folders, or, where these are called the same,
/// the variant with the nearest folders above that are not.
fn distinct_variants(variant: &str, first: &Path, second: &Path) -> [String; 2] {
    let names = |path: &Path| -> Vec<String> {
        let folders = path.parent().into_iter().flat_map(Path::components).rev();
        folders.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
    };
    let (ones, others) = (names(first), names(second));
    match ones.iter().zip(&others).enumerate().find(|(_, (one, other))| one != other) {
        Some((0, (one, other))) => [one.clone(), other.clone()],
        Some((_, (one, other))) => [format!("{variant}-{one}"), format!("{variant}-{other}")],
        None => [format!("{variant}-1"), format!("{variant}-2")],
    }
}

fn has_duration(counters: &[StatCounter]) -> bool {
    counters.iter().any(|of| of.event == "duration_time" && of.value.is_ok())
}

fn build_trial(slot: usize, trial_sources: &TrialSources, first_ns: u64) -> Trial {
    let source = trial_sources.sources.join(", ");
    let measure = |name: &str, unit: &str, better, value: f64| {
        Measure::new(name, unit, better, Ok(value), source.clone())
    };
    let mut found = Vec::new();
    let mut flags = Vec::new();
    if let Some(ShellTimes { real_ns, user_ns, sys_ns }) = trial_sources.times {
        let ns = |name, ns: u64| measure(name, Unit::NANOSECONDS, BetterDirection::Lower, ns as f64);
        found.push(ns(measures::WALL, real_ns));
        found.extend(user_ns.map(|user| ns(measures::CPU_USER, user)));
        found.extend(sys_ns.map(|sys| ns(measures::CPU_SYSTEM, sys)));
        found.extend(user_ns.zip(sys_ns).map(|(user, sys)| ns(measures::CPU, user.saturating_add(sys))));
    }
    if let Some(counters) = &trial_sources.stat {
        collect_counters(counters, &source, &mut found, &mut flags);
    }
    // A name is unique in a trial.
    let mut names = std::collections::BTreeSet::new();
    found.retain(|measure| names.insert(measure.name.clone()));
    let ended_ns = trial_sources.modified_ns.saturating_sub(first_ns);
    Trial { measures: found, flags, ..Trial::new(slot, ended_ns) }
}

fn collect_counters(
    counters: &[StatCounter],
    source: &str,
    trial_measures: &mut Vec<Measure>,
    flags: &mut Vec<Flag>,
) {
    let flag = |kind: &str, text: String| Flag { kind: kind.to_owned(), text };
    let mut shared: Vec<String> = Vec::new();
    for counter in counters {
        let of = counter.cgroup.as_ref().map_or(String::new(), |cgroup| format!("@{cgroup}"));
        let name = format!("{}{of}", counter.event);
        let (unit, factor) = unit_and_factor(counter);
        let value = counter.value.clone().map(|value| value * factor);
        let put = |name: String, unit: &str, better, value| Measure::new(name, unit, better, value, source);
        if counter.event == "duration_time"
            && !trial_measures.iter().any(|known| known.name == measures::WALL)
        {
            let name = measures::WALL.to_owned();
            trial_measures.push(put(name, Unit::NANOSECONDS, BetterDirection::Lower, value.clone()));
        }
        let key = format!("{}{name}", measures::COUNTER_PREFIX);
        trial_measures.push(put(key, unit, better_direction(&counter.event), value));
        for (at, (value, unit)) in counter.metrics.iter().enumerate() {
            let more = if at > 0 { format!("#{}", at + 1) } else { String::new() };
            let key = format!("metric.{name}{more}");
            trial_measures.push(put(key, unit, BetterDirection::Neither, Ok(*value)));
        }
        if let Some(percent) = counter.deviation_percent {
            let key = format!("deviation.{name}");
            trial_measures.push(put(key, Unit::PERMILLE, BetterDirection::Neither, Ok(percent * 10.0)));
        }
        let percent = counter.running_percent.filter(|&percent| percent < 100.0 && counter.value.is_ok());
        shared.extend(percent.map(|percent| format!("{name} {percent:.2} %")));
    }
    if let Some(run_ns) = counters.iter().filter_map(|counter| counter.run_ns).max() {
        let (unit, value) = (Unit::NANOSECONDS, Ok(run_ns as f64));
        trial_measures.push(Measure::new(RUNNING_MEASURE, unit, BetterDirection::Lower, value, source));
    }
    if !shared.is_empty() {
        flags.push(flag(Flag::MULTIPLEXED, format!("multiplexed: {}", shared.join(", "))));
    }
    if counters.iter().any(|counter| counter.deviation_percent.is_some()) {
        let text = "perf stat -r: each value is the mean of several runs and counts as one run".to_owned();
        flags.push(flag(AVERAGED_FLAG, text));
    }
}

/// The unit of a counter among ours, and the factor to it.
fn unit_and_factor(counter: &StatCounter) -> (&str, f64) {
    match counter.unit.as_str() {
        "" => (Unit::COUNT, 1.0),
        "ns" => (Unit::NANOSECONDS, 1.0),
        "usec" => (Unit::NANOSECONDS, 1e3),
        "msec" => (Unit::NANOSECONDS, 1e6),
        other => (other, 1.0),
    }
}

/// Direction of improvement, derived from the name of an event.
fn better_direction(event: &str) -> BetterDirection {
    const COST_EVENTS: [&str; 9] =
        ["miss", "fault", "switch", "migration", "cycles", "stall", "walk", "clock", "duration"];
    let event = event.to_ascii_lowercase();
    if COST_EVENTS.iter().any(|ill| event.contains(ill)) {
        BetterDirection::Lower
    } else {
        BetterDirection::Neither
    }
}
