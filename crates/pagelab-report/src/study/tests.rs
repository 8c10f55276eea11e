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

/// Twelve points of two things.
fn swept() -> Study {
    let mut of = study(&["a"; 12], 2);
    for (at, cell) in of.plan.cells.iter_mut().enumerate() {
        cell.values = vec![(at % 4 * 25).to_string(), if at % 3 == 0 { "list3" } else { "zone" }.to_owned()];
    }
    let varied = |name: &str, is_number| Varied { name: name.to_owned(), is_number };
    of.plan.varied = vec![varied("builds", true), varied("scheme", false)];
    of
}

#[test]
fn a_sweep() {
    let mut of = swept();
    check(&run(of.clone()), SUMMARY, &expect_file!["tests/sweep.txt"]);
    check(&run(of.clone()), VERBOSE, &expect_file!["tests/sweep_verbose.txt"]);
    of.plan.judged = Some("no/such".to_owned());
    assert!(render(&of, false, Style::PLAIN).contains("no trial has no/such; there are under load"));
}

#[test]
fn a_long_comparison_begins_with_what_it_comes_to() {
    let mut of = study(&["standard", "list3", "zone+linear"], 6);
    for trial in &mut of.trials {
        let more = (0..8u64).map(|at| StudyFigure {
            name: format!("count {at}"),
            phase: "in all".to_owned(),
            // One is the same in every run, one differs by less than three decimals show.
            value: if at == 0 { 7 } else { 1_000_000 + trial.slot as u64 },
            per: if at == 1 { 10_000_000 } else { 1 },
            unit: if at == 1 { "share" } else { "times" }.to_owned(),
        });
        trial.figures.extend(more);
    }
    let text = render(&of, false, Style::PLAIN);
    for part in [
        "success: under load, pass 1",
        "F_u(10): at rest",
        "under load, pass 1 against standard: list3 +0.111, zone+linear +0.222; zone+linear has the most",
        "at rest against standard: list3 −0.100, zone+linear −0.200; zone+linear has the least",
        "→ -v   all 12 figures",
    ] {
        let whole = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(whole.contains(&part), "{part}: {text}");
    }
    assert!(text.lines().count() <= 30 && !text.contains("count 3"), "{text}");
    let text = render(&of, true, Style::PLAIN);
    assert!(text.contains("the same in every run: in all/count 0 7"), "{text}");
    assert!(text.contains("+0.000000") || text.contains("+0.0000"), "{text}");
    assert!(!text.contains("+0.000 "), "{text}");
    // 26 of 36 intervals have two ends; each misses in 1 of 32 studies.
    assert!(text.contains("96.9 % interval"), "{text}");
}

