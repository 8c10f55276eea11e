//! The section of an experiment: summary, full report, and hostile input.

use expect_test::expect_file;

use pagelab_model::experiment::{BetterDirection, EarlyEnd, Measure, MeasureHead};
use pagelab_model::run::Unit;
use pagelab_model::simulation::TrialSeries;

use super::super::tests::experiment::{
    falling_limit_experiment, hostile_experiment, mapping_experiment, measure, paper_figures_experiment,
    thp_modes_experiment,
};
use super::super::tests::{SUMMARY, VERBOSE, check, example::record};
use super::*;

fn run(experiment: Experiment) -> Run {
    let mut run = record();
    (run.series, run.streams, run.events) = (vec![], vec![], vec![]);
    (run.stacks, run.unknown_content) = (None, vec![]);
    run.manifest.kind = "run".to_owned();
    run.experiment = Some(Box::new(experiment));
    run
}

#[test]
fn modes_of_huge_pages() {
    let run = run(thp_modes_experiment());
    check(&run, SUMMARY, &expect_file!["../tests/modes.txt"]);
    check(&run, VERBOSE, &expect_file!["../tests/modes_verbose.txt"]);
}

#[test]
fn one_run_of_each_says_too_few_and_a_limit_says_where_a_program_dies() {
    check(&run(paper_figures_experiment()), SUMMARY, &expect_file!["../tests/figures.txt"]);
    check(&run(falling_limit_experiment()), SUMMARY, &expect_file!["../tests/falling.txt"]);
    check(&run(mapping_experiment()), SUMMARY, &expect_file!["../tests/crossing.txt"]);
}

#[test]
fn an_experiment_that_was_ended_says_so() {
    let mut experiment = thp_modes_experiment();
    experiment.trials.truncate(30);
    experiment.trials[29].end = TrialEnd::Stopped;
    let text = render_experiment(&run(experiment), SUMMARY, TextStyle::PLAIN);
    assert!(text.contains("NOT FINISHED  91 of 120 trials are missing"), "{text}");
    let mut nothing = thp_modes_experiment();
    nothing.trials.clear();
    let text = render_experiment(&run(nothing), SUMMARY, TextStyle::PLAIN);
    assert!(text.contains("nothing was measured: no trial completed"), "{text}");
}

/// A run with looks has the level of its last one, and states its rounds.
#[test]
fn intervals_of_a_run_with_looks_have_the_level_of_its_end() {
    for (rounds_max, design) in [(10, "10 rounds"), (20, "10 of at most 20 rounds")] {
        let mut experiment = thp_modes_experiment();
        experiment.plan.early_end = Some(EarlyEnd { rounds_max, has_looks: true, time_budget_ns: None });
        let text = render_experiment(&run(experiment), SUMMARY, TextStyle::PLAIN);
        assert!(text.contains("95.7 % interval") && !text.contains("95 %"), "{text}");
        assert!(text.contains(design), "{text}");
    }
}

#[test]
fn series_pictures_notes_and_phases_of_a_host_are_shown() {
    let mut experiment = thp_modes_experiment();
    let phased = measure("faults", Unit::COUNT, BetterDirection::Lower, 7.0);
    let phased = Measure {
        head: MeasureHead { phase: "warm".to_owned(), ..MeasureHead::clone(&phased.head) }.into(),
        ..phased
    };
    let points: Vec<(u64, i64)> = (0..8).map(|at| (at, at as i64 * 100_000)).collect();
    for trial in &mut experiment.trials {
        trial.measures.push(phased.clone());
        trial.series = vec![TrialSeries {
            name: "huge pages".to_owned(),
            over: "steps".to_owned(),
            points: points.clone(),
        }];
        trial.notes = vec!["the disk is a model".to_owned()];
    }
    experiment.trials[0].pictures = 1;
    let everything = View { verbose: true, shows_all: true };
    let text = render_experiment(&run(experiment.clone()), everything, TextStyle::PLAIN);
    for shown in [
        "warm/faults",
        "over steps",
        "round 1\n",
        "huge pages",
        "note: the disk is a model",
        "1 picture of memory",
    ] {
        assert!(text.contains(shown), "{shown} in {text}");
    }
    let variants = experiment.plan.variants.len() * experiment.plan.workloads.len();
    assert_eq!(text.matches("over steps").count(), variants, "the first trial of each");
    let text = render_experiment(&run(experiment), SUMMARY, TextStyle::PLAIN);
    assert!(text.contains("1 picture of memory") && !text.contains("over steps"), "{text}");
}

#[test]
fn narrow_and_hostile() {
    for experiment in [
        thp_modes_experiment(),
        paper_figures_experiment(),
        mapping_experiment(),
        falling_limit_experiment(),
        hostile_experiment(),
    ] {
        for view in [SUMMARY, VERBOSE] {
            let text = render_experiment(
                &run(experiment.clone()),
                view,
                TextStyle { width: 60, ..TextStyle::PLAIN },
            );
            for sign in text.chars().filter(|&sign| sign != '\n') {
                assert!(!crate::style::is_invisible(sign), "{sign:?} in {text}");
            }
            assert!(!text.contains("\nFORGED"), "{text}");
        }
    }
}
