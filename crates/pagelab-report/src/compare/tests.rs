//! Runs of one experiment side by side.

use expect_test::{ExpectFile, expect_file};
use pagelab_metrics::compare::compare;
use pagelab_model::experiment::Experiment;

use super::*;
use crate::run::tests::example::record;
use crate::run::tests::experiment::modes;

/// The experiment on another machine: everything is faster by this factor, and gains less.
fn run(name: &str, factor: f64, gain: f64) -> Run {
    let mut run = record();
    run.name = name.to_owned();
    let mut experiment = modes();
    let schedule = experiment.plan.schedule.clone();
    for trial in &mut experiment.trials {
        let slot = schedule[trial.slot];
        let less = if slot.variant > 0 && slot.workload == 0 { gain } else { 1.0 };
        for measure in trial.measures.iter_mut().filter(|of| ["wall", "merit"].contains(&of.name.as_str())) {
            measure.value = measure.value.clone().map(|value| value * factor * less);
        }
    }
    run.experiment = Some(Box::new(experiment));
    run
}

fn check(runs: &[Run], view: View, expected: &ExpectFile) {
    let letters: Vec<String> = (0..runs.len()).map(letter).collect();
    let named: Vec<(&str, &Experiment)> = runs
        .iter()
        .zip(&letters)
        .map(|(run, letter)| (letter.as_str(), run.experiment.as_deref().unwrap()))
        .collect();
    let found = compare(&named).unwrap();
    let text = render(runs, &found, view, Style::PLAIN);
    expected.assert_eq(&text);
    for line in text.lines() {
        assert!(width(line) <= 80, "too wide: {line}");
    }
    let ascii = render(runs, &found, view, Style { unicode: false, ..Style::PLAIN });
    assert!(ascii.is_ascii(), "{ascii}");
    let document = crate::json::compare::document(runs, &found);
    assert_eq!(document["runs"].as_array().map(Vec::len), Some(runs.len()));
}

#[test]
fn two_kernels() {
    let (one, mut other) = (run("old.pagelab", 1.0, 1.0), run("new.pagelab", 0.9, 1.2));
    other.manifest.machine.kernel_release = Ok("6.18.44".to_owned());
    other.manifest.settings.vm = pagelab_model::Counters::from_iter([("min_free_kbytes", 90_112)]);
    check(&[one, other], View::default(), &expect_file!["tests/two.txt"]);
}

#[test]
fn three_runs_and_one_of_them_with_another_variant() {
    let mut last = run("c.pagelab", 1.0, 1.0);
    if let Some(experiment) = &mut last.experiment {
        experiment.plan.variants[1].settings[0].1 = "advised-only".to_owned();
    }
    let runs = [run("a.pagelab", 1.0, 1.0), run("b.pagelab", 0.9, 1.0), last];
    check(&runs, View { verbose: true }, &expect_file!["tests/three.txt"]);
}

#[test]
fn runs_are_called_by_letters() {
    assert_eq!([0, 25, 26, 53].map(letter), ["A", "Z", "A1", "B2"]);
}
