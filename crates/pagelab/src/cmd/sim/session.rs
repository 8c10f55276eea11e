//! A study from its plan to its run file and its report: run, gone on with, stopped.

use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use pagelab_host::capture::Stop;
use pagelab_host::root::Root;
use pagelab_model::run::{Ending, Event, Moment};
use pagelab_model::study::{Study, StudyPlan, StudyTrial};
use pagelab_report::json::{header, study as json, to_text};
use pagelab_runfile::{Error, ErrorKind, Reader, Writer};
use serde_json::Value;

use super::catalogue;
use super::pool::{Job, News, one, processors};
use super::progress::Progress;
use crate::cmd::run::free_name;
use crate::cmd::{report, run_file, usage};
use crate::exit::{Exit, Failure};
use crate::{manifest, out};

/// Configurations of a study at most; a run file refuses more trials than 4 million.
pub const CELLS_MAX: usize = 1 << 16;
/// What makes a file that can be gone on with.
const MAKER: &str = "`pagelab sim sweep -o FILE`";
/// Trials of a study at most.
const TRIALS_MAX: usize = 1 << 22;

/// How a study is carried out and shown.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// The run file; `None`: none is written.
    pub output: Option<PathBuf>,
    /// Its name was not chosen by whoever asked, who has to be told it.
    pub is_named_here: bool,
    /// Threads; `None`: one for each processor.
    pub threads: Option<NonZero<usize>>,
    /// As JSON.
    pub json: bool,
    /// All figures, not the summary alone.
    pub verbose: bool,
}

impl How {
    /// The same with a run file in any case: `NAME-1.pagelab` or the next free name.
    pub fn named(self, name: &str) -> How {
        match self.output {
            Some(_) => self,
            None => How { output: Some(free_name(name)), is_named_here: true, ..self },
        }
    }
}

/// A run file that is written meanwhile.
struct Journal {
    path: PathBuf,
    writer: Writer,
    started: Moment,
}

impl Journal {
    fn now_ns(&self) -> u64 {
        manifest::now().boottime_ns.saturating_sub(self.started.boottime_ns)
    }
}

/// Runs a plan that nobody has begun.
pub fn begin(plan: StudyPlan, how: &How) -> Result<u8, Failure> {
    check(&plan)?;
    let stop = watch()?;
    let mut trials = Vec::new();
    if let Some(judged) = &plan.judged {
        // Whether there is such a figure is known from a trial alone: better before hours of them.
        let first = one(&plan, 0, &mut |_| stop.signal().is_none())?;
        let keys: Vec<String> = first.figures.iter().map(|figure| figure.key()).collect();
        let is_stopped = stop.signal().is_some();
        if !is_stopped && !keys.contains(judged) {
            return Err(usage(&format!("--by {judged}: no such figure; there are {}", keys.join(", "))));
        }
        // One that was stopped in the middle is none.
        trials.extend(Some(first).filter(|_| !is_stopped));
    }
    let journal = match &how.output {
        None => None,
        Some(path) => Some(create(path, &plan)?),
    };
    let study = Study { plan, trials: Vec::new() };
    let mut session = Session { study, journal, is_named_here: how.is_named_here, stop: &stop };
    for trial in trials {
        session.keep(trial)?;
    }
    session.run(how)
}

/// What is wrong with a plan, before anything is begun.
pub fn check(plan: &StudyPlan) -> Result<(), Failure> {
    for cell in &plan.cells {
        catalogue::check(cell).map_err(|text| usage(&text))?;
    }
    match plan.slots() {
        Some(0) => Err(usage("nothing would run: at least one configuration and one seed were wanted")),
        Some(slots) if slots <= TRIALS_MAX && plan.cells.len() <= CELLS_MAX => Ok(()),
        _ => {
            let (cells, seeds) = (plan.cells.len(), plan.seeds.len());
            Err(usage(&format!(
                "{cells} configurations with {seeds} seeds each: at most {CELLS_MAX} configurations and \
                 {TRIALS_MAX} runs are kept in one file; take fewer values, or --random N"
            )))
        }
    }
}

fn watch() -> Result<Stop, Failure> {
    let why = "cannot watch for signals, so nothing is begun";
    Stop::watch().map_err(|error| Failure::new(Exit::NotAvailable, why).because(error))
}

fn create(path: &Path, plan: &StudyPlan) -> Result<Journal, Failure> {
    let started = manifest::now();
    let look = manifest::this_machine(&Root::live());
    let manifest = manifest::of_this_process("sim", plan.seeds.first().copied(), started, &look);
    let mut writer = Writer::create(path, &manifest).map_err(|error| run_file(&error))?;
    writer.study(0, plan).map_err(|error| run_file(&error))?;
    writer.flush().map_err(|error| run_file(&error))?;
    Ok(Journal { path: path.to_owned(), writer, started })
}

