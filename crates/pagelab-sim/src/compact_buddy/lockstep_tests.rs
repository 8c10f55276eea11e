//! Lockstep tests of the compact engine and its naive twin, event by event.

use std::ops::Range;

use pagelab_model::random::SplitMix64;

use super::naive::NaiveCompactBuddy;
use super::{Bug, CompactBuddy};
use crate::injected_bugs::InjectedBug;
use crate::types::{AllocationType, Error, Frame, ZoneGeometry};

const GEOMETRIES: [ZoneGeometry; 5] = [
    ZoneGeometry { first_frame: Frame::new(0), frames: 256, max_order: 6, pageblock_order: 4 },
    // Begins and ends inside of a largest block.
    ZoneGeometry { first_frame: Frame::new(48), frames: 208, max_order: 6, pageblock_order: 4 },
    ZoneGeometry { first_frame: Frame::new(0), frames: 96, max_order: 3, pageblock_order: 1 },
    // Pageblocks of a group, and of two.
    ZoneGeometry { first_frame: Frame::new(1 << 20), frames: 1024, max_order: 9, pageblock_order: 7 },
    ZoneGeometry { first_frame: Frame::new(256), frames: 1280, max_order: 9, pageblock_order: 8 },
];

/// As on x86-64.
const DEFAULT_GEOMETRY: ZoneGeometry =
    ZoneGeometry { first_frame: Frame::new(512), frames: 2560, max_order: 10, pageblock_order: 9 };

