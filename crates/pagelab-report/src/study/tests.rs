//! Reports of studies, whole.

use expect_test::expect_file;
use pagelab_model::run::{Ending, Manifest, Run};
use pagelab_model::study::{StudyFigure, StudyPicture, StudyPlan, StudyTrial, StudyZone, Varied};

use super::*;
use crate::run::tests::{SUMMARY, VERBOSE, check, example};

fn study(schemes: &[&str], seeds: u64) -> Study {
    let cell = |scheme: &&str| StudyCell {
        machine: "x86".to_owned(),
        kernelcore: Some(1 << 30),
        scheme: (*scheme).to_owned(),
        load: "highalloc".to_owned(),
        parameters: vec![("builds".to_owned(), 7)],
        values: Vec::new(),
        lists: Vec::new(),
        zones: Vec::new(),
    };
    let plan = StudyPlan {
        name: "compare".to_owned(),
        question: String::new(),
        explanation: String::new(),
        simulator: "0.1.0".to_owned(),
        cells: schemes.iter().map(cell).collect(),
        seeds: (1..=seeds).collect(),
        pictures: 0,
        varied: Vec::new(),
        judged: None,
    };
    let trials = (0..plan.slots().unwrap()).map(|slot| trial(&plan, slot)).collect();
    Study { plan, trials }
}

fn trial(plan: &StudyPlan, slot: usize) -> StudyTrial {
    let (cell, seed) = plan.slot(slot).unwrap();
    let (cell, wobble) = (cell as u64, seed * 7 % 5);
    let figure = |phase: &str, name: &str, value: u64, per: u64, unit: &str| StudyFigure {
        phase: phase.to_owned(),
        name: name.to_owned(),
        value,
        per,
        unit: unit.to_owned(),
    };
    let figures = vec![
        figure("under load, pass 1", "huge pages", 10 + 40 * cell + wobble, 1, "blocks"),
        figure("under load, pass 1", "success", 10 + 40 * cell + wobble, 360, "share"),
        figure("at rest", "huge pages", 70 + wobble, 1, "blocks"),
        figure("at rest", "F_u(10)", (900 - seed).saturating_sub(100 * cell), 1000, "share"),
    ];
    let points = (0..40).map(|at| (at * 9, 400_000 + (at * at * 300) as i64)).collect();
    let series = StudySeries { name: "F_u(10)".to_owned(), over: "attempts".to_owned(), points };
    let notes = vec!["time is not simulated".to_owned()];
    StudyTrial { slot, figures, series: vec![series], pictures: Vec::new(), notes }
}

fn run(study: Study) -> Run {
    let manifest = Manifest { kind: "sim".to_owned(), ..example::record().manifest };
    let mut run = Run::new("a.pagelab", manifest, Ending::Complete { after_ns: 9_000_000_000 });
    run.study = Some(Box::new(study));
    run
}

#[test]
fn a_comparison() {
    let of = study(&["standard", "list3", "zone", "zone+linear"], 12);
    check(&run(of), SUMMARY, &expect_file!["tests/compare.txt"]);
}

#[test]
fn few_seeds_and_a_study_that_was_stopped() {
    let mut of = study(&["standard", "zone"], 3);
    of.trials.pop();
    check(&run(of), SUMMARY, &expect_file!["tests/few.txt"]);
    let mut of = study(&["standard"], 1);
    of.trials.clear();
    assert!(render(&of, false, Style::PLAIN).contains("no trial was finished"));
}

#[test]
fn a_single_run_shows_its_series() {
    let mut of = study(&["list3"], 1);
    of.trials[0].pictures.push(StudyPicture {
        step: 1,
        phase: "at rest".to_owned(),
        runs: Vec::new(),
        owners: Vec::new(),
    });
    check(&run(of), SUMMARY, &expect_file!["tests/single.txt"]);
}

