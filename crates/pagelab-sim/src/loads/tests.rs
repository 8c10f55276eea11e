//! Tests of loads: the final memory agrees with the description of the load, and only the seed determines it.

use pagelab_model::simulation::SimulatedWorkload;

use super::{TABLE, find_load};
use crate::study::{Scheme, SimulationOutcome, SimulationSpec, run_simulation};

fn spec(load: &str, machine: &str, seed: u64) -> SimulationSpec {
    let workload = SimulatedWorkload {
        machine: machine.to_owned(),
        kernelcore: None,
        load: load.to_owned(),
        parameters: Vec::new(),
    };
    SimulationSpec::new(workload, "standard", seed, 0).unwrap()
}

fn run_spec(spec: &SimulationSpec) -> SimulationOutcome {
    run_simulation(spec, &mut |_| true).unwrap()
}

/// A figure of the last phase that contains it.
fn figure(outcome: &SimulationOutcome, name: &str) -> (u64, u64) {
    let found = outcome.figures.iter().rev().find(|figure| figure.name == name);
    let found = found.unwrap_or_else(|| panic!("no {name} among {:?}", outcome.figures));
    (found.value, found.divisor)
}

/// Pages of a use as a percentage of memory.
fn percent(outcome: &SimulationOutcome, class: &str) -> u64 {
    let (value, per) = figure(outcome, &format!("pages: {class}"));
    value * 100 / per
}

#[test]
fn the_seed_alone_decides() {
    for load in ["updatedb", "desktop", "streaming", "server", "churn"] {
        let mut spec = spec(load, "512M", 3);
        for (name, value) in [("seconds", 20), ("disk_files", 20_000), ("pairs", 20_000)] {
            if find_load(load).unwrap().parameters().any(|parameter| parameter.name == name) {
                spec.workload.parameters.push((name.to_owned(), value));
            }
        }
        spec.picture_count = 3;
        let first = run_spec(&spec);
        assert_eq!(first, run_spec(&spec), "{load}");
        assert_eq!(first.pictures.len(), 3, "{load}");
        assert!(first.notes.is_empty(), "{load}: {:?}", first.notes);
        for picture in &first.pictures {
            let frames: u64 = picture.runs.iter().map(|run| u64::from(run.1)).sum();
            assert_eq!(frames, figure(&first, "pages: free").1, "{load}: a picture has all frames");
        }
        spec.seed = 4;
        assert_ne!(first.pictures, run_spec(&spec).pictures, "{load}");
    }
}

#[test]
fn each_load_holds_what_its_description_says() {
    let outcome = run_spec(&spec("updatedb", "x86", 1));
    // 150 000 inodes at 7 a page and names at 28: 26 800 pages, and 6250 of blocks that they were read from.
    assert!((6..=7).contains(&percent(&outcome, "names and inodes")));
    assert_eq!(percent(&outcome, "block devices"), 1);
    let outcome = run_spec(&spec("streaming", "x86", 1));
    assert!(percent(&outcome, "files") > 85 && percent(&outcome, "free") < 10);
    let outcome = run_spec(&spec("churn", "x86", 1));
    // In use are 75 % of memory; a tenth of it the kernel's, a tenth caches.
    assert!((6..=9).contains(&percent(&outcome, "kernel")));
    assert!((6..=9).contains(&percent(&outcome, "names and inodes")));
    assert!((56..=68).contains(&percent(&outcome, "programs")));
    // What the kernel keeps: four pages a second over 620 s, given for 10 s.
    let leaking = |leak| {
        let mut spec = spec("desktop", "x86", 1);
        spec.workload.parameters = vec![("leak".to_owned(), leak), ("seconds".to_owned(), 600)];
        spec
    };
    let kernel = |leak| figure(&run_spec(&leaking(leak)), "pages: kernel").0;
    let leaked = kernel(40).saturating_sub(kernel(0));
    assert!((2400..=2560).contains(&leaked), "{leaked}");
    let outcome = run_spec(&leaking(10));
    // Open programs of a desktop: at least six of twelve, of 12 000 pages each.
    assert!(percent(&outcome, "programs") > 20);
}

#[test]
fn a_build_allocates_what_a_build_of_its_time_did() {
    let mut spec = spec("kbuild", "x86", 1);
    spec.workload.parameters = vec![("units".to_owned(), 300)];
    let outcome = run_spec(&spec);
    assert_eq!(figure(&outcome, "compilations"), (300, 1));
    // 3137 pages of a compiler, 400 of the assembler, 60 of a linker, 390 of small programs, with tables.
    let (asked, units) = figure(&outcome, "allocations a compilation");
    // The tree itself, its inodes and buffer heads are some 60 000 more; helpers of scripts 600 a
    // compilation.
    assert!((3900..=4700).contains(&((asked - 60_000) / units)), "{asked}");
    // A tree of 54 000 pages, archive 11 600, boot 10 000, objects.
    let files = figure(&outcome, "pages: files").0;
    assert!((78_000..=90_000).contains(&files), "{files}");
    assert_eq!(figure(&outcome, "failed allocations").0, 0);
}

