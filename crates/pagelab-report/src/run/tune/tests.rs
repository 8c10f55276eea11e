//! Complete reports of tunings; and the sentence of the verdict, case by case.

use expect_test::expect_file;
use pagelab_metrics::tune::TuningResult;
use pagelab_model::experiment::{BetterDirection, Flag, Measure, measures};
use pagelab_model::profile::{ProfileSource, ProfilingCost, ScanSaturation};
use pagelab_model::run::{Run, RunEnd};
use pagelab_model::tune::HugePageSelection;

use super::{PredictionBasis, verdict_text};
use crate::run::tests::tuning::tuning_run;
use crate::run::tests::{SUMMARY, VERBOSE, check};
use crate::style::TextStyle;

type ArmOf = (&'static str, HugePageSelection, Option<u64>);
const THREE: [ArmOf; 3] = [
    ("none", HugePageSelection::None, Some(0)),
    ("plan", HugePageSelection::Plan, Some(2)),
    ("all", HugePageSelection::All, None),
];

#[test]
fn a_tuning_that_gains() {
    let run = tuning_run(&THREE, &[12.4, 10.0, 9.5], 7);
    check(&run, SUMMARY, &expect_file!["tests/gains.txt"]);
    check(&run, VERBOSE, &expect_file!["tests/gains_verbose.txt"]);
}

#[test]
fn a_curve_with_its_controls() {
    let mut arms = THREE.to_vec();
    arms.extend([
        ("8", HugePageSelection::Costliest, Some(8)),
        ("8 random", HugePageSelection::Random, Some(8)),
        ("8 most used", HugePageSelection::MostUsed, Some(8)),
        ("16", HugePageSelection::Costliest, Some(16)),
    ]);
    let run = tuning_run(&arms, &[12.4, 11.5, 9.5, 11.0, 12.3, 11.7, 10.0], 7);
    check(&run, SUMMARY, &expect_file!["tests/curve.txt"]);
}

/// The table has the measure of the verdict, with its unit and noise floor.
#[test]
fn a_figure_of_its_own_stands_beside_its_speed_up() {
    let mut run = tuning_run(&THREE, &[12.4, 10.0, 9.9], 7);
    for trial in run.experiment.iter_mut().flat_map(|of| &mut of.trials) {
        let wall = trial.measures.iter().find(|of| of.name == measures::WALL).cloned();
        let Some(Measure { value: Ok(ns), .. }) = wall else { continue };
        let value = Ok(ns / 1e9 / 4.0);
        trial.measures.push(Measure::new(measures::MERIT, "s", BetterDirection::Lower, value, ""));
    }
    for experiment in run.experiment.iter_mut() {
        experiment.plan.workloads[0].merit = Some(measures::MERIT.to_owned());
    }
    let text = crate::run::tune::render_tuning(&run, SUMMARY, TextStyle::PLAIN);
    assert!(text.contains("figure [s]"), "{text}");
    let plan = text.lines().find(|line| line.trim_start().starts_with("plan ")).unwrap_or_default();
    let cells: Vec<&str> = plan.split_whitespace().collect();
    assert!(cells[1].starts_with("2.") && cells[2].starts_with("1.2"), "a quarter of the time: {plan}");
    assert!(text.contains("speed-up by the program's figure") && text.contains("noise floor"), "{text}");
}

/// If `all` is faster and takes no more memory, the verdict and the next command use `all`.
#[test]
fn all_at_no_more_memory_is_what_is_recommended() {
    let mut run = tuning_run(&THREE, &[12.4, 10.0, 9.0], 10);
    for measure in run.experiment.iter_mut().flat_map(|of| &mut of.trials).flat_map(|of| &mut of.measures) {
        if measure.name == measures::PEAK_MEMORY {
            measure.value = Ok(80e6);
        }
    }
    assert!(verdict(&run).starts_with("yes, with all memory on huge pages: 1.3"), "{}", verdict(&run));
    let text = crate::run::tune::render_tuning(&run, SUMMARY, TextStyle::PLAIN);
    assert!(text.contains("→ pagelab apply all -- pagelab workload server"), "{text}");
}

/// The next commands apply only the winner; a stopped run is resumed, and does not count missing trials.
#[test]
fn the_way_on_is_that_of_the_verdict() {
    let text = |run: &Run| crate::run::tune::render_tuning(run, SUMMARY, TextStyle::PLAIN);
    let gained = tuning_run(&THREE, &[12.4, 10.0, 9.5], 7);
    assert!(text(&gained).contains("→ pagelab apply server.plan.toml -- pagelab"), "{}", text(&gained));
    assert!(text(&gained).contains("7 pairs of equal runs"), "{}", text(&gained));
    let others = [
        tuning_run(&THREE, &[12.4, 10.0, 9.9], 0),
        tuning_run(&THREE, &[12.4, 10.0, 9.9], 4),
        tuning_run(&THREE, &[12.4, 12.4, 12.4], 10),
        tuning_run(&THREE, &[10.0, 12.0, 13.0], 10),
    ];
    for run in &others {
        assert!(!text(run).contains("pagelab apply"), "{}", text(run));
    }
    let mut stopped = gained;
    stopped.ending = RunEnd::Stopped { after_ns: 1, reason: "SIGINT".to_owned() };
    for (kept, pairs) in
        [(0, "0 of 28 trials done   0 of 7 pairs"), (4, "4 of 28 trials done   1 of 7 pairs")]
    {
        let mut run = stopped.clone();
        run.experiment.iter_mut().for_each(|of| of.trials.truncate(kept));
        let text = text(&run);
        assert!(text.contains("→ pagelab tune --resume day.pagelab"), "{text}");
        assert!(!text.contains("pagelab apply") && !text.contains("pagelab report"), "{text}");
        assert!(text.contains(pairs), "{text}");
    }
}

/// A prediction from scans that undercount says so, in the table and beside the verdict.
#[test]
fn a_prediction_from_a_lower_bound_is_one_too() {
    let mut run = tuning_run(&THREE, &[12.4, 10.0, 9.5], 7);
    let text = |run: &Run| crate::run::tune::render_tuning(run, SUMMARY, TextStyle::PLAIN);
    assert!(!text(&run).contains("at least"), "{}", text(&run));
    run.tune.iter_mut().for_each(|tune| tune.after = None);
    let profile = run.profile.as_mut().unwrap();
    profile.source = ProfileSource::Accessed;
    profile.effort = ProfilingCost {
        sweeps: Some(50),
        misses_error_permille: Some(50),
        saturation: Some(ScanSaturation { reset_permille: 450, saturated_permille: 0 }),
        ..ProfilingCost::default()
    };
    let text = text(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("predicted at least 1.02× (from a lower bound of the misses), below the"),
        "{text}"
    );
    assert!(text.contains("misses unknown: at least"), "{text}");
    assert_eq!(text.matches("setting accessed bits again").count(), 1, "{text}");
}

fn verdict(run: &Run) -> String {
    let (Some(tune), Some(experiment)) = (&run.tune, &run.experiment) else { return String::new() };
    TuningResult::from_experiment(experiment, tune)
        .map_or(String::new(), |found| verdict_text::verdict_sentence(&found, tune))
}

#[test]
fn the_verdict_is_one_sentence_that_sells_nothing() {
    let cases: [([f64; 3], u32, &str); 6] = [
        ([12.4, 10.0, 9.9], 10, "yes: 1.24× faster ("),
        ([12.4, 12.4, 9.9], 10, "only with all memory on huge pages: 1.25× faster ("),
        ([12.4, 12.4, 12.4], 10, "huge pages do not help this program: even with all its memory on"),
        ([10.0, 12.0, 13.0], 10, "no: huge pages make this program slower, 1.2"),
        ([12.4, 10.0, 9.9], 4, "too few rounds to decide; so far 1.2"),
        ([12.4, 10.0, 9.9], 0, "nothing was measured: no round succeeded"),
    ];
    for (seconds, rounds, begins) in cases {
        let said = verdict(&tuning_run(&THREE, &seconds, rounds));
        assert!(said.starts_with(begins), "{seconds:?} {rounds}: {said}");
        assert_eq!(said.matches(". ").count(), 0, "one sentence: {said}");
    }
    let mut run = tuning_run(&THREE, &[12.4, 10.0, 9.9], 10);
    for trial in run.experiment.iter_mut().flat_map(|of| &mut of.trials) {
        trial.flags.push(Flag { kind: Flag::NO_HUGE_PAGES.to_owned(), text: "none of 2".to_owned() });
    }
    assert!(verdict(&run).starts_with("no verdict: the huge pages of the plan"), "{}", verdict(&run));
    let nothing = tuning_run(&[THREE[0], THREE[2]], &[12.4, 12.4], 0);
    assert!(verdict(&nothing).starts_with("nothing to plan"), "{}", verdict(&nothing));
}

#[test]
fn a_plan_is_called_faster_than_all_only_where_it_was() {
    let beside = |seconds: [f64; 3]| {
        let run = tuning_run(&THREE, &seconds, 10);
        let found = TuningResult::from_experiment(run.experiment.as_ref()?, run.tune.as_ref()?)?;
        let notes = verdict_text::side_notes(&found, run.tune.as_ref()?, PredictionBasis::Misses);
        notes.into_iter().next()
    };
    let cases = [
        ([12.4, 10.0, 10.0], "no difference between plan and all was measured"),
        ([12.4, 10.0, 9.0], "70 % of the gain of all with 6.2 % of the huge pages; all is faster"),
        ([12.4, 10.0, 11.5], "the plan is faster than all memory on huge pages"),
    ];
    for (seconds, begins) in cases {
        let said = beside(seconds).unwrap_or_default();
        assert!(said.starts_with(begins), "{said}");
    }
}
