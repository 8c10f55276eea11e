//! The compact engine and its naive twin, side by side: every event is compared.

use std::ops::Range;

use pagelab_model::seed::SplitMix64;

use super::Compact;
use super::naive::Naive;
use super::planted::Bug;
use crate::planted::Planted;
use crate::words::{Frame, Kind, Shape, Wrong};

const SHAPES: [Shape; 5] = [
    Shape { first: 0, frames: 256, max_order: 6, block_order: 4 },
    // Begins and ends inside of a largest block.
    Shape { first: 48, frames: 208, max_order: 6, block_order: 4 },
    Shape { first: 0, frames: 96, max_order: 3, block_order: 1 },
    // Pageblocks of a group, and of two.
    Shape { first: 1 << 20, frames: 1024, max_order: 9, block_order: 7 },
    Shape { first: 256, frames: 1280, max_order: 9, block_order: 8 },
];

/// As on x86-64.
const USUAL: Shape = Shape { first: 512, frames: 2560, max_order: 10, block_order: 9 };

/// Up to the first difference: the event, and what differs.
fn differ(shape: Shape, bug: Option<Bug>, seed: u64, events: u32) -> Option<(u32, String)> {
    let mut ours = Compact::new(shape).unwrap();
    ours.bug = Planted::of(bug);
    let mut twin = Naive::new(shape);
    let mut random = SplitMix64::new(seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..events {
        // Memory fills and empties in long waves, so that stealing and merging both come up.
        let full = u64::from(shape.frames - ours.free_frames()) * 100 / u64::from(shape.frames);
        let goal = if event / 500 % 2 == 0 { 97 } else { 30 };
        if live.is_empty() || random.below(100) < if full < goal { 70 } else { 30 } {
            let order = match random.below(100) {
                0..75 => 0,
                _ => random.below(u64::from(shape.max_order) + 1) as u8,
            };
            let kind = Kind::ALL[random.below(3) as usize];
            let taken = ours.take(order, kind).unwrap().map(|taken| (taken.frame, taken.stolen));
            let theirs = twin.take(order, kind);
            if taken != theirs {
                return Some((event, format!("order {order} {kind:?}: {taken:?}, the twin {theirs:?}")));
            }
            live.extend(taken.map(|(frame, _)| frame));
        } else {
            let mut frame = live[random.below(live.len() as u64) as usize];
            if random.below(4) == 0 {
                // Any frame: most are refused.
                frame = shape.first + random.below(u64::from(shape.frames)) as u32;
            }
            let (freed, theirs) = (ours.free(frame).ok(), twin.free(frame));
            if freed != theirs {
                return Some((event, format!("freed {frame:#x}: {freed:?}, the twin {theirs:?}")));
            }
            live.retain(|&other| freed.is_none() || other != frame);
        }
        if ours.free_blocks() != twin.free_blocks() || ours.owners() != twin.owners {
            return Some((event, "free blocks, or owners of pageblocks".to_owned()));
        }
        let frame = shape.first + random.below(u64::from(shape.frames)) as u32;
        if ours.used_at(frame) != twin.used_at(frame) {
            return Some((event, format!("what {frame:#x} lies in: {:?}", ours.used_at(frame))));
        }
        if event % 16 == 0
            && let Some(&frame) = live.last()
        {
            let size = ours.order(frame).unwrap();
            let order = random.below(u64::from(size) + 1) as u8;
            ours.split(frame, order).unwrap();
            assert!(ours.split(frame, order + 1).is_err());
            twin.split(frame, order);
            live.extend((1 << order..1u32 << size).step_by(1 << order).map(|part| frame + part));
        }
        if event % 64 == 0
            && let Err(wrong) = ours.validate()
        {
            return Some((event, wrong.to_string()));
        }
    }
    None
}

#[test]
fn the_engine_and_its_twin_agree_on_every_event() {
    for shape in SHAPES {
        for seed in 0..3 {
            assert_eq!(differ(shape, None, seed, 3000), None, "{shape:?} seed {seed}");
        }
    }
    for seed in 0..3 {
        assert_eq!(differ(USUAL, None, seed, 3000), None, "seed {seed}");
    }
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for bug in Bug::ALL {
        let found = SHAPES.into_iter().chain([USUAL]).any(|shape| {
            std::panic::catch_unwind(|| differ(shape, Some(bug), 1, 10_000).is_some())
                // What a bug makes of the books may be out of all bounds.
                .unwrap_or(true)
        });
        assert!(found, "{bug:?} is not found");
    }
}

#[test]
fn what_is_all_freed_is_whole_again() {
    for shape in SHAPES.into_iter().chain([USUAL]) {
        let mut compact = Compact::new(shape).unwrap();
        let whole = compact.free_blocks().to_vec();
        let mut random = SplitMix64::new(9);
        let mut live = Vec::new();
        while let Some(taken) = compact.take(0, Kind::ALL[random.below(3) as usize]).unwrap() {
            live.push(taken.frame);
        }
        assert_eq!((live.len() as u32, compact.free_frames()), (shape.frames, 0));
        compact.validate().unwrap();
        while !live.is_empty() {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            compact.free(frame).unwrap();
        }
        assert_eq!(compact.free_blocks(), whole);
        compact.validate().unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut compact = Compact::new(USUAL).unwrap();
    // Order 0 to 10: inside of a group, two groups, a pageblock, two.
    for order in 0..=USUAL.max_order {
        let taken = compact.take(order, Kind::Movable).unwrap().unwrap().frame;
        let before = compact.free_blocks().to_vec();
        for inside in (1..order).map(|inside| taken + (1 << inside)).chain((order > 0).then_some(taken + 1)) {
            assert_eq!(compact.free(inside), Err(Wrong::NotAllocated(inside)), "order {order}");
        }
        assert_eq!(compact.order(taken), Ok(order));
        assert_eq!(compact.free_blocks(), before);
        assert_eq!(compact.free(taken), Ok(order));
        assert_eq!(compact.free(taken), Err(Wrong::NotAllocated(taken)), "freed twice");
        compact.validate().unwrap();
    }
    assert_eq!(compact.free(USUAL.end()), Err(Wrong::Outside(USUAL.end())));
    assert_eq!(compact.free(USUAL.first - 1), Err(Wrong::Outside(USUAL.first - 1)));
    assert_eq!(compact.take(11, Kind::Movable), Err(Wrong::Order { order: 11, max: 10 }));
    let large = Shape { first: 0, frames: 1 << 14, max_order: 12, block_order: 12 };
    assert!(Compact::new(large).unwrap_err().to_string().contains("up to order 9"));
    assert!(Compact::new(Shape { frames: 0, ..USUAL }).is_err());
}

#[test]
fn a_terabyte_fits_in_64_mib() {
    let shape = Shape { first: 0, frames: 1 << 20, max_order: 10, block_order: 9 };
    let bytes = Compact::new(shape).unwrap().bytes();
    assert!(bytes * 256 <= 64 << 20, "{bytes} bytes for 4 GiB");
    // Heads of lists weigh most where there are few pageblocks.
    let small = Compact::new(Shape { frames: 1 << 15, ..shape }).unwrap();
    let bytes: usize = small.places().iter().map(Range::len).sum();
    assert!(bytes * 4 <= 1 << 15, "{bytes} bytes for 128 MiB");
}
