//! The engine and its naive twin, side by side: every event is compared.

use pagelab_model::seed::SplitMix64;

use crate::naive::{Naive, NaivePerCpu, Rule};
use crate::percpu::{Keep, PerCpu};
use crate::planted::Bug;
use crate::policy::{Lists, Mobility, Policy, Standard};
use crate::words::{Frame, Kind, Shape};
use crate::zone::Zone;

/// Up to the first difference: the event, and what differs.
fn differ<P: Policy>(
    shape: Shape,
    policy: P,
    rule: Rule,
    bug: Option<Bug>,
    seed: u64,
    events: u32,
) -> Option<(u32, String)> {
    let mut zone = Zone::new(shape, policy).unwrap();
    zone.bug = bug;
    let mut naive = Naive::new(shape, rule);
    let mut random = SplitMix64::new(seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..events {
        // Memory fills and empties in long waves, so that stealing and merging both come up.
        let full = u64::from(shape.frames - zone.free_frames()) * 100 / u64::from(shape.frames);
        let goal = if event / 500 % 2 == 0 { 97 } else { 30 };
        let takes = live.is_empty() || random.below(100) < if full < goal { 70 } else { 30 };
        if takes {
            let order = match random.below(100) {
                0..85 => 0,
                _ => random.below(u64::from(shape.max_order) + 1) as u8,
            };
            let kind = Kind::ALL[random.below(3) as usize];
            let ours = zone.take(order, kind).unwrap().map(|taken| (taken.frame, taken.stolen));
            let theirs = naive.take(order, kind);
            if ours != theirs {
                return Some((event, format!("order {order} {kind:?}: {ours:?}, the twin {theirs:?}")));
            }
            live.extend(ours.map(|(frame, _)| frame));
        } else {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            let (ours, theirs) = (zone.free(frame).ok(), naive.free(frame));
            if ours != theirs {
                return Some((event, format!("freed {frame:#x}: {ours:?}, the twin {theirs:?}")));
            }
        }
        if zone.free_blocks() != naive.free_blocks() || zone.owners() != naive.owners() {
            return Some((event, "free blocks, or owners of pageblocks".to_owned()));
        }
        if event % 64 == 0
            && let Err(wrong) = zone.validate()
        {
            return Some((event, wrong.to_string()));
        }
    }
    None
}

/// The same with lists of three processors.
fn differ_by_cpu(shape: Shape, keep: Keep, seed: u64) -> Option<(u32, String)> {
    let mut ours = PerCpu::new(Zone::new(shape, Mobility).unwrap(), keep).unwrap();
    let mut theirs = NaivePerCpu::new(Naive::new(shape, Rule::Mobility), keep.batch, keep.high);
    let mut random = SplitMix64::new(seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..4000 {
        let goal = if event / 300 % 2 == 0 { 80 } else { 20 };
        let cpu = random.below(u64::from(keep.cpus)) as u16;
        if live.is_empty() || random.below(100) < goal {
            let order =
                if random.below(10) < 8 { 0 } else { random.below(u64::from(shape.max_order) + 1) as u8 };
            let kind = Kind::ALL[random.below(3) as usize];
            let taken = ours.take(cpu, order, kind).unwrap().map(|taken| (taken.frame, taken.stolen));
            let twin = theirs.take(cpu, order, kind);
            if taken != twin {
                return Some((event, format!("order {order} {kind:?}: {taken:?}, the twin {twin:?}")));
            }
            live.extend(taken.map(|(frame, _)| frame));
        } else {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            assert_eq!(ours.free(cpu, frame).ok(), theirs.free(cpu, frame), "{event}: {frame:#x}");
            assert!(ours.free(cpu, frame).is_err(), "{event}: {frame:#x} is freed twice");
        }
        if ours.zone().free_blocks() != theirs.zone.free_blocks() {
            return Some((event, "free blocks".to_owned()));
        }
        if event % 64 == 0 {
            ours.validate().unwrap();
        }
    }
    for frame in live {
        ours.free(0, frame).unwrap();
    }
    ours.drain();
    assert_eq!((ours.zone().free_frames(), ours.kept_frames()), (shape.frames, 0));
    None
}

#[test]
fn what_processors_keep_is_what_the_twin_keeps() {
    for shape in SHAPES {
        for (batch, high) in [(1, 1), (4, 12), (31, 40)] {
            let keep = Keep { cpus: 3, batch, high };
            assert_eq!(differ_by_cpu(shape, keep, 5), None, "{shape:?} {keep:?}");
        }
    }
    let zone = || Zone::new(SHAPES[0], Mobility).unwrap();
    for (cpus, batch, high) in [(0, 1, 1), (1, 0, 4), (1, 5, 4)] {
        assert!(PerCpu::new(zone(), Keep { cpus, batch, high }).is_err());
    }
}

const SHAPES: [Shape; 4] = [
    Shape { first: 0, frames: 256, max_order: 6, block_order: 4 },
    // Begins and ends inside of a largest block.
    Shape { first: 48, frames: 208, max_order: 6, block_order: 4 },
    Shape { first: 1 << 20, frames: 512, max_order: 5, block_order: 5 },
    Shape { first: 0, frames: 96, max_order: 3, block_order: 1 },
];

#[test]
fn the_engine_and_its_twin_agree_on_every_event() {
    for shape in SHAPES {
        for seed in 0..4 {
            let found = [
                differ(shape, Mobility, Rule::Mobility, None, seed, 4000),
                differ(shape, Standard, Rule::Standard, None, seed, 2000),
                differ(shape, Lists::Two, Rule::Lists(2), None, seed, 3000),
                differ(shape, Lists::Three, Rule::Lists(3), None, seed, 3000),
            ];
            assert_eq!(found, [None, None, None, None], "{shape:?} seed {seed}");
        }
    }
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for bug in Bug::ALL {
        let found = SHAPES.iter().any(|&shape| {
            std::panic::catch_unwind(|| {
                differ(shape, Mobility, Rule::Mobility, Some(bug), 1, 10_000).is_some()
            })
            // What a bug makes of the books may be out of all bounds.
            .unwrap_or(true)
        });
        assert!(found, "{bug:?} is not found");
    }
}

#[test]
fn what_is_all_freed_is_whole_again() {
    for shape in SHAPES {
        let mut zone = Zone::new(shape, Mobility).unwrap();
        let whole = zone.free_blocks().to_vec();
        let mut random = SplitMix64::new(9);
        let mut live = Vec::new();
        while let Some(taken) = zone.take(0, Kind::ALL[random.below(3) as usize]).unwrap() {
            live.push(taken.frame);
        }
        assert_eq!((live.len() as u32, zone.free_frames()), (shape.frames, 0));
        while !live.is_empty() {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            zone.free(frame).unwrap();
        }
        assert_eq!(zone.free_blocks(), whole);
        zone.validate().unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let shape = SHAPES[1];
    let mut zone = Zone::new(shape, Mobility).unwrap();
    let taken = zone.take(2, Kind::Movable).unwrap().unwrap().frame;
    let before = zone.free_blocks().to_vec();
    for (frame, said) in [
        (taken + 1, "is freed, and no block was allocated there"),
        (shape.end(), "lies in no zone"),
        (shape.first - 1, "lies in no zone"),
    ] {
        let wrong = zone.free(frame).unwrap_err().to_string();
        assert!(wrong.contains(said) && wrong.contains(&format!("{frame:#x}")), "{wrong}");
    }
    assert!(zone.take(7, Kind::Movable).unwrap_err().to_string().contains("order 7 is above the largest, 6"));
    assert_eq!(zone.free_blocks(), before);
    assert_eq!(zone.free(taken), Ok(2));
    assert!(zone.free(taken).is_err(), "freed twice");
    for (first, frames, max_order, block_order) in [
        (0, 0, 6, 4),
        (8, 256, 6, 4),
        (0, 250, 6, 4),
        (0, 256, 22, 4),
        (0, 256, 4, 6),
        (u32::MAX - 15, 16, 6, 4),
    ] {
        let shape = Shape { first, frames, max_order, block_order };
        assert!(Zone::new(shape, Mobility).is_err(), "{shape:?}");
    }
}

#[test]
fn a_live_block_splits_and_its_parts_are_freed_one_by_one() {
    let mut zone = Zone::new(SHAPES[0], Mobility).unwrap();
    let whole = zone.free_blocks().to_vec();
    let frame = zone.take(4, Kind::Movable).unwrap().unwrap().frame;
    zone.split(frame, 1).unwrap();
    zone.validate().unwrap();
    for part in (0..16).step_by(2).rev() {
        assert_eq!(zone.free(frame + part), Ok(1));
    }
    assert_eq!(zone.free_blocks(), whole);
    assert!(zone.split(frame, 0).is_err());
}
