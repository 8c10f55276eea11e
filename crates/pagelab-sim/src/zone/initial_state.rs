//! Initial state of a zone: some frames are free, the others allocated.

use std::ops::Range;

use super::Zone;
use crate::free_lists::FrameTag;
use crate::policies::{FallbackMode, Policy};
use crate::types::{AllocationType, Error, Frame, ZoneOffset, invalid};

/// Adjacent frames of a zone in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialRun {
    /// Which, by their numbers in the memory.
    pub frames: Range<Frame>,
    /// Allocation type; `None`: free.
    pub alloc_type: Option<AllocationType>,
}

impl<P: Policy> Zone<P> {
    /// Sets the initial state of an unused zone. `owners` has for each pageblock which allocation type it
    /// belongs to, and `frame_runs` go through all of its frames, from the first to the last.
    ///
    /// Free runs lie in the largest blocks that fit, as in the kernel, the lowest first on each list.
    /// Two of them side by side are refused.
    /// Allocated frames are blocks of order 0; [`Zone::join_blocks`] makes larger ones of them.
    pub fn set_initial_state(
        &mut self,
        owners: &[AllocationType],
        frame_runs: impl IntoIterator<Item = InitialRun>,
    ) -> Result<(), Error> {
        let geometry = self.geometry;
        if owners.len() != self.pageblock_owners.len() {
            return invalid(format!(
                "{} owners for {} pageblocks",
                owners.len(),
                self.pageblock_owners.len()
            ));
        }
        if self.free_frame_count != geometry.frames {
            return invalid("the zone already has allocated frames");
        }
        self.clear_free_lists();
        // Regions are those of the policy, independent of their contents.
        if self.policy.fallback_mode() != FallbackMode::ResizeRegion {
            for (pageblock, &kind) in owners.iter().enumerate() {
                self.set_owner(pageblock..pageblock + 1, self.policy.allocation_list(kind));
            }
        }
        let (mut offset, mut is_previous_free) = (geometry.first_frame, false);
        for InitialRun { frames, alloc_type: used } in frame_runs {
            if frames.start != offset || frames.end < offset || frames.end > geometry.end() {
                let (from, to) = (frames.start, frames.end);
                return invalid(format!("frames {from:#x} to {to:#x} do not follow {offset:#x} in the zone"));
            }
            if used.is_none() && is_previous_free {
                return invalid(format!("free runs before and after {offset:#x}; expected one run"));
            }
            (offset, is_previous_free) = (frames.end, used.is_none());
            match used {
                Some(kind) => {
                    for frame in Frame::range(frames) {
                        self.free_lists
                            .set_state(geometry.offset_of(frame), FrameTag::from_allocated(0, kind));
                    }
                }
                None => self.add_free_run(frames, owners),
            }
        }
        if offset != geometry.end() {
            return invalid(format!("the initial state ends at {offset:#x}, not at the end of the zone"));
        }
        Ok(())
    }

    fn clear_free_lists(&mut self) {
        for list in 0..self.policy.list_count() {
            for order in 0..=self.geometry.max_order {
                while let Some(at) = self.free_lists.first_block(list, order) {
                    self.del_from_free_list(at, order);
                    self.free_lists.set_state(at, FrameTag::INSIDE_BLOCK);
                }
            }
        }
        self.nonempty_orders.fill(0);
        self.free_frame_count = 0;
    }

    fn add_free_run(&mut self, frames: Range<Frame>, owners: &[AllocationType]) {
        let mut from = frames.start;
        while from < frames.end {
            let fits = (frames.end - from).ilog2().min(u32::from(self.geometry.max_order));
            let mut order = from.alignment_order().min(fits) as u8;
            let offset = self.geometry.offset_of(from);
            let pageblock = offset.pageblock_index(self.geometry.pageblock_order);
            let blocks =
                |order: u8| pageblock..pageblock + (1 << order.saturating_sub(self.geometry.pageblock_order));
            let owner = self.pageblock_owners[pageblock];
            match self.policy.fallback_mode() {
                FallbackMode::MoveFreeBlocks => {}
                // Nothing free reaches over the boundary.
                FallbackMode::ResizeRegion => {
                    while self.pageblock_owners[blocks(order)].iter().any(|&other| other != owner) {
                        order -= 1;
                    }
                }
                // The pageblocks of a free block are of one owner.
                FallbackMode::ClaimLargestOrSteal | FallbackMode::ClaimThenSteal => {
                    let blocks = blocks(order);
                    self.set_owner(blocks, owner);
                }
            }
            let list = self.policy.free_list(owners[pageblock], self.pageblock_owners[pageblock]);
            self.add_to_free_list(list, order, offset, true);
            self.free_frame_count += 1 << order;
            from += 1 << order;
        }
    }

    /// Order and allocation type of the allocated block that begins at a frame, if one does.
    #[inline]
    pub fn allocated_block_at(&self, frame: Frame) -> Option<(u8, AllocationType)> {
        let offset = self.geometry.wrapping_offset_of(frame);
        if offset < self.geometry.end_offset() {
            self.free_lists.frame_state(offset).allocated_block()
        } else {
            None
        }
    }

