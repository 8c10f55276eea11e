//! A session of an experiment: the due trials of a plan, at any place, from the open run file to its end.

use std::path::Path;

use pagelab_host::capture::signal_name;
use pagelab_model::experiment::{Experiment, Plan, Trial, TrialEnd};
use pagelab_model::run::{Manifest, Run, RunEnd};
use pagelab_runfile::RunWriter;
use pagelab_sys::clock::current_moment;

use crate::engine::{Engine, ExperimentError, RunClock, SessionEvent, StopRequest};
use crate::place::{FinishedTrial, Place, PlaceEvent};

/// The run file of a session.
pub enum SessionFile<'f> {
    /// Nothing is stored.
    None,
    /// A new file. It is created once the place has checked the plan.
    New {
        /// Its path.
        path: &'f Path,
        /// Whether an existing run file is replaced.
        replaces: bool,
        /// Its manifest.
        manifest: &'f Manifest,
    },
    /// A file that has the plan and no trial.
    Open(RunWriter, RunClock),
    /// A file of an earlier session, as found.
    Resumed(RunWriter, &'f Run),
}

impl<'f> SessionFile<'f> {
    /// The run of the earlier session.
    pub fn earlier_run(&self) -> Option<&'f Run> {
        match self {
            SessionFile::Resumed(_, run) => Some(run),
            _ => None,
        }
    }

    /// The experiment of the earlier session.
    pub fn earlier(&self) -> Option<&'f Experiment> {
        self.earlier_run()?.experiment.as_deref()
    }
}

/// An experiment and its place.
pub struct ExperimentSession<'s> {
    /// The plan.
    pub plan: &'s Plan,
    /// Place of the trials.
    pub place: &'s dyn Place,
    /// A trial that was carried out before the session.
    pub first_trial: Option<FinishedTrial>,
    /// The signal that requests a stop.
    pub stop: StopRequest<'s>,
    /// Receiver of progress events.
    pub on_event: &'s mut dyn FnMut(&SessionEvent<'_>),
}

/// Result of a session.
#[derive(Debug)]
pub struct SessionEnd {
    /// The trials of all sessions of the file, by slot.
    pub trials: Vec<Trial>,
    /// Number of remaining trials.
    pub remaining: usize,
    /// The signal that stopped the session before its last trial.
    pub stopped_by: Option<i32>,
    /// The error that ended it; the trials before it are kept.
    pub outcome: Result<(), ExperimentError>,
}

impl SessionEnd {
    /// Whether all trials ended well.
    pub fn is_all_done(&self) -> bool {
        self.trials.iter().all(|trial| trial.end == TrialEnd::Done)
    }

    /// Number of trials that were lost again when they were repeated. A resumed session repeats them.
    pub fn lost_count(&self) -> usize {
        count_lost(&self.trials)
    }
}

impl ExperimentSession<'_> {
    /// Checks the plan, and the result of the first trial if the file is resumed; runs the due trials, and
    /// closes the file. An error means that nothing was run and that the file is unchanged.
    pub fn run(self, file: SessionFile<'_>) -> Result<SessionEnd, ExperimentError> {
        let ExperimentSession { plan, place, first_trial, stop, on_event } = self;
        place.check_plan(plan).map_err(ExperimentError::Rejected)?;
        let earlier = file.earlier();
        if let Some(first) = earlier.and_then(|earlier| earlier.trials.first()) {
            let is_same = place.is_same_as_before(first, &mut |_| stop().is_none());
            if !is_same.map_err(ExperimentError::Lost)? && stop().is_none() {
                return Err(ExperimentError::Rejected(
                    "a repeated trial has a different result here; hint: use the version that started it, or \
                    start a new run"
                        .to_owned(),
                ));
            }
        }
        let (mut writer, clock) = open_file(file, plan)?;
        let mut engine = Engine::new((plan, place), writer.as_mut(), clock, stop, on_event);
        let outcome = run_engine(&mut engine, earlier, first_trial);
        let trials = engine.into_trials();
        let remaining = plan.schedule.len().saturating_sub(trials.len());
        let stopped_by = stop().filter(|_| remaining > 0);
        let ending = run_end(&outcome, stopped_by, count_lost(&trials), clock);
        let closed = writer.map(|writer| writer.close(ending));
        // An error of the trials comes before one of the file's end.
        let outcome = outcome.and(closed.unwrap_or(Ok(())).map_err(ExperimentError::NotWritten));
        Ok(SessionEnd { trials, remaining, stopped_by, outcome })
    }
}

fn open_file(file: SessionFile<'_>, plan: &Plan) -> Result<(Option<RunWriter>, RunClock), ExperimentError> {
    Ok(match file {
        SessionFile::None => (None, RunClock::from_start(current_moment())),
        SessionFile::New { path, replaces, manifest } => {
            let mut writer = match replaces {
                true => RunWriter::replace(path, manifest)?,
                false => RunWriter::create(path, manifest)?,
            };
            writer.add_plan(0, plan)?;
            writer.flush()?;
            (Some(writer), RunClock::from_start(manifest.started))
        }
        SessionFile::Open(writer, clock) => (Some(writer), clock),
        SessionFile::Resumed(writer, run) => (Some(writer), RunClock::from_resumed(run, current_moment())),
    })
}

fn run_engine(
    engine: &mut Engine<'_>,
    earlier: Option<&Experiment>,
    first_trial: Option<FinishedTrial>,
) -> Result<(), ExperimentError> {
    if let Some(earlier) = earlier {
        engine.resume_from(earlier);
        let (done, total) = (earlier.count_completed(), earlier.plan.schedule.len());
        let text = format!("resumed with {done} of {total} trials done");
        engine.report_event(PlaceEvent { kind: "resumed", text, is_note: true })?;
    }
    if let Some(trial) = first_trial {
        engine.store_trial(trial)?;
    }
    engine.run_due_trials()
}

