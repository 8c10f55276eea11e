//! `pagelab import perf-stat`: outputs of `perf stat -x,` and of `time` become an experiment.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use pagelab_formats::perf_stat::{self, Counter, Stat};
use pagelab_formats::shell_time::{self, Times};
use pagelab_model::experiment::{
    Better, Experiment, Flag, Measure, Plan, Role, Sequence, Slot, Trial, TrialEnd, VariantHead,
    WorkloadHead, measures,
};
use pagelab_model::run::{Ending, Event, Moment, Unit};
use pagelab_report::style::count;
use pagelab_runfile::{Error, Writer};

use super::places::{Place, places};
use super::{manifest_of, not_written, nothing, times::modified_ns};
use crate::exit::{Exit, Failure, Outcome};
use crate::{input, out};

/// The longest time for which a counter of a trial ran, of all tasks together.
const RUNNING: &str = "perf.running";
/// What the place of an imported experiment is called.
const PLACE: &str = pagelab_report::effects::IMPORTED;
/// A flag: each value is the mean of several runs.
const AVERAGED: &str = "averaged";

/// What `import perf-stat` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Files, and folders of files, each PATH, VARIANT=PATH or WORKLOAD/VARIANT=PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// The run file to be written; nothing is overwritten
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The variant that the others are compared with; else the first that is without huge pages
    #[arg(long, value_name = "VARIANT")]
    baseline: Option<String>,
    /// The workload of all files, whatever their paths say
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// What the experiment is called
    #[arg(long, value_name = "NAME", default_value = "perf-stat")]
    name: String,
}

const AFTER_HELP: &str = "\
What is read, told by its content: the output of `perf stat -x, -o FILE` of a whole run, and the lines real, \
user and sys of the shell's `time`. Times and counters of one workload, variant and round are one trial.

The names of folders say what a file is of: results/canneal/thp/always-3.csv is round 3 of the workload \
canneal under the variant always, and logs/canneal/thp/always-3.log has its times. A file that is called as \
its workload leaves the variant to its folder: results/canneal/no-thp/canneal.csv is of no-thp. A word in \
front of a path says it where the path does not: two files of different folders are never taken for two \
rounds of one variant unless that word says so.

Examples:
  perf stat -x, -o off-1.csv -e dTLB-load-misses ./program
  pagelab import perf-stat off=off-1.csv on=on-1.csv -o thp.pagelab
  pagelab import perf-stat hugepage -o thp.pagelab
  pagelab report thp.pagelab

Of runs that perf repeated (-r) each value is a mean and counts as one. Counts of intervals (-I) and of \
single CPUs (-A, --per-socket …) are no result of a run, and are refused. Files that cannot be read are \
named and left out; the exit code then is 5, and 3 if none can be read, or 4 where only permission was \
missing.";

/// What is known of one trial.
#[derive(Default)]
struct Gathered {
    stat: Option<Stat>,
    times: Option<Times>,
    modified_ns: u64,
    sources: Vec<String>,
}

/// Workload, variant and round in the order in which they came.
type Key = (usize, usize, u32);

/// Why a file is not taken.
enum Refused {
    /// The others go on.
    File(String),
    /// The others go on, and this one is another user's.
    Denied(String),
    /// What it is of is not known, and to guess would mix two things that were measured apart.
    All(Failure),
}

/// A file that is in: its path, the number in its name, and whether it holds times.
struct Taken {
    path: PathBuf,
    round: Option<u32>,
    is_time: bool,
}

/// Everything that was read.
#[derive(Default)]
struct All {
    workloads: Vec<String>,
    variants: Vec<(String, bool)>,
    trials: BTreeMap<Key, Gathered>,
    /// By workload and variant, the files that no word in front of them named.
    taken: BTreeMap<(usize, usize), Vec<Taken>>,
    left_out: Vec<String>,
    /// How many of them only permission was missing for.
    denied: usize,
}

