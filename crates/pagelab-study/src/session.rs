//! Session of a simulated experiment, from its plan to its run file and its report: run, stopped, resumed.

use std::num::NonZero;
use std::path::Path;

use pagelab_command::atomic_file::{NewRunFile, free_run_file_name};
use pagelab_command::{manifest, output};
use pagelab_experiment::engine::{ExperimentError, SessionEvent};
use pagelab_experiment::place::{FinishedTrial, LossKind, LostTrial, Place};
use pagelab_experiment::session::{ExperimentSession, SessionEnd, SessionFile};
use pagelab_host::capture::StopSignal;
use pagelab_host::root::Root;
use pagelab_model::experiment::{Experiment, Plan};
use pagelab_model::run::Run;
use pagelab_report::attachments::has_series_in_text;
use pagelab_report::json::{document_header, experiment as json};
use pagelab_runfile::{Error, ErrorKind, RunWriter, read_run_file};
use serde_json::Value;

use crate::progress::SimulationProgress;
use crate::sim_place::{ShownSeries, SimPlace};
use pagelab_command::exit::{
    Exit, Failure, FailureKind, read_failure_for, run_file_write_failure, usage_error,
};

/// Command that writes a file that can be resumed.
const SWEEP_COMMAND: &str = "`pagelab sim sweep -o FILE`";

/// Options of running and printing a simulated experiment.
#[derive(Clone, Debug, Default)]
pub struct SimulationOptions {
    /// Run file; `None` writes no file.
    pub output: Option<NewRunFile>,
    /// The name was not chosen by the user, and must be reported.
    pub is_name_generated: bool,
    /// Threads; `None` for one per CPU.
    pub threads: Option<NonZero<usize>>,
    /// Output as JSON.
    pub json: bool,
    /// Print all figures, not only the summary.
    pub verbose: bool,
}

impl SimulationOptions {
    /// The same options with a run file in any case: `NAME-1.pagelab` or the next free name.
    pub fn with_run_file(mut self, name: &str) -> SimulationOptions {
        if self.output.is_none() {
            self.output = Some(NewRunFile::at(free_run_file_name(name)));
            self.is_name_generated = true;
        }
        self
    }

    fn place<'p>(&self, plan: &'p Plan) -> SimPlace<'p> {
        let series = match self.json {
            true => ShownSeries::All,
            false if has_series_in_text(plan, self.verbose) => ShownSeries::FirstSeed,
            false => ShownSeries::None,
        };
        SimPlace { plan, threads: self.threads, series }
    }
}

/// Starts a new plan.
pub fn start(plan: Plan, options: &SimulationOptions) -> Result<u8, Failure> {
    check_plan(&plan)?;
    let stop = watch_signals()?;
    let place = options.place(&plan);
    let mut first_trial = None;
    if let Some(judged) = plan.sweep.as_ref().and_then(|sweep| sweep.judged.as_ref()) {
        // Figure names are known only after a trial: check them before hours of trials.
        let finished =
            place.carry_out(0, &mut |_| stop.signal().is_none()).map_err(|lost| loss_failure(&lost))?;
        let keys: Vec<String> = finished.trial.measures.iter().map(|measure| measure.key()).collect();
        let is_stopped = stop.signal().is_some();
        if !is_stopped && !keys.contains(judged) {
            return Err(Failure::unknown("figure", judged, &keys));
        }
        // Discard an interrupted trial.
        first_trial = Some(finished).filter(|_| !is_stopped);
    }
    let session = SimulationSession { plan: &plan, place, stop: &stop, options };
    let Some(NewRunFile { path, replaces }) = &options.output else {
        return session.run(SessionFile::None, None, first_trial);
    };
    let started = manifest::current_moment();
    let machine = manifest::read_this_machine(&Root::live());
    let manifest = manifest::build_for_process("sim", plan.seeds().first().copied(), started, &machine);
    let file = SessionFile::New { path, replaces: *replaces, manifest: &manifest };
    session.run(file, Some(path), first_trial)
}

/// Validates a plan before it starts.
pub fn check_plan(plan: &Plan) -> Result<(), Failure> {
    SimulationOptions::default().place(plan).check_plan(plan).map_err(|text| usage_error(&text))
}

/// The failure of an experiment; one of a resumed file names it.
pub fn experiment_failure(error: &ExperimentError, resumed: Option<&Path>) -> Failure {
    match (error, resumed) {
        (ExperimentError::Rejected(text), Some(path)) => Failure::cannot_resume(path, text),
        (ExperimentError::Rejected(text), None) => usage_error(text),
        (ExperimentError::NotWritten(error), _) => run_file_write_failure(error),
        (ExperimentError::Lost(lost), _) => loss_failure(lost),
    }
}

fn loss_failure(lost: &LostTrial) -> Failure {
    let kind = match lost.kind {
        LossKind::Rejected => FailureKind::Usage,
        LossKind::NotAvailable => FailureKind::NotAvailable,
        LossKind::DiskFull => FailureKind::Partial,
        LossKind::Defect => FailureKind::Bug,
    };
    Failure::new(kind, lost.reason.clone())
}

/// Watches the signals that stop an experiment, before it begins.
pub fn watch_signals() -> Result<StopSignal, Failure> {
    StopSignal::watch().map_err(Failure::no_signal_handlers)
}

