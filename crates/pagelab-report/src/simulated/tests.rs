//! Complete reports of simulated experiments.

use std::sync::Arc;

use expect_test::expect_file;
use pagelab_model::experiment::{Fraction, Measure, Plan, Schedule, Trial};
use pagelab_model::run::{Manifest, Run, RunEnd};
use pagelab_model::simulation::{
    MemoryPicture, ScheduleGrid, SimulatedConfiguration, SimulatedWorkload, SimulatedZone, Sweep,
    SweepFactor, TrialSeries, figure_head,
};

use super::*;
use crate::run::tests::{SUMMARY, VERBOSE, check, example};

fn configuration(scheme: &str) -> SimulatedConfiguration {
    SimulatedConfiguration {
        workload: SimulatedWorkload {
            machine: "x86".to_owned(),
            kernelcore: Some(1 << 30),
            load: "highalloc".to_owned(),
            parameters: vec![("builds".to_owned(), 7)],
        },
        scheme: scheme.to_owned(),
        values: Vec::new(),
        lists: Vec::new(),
        zones: Vec::new(),
    }
}

fn experiment(schemes: &[&str], seeds: u64) -> Experiment {
    experiment_of(schemes.iter().map(|scheme| configuration(scheme)).collect(), seeds)
}

fn experiment_of(configurations: Vec<SimulatedConfiguration>, seeds: u64) -> Experiment {
    let plan = Plan::for_simulator("compare", "0.1.0", configurations, (1..=seeds).collect());
    let trials = (0..plan.schedule.len()).map(|slot| trial(&plan, slot)).collect();
    Experiment { plan, trials }
}

fn figure(phase: &str, name: &str, numerator: u64, denominator: u64, unit: &str) -> Measure {
    let head = Arc::new(figure_head(phase.to_owned(), name.to_owned(), unit));
    Measure::from_fraction(head, Fraction { numerator, denominator })
}

/// The same measure with another name or phase.
fn renamed(measure: &Measure, phase: &str, name: &str) -> Measure {
    let exact = measure.exact.unwrap();
    figure(phase, name, exact.numerator, exact.denominator, &measure.unit.0)
}

fn grid(experiment: &mut Experiment) -> &mut ScheduleGrid {
    match &mut experiment.plan.schedule {
        Schedule::Grid(grid) => grid,
        Schedule::List(_) => panic!("a list"),
    }
}

fn trial(plan: &Plan, slot: usize) -> Trial {
    let (point, seed) = plan.point_and_seed(slot).unwrap();
    let (cell, wobble) = (point as u64, seed * 7 % 5);
    let measures = vec![
        figure("under load, pass 1", "huge pages", 10 + 40 * cell + wobble, 1, "blocks"),
        figure("under load, pass 1", "success", 10 + 40 * cell + wobble, 360, "share"),
        figure("at rest", "huge pages", 70 + wobble, 1, "blocks"),
        figure("at rest", "F_u(10)", (900 - seed).saturating_sub(100 * cell), 1000, "share"),
    ];
    let points = (0..40).map(|at| (at * 9, 400_000 + (at * at * 300) as i64)).collect();
    let series = TrialSeries { name: "F_u(10)".to_owned(), over: "attempts".to_owned(), points };
    let notes = vec!["time is not simulated".to_owned()];
    Trial { measures, series: vec![series], notes, ..Trial::new(slot, 0) }
}

fn run(experiment: Experiment) -> Run {
    let manifest = Manifest { kind: "sim".to_owned(), ..example::record().manifest };
    let mut run = Run::new("a.pagelab", manifest, RunEnd::Complete { after_ns: 9_000_000_000 });
    run.experiment = Some(Box::new(experiment));
    run
}

#[test]
fn a_comparison() {
    let of = experiment(&["standard", "list3", "zone", "zone+linear"], 12);
    check(&run(of), SUMMARY, &expect_file!["tests/compare.txt"]);
}

#[test]
fn few_seeds_and_a_study_that_was_stopped() {
    let mut of = experiment(&["standard", "zone"], 3);
    of.trials.pop();
    check(&run(of), SUMMARY, &expect_file!["tests/few.txt"]);
    let mut of = experiment(&["standard"], 1);
    of.trials.clear();
    assert!(render(&of, false, TextStyle::PLAIN).contains("no trial completed"));
}

#[test]
fn a_single_run_shows_its_series() {
    let mut of = experiment(&["list3"], 1);
    of.trials[0].pictures = 1;
    check(&run(of), SUMMARY, &expect_file!["tests/single.txt"]);
}