/// Reads everything, and writes it as an experiment.
pub fn run(args: &Args) -> Outcome {
    let mut all = All::default();
    for place in places(&args.sources, args.workload.as_deref())? {
        let why = match all.take(&place) {
            Ok(()) => continue,
            Err(Refused::All(failure)) => return Err(failure),
            Err(Refused::File(why)) => why,
            Err(Refused::Denied(why)) => {
                all.denied += 1;
                why
            }
        };
        out::complain(&format!("pagelab: {why}"));
        all.left_out.push(why);
    }
    if all.trials.is_empty() {
        let wanted = "counters of `perf stat -x,` or times";
        return Err(nothing(all.denied > 0 && all.denied == all.left_out.len(), wanted));
    }
    let baseline = all.baseline(args.baseline.as_deref())?;
    let (experiment, first_ns) = all.experiment(&args.name, baseline);
    write(args, &all, &experiment, first_ns).map_err(|error| not_written(&error))?;
    let mut out = out::stdout();
    let style = out::style();
    let line = format!(
        "{}   {} of {} under {}, against {}",
        args.output.display(),
        plural(experiment.trials.len(), "trial"),
        plural(all.workloads.len(), "workload"),
        plural(all.variants.len(), "variant"),
        experiment.plan.variants[baseline].name
    );
    writeln!(out, "{}", style.one_line(&line))?;
    writeln!(out, "→ pagelab report {}", style.one_line(&args.output.display().to_string()))?;
    out.flush()?;
    Ok(if all.left_out.is_empty() { Exit::Done } else { Exit::Partial })
}

fn write(args: &Args, all: &All, experiment: &Experiment, first_ns: u64) -> Result<(), Error> {
    let started = Moment { realtime_ns: first_ns, boottime_ns: 0 };
    let manifest = manifest_of(started, None, &Default::default());
    let mut writer = Writer::create(&args.output, &manifest)?;
    writer.plan(0, &experiment.plan)?;
    for trial in &experiment.trials {
        writer.trial(trial)?;
    }
    for why in &all.left_out {
        writer.event(&Event { at_ns: 0, kind: "left out".to_owned(), text: why.clone() })?;
    }
    let after_ns = experiment.trials.iter().map(|trial| trial.ended_ns).max().unwrap_or_default();
    writer.close(Ending::Complete { after_ns })
}

/// `1 trial`, `2 trials`.
fn plural(of: usize, word: &str) -> String {
    format!("{} {word}{}", count(of as u128), if of == 1 { "" } else { "s" })
}

fn place_of<T>(known: &mut Vec<T>, is_it: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    known.iter().position(is_it).unwrap_or_else(|| {
        known.push(new());
        known.len() - 1
    })
}

