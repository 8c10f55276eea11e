//! Tests of reserves, of allocations at a place, and of large orders.

use pagelab_model::random::SplitMix64;

use super::{AllocFlags, FreeListDiscipline, Zone, ZoneFeatures};
use crate::policies::{GroupByMobility, Policy};
use crate::policies::{TABLE, find_policy};
use crate::types::{AllocationType, Error, Frame, ORDER_MAX, ZoneGeometry};

const SHAPE: ZoneGeometry =
    ZoneGeometry { first_frame: Frame::new(1 << 12), frames: 1 << 14, max_order: 10, pageblock_order: 9 };

const ATOMIC: AllocFlags = AllocFlags { is_atomic: true, ..AllocFlags::DEFAULT };

fn allocate_all<P: Policy>(zone: &mut Zone<P>, order: u8, kind: AllocationType) -> Vec<Frame> {
    std::iter::from_fn(|| zone.allocate_block(order, kind).unwrap().map(|taken| taken.frame)).collect()
}

#[test]
fn the_highatomic_reserve_is_one_percent_and_a_pageblock_and_serves_only_its_own() {
    for entry in TABLE {
        let extras = ZoneFeatures { has_highatomic: true, ..ZoneFeatures::default() };
        let mut zone = Zone::with_features(SHAPE, entry.policy, &extras).unwrap();
        // One percent of 32 pageblocks and one more: after two of them it does not grow.
        let taken: Vec<Frame> = (0..200)
            .filter_map(|_| zone.allocate_with_flags(5, AllocationType::Unmovable, &mut { ATOMIC }).unwrap())
            .map(|taken| taken.frame)
            .collect();
        assert_eq!(zone.highatomic_frames(), 2 << 9, "{}", entry.name);
        for frame in taken {
            zone.free_block(frame).unwrap();
        }
        let usual = allocate_all(&mut zone, 0, AllocationType::Unmovable).len()
            + allocate_all(&mut zone, 0, AllocationType::Movable).len();
        assert_eq!(usual, (SHAPE.frames - (2 << 9)) as usize, "{}: no one else gets at it", entry.name);
        assert!(
            zone.allocate_with_flags(0, AllocationType::Unmovable, &mut { ATOMIC }).unwrap().is_none(),
            "a page is no block"
        );
        assert!(zone.allocate_with_flags(1, AllocationType::Unmovable, &mut { ATOMIC }).unwrap().is_some());
        zone.validate().unwrap();
        // Both are returned when memory is short, the second only by force.
        assert!(zone.unreserve_highatomic(AllocationType::Unmovable, false));
        let left = zone.highatomic_frames();
        assert!(
            left <= 1 << 9 && !zone.unreserve_highatomic(AllocationType::Unmovable, false),
            "{}: {left}",
            entry.name
        );
        while zone.unreserve_highatomic(AllocationType::Unmovable, true) {}
        assert_eq!(zone.highatomic_frames(), 0);
        zone.validate().unwrap();
    }
}

