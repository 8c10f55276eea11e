//! Tests of simulated experiments: batches, resuming, validation, and files of earlier versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagelab_model::experiment::{Experiment, Fraction, Measure, Plan, Schedule, Trial, TrialEnd};
use pagelab_model::run::RunEnd;
use pagelab_model::simulation::{
    MemoryPicture, ScheduleGrid, SimulatedConfiguration, SimulatedWorkload, SimulatedZone, Sweep,
    SweepFactor, TrialSeries, figure_head,
};
use pagelab_runfile::{RunReader, RunWriter, read_run_file};

use crate::fixtures;

fn plan() -> Plan {
    let configuration = |scheme: &str| SimulatedConfiguration {
        workload: SimulatedWorkload {
            machine: "x86".to_owned(),
            kernelcore: Some(1 << 30),
            load: "churn".to_owned(),
            parameters: vec![("pairs".to_owned(), u64::MAX)],
        },
        scheme: scheme.to_owned(),
        values: vec![scheme.to_owned()],
        lists: vec!["all".to_owned()],
        zones: vec![SimulatedZone { name: "Normal".to_owned(), first: 7168, frames: 1 << 18 }],
    };
    let configurations = vec![configuration("list"), configuration("zone")];
    let plan = Plan::for_simulator("sweep", "0.1.0", configurations, vec![1, 2, i64::MAX as u64]);
    let varied = vec![SweepFactor { name: "scheme".to_owned(), is_number: false }];
    Plan { question: "Which?".to_owned(), pictures: 1, ..plan.into_sweep(Sweep { varied, judged: None }) }
}

/// The same plan with another grid.
fn with_grid(change: impl FnOnce(&mut ScheduleGrid)) -> Plan {
    let mut plan = plan();
    match &mut plan.schedule {
        Schedule::Grid(grid) => change(grid),
        Schedule::List(_) => panic!("a list"),
    }
    plan
}

fn trial(slot: usize) -> Trial {
    let head = Arc::new(figure_head("end".to_owned(), "F_u(9)".to_owned(), "share"));
    let exact = Fraction { numerator: u64::MAX, denominator: 3 };
    let points = vec![(0, i64::MIN), (u64::MAX, i64::MAX)];
    let series = TrialSeries { name: "F_u(9)".to_owned(), over: "attempts".to_owned(), points };
    Trial {
        measures: vec![Measure::from_fraction(head, exact)],
        series: vec![series],
        pictures: 2,
        notes: vec!["a note".to_owned()],
        ..Trial::new(slot, 5)
    }
}

/// The pictures of a trial.
fn pictures(slot: usize) -> [MemoryPicture; 2] {
    let runs = vec![(0, 512, 0), (1024, u32::MAX - 1024, 6)];
    let picture = MemoryPicture { step: slot as u64, phase: "end".to_owned(), runs, owners: vec![0, 1] };
    [picture.clone(), MemoryPicture { step: 9, ..picture }]
}

fn write_trials(writer: &mut RunWriter, trials: &[Trial]) {
    for slot in trials.iter().map(|trial| trial.slot) {
        pictures(slot).iter().for_each(|picture| writer.add_picture(5, slot, picture).unwrap());
    }
    writer.add_trials(5, trials).unwrap();
}

/// The pictures of the trials of a file, with their slots.
fn read_pictures(path: &Path) -> Result<Vec<(usize, MemoryPicture)>, String> {
    let reader = RunReader::open(path).unwrap();
    let trials = reader.read_run().unwrap().experiment.unwrap().trials;
    let mut found = Vec::new();
    let read = reader.for_each_picture(&trials, |slot, picture| found.push((slot, picture)));
    read.map(|()| found).map_err(|error| error.to_string())
}

/// Result of reading a file with this plan and these batches of trials.
fn write_and_read(plan: &Plan, batches: &[&[Trial]]) -> Result<Experiment, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    writer.add_plan(0, plan).unwrap();
    batches.iter().for_each(|trials| write_trials(&mut writer, trials));
    writer.close(RunEnd::Stopped { after_ns: 9, reason: "a test".to_owned() }).unwrap();
    read_run_file(&path).map(|run| *run.experiment.unwrap()).map_err(|error| error.to_string())
}

