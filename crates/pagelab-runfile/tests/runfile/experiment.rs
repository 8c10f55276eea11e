//! Experiments written and read: all ends, a slot that was tried twice, plans that make no sense.

use std::path::Path;

use pagelab_model::experiment::*;
use pagelab_model::run::{Ending, Unit};
use pagelab_model::{Absence, AbsentWhy};
use pagelab_runfile::{Error, ErrorKind, Writer, read};

use crate::made;

fn plan(slots: usize) -> Plan {
    let slot = |at: usize| Slot { workload: 0, variant: at % 2, round: at as u32 / 2, role: Role::Measured };
    let variant = |name: &str| VariantHead {
        name: name.to_owned(),
        settings: vec![("thp".to_owned(), name.to_owned())],
        asks_for_huge_pages: name == "always",
    };
    Plan {
        name: "thp".to_owned(),
        question: "a\u{202e}b".to_owned(),
        origin: "command line".to_owned(),
        recipe: "name = \"thp\"\n".to_owned(),
        place: "host".to_owned(),
        workloads: vec![WorkloadHead {
            name: "chase".to_owned(),
            command: vec!["chase".to_owned(), String::new()],
            generator: "uniform".to_owned(),
            merit: Some("merit".to_owned()),
        }],
        variants: vec![variant("never"), variant("always")],
        baseline: 0,
        sequence: Sequence::Abba,
        seed: u64::MAX,
        loss: 0.1,
        schedule: (0..slots).map(slot).collect(),
    }
}

fn trial(slot: usize, end: TrialEnd) -> Trial {
    let measure = |name: &str, value| Measure {
        name: name.to_owned(),
        unit: Unit::NANOSECONDS.into(),
        better: Better::Lower,
        value,
        source: "a test".to_owned(),
    };
    let absence = Absence::new("perf_event_open", AbsentWhy::NotThere, "no PMU").or("another machine");
    Trial {
        slot,
        began_ns: slot as u64 * 10,
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
    }
}

fn write(path: &Path, plan: &Plan, trials: &[Trial]) -> Result<(), Error> {
    let mut writer = Writer::create(path, &made::manifest())?;
    writer.plan(0, plan)?;
    trials.iter().try_for_each(|trial| writer.trial(trial))?;
    writer.close(Ending::Complete { after_ns: 1000 })
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
        TrialEnd::Nonsense("{".to_owned()),
        TrialEnd::LeftBehind(2),
        TrialEnd::NotBegun("no such file".to_owned()),
        TrialEnd::Rejected("the page cache was dropped".to_owned()),
        TrialEnd::Stopped,
    ];
    let trials: Vec<Trial> = ends.into_iter().enumerate().map(|(slot, end)| trial(slot, end)).collect();
    let plan = plan(12);
    write(&path, &plan, &trials).unwrap();
    assert_eq!(read(&path).unwrap().experiment.as_deref(), Some(&Experiment { plan, trials }));
}

#[test]
fn of_a_slot_that_was_tried_twice_the_later_trial_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pagelab");
    let rejected = trial(0, TrialEnd::Rejected("dropped".to_owned()));
    let trials = [rejected, trial(1, TrialEnd::Done), trial(0, TrialEnd::Done)];
    write(&path, &plan(2), &trials).unwrap();
    let found = read(&path).unwrap().experiment.unwrap().trials;
    assert_eq!(found, [trial(1, TrialEnd::Done), trial(0, TrialEnd::Done)]);
}

#[test]
fn what_names_something_that_there_is_not_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, plan: &Plan, trials: &[Trial]| {
        let path = folder.path().join(name);
        write(&path, plan, trials).unwrap();
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        error.to_string()
    };
    let far = refused("slot", &plan(1), &[trial(1, TrialEnd::Done)]);
    assert!(far.contains("a trial of slot 1, which the plan has not"), "{far}");
    let variant = Plan { variants: plan(1).variants[..1].to_vec(), ..plan(2) };
    assert!(refused("variant", &variant, &[]).contains("slot 1 has a workload or variant that there is not"));
    let baseline = Plan { baseline: 2, ..plan(1) };
    assert!(refused("baseline", &baseline, &[]).contains("its baseline is no variant of it"));
    let mut infinite = trial(0, TrialEnd::Done);
    infinite.measures[0].value = Ok(f64::INFINITY);
    let error = write(&folder.path().join("infinite"), &plan(1), &[infinite]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotStorable);
}