impl All {
    /// Takes one file in; else says why not.
    fn take(&mut self, place: &Place) -> Result<(), Refused> {
        let unread = |failure: Failure| match failure.exit() {
            Exit::NotAvailable => Refused::Denied(failure.to_string()),
            _ => Refused::File(failure.to_string()),
        };
        let (name, text) = input::read(&place.path, input::Reader::Import).map_err(unread)?;
        let is_time = text.split(|&sign| sign == b'\n').any(|line| {
            let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.next() == Some(b"real") && words.next().is_some()
        });
        let bad = |error: pagelab_formats::ParseError| Refused::File(error.in_file(&name));
        let (stat, times) = match is_time {
            true => (None, Some(shell_time::parse(&text).map_err(bad)?)),
            false => (Some(perf_stat::parse(&text).map_err(bad)?), None),
        };
        let workload = place_of(&mut self.workloads, |of| *of == place.workload, || place.workload.clone());
        let new = || (place.variant.clone(), place.asks_for_huge_pages);
        let variant = place_of(&mut self.variants, |(of, _)| *of == place.variant, new);
        if !place.is_labelled {
            let taken = self.taken.entry((workload, variant)).or_default();
            let file = Taken { path: place.path.clone(), round: place.round, is_time };
            if let Some(other) = taken.iter().find(|other| other.is_mixed_up_with(&file)) {
                return Err(Refused::All(undecided(place, &other.path)));
            }
            taken.push(file);
        }
        let is_free = |all: &All, round: u32| {
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
    fn baseline(&self, wanted: Option<&str>) -> Result<usize, Failure> {
        let Some(wanted) = wanted else {
            return Ok(self.variants.iter().position(|(_, asks)| !asks).unwrap_or(0));
        };
        self.variants.iter().position(|(name, _)| name == wanted).ok_or_else(|| {
            let names: Vec<&str> = self.variants.iter().take(8).map(|(name, _)| name.as_str()).collect();
            let message =
                format!("--baseline {wanted}: no file is of this variant: there is {}", names.join(", "));
            Failure::new(Exit::Usage, message)
        })
    }

    /// The experiment, and when its first file was written.
    fn experiment(&self, name: &str, baseline: usize) -> (Experiment, u64) {
        let first_ns = self.trials.values().map(|of| of.modified_ns).min().unwrap_or_default();
        let has_times = |workload: usize| {
            let mut of = self.trials.iter().filter(|((place, _, _), _)| *place == workload);
            of.any(|(_, known)| known.times.is_some() || known.stat.as_ref().is_some_and(has_duration))
        };
        let workload = |(at, name): (usize, &String)| WorkloadHead {
            name: name.clone(),
            command: vec!["imported from files".to_owned()],
            generator: "not told by the files".to_owned(),
            merit: (!has_times(at)).then(|| RUNNING.to_owned()),
        };
        let variant = |(name, asks): &(String, bool)| VariantHead {
            name: name.clone(),
            settings: Vec::new(),
            asks_for_huge_pages: *asks,
        };
        let mut keys: Vec<Key> = self.trials.keys().copied().collect();
        keys.sort_by_key(|&(workload, variant, round)| (workload, round, variant));
        let slot =
            |&(workload, variant, round): &Key| Slot { workload, variant, round, role: Role::Measured };
        let trial = |(slot, key): (usize, &Key)| trial(slot, &self.trials[key], first_ns);
        let plan = Plan {
            name: name.to_owned(),
            question: "what `perf stat` and `time` measured".to_owned(),
            origin: "perf stat -x".to_owned(),
            recipe: String::new(),
            place: PLACE.to_owned(),
            workloads: self.workloads.iter().enumerate().map(workload).collect(),
            variants: self.variants.iter().map(variant).collect(),
            baseline,
            sequence: Sequence::Blocks,
            seed: 0,
            loss: pagelab_model::experiment::LOSS,
            schedule: keys.iter().map(slot).collect(),
        };
        (Experiment { plan, trials: keys.iter().enumerate().map(trial).collect() }, first_ns)
    }
}

impl Taken {
    /// Whether two files would be two rounds of one variant for no other reason than that nothing tells them
    /// apart: they hold the same, have the same number or none, and come from different folders.
    fn is_mixed_up_with(&self, other: &Taken) -> bool {
        self.is_time == other.is_time
            && self.round == other.round
            && self.path.parent() != other.path.parent()
    }
}

/// Two files of different folders whose paths say the same.
fn undecided(place: &Place, other: &Path) -> Failure {
    let Place { path, workload, variant, .. } = place;
    let [first, second] = told_apart(variant, other, path);
    let (one, two) = (other.display(), path.display());
    let message = format!(
        "cannot import {one} and {two}: by their paths both are {workload} under {variant}, and nothing says \
         whether they are two rounds or two variants\n\
         hint: say it by WORKLOAD/VARIANT=PATH: two variants are {workload}/{first}={one} \
         {workload}/{second}={two}, two rounds are {workload}/{variant}={one} {workload}/{variant}={two}"
    );
    Failure::new(Exit::BadInput, message)
}

/// Names of two variants for files of different folders: the folders, or, where these are called the same,
/// the variant with the nearest folders above that are not.
fn told_apart(variant: &str, one: &Path, other: &Path) -> [String; 2] {
    let names = |path: &Path| -> Vec<String> {
        let folders = path.parent().into_iter().flat_map(Path::components).rev();
        folders.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
    };
    let (ones, others) = (names(one), names(other));
    match ones.iter().zip(&others).enumerate().find(|(_, (one, other))| one != other) {
        Some((0, (one, other))) => [one.clone(), other.clone()],
        Some((_, (one, other))) => [format!("{variant}-{one}"), format!("{variant}-{other}")],
        None => [format!("{variant}-1"), format!("{variant}-2")],
    }
}

fn has_duration(stat: &Stat) -> bool {
    stat.counters.iter().any(|of| of.event == "duration_time" && of.value.is_ok())
}

fn trial(slot: usize, known: &Gathered, first_ns: u64) -> Trial {
    let source = known.sources.join(", ");
    let measure = |name: &str, unit: &str, better, value: f64| Measure {
        name: name.to_owned(),
        unit: unit.into(),
        better,
        value: Ok(value),
        source: source.clone(),
    };
    let mut found = Vec::new();
    let mut flags = Vec::new();
    if let Some(Times { real_ns, user_ns, sys_ns }) = known.times {
        let ns = |name, ns: u64| measure(name, Unit::NANOSECONDS, Better::Lower, ns as f64);
        found.push(ns(measures::WALL, real_ns));
        found.extend(user_ns.map(|user| ns(measures::CPU_USER, user)));
        found.extend(sys_ns.map(|sys| ns(measures::CPU_SYSTEM, sys)));
        found.extend(user_ns.zip(sys_ns).map(|(user, sys)| ns(measures::CPU, user.saturating_add(sys))));
    }
    if let Some(stat) = &known.stat {
        counters(stat, &source, &mut found, &mut flags);
    }
    // A name is unique in a trial.
    let mut names = std::collections::BTreeSet::new();
    found.retain(|measure| names.insert(measure.name.clone()));
    let ended_ns = known.modified_ns.saturating_sub(first_ns);
    let last_output = String::new();
    Trial { slot, began_ns: ended_ns, ended_ns, end: TrialEnd::Done, measures: found, flags, last_output }
}

fn counters(stat: &Stat, source: &str, found: &mut Vec<Measure>, flags: &mut Vec<Flag>) {
    let flag = |kind: &str, text: String| Flag { kind: kind.to_owned(), text };
    let mut shared: Vec<String> = Vec::new();
    for counter in &stat.counters {
        let of = counter.cgroup.as_ref().map_or(String::new(), |cgroup| format!("@{cgroup}"));
        let name = format!("{}{of}", counter.event);
        let (unit, factor) = unit(counter);
        let value = counter.value.clone().map(|value| value * factor);
        let put = |name: String, unit: &str, better, value| Measure {
            name,
            unit: unit.into(),
            better,
            value,
            source: source.to_owned(),
        };
        if counter.event == "duration_time" && !found.iter().any(|known| known.name == measures::WALL) {
            found.push(put(measures::WALL.to_owned(), Unit::NANOSECONDS, Better::Lower, value.clone()));
        }
        let key = format!("{}{name}", measures::COUNTER);
        found.push(put(key, unit, better(&counter.event), value));
        for (at, (value, unit)) in counter.metrics.iter().enumerate() {
            let more = if at > 0 { format!("#{}", at + 1) } else { String::new() };
            found.push(put(format!("metric.{name}{more}"), unit, Better::Neither, Ok(*value)));
        }
        if let Some(percent) = counter.deviation_percent {
            let key = format!("deviation.{name}");
            found.push(put(key, Unit::PERMILLE, Better::Neither, Ok(percent * 10.0)));
        }
        let percent = counter.running_percent.filter(|&percent| percent < 100.0 && counter.value.is_ok());
        shared.extend(percent.map(|percent| format!("{name} {percent:.2} %")));
    }
    if let Some(run_ns) = stat.counters.iter().filter_map(|counter| counter.run_ns).max() {
        found.push(Measure {
            name: RUNNING.to_owned(),
            unit: Unit::NANOSECONDS.into(),
            better: Better::Lower,
            value: Ok(run_ns as f64),
            source: source.to_owned(),
        });
    }
    if !shared.is_empty() {
        flags.push(flag(Flag::MULTIPLEXED, format!("counted for a part of the time: {}", shared.join(", "))));
    }
    if stat.counters.iter().any(|counter| counter.deviation_percent.is_some()) {
        let text = "perf stat -r: each value is the mean of several runs, and counts as one".to_owned();
        flags.push(flag(AVERAGED, text));
    }
}

/// The unit of a counter among ours, and the factor to it.
fn unit(counter: &Counter) -> (&str, f64) {
    match counter.unit.as_str() {
        "" => (Unit::COUNT, 1.0),
        "ns" => (Unit::NANOSECONDS, 1.0),
        "usec" => (Unit::NANOSECONDS, 1e3),
        "msec" => (Unit::NANOSECONDS, 1e6),
        other => (other, 1.0),
    }
}

/// Which direction is good, as far as the name of an event says.
fn better(event: &str) -> Better {
    const ILLS: [&str; 9] =
        ["miss", "fault", "switch", "migration", "cycles", "stall", "walk", "clock", "duration"];
    let event = event.to_ascii_lowercase();
    if ILLS.iter().any(|ill| event.contains(ill)) { Better::Lower } else { Better::Neither }
}
