//! Validation of the allocator's metadata: counted along the free lists and frame by frame.

use crate::free_lists::FrameTag;
use crate::policies::{FallbackMode, Policy};
use crate::types::{Error, ZoneOffset, corrupted};
use crate::zone::Zone;

impl<P: Policy> Zone<P> {
    /// Checks all metadata: each free block is on one list of its order, blocks do not overlap, no two free
    /// buddies are adjacent, and the totals agree.
    pub fn validate(&self) -> Result<(), Error> {
        let geometry = self.geometry();
        let mut is_listed = vec![false; geometry.frames as usize];
        let (mut frames, mut blocks) = (0u64, vec![0u32; usize::from(geometry.max_order) + 1]);
        for list in 0..self.list_count() {
            for order in 0..=geometry.max_order {
                for at in self.free_lists().blocks(list, order) {
                    if self.free_lists().frame_state(at) != FrameTag::from_free_order(order) {
                        return corrupted(format!(
                            "{at:#x} is on a list of order {order} but not free at that order"
                        ));
                    }
                    if std::mem::replace(&mut is_listed[at.index()], true) {
                        return corrupted(format!("{at:#x} is listed twice"));
                    }
                    if !geometry.frame_at(at).is_aligned(order) {
                        return corrupted(format!("{at:#x} is not aligned to order {order}"));
                    }
                    self.validate_block_owners(list, order, at)?;
                    frames += 1 << order;
                    blocks[usize::from(order)] += 1;
                }
            }
        }
        if frames != u64::from(self.free_frames()) || blocks != self.free_blocks() {
            return corrupted(format!(
                "lists hold {frames} frames in blocks {blocks:?}, the counters say {} in {:?}",
                self.free_frames(),
                self.free_blocks()
            ));
        }
        self.validate_reserves()?;
        self.validate_states(&is_listed)
    }

    /// A free block is on the list of its pageblocks, if the policy requires it, and in reserves always.
    fn validate_block_owners(&self, list: u8, order: u8, offset: ZoneOffset) -> Result<(), Error> {
        let pageblock = offset.pageblock_index(self.geometry().pageblock_order);
        let pageblocks = 1usize << order.saturating_sub(self.geometry().pageblock_order);
        let is_strict = self.policy().fallback_mode().is_strict();
        let is_mismatched = |&owner: &u8| {
            owner != list && (is_strict || self.is_reserve_list(owner) || self.is_reserve_list(list))
        };
        let owners = &self.pageblock_owners()[pageblock..pageblock + pageblocks];
        owners.iter().find(|owner| is_mismatched(owner)).map_or(Ok(()), |owner| {
            corrupted(format!(
                "{offset:#x} of order {order} is on list {list}, its pageblock has owner {owner}"
            ))
        })
    }

    /// The counts of reserves agree with their pageblocks and lists.
    fn validate_reserves(&self) -> Result<(), Error> {
        let (cma, highatomic) = (self.policy().list_count(), self.policy().list_count() + 1);
        let highatomic_frames =
            self.pageblock_owners().iter().filter(|&&owner| owner == highatomic).count() as u32;
        let set_aside = highatomic_frames << self.geometry().pageblock_order;
        let cma_frames = |order| (self.free_lists().blocks(cma, order).count() as u32) << order;
        let orders = 0..=self.geometry().max_order;
        let cma_free_frames: u32 = if self.list_count() > cma { orders.map(cma_frames).sum() } else { 0 };
        let counted = (set_aside, cma_free_frames);
        let recorded = (self.highatomic_frames(), self.cma_free_frames());
        if counted != recorded {
            return corrupted(format!(
                "highatomic and free CMA frames: {counted:?}, the counters say {recorded:?}"
            ));
        }
        Ok(())
    }

    /// Whether two free buddies may be merged: reserves and confined regions stay apart.
    fn can_merge_owners(&self, offset: ZoneOffset, buddy: ZoneOffset, order: u8) -> bool {
        let owner = |offset: ZoneOffset| {
            self.pageblock_owners()[offset.pageblock_index(self.geometry().pageblock_order)]
        };
        let (owner_of_block, owner_of_buddy) = (owner(offset), owner(buddy));
        let is_never_merged = self.policy().fallback_mode() == FallbackMode::ResizeRegion
            || self.is_reserve_list(owner_of_block)
            || self.is_reserve_list(owner_of_buddy);
        order < self.geometry().pageblock_order || owner_of_block == owner_of_buddy || !is_never_merged
    }

    /// Goes through all frames: blocks follow each other without a gap.
    fn validate_states(&self, listed: &[bool]) -> Result<(), Error> {
        let geometry = self.geometry();
        let (mut offset, mut free) = (ZoneOffset::default(), 0u32);
        while offset < geometry.end_offset() {
            if self.free_lists().pageblock_owner(offset)
                != self.pageblock_owners()[offset.pageblock_index(geometry.pageblock_order)]
            {
                return corrupted(format!("{offset:#x} and its pageblock have different owners"));
            }
            let state = self.free_lists().frame_state(offset);
            let allocated_order = state.allocated_block().map(|(order, _)| order).or(state.pcp_order());
            let order = match (state.free_order(), allocated_order) {
                (Some(order), _) => {
                    free += 1 << order;
                    if !listed[offset.index()] {
                        return corrupted(format!("{offset:#x} is free but on no list"));
                    }
                    let buddy = geometry.wrapping_offset_of(geometry.frame_at(offset).buddy(order));
                    if order < geometry.max_order
                        && buddy < geometry.end_offset()
                        && self.free_lists().frame_state(buddy) == state
                        && self.can_merge_owners(offset, buddy, order)
                    {
                        return corrupted(format!(
                            "{offset:#x} and its buddy are free at order {order} but not merged"
                        ));
                    }
                    order
                }
                (None, Some(order)) => order,
                (None, None) => return corrupted(format!("{offset:#x} belongs to no block")),
            };
            let size = 1u32 << order;
            if size > geometry.end_offset() - offset {
                return corrupted(format!("{offset:#x} of order {order} extends beyond the zone"));
            }
            if let Some(inner) = ZoneOffset::range(offset + 1..offset + size)
                .find(|&at| self.free_lists().frame_state(at) != FrameTag::INSIDE_BLOCK)
            {
                return corrupted(format!("{inner:#x} starts a block inside the block at {offset:#x}"));
            }
            offset += size;
        }
        if free != self.free_frames() {
            return corrupted(format!("{free} frames are free, the counter says {}", self.free_frames()));
        }
        Ok(())
    }
}
