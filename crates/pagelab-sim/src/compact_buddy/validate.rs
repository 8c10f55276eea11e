//! Validation of the compact engine's metadata: counted along the lists and frame by frame.

use super::{CompactBuddy, FULL_PAGEBLOCK, largest_order_plus_one, order_summary};
use crate::free_lists::FrameTag;
use crate::types::{AllocationType, Error, corrupted};

impl CompactBuddy {
    /// Checks all metadata: each pageblock is on the list of its largest free block, blocks do not overlap,
    /// and the totals agree.
    pub fn validate(&self) -> Result<(), Error> {
        let geometry = self.geometry;
        let mut listed = vec![false; self.pageblock_lists.pageblock_count() as usize];
        for owner in 0..AllocationType::ALL.len() as u8 {
            for order in 0..=geometry.max_order {
                for block in self.pageblock_lists.pageblocks(owner, order) {
                    if self.pageblock_lists.state(block) != FrameTag::from_free_order(order) {
                        return corrupted(format!(
                            "pageblock {block:#x} is on a list of order {order} but not free at that order"
                        ));
                    }
                    if self.pageblock_lists.owner(block) != owner {
                        return corrupted(format!("pageblock {block:#x} is on the list of another owner"));
                    }
                    if std::mem::replace(&mut listed[block as usize], true) {
                        return corrupted(format!("pageblock {block:#x} is listed twice"));
                    }
                }
            }
        }
        let mut counted_blocks = vec![0u32; usize::from(geometry.max_order) + 1];
        let mut offset = 0;
        while offset < self.pageblock_lists.pageblock_count() {
            let state = self.pageblock_lists.state(offset);
            if state.free_order().is_some() != listed[offset as usize] {
                return corrupted(format!("pageblock {offset:#x} is free but on no list"));
            }
            if self.is_split(state) {
                self.validate_split_pageblock(offset, &mut counted_blocks)?;
                offset += 1;
            } else {
                offset += self.validate_whole_pageblocks(offset, &mut counted_blocks)?;
            }
        }
        let free: u64 =
            counted_blocks.iter().enumerate().map(|(order, &blocks)| u64::from(blocks) << order).sum();
        if counted_blocks != self.free_block_counts || free != u64::from(self.free_frame_count) {
            return corrupted(format!(
                "{free} frames are free in blocks {counted_blocks:?}, the metadata says {} in {:?}",
                self.free_frame_count, self.free_block_counts
            ));
        }
        Ok(())
    }

    /// A block of whole pageblocks: how many of them.
    fn validate_whole_pageblocks(&self, pageblock: u32, blocks: &mut [u32]) -> Result<u32, Error> {
        let (pageblock_order, state) = (self.geometry.pageblock_order, self.pageblock_lists.state(pageblock));
        let Some(order) = state.order() else {
            return corrupted(format!("pageblock {pageblock:#x} belongs to no block"));
        };
        let pageblocks = 1u32 << (order - pageblock_order);
        let (first, count) =
            (self.geometry.first_frame.number() >> pageblock_order, self.pageblock_lists.pageblock_count());
        if pageblocks > count - pageblock || !(first + pageblock).is_multiple_of(pageblocks) {
            return corrupted(format!(
                "pageblock {pageblock:#x} of order {order} is not aligned or extends beyond the zone"
            ));
        }
        if let Some(inside) = (pageblock + 1..pageblock + pageblocks)
            .find(|&at| self.pageblock_lists.state(at) != FrameTag::INSIDE_BLOCK)
        {
            return corrupted(format!(
                "pageblock {inside:#x} is not marked as part of the block at {pageblock:#x}"
            ));
        }
        let (first_group, groups) = self.groups_of_pageblock(pageblock);
        let is_unsplit = are_groups_unsplit(self, first_group..first_group + groups * pageblocks as usize);
        if !is_unsplit {
            return corrupted(format!("pageblock {pageblock:#x} is not split but has bits of a split one"));
        }
        if state.free_order().is_some() {
            let buddy = ((first + pageblock) ^ pageblocks).wrapping_sub(first);
            if order < self.geometry.max_order && buddy < count && self.pageblock_lists.state(buddy) == state
            {
                return corrupted(format!(
                    "pageblock {pageblock:#x} and its buddy are free at order {order} but not merged"
                ));
            }
            blocks[usize::from(order)] += 1;
        }
        Ok(pageblocks)
    }

    /// A split pageblock, frame by frame.
    fn validate_split_pageblock(&self, pageblock: u32, blocks: &mut [u32]) -> Result<(), Error> {
        let (pageblock_order, group_order) = (self.geometry.pageblock_order, self.group_order());
        let is_free = |offset: u32| {
            let (group, offset_in_group) = self.group_of_frame(offset);
            self.groups[group].is_free(offset_in_group)
        };
        let (first_offset, mut orders) = (pageblock << pageblock_order, 0u32);
        let mut offset = first_offset;
        while offset < first_offset + (1 << pageblock_order) {
            let order = if is_free(offset) {
                let fits = |order: u8| {
                    offset.is_multiple_of(1 << order)
                        && (offset..offset + (1 << order)).all(is_free)
                        && order < pageblock_order
                };
                let order = (0..pageblock_order).take_while(|&order| fits(order)).last().unwrap_or(0);
                blocks[usize::from(order)] += 1;
                for group in (offset - first_offset) >> group_order
                    ..((offset - first_offset + (1 << order) - 1) >> group_order) + 1
                {
                    orders |= 1 << order.min(group_order) << (8 * group);
                }
                order
            } else {
                let Some(order) = self.allocated_order_at(offset) else {
                    return corrupted(format!("{offset:#x} belongs to no block"));
                };
                let end = offset + (1 << order);
                let inside = (offset + 1..end)
                    .find(|&inside| is_free(inside) || self.allocated_order_at(inside).is_some());
                if !offset.is_multiple_of(1 << order) || inside.is_some() {
                    return corrupted(format!("the block of order {order} at {offset:#x} is not whole"));
                }
                order
            };
            offset += 1 << order;
        }
        let recorded_orders = self.pageblock_lists.group_orders(pageblock);
        if orders != recorded_orders {
            return corrupted(format!(
                "pageblock {pageblock:#x} has free blocks {orders:#x}, the metadata says {recorded_orders:#x}"
            ));
        }
        let state = self.pageblock_lists.state(pageblock);
        let is_state_correct = match largest_order_plus_one(order_summary(orders)) {
            0 => state == FULL_PAGEBLOCK,
            order => state == FrameTag::from_free_order(order as u8 - 1),
        };
        if !is_state_correct {
            return corrupted(format!(
                "pageblock {pageblock:#x} is listed as {state:?}, its free blocks {orders:#x}"
            ));
        }
        Ok(())
    }
}

/// Whether groups have no bit of a split pageblock.
fn are_groups_unsplit(compact: &CompactBuddy, groups: std::ops::Range<usize>) -> bool {
    let unsplit = super::group::FrameBits::new(compact.geometry.pageblock_order);
    compact.groups[groups].iter().all(|group| *group == unsplit)
}