/// Twelve points of two parameters.
fn sweep(points: usize) -> Experiment {
    let value = |at: usize| {
        vec![(at % 4 * 25).to_string(), if at.is_multiple_of(3) { "list3" } else { "zone" }.to_owned()]
    };
    sweep_of((0..points).map(|at| SimulatedConfiguration { values: value(at), ..configuration("a") }), 2)
}

fn sweep_of(points: impl Iterator<Item = SimulatedConfiguration>, seeds: u64) -> Experiment {
    let of = experiment_of(points.collect(), seeds);
    let varied = |name: &str, is_number| SweepFactor { name: name.to_owned(), is_number };
    let sweep = Sweep { varied: vec![varied("builds", true), varied("scheme", false)], judged: None };
    Experiment { plan: of.plan.into_sweep(sweep), ..of }
}

/// The same, judged by this measure.
fn judged(mut of: Experiment, by: Option<&str>) -> Experiment {
    of.plan.sweep.as_mut().unwrap().judged = by.map(str::to_owned);
    of
}

#[test]
fn a_sweep() {
    let mut of = sweep(12);
    check(&run(of.clone()), SUMMARY, &expect_file!["tests/sweep.txt"]);
    check(&run(of.clone()), VERBOSE, &expect_file!["tests/sweep_verbose.txt"]);
    of = judged(of, Some("no/such"));
    assert!(
        render(&of, false, TextStyle::PLAIN).contains("no trial has no/such; expected one of under load")
    );
}

#[test]
fn a_long_comparison_begins_with_what_it_comes_to() {
    let mut of = experiment(&["standard", "list3", "zone+linear"], 6);
    for trial in &mut of.trials {
        let slot = trial.slot as u64;
        let more = (0..8u64).map(|at| {
            // One is the same in every run, one differs by less than three decimals show.
            let value = if at == 0 { 7 } else { 1_000_000 + slot };
            let (per, unit) = if at == 1 { (10_000_000, "share") } else { (1, "times") };
            figure("in all", &format!("count {at}"), value, per, unit)
        });
        trial.measures.extend(more);
    }
    let text = render(&of, false, TextStyle::PLAIN);
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
    let text = render(&of, true, TextStyle::PLAIN);
    assert!(text.contains("the same in every run: in all/count 0 7"), "{text}");
    assert!(text.contains("+0.000000") || text.contains("+0.0000"), "{text}");
    assert!(!text.contains("+0.000 "), "{text}");
    // 26 of 36 intervals have two ends; each misses in 1 of 32 studies.
    assert!(text.contains("96.9 % interval"), "{text}");
}

/// A headline of one F_u, with this share of memory free and differences in millionths by scheme.
fn headline(free: (u64, u64), differs: u64) -> String {
    let mut of = experiment(&["standard", "list2", "list3"], 6);
    for trial in &mut of.trials {
        let cell = trial.slot as u64 % 3;
        let figure = |name: &str, value: u64, per: u64| figure("desktop", name, value, per, "share");
        trial.measures = (0..7).map(|at| figure(&format!("pages: {at}"), 1, 7 + cell)).collect();
        trial.measures.push(figure("pages: free", free.0, free.1));
        trial.measures.push(figure("F_u(9)", 300_000 + differs * cell.min(1) + 10 * cell, 1_000_000));
    }
    render(&of, false, TextStyle::PLAIN).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_does_not_matter_is_not_ranked_and_little_memory_is_told() {
    let text = headline((400_000, 1_000_000), 50_000);
    assert!(text.contains("list2 +0.050, list3 +0.050; standard has the least"), "{text}");
    let text = headline((400_000, 1_000_000), 300);
    assert!(text.contains("+0.0003; differences below 0.001 are ignored"), "{text}");
    assert!(!text.contains("has the") && !text.contains("little"), "{text}");
    // 1.3 % of 1 GiB are six huge pages; 100 free huge pages are enough, a few are not.
    let text = headline((3_400, 262_144), 200_000);
    let said = "desktop: only 1.3 % of memory is free, the size of 6 huge pages: F_u is not meaningful";
    assert!(text.contains(said) && !text.contains("has the"), "{text}");
    assert!(
        headline((51_200, 10_000_000), 200_000)
            .contains("0.5 % of memory is free, the size of 100 huge pages")
    );
    assert!(
        headline((8_192, 10_000), 200_000).contains("81.9 % of memory is free, the size of 16 huge pages")
    );
}

#[test]
fn few_points_are_said_to_be_few_and_points_without_the_figure_are_named() {
    let value = |at: usize| vec![["1", "2"][at % 2].to_owned(), ["list", "zone"][at / 2].to_owned()];
    let point = |at: usize| SimulatedConfiguration { values: value(at), ..configuration("a") };
    let mut of = sweep_of((0..4).map(point), 6);
    let text = render(&of, false, TextStyle::PLAIN);
    assert!(text.contains("too few points for a verdict") && !text.contains("not seen"), "{text}");
    of = sweep_of(
        (0..4).map(point).map(|mut point| {
            if point.values == value(3) {
                point.workload.load = "server".to_owned();
            }
            point
        }),
        6,
    );
    of = judged(of, Some("under load, pass 1/success"));
    let points = of.plan.points().len();
    for trial in of.trials.iter_mut().filter(|trial| trial.slot % points == 3) {
        trial.measures.retain(|figure| figure.phase == "at rest");
    }
    let text = render(&of, false, TextStyle::PLAIN);
    assert!(text.contains("1 of 4 points lack the figure") && text.contains("(load\nserver)"), "{text}");
    of = judged(of, None);
    let text = render(&of, false, TextStyle::PLAIN);
    assert!(text.contains("influence on at rest/F_u(10)"), "not all have a success: {text}");
}

#[test]
fn a_killed_study_says_how_far_it_came_and_how_to_go_on() {
    let mut of = experiment(&["standard", "zone"], 3);
    of.trials.truncate(4);
    let mut run = run(of);
    run.ending = RunEnd::NotClosed;
    let text = crate::run::render(&run, SUMMARY, TextStyle::PLAIN);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("4 of 6 runs are done; resume with: pagelab sim sweep --resume a.pagelab"),
        "{text}"
    );
}

