//! What reserves, places and large orders must do, said once in words of their own.

use pagelab_model::seed::SplitMix64;

use super::{Ends, Extras, Manner, Zone};
use crate::policies::{TABLE, find};
use crate::policy::{Mobility, Policy};
use crate::words::{Frame, Kind, ORDER_MAX, Shape, Wrong};

const SHAPE: Shape = Shape { first: 1 << 12, frames: 1 << 14, max_order: 10, block_order: 9 };

const ATOMIC: Manner = Manner { is_atomic: true, ..Manner::USUAL };

fn all_of<P: Policy>(zone: &mut Zone<P>, order: u8, kind: Kind) -> Vec<Frame> {
    std::iter::from_fn(|| zone.take(order, kind).unwrap().map(|taken| taken.frame)).collect()
}

#[test]
fn the_highatomic_reserve_is_one_percent_and_a_pageblock_and_serves_only_its_own() {
    for entry in TABLE {
        let extras = Extras { has_highatomic: true, ..Extras::default() };
        let mut zone = Zone::with(SHAPE, entry.policy, &extras).unwrap();
        // One percent of 32 pageblocks and one more: after two of them it does not grow.
        let taken: Vec<Frame> = (0..200)
            .filter_map(|_| zone.take_as(5, Kind::Unmovable, &mut { ATOMIC }).unwrap())
            .map(|taken| taken.frame)
            .collect();
        assert_eq!(zone.highatomic_frames(), 2 << 9, "{}", entry.name);
        for frame in taken {
            zone.free(frame).unwrap();
        }
        let usual = all_of(&mut zone, 0, Kind::Unmovable).len() + all_of(&mut zone, 0, Kind::Movable).len();
        assert_eq!(usual, (SHAPE.frames - (2 << 9)) as usize, "{}: no one else gets at it", entry.name);
        assert!(zone.take_as(0, Kind::Unmovable, &mut { ATOMIC }).unwrap().is_none(), "a page is no block");
        assert!(zone.take_as(1, Kind::Unmovable, &mut { ATOMIC }).unwrap().is_some());
        zone.validate().unwrap();
        // Both are given back when memory is short, the second only by force.
        assert!(zone.unreserve(Kind::Unmovable, false));
        let left = zone.highatomic_frames();
        assert!(left <= 1 << 9 && !zone.unreserve(Kind::Unmovable, false), "{}: {left}", entry.name);
        while zone.unreserve(Kind::Unmovable, true) {}
        assert_eq!(zone.highatomic_frames(), 0);
        zone.validate().unwrap();
    }
}

#[test]
fn cma_areas_take_what_is_movable_first_when_they_are_more_than_half_of_what_is_free() {
    let area = SHAPE.first + (24 << 9)..SHAPE.end();
    for entry in TABLE {
        let extras = Extras { cma: vec![area.clone()], ..Extras::default() };
        let mut zone = Zone::with(SHAPE, entry.policy, &extras).unwrap();
        assert_eq!(zone.cma_free_frames(), 8 << 9);
        let first = zone.take(0, Kind::Movable).unwrap().unwrap().frame;
        assert!(!area.contains(&first), "{}: a quarter of what is free", entry.name);
        zone.free(first).unwrap();
        let fixed = all_of(&mut zone, 3, Kind::Unmovable);
        assert!(fixed.iter().all(|frame| !area.contains(frame)), "{}", entry.name);
        assert_eq!(zone.cma_free_frames(), 8 << 9);
        let movable = zone.take(0, Kind::Movable).unwrap().unwrap().frame;
        assert!(area.contains(&movable), "{}: nearly all of what is free", entry.name);
        // Who has emptied it gets it whole.
        assert_eq!(
            zone.take_at(area.start, 9, Kind::Movable),
            Ok(!(area.start..area.start + 512).contains(&movable))
        );
        zone.free(movable).unwrap();
        zone.validate().unwrap();
    }
    for wrong in [0..512, 4096..4096, 4097..5120, 1 << 20..(1 << 20) + 512] {
        let extras = Extras { cma: vec![wrong], ..Extras::default() };
        assert!(
            matches!(Zone::with(SHAPE, Mobility, &extras), Err(Wrong::Shape(said)) if said.contains("CMA area"))
        );
    }
}

#[test]
fn a_block_is_taken_at_its_place_or_not_at_all() {
    for entry in TABLE {
        let mut zone = Zone::new(SHAPE, entry.policy).unwrap();
        let whole = zone.free_blocks().to_vec();
        let at = SHAPE.first + 5000;
        assert_eq!(zone.take_at(at, 3, Kind::Movable), Ok(true));
        assert_eq!(zone.take_at(at, 0, Kind::Movable), Ok(false));
        assert_eq!(zone.take_at(at >> 9 << 9, 9, Kind::Movable), Ok(false));
        assert_eq!((zone.take_at(at + 8, 3, Kind::Unmovable), zone.free(at)), (Ok(true), Ok(3)));
        assert!(zone.take_at(at + 1, 1, Kind::Movable).is_err(), "not aligned");
        assert!(zone.take_at(SHAPE.end(), 0, Kind::Movable).is_err());
        assert!(zone.take_at(SHAPE.first, 11, Kind::Movable).is_err());
        zone.validate().unwrap();
        zone.free(at + 8).unwrap();
        assert_eq!(zone.free_blocks(), whole, "{}", entry.name);
    }
}

