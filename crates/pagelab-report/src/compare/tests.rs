//! Runs of one experiment side by side.

use expect_test::{ExpectFile, expect_file};
use pagelab_metrics::compare::compare_runs;
use pagelab_model::Bytes;
use pagelab_model::experiment::{Experiment, Plan};
use pagelab_model::run::RunEvent;
use pagelab_model::settings::SwapArea;

use super::*;
use crate::run::tests::example::record;
use crate::run::tests::experiment::thp_modes_experiment;

/// The experiment on another machine: everything is faster by this factor, and gains less.
fn run(name: &str, factor: f64, gain: f64) -> Run {
    let mut run = record();
    run.name = name.to_owned();
    let mut experiment = thp_modes_experiment();
    let schedule = experiment.plan.schedule.clone();
    for trial in &mut experiment.trials {
        let slot = schedule.get(trial.slot).unwrap();
        let less = if slot.variant > 0 && slot.workload == 0 { gain } else { 1.0 };
        for measure in trial.measures.iter_mut().filter(|of| ["wall", "merit"].contains(&of.name.as_str())) {
            measure.value = measure.value.clone().map(|value| value * factor * less);
        }
    }
    run.experiment = Some(Box::new(experiment));
    run
}

fn check(runs: &[Run], verbose: bool, expected: &ExpectFile) {
    let letters: Vec<String> = (0..runs.len()).map(run_letter).collect();
    let named: Vec<(&str, &Experiment)> = runs
        .iter()
        .zip(&letters)
        .map(|(run, letter)| (letter.as_str(), run.experiment.as_deref().unwrap()))
        .collect();
    let found = compare_runs(&named).unwrap();
    let text = render(runs, &found, verbose, TextStyle::PLAIN);
    expected.assert_eq(&text);
    for line in text.lines() {
        assert!(display_width(line) <= 80, "too wide: {line}");
    }
    let ascii = render(runs, &found, verbose, TextStyle { unicode: false, ..TextStyle::PLAIN });
    assert!(ascii.is_ascii(), "{ascii}");
    let document = json::compare::to_document(runs, &found);
    assert_eq!(document["runs"].as_array().map(Vec::len), Some(runs.len()));
}

#[test]
fn two_kernels() {
    let (one, mut other) = (run("old.pagelab", 1.0, 1.0), run("new.pagelab", 0.9, 1.2));
    other.manifest.machine.kernel_release = Ok("6.18.44".to_owned());
    other.manifest.settings.vm = pagelab_model::Counters::from_iter([("min_free_kbytes", 90_112)]);
    check(&[one, other], false, &expect_file!["tests/two.txt"]);
}

#[test]
fn three_runs_and_one_of_them_with_another_variant() {
    let mut last = run("c.pagelab", 1.0, 1.0);
    if let Some(experiment) = &mut last.experiment {
        experiment.plan.variants[1].settings[0].1 = "advised-only".to_owned();
    }
    let runs = [run("a.pagelab", 1.0, 1.0), run("b.pagelab", 0.9, 1.0), last];
    check(&runs, true, &expect_file!["tests/three.txt"]);
}

#[test]
fn swap_in_use_is_no_difference_of_machines() {
    let runs = [1, 2].map(|mib: u64| {
        let mut run = record();
        let area = SwapArea {
            name: "/dev/vda2".to_owned(),
            kind: "partition".to_owned(),
            size: Bytes(1 << 30),
            used: Bytes(mib << 20),
        };
        run.manifest.settings.swap = Ok(vec![area]);
        run
    });
    assert_eq!(find_differences(&runs), []);
}

#[test]
fn runs_are_called_by_letters() {
    assert_eq!([0, 25, 26, 53].map(run_letter), ["A", "Z", "A1", "B2"]);
}

#[test]
fn the_guests_of_a_run_differ_from_a_host() {
    let (host, mut guest) = (run("host.pagelab", 1.0, 1.0), run("guest.pagelab", 1.0, 1.0));
    guest.experiment.as_mut().unwrap().plan.place = Plan::GUEST.to_owned();
    let text = "guest with Linux 6.1.0, 1 GiB, 1 CPU".to_owned();
    guest.events = vec![RunEvent { at_ns: 1, kind: Run::GUEST_EVENT.to_owned(), text: text.clone() }];
    let found = find_differences(&[host, guest]);
    let of = |name: &str| found.iter().find(|of| of.name == name).map(|of| of.values.clone());
    assert_eq!(of("plan.place"), Some(vec![Some("host".to_owned()), Some("guest".to_owned())]));
    assert_eq!(of("guests"), Some(vec![None, Some(format!("{text}, emulated (TCG)"))]));
}