#[test]
fn a_wide_comparison_is_cut_into_tables_that_fit() {
    let names: Vec<String> = (0..9).map(|at| format!("{at}{}", "x".repeat(60))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let text = render(&experiment(&names, 6), false, TextStyle::PLAIN);
    for at in 0..9 {
        assert!(text.contains(&format!("  {at}xxxx")), "{text}");
    }
    assert!(text.lines().all(|line| crate::text_report::display_width(line) <= 80), "{text}");
}

#[test]
fn a_page_has_a_column_for_each_scheme_and_zones_behind_their_figure() {
    let mut of = experiment(&["standard", "zone"], 6);
    for trial in &mut of.trials {
        let first = &trial.measures[0];
        let zone = renamed(first, &first.phase, "from HighMem");
        trial.measures.insert(2, zone);
    }
    let picture = MemoryPicture {
        step: 7,
        phase: "at rest".to_owned(),
        runs: vec![(0, 512, 0), (512, 512, 3)],
        owners: vec![1, 0],
    };
    let page = page_report(&of, (0..of.trials.len()).map(|slot| (slot, picture.clone())));
    let names: Vec<(&str, Option<&str>)> =
        page.figures.iter().map(|of| (of.name.as_str(), of.zone.as_deref())).collect();
    let whole = ("huge pages", None);
    assert_eq!(names[..3], [whole, ("huge pages", Some("HighMem")), ("success", None)]);
    assert_eq!(page.schemes.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["standard", "zone"]);
    for figure in &page.figures {
        for value in figure.values.iter().map(|value| value.unwrap()) {
            assert!(
                value.low <= value.median && value.median <= value.high && value.seed_count == 6,
                "{value:?}"
            );
        }
    }
    assert_eq!((page.series.len(), page.pictures.len()), (2, 12 / 6), "of the first seed alone");
    let text = crate::html::sim::render_page(&page).unwrap();
    assert!(text.contains("highalloc on x86"));
    let [differences] = &page.tables[..] else { panic!("{:?}", page.tables) };
    assert_eq!(differences.columns, ["", "unit", "zone"]);
    assert!(differences.rows.contains(&vec!["  success".into(), "share".into(), "+0.111".into()]));
    for text in ["difference from standard", "  success", "+0.111"] {
        assert!(crate::sim::text::render(&page, TextStyle::PLAIN).contains(text), "{text}");
    }
}

/// Returns the number after `name` on the first such line.
fn find_number<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.split_whitespace().last().unwrap()
}

