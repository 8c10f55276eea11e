//! Profiles shown: what was not seen is no zero, and hostile numbers draw nothing that is not there.

use pagelab_model::PageSize;
use pagelab_model::profile::{
    Begun, Cells, Effort, ImageProfile, MappingKey, MappingProfile, ProfileSource, Program, Reuse, Unseen,
    WalkCost,
};

use super::heat::Heat;
use super::*;

const HUGE: u64 = 2 << 20;

pub(crate) fn profile(cells: Cells, unseen: Vec<Unseen>, start: u64, grain: u64) -> Profile {
    let mapping = MappingProfile {
        key: MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(8 * HUGE), nth: 1 },
        start,
        bytes: Bytes(8 * HUGE),
        grain: Bytes(grain),
        cells,
        reuse: Reuse::default(),
        unseen,
    };
    let image = ImageProfile {
        pid: 1,
        parent: None,
        begun: Begun::Attached,
        program: Program { path: "/a/b".to_owned(), ..Program::default() },
        arguments: Vec::new(),
        accesses: None,
        instructions: None,
        misses: 12,
        mappings: vec![mapping],
    };
    Profile {
        source: ProfileSource::Accessed,
        command: Vec::new(),
        page_size: PageSize::USUAL,
        huge: Bytes(HUGE),
        tlb: None,
        walk_cost: None,
        images: vec![image],
        wall_ns: 0,
        effort: Effort::default(),
        lost: 3,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

fn cells(at: &[u64], misses: &[u64]) -> Cells {
    Cells { at: at.to_vec(), misses: misses.to_vec(), ..Cells::default() }
}

#[test]
fn cells_of_the_heat_map_are_told_apart() {
    let unseen = vec![Unseen { offset: 4 * HUGE, bytes: Bytes(2 * HUGE), why: UnseenWhy::AlreadyHuge }];
    // Touched without a miss, missed in, missed in twice as often, and in a part of what was not seen.
    let profile = profile(cells(&[0, 1, 3, 5], &[0, 4, 8, 2]), unseen, 0, HUGE);
    let [row] = &heat(&profile, false, 100)[..] else { panic!() };
    let wanted =
        [Heat::Touched, Heat::Cost(0.5), Heat::Untouched, Heat::Cost(1.0), Heat::Unseen, Heat::Cost(0.25)];
    assert_eq!((row.cells.as_slice(), row.name.as_str()), (&wanted[..], "anonymous 16 MiB #2"));
    // Two regions to a cell where there is room for three only.
    let [row] = &heat(&profile, false, 3)[..] else { panic!() };
    assert_eq!((row.cell_bytes, row.cells.len()), (2 * HUGE, 3));
    let svg = heat_svg(&profile);
    assert_eq!((svg.matches("url(#unseen)").count(), svg.matches("not touched").count()), (1, 0), "{svg}");
}

#[test]
fn without_a_price_nothing_is_called_a_time() {
    let profile = profile(cells(&[0, 1], &[4, 8]), Vec::new(), 0, HUGE);
    let text = render(&profile, "f", View::default(), Style::PLAIN);
    assert!(
        text.contains("misses are no times") && !text.contains(" ns") && !text.contains("cost  "),
        "{text}"
    );
    assert!(text.contains("3 records lost"), "{text}");
    let text = summary(&profile, "f", Style::PLAIN);
    assert!(
        text.contains("2 of 2 touched regions of 2 MiB, files and stacks among them, hold 90 %"),
        "{text}"
    );
    assert!(text.lines().count() <= 10, "{text}");
}

/// Where no sweep saw the program, what to do instead stands there, and nothing of what it would rest on.
#[test]
fn unknown_misses_lead_to_another_profile_and_to_no_plan() {
    let mut profile = profile(Cells::default(), Vec::new(), 0, HUGE);
    profile.images[0].misses = 0;
    profile.effort = Effort { sweeps: Some(0), duty_permille: Some(30), ..Effort::default() };
    let text = summary(&profile, "f", Style::PLAIN);
    assert!(text.contains("misses unknown") && text.contains("--source exact"), "{text}");
    for word in ["rests on", "no miss", "→", "estimate"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

#[test]
fn walks_that_cost_more_than_the_time_are_said_to_overlap() {
    let mut profile = profile(cells(&[0, 1], &[4, 8]), Vec::new(), 0, HUGE);
    profile.walk_cost = Some(WalkCost { points: vec![(2, 10_000), (12, 10_000)], origin: "made".to_owned() });
    for (wall_ns, is_said) in [(100, true), (1_000_000, false)] {
        profile.wall_ns = wall_ns;
        let text = summary(&profile, "f", Style::PLAIN).replace("\n", " ");
        assert_eq!(text.contains("so they overlap"), is_said, "{text}");
    }
}

#[test]
fn hostile_numbers_are_survived() {
    let ends = [0, 1, HUGE, u64::MAX / 2, u64::MAX];
    for &a in &ends {
        for &b in &ends {
            let unseen = vec![Unseen { offset: a, bytes: Bytes(b), why: UnseenWhy::Changed }];
            let made = profile(cells(&[a, b], &[u64::MAX, b]), unseen, b, a);
            let text = render(&made, "f", View { verbose: true, by_cell: a == 1 }, Style::PLAIN);
            assert!(text.len() < 1 << 20, "{a} {b}");
            let _ = (heat_svg(&made).len(), summary(&made, "f", Style::PLAIN));
        }
    }
}