#[test]
fn what_cannot_be_is_refused_with_the_names_that_can() {
    let refused = |spec: &SimulationSpec| run_simulation(spec, &mut |_| true).unwrap_err().to_string();
    let text = refused(&spec("chrun", "x86", 1));
    assert!(TABLE.iter().all(|load| text.contains(load.name)), "{text}");
    let with = |load: &str, name: &str, value: u64| {
        let mut spec = spec(load, "x86", 1);
        spec.workload.parameters.push((name.to_owned(), value));
        spec
    };
    let text = refused(&with("desktop", "leek", 1));
    assert!(
        text.contains("unknown parameter `leek`") && text.contains("leak") && text.contains("daemons"),
        "{text}"
    );
    let text = refused(&with("churn", "full", 96));
    assert!(text.contains("95"), "{text}");
    for machine in ["x87", "16", "G", "", "1K", "99999999T", "é", "63M"] {
        assert!(refused(&spec("churn", machine, 1)).contains("expected x86"), "{machine}");
    }
    let mut zone = spec("churn", "x86", 1);
    zone.scheme = Scheme::parse("zone").unwrap();
    for core in [0, 3 << 10, 28 << 20, 2 << 30] {
        zone.workload.kernelcore = Some(core);
        let text = refused(&zone);
        assert!(text.contains("kernelcore of"), "{text}");
    }
}

#[test]
fn a_load_ends_when_nobody_wants_it_any_more() {
    let mut calls = 0;
    let outcome = run_simulation(&spec("desktop", "x86", 1), &mut |_| {
        calls += 1;
        calls < 3
    });
    assert_eq!(outcome.unwrap().notes, ["stopped early"]);
    assert_eq!(calls, 3);
}

#[test]
fn parameters_are_named_once_and_within_their_range() {
    for load in TABLE {
        let mut names: Vec<&str> = load.parameters().map(|parameter| parameter.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{}", load.name);
        for parameter in load.parameters() {
            assert!(parameter.default <= parameter.max, "{} {}", load.name, parameter.name);
        }
    }
}

#[test]
fn the_page_has_all_loads_and_parameters() {
    let page = include_str!("../../../../docs/loads.md");
    for load in TABLE {
        let row = format!("| `{}` | {} |", load.name, load.summary);
        assert!(page.contains(&row), "{row}");
        for parameter in load.parameters() {
            let super::Parameter { name, default, unit, meaning, .. } = parameter;
            let row = format!("| `{name}` | {default} | {unit} | {meaning} |");
            let is_light = load.name.ends_with("-light") && *name == "builds";
            assert!(is_light || page.contains(&row), "{}: {row}", load.name);
        }
    }
}

/// A load of programs ends with the huge pages available without them, and reports the course.
#[test]
fn programs_leave_huge_pages_where_what_cannot_be_moved_stands_together() {
    for load in ["desktop", "server"] {
        let of = |scheme: &str, leak: u64| {
            let mut spec = spec(load, "256M", 1);
            spec.scheme = Scheme::parse(scheme).unwrap();
            for (name, value) in
                [("seconds", 300), ("leak", leak), ("program_pages", 2000), ("worker_pages", 400)]
            {
                if find_load(load).unwrap().parameters().any(|parameter| parameter.name == name) {
                    spec.workload.parameters.push((name.to_owned(), value));
                }
            }
            run_spec(&spec)
        };
        let outcome = of("standard", 40);
        let rest = |outcome: &SimulationOutcome, name: &str| {
            let found = outcome.figures.iter().find(|of| of.phase == "at rest" && of.name == name);
            let found = found.unwrap_or_else(|| panic!("{load}: no {name}"));
            (found.value, found.divisor)
        };
        let (got, asked) = rest(&outcome, "success");
        assert_eq!((got, asked), (rest(&outcome, "huge pages").0, 128), "{load}: 256 MiB");
        let zones = outcome.figures.iter().filter(|of| of.name.starts_with("from "));
        assert_eq!(zones.map(|of| of.value).sum::<u64>(), got, "{load}");
        let (mixed, all) = rest(&outcome, "polluted pageblocks");
        assert_eq!(all, 128, "{load}: a huge page is a pageblock");
        // No pageblock with an unmovable page is a huge page, except for pages of the kernel's caches, which
        // the attempts reclaim.
        assert!(got <= all - mixed + 8 && mixed > 20, "{load}: {got}, {mixed}");
        let apart = of("mobility", 40);
        assert!(rest(&apart, "polluted pageblocks").0 < mixed, "{load}: {apart:?}");
        assert!(rest(&apart, "huge pages").0 > got, "{load}: {apart:?}");
        // The curve ends with the figures of the phase.
        for (series, name) in outcome.series.iter().zip(["F_u(9)", "polluted pageblocks"]) {
            assert!(series.name.starts_with(name), "{}", series.name);
            assert!(series.points.is_sorted_by(|one, next| one.0 < next.0), "{}", series.name);
            let last = series.points.last().unwrap();
            let of_phase = outcome.figures.iter().find(|of| of.name == name).unwrap();
            assert_eq!(*last, (300, (of_phase.value * 1_000_000 / of_phase.divisor) as i64), "{load} {name}");
        }
        assert_eq!(outcome.series.len(), 2);
    }
}

/// Independent count: from a picture and the numbers of its classes.
#[test]
fn mixed_pageblocks_are_those_of_the_last_picture() {
    let mut spec = spec("desktop", "256M", 5);
    spec.workload.parameters = vec![("seconds".to_owned(), 60), ("program_pages".to_owned(), 1000)];
    spec.picture_count = 1;
    let outcome = run_spec(&spec);
    let mut stays = vec![false; 65_536];
    for &(first_frame, frames, class) in &outcome.pictures[0].runs {
        // The kernel's own pages, page tables and the kernel's caches.
        stays[first_frame as usize..][..frames as usize].fill((1..=3).contains(&class));
    }
    let mixed = stays.chunks(512).filter(|block| block.contains(&true)).count() as u64;
    assert!(mixed > 4, "{mixed}");
    let at_end = outcome.figures.iter().rfind(|of| of.name == "polluted pageblocks").unwrap().value;
    assert!(at_end.abs_diff(mixed) <= 4, "{at_end} before the attempts, {mixed} after them");
}