#[test]
fn what_cannot_be_moved_stays_below_the_border() {
    let contiguitas = find("contiguitas").unwrap().policy;
    let mut zone = Zone::new(SHAPE, contiguitas).unwrap();
    let (mut random, mut live) = (SplitMix64::new(5), Vec::new());
    let (mut lowest, mut highest) = (Frame::MAX, 0);
    for step in 0..60_000u32 {
        let kind = Kind::ALL[random.below(3) as usize];
        // The kernel grows, and shrinks again.
        let is_fixed = kind != Kind::Movable;
        let grows = random.below(100) < if is_fixed == (step / 15_000 % 2 == 0) { 75 } else { 25 };
        if live.is_empty() || grows {
            live.extend(zone.take(random.below(4) as u8, kind).unwrap().map(|taken| (taken.frame, kind)));
        } else {
            zone.free(live.swap_remove(random.below(live.len() as u64) as usize).0).unwrap();
        }
        let border = zone.border().unwrap();
        (lowest, highest) = (lowest.min(border), highest.max(border));
    }
    let border = zone.border().unwrap();
    for (frame, kind) in live {
        assert_eq!(frame < border, kind != Kind::Movable, "{frame:#x} {kind:?}, the border at {border:#x}");
    }
    assert!(lowest < highest, "the border moved");
    assert_eq!(zone.beside_border(0, 0), Some(border..border + 512));
    assert_eq!(zone.beside_border(1, 0), Some(border - 512..border));
    zone.validate().unwrap();
    assert_eq!(Zone::new(SHAPE, Mobility).unwrap().border(), None);
    // Programs may have all but one pageblock, and the kernel all.
    for (kind, pages) in [(Kind::Movable, SHAPE.frames - 512), (Kind::Unmovable, SHAPE.frames)] {
        let mut zone = Zone::new(SHAPE, contiguitas).unwrap();
        assert_eq!(all_of(&mut zone, 0, kind).len(), pages as usize, "{kind:?}");
        zone.validate().unwrap();
    }
}

/// Requests that may not mix get whole pageblocks of others, never a part of one.
#[test]
fn who_may_not_mix_leaves_pageblocks_of_others_alone() {
    for entry in TABLE.iter().filter(|entry| entry.policy.lists() == 3 && entry.name.contains("6.")) {
        let mut zone = Zone::new(SHAPE, entry.policy).unwrap();
        let pages = all_of(&mut zone, 0, Kind::Movable);
        for frame in pages.iter().filter(|frame| *frame % 512 >= 128) {
            zone.free(*frame).unwrap();
        }
        let unmixed = Manner { may_mix: false, ..Manner::USUAL };
        assert_eq!(zone.take_as(0, Kind::Unmovable, &mut { unmixed }), Ok(None), "{}", entry.name);
        assert_eq!(zone.free_in_pageblocks(), 0);
        for frame in pages.iter().filter(|frame| **frame < SHAPE.first + 512 && *frame % 512 < 128) {
            zone.free(*frame).unwrap();
        }
        assert_eq!(zone.free_in_pageblocks(), 512);
        let taken = zone.take_as(0, Kind::Unmovable, &mut { unmixed }).unwrap().unwrap();
        assert!(taken.frame < SHAPE.first + 512 && taken.stolen.is_some_and(|stolen| stolen.owns));
        assert!(zone.take(9, Kind::Movable).unwrap().is_none());
        zone.validate().unwrap();
    }
}

/// Folios are orders of what is movable, up to the largest there can be.
#[test]
fn blocks_of_the_largest_order_are_put_together_again() {
    let shape = Shape { first: 0, frames: 1 << (ORDER_MAX + 1), max_order: ORDER_MAX, block_order: 9 };
    for entry in [find("mobility-6.18"), find("contiguitas"), find("standard")].into_iter().flatten() {
        let extras = Extras { ends: Ends::Shuffled(1), ..Extras::default() };
        let mut zone = Zone::with(shape, entry.policy, &extras).unwrap();
        let whole = zone.free_blocks().to_vec();
        let mut random = SplitMix64::new(2);
        let mut live = Vec::new();
        for _ in 0..20_000 {
            let order = [0, 0, 2, 4, 9, 10, 18][random.below(7) as usize];
            let kind = if order > 2 { Kind::Movable } else { Kind::ALL[random.below(3) as usize] };
            live.extend(zone.take(order, kind).unwrap().map(|taken| taken.frame));
        }
        zone.validate().unwrap();
        while !live.is_empty() {
            zone.free(live.swap_remove(random.below(live.len() as u64) as usize)).unwrap();
        }
        assert_eq!(zone.free_frames(), shape.frames);
        if entry.name != "contiguitas" {
            assert_eq!(zone.free_blocks(), whole, "{}", entry.name);
        }
        zone.validate().unwrap();
    }
}