#[test]
fn cma_areas_take_what_is_movable_first_when_they_are_more_than_half_of_what_is_free() {
    let area = SHAPE.first_frame + (24 << 9)..SHAPE.end();
    for entry in TABLE {
        let extras = ZoneFeatures { cma_areas: vec![area.clone()], ..ZoneFeatures::default() };
        let mut zone = Zone::with_features(SHAPE, entry.policy, &extras).unwrap();
        assert_eq!(zone.cma_free_frames(), 8 << 9);
        let first = zone.allocate_block(0, AllocationType::Movable).unwrap().unwrap().frame;
        assert!(!area.contains(&first), "{}: a quarter of what is free", entry.name);
        zone.free_block(first).unwrap();
        let fixed = allocate_all(&mut zone, 3, AllocationType::Unmovable);
        assert!(fixed.iter().all(|frame| !area.contains(frame)), "{}", entry.name);
        assert_eq!(zone.cma_free_frames(), 8 << 9);
        let movable = zone.allocate_block(0, AllocationType::Movable).unwrap().unwrap().frame;
        assert!(area.contains(&movable), "{}: nearly all of what is free", entry.name);
        // Who has emptied it gets it whole.
        assert_eq!(
            zone.allocate_at(area.start, 9, AllocationType::Movable),
            Ok(!(area.start..area.start + 512).contains(&movable))
        );
        zone.free_block(movable).unwrap();
        zone.validate().unwrap();
    }
    for wrong in [0..512, 4096..4096, 4097..5120, 1 << 20..(1 << 20) + 512] {
        let wrong = Frame::new(wrong.start)..Frame::new(wrong.end);
        let extras = ZoneFeatures { cma_areas: vec![wrong], ..ZoneFeatures::default() };
        assert!(
            Zone::with_features(SHAPE, GroupByMobility, &extras)
                .is_err_and(|error| matches!(error, Error::InvalidConfig(said) if said.contains("CMA area")))
        );
    }
}

#[test]
fn a_block_is_taken_at_its_place_or_not_at_all() {
    for entry in TABLE {
        let mut zone = Zone::new(SHAPE, entry.policy).unwrap();
        let whole = zone.free_blocks().to_vec();
        let at = SHAPE.first_frame + 5000;
        assert_eq!(zone.allocate_at(at, 3, AllocationType::Movable), Ok(true));
        assert_eq!(zone.allocate_at(at, 0, AllocationType::Movable), Ok(false));
        assert_eq!(zone.allocate_at(at.align_down(9), 9, AllocationType::Movable), Ok(false));
        assert_eq!(
            (zone.allocate_at(at + 8, 3, AllocationType::Unmovable), zone.free_block(at)),
            (Ok(true), Ok(3))
        );
        assert!(zone.allocate_at(at + 1, 1, AllocationType::Movable).is_err(), "not aligned");
        assert!(zone.allocate_at(SHAPE.end(), 0, AllocationType::Movable).is_err());
        assert!(zone.allocate_at(SHAPE.first_frame, 11, AllocationType::Movable).is_err());
        zone.validate().unwrap();
        zone.free_block(at + 8).unwrap();
        assert_eq!(zone.free_blocks(), whole, "{}", entry.name);
    }
}

#[test]
fn unmovable_blocks_stay_below_the_boundary() {
    let contiguitas = find_policy("contiguitas").unwrap().policy;
    let mut zone = Zone::new(SHAPE, contiguitas).unwrap();
    let (mut random, mut live) = (SplitMix64::new(5), Vec::new());
    let (mut lowest, mut highest) = (Frame::MAX, Frame::new(0));
    for step in 0..60_000u32 {
        let kind = AllocationType::ALL[random.next_below(3) as usize];
        // The kernel grows, and shrinks again.
        let is_fixed = kind != AllocationType::Movable;
        let grows = random.next_below(100) < if is_fixed == (step / 15_000 % 2 == 0) { 75 } else { 25 };
        if live.is_empty() || grows {
            live.extend(
                zone.allocate_block(random.next_below(4) as u8, kind)
                    .unwrap()
                    .map(|taken| (taken.frame, kind)),
            );
        } else {
            zone.free_block(live.swap_remove(random.next_below(live.len() as u64) as usize).0).unwrap();
        }
        let boundary = zone.region_boundary().unwrap();
        (lowest, highest) = (lowest.min(boundary), highest.max(boundary));
    }
    let boundary = zone.region_boundary().unwrap();
    for (frame, kind) in live {
        assert_eq!(
            frame < boundary,
            kind != AllocationType::Movable,
            "{frame:#x} {kind:?}, the boundary at {boundary:#x}"
        );
    }
    assert!(lowest < highest, "the boundary moved");
    assert_eq!(zone.frames_to_claim(0, 0), Some(boundary..boundary + 512));
    assert_eq!(zone.frames_to_claim(1, 0), Some(boundary - 512..boundary));
    zone.validate().unwrap();
    assert_eq!(Zone::new(SHAPE, GroupByMobility).unwrap().region_boundary(), None);
    // Programs may have all but one pageblock, and the kernel all.
    for (kind, pages) in
        [(AllocationType::Movable, SHAPE.frames - 512), (AllocationType::Unmovable, SHAPE.frames)]
    {
        let mut zone = Zone::new(SHAPE, contiguitas).unwrap();
        assert_eq!(allocate_all(&mut zone, 0, kind).len(), pages as usize, "{kind:?}");
        zone.validate().unwrap();
    }
}