/// Resumes a file that was stopped, or whose writer was killed.
pub fn resume(path: &Path, options: &SimulationOptions) -> Result<u8, Failure> {
    let refused = |error: &Error| read_failure_for(error, SWEEP_COMMAND);
    let no_experiment = || {
        let text = format!("it contains no simulated experiment; hint: create one with {SWEEP_COMMAND}");
        Failure::cannot_resume(path, text)
    };
    match RunWriter::resume(path) {
        Ok((writer, run)) => {
            let plan = &run.simulated_experiment().ok_or_else(no_experiment)?.plan;
            resume_open(path, (writer, &run), plan, options)
        }
        Err(error) if error.kind() == ErrorKind::NotStorable => {
            let run = read_run_file(path).map_err(|error| refused(&error))?;
            let experiment = run.simulated_experiment().ok_or_else(no_experiment)?;
            show_complete(path, experiment, options).unwrap_or_else(|| Err(refused(&error)))
        }
        Err(error) => Err(refused(&error)),
    }
}

/// Shows an experiment that has nothing left to run; `None` if it has.
pub fn show_complete(
    path: &Path,
    experiment: &Experiment,
    options: &SimulationOptions,
) -> Option<Result<u8, Failure>> {
    (experiment.plan.schedule.len() == experiment.trials.len()).then(|| {
        output::warn(&format!("note: {} is complete; nothing left to run", path.display()));
        print_experiment(experiment, options).map(|()| Exit::Success as u8)
    })
}

/// Resumes an open file that has this plan.
pub fn resume_open(
    path: &Path,
    (writer, run): (RunWriter, &Run),
    plan: &Plan,
    options: &SimulationOptions,
) -> Result<u8, Failure> {
    let place = options.place(plan);
    let stop = watch_signals()?;
    let session = SimulationSession { plan, place, stop: &stop, options };
    session.run(SessionFile::Resumed(writer, run), Some(path), None)
}

/// Prints an experiment as JSON or as tables.
pub fn print_experiment(experiment: &Experiment, options: &SimulationOptions) -> Result<(), Failure> {
    let text = if options.json {
        let document: Value = json::with_experiment(document_header("experiment"), experiment).into();
        output::json_text(&document)?
    } else {
        pagelab_report::simulated::render(experiment, options.verbose, output::stdout_style())
    };
    output::print(&text)
}

struct SimulationSession<'s> {
    plan: &'s Plan,
    place: SimPlace<'s>,
    stop: &'s StopSignal,
    options: &'s SimulationOptions,
}

impl SimulationSession<'_> {
    /// Runs the due slots, closes the file and prints the report.
    fn run(
        self,
        file: SessionFile<'_>,
        path: Option<&Path>,
        first_trial: Option<FinishedTrial>,
    ) -> Result<u8, Failure> {
        let SimulationSession { plan, place, stop, options } = self;
        let slots = plan.schedule.len();
        let earlier = file.earlier();
        let due = slots - earlier.map_or(0, |experiment| experiment.trials.len());
        let resumed = path.filter(|_| earlier.is_some());
        let mut progress = SimulationProgress::new(plan, slots, due, place.lanes(due).get());
        let on_event = &mut |event: &SessionEvent<'_>| match event {
            SessionEvent::Progress(thousandths) => progress.update(*thousandths),
            SessionEvent::TrialEnded(_) => progress.count_run(),
            SessionEvent::Note(text) => output::warn(&format!("note: {text}")),
            SessionEvent::TrialStarted { .. } | SessionEvent::GuestBoot { .. } => {}
        };
        let stop = &|| stop.signal();
        let session = ExperimentSession { plan, place: &place, first_trial, stop, on_event };
        let end = session.run(file);
        progress.clear();
        let end = end.map_err(|error| experiment_failure(&error, resumed))?;
        if let Some(path) = path {
            print_file(path, plan, &end, options);
        }
        let SessionEnd { trials, remaining, stopped_by, outcome } = end;
        outcome.map_err(|error| experiment_failure(&error, resumed))?;
        print_experiment(&Experiment { plan: plan.clone(), trials }, options)?;
        Ok(print_end(stopped_by, remaining))
    }
}

/// Names the file and what it holds.
fn print_file(path: &Path, plan: &Plan, end: &SessionEnd, options: &SimulationOptions) {
    let (name, remaining) = (path.display(), end.remaining);
    if remaining > 0 {
        let command = if plan.sweep.is_some() { "sim sweep" } else { "run" };
        output::warn(&format!(
            "note: {} runs are stored in {name}, {remaining} remain\n  resume with: pagelab {command} \
            --resume {name}",
            end.trials.len()
        ));
        return;
    }
    let text = format!("→ {name}   pagelab report {name}");
    if options.is_name_generated { output::warn(&text) } else { output::print_note(&text) }
}

fn print_end(signal: Option<i32>, remaining: usize) -> u8 {
    match signal {
        Some(signal) => {
            let why = pagelab_host::capture::signal_name(signal);
            output::warn(&format!("note: stopped by {why}; {remaining} runs remain"));
            Exit::code_after_signal(signal)
        }
        None if remaining > 0 => Exit::Partial as u8,
        None => Exit::Success as u8,
    }
}
