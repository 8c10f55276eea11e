//! Reports of profiles: memory that was not visible is not zero, and hostile numbers draw nothing false.

use pagelab_model::PageSize;
use pagelab_model::profile::{
    CellCounts, ImageProfile, ImageStart, MappingIdentity, MappingProfile, ProfileSource, ProfilingCost,
    Program, ReuseHistograms, ScanSaturation, UnseenRange, WalkCostCurve,
};

use super::heat_map::HeatCell;
use super::*;

const HUGE: u64 = 2 << 20;

pub(crate) fn profile(cells: CellCounts, unseen: Vec<UnseenRange>, start: u64, grain: u64) -> TlbProfile {
    let mapping = MappingProfile {
        key: MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(8 * HUGE), nth: 1 },
        start,
        bytes: Bytes(8 * HUGE),
        grain: Bytes(grain),
        cells,
        reuse: ReuseHistograms::default(),
        unseen,
    };
    let image = ImageProfile {
        pid: 1,
        parent: None,
        begun: ImageStart::Attached,
        program: Program { path: "/a/b".to_owned(), ..Program::default() },
        arguments: Vec::new(),
        accesses: None,
        instructions: None,
        misses: 12,
        mappings: vec![mapping],
        advice: None,
    };
    TlbProfile {
        source: ProfileSource::Accessed,
        command: Vec::new(),
        page_size: PageSize::DEFAULT,
        huge: Bytes(HUGE),
        tlb: None,
        walk_cost: None,
        images: vec![image],
        wall_ns: 0,
        effort: ProfilingCost::default(),
        lost: 3,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

fn cells(at: &[u64], misses: &[u64]) -> CellCounts {
    CellCounts { at: at.to_vec(), misses: misses.to_vec(), ..CellCounts::default() }
}

#[test]
fn cells_of_the_heat_map_are_told_apart() {
    let unseen =
        vec![UnseenRange { offset: 4 * HUGE, bytes: Bytes(2 * HUGE), why: UnseenReason::AlreadyHuge }];
    // Touched without a miss, with misses, with twice as many, and with misses in a partly invisible region.
    let profile = profile(cells(&[0, 1, 3, 5], &[0, 4, 8, 2]), unseen, 0, HUGE);
    let [row] = &heat_rows(&profile, false, 100)[..] else { panic!() };
    let wanted = [
        HeatCell::Touched,
        HeatCell::Cost(0.5),
        HeatCell::Untouched,
        HeatCell::Cost(1.0),
        HeatCell::NotSampled,
        HeatCell::Cost(0.25),
    ];
    assert_eq!((row.cells.as_slice(), row.name.as_str()), (&wanted[..], "anonymous 16 MiB #2"));
    // Two regions to a cell where there is room for three only.
    let [row] = &heat_rows(&profile, false, 3)[..] else { panic!() };
    assert_eq!((row.cell_bytes, row.cells.len()), (2 * HUGE, 3));
    let svg = heat_svg(&profile);
    assert_eq!((svg.matches("url(#unseen)").count(), svg.matches("not touched").count()), (1, 0), "{svg}");
}

#[test]
fn without_a_walk_cost_nothing_is_called_a_time() {
    let profile = profile(cells(&[0, 1], &[4, 8]), Vec::new(), 0, HUGE);
    let text = render(&profile, "f", View::default(), TextStyle::PLAIN);
    assert!(
        text.contains("misses have no time") && !text.contains(" ns") && !text.contains("cost  "),
        "{text}"
    );
    assert!(text.contains("3 records lost"), "{text}");
    let text = render_summary(&profile, "f", TextStyle::PLAIN);
    assert!(
        text.contains("2 of 2 touched regions of 2 MiB, files and stacks included, account for 90 %"),
        "{text}"
    );
    assert!(text.lines().count() <= 10, "{text}");
}

/// If no sweep saw the program, the report has the hint, and nothing about sweeps.
#[test]
fn unknown_misses_lead_to_another_profile_and_to_no_plan() {
    let mut profile = profile(CellCounts::default(), Vec::new(), 0, HUGE);
    profile.images[0].misses = 0;
    profile.effort = ProfilingCost { sweeps: Some(0), duty_permille: Some(30), ..ProfilingCost::default() };
    let text = render_summary(&profile, "f", TextStyle::PLAIN);
    assert!(text.contains("misses unknown") && text.contains("--source exact"), "{text}");
    for word in ["rests on", "no miss", "→", "estimate"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

#[test]
fn walks_that_cost_more_than_the_time_are_said_to_overlap() {
    let mut profile = profile(cells(&[0, 1], &[4, 8]), Vec::new(), 0, HUGE);
    profile.walk_cost =
        Some(WalkCostCurve { points: vec![(2, 10_000), (12, 10_000)], origin: "made".to_owned() });
    for (wall_ns, is_said) in [(100, true), (1_000_000, false)] {
        profile.wall_ns = wall_ns;
        let text = render_summary(&profile, "f", TextStyle::PLAIN).replace("\n", " ");
        assert_eq!(text.contains("so they overlap"), is_said, "{text}");
    }
}

#[test]
fn hostile_numbers_are_survived() {
    let ends = [0, 1, HUGE, u64::MAX / 2, u64::MAX];
    for &a in &ends {
        for &b in &ends {
            let unseen = vec![UnseenRange { offset: a, bytes: Bytes(b), why: UnseenReason::Changed }];
            let made = profile(cells(&[a, b], &[u64::MAX, b]), unseen, b, a);
            let text = render(&made, "f", View { verbose: true, by_cell: a == 1 }, TextStyle::PLAIN);
            assert!(text.len() < 1 << 20, "{a} {b}");
            let _ = (heat_svg(&made).len(), render_summary(&made, "f", TextStyle::PLAIN));
        }
    }
}

#[test]
fn a_lower_bound_is_no_total_and_its_reason_is_printed_once() {
    let mut profile = profile(cells(&[0, 1], &[40_000, 80_000]), Vec::new(), 0, HUGE);
    profile.images[0].misses = 120_000;
    profile.walk_cost =
        Some(WalkCostCurve { points: vec![(2, 10_000), (12, 10_000)], origin: "made".to_owned() });
    profile.effort = ProfilingCost {
        sweeps: Some(50),
        duty_permille: Some(15),
        misses_error_permille: Some(50),
        misses_error_blocks: Some(12),
        saturation: Some(ScanSaturation { reset_permille: 450, saturated_permille: 0 }),
        ..ProfilingCost::default()
    };
    for text in [
        render(&profile, "f", View::default(), TextStyle::PLAIN),
        render_summary(&profile, "f", TextStyle::PLAIN),
    ] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("misses unknown: at least 100 000, because"), "{text}");
        assert_eq!(text.matches("setting accessed bits again").count(), 1, "{text}");
        assert!(text.contains("walk cost at least") && text.contains("use --source exact"), "{text}");
        assert!(!text.contains("about "), "{text}");
    }
    let text = render(&profile, "f", View::default(), TextStyle::PLAIN);
    assert!(text.contains("misses, at least"), "{text}");
}

/// A command that requested a profile prints the notes itself.
#[test]
fn a_summary_that_is_passed_on_has_neither_notes_nor_next_commands() {
    let mut profile = profile(cells(&[0, 1], &[4, 8]), Vec::new(), 0, HUGE);
    profile.notes = vec!["the first note".to_owned(), "the second note".to_owned()];
    let summary = render_summary(&profile, "f", TextStyle::PLAIN);
    let passed = render_passed_summary(&profile, TextStyle::PLAIN);
    assert_eq!((summary.matches(" note").count(), passed.matches(" note").count()), (2, 0), "{passed}");
    assert!(summary.contains("→") && !passed.contains("→"), "{passed}");
    assert!(summary.starts_with(&passed), "{passed}");
    profile.effort.sweeps = Some(0);
    let passed = render_passed_summary(&profile, TextStyle::PLAIN);
    assert!(passed.contains("misses unknown") && !passed.contains(" note"), "{passed}");
}
