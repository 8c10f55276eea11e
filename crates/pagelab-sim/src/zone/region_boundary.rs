//! Boundary between two regions, which moves by completely free pageblocks.

use std::ops::Range;

use crate::injected_bugs::Bug;
use crate::policies::{FallbackMode, Policy};
use crate::types::{AllocationType, Error, Fallback, Frame, ZoneOffset};

use super::{TakenBlock, Zone, ZoneBlock};

impl<P: Policy> Zone<P> {
    /// Boundary of a policy that has one: the first frame above it.
    pub fn region_boundary(&self) -> Option<Frame> {
        (self.policy.fallback_mode() == FallbackMode::ResizeRegion)
            .then(|| self.geometry.pageblock_start(self.boundary))
    }

    /// The frames that a region would get for a block of an order, if they were free: those above the
    /// boundary for list 0, those below it for the other.
    pub fn frames_to_claim(&self, alloc_list: u8, order: u8) -> Option<Range<Frame>> {
        let pageblocks = self.pageblocks_to_claim(alloc_list, order)?;
        Some(self.geometry.pageblock_start(pageblocks.start)..self.geometry.pageblock_start(pageblocks.end))
    }

    /// Allocates a movable block above the boundary, which stays where it is.
    pub(crate) fn allocate_above_boundary(&mut self, order: u8) -> Result<Option<Frame>, Error> {
        if (order..=self.geometry.max_order).all(|size| self.free_lists.first_block(1, size).is_none()) {
            return Ok(None);
        }
        Ok(self.allocate_block(order, AllocationType::Movable)?.map(|taken| taken.frame))
    }

    /// Moves the boundary back over free pageblocks while the next one is free too, so that it does not
    /// oscillate, and not below its initial place. Returns the number of pageblocks.
    pub(crate) fn lower_boundary(&mut self) -> u32 {
        if self.policy.fallback_mode() != FallbackMode::ResizeRegion {
            return 0;
        }
        let pageblock_count = self.geometry.frames >> self.geometry.pageblock_order;
        let required_free = if self.has_bug(Bug::RegionReturnsLastPageblock) { 1 } else { 2 };
        let mut pageblocks_moved = 0;
        // The initial memory of this region remains in it.
        while (1..=required_free)
            .all(|below| self.boundary.checked_sub(below).is_some_and(|at| self.is_free_in_low_region(at)))
            && self.policy.initial_owner(self.boundary - 1, pageblock_count) != 0
        {
            self.boundary -= 1;
            self.move_free_pageblock(self.boundary, 1);
            pageblocks_moved += 1;
        }
        pageblocks_moved
    }

    /// Whether a pageblock of list 0 is free.
    fn is_free_in_low_region(&self, pageblock: u32) -> bool {
        self.pageblock_owners[pageblock as usize] == 0 && self.free_block_covering(pageblock).is_some()
    }

    /// Moves the boundary so far that the request fits beside it, if all pageblocks up to there are free.
    pub(super) fn allocate_by_resizing_region(&mut self, alloc_list: u8, order: u8) -> Option<TakenBlock> {
        let pageblocks = self.pageblocks_to_claim(alloc_list, order)?;
        let previous_owner = 1 - alloc_list.min(1);
        if pageblocks.clone().any(|pageblock| {
            self.pageblock_owners[pageblock as usize] != previous_owner
                || self.free_block_covering(pageblock).is_none()
        }) {
            return None;
        }
        for pageblock in pageblocks.clone() {
            self.move_free_pageblock(pageblock, alloc_list);
        }
        if !self.has_bug(Bug::RegionBoundaryFixed) {
            self.boundary = if alloc_list == 0 { pageblocks.end } else { pageblocks.start };
        }
        let (offset, found) = self.pop_smallest(alloc_list, order)?;
        let frame = self.geometry.pageblock_start(pageblocks.start);
        let fallback = Fallback {
            frame,
            order: self.geometry.pageblock_order,
            alloc_list,
            fallback_list: previous_owner,
            changes_ownership: true,
        };
        Some(TakenBlock { offset, order: found, remainder_list: alloc_list, fallback: Some(fallback) })
    }

    /// The pageblocks from the boundary to the end of the nearest block of an order, aligned as such.
    fn pageblocks_to_claim(&self, alloc_list: u8, order: u8) -> Option<Range<u32>> {
        let pageblock_order = self.geometry.pageblock_order;
        let size = 1u64 << order.max(pageblock_order);
        let boundary = u64::from(self.region_boundary()?.number());
        let (first, end) =
            (u64::from(self.geometry.first_frame.number()), u64::from(self.geometry.end().number()));
        let pageblock_of = |frame: u64| ((frame - first) >> pageblock_order) as u32;
        if alloc_list == 0 {
            let to = boundary.next_multiple_of(size) + size;
            (to <= end).then(|| self.boundary..pageblock_of(to))
        } else {
            // One pageblock stays below.
            let from = (boundary / size * size).checked_sub(size)?;
            (from > first).then(|| pageblock_of(from)..self.boundary)
        }
    }

    pub(super) fn free_block_covering(&self, pageblock: u32) -> Option<ZoneBlock> {
        let frame = self.geometry.pageblock_start(pageblock);
        (self.geometry.pageblock_order..=self.geometry.max_order).find_map(|order| {
            let offset = self.free_block_at(frame.align_down(order), order)?;
            Some(ZoneBlock { offset, order })
        })
    }

    /// Moves a free pageblock to another list, and merges it there. The rest of its free block stays.
    pub(super) fn move_free_pageblock(&mut self, pageblock: u32, list: u8) {
        let Some(ZoneBlock { mut offset, mut order }) = self.free_block_covering(pageblock) else {
            debug_assert!(false, "pageblock {pageblock:#x} moves to another list but is not free");
            return;
        };
        let pageblock_order = self.geometry.pageblock_order;
        let target = ZoneOffset::of_pageblock(pageblock, pageblock_order);
        let previous_owner = self.pageblock_owners[pageblock as usize];
        self.del_from_free_list(offset, order);
        while order > pageblock_order {
            order -= 1;
            let upper = offset + (1 << order);
            let (inner, outer) = if target >= upper { (upper, offset) } else { (offset, upper) };
            self.add_to_free_list(previous_owner, order, outer, false);
            offset = inner;
        }
        self.set_owner(pageblock as usize..pageblock as usize + 1, list);
        self.free_frame_count -= 1 << pageblock_order;
        self.free_and_merge(self.geometry.frame_at(offset), pageblock_order, list);
    }
}