/// Requests that may not mix get whole pageblocks of others, never a part of one.
#[test]
fn who_may_not_mix_leaves_pageblocks_of_others_alone() {
    for entry in TABLE.iter().filter(|entry| entry.policy.list_count() == 3 && entry.name.contains("6.")) {
        let mut zone = Zone::new(SHAPE, entry.policy).unwrap();
        let pages = allocate_all(&mut zone, 0, AllocationType::Movable);
        for frame in pages.iter().filter(|frame| frame.number() % 512 >= 128) {
            zone.free_block(*frame).unwrap();
        }
        let unmixed = AllocFlags { can_fragment: false, ..AllocFlags::DEFAULT };
        assert_eq!(
            zone.allocate_with_flags(0, AllocationType::Unmovable, &mut { unmixed }),
            Ok(None),
            "{}",
            entry.name
        );
        assert_eq!(zone.free_frames_in_pageblocks(), 0);
        for frame in
            pages.iter().filter(|frame| **frame < SHAPE.first_frame + 512 && frame.number() % 512 < 128)
        {
            zone.free_block(*frame).unwrap();
        }
        assert_eq!(zone.free_frames_in_pageblocks(), 512);
        let taken =
            zone.allocate_with_flags(0, AllocationType::Unmovable, &mut { unmixed }).unwrap().unwrap();
        assert!(
            taken.frame < SHAPE.first_frame + 512
                && taken.fallback.is_some_and(|stolen| stolen.changes_ownership)
        );
        assert!(zone.allocate_block(9, AllocationType::Movable).unwrap().is_none());
        zone.validate().unwrap();
    }
}

/// Folios are orders of movable blocks, up to the maximum.
#[test]
fn blocks_of_the_largest_order_are_put_together_again() {
    let geometry = ZoneGeometry {
        first_frame: Frame::new(0),
        frames: 1 << (ORDER_MAX + 1),
        max_order: ORDER_MAX,
        pageblock_order: 9,
    };
    for entry in [find_policy("mobility-6.18"), find_policy("contiguitas"), find_policy("standard")]
        .into_iter()
        .flatten()
    {
        let extras =
            ZoneFeatures { list_discipline: FreeListDiscipline::Shuffled(1), ..ZoneFeatures::default() };
        let mut zone = Zone::with_features(geometry, entry.policy, &extras).unwrap();
        let whole = zone.free_blocks().to_vec();
        let mut random = SplitMix64::new(2);
        let mut live = Vec::new();
        for _ in 0..20_000 {
            let order = [0, 0, 2, 4, 9, 10, 18][random.next_below(7) as usize];
            let kind = if order > 2 {
                AllocationType::Movable
            } else {
                AllocationType::ALL[random.next_below(3) as usize]
            };
            live.extend(zone.allocate_block(order, kind).unwrap().map(|taken| taken.frame));
        }
        zone.validate().unwrap();
        while !live.is_empty() {
            zone.free_block(live.swap_remove(random.next_below(live.len() as u64) as usize)).unwrap();
        }
        assert_eq!(zone.free_frames(), geometry.frames);
        if entry.name != "contiguitas" {
            assert_eq!(zone.free_blocks(), whole, "{}", entry.name);
        }
        zone.validate().unwrap();
    }
}
