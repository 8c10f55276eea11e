//! Pages of simulations and of the demonstration.

use pagelab_model::simulation::{MemoryPicture, SimulatedZone};
use pagelab_report::html::sim::{PICTURES_MAX, render_demo_page, render_page};
use pagelab_report::sim::demo::{Demo, PolicyTrace, RequestStep};
use pagelab_report::sim::*;

use super::{HOSTILE, Noise, save_html};

fn scheme(name: &str) -> SimulationScheme {
    SimulationScheme {
        name: name.to_owned(),
        free_lists: ["unmovable", "movable", "reclaimable"].map(str::to_owned).to_vec(),
        zones: vec![
            SimulatedZone { name: "Normal".to_owned(), first: 0, frames: 8192 },
            SimulatedZone { name: "HighMem".to_owned(), first: 8192, frames: 8192 },
        ],
    }
}

fn figure(phase: &str, name: &str, zone: Option<&str>, unit: &str, middles: &[f64]) -> SimulationFigure {
    let spread = if unit == "share" { 0.03 } else { 6.0 };
    let value = |&middle: &f64| SimulationValue {
        median: middle,
        low: middle - spread,
        high: middle + spread,
        seed_count: 20,
    };
    SimulationFigure {
        phase: phase.to_owned(),
        name: name.to_owned(),
        zone: zone.map(str::to_owned),
        unit: unit.to_owned(),
        values: middles.iter().map(|middle| Some(value(middle))).collect(),
        paper_values: Vec::new(),
    }
}

/// Runs of random lengths and uses over so many frames, with a hole in front of the last quarter.
fn picture(noise: &mut Noise, step: u64, frames: u32, longest: u64) -> MemoryPicture {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < frames {
        let length = (1 + noise.next_below(longest) as u32).min(frames - at);
        let used = if noise.next_below(3) == 0 { 0 } else { noise.next_below(FRAME_USES.len() as u64) as u8 };
        let gap = if at >= frames / 4 * 3 { frames } else { 0 };
        runs.push((at + gap, length, used));
        at += length;
    }
    let owners = (0..frames / 512).map(|_| noise.next_below(3) as u8).collect();
    MemoryPicture { step, phase: "under load".to_owned(), runs, owners }
}