#[test]
fn terminal_and_page_round_alike_and_show_halves() {
    assert_eq!(format_value(120.5, "blocks"), "120.5");
    assert_eq!(format_value(-4120.5, "blocks"), "-4\u{202f}120.5");
    assert_eq!(format_value(0.5, "blocks"), "0.5");
    assert_eq!(format_value(120.25, "blocks"), "120");
    assert_eq!(format_value(1234.0, "blocks"), "1\u{202f}234");
    assert_eq!(format_value(12.24, "blocks"), "12.2");
    assert_eq!(format_value(0.338, "share"), "0.338");
    // Two seeds: halfway between two counts, and no interval.
    let of = experiment(&["standard"], 2);
    let page = page_report(&of, []);
    let values: Vec<SimValueOf> = page.figures.iter().map(|of| of.values[0].unwrap().interval()).collect();
    assert_eq!(values, vec![None; 4], "with two seeds");
    assert_eq!(page.title, "highalloc on x86, kernelcore 1 GiB, builds 7 under standard");
    let (terminal, script_less) =
        (render(&of, false, TextStyle::PLAIN), crate::sim::text::render(&page, TextStyle::PLAIN));
    for name in ["huge pages", "success", "F_u(10)"] {
        assert_eq!(find_number(&terminal, name), find_number(&script_less, name), "{name}");
    }
    assert_eq!(find_number(&terminal, "huge pages"), "13");
}

/// An interval, or none.
type SimValueOf = Option<(f64, f64)>;

#[test]
fn a_page_of_a_sweep_says_what_mattered_and_has_its_points() {
    let of = sweep(12);
    let page = page_report(&of, []);
    let [mattered, points] = &page.tables[..] else { panic!("{:?}", page.tables) };
    assert_eq!(mattered.title, "influence on under load, pass 1/success");
    assert_eq!(mattered.rows.len(), 2);
    assert!(
        mattered.is_leading
            && points.is_leading
            && page.title == "sweep over builds, scheme: 12 configurations"
    );
    assert_eq!((points.rows.len(), points.name_columns), (12, 2));
    assert_eq!(points.rows[0], ["75", "zone", "1.258"], "the most first");
    let script_less = crate::sim::text::render(&page, TextStyle::PLAIN);
    for row in render(&of, true, TextStyle::PLAIN).lines().filter(|line| line.contains("zone  ")) {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let is_it = |line: &str| line.split_whitespace().collect::<Vec<_>>() == cells;
        assert!(script_less.lines().any(is_it), "{row}\n{script_less}");
    }
    let few = page_report(&sweep(3), []).tables.swap_remove(0);
    assert!(few.explanation.contains("too few") && few.rows.is_empty(), "{few:?}");
}

/// The paper's values are shown beside the simulator's if it tested the configuration, and pictures have
/// zones.
#[test]
fn a_page_has_the_papers_figures_and_the_zones() {
    let bare = |scheme: &&str| {
        let mut of = configuration(scheme);
        of.workload.parameters.clear();
        of.zones = vec![SimulatedZone { name: "HighMem".to_owned(), first: 229_376, frames: 32_768 }];
        of
    };
    let mut of = experiment_of(["standard", "zone", "list"].iter().map(bare).collect(), 2);
    assert_eq!(grid(&mut of).layouts.len(), 1, "each combination of zones once");
    let page = page_report(&of, []);
    assert!(
        page.figures.iter().all(|figure| figure.paper_values.is_empty()),
        "these phases are none of its own"
    );
    for measure in of.trials.iter_mut().flat_map(|trial| &mut trial.measures) {
        *measure = renamed(measure, &format!("highalloc {}", measure.phase), &measure.name);
    }
    let page = page_report(&of, []);
    let first = page.figures.iter().find(|figure| figure.name == "huge pages").unwrap();
    assert_eq!(
        (first.phase.as_str(), &first.paper_values[..]),
        ("highalloc under load, pass 1", &[Some(72.0), Some(82.0), None][..])
    );
    let unusable = page.figures.iter().find(|figure| figure.name == "F_u(10)").unwrap();
    assert!(unusable.paper_values.is_empty(), "the paper draws it, and gives no number");
    assert!(page.notes.iter().any(|note| note.contains("In the paper")));
    let zone = SimulatedZone { name: "HighMem".to_owned(), first: 229_376, frames: 32_768 };
    assert!(page.schemes.iter().all(|scheme| scheme.zones == [zone.clone()]));
    let workload = of.plan.workloads[0].simulated.as_mut().unwrap();
    workload.parameters.push(("builds".to_owned(), 1));
    assert!(page_report(&of, []).figures.iter().all(|figure| figure.paper_values.is_empty()));
}