/// A headline of one F_u, with so much of memory free and differences of so many millionths by scheme.
fn headline(free: (u64, u64), differs: u64) -> String {
    let mut of = study(&["standard", "list2", "list3"], 6);
    for trial in &mut of.trials {
        let cell = trial.slot as u64 % 3;
        let figure = |name: &str, value: u64, per: u64| StudyFigure {
            phase: "desktop".to_owned(),
            name: name.to_owned(),
            value,
            per,
            unit: "share".to_owned(),
        };
        trial.figures = (0..7).map(|at| figure(&format!("pages: {at}"), 1, 7 + cell)).collect();
        trial.figures.push(figure("pages: free", free.0, free.1));
        trial.figures.push(figure("F_u(9)", 300_000 + differs * cell.min(1) + 10 * cell, 1_000_000));
    }
    render(&of, false, Style::PLAIN).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_does_not_matter_is_not_ranked_and_little_memory_is_told() {
    let text = headline((400_000, 1_000_000), 50_000);
    assert!(text.contains("list2 +0.050, list3 +0.050; standard has the least"), "{text}");
    let text = headline((400_000, 1_000_000), 300);
    assert!(text.contains("+0.0003; differences below 0.001 do not matter"), "{text}");
    assert!(!text.contains("has the") && !text.contains("little"), "{text}");
    // 1.3 % of 1 GiB are six huge pages; of 100 of them free much is left, and of few few.
    let text = headline((3_400, 262_144), 200_000);
    let said = "desktop: little memory is free, 1.3 %, as much as 6 huge pages: F_u says little of it";
    assert!(text.contains(said) && !text.contains("has the"), "{text}");
    assert!(headline((51_200, 10_000_000), 200_000).contains("0.5 %, as much as 100 huge pages"));
    assert!(headline((8_192, 10_000), 200_000).contains("81.9 %, as much as 16 huge pages"));
}

#[test]
fn few_points_are_said_to_be_few_and_points_without_the_figure_are_named() {
    let mut of = study(&["a"; 4], 6);
    for (at, cell) in of.plan.cells.iter_mut().enumerate() {
        cell.values = vec![["1", "2"][at % 2].to_owned(), ["list", "zone"][at / 2].to_owned()];
    }
    let varied = |name: &str, is_number| Varied { name: name.to_owned(), is_number };
    of.plan.varied = vec![varied("builds", true), varied("scheme", false)];
    let text = render(&of, false, Style::PLAIN);
    assert!(text.contains("too few points to tell") && !text.contains("not seen"), "{text}");
    of.plan.cells[3].load = "server".to_owned();
    of.plan.judged = Some("under load, pass 1/success".to_owned());
    let cells = of.plan.cells.len();
    for trial in of.trials.iter_mut().filter(|trial| trial.slot % cells == 3) {
        trial.figures.retain(|figure| figure.phase == "at rest");
    }
    let text = render(&of, false, Style::PLAIN);
    assert!(text.contains("1 of 4 points have no figure") && text.contains("(load\nserver)"), "{text}");
    of.plan.judged = None;
    let text = render(&of, false, Style::PLAIN);
    assert!(text.contains("what mattered for at rest/F_u(10)"), "not all have a success: {text}");
}

#[test]
fn a_killed_study_says_how_far_it_came_and_how_to_go_on() {
    let mut of = study(&["standard", "zone"], 3);
    of.trials.truncate(4);
    let mut run = run(of);
    run.ending = Ending::NotClosed;
    let text = crate::run::render(&run, SUMMARY, Style::PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("4 of 6 runs are kept; go on with: pagelab sim sweep --resume a.pagelab"),
        "{text}"
    );
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
    let [differences] = &page.tables[..] else { panic!("{:?}", page.tables) };
    assert_eq!(differences.columns, ["", "unit", "zone"]);
    assert!(differences.rows.contains(&vec!["  success".into(), "share".into(), "+0.111".into()]));
    for text in ["difference to standard", "  success", "+0.111"] {
        assert!(crate::sim::text::render(&page, Style::PLAIN).contains(text), "{text}");
    }
}

/// The number that stands behind `name` on the first such line.
fn shown<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.split_whitespace().last().unwrap()
}

#[test]
fn terminal_and_page_round_alike_and_show_halves() {
    assert_eq!(value(120.5, "blocks"), "120.5");
    assert_eq!(value(-4120.5, "blocks"), "-4 120.5");
    assert_eq!(value(0.5, "blocks"), "0.5");
    assert_eq!(value(120.25, "blocks"), "120");
    assert_eq!(value(1234.0, "blocks"), "1 234");
    assert_eq!(value(12.24, "blocks"), "12.2");
    assert_eq!(value(0.338, "share"), "0.338");
    // Two seeds: half way between two counts, and no interval.
    let of = study(&["standard"], 2);
    let page = page(&of);
    let values: Vec<SimValueOf> = page.figures.iter().map(|of| of.values[0].unwrap().interval()).collect();
    assert_eq!(values, vec![None; 4], "with two seeds");
    assert_eq!(page.title, "highalloc on x86, kernelcore 1 GiB, builds 7 under standard");
    let (terminal, script_less) =
        (render(&of, false, Style::PLAIN), crate::sim::text::render(&page, Style::PLAIN));
    for name in ["huge pages", "success", "F_u(10)"] {
        assert_eq!(shown(&terminal, name), shown(&script_less, name), "{name}");
    }
    assert_eq!(shown(&terminal, "huge pages"), "13");
}

/// An interval, or none.
type SimValueOf = Option<(f64, f64)>;

#[test]
fn a_page_of_a_sweep_says_what_mattered_and_has_its_points() {
    let mut of = swept();
    let page = page(&of);
    let [mattered, points] = &page.tables[..] else { panic!("{:?}", page.tables) };
    assert_eq!(mattered.title, "what mattered for under load, pass 1/success");
    assert_eq!(mattered.rows.len(), 2);
    assert!(mattered.leads && points.leads && page.title == "sweep over builds, scheme: 12 configurations");
    assert_eq!((points.rows.len(), points.names), (12, 2));
    assert_eq!(points.rows[0], ["75", "zone", "1.258"], "the most first");
    let script_less = crate::sim::text::render(&page, Style::PLAIN);
    for row in render(&of, true, Style::PLAIN).lines().filter(|line| line.contains("zone  ")) {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let is_it = |line: &str| line.split_whitespace().collect::<Vec<_>>() == cells;
        assert!(script_less.lines().any(is_it), "{row}\n{script_less}");
    }
    of.plan.cells.truncate(3);
    of.trials = (0..6).map(|slot| trial(&of.plan, slot)).collect();
    let few = super::page(&of).tables.swap_remove(0);
    assert!(few.words.contains("too few") && few.rows.is_empty(), "{few:?}");
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
