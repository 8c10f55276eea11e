//! Simulated studies: written, gone on with, and never believed.

use pagelab_model::run::Ending;
use pagelab_model::study::{
    Study, StudyCell, StudyFigure, StudyPicture, StudyPlan, StudySeries, StudyTrial, StudyZone, Varied,
};
use pagelab_runfile::{Writer, read};

use crate::made;

fn plan() -> StudyPlan {
    let cell = |scheme: &str| StudyCell {
        machine: "x86".to_owned(),
        kernelcore: Some(1 << 30),
        scheme: scheme.to_owned(),
        load: "churn".to_owned(),
        parameters: vec![("pairs".to_owned(), u64::MAX)],
        values: vec![scheme.to_owned()],
        lists: vec!["all".to_owned()],
        zones: vec![StudyZone { name: "Normal".to_owned(), first: 7168, frames: 1 << 18 }],
    };
    StudyPlan {
        name: "sweep".to_owned(),
        question: "Which?".to_owned(),
        explanation: String::new(),
        simulator: "0.1.0".to_owned(),
        cells: vec![cell("list"), cell("zone")],
        seeds: vec![1, 2, i64::MAX as u64],
        pictures: 1,
        varied: vec![Varied { name: "scheme".to_owned(), is_number: false }],
        judged: None,
    }
}

fn trial(slot: usize) -> StudyTrial {
    let figure = StudyFigure {
        phase: "end".to_owned(),
        name: "F_u(9)".to_owned(),
        value: u64::MAX,
        per: 3,
        unit: "share".to_owned(),
    };
    let points = vec![(0, i64::MIN), (u64::MAX, i64::MAX)];
    let series = StudySeries { name: "F_u(9)".to_owned(), over: "attempts".to_owned(), points };
    let runs = vec![(0, 512, 0), (1024, u32::MAX - 1024, 6)];
    let picture = StudyPicture { step: 9, phase: "end".to_owned(), runs, owners: vec![0, 1] };
    StudyTrial {
        slot,
        figures: vec![figure],
        series: vec![series],
        pictures: vec![picture],
        notes: vec!["a note".to_owned()],
    }
}

/// What is read back from a file with this plan and these trials.
fn written(plan: &StudyPlan, trials: &[StudyTrial]) -> Result<Study, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pagelab");
    let mut writer = Writer::create(&path, &made::manifest()).unwrap();
    writer.study(0, plan).unwrap();
    trials.iter().for_each(|trial| writer.study_trial(5, trial).unwrap());
    writer.close(Ending::Stopped { after_ns: 9, why: "a test".to_owned() }).unwrap();
    read(&path).map(|run| *run.study.unwrap()).map_err(|error| error.to_string())
}

#[test]
fn a_study_is_read_back_by_slot_each_once() {
    let found = written(&plan(), &[trial(4), trial(0), trial(4)]).unwrap();
    assert_eq!(found, Study { plan: plan(), trials: vec![trial(0), trial(4)] });
}

#[test]
fn what_is_written_stays_when_it_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.pagelab");
    let mut writer = Writer::create(&path, &made::manifest()).unwrap();
    writer.study(0, &plan()).unwrap();
    writer.study_trial(1, &trial(3)).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let (mut writer, run) = Writer::resume(&path).unwrap();
    assert_eq!(run.study.unwrap().trials, [trial(3)]);
    writer.study_trial(2, &trial(1)).unwrap();
    writer.close(Ending::Complete { after_ns: 3 }).unwrap();
    assert_eq!(read(&path).unwrap().study.unwrap().trials, [trial(1), trial(3)]);
}

#[test]
fn a_study_that_cannot_be_is_refused_in_words() {
    let refused = |plan: &StudyPlan, trial: &StudyTrial, said: &str| {
        let error = written(plan, std::slice::from_ref(trial)).unwrap_err();
        assert!(error.contains(said), "{error}");
    };
    refused(&plan(), &trial(6), "a trial of slot 6, and the study has 6");
    refused(&StudyPlan { seeds: vec![], ..plan() }, &trial(0), "no cells, or no seeds");
    refused(&StudyPlan { varied: vec![], ..plan() }, &trial(0), "cell 0 has 1 values of the 0");
    let many = StudyPlan { seeds: vec![1; 3 << 20], ..plan() };
    refused(&many, &trial(0), "more than 4194304 trials");
    let mut of = trial(0);
    of.figures[0].per = 0;
    refused(&plan(), &of, "the figure end/F_u(9) of slot 0 is divided by 0");
    let mut of = trial(0);
    of.series[0].points = vec![(2, 0), (1, 0)];
    refused(&plan(), &of, "go back");
    for runs in [vec![(0, 512, 7)], vec![(0, 512, 0), (511, 1, 0)], vec![(0, 0, 0)]] {
        let mut of = trial(0);
        of.pictures[0].runs = runs;
        refused(&plan(), &of, "a picture of slot 0");
    }
}