fn report(names: &[&str]) -> SimulationReport {
    let mut noise = Noise(3);
    let mut success = figure("pass 1", "success", None, "share", &[0.18, 0.23]);
    success.paper_values = vec![Some(0.18), Some(0.21)];
    let mut pages = figure("at rest", "huge pages", None, "blocks", &[110.0, 181.0]);
    pages.paper_values = vec![Some(110.0), None];
    let series = (0..names.len()).map(|scheme| {
        let start = 1_000_000 - 100_000 * scheme as i64;
        let walk = noise.random_walk(379, start, 9_000);
        let points = (0..).zip(walk.into_iter().flatten()).map(|(at, value)| (at, value as f64 / 1e6));
        let over = "attempts".to_owned();
        SimulationSeries { name: "F_u(10) at rest".to_owned(), axis: over, scheme, points: points.collect() }
    });
    let series: Vec<SimulationSeries> = series.collect();
    let pictures = (0..names.len())
        .flat_map(|scheme| (0..5).map(move |step| (scheme, step)))
        .map(|(scheme, step)| (scheme, picture(&mut noise, step * 1000, 1 << 14, 200)))
        .collect();
    SimulationReport {
        title: "highalloc on x86".to_owned(),
        facts: vec!["20 seeds".to_owned(), "kernelcore 1024M".to_owned()],
        schemes: names.iter().map(|name| scheme(name)).collect(),
        figures: vec![
            success,
            pages,
            figure("at rest", "huge pages", Some("Normal"), "blocks", &[16.0, 44.0]),
            figure("at rest", "huge pages", Some("HighMem"), "blocks", &[95.0, 137.0]),
            // The middle of two counts, and two seeds, of which no interval is known.
            SimulationFigure {
                values: [1234.0, 120.5]
                    .map(|at| Some(SimulationValue { median: at, low: at, high: at, seed_count: 2 }))
                    .to_vec(),
                ..figure("at rest", "pages read again", None, "pages", &[])
            },
        ],
        tables: vec![
            SimulationTable {
                title: "difference to standard, seed by seed".to_owned(),
                is_leading: false,
                unit_noun: "highalloc on x86".to_owned(),
                explanation: "Hodges–Lehmann estimate".to_owned(),
                columns: ["", "unit", "zone+linear"].map(str::to_owned).to_vec(),
                name_columns: 2,
                rows: vec![
                    vec!["at rest".to_owned()],
                    ["  success", "share", "+0.050"].map(str::to_owned).to_vec(),
                ],
            },
            SimulationTable {
                title: "influence on at rest/success".to_owned(),
                is_leading: true,
                explanation: "3 points are too few for a verdict".to_owned(),
                ..SimulationTable::default()
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
    let html = save_html("sim", render_page(&report(&["standard", "zone+linear"])).unwrap());
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
    save_html("sim-wide", render_page(&wide).unwrap());
}

#[test]
fn a_simulation_with_next_to_nothing_in_it() {
    let report = SimulationReport { title: "nothing".to_owned(), ..SimulationReport::default() };
    save_html("sim-nothing", render_page(&report).unwrap());
}

#[test]
fn names_in_simulations_stay_text() {
    let mut hostile = report(&[HOSTILE, HOSTILE]);
    let evil = || HOSTILE.to_owned();
    (hostile.title, hostile.facts, hostile.notes) = (evil(), vec![evil()], vec![evil()]);
    for scheme in &mut hostile.schemes {
        scheme.free_lists = vec![evil(); 3];
        scheme.zones.iter_mut().for_each(|zone| zone.name = evil());
    }
    for figure in &mut hostile.figures {
        (figure.phase, figure.name, figure.unit) = (evil(), evil(), evil());
    }
    hostile.figures[2].zone = Some(evil());
    for table in &mut hostile.tables {
        (table.title, table.unit_noun, table.explanation) = (evil(), evil(), evil());
        table.columns.iter_mut().chain(table.rows.iter_mut().flatten()).for_each(|cell| *cell = evil());
    }
    hostile.series.iter_mut().for_each(|series| (series.name, series.axis) = (evil(), evil()));
    hostile.pictures.iter_mut().for_each(|(_, picture)| picture.phase = evil());
    save_html("sim-hostile", render_page(&hostile).unwrap());
}

#[test]
fn sixty_pictures_of_a_million_frames_fit_into_five_megabytes() {
    let mut noise = Noise(5);
    let mut large = report(&["standard"]);
    let steps = 0..PICTURES_MAX as u64 + 5;
    large.pictures = steps.map(|step| (0, picture(&mut noise, step, 1 << 20, 40))).collect();
    let html = save_html("sim-large", render_page(&large).unwrap());
    assert!(html.len() < 5 << 20, "{} bytes", html.len());
}

fn lane(policy: &str, lists: &[&str], end: &str, owners: &[u8]) -> PolicyTrace {
    let start = ".".repeat(end.len());
    let step = |asked: &str, frames: &str, owners: &[u8], touched: Vec<u32>| RequestStep {
        request: asked.to_owned(),
        actions: vec![format!("Page 0 goes to {asked}.")],
        frames: frames.to_owned(),
        owners: owners.to_vec(),
        free: vec![vec![vec![1], vec![2], vec![4, 12], vec![8]]; lists.len()],
        unusable_by_order: vec![0.0, 0.1, 0.2, 0.5],
        touched_frames: touched,
    };
    PolicyTrace {
        policy: policy.to_owned(),
        lists: lists.iter().map(|&list| list.to_owned()).collect(),
        steps: vec![
            step("no owner", &start, &vec![1; owners.len()], Vec::new()),
            step("program A", &format!("A{}", &start[1..]), &vec![1; owners.len()], vec![0]),
            step("the kernel", end, owners, vec![8, 9]),
        ],
    }
}

#[test]
fn a_demonstration_under_two_policies() {
    let lists = ["unmovable", "movable", "reclaimable"];
    let demo = Demo {
        title: "A page allocator, step by step".to_owned(),
        facts: vec!["32 pages".to_owned()],
        policies: vec![
            lane("mobility", &lists, &format!("Aa......Kk......Hhhhhhhh{}", ".".repeat(8)), &[1, 0, 1, 1]),
            lane("standard", &lists, &format!("AaKk....{}", ".".repeat(24)), &[1, 1, 1, 1]),
            lane("list2", &lists[..2], &format!("AaK.....{}", ".".repeat(24)), &[1, 1, 1, 1]),
        ],
        block_frames: 8,
        huge_page_order: 3,
    };
    save_html("demo", render_demo_page(&demo, "All steps as text.\n").unwrap());
}