#[test]
fn a_sweep() {
    let mut of = study(&["a"; 12], 2);
    for (at, cell) in of.plan.cells.iter_mut().enumerate() {
        cell.values = vec![(at % 4 * 25).to_string(), if at % 3 == 0 { "list3" } else { "zone" }.to_owned()];
    }
    let varied = |name: &str, is_number| Varied { name: name.to_owned(), is_number };
    of.plan.varied = vec![varied("builds", true), varied("scheme", false)];
    check(&run(of.clone()), SUMMARY, &expect_file!["tests/sweep.txt"]);
    check(&run(of.clone()), VERBOSE, &expect_file!["tests/sweep_verbose.txt"]);
    of.plan.judged = Some("no/such".to_owned());
    assert!(render(&of, false, Style::PLAIN).contains("no trial has no/such; there are under load"));
}

#[test]
fn a_wide_comparison_is_cut_into_tables_that_fit() {
    let names: Vec<String> = (0..9).map(|at| format!("{at}{}", "x".repeat(60))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let text = render(&study(&names, 6), false, Style::PLAIN);
    for at in 0..9 {
        assert!(text.contains(&format!("  {at}xxxx")), "{text}");
    }
    assert!(text.lines().all(|line| crate::grid::width(line) <= 80), "{text}");
}

#[test]
fn a_page_has_a_column_for_each_scheme_and_zones_behind_their_figure() {
    let mut of = study(&["standard", "zone"], 6);
    for trial in &mut of.trials {
        let zone = StudyFigure { name: "from HighMem".to_owned(), ..trial.figures[0].clone() };
        trial.figures.insert(2, zone);
        trial.pictures = vec![StudyPicture {
            step: 7,
            phase: "at rest".to_owned(),
            runs: vec![(0, 512, 0), (512, 512, 3)],
            owners: vec![1, 0],
        }];
    }
    let page = page(&of);
    let names: Vec<(&str, Option<&str>)> =
        page.figures.iter().map(|of| (of.name.as_str(), of.zone.as_deref())).collect();
    let whole = ("huge pages", None);
    assert_eq!(names[..3], [whole, ("huge pages", Some("HighMem")), ("success", None)]);
    assert_eq!(page.schemes.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["standard", "zone"]);
    for figure in &page.figures {
        for value in figure.values.iter().map(|value| value.unwrap()) {
            assert!(value.low <= value.middle && value.middle <= value.high && value.seeds == 6, "{value:?}");
        }
    }
    assert_eq!((page.series.len(), page.pictures.len()), (2, 12 / 6), "of the first seed alone");
    let text = crate::html::sim::page(&page).unwrap();
    assert!(text.contains("highalloc on x86"));
}

/// What the paper says stands beside ours where a configuration is its own, and pictures have zones.
#[test]
fn a_page_has_the_papers_figures_and_the_zones() {
    let mut study = study(&["standard", "zone", "list"], 2);
    for cell in &mut study.plan.cells {
        cell.parameters.clear();
        cell.zones = vec![StudyZone { name: "HighMem".to_owned(), first: 229_376, frames: 32_768 }];
    }
    let page = page(&study);
    assert!(page.figures.iter().all(|figure| figure.paper.is_empty()), "these phases are none of its own");
    for figure in study.trials.iter_mut().flat_map(|trial| &mut trial.figures) {
        figure.phase = format!("highalloc {}", figure.phase);
    }
    let page = super::page(&study);
    let first = page.figures.iter().find(|figure| figure.name == "huge pages").unwrap();
    assert_eq!(
        (first.phase.as_str(), &first.paper[..]),
        ("highalloc under load, pass 1", &[Some(72.0), Some(82.0), None][..])
    );
    let unusable = page.figures.iter().find(|figure| figure.name == "F_u(10)").unwrap();
    assert!(unusable.paper.is_empty(), "the paper draws it, and gives no number");
    assert!(page.notes.iter().any(|note| note.contains("In the paper")));
    let zone = crate::sim::SimZone { name: "HighMem".to_owned(), first: 229_376, frames: 32_768 };
    assert!(page.schemes.iter().all(|scheme| scheme.zones == [zone.clone()]));
    study.plan.cells.iter_mut().for_each(|cell| cell.parameters.push(("builds".to_owned(), 1)));
    assert!(super::page(&study).figures.iter().all(|figure| figure.paper.is_empty()));
}