fn count_blobs(path: &Path, kind: &str) -> usize {
    let headers = RunReader::open(path).unwrap().read_blob_headers().unwrap();
    headers.iter().filter(|header| header.kind == kind).count()
}

#[test]
fn a_simulated_experiment_is_read_back_by_slot_each_once() {
    let found = write_and_read(&plan(), &[&[trial(4), trial(0)], &[], &[trial(4)]]).unwrap();
    assert_eq!(found, Experiment { plan: plan(), trials: vec![trial(0), trial(4)] });
    let [one, other] = &found.trials[..] else { panic!("{found:?}") };
    assert!(Arc::ptr_eq(&one.measures[0].head, &other.measures[0].head), "heads are shared");
}

#[test]
fn data_stay_when_a_file_is_resumed_and_heads_are_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    writer.add_plan(0, &plan()).unwrap();
    write_trials(&mut writer, &[trial(3)]);
    writer.flush().unwrap();
    drop(writer);
    let (mut writer, run) = RunWriter::resume(&path).unwrap();
    assert_eq!(run.experiment.unwrap().trials, [trial(3)]);
    write_trials(&mut writer, &[trial(1), trial(2)]);
    writer.close(RunEnd::Complete { after_ns: 6 }).unwrap();
    assert_eq!(read_run_file(&path).unwrap().experiment.unwrap().trials, [trial(1), trial(2), trial(3)]);
    assert_eq!((count_blobs(&path, "measures"), count_blobs(&path, "trials")), (1, 2));
}

#[test]
fn an_impossible_simulated_experiment_is_rejected() {
    let refused = |plan: &Plan, trial: &Trial, said: &str| {
        let error = write_and_read(plan, &[std::slice::from_ref(trial)]).unwrap_err();
        assert!(error.contains(said), "{error}");
    };
    refused(&plan(), &trial(6), "a trial has slot 6, but the plan has 6 slots");
    refused(&with_grid(|grid| grid.seeds.clear()), &trial(0), "no points or no seeds");
    refused(&Plan { sweep: None, ..plan() }, &trial(0), "point 0 has 1 values; expected 0");
    refused(&with_grid(|grid| grid.seeds = vec![1; 3 << 20]), &trial(0), "more than 4194304 trials");
    refused(&with_grid(|grid| grid.points[1].variant = 2), &trial(0), "point 1 has an unknown workload");
    let mut bare = plan();
    bare.workloads[0].simulated = None;
    refused(&bare, &trial(0), "is not simulated");
    let mut of = trial(0);
    of.measures[0].exact = Some(Fraction { numerator: 1, denominator: 0 });
    refused(&plan(), &of, "measure end/F_u(9) of slot 0 has a denominator of 0");
    let mut of = trial(0);
    of.series[0].points = vec![(2, 0), (1, 0)];
    refused(&plan(), &of, "are not ascending");
    let of = Trial { pictures: 3, ..trial(0) };
    refused(&plan(), &of, "pictures of slot 0 are missing");
}

#[test]
fn series_are_read_of_the_wanted_trials_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    writer.add_plan(0, &plan()).unwrap();
    let mut damaged = trial(1);
    damaged.series[0].points = vec![(2, 0), (1, 0)];
    write_trials(&mut writer, &[trial(0), damaged]);
    writer.close(RunEnd::Complete { after_ns: 6 }).unwrap();
    let run = RunReader::open(&path).unwrap().read_run_with_series(&|_, slot| slot == 0).unwrap();
    assert_eq!(run.experiment.unwrap().trials, [trial(0), Trial { series: Vec::new(), ..trial(1) }]);
    assert!(RunReader::open(&path).unwrap().read_run().is_err(), "all series are checked");
}

