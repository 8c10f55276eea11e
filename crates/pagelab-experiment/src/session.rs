//! An experiment from its first trial to its last: what is due, what is written, what is told meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use pagelab_model::experiment::{Measure, Role, Trial, TrialEnd, measures};
use pagelab_model::run::{Event, Moment, Run, StreamHead};
use pagelab_runfile::{Error, StreamId, Writer};
use pagelab_sys::clock;

use crate::trial::{self, Bench, Others, Ran};

/// How long the machine is looked at before anything runs.
const PREFLIGHT: Duration = Duration::from_secs(1);
/// The event that keeps a checksum for those who go on later.
const CHECKSUM: &str = "checksum";
/// So many trials without a result, and nothing else, and the others of that workload are not begun.
const FRUITLESS_MIN: usize = 2;
/// Measures that are raw samples of the run file too, so that SQL finds them.
const SAMPLED: [&str; 5] = [measures::WALL, measures::CPU, measures::MERIT, measures::PEAK, measures::HUGE];

/// The times of a run, which go on where an earlier life of its file ended.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time of the run at the moment `at_ns`.
    base_ns: u64,
    at_ns: u64,
}

impl Times {
    /// Of a run that began then.
    pub fn since(started: Moment) -> Times {
        Times { base_ns: 0, at_ns: started.boottime_ns }
    }

    /// Of a run that goes on. In the same boot its clock simply went on; after another boot, where the clock
    /// of boot time began anew, times go on behind the last one.
    pub fn of_resumed(run: &Run, now: Moment) -> Times {
        let started = run.manifest.started;
        let last_ns = last_ns(run);
        let by_boot = now.boottime_ns.checked_sub(started.boottime_ns);
        let by_wall = now.realtime_ns.saturating_sub(started.realtime_ns);
        // The wall clock may have been set by some seconds, not by the time between two boots.
        let is_same_boot = by_boot.is_some_and(|by_boot| by_boot.abs_diff(by_wall) < 60_000_000_000);
        let base_ns = by_boot.filter(|&ns| is_same_boot && ns > last_ns).unwrap_or(last_ns + 1);
        Times { base_ns, at_ns: now.boottime_ns }
    }

    /// The time since the run's start.
    pub fn now_ns(&self) -> u64 {
        self.base_ns.saturating_add(clock::boottime_ns().saturating_sub(self.at_ns))
    }
}

/// The last time that stands in a file.
fn last_ns(run: &Run) -> u64 {
    let events = run.events.iter().map(|event| event.at_ns);
    let samples = run.streams.iter().filter_map(|stream| stream.at_ns.last().copied());
    let trials = run.experiment.iter().flat_map(|of| of.trials.iter().map(|trial| trial.ended_ns));
    events.chain(samples).chain(trials).max().unwrap_or(0)
}

/// What happens, for whoever watches.
#[derive(Debug)]
pub enum News<'n> {
    /// What the machine did before the first trial, in words, and whether it was quiet.
    Preflight(&'n str, bool),
    /// Something that must be known, in words.
    Told(&'n str),
    /// A trial begins: its number from 1, of how many; time that is left, if anything is known of it.
    Begins {
        /// From 1 on.
        number: usize,
        /// All that are left to do and were done.
        of: usize,
        /// The workload's name.
        workload: &'n str,
        /// The variant's name.
        variant: &'n str,
        /// For this trial and all after it.
        left: Option<Duration>,
    },
    /// A trial ended.
    Ended(&'n Trial),
}

/// What a session came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// Trials that ended, of all lives of the file.
    pub trials: usize,
    /// Those of them that count.
    pub good: usize,
    /// Trials that are still to be done.
    pub left: usize,
}

/// An experiment that goes on.
pub struct Session<'s> {
    bench: Bench<'s>,
    writer: &'s mut Writer,
    times: Times,
    news: &'s mut dyn FnMut(&News<'_>),
    trials: BTreeMap<usize, Trial>,
    checksums: BTreeMap<String, String>,
    streams: BTreeMap<StreamKey, StreamId>,
    spent: BTreeMap<(usize, usize), (Duration, u32)>,
    /// What a model said of a workload under a variant, until a trial takes it into the file.
    modelled: BTreeMap<(usize, usize), Vec<Measure>>,
}

