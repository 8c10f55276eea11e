//! Fallback of Linux since 6.10: a pageblock is claimed whole, or one block is stolen and the rest stays
//! where it was.

use crate::injected_bugs::Bug;
use crate::policies::{Policy, StealExtent};
use crate::types::{AllocationType, ZoneOffset};

use super::{AllocFlags, FallbackBlock, RmqueueMode, TakenBlock, Zone, ZoneBlock};

impl<P: Policy> Zone<P> {
    /// The largest block of others: its pageblock, or a piece of it (`__rmqueue_fallback`,
    /// `steal_suitable_fallback` of 6.10 to 6.14).
    pub(super) fn claim_largest_or_steal(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_flags: &AllocFlags,
    ) -> Option<TakenBlock> {
        let pageblock_order = self.geometry.pageblock_order;
        let min_order = self.min_fallback_order(order, alloc_flags);
        let largest = self.find_largest_fallback(alloc_list, min_order)?;
        let extent = self.policy.steal_extent(alloc_list, largest.block.order, pageblock_order);
        if extent != StealExtent::Pageblock {
            self.count_fragmentation_event();
            return self.steal_smallest_block(alloc_list, order);
        }
        self.claim_pageblock(alloc_list, order, largest)
            .or_else(|| Some(self.steal_part(alloc_list, largest)))
    }

    /// Pageblocks from the largest block down; then the smallest block (`__rmqueue_claim`,
    /// `__rmqueue_steal` of 6.15 to 6.18).
    pub(super) fn claim_then_steal(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_flags: &mut AllocFlags,
    ) -> Option<TakenBlock> {
        let min_order = self.min_fallback_order(order, alloc_flags);
        for size in (min_order..=self.geometry.max_order).rev() {
            if self.policy.steal_extent(alloc_list, size, self.geometry.pageblock_order)
                != StealExtent::Pageblock
            {
                break;
            }
            let Some(fallback) = self.find_fallback_block(alloc_list, size) else { continue };
            if let Some(found) = self.claim_pageblock(alloc_list, order, fallback) {
                alloc_flags.rmqueue_mode = RmqueueMode::Normal;
                return Some(found);
            }
            if self.has_bug(Bug::SingleClaimAttempt) {
                break;
            }
        }
        self.steal_smallest(alloc_list, order, alloc_flags)
    }

    /// In a batch that found nothing to be claimed, the next piece: its list is still empty.
    pub(super) fn continue_stealing(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_flags: &mut AllocFlags,
    ) -> Option<TakenBlock> {
        if self.has_bug(Bug::BatchForgetsStealMode) {
            return self.claim_then_steal(alloc_list, order, alloc_flags);
        }
        self.steal_smallest(alloc_list, order, alloc_flags)
    }

    /// A piece of the smallest block of others, if kinds may be mixed.
    pub(super) fn steal_smallest(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_flags: &mut AllocFlags,
    ) -> Option<TakenBlock> {
        if !alloc_flags.can_fragment && !self.has_bug(Bug::NoFragmentIgnored) {
            return None;
        }
        let found = self.steal_smallest_block(alloc_list, order)?;
        alloc_flags.rmqueue_mode = RmqueueMode::Steal;
        Some(found)
    }

    fn steal_smallest_block(&mut self, alloc_list: u8, order: u8) -> Option<TakenBlock> {
        let smallest = self.find_smallest_fallback(alloc_list, order)?;
        Some(self.steal_part(alloc_list, smallest))
    }

    /// A piece of the largest block of others, if the policy takes no more of it.
    pub(super) fn steal_requested_order(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_flags: &AllocFlags,
    ) -> Option<TakenBlock> {
        let min_order = self.min_fallback_order(order, alloc_flags);
        let largest = self.find_largest_fallback(alloc_list, min_order)?;
        let extent = self.policy.steal_extent(alloc_list, largest.block.order, self.geometry.pageblock_order);
        (extent == StealExtent::RequestedOrder).then(|| self.steal_part(alloc_list, largest))
    }

    /// Of a free block just a piece: the rest stays on its list.
    fn steal_part(&mut self, alloc_list: u8, taken: FallbackBlock) -> TakenBlock {
        let fallback = self.fallback_of(taken, alloc_list, false);
        let ZoneBlock { offset, order } = taken.block;
        self.del_from_free_list(offset, order);
        let remainder_list = if self.has_bug(Bug::RemainderNotReturned) { alloc_list } else { taken.list };
        TakenBlock { offset, order, remainder_list, fallback: Some(fallback) }
    }

    /// Counts an attempt to mix migratetypes in a pageblock, as the kernel does, whether or not it succeeds.
    pub(super) fn count_fragmentation_event(&mut self) {
        if !self.has_bug(Bug::FragmentationUncounted) {
            self.fragmentation_events = self.fragmentation_events.wrapping_add(1);
        }
    }

    /// The pageblock of a free block, if enough of it is free or alike.
    fn claim_pageblock(&mut self, alloc_list: u8, order: u8, claimed: FallbackBlock) -> Option<TakenBlock> {
        let pageblock_order = self.geometry.pageblock_order;
        let ZoneBlock { offset, order: found_order } = claimed.block;
        let pageblock = offset.pageblock_index(pageblock_order);
        let fallback = Some(self.fallback_of(claimed, alloc_list, true));
        if found_order >= pageblock_order {
            self.set_owner(pageblock..pageblock + (1 << (found_order - pageblock_order)), alloc_list);
            self.del_from_free_list(offset, found_order);
            return Some(TakenBlock { offset, order: found_order, remainder_list: alloc_list, fallback });
        }
        self.count_fragmentation_event();
        let (free, movable) = self.count_pageblock_frames(pageblock);
        if !self.can_claim_pageblock(pageblock, alloc_list, free, movable) {
            return None;
        }
        self.move_pageblock_blocks(pageblock, alloc_list);
        self.set_owner(pageblock..pageblock + 1, alloc_list);
        let (offset, found) = self.pop_smallest(alloc_list, order)?;
        Some(TakenBlock { offset, order: found, remainder_list: alloc_list, fallback })
    }

    /// Free frames of a pageblock, and movable ones that are not free (`prep_move_freepages_block`).
    fn count_pageblock_frames(&self, pageblock: usize) -> (u32, u32) {
        let from = ZoneOffset::of_pageblock(pageblock as u32, self.geometry.pageblock_order);
        let to = from + (1 << self.geometry.pageblock_order);
        let (mut offset, mut free, mut movable) = (from, 0, 0);
        while offset < to {
            let state = self.free_lists.frame_state(offset);
            let (order, counter) = match (state.free_order(), state.allocated_block()) {
                (Some(order), _) => (order, &mut free),
                (None, Some((order, AllocationType::Movable))) => (order, &mut movable),
                (None, used) => {
                    offset += 1 << used.map_or(0, |(order, _)| order);
                    continue;
                }
            };
            *counter += 1 << order;
            offset += 1 << order;
        }
        (free, movable.min(to - from))
    }
}