#[test]
fn pictures_are_read_one_by_one_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, picture: &MemoryPicture| {
        let path = folder.path().join(name);
        let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
        writer.add_plan(0, &plan()).unwrap();
        // A trial that is repeated: its last pictures count.
        write_trials(&mut writer, &[trial(2)]);
        write_trials(&mut writer, &[trial(2)]);
        writer.add_picture(5, 1, picture).unwrap();
        writer.add_trials(5, &[Trial { pictures: 1, ..trial(1) }]).unwrap();
        writer.close(RunEnd::Complete { after_ns: 6 }).unwrap();
        path
    };
    let [picture, _] = pictures(1);
    let found = read_pictures(&write("good.pagelab", &picture)).unwrap();
    let [first, second] = pictures(2);
    assert_eq!(found, [(1, picture.clone()), (2, first), (2, second)]);
    for (at, runs) in
        [vec![(0, 512, 7)], vec![(0, 512, 0), (511, 1, 0)], vec![(0, 0, 0)]].into_iter().enumerate()
    {
        let path = write(&format!("{at}.pagelab"), &MemoryPicture { runs, ..picture.clone() });
        let error = read_pictures(&path).unwrap_err();
        assert!(error.contains("a picture of slot 1 has duplicate frames or an unknown use"), "{error}");
    }
}

/// A grid of four million slots is a small plan: a list of them would exceed what a plan may have.
#[test]
fn a_grid_computes_its_slots() {
    let plan = with_grid(|grid| grid.seeds = (0..1 << 21).collect());
    let found = write_and_read(&plan, &[&[trial(5)]]).unwrap();
    assert_eq!(found.plan.schedule.len(), 1 << 22);
    let slot = found.plan.schedule.get((1 << 22) - 1).unwrap();
    assert_eq!((slot.workload, slot.variant, slot.round), (0, 1, (1 << 21) - 1));
    assert_eq!(found.plan.schedule.get(1 << 22), None);
}

fn fixture(name: &str) -> Experiment {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    *read_run_file(&path).unwrap().experiment.unwrap()
}

/// Studies written by an earlier pagelab are read as experiments.
#[test]
fn studies_of_an_earlier_version_are_experiments() {
    let compared = fixture("study-1.pagelab");
    let plan = &compared.plan;
    let schemes: Vec<&str> = plan.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(schemes, ["standard", "zone+linear", "mobility"]);
    assert_eq!((plan.workloads.len(), plan.points().len(), plan.seeds().len()), (1, 3, 6));
    assert_eq!((plan.baseline, plan.simulator.as_deref()), (Some(0), Some("0.1.0")));
    assert_eq!(compared.trials.len(), 18);
    for (slot, trial) in compared.trials.iter().enumerate() {
        assert_eq!((trial.slot, trial.pictures), (slot, if slot < 3 { 2 } else { 0 }));
        assert!(trial.measures.iter().all(|measure| measure.exact.is_some()), "figures stay exact");
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/study-1.pagelab");
    let slots: Vec<usize> = read_pictures(&path).unwrap().into_iter().map(|(slot, _)| slot).collect();
    assert_eq!(slots, [0, 0, 1, 1, 2, 2]);
    let first = &compared.trials[0].measures[0];
    assert_eq!(first.phase, "churn");
    let swept = fixture("sweep-1.pagelab");
    assert_eq!((swept.plan.baseline, swept.plan.points().len(), swept.trials.len()), (None, 12, 24));
    let names: Vec<&str> = swept.plan.varied().iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["scheme", "pairs"]);
    assert!(swept.plan.points().iter().all(|point| point.values.len() == 2));
    assert_eq!((swept.plan.workloads.len(), swept.plan.variants.len()), (12, 2));
}

#[test]
fn an_experiment_of_an_earlier_version_is_read() {
    let found = fixture("experiment-1.pagelab");
    assert_eq!((found.plan.baseline, found.plan.schedule.len(), found.trials.len()), (Some(0), 16, 16));
    let done = found.trials.iter().filter(|trial| trial.end == TrialEnd::Done);
    assert_eq!(done.count(), 8);
    let wall = found.trials[0].measures.iter().find(|measure| measure.name == "wall").unwrap();
    assert!(wall.value.as_ref().is_ok_and(|ns| *ns > 0.0) && wall.exact.is_none());
}