/// Measure, workload, variant, and whether it is of a twin.
type StreamKey = (&'static str, usize, usize, bool);

impl<'s> Session<'s> {
    /// A session that has done nothing. `so_far` is the file as it was found, where it is gone on with.
    pub fn new(
        bench: Bench<'s>,
        writer: &'s mut Writer,
        times: Times,
        so_far: Option<&Run>,
        news: &'s mut dyn FnMut(&News<'_>),
    ) -> Session<'s> {
        let earlier = so_far.and_then(|run| run.experiment.as_ref()).map_or(&[][..], |of| &of.trials);
        let is_kept = |trial: &&Trial| !matches!(trial.end, TrialEnd::Stopped);
        let kept = || earlier.iter().filter(is_kept);
        let trials = kept().map(|trial| (trial.slot, trial.clone())).collect();
        let events = so_far.map_or(&[][..], |run| &run.events);
        let checksums = events.iter().filter(|event| event.kind == CHECKSUM);
        let checksums = checksums.filter_map(|event| event.text.rsplit_once(": "));
        let checksums = checksums.map(|(of, sum)| (of.to_owned(), sum.to_owned())).collect();
        let (streams, spent) = (BTreeMap::new(), BTreeMap::new());
        let modelled = BTreeMap::new();
        let mut session = Session { bench, writer, times, news, trials, checksums, streams, spent, modelled };
        kept().for_each(|trial| session.note_time(trial));
        session
    }

    /// Carries out what is due: until all is done, or somebody asked to stop.
    pub fn run(&mut self) -> Result<Came, Error> {
        self.preflight()?;
        let schedule = &self.bench.resolved.plan.schedule;
        let mut due: VecDeque<usize> =
            (0..schedule.len()).filter(|slot| !self.trials.contains_key(slot)).collect();
        self.begin_swap(&due)?;
        self.model(&due)?;
        let mut again = Vec::new();
        while let Some(slot) = due.pop_front() {
            if (self.bench.stop)().is_some() {
                break;
            }
            let trial = self.trial(slot, &due)?;
            match &trial.end {
                TrialEnd::Stopped => break,
                // Once more, after all others.
                TrialEnd::Rejected(_) if !again.contains(&slot) => {
                    again.push(slot);
                    due.push_back(slot);
                }
                TrialEnd::Nonsense(why) => self.leave_out_fruitless(slot, why, &mut due)?,
                _ => {}
            }
        }
        for text in self.bench.swap.finish() {
            (self.news)(&News::Told(&text));
            self.event("swap", text)?;
        }
        let is_good = |trial: &&Trial| trial.end == TrialEnd::Done;
        let left = self.bench.resolved.plan.schedule.len().saturating_sub(self.trials.len());
        Ok(Came { trials: self.trials.len(), good: self.trials.values().filter(is_good).count(), left })
    }

    /// Takes the other trials of a workload off the list, once two of it ended well without a result, for the
    /// same reason, and none had one: a text that never occurs in its output is not looked for all night.
    fn leave_out_fruitless(
        &mut self,
        slot: usize,
        why: &str,
        due: &mut VecDeque<usize>,
    ) -> Result<(), Error> {
        let plan = &self.bench.resolved.plan;
        let workload = plan.schedule[slot].workload;
        let ends: Vec<&TrialEnd> = self
            .trials
            .values()
            .filter(|trial| plan.schedule[trial.slot].workload == workload)
            .map(|trial| &trial.end)
            .collect();
        let is_same = |end: &&TrialEnd| matches!(end, TrialEnd::Nonsense(of) if of == why);
        let before = due.len();
        if ends.len() < FRUITLESS_MIN || !ends.iter().all(is_same) {
            return Ok(());
        }
        due.retain(|slot| plan.schedule[*slot].workload != workload);
        let (name, count) = (&plan.workloads[workload].name, before - due.len());
        if count > 0 {
            let text =
                format!("{name}: its first {} trials had no result: {why}; {count} are left out", ends.len());
            (self.news)(&News::Told(&text));
            self.event("trial", text)?;
        }
        Ok(())
    }

    /// Makes the swap file, where a trial that is due needs one: as large as the largest of them wants.
    fn begin_swap(&mut self, due: &VecDeque<usize>) -> Result<(), Error> {
        let resolved = self.bench.resolved;
        let swap = |slot: &usize| resolved.recipe.variants[resolved.plan.schedule[*slot].variant].swap;
        let Some(size) = due.iter().filter_map(swap).max().filter(|size| size.0 > 0) else { return Ok(()) };
        let said = self.bench.swap.make(&self.bench.site, size);
        (self.news)(&News::Told(&said));
        self.event("swap", said)
    }

    /// Runs the model for each workload and variant of which no trial has taken it in yet: before all trials,
    /// so that none has it for a neighbour.
    fn model(&mut self, due: &VecDeque<usize>) -> Result<(), Error> {
        let Some(model) = self.bench.model else { return Ok(()) };
        let resolved = self.bench.resolved;
        let plan = &resolved.plan;
        let is_model = |trial: &Trial| trial.measures.iter().any(|of| of.name.starts_with(measures::MODEL));
        let cell = |slot: usize| (plan.schedule[slot].workload, plan.schedule[slot].variant);
        let done: Vec<_> = self.trials.values().filter(|of| is_model(of)).map(|of| cell(of.slot)).collect();
        let is_measured = |slot: &&usize| plan.schedule[**slot].role == Role::Measured;
        for &slot in due.iter().filter(is_measured) {
            let of = cell(slot);
            let is_missing = self.bench.missing.get(of.0).is_some_and(Option::is_some);
            if is_missing || done.contains(&of) || self.modelled.contains_key(&of) {
                continue;
            }
            if (self.bench.stop)().is_some() {
                break;
            }
            let found = model(of.0, of.1);
            if let Err(why) = &found {
                let names = (&plan.workloads[of.0].name, &plan.variants[of.1].name);
                let text = format!("no model of {} under {}: {why}", names.0, names.1);
                (self.news)(&News::Told(&text));
                self.event("model", text)?;
            }
            self.modelled.insert(of, found.unwrap_or_default());
        }
        Ok(())
    }

    /// Looks whether the machine is quiet.
    fn preflight(&mut self) -> Result<(), Error> {
        let (before, until) = (Others::now(), Instant::now() + PREFLIGHT);
        while Instant::now() < until && (self.bench.stop)().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let now = Others::now();
        let share = now.share_since(&before, 0);
        let is_quiet = now.not_quiet_since(&before, 0).is_none();
        let share = share.map_or("unknown".to_owned(), |share| format!("{:.0} % of a CPU", share * 100.0));
        let text = match is_quiet {
            true => format!("the machine is quiet: others use {share}"),
            false => format!("the machine is not quiet: others use {share}; trials beside them are flagged"),
        };
        let text = format!("{text} ({})", trial::averages());
        (self.news)(&News::Preflight(&text, is_quiet));
        self.event("preflight", text)
    }

    fn trial(&mut self, slot: usize, due: &VecDeque<usize>) -> Result<Trial, Error> {
        let resolved = self.bench.resolved;
        let plan = &resolved.plan;
        let at = plan.schedule[slot];
        let left = self.left(slot, due);
        let of = plan.schedule.len();
        (self.news)(&News::Begins {
            number: of.saturating_sub(due.len()),
            of,
            workload: &plan.workloads[at.workload].name,
            variant: &plan.variants[at.variant].name,
            left,
        });
        let began_ns = self.times.now_ns();
        let mut ran = trial::run(&self.bench, at.workload, at.variant);
        let ended_ns = self.times.now_ns();
        if let Some(why) = self.other_checksum(slot, &ran)? {
            ran.end = TrialEnd::Nonsense(why);
        }
        for note in std::mem::take(&mut ran.notes) {
            let (workload, variant) = (&plan.workloads[at.workload].name, &plan.variants[at.variant].name);
            self.event("trial", format!("{workload}, {variant}: {note}"))?;
        }
        let Ran { end, mut measures, flags, last_output, .. } = ran;
        if end == TrialEnd::Done && at.role == Role::Measured {
            // One of the trials has it: it was one run, and has no spread.
            measures.extend(
                self.modelled.get_mut(&(at.workload, at.variant)).into_iter().flat_map(std::mem::take),
            );
        }
        let trial = Trial { slot, began_ns, ended_ns, end, measures, flags, last_output };
        self.writer.trial(&trial)?;
        self.samples(&trial)?;
        // What was measured takes long to measure again.
        self.writer.flush()?;
        self.note_time(&trial);
        if trial.end != TrialEnd::Stopped {
            self.trials.insert(slot, trial.clone());
        }
        (self.news)(&News::Ended(&trial));
        Ok(trial)
    }

    /// Why its result is none, if other trials of the same options had another checksum.
    fn other_checksum(&mut self, slot: usize, ran: &Ran) -> Result<Option<String>, Error> {
        let (TrialEnd::Done, Some(sum)) = (&ran.end, &ran.checksum) else { return Ok(None) };
        let at = self.bench.resolved.plan.schedule[slot];
        // Advice changes where memory lies, never what is computed.
        let options = self.bench.resolved.options(at.workload, at.variant);
        let options: Vec<String> = options
            .iter()
            .filter(|(name, _)| name != "advise")
            .map(|(name, value)| format!("--{name} {value}"))
            .collect();
        let name = &self.bench.resolved.plan.workloads[at.workload].name;
        let key = format!("{name} {}", options.join(" ")).trim().to_owned();
        match self.checksums.get(&key) {
            Some(known) if known != sum => {
                Ok(Some(format!("its checksum is {sum}, and other trials of the same options have {known}")))
            }
            Some(_) => Ok(None),
            None => {
                self.event(CHECKSUM, format!("{key}: {sum}"))?;
                self.checksums.insert(key, sum.clone());
                Ok(None)
            }
        }
    }

    fn samples(&mut self, trial: &Trial) -> Result<(), Error> {
        let plan = &self.bench.resolved.plan;
        let at = plan.schedule[trial.slot];
        if trial.end != TrialEnd::Done || at.role == Role::WarmUp {
            return Ok(());
        }
        for name in SAMPLED {
            let Some(measure) = trial.measures.iter().find(|measure| measure.name == name) else { continue };
            let Ok(value) = measure.value else { continue };
            let key = (name, at.workload, at.variant, at.role == Role::Twin);
            let stream = match self.streams.get(&key) {
                Some(stream) => *stream,
                None => {
                    let mut labels = vec![
                        ("workload".to_owned(), plan.workloads[at.workload].name.clone()),
                        ("variant".to_owned(), plan.variants[at.variant].name.clone()),
                    ];
                    if at.role == Role::Twin {
                        labels.push(("role".to_owned(), "twin".to_owned()));
                    }
                    let head = StreamHead { name: name.to_owned(), unit: measure.unit.clone(), labels };
                    let stream = self.writer.stream(&head)?;
                    self.streams.insert(key, stream);
                    stream
                }
            };
            self.writer.sample(stream, trial.ended_ns, value)?;
        }
        Ok(())
    }

    fn event(&mut self, kind: &str, text: String) -> Result<(), Error> {
        let at_ns = self.times.now_ns();
        self.writer.event(&Event { at_ns, kind: kind.to_owned(), text })
    }

    fn note_time(&mut self, trial: &Trial) {
        let at = self.bench.resolved.plan.schedule[trial.slot];
        let peak = trial.measures.iter().find(|measure| measure.name == measures::PEAK);
        if let Some(peak) = peak.and_then(|peak| peak.value.as_ref().ok()) {
            let mut peaks = self.bench.peaks.borrow_mut();
            let known = peaks.entry(at.workload).or_default();
            *known = (*known).max(*peak as u64);
        }
        let spent = Duration::from_nanos(trial.ended_ns.saturating_sub(trial.began_ns));
        let (sum, count) = self.spent.entry((at.workload, at.variant)).or_default();
        (*sum, *count) = (*sum + spent, *count + 1);
    }

    /// Time for a slot and those behind it: by trials of the same kind, else of the same workload, else by
    /// what the recipe says.
    fn left(&self, slot: usize, due: &VecDeque<usize>) -> Option<Duration> {
        let mean = |spent: (Duration, u32)| (spent.1 > 0).then(|| spent.0 / spent.1);
        let of_workload = |workload: usize| {
            let same = self.spent.iter().filter(|((of, _), _)| *of == workload);
            mean(same.fold((Duration::ZERO, 0), |sum, (_, one)| (sum.0 + one.0, sum.1 + one.1)))
        };
        let time = |slot: &usize| {
            let at = self.bench.resolved.plan.schedule[*slot];
            let known = self.spent.get(&(at.workload, at.variant)).copied().and_then(mean);
            let takes = self.bench.resolved.recipe.workloads[at.workload].takes;
            known.or_else(|| of_workload(at.workload)).or(takes)
        };
        std::iter::once(&slot).chain(due).map(time).sum()
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::machine::Machine;
    use pagelab_model::run::{Ending, Manifest};
    use pagelab_model::{PageSize, Snapshot};

    use super::*;

    fn run(started: Moment, last_ns: u64) -> Run {
        let snapshot = Snapshot::unread("test", PageSize::USUAL);
        let manifest = Manifest {
            kind: "run".to_owned(),
            tool_version: String::new(),
            command_line: Vec::new(),
            seed: None,
            started,
            machine: Machine::unread(PageSize::USUAL),
            settings: snapshot.settings,
        };
        let mut run = Run::new("test", manifest, Ending::NotClosed);
        run.events.push(Event { at_ns: last_ns, kind: String::new(), text: String::new() });
        run
    }

    #[test]
    fn times_go_on_in_the_same_boot_and_in_another() {
        let s = 1_000_000_000;
        let started = Moment { realtime_ns: 5000 * s, boottime_ns: 100 * s };
        let same = Moment { realtime_ns: 5060 * s, boottime_ns: 160 * s };
        assert_eq!(Times::of_resumed(&run(started, 20 * s), same).base_ns, 60 * s);
        let rebooted = Moment { realtime_ns: 9000 * s, boottime_ns: 30 * s };
        assert_eq!(Times::of_resumed(&run(started, 20 * s), rebooted).base_ns, 20 * s + 1);
        let longer_up = Moment { realtime_ns: 900_000 * s, boottime_ns: 300 * s };
        assert_eq!(Times::of_resumed(&run(started, 20 * s), longer_up).base_ns, 20 * s + 1);
        let set_back = Moment { realtime_ns: 4000 * s, boottime_ns: 160 * s };
        assert!(Times::of_resumed(&run(started, 20 * s), set_back).base_ns > 20 * s);
    }
}
