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
        let (trials, remaining) = engine.into_trials();
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
        let (done, total) = (earlier.count_completed(), earlier.count_planned());
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

    use std::time::Duration;

    use pagelab_metrics::effect::{find_look_level, interval_level};
    use pagelab_model::experiment::{BetterDirection, Flag, Measure, measures};
    use pagelab_model::machine::Machine;
    use pagelab_model::run::Unit;
    use pagelab_model::simulation::{SimulatedConfiguration, SimulatedWorkload};
    use pagelab_model::{PageSize, Snapshot};
    use pagelab_runfile::read_run_file;

    use super::*;
    use crate::early_end::{EarlyEndCheck, TrialTimes};
    use crate::place::LostTrial;
    use crate::recipe::Recipe;
    use crate::resolve::{ExperimentOverrides, ResolvedExperiment};

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

    /// A place on this host that makes the trial of a slot so.
    struct MadePlace<F>(F);

    impl<F: Fn(usize) -> Trial> Place for MadePlace<F> {
        fn check_plan(&self, _plan: &Plan) -> Result<(), String> {
            Ok(())
        }

        fn carry_out(
            &self,
            slot: usize,
            _keep_going: &mut dyn FnMut(u32) -> bool,
        ) -> Result<FinishedTrial, LostTrial> {
            Ok((self.0)(slot).into())
        }
    }

    /// Trials of the first variant take 100, the others the time of their variant, of the index of the trial
    /// and of the clock of the test.
    fn make_timed_trial(slot: usize, wall_ns: [f64; 3], sleep: Duration) -> Trial {
        let planned = host_plan("").schedule.get(slot).unwrap();
        let wall = wall_ns[planned.variant] * [1.0, 1.004, 0.997, 1.001][slot % 4];
        let measure = Measure::new(measures::WALL, Unit::NANOSECONDS, BetterDirection::Lower, Ok(wall), "");
        std::thread::sleep(sleep);
        Trial { measures: vec![measure], ..Trial::new(slot, 0) }
    }

    /// Twenty rounds of three variants and a twin.
    fn host_plan(keys: &str) -> Plan {
        let text = format!(
            "name = \"t\"\nquestion = \"?\"\norder = \"blocks\"\nrepeats = 20\nwarm_up = 1\n{keys}\n\
             [[workload]]\nname = \"x\"\ncommand = [\"true\"]\n[[variant]]\nname = \"none\"\n\
             [[variant]]\nname = \"plan\"\nenvironment = {{ A = \"1\" }}\n\
             [[variant]]\nname = \"all\"\nenvironment = {{ A = \"2\" }}\n"
        );
        let recipe = Recipe::parse("test", &text).unwrap();
        ResolvedExperiment::resolve(recipe, &ExperimentOverrides::default()).unwrap().plan
    }

    /// Runs a plan at a place; the completed rounds, the remaining trials, and the level of the intervals.
    fn run_rounds(plan: &Plan, wall_ns: [f64; 3], sleep: Duration) -> (usize, usize, f64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pagelab");
        let place = MadePlace(|slot| make_timed_trial(slot, wall_ns, sleep));
        let mut notes = Vec::new();
        let on_event = &mut |event: &SessionEvent<'_>| {
            if let SessionEvent::Note(text) = event {
                notes.push((*text).to_owned());
            }
        };
        let session = ExperimentSession { plan, place: &place, first_trial: None, stop: &|| None, on_event };
        let file = SessionFile::New { path: &path, replaces: false, manifest: &manifest() };
        let end = session.run(file).unwrap();
        assert!(end.outcome.is_ok() && end.is_all_done());
        let run = read_run_file(&path).unwrap();
        assert!(matches!(run.ending, RunEnd::Complete { .. }), "{:?}", run.ending);
        let experiment = run.experiment.unwrap();
        assert!(experiment.plan.is_cut_of(plan), "{:?}", experiment.plan.early_end);
        assert_eq!(experiment.plan.schedule.len(), experiment.trials.len());
        let rounds = experiment.count_completed_rounds();
        assert_eq!(notes.iter().any(|note| note.starts_with("ended after round")), rounds < 20, "{notes:?}");
        (rounds, end.remaining, interval_level(&experiment))
    }

    #[test]
    fn an_experiment_with_looks_ends_when_every_variant_has_an_effect() {
        let (plan, sleep) = (host_plan("looks = true"), Duration::ZERO);
        assert_eq!(run_rounds(&plan, [100.0, 80.0, 75.0], sleep), (6, 0, 0.99));
        // One variant is equal to the baseline: it takes all rounds, at the level of the last look.
        let (rounds, remaining, level) = run_rounds(&plan, [100.0, 80.0, 100.0], sleep);
        assert_eq!((rounds, remaining), (20, 0));
        assert_eq!(Some(level), find_look_level(20, true));
        // Without looks an effect ends nothing.
        assert_eq!(run_rounds(&host_plan(""), [100.0, 80.0, 75.0], sleep), (20, 0, 0.95));
    }

    #[test]
    fn no_round_begins_that_exceeds_the_time_budget() {
        let equal = [100.0; 3];
        let sleep = Duration::from_millis(10);
        // A warm-up of three trials and rounds of four take 30 and 40 ms and more.
        let (rounds, remaining, level) = run_rounds(&host_plan("time_budget = \"400ms\""), equal, sleep);
        assert!((1..=9).contains(&rounds), "{rounds}");
        assert_eq!((remaining, level), (0, 0.95));
        // One round is always complete.
        assert_eq!(run_rounds(&host_plan("time_budget = \"1ms\""), equal, sleep).0, 1);
        let both = host_plan("looks = true\ntime_budget = \"1ms\"");
        assert_eq!(run_rounds(&both, equal, sleep), (1, 0, 0.95));
    }

    /// A session that is killed after its last needed trial, or in the round after it, ends at that boundary.
    #[test]
    fn a_resumed_session_ends_at_a_round_boundary() {
        let plan = host_plan("looks = true");
        let trials_of = |count: usize| -> Vec<Trial> {
            (0..count).map(|slot| make_timed_trial(slot, [100.0, 80.0, 75.0], Duration::ZERO)).collect()
        };
        // Three trials of warm-up, and four in each round.
        for (ended, rounds) in [(3 + 6 * 4, Some(6)), (3 + 6 * 4 + 1, None), (3 + 5 * 4, None)] {
            let trials = trials_of(ended);
            let times = TrialTimes::default();
            let decision = EarlyEndCheck::default().check_after_trial(&plan, trials.iter(), &times);
            assert_eq!(decision.map(|end| end.plan.schedule.len()), rounds.map(|_| ended), "{ended}");
        }
    }

    /// A trial that got none of the huge pages that it requested, if it is of one of these variants.
    fn make_unserved_trial(slot: usize, unserved: &[usize]) -> Trial {
        let planned = supervised_plan().schedule.get(slot).unwrap();
        let flag = Flag { kind: Flag::NO_HUGE_PAGES.to_owned(), text: "none of 2".to_owned() };
        let flags = if unserved.contains(&planned.variant) { vec![flag] } else { Vec::new() };
        Trial { flags, ..Trial::new(slot, 0) }
    }

    /// Six rounds of none, plan and all under the supervisor, in an order from the seed.
    fn supervised_plan() -> Plan {
        let text = "name = \"t\"\nquestion = \"?\"\norder = \"blocks\"\nrepeats = 6\nwarm_up = 1\n\
                    looks = true\n[[workload]]\nname = \"x\"\ncommand = [\"true\"]\n\
                    [[variant]]\nname = \"none\"\nplan = \"none\"\n\
                    [[variant]]\nname = \"plan\"\nplan = \"x.toml\"\n\
                    [[variant]]\nname = \"all\"\nplan = \"all\"\n";
        let recipe = Recipe::parse("test", text).unwrap();
        ResolvedExperiment::resolve(recipe, &ExperimentOverrides::default()).unwrap().plan
    }

    /// An arm that gets no huge page in its first trial has no second one, and without any arm the run ends.
    #[test]
    fn variants_that_get_no_huge_pages_are_dropped() {
        let plan = supervised_plan();
        for (unserved, trials_of_variants) in
            [(vec![], [13, 7, 7]), (vec![1], [13, 1, 7]), (vec![1, 2], [0, 1, 1])]
        {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.pagelab");
            let (place, mut notes) = (MadePlace(|slot| make_unserved_trial(slot, &unserved)), 0);
            let on_event = &mut |event: &SessionEvent<'_>| {
                notes += usize::from(matches!(event, SessionEvent::Note(text) if text.contains("none of 2")));
            };
            let plan = &plan;
            let session =
                ExperimentSession { plan, place: &place, first_trial: None, stop: &|| None, on_event };
            let file = SessionFile::New { path: &path, replaces: false, manifest: &manifest() };
            let end = session.run(file).unwrap();
            assert_eq!((end.remaining, end.is_all_done()), (0, true), "{unserved:?}");
            let run = read_run_file(&path).unwrap();
            assert!(matches!(run.ending, RunEnd::Complete { .. }), "{:?}", run.ending);
            let experiment = run.experiment.unwrap();
            assert!(experiment.plan.is_cut_of(plan) && experiment.count_planned() == experiment.trials.len());
            let is_of = |variant: usize, trial: &&Trial| {
                experiment.plan.schedule.get(trial.slot).is_some_and(|slot| slot.variant == variant)
            };
            let count =
                |variant: usize| experiment.trials.iter().filter(|trial| is_of(variant, trial)).count();
            // How many trials of none come before both others is the seed's choice.
            let expected =
                trials_of_variants.map(|count| if unserved.len() == 2 { count.min(1) } else { count });
            assert_eq!([count(1), count(2)], expected[1..], "{unserved:?}");
            assert!(unserved.len() == 2 || count(0) == expected[0], "{unserved:?}: {}", count(0));
            assert_eq!(notes, unserved.len());
        }
    }
}
