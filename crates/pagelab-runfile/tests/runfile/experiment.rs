//! Tests of experiments written and read: all ends, repeated slots, invalid plans.

use std::path::Path;

use pagelab_model::experiment::*;
use pagelab_model::run::{RunEnd, Unit};
use pagelab_model::{Absence, AbsenceReason};
use pagelab_runfile::{Error, ErrorKind, RunWriter, read_run_file};

use crate::fixtures;

fn plan(slots: usize) -> Plan {
    let slot = |at: usize| ScheduleSlot {
        workload: 0,
        variant: at % 2,
        round: at as u32 / 2,
        role: TrialRole::Measured,
    };
    let variant = |name: &str| PlannedVariant {
        name: name.to_owned(),
        settings: vec![("thp".to_owned(), name.to_owned())],
        asks_for_huge_pages: name == "always",
        lists: Vec::new(),
    };
    Plan {
        name: "thp".to_owned(),
        question: "a\u{202e}b".to_owned(),
        explanation: String::new(),
        simulator: None,
        sweep: None,
        pictures: 0,
        early_end: None,
        dropped_variants: Default::default(),
        origin: "command line".to_owned(),
        recipe: "name = \"thp\"\n".to_owned(),
        place: "host".to_owned(),
        workloads: vec![PlannedWorkload {
            name: "chase".to_owned(),
            command: vec!["chase".to_owned(), String::new()],
            generator: "uniform".to_owned(),
            merit: Some("merit".to_owned()),
            simulated: None,
        }],
        variants: vec![variant("never"), variant("always")],
        baseline: Some(0),
        sequence: Sequence::Abba,
        seed: u64::MAX,
        loss: 0.1,
        schedule: (0..slots).map(slot).collect(),
    }
}

fn trial(slot: usize, end: TrialEnd) -> Trial {
    let measure =
        |name: &str, value| Measure::new(name, Unit::NANOSECONDS, BetterDirection::Lower, value, "a test");
    let absence =
        Absence::new("perf_event_open", AbsenceReason::NotThere, "no PMU").with_hint("another machine");
    Trial {
        ended_ns: slot as u64 * 10 + 9,
        end,
        measures: vec![
            measure("wall", Ok(f64::MAX)),
            measure("least", Ok(f64::from_bits(1))),
            measure("third", Ok(1.0 / 3.0)),
            measure("counter.cycles", Err(absence)),
        ],
        flags: vec![Flag { kind: "a word of later".to_owned(), text: "…".to_owned() }],
        last_output: "line\n\0".to_owned(),
        ..Trial::new(slot, slot as u64 * 10)
    }
}

fn write(path: &Path, plan: &Plan, trials: &[Trial]) -> Result<(), Error> {
    let mut writer = RunWriter::create(path, &fixtures::manifest())?;
    writer.add_plan(0, plan)?;
    trials.iter().try_for_each(|trial| writer.add_trial(trial))?;
    writer.close(RunEnd::Complete { after_ns: 1000 })
}

#[test]
fn an_experiment_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pagelab");
    let ends = [
        TrialEnd::Done,
        TrialEnd::Failed(-3),
        TrialEnd::Killed(9),
        TrialEnd::OutOfMemory,
        TrialEnd::TimedOut(u64::MAX),
        TrialEnd::InvalidResult("{".to_owned()),
        TrialEnd::LeftProcesses(2),
        TrialEnd::NotStarted("no such file".to_owned()),
        TrialEnd::Rejected("the page cache was dropped".to_owned()),
        TrialEnd::Lost("its supervisor was killed".to_owned()),
        TrialEnd::Stopped,
    ];
    let trials: Vec<Trial> = ends.into_iter().enumerate().map(|(slot, end)| trial(slot, end)).collect();
    let plan = plan(12);
    write(&path, &plan, &trials).unwrap();
    assert_eq!(read_run_file(&path).unwrap().experiment.as_deref(), Some(&Experiment { plan, trials }));
}

#[test]
fn the_later_trial_of_a_slot_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pagelab");
    let rejected = trial(0, TrialEnd::Rejected("dropped".to_owned()));
    let trials = [rejected, trial(1, TrialEnd::Done), trial(0, TrialEnd::Done)];
    write(&path, &plan(2), &trials).unwrap();
    let found = read_run_file(&path).unwrap().experiment.unwrap().trials;
    assert_eq!(found, [trial(1, TrialEnd::Done), trial(0, TrialEnd::Done)]);
}

#[test]
fn references_to_missing_entries_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, plan: &Plan, trials: &[Trial]| {
        let path = folder.path().join(name);
        write(&path, plan, trials).unwrap();
        let error = read_run_file(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        error.to_string()
    };
    let far = refused("slot", &plan(1), &[trial(1, TrialEnd::Done)]);
    assert!(far.contains("a trial has slot 1, but the plan has 1 slots"), "{far}");
    let variant = Plan { variants: plan(1).variants[..1].to_vec(), ..plan(2) };
    assert!(refused("variant", &variant, &[]).contains("slot 1 has an unknown workload or variant"));
    let baseline = Plan { baseline: Some(2), ..plan(1) };
    assert!(refused("baseline", &baseline, &[]).contains("its baseline is not among its variants"));
    let mut infinite = trial(0, TrialEnd::Done);
    infinite.measures[0].value = Ok(f64::INFINITY);
    let error = write(&folder.path().join("infinite"), &plan(1), &[infinite]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotStorable);
}