/// Goes on with a file that was stopped, or whose writer was killed.
pub fn resume(path: &Path, how: &How) -> Result<u8, Failure> {
    let bad =
        |text: &str| Failure::new(Exit::BadInput, format!("cannot go on with {}: {text}", path.display()));
    let refused = |error: &Error| report::refusal_by(error, MAKER);
    let no_study = || bad(&format!("it holds no simulated study; {MAKER} makes one"));
    let (mut writer, run) = match Writer::resume(path) {
        Ok(both) => both,
        // One that is complete has nothing left to do, and is shown; one of another kind is none of ours.
        Err(error) if error.kind() == ErrorKind::NotStorable => {
            let run = Reader::open(path).and_then(|reader| reader.run()).map_err(|error| refused(&error))?;
            return match run.study {
                Some(study) if study.plan.slots() == Some(study.trials.len()) => {
                    out::complain(&format!(
                        "pagelab: {} is complete: nothing is left to make",
                        path.display()
                    ));
                    print(&study, how).map(|()| Exit::Done as u8)
                }
                Some(_) => Err(refused(&error)),
                None => Err(no_study()),
            };
        }
        Err(error) => return Err(refused(&error)),
    };
    let Some(study) = run.study else { return Err(no_study()) };
    let ours = simulator();
    if study.plan.simulator != ours {
        return Err(bad(&format!(
            "it was begun by simulator {}, this one is {ours}, and figures of both do not belong \
             together; take the version that began it, or begin a new one",
            study.plan.simulator
        )));
    }
    let stop = watch()?;
    check(&study.plan).map_err(|failure| bad(&failure.to_string()))?;
    if let Some(first) = study.trials.first() {
        let again = one(&study.plan, first.slot, &mut |_| stop.signal().is_none())?;
        if stop.signal().is_none() && again != *first {
            return Err(bad(
                "a run of it comes to something else here; take the pagelab that began it, or begin a new \
                 one",
            ));
        }
    }
    let started = run.manifest.started;
    let slots = study.plan.slots().unwrap_or(0);
    let text = format!("gone on with, {} runs of {slots} done", study.trials.len());
    let now = manifest::now();
    // After a boot that clock begins anew; the wall clock goes on.
    let at_ns = match now.boottime_ns.checked_sub(started.boottime_ns) {
        Some(at_ns) => at_ns,
        None => now.realtime_ns.saturating_sub(started.realtime_ns),
    };
    let event = Event { at_ns, kind: "resumed".to_owned(), text };
    writer.event(&event).map_err(|error| run_file(&error))?;
    out::complain(&format!(
        "pagelab: {} of {slots} runs kept, {} to make",
        study.trials.len(),
        slots - study.trials.len()
    ));
    let started = Moment { boottime_ns: now.boottime_ns.saturating_sub(at_ns), ..started };
    let journal = Some(Journal { path: path.to_owned(), writer, started });
    Session { study: *study, journal, is_named_here: false, stop: &stop }.run(how)
}

/// The version whose results belong together.
pub fn simulator() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Prints a study: a document, or tables.
pub fn print(study: &Study, how: &How) -> Result<(), Failure> {
    let text = if how.json {
        let document: Value = json::put(header("sim_study"), study).into();
        to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?
    } else {
        pagelab_report::study::render(study, how.verbose, out::style())
    };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

struct Session<'s> {
    study: Study,
    journal: Option<Journal>,
    is_named_here: bool,
    stop: &'s Stop,
}

impl Session<'_> {
    fn keep(&mut self, trial: StudyTrial) -> Result<(), Failure> {
        if let Some(journal) = &mut self.journal {
            let at_ns = journal.now_ns();
            journal.writer.study_trial(at_ns, &trial).map_err(|error| run_file(&error))?;
        }
        self.study.trials.push(trial);
        Ok(())
    }

    /// Runs what is due, closes the file and prints the report.
    fn run(mut self, how: &How) -> Result<u8, Failure> {
        let slots = self.study.plan.slots().unwrap_or(0);
        let done: BTreeSet<usize> = self.study.trials.iter().map(|trial| trial.slot).collect();
        let due: Vec<usize> = (0..slots).filter(|slot| !done.contains(slot)).collect();
        let plan = self.study.plan.clone();
        let threads = how.threads.unwrap_or_else(processors);
        let job = Job { plan: &plan, due: &due, threads, stop: self.stop };
        let mut progress = Progress::new(&plan, slots, due.len(), threads.get().min(due.len()));
        let came = job.run(|news| {
            match news {
                News::At(thousandths) => progress.at(thousandths),
                News::Done(trial) => {
                    self.keep(*trial)?;
                    progress.one_more();
                }
            }
            Ok(())
        });
        progress.clear();
        self.study.trials.sort_by_key(|trial| trial.slot);
        let left = slots - self.study.trials.len();
        let signal = self.stop.signal().filter(|_| left > 0);
        self.close(signal, left, &came)?;
        came?;
        print(&self.study, how)?;
        Ok(self.end(signal, left))
    }

    fn close(&mut self, signal: Option<i32>, left: usize, came: &Result<(), Failure>) -> Result<(), Failure> {
        let Some(journal) = self.journal.take() else { return Ok(()) };
        let after_ns = journal.now_ns();
        let ending = match (signal, came) {
            (_, Err(failure)) => Ending::Stopped { after_ns, why: failure.to_string() },
            (Some(signal), _) => Ending::Stopped { after_ns, why: out::signal_name(128 + signal).to_owned() },
            _ if left > 0 => Ending::Stopped { after_ns, why: format!("{left} runs are left") },
            _ => Ending::Complete { after_ns },
        };
        let path = journal.path;
        let closed = journal.writer.close(ending).map_err(|error| run_file(&error));
        let name = path.display();
        let text = match (left, signal) {
            (0, _) => format!("→ {name}   pagelab report {name}"),
            _ => format!(
                "pagelab: {} runs are kept in {name}, {left} are left\n  go on with: pagelab sim sweep \
                 --resume {name}",
                self.study.trials.len()
            ),
        };
        if left > 0 || self.is_named_here {
            out::complain(&text)
        } else {
            out::note(&text)
        }
        // What the trials ended with is told first.
        if came.is_ok() { closed } else { Ok(()) }
    }

    fn end(&self, signal: Option<i32>, left: usize) -> u8 {
        match signal {
            Some(signal) => {
                let why = out::signal_name(128 + signal);
                out::complain(&format!("pagelab: stopped by {why}; {left} runs are left"));
                u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8)
            }
            None if left > 0 => Exit::Partial as u8,
            None => Exit::Done as u8,
        }
    }
}
