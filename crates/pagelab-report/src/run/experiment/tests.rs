//! The section of an experiment, whole: summary and everything, and what nobody may do to it.

use expect_test::expect_file;

use super::super::tests::experiment::{crossing, falling, figures, hostile_experiment, modes};
use super::super::tests::{SUMMARY, VERBOSE, check, example::record};
use super::*;

fn run(experiment: Experiment) -> Run {
    let mut run = record();
    (run.series, run.streams, run.events) = (vec![], vec![], vec![]);
    (run.stacks, run.not_shown) = (None, vec![]);
    run.manifest.kind = "run".to_owned();
    run.experiment = Some(Box::new(experiment));
    run
}

#[test]
fn modes_of_huge_pages() {
    let run = run(modes());
    check(&run, SUMMARY, &expect_file!["../tests/modes.txt"]);
    check(&run, VERBOSE, &expect_file!["../tests/modes_verbose.txt"]);
}

#[test]
fn one_run_of_each_says_too_few_and_a_limit_says_where_a_program_dies() {
    check(&run(figures()), SUMMARY, &expect_file!["../tests/figures.txt"]);
    check(&run(falling()), SUMMARY, &expect_file!["../tests/falling.txt"]);
    check(&run(crossing()), SUMMARY, &expect_file!["../tests/crossing.txt"]);
}

#[test]
fn an_experiment_that_was_ended_says_so() {
    let mut experiment = modes();
    experiment.trials.truncate(30);
    experiment.trials[29].end = TrialEnd::Stopped;
    let text = show(&run(experiment), SUMMARY, Style::PLAIN);
    assert!(text.contains("NOT FINISHED  91 of 120 trials are still to be made"), "{text}");
    let mut nothing = modes();
    nothing.trials.clear();
    let text = show(&run(nothing), SUMMARY, Style::PLAIN);
    assert!(text.contains("nothing was measured: no trial of it ended as it should"), "{text}");
}

#[test]
fn narrow_and_hostile() {
    for experiment in [modes(), figures(), crossing(), falling(), hostile_experiment()] {
        for view in [SUMMARY, VERBOSE] {
            let text = show(&run(experiment.clone()), view, Style { width: 60, ..Style::PLAIN });
            for sign in text.chars().filter(|&sign| sign != '\n') {
                assert!(!crate::style::is_unseen(sign), "{sign:?} in {text}");
            }
            assert!(!text.contains("\nFORGED"), "{text}");
        }
    }
}
