//! Sentences of judgements.

use expect_test::{Expect, expect};
use pagelab_metrics::judge::judge_experiment;
use pagelab_model::experiment::{Experiment, Measure, TrialRole};

use super::*;
use crate::json;
use crate::run::tests::experiment::thp_modes_experiment;

fn check(experiment: &Experiment, measure: &str, loss: f64, expected: &Expect) {
    let judgement = judge_experiment(experiment, measure, Some(loss)).unwrap();
    expected.assert_eq(&render_judgement(&judgement, &experiment.plan, TextStyle::PLAIN));
}

/// The same with the mode `always` as the baseline: the mode `never` is slower. The twins are those of the
/// other baseline.
fn reversed() -> Experiment {
    let mut experiment = thp_modes_experiment();
    experiment.plan.baseline = Some(2);
    let schedule = experiment.plan.schedule.clone();
    experiment.trials.retain(|trial| schedule.get(trial.slot).is_some_and(|of| of.role != TrialRole::Twin));
    experiment
}

#[test]
fn each_comparison_is_one_sentence() {
    check(
        &thp_modes_experiment(),
        "wall",
        0.1,
        &expect![[r#"
        judge: wall of chase: madvise is 48 % faster than never (48 to 49 %): not worse than the accepted 10 %
        judge: wall of chase: always is 49 % faster than never (48 to 49 %): not worse than the accepted 10 %
        judge: wall of sort: madvise is 0.21 % slower than never (0.95 % faster to 1.4 % slower): not worse than the accepted 10 %
        judge: wall of sort: always is 0.78 % slower than never (0.42 % faster to 2.0 % slower): not worse than the accepted 10 %
        judge: wall of tiny: madvise against never: undecided: huge pages were requested but not allocated in 10 of 10 trials: their effect was not measured
        judge: wall of tiny: always against never: undecided: huge pages were requested but not allocated in 10 of 10 trials: their effect was not measured
        judge: undecided: 2 of 6 comparisons are undecided, and none is worse; 1 of 120 trials failed
    "#]],
    );
    check(
        &reversed(),
        "merit",
        0.025,
        &expect![[r#"
        judge: merit of chase: never is 94 % slower than always (92 to 97 %): worse than the accepted 2.5 %
        judge: merit of chase: madvise is 0.78 % slower than always (0.63 % faster to 2.2 % slower): not worse than the accepted 2.5 %
        judge: worse: 1 of 2 comparisons exceeds the accepted 2.5 %; 1 of 90 trials failed
    "#]],
    );
    check(
        &thp_modes_experiment(),
        "memory.peak",
        0.2,
        &expect![[r#"
        judge: memory.peak of chase: madvise has as much as never (0 to 0 %): not worse than the accepted 20 %
        judge: memory.peak of chase: always has 12 % more than never (12 to 12 %): not worse than the accepted 20 %
        judge: memory.peak of sort: madvise has as much as never (0 to 0 %): not worse than the accepted 20 %
        judge: memory.peak of sort: always has 12 % more than never (12 to 12 %): not worse than the accepted 20 %
        judge: memory.peak of tiny: madvise against never: undecided: huge pages were requested but not allocated in 10 of 10 trials: their effect was not measured
        judge: memory.peak of tiny: always against never: undecided: huge pages were requested but not allocated in 10 of 10 trials: their effect was not measured
        judge: undecided: 2 of 6 comparisons are undecided, and none is worse; 1 of 120 trials failed
    "#]],
    );
    check(
        &thp_modes_experiment(),
        "counter.dTLB-load-misses",
        0.1,
        &expect![[r#"
        judge: counter.dTLB-load-misses of chase: madvise against never: undecided: this VM has no PMU
        judge: counter.dTLB-load-misses of chase: always against never: undecided: this VM has no PMU
        judge: counter.dTLB-load-misses of sort: madvise against never: undecided: this VM has no PMU
        judge: counter.dTLB-load-misses of sort: always against never: undecided: this VM has no PMU
        judge: counter.dTLB-load-misses of tiny: madvise against never: undecided: this VM has no PMU
        judge: counter.dTLB-load-misses of tiny: always against never: undecided: this VM has no PMU
        judge: undecided: 6 of 6 comparisons are undecided, and none is worse; 1 of 120 trials failed
    "#]],
    );
}

#[test]
fn a_measure_of_which_more_is_better_is_read_the_other_way_around() {
    let mut experiment = reversed();
    for trial in &mut experiment.trials {
        for (at, unit) in [(0, "1/s"), (1, "bytes")] {
            let name = trial.measures[at].name.clone();
            let value = trial.measures[at].value.clone();
            trial.measures[at] = Measure::new(name, unit, BetterDirection::Higher, value, "a test");
        }
    }
    check(
        &experiment,
        "wall",
        0.1,
        &expect![[r#"
        judge: wall of chase: never is 49 % faster than always (48 to 49 %): not worse than the accepted 10 %
        judge: wall of chase: madvise is 0.77 % faster than always (2.2 % faster to 0.63 % slower): not worse than the accepted 10 %
        judge: wall of sort: never is 0.78 % slower than always (0.42 % faster to 2.0 % slower): not worse than the accepted 10 %
        judge: wall of sort: madvise is 0.89 % slower than always (0.26 % faster to 2.1 % slower): not worse than the accepted 10 %
        judge: wall of tiny: never is 0.38 % faster than always (1.6 % faster to 0.81 % slower): not worse than the accepted 10 %
        judge: wall of tiny: madvise against always: undecided: huge pages were requested but not allocated in 10 of 10 trials: their effect was not measured
        judge: undecided: 1 of 6 comparisons is undecided, and none is worse; 1 of 90 trials failed
    "#]],
    );
    check(
        &experiment,
        "memory.peak",
        0.1,
        &expect![[r#"
        judge: memory.peak of chase: always has 12 % more than never (12 to 12 %): worse than the accepted 10 %
        judge: memory.peak of chase: always has 12 % more than madvise (12 to 12 %): worse than the accepted 10 %
        judge: memory.peak of sort: always has 12 % more than never (12 to 12 %): worse than the accepted 10 %
        judge: memory.peak of sort: always has 12 % more than madvise (12 to 12 %): worse than the accepted 10 %
        judge: memory.peak of tiny: always has 12 % more than never (12 to 12 %): worse than the accepted 10 %
        judge: memory.peak of tiny: madvise against always: undecided: huge pages were requested but not allocated in 10 of 10 trials: their effect was not measured
        judge: worse: 5 of 6 comparisons exceed the accepted 10 %; 1 of 90 trials failed
    "#]],
    );
}

#[test]
fn a_judgement_without_pairs_says_how_many_are_missing() {
    let mut experiment = thp_modes_experiment();
    experiment.plan.workloads.truncate(1);
    let schedule = experiment.plan.schedule.clone();
    let is_kept = |slot: usize| schedule.get(slot).is_some_and(|of| of.workload == 0 && of.round < 5);
    experiment.trials.retain(|trial| is_kept(trial.slot));
    check(
        &experiment,
        "wall",
        0.1,
        &expect![[r#"
        judge: wall of chase: madvise against never: undecided: 5 complete pairs, 1 more is needed
        judge: wall of chase: always against never: undecided: 5 complete pairs, 1 more is needed
        judge: undecided: 2 of 2 comparisons are undecided, and none is worse
    "#]],
    );
    experiment.trials.clear();
    check(
        &experiment,
        "wall",
        0.1,
        &expect![[r#"
        judge: wall of chase: madvise against never: undecided: 0 complete pairs, 6 more are needed
        judge: wall of chase: always against never: undecided: 0 complete pairs, 6 more are needed
        judge: undecided: 2 of 2 comparisons are undecided, and none is worse
    "#]],
    );
}

#[test]
fn json_has_the_numbers_and_the_sentences() {
    let mut experiment = reversed();
    experiment.plan.workloads.truncate(1);
    let judgement = judge_experiment(&experiment, "merit", None).unwrap();
    let document = json::judge::to_document(&judgement, &experiment.plan);
    expect![[r#"
        {
          "measure": "merit",
          "loss": 0.05,
          "baseline": "always",
          "verdict": "worse",
          "sentence": "worse: 1 of 2 comparisons exceeds the accepted 5 %; 1 of 90 trials failed",
          "ended_trials": 90,
          "failed_trials": 1,
          "comparisons": [
            {
              "workload": "chase",
              "variant": "never",
              "better": "lower",
              "pairs": 10,
              "ratio": 1.943934199677017,
              "times_as_bad": 1.943934199677017,
              "times_as_bad_interval": {
                "low": 1.9192023807134366,
                "high": 1.968984725450986,
                "level": 0.95
              },
              "verdict": "worse",
              "sentence": "merit of chase: never is 94 % slower than always (92 to 97 %): worse than the accepted 5 %"
            },
            {
              "workload": "chase",
              "variant": "madvise",
              "better": "lower",
              "pairs": 10,
              "ratio": 1.0077988576934647,
              "times_as_bad": 1.0077988576934647,
              "times_as_bad_interval": {
                "low": 0.9937473338332996,
                "high": 1.0220490692039716,
                "level": 0.95
              },
              "verdict": "not_worse",
              "sentence": "merit of chase: madvise is 0.78 % slower than always (0.63 % faster to 2.2 % slower): not worse than the accepted 5 %"
            }
          ]
        }
    "#]].assert_eq(&json::to_json_text(&document).unwrap());
}