fn count_lost(trials: &[Trial]) -> usize {
    trials.iter().filter(|trial| matches!(trial.end, TrialEnd::Lost(_))).count()
}

/// End of the file: stopped by an error, stopped by a signal with trials remaining, not complete because
/// trials were lost, or complete.
fn run_end(
    outcome: &Result<(), ExperimentError>,
    stopped_by: Option<i32>,
    lost: usize,
    clock: RunClock,
) -> RunEnd {
    let after_ns = clock.now_ns();
    let reason = match (outcome, stopped_by, lost) {
        (Err(error), ..) => error.to_string(),
        (Ok(()), Some(signal), _) => signal_name(signal).to_owned(),
        (Ok(()), None, 0) => return RunEnd::Complete { after_ns },
        (Ok(()), None, 1) => "one trial was lost".to_owned(),
        (Ok(()), None, lost) => format!("{lost} trials were lost"),
    };
    RunEnd::Stopped { after_ns, reason }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use pagelab_model::machine::Machine;
    use pagelab_model::simulation::{SimulatedConfiguration, SimulatedWorkload};
    use pagelab_model::{PageSize, Snapshot};
    use pagelab_runfile::read_run_file;

    use super::*;
    use crate::place::LostTrial;

    /// A place whose trials have no measures.
    struct EmptyPlace {
        is_rejecting: bool,
        is_same: bool,
        completed: AtomicUsize,
    }

    impl Place for EmptyPlace {
        fn check_plan(&self, _plan: &Plan) -> Result<(), String> {
            if self.is_rejecting { Err("no".to_owned()) } else { Ok(()) }
        }

        fn carry_out(
            &self,
            slot: usize,
            _keep_going: &mut dyn FnMut(u32) -> bool,
        ) -> Result<FinishedTrial, LostTrial> {
            self.completed.fetch_add(1, Ordering::Relaxed);
            Ok(Trial::new(slot, 0).into())
        }

        fn is_same_as_before(
            &self,
            _earlier: &Trial,
            _keep_going: &mut dyn FnMut(u32) -> bool,
        ) -> Result<bool, LostTrial> {
            Ok(self.is_same)
        }
    }

    fn place() -> EmptyPlace {
        EmptyPlace { is_rejecting: false, is_same: true, completed: AtomicUsize::new(0) }
    }

    /// Three trials.
    fn plan() -> Plan {
        let workload = SimulatedWorkload {
            machine: "x86".to_owned(),
            kernelcore: None,
            load: "churn".to_owned(),
            parameters: Vec::new(),
        };
        let configuration = SimulatedConfiguration::new(workload, "list");
        Plan::for_simulator("test", "1", vec![configuration], vec![1, 2, 3])
    }

    fn manifest() -> Manifest {
        Manifest {
            kind: "run".to_owned(),
            tool_version: String::new(),
            command_line: Vec::new(),
            seed: None,
            started: current_moment(),
            machine: Machine::new_unread(PageSize::DEFAULT),
            settings: Snapshot::new_unread("test", PageSize::DEFAULT).settings,
        }
    }

    /// Runs trials until a number of them is completed in this session.
    fn run(
        place: &EmptyPlace,
        file: SessionFile<'_>,
        stop_after: usize,
    ) -> Result<SessionEnd, ExperimentError> {
        let stop = || (place.completed.load(Ordering::Relaxed) >= stop_after).then_some(2);
        let on_event = &mut |_: &SessionEvent<'_>| {};
        ExperimentSession { plan: &plan(), place, first_trial: None, stop: &stop, on_event }.run(file)
    }

    #[test]
    fn a_rejected_plan_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pagelab");
        let rejecting = EmptyPlace { is_rejecting: true, ..place() };
        let end =
            run(&rejecting, SessionFile::New { path: &path, replaces: false, manifest: &manifest() }, 9);
        assert!(matches!(end, Err(ExperimentError::Rejected(text)) if text == "no"));
        assert!(!path.exists());
    }

    #[test]
    fn a_stopped_session_is_resumed_only_where_results_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pagelab");
        let end = run(&place(), SessionFile::New { path: &path, replaces: false, manifest: &manifest() }, 1)
            .unwrap();
        assert_eq!((end.trials.len(), end.remaining, end.stopped_by), (1, 2, Some(2)));
        let stopped = read_run_file(&path).unwrap();
        assert!(matches!(&stopped.ending, RunEnd::Stopped { reason, .. } if reason == "SIGINT"));

        let (writer, earlier) = RunWriter::resume(&path).unwrap();
        let changed = EmptyPlace { is_same: false, ..place() };
        let end = run(&changed, SessionFile::Resumed(writer, &earlier), 9);
        assert!(matches!(end, Err(ExperimentError::Rejected(_))));

        let (writer, earlier) = RunWriter::resume(&path).unwrap();
        let end = run(&place(), SessionFile::Resumed(writer, &earlier), 9).unwrap();
        assert!(end.outcome.is_ok() && end.is_all_done());
        assert_eq!((end.trials.len(), end.remaining, end.stopped_by), (3, 0, None));
        let run = read_run_file(&path).unwrap();
        assert!(matches!(run.ending, RunEnd::Complete { .. }));
        assert_eq!(run.experiment.unwrap().trials.len(), 3);
        assert!(run.events.iter().any(|event| event.kind == "resumed"));
    }
}