/// Up to the first difference: the event, and what differs.
fn first_difference(
    geometry: ZoneGeometry,
    bug: Option<Bug>,
    seed: u64,
    events: u32,
) -> Option<(u32, String)> {
    let mut ours = CompactBuddy::new(geometry).unwrap();
    ours.bug = InjectedBug::new(bug);
    let mut twin = NaiveCompactBuddy::new(geometry);
    let mut random = SplitMix64::new(seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..events {
        // Memory fills and empties in long waves, so that stealing and merging both come up.
        let full = u64::from(geometry.frames - ours.free_frames()) * 100 / u64::from(geometry.frames);
        let goal = if event / 500 % 2 == 0 { 97 } else { 30 };
        if live.is_empty() || random.next_below(100) < if full < goal { 70 } else { 30 } {
            let order = match random.next_below(100) {
                0..75 => 0,
                _ => random.next_below(u64::from(geometry.max_order) + 1) as u8,
            };
            let kind = AllocationType::ALL[random.next_below(3) as usize];
            let taken = ours.allocate_block(order, kind).unwrap().map(|taken| (taken.frame, taken.fallback));
            let theirs = twin.allocate_block(order, kind);
            if taken != theirs {
                return Some((event, format!("order {order} {kind:?}: {taken:?}, the twin {theirs:?}")));
            }
            live.extend(taken.map(|(frame, _)| frame));
        } else {
            let mut frame = live[random.next_below(live.len() as u64) as usize];
            if random.next_below(4) == 0 {
                // Any frame: most are refused.
                frame = geometry.first_frame + random.next_below(u64::from(geometry.frames)) as u32;
            }
            let (freed, theirs) = (ours.free_block(frame).ok(), twin.free_block(frame));
            if freed != theirs {
                return Some((event, format!("freed {frame:#x}: {freed:?}, the twin {theirs:?}")));
            }
            live.retain(|&other| freed.is_none() || other != frame);
        }
        if ours.free_blocks() != twin.free_blocks() || ours.pageblock_owners() != twin.pageblock_owners {
            return Some((event, "free blocks, or owners of pageblocks".to_owned()));
        }
        let frame = geometry.first_frame + random.next_below(u64::from(geometry.frames)) as u32;
        if ours.allocated_block_containing(frame) != twin.allocated_block_containing(frame) {
            return Some((
                event,
                format!("block of {frame:#x}: {:?}", ours.allocated_block_containing(frame)),
            ));
        }
        if event % 16 == 0
            && let Some(&frame) = live.last()
        {
            let size = ours.allocated_order(frame).unwrap();
            let order = random.next_below(u64::from(size) + 1) as u8;
            ours.split_block(frame, order).unwrap();
            assert!(ours.split_block(frame, order + 1).is_err());
            twin.split_block(frame, order);
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
    for geometry in GEOMETRIES {
        for seed in 0..3 {
            assert_eq!(first_difference(geometry, None, seed, 3000), None, "{geometry:?} seed {seed}");
        }
    }
    for seed in 0..3 {
        assert_eq!(first_difference(DEFAULT_GEOMETRY, None, seed, 3000), None, "seed {seed}");
    }
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for bug in Bug::ALL {
        let found = GEOMETRIES.into_iter().chain([DEFAULT_GEOMETRY]).any(|geometry| {
            std::panic::catch_unwind(|| first_difference(geometry, Some(bug), 1, 10_000).is_some())
                // Metadata changed by a bug may be out of all bounds.
                .unwrap_or(true)
        });
        assert!(found, "{bug:?} is not found");
    }
}

#[test]
fn what_is_all_freed_is_whole_again() {
    for geometry in GEOMETRIES.into_iter().chain([DEFAULT_GEOMETRY]) {
        let mut compact = CompactBuddy::new(geometry).unwrap();
        let whole = compact.free_blocks().to_vec();
        let mut random = SplitMix64::new(9);
        let mut live = Vec::new();
        while let Some(taken) =
            compact.allocate_block(0, AllocationType::ALL[random.next_below(3) as usize]).unwrap()
        {
            live.push(taken.frame);
        }
        assert_eq!((live.len() as u32, compact.free_frames()), (geometry.frames, 0));
        compact.validate().unwrap();
        while !live.is_empty() {
            let frame = live.swap_remove(random.next_below(live.len() as u64) as usize);
            compact.free_block(frame).unwrap();
        }
        assert_eq!(compact.free_blocks(), whole);
        compact.validate().unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut compact = CompactBuddy::new(DEFAULT_GEOMETRY).unwrap();
    // Order 0 to 10: inside of a group, two groups, a pageblock, two.
    for order in 0..=DEFAULT_GEOMETRY.max_order {
        let taken = compact.allocate_block(order, AllocationType::Movable).unwrap().unwrap().frame;
        let before = compact.free_blocks().to_vec();
        for inside in (1..order).map(|inside| taken + (1 << inside)).chain((order > 0).then_some(taken + 1)) {
            assert_eq!(compact.free_block(inside), Err(Error::NotAllocated(inside)), "order {order}");
        }
        assert_eq!(compact.allocated_order(taken), Ok(order));
        assert_eq!(compact.free_blocks(), before);
        assert_eq!(compact.free_block(taken), Ok(order));
        assert_eq!(compact.free_block(taken), Err(Error::NotAllocated(taken)), "freed twice");
        compact.validate().unwrap();
    }
    assert_eq!(compact.free_block(DEFAULT_GEOMETRY.end()), Err(Error::OutsideZone(DEFAULT_GEOMETRY.end())));
    assert_eq!(
        compact.free_block(DEFAULT_GEOMETRY.first_frame - 1),
        Err(Error::OutsideZone(DEFAULT_GEOMETRY.first_frame - 1))
    );
    assert_eq!(
        compact.allocate_block(11, AllocationType::Movable),
        Err(Error::OrderTooLarge { order: 11, max: 10 })
    );
    let large =
        ZoneGeometry { first_frame: Frame::new(0), frames: 1 << 14, max_order: 12, pageblock_order: 12 };
    assert!(CompactBuddy::new(large).unwrap_err().to_string().contains("orders up to 9"));
    assert!(CompactBuddy::new(ZoneGeometry { frames: 0, ..DEFAULT_GEOMETRY }).is_err());
}

#[test]
fn a_terabyte_fits_in_64_mib() {
    let geometry =
        ZoneGeometry { first_frame: Frame::new(0), frames: 1 << 20, max_order: 10, pageblock_order: 9 };
    let bytes = CompactBuddy::new(geometry).unwrap().metadata_bytes();
    assert!(bytes * 256 <= 64 << 20, "{bytes} bytes for 4 GiB");
    // Heads of lists weigh most where there are few pageblocks.
    let small = CompactBuddy::new(ZoneGeometry { frames: 1 << 15, ..geometry }).unwrap();
    let bytes: usize = small.memory_ranges().iter().map(Range::len).sum();
    assert!(bytes * 4 <= 1 << 15, "{bytes} bytes for 128 MiB");
}