    /// Joins adjacent allocated blocks of order 0 into one block. `false`, and nothing is changed: they are
    /// not, or are of several allocation types.
    pub fn join_blocks(&mut self, frame: Frame, order: u8) -> bool {
        let size = 1u32.checked_shl(u32::from(order)).unwrap_or(0);
        let offset = self.geometry.wrapping_offset_of(frame);
        if order > self.geometry.max_order
            || offset >= self.geometry.end_offset()
            || size > self.geometry.end_offset() - offset
            || !frame.is_aligned(order)
        {
            return false;
        }
        let Some((0, kind)) = self.free_lists.frame_state(offset).allocated_block() else { return false };
        if !ZoneOffset::range(offset..offset + size)
            .all(|at| self.free_lists.frame_state(at) == FrameTag::from_allocated(0, kind))
        {
            return false;
        }
        for inner in ZoneOffset::range(offset + 1..offset + size) {
            self.free_lists.set_state(inner, FrameTag::INSIDE_BLOCK);
        }
        self.free_lists.set_state(offset, FrameTag::from_allocated(order, kind));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::{AllocationTypeLists, GroupByMobility};
    use crate::types::ZoneGeometry;

    const SHAPE: ZoneGeometry =
        ZoneGeometry { first_frame: Frame::new(48), frames: 208, max_order: 6, pageblock_order: 4 };

    fn run(frames: Range<u32>, used: Option<AllocationType>) -> InitialRun {
        InitialRun { frames: Frame::new(frames.start)..Frame::new(frames.end), alloc_type: used }
    }

    #[test]
    fn a_zone_begins_as_it_is_told() {
        let mut zone = Zone::new(SHAPE, GroupByMobility).unwrap();
        let mut owners = vec![AllocationType::Movable; 13];
        owners[1] = AllocationType::Reclaimable;
        let runs = [
            run(48..51, Some(AllocationType::Unmovable)),
            run(51..128, None),
            run(128..132, Some(AllocationType::Movable)),
            run(132..256, None),
        ];
        zone.set_initial_state(&owners, runs).unwrap();
        zone.validate().unwrap();
        assert_eq!(zone.free_frames(), 77 + 124);
        // 51, 52..56, 56..64, 64..128; 132..136, 136..144, 144..160, 160..192, 192..256.
        assert_eq!(zone.free_blocks(), [1, 0, 2, 2, 1, 1, 2]);
        // The block at 64 is in the pageblock of reclaimable memory.
        assert_eq!(
            zone.allocate_block(3, AllocationType::Reclaimable).unwrap().unwrap().frame,
            Frame::new(64)
        );
        assert_eq!(zone.allocated_block_at(Frame::new(49)), Some((0, AllocationType::Unmovable)));
        for frame in [128, 129, 130, 131].map(Frame::new) {
            zone.free_block(frame).unwrap();
        }
        zone.validate().unwrap();
        assert_eq!(zone.free_blocks()[6], 2, "64 to 128 is broken up, 128 to 256 whole");
    }

    #[test]
    fn every_policy_begins_in_the_middle_of_things() {
        for entry in crate::policies::TABLE {
            let mut zone = Zone::new(SHAPE, entry.policy).unwrap();
            let owners: Vec<AllocationType> = (0..13).map(|block| AllocationType::ALL[block % 3]).collect();
            let runs = [
                run(48..70, None),
                run(70..128, Some(AllocationType::Unmovable)),
                run(128..192, Some(AllocationType::Movable)),
                run(192..256, None),
            ];
            zone.set_initial_state(&owners, runs).unwrap();
            assert!(zone.join_blocks(Frame::new(128), 6), "{}", entry.name);
            zone.validate().unwrap();
            let taken = zone.allocate_block(2, AllocationType::Unmovable).unwrap();
            for frame in (70..129).map(Frame::new).chain(taken.map(|taken| taken.frame)) {
                zone.free_block(frame).unwrap();
                zone.validate().unwrap();
            }
            assert_eq!(zone.free_frames(), 208, "{}", entry.name);
        }
    }

    #[test]
    fn a_state_that_is_not_that_of_the_zone_is_refused() {
        let owners = [AllocationType::Movable; 13];
        let refused = |owners: &[AllocationType], runs: &[InitialRun]| {
            Zone::new(SHAPE, GroupByMobility)
                .unwrap()
                .set_initial_state(owners, runs.to_vec())
                .unwrap_err()
                .to_string()
        };
        assert!(refused(&owners[1..], &[]).contains("12 owners for 13"));
        assert!(refused(&owners, &[run(48..250, None)]).contains("ends at 0xfa"));
        assert!(refused(&owners, &[run(48..257, None)]).contains("do not follow"));
        assert!(refused(&owners, &[run(48..60, None), run(61..256, None)]).contains("do not follow"));
        assert!(refused(&owners, &[run(48..51, None), run(51..256, None)]).contains("after 0x33"));
        let mut zone = Zone::new(SHAPE, GroupByMobility).unwrap();
        zone.allocate_block(0, AllocationType::Movable).unwrap();
        assert!(zone.set_initial_state(&owners, [run(48..256, None)]).is_err());
    }

    #[test]
    fn blocks_of_one_frame_are_joined_where_they_can_be() {
        let mut zone = Zone::new(SHAPE, AllocationTypeLists::TwoTypes).unwrap();
        let all = [run(48..80, Some(AllocationType::Movable)), run(80..256, Some(AllocationType::Unmovable))];
        zone.set_initial_state(&[AllocationType::Movable; 13], all).unwrap();
        assert!(zone.join_blocks(Frame::new(64), 4) && zone.join_blocks(Frame::new(96), 5));
        assert_eq!(zone.allocated_block_at(Frame::new(64)), Some((4, AllocationType::Movable)));
        // Not aligned; of two allocation types; joined already; beyond the zone; above the largest order.
        for (frame, order) in [(50, 2), (64, 5), (64, 1), (252, 3), (32, 1), (128, 7), (128, 40)] {
            assert!(!zone.join_blocks(Frame::new(frame), order), "{frame} at order {order}");
        }
        zone.validate().unwrap();
        assert_eq!((zone.free_block(Frame::new(64)), zone.free_block(Frame::new(96))), (Ok(4), Ok(5)));
        zone.validate().unwrap();
    }
}
