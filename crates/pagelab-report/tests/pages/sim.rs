//! Pages of simulations and of the demonstration.

use pagelab_report::html::sim::{PICTURES_MAX, demo_page, page};
use pagelab_report::sim::demo::{Demo, Lane, Step};
use pagelab_report::sim::*;

use super::{HOSTILE, Noise, keep_html};

fn scheme(name: &str) -> SimScheme {
    SimScheme {
        name: name.to_owned(),
        lists: ["unmovable", "movable", "reclaimable"].map(str::to_owned).to_vec(),
        zones: vec![
            SimZone { name: "Normal".to_owned(), first: 0, frames: 8192 },
            SimZone { name: "HighMem".to_owned(), first: 8192, frames: 8192 },
        ],
    }
}

fn figure(phase: &str, name: &str, zone: Option<&str>, unit: &str, middles: &[f64]) -> SimFigure {
    let spread = if unit == "share" { 0.03 } else { 6.0 };
    let value = |&middle: &f64| SimValue { middle, low: middle - spread, high: middle + spread, seeds: 20 };
    SimFigure {
        phase: phase.to_owned(),
        name: name.to_owned(),
        zone: zone.map(str::to_owned),
        unit: unit.to_owned(),
        values: middles.iter().map(|middle| Some(value(middle))).collect(),
        paper: Vec::new(),
    }
}

/// Runs of random lengths and uses over so many frames, with a hole in front of the last quarter.
fn picture(noise: &mut Noise, scheme: usize, step: u64, frames: u32, longest: u64) -> SimPicture {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < frames {
        let length = (1 + noise.next(longest) as u32).min(frames - at);
        let used = if noise.next(3) == 0 { 0 } else { noise.next(USES.len() as u64) as u8 };
        let gap = if at >= frames / 4 * 3 { frames } else { 0 };
        runs.push((at + gap, length, used));
        at += length;
    }
    let owners = (0..frames / 512).map(|_| noise.next(3) as u8).collect();
    SimPicture { step, phase: "under load".to_owned(), scheme, runs, owners }
}

fn report(names: &[&str]) -> SimReport {
    let mut noise = Noise(3);
    let mut success = figure("pass 1", "success", None, "share", &[0.18, 0.23]);
    success.paper = vec![Some(0.18), Some(0.21)];
    let mut pages = figure("at rest", "huge pages", None, "blocks", &[110.0, 181.0]);
    pages.paper = vec![Some(110.0), None];
    let series = (0..names.len()).map(|scheme| {
        let start = 1_000_000 - 100_000 * scheme as i64;
        let walk = noise.walk(379, start, 9_000);
        let points = (0..).zip(walk.into_iter().flatten()).map(|(at, value)| (at, value as f64 / 1e6));
        let over = "attempts".to_owned();
        SimSeries { name: "F_u(10) at rest".to_owned(), over, scheme, points: points.collect() }
    });
    let series: Vec<SimSeries> = series.collect();
    let pictures = (0..names.len())
        .flat_map(|scheme| (0..5).map(move |step| (scheme, step)))
        .map(|(scheme, step)| picture(&mut noise, scheme, step * 1000, 1 << 14, 200))
        .collect();
    SimReport {
        title: "highalloc on x86".to_owned(),
        facts: vec!["20 seeds".to_owned(), "kernelcore 1024M".to_owned()],
        schemes: names.iter().map(|name| scheme(name)).collect(),
        figures: vec![
            success,
            pages,
            figure("at rest", "huge pages", Some("Normal"), "blocks", &[16.0, 44.0]),
            figure("at rest", "huge pages", Some("HighMem"), "blocks", &[95.0, 137.0]),
            // The middle of two counts, and two seeds, of which no interval is known.
            SimFigure {
                values: [1234.0, 120.5]
                    .map(|at| Some(SimValue { middle: at, low: at, high: at, seeds: 2 }))
                    .to_vec(),
                ..figure("at rest", "pages read again", None, "pages", &[])
            },
        ],
        tables: vec![
            SimTable {
                title: "difference to standard, seed by seed".to_owned(),
                leads: false,
                of: "highalloc on x86".to_owned(),
                words: "the middle of all averages of two".to_owned(),
                columns: ["", "unit", "zone+linear"].map(str::to_owned).to_vec(),
                names: 2,
                rows: vec![
                    vec!["at rest".to_owned()],
                    ["  success", "share", "+0.050"].map(str::to_owned).to_vec(),
                ],
            },
            SimTable {
                title: "what mattered for at rest/success".to_owned(),
                leads: true,
                words: "3 points are too few to tell".to_owned(),
                ..SimTable::default()
            },
        ],
        series,
        pictures,
        notes: vec!["Two seeds ran out of memory".to_owned()],
        text: None,
    }
}

#[test]
fn simulations_side_by_side() {
    let html = keep_html("sim", page(&report(&["standard", "zone+linear"])).unwrap());
    assert!(html.contains("highalloc on x86"));
}

#[test]
fn five_schemes_with_long_names_and_large_numbers() {
    let names = ["standard", "list+linear", "zone+linear", "standard+noactivate", "list-2.6.24"];
    let phases = ["highalloc under load, pass 1", "highalloc under load, pass 2"];
    let success = phases.map(|phase| figure(phase, "success", None, "share", &[0.1, 0.2, 0.3, 0.4, 0.5]));
    let scanned = [472_308.5, 411_096.0, 51_240.5, 39_720.0, 1_234_567.0];
    let scanned = figure("in all", "pages: names and inodes of the kernel", None, "pages", &scanned);
    let mut wide = report(&names);
    wide.figures = success.into_iter().chain([scanned]).collect();
    keep_html("sim-wide", page(&wide).unwrap());
}

#[test]
fn a_simulation_with_next_to_nothing_in_it() {
    let report = SimReport { title: "nothing".to_owned(), ..SimReport::default() };
    keep_html("sim-nothing", page(&report).unwrap());
}

#[test]
fn names_in_simulations_stay_text() {
    let mut hostile = report(&[HOSTILE, HOSTILE]);
    let evil = || HOSTILE.to_owned();
    (hostile.title, hostile.facts, hostile.notes) = (evil(), vec![evil()], vec![evil()]);
    for scheme in &mut hostile.schemes {
        scheme.lists = vec![evil(); 3];
        scheme.zones.iter_mut().for_each(|zone| zone.name = evil());
    }
    for figure in &mut hostile.figures {
        (figure.phase, figure.name, figure.unit) = (evil(), evil(), evil());
    }
    hostile.figures[2].zone = Some(evil());
    for table in &mut hostile.tables {
        (table.title, table.of, table.words) = (evil(), evil(), evil());
        table.columns.iter_mut().chain(table.rows.iter_mut().flatten()).for_each(|cell| *cell = evil());
    }
    hostile.series.iter_mut().for_each(|series| (series.name, series.over) = (evil(), evil()));
    hostile.pictures.iter_mut().for_each(|picture| picture.phase = evil());
    keep_html("sim-hostile", page(&hostile).unwrap());
}

#[test]
fn sixty_pictures_of_a_million_frames_fit_into_five_megabytes() {
    let mut noise = Noise(5);
    let mut large = report(&["standard"]);
    let steps = 0..PICTURES_MAX as u64 + 5;
    large.pictures = steps.map(|step| picture(&mut noise, 0, step, 1 << 20, 40)).collect();
    let html = keep_html("sim-large", page(&large).unwrap());
    assert!(html.len() < 5 << 20, "{} bytes", html.len());
}

fn lane(policy: &str, lists: &[&str], end: &str, owners: &[u8]) -> Lane {
    let start = ".".repeat(end.len());
    let step = |asked: &str, frames: &str, owners: &[u8], touched: Vec<u32>| Step {
        asked: asked.to_owned(),
        did: vec![format!("Page 0 goes to {asked}.")],
        frames: frames.to_owned(),
        owners: owners.to_vec(),
        free: vec![vec![vec![1], vec![2], vec![4, 12], vec![8]]; lists.len()],
        unusable: vec![0.0, 0.1, 0.2, 0.5],
        touched,
    };
    Lane {
        policy: policy.to_owned(),
        lists: lists.iter().map(|&list| list.to_owned()).collect(),
        steps: vec![
            step("nobody", &start, &vec![1; owners.len()], Vec::new()),
            step("program A", &format!("A{}", &start[1..]), &vec![1; owners.len()], vec![0]),
            step("the kernel", end, owners, vec![8, 9]),
        ],
    }
}

#[test]
fn a_demonstration_under_two_policies() {
    let lists = ["unmovable", "movable", "reclaimable"];
    let demo = Demo {
        title: "How a page allocator works, step by step".to_owned(),
        facts: vec!["32 pages".to_owned()],
        lanes: vec![
            lane("mobility", &lists, &format!("Aa......Kk......Hhhhhhhh{}", ".".repeat(8)), &[1, 0, 1, 1]),
            lane("standard", &lists, &format!("AaKk....{}", ".".repeat(24)), &[1, 1, 1, 1]),
            lane("list2", &lists[..2], &format!("AaK.....{}", ".".repeat(24)), &[1, 1, 1, 1]),
        ],
        block_frames: 8,
        goal_order: 3,
    };
    keep_html("demo", demo_page(&demo, "All steps as text.\n").unwrap());
}
