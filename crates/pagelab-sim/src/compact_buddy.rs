//! Buddy allocator for terabytes: less than a quarter of a byte per frame.
//!
//! Two levels. Pageblocks that are free or allocated as a whole are blocks of [`PageblockLists`], as frames
//! are in [`crate::zone`]. A pageblock that is split has three bits for each pair of its frames (`group.rs`),
//! and is on the list of its owner at the order of its largest free block, so that only changes of that order
//! access a list.
//!
//! Which block is taken: of the wanted owner's lists the first pageblock at the lowest order that is large
//! enough; in it the smallest free block that is large enough, and of those the lowest. Pageblocks go to the
//! front of their lists. When the owner has no block, a pageblock of another one is claimed if at least half
//! of it is free; else one block is taken from it and its owner does not change (mm/page_alloc.c of Linux
//! 6.15: `__rmqueue_claim`, `__rmqueue_steal`). The use of the allocated half has no effect: allocation types
//! of allocated blocks are not kept.

use std::ops::Range;

use crate::free_lists::FrameTag;
use crate::injected_bugs::InjectedBug;
use crate::pageblock_lists::PageblockLists;
use crate::prefetch;
use crate::types::{AllocationType, Error, Fallback, Frame, ZoneGeometry, ZoneOffset};
use crate::zone::AllocatedBlock;
use group::{FrameBits, FrameCover, GROUP_ORDER};

mod group;
#[cfg(test)]
mod lockstep_tests;
#[cfg(test)]
mod naive;
mod validate;

/// Pageblocks of more than four groups are not for this engine.
const MAX_PAGEBLOCK_ORDER: u8 = 9;

/// State of a split pageblock without free frames.
const FULL_PAGEBLOCK: FrameTag = FrameTag::from_allocated(0, AllocationType::Unmovable);

/// By owner, the other owners whose pageblocks are tried, in order of preference (`fallbacks`).
const FALLBACKS: [[u8; 2]; 3] = [[2, 1], [2, 0], [0, 1]];

/// The allocator.
#[derive(Clone, Debug)]
pub struct CompactBuddy {
    geometry: ZoneGeometry,
    /// Over pageblocks, numbered from 0.
    pageblock_lists: PageblockLists,
    groups: Vec<FrameBits>,
    /// Of each owner, the orders at which there may be a pageblock; the use of a stale bit clears it.
    nonempty_orders: [u32; 3],
    /// Free blocks of each order.
    free_block_counts: Vec<u32>,
    free_frame_count: u32,
    /// Injected bug.
    bug: InjectedBug<Bug>,
}

/// The orders of a pageblock's free blocks, as bits, from those of its groups.
#[inline]
fn order_summary(orders: u32) -> u32 {
    let low = orders | orders >> 16;
    let low = (low | low >> 8) & 0x7f;
    let free_groups = orders >> GROUP_ORDER & 0x0101_0101;
    let single_groups = (free_groups ^ free_groups >> 8) & 0x0001_0001;
    let group_pairs = free_groups & free_groups >> 8 & 0x0001_0001;
    let group_quads = group_pairs & group_pairs >> 16;
    low | u32::from(single_groups != 0) << 7 | ((group_pairs ^ group_pairs >> 16) & 1) << 8 | group_quads << 9
}

/// Largest order of a summary, plus one; 0: nothing is free.
#[inline]
fn largest_order_plus_one(summary: u32) -> u32 {
    u32::BITS - summary.leading_zeros()
}

impl CompactBuddy {
    /// Free memory, all of it movable, in the largest blocks, the lowest first. Its pageblocks have 512
    /// frames at most.
    pub fn new(geometry: ZoneGeometry) -> Result<CompactBuddy, Error> {
        geometry.validate()?;
        if geometry.pageblock_order > MAX_PAGEBLOCK_ORDER {
            let what = format!(
                "pageblocks of order {}: the compact engine supports orders up to {MAX_PAGEBLOCK_ORDER}; \
                 hint: use an engine with frame lists",
                geometry.pageblock_order
            );
            return Err(Error::InvalidConfig(what));
        }
        let pageblocks = geometry.frames >> geometry.pageblock_order;
        let groups = (pageblocks as usize) << geometry.pageblock_order.saturating_sub(GROUP_ORDER);
        let mut buddy = CompactBuddy {
            geometry,
            pageblock_lists: PageblockLists::new(
                pageblocks,
                AllocationType::ALL.len() as u8,
                geometry.max_order,
                AllocationType::Movable as u8,
            ),
            groups: vec![FrameBits::new(geometry.pageblock_order); groups],
            nonempty_orders: [0; 3],
            free_block_counts: vec![0; usize::from(geometry.max_order) + 1],
            free_frame_count: geometry.frames,
            bug: InjectedBug::NONE,
        };
        let mut offset = 0;
        while offset < geometry.frames {
            let order = geometry.largest_order_at(ZoneOffset::new(offset));
            buddy.list_pageblock(
                AllocationType::Movable as u8,
                order,
                offset >> geometry.pageblock_order,
                true,
            );
            buddy.free_block_counts[usize::from(order)] += 1;
            offset += 1 << order;
        }
        Ok(buddy)
    }

    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        self.bug.is_injected(&bug)
    }

    /// Geometry.
    pub fn geometry(&self) -> ZoneGeometry {
        self.geometry
    }

    /// Free frames.
    pub fn free_frames(&self) -> u32 {
        self.free_frame_count
    }

    /// Free blocks of each order, from 0 up (`/proc/buddyinfo`).
    pub fn free_blocks(&self) -> &[u32] {
        &self.free_block_counts
    }

    /// The allocation type that each pageblock belongs to.
    pub fn pageblock_owners(&self) -> Vec<u8> {
        (0..self.pageblock_lists.pageblock_count())
            .map(|pageblock| self.pageblock_lists.owner(pageblock))
            .collect()
    }

    /// Address range of the metadata in this process.
    pub fn memory_ranges(&self) -> Vec<Range<usize>> {
        let start = self.groups.as_ptr() as usize;
        vec![start..start + size_of_val(&self.groups[..]), self.pageblock_lists.memory_range()]
    }

    /// Total bytes of metadata.
    pub fn metadata_bytes(&self) -> u64 {
        let fixed_bytes = size_of::<CompactBuddy>() + size_of_val(&self.free_block_counts[..]);
        (self.memory_ranges().iter().map(Range::len).sum::<usize>() + fixed_bytes) as u64
    }

    /// The order of a group, or of a pageblock that is smaller.
    #[inline]
    fn group_order(&self) -> u8 {
        self.geometry.pageblock_order.min(GROUP_ORDER)
    }

    /// The groups of a pageblock, the first one and how many.
    #[inline]
    fn groups_of_pageblock(&self, pageblock: u32) -> (usize, usize) {
        let group_shift = self.geometry.pageblock_order.saturating_sub(GROUP_ORDER);
        ((pageblock as usize) << group_shift, 1 << group_shift)
    }

    /// The group of a frame counted from the first one, and the frame's place in it.
    #[inline]
    fn group_of_frame(&self, offset: u32) -> (usize, u32) {
        let group_order = self.group_order();
        ((offset >> group_order) as usize, offset & ((1 << group_order) - 1))
    }

    #[inline]
    fn is_split(&self, state: FrameTag) -> bool {
        state.order().is_some_and(|order| order < self.geometry.pageblock_order)
    }

    #[inline]
    fn list_pageblock(&mut self, owner: u8, order: u8, pageblock: u32, at_tail: bool) {
        self.pageblock_lists.add_pageblock(
            owner,
            order,
            pageblock,
            at_tail || self.has_bug(Bug::PageblockAddedToTail),
        );
        self.nonempty_orders[usize::from(owner)] |= 1 << order;
    }

    /// Moves a split pageblock to the list of its largest free block, when the orders of its free blocks have
    /// changed.
    #[inline]
    fn relist_pageblock(&mut self, pageblock: u32, old_summary: u32, new_summary: u32) {
        if largest_order_plus_one(old_summary) == largest_order_plus_one(new_summary)
            || self.has_bug(Bug::PageblockNotRelisted) && old_summary != 0 && new_summary != 0
        {
            return;
        }
        if old_summary != 0 {
            self.pageblock_lists.remove_pageblock(pageblock);
        }
        match largest_order_plus_one(new_summary) {
            0 => self.pageblock_lists.set_state(pageblock, FULL_PAGEBLOCK),
            order => {
                self.list_pageblock(self.pageblock_lists.owner(pageblock), order as u8 - 1, pageblock, false)
            }
        }
    }

    /// Allocates a block. `None`: there is no free block of the order.
    #[inline]
    pub fn allocate_block(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<Option<AllocatedBlock>, Error> {
        if order == 0
            && let Some(frame) = self.allocate_single(alloc_type)
        {
            return Ok(Some(AllocatedBlock { frame, fallback: None }));
        }
        self.allocate_slow(order, alloc_type)
    }

    /// Allocates any other block.
    #[inline(never)]
    fn allocate_slow(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<Option<AllocatedBlock>, Error> {
        if order > self.geometry.max_order {
            return Err(Error::OrderTooLarge { order, max: self.geometry.max_order });
        }
        let mut fallback = None;
        let mut found = self.smallest_listed(alloc_type as u8, order);
        if found.is_none()
            && let Some((block, size, what)) = self.find_fallback(alloc_type as u8, order)
        {
            (found, fallback) = (Some((block, size)), Some(what));
        }
        let Some((block, size)) = found else { return Ok(None) };
        let (offset, size) = match size < self.geometry.pageblock_order {
            true => self.allocate_from_split(block, order),
            false => (self.allocate_from_whole(block, size, order, alloc_type), size),
        };
        self.free_block_counts[usize::from(size)] -= 1;
        self.free_block_counts[usize::from(order)..usize::from(size)]
            .iter_mut()
            .for_each(|blocks| *blocks += 1);
        self.free_frame_count -= 1 << order;
        Ok(Some(AllocatedBlock { frame: self.geometry.first_frame + offset, fallback }))
    }

    /// The pageblock to take from, and the order that it is listed at.
    #[inline]
    fn smallest_listed(&mut self, owner: u8, order: u8) -> Option<(u32, u8)> {
        let nonempty_orders = &mut self.nonempty_orders[usize::from(owner)];
        loop {
            let found_order = (*nonempty_orders >> order << order).trailing_zeros() as u8;
            if found_order >= 32 {
                return None;
            }
            match self.pageblock_lists.first_pageblock(owner, found_order) {
                Some(block) => return Some((block, found_order)),
                None => *nonempty_orders &= !(1 << found_order),
            }
        }
    }

    /// Allocates from a free block of whole pageblocks: the first frame.
    #[inline]
    fn allocate_from_whole(
        &mut self,
        pageblock: u32,
        found_order: u8,
        order: u8,
        alloc_type: AllocationType,
    ) -> u32 {
        let pageblock_order = self.geometry.pageblock_order;
        let owner = self.pageblock_lists.owner(pageblock);
        self.pageblock_lists.remove_pageblock(pageblock);
        for half in (order.max(pageblock_order)..found_order).rev() {
            self.list_pageblock(owner, half, pageblock + (1 << (half - pageblock_order)), false);
        }
        if order >= pageblock_order {
            self.pageblock_lists.set_state(pageblock, FrameTag::from_allocated(order, alloc_type));
            return pageblock << pageblock_order;
        }
        let (_, groups) = self.groups_of_pageblock(pageblock);
        let orders = (0..groups).fold(0, |orders, group| orders | (1 << self.group_order()) << (8 * group));
        let (offset, orders) = self.allocate_from_groups(pageblock, 0, orders, order);
        self.pageblock_lists.set_group_orders(pageblock, orders);
        self.relist_pageblock(pageblock, 0, order_summary(orders));
        offset
    }

    /// Allocates from a split pageblock: the frame, and the order of the free block that was split.
    #[inline]
    fn allocate_from_split(&mut self, pageblock: u32, order: u8) -> (u32, u8) {
        let orders = self.pageblock_lists.group_orders(pageblock);
        let old_summary = order_summary(orders);
        let found_order = match self.has_bug(Bug::LargestBlockSplitFirst) {
            true => largest_order_plus_one(old_summary) as u8 - 1,
            false => (old_summary >> order << order).trailing_zeros() as u8,
        };
        let (offset, orders) = if found_order < self.group_order() {
            let group = (orders >> found_order & 0x0101_0101).trailing_zeros() as usize / 8;
            let (first, _) = self.groups_of_pageblock(pageblock);
            let old = (orders >> (8 * group)) as u8;
            let (offset, new) = self.groups[first + group].allocate_block(old, order, found_order);
            let new = if self.has_bug(Bug::RemainderOrdersForgotten) { new & old } else { new };
            let at = (pageblock << self.geometry.pageblock_order)
                + ((group as u32) << self.group_order())
                + offset;
            (at, orders ^ u32::from(old ^ new) << (8 * group))
        } else {
            let free_groups = orders >> GROUP_ORDER & 0x0101_0101;
            let group_pairs = free_groups & free_groups >> 8 & 0x0001_0001;
            let single_groups = (free_groups ^ free_groups >> 8) & 0x0001_0001;
            let group = match found_order {
                GROUP_ORDER => free_groups & (single_groups | single_groups << 8),
                _ => group_pairs,
            };
            self.allocate_from_groups(pageblock, group.trailing_zeros() as usize / 8, orders, order)
        };
        self.pageblock_lists.set_group_orders(pageblock, orders);
        self.relist_pageblock(pageblock, old_summary, order_summary(orders));
        (offset, found_order)
    }

    /// Allocates from a completely free group, or from two.
    #[inline]
    fn allocate_from_groups(&mut self, pageblock: u32, group: usize, orders: u32, order: u8) -> (u32, u32) {
        let (group_order, (first, _)) = (self.group_order(), self.groups_of_pageblock(pageblock));
        self.groups[first + group].mark_allocated(0, order);
        let remaining_orders = ((1u32 << group_order) - (1 << order.min(group_order))) << (8 * group);
        let mut orders = orders & !(0xff << (8 * group)) | remaining_orders;
        if order > group_order {
            self.groups[first + group + 1].mark_inside_block();
            orders &= !(0xff << (8 * (group + 1)));
        }
        ((pageblock << self.geometry.pageblock_order) + ((group as u32) << group_order), orders)
    }

    /// Frees the block that begins at a frame. Returns its order.
    #[inline]
    pub fn free_block(&mut self, frame: Frame) -> Result<u8, Error> {
        if self.free_single(frame) { Ok(0) } else { self.free_slow(frame) }
    }

    /// Frees any block.
    #[inline(never)]
    fn free_slow(&mut self, frame: Frame) -> Result<u8, Error> {
        let order = self.allocated_order(frame)?;
        let offset = frame - self.geometry.first_frame;
        let merged_order = match order < self.geometry.pageblock_order {
            true => self.free_in_split(offset, order),
            false => self.free_whole(offset >> self.geometry.pageblock_order, order),
        };
        self.free_frame_count += 1 << order;
        self.free_block_counts[usize::from(order)..usize::from(merged_order)]
            .iter_mut()
            .for_each(|blocks| *blocks -= 1);
        self.free_block_counts[usize::from(merged_order)] += 1;
        Ok(order)
    }

    /// The order of the allocated block that begins at a frame.
    #[inline]
    pub fn allocated_order(&self, frame: Frame) -> Result<u8, Error> {
        if !self.geometry.contains(frame) {
            return Err(Error::OutsideZone(frame));
        }
        self.allocated_order_at(frame - self.geometry.first_frame).ok_or(Error::NotAllocated(frame))
    }

    #[inline]
    fn allocated_order_at(&self, offset: u32) -> Option<u8> {
        let pageblock_order = self.geometry.pageblock_order;
        let state = self.pageblock_lists.state(offset >> pageblock_order);
        if !self.is_split(state) {
            return offset.is_multiple_of(1 << pageblock_order).then(|| Some(state.allocated_block()?.0))?;
        }
        let (group, offset_in_group) = self.group_of_frame(offset);
        let order = match self.groups[group].allocated_order_at(offset_in_group) {
            None if self.has_bug(Bug::InnerFrameFreed) && !self.groups[group].is_free(offset_in_group) => 0,
            order => order?,
        };
        // Within a pageblock, a block of a whole group may continue in the next group.
        let spans_two_groups = order == GROUP_ORDER
            && group.is_multiple_of(2)
            && self.groups.get(group + 1).is_some_and(FrameBits::is_continuation);
        Some(order + u8::from(spans_two_groups))
    }

    /// Frees within a split pageblock: the order that the block has when it is merged.
    #[inline]
    fn free_in_split(&mut self, offset: u32, order: u8) -> u8 {
        let pageblock_order = self.geometry.pageblock_order;
        let pageblock = offset >> pageblock_order;
        let (group, offset_in_group) = self.group_of_frame(offset);
        let group_in_pageblock = group - self.groups_of_pageblock(pageblock).0;
        let mut orders = self.pageblock_lists.group_orders(pageblock);
        let old_summary = order_summary(orders);
        let mut merged_order = GROUP_ORDER;
        if order > GROUP_ORDER {
            self.groups[group..group + 2].fill(FrameBits::new(GROUP_ORDER));
            orders |= 0x8080 << (8 * group_in_pageblock);
        } else {
            let old = (orders >> (8 * group_in_pageblock)) as u8;
            let (size, new) =
                self.groups[group].free_block(old, offset_in_group, order, pageblock_order.min(GROUP_ORDER));
            merged_order = size;
            orders ^= u32::from(old ^ new) << (8 * group_in_pageblock);
        }
        let is_group_free = |group: usize| orders >> (8 * group) & 0x80 != 0;
        if merged_order == GROUP_ORDER
            && pageblock_order > GROUP_ORDER
            && is_group_free(group_in_pageblock ^ 1)
            && !self.has_bug(Bug::GroupsNeverMerged)
        {
            merged_order += 1;
            if pageblock_order > GROUP_ORDER + 1
                && is_group_free(group_in_pageblock ^ 2)
                && is_group_free(group_in_pageblock ^ 3)
            {
                merged_order += 1;
            }
        }
        if merged_order < pageblock_order {
            self.pageblock_lists.set_group_orders(pageblock, orders);
            self.relist_pageblock(pageblock, old_summary, order_summary(orders));
            return merged_order;
        }
        if old_summary != 0 {
            self.pageblock_lists.remove_pageblock(pageblock);
        }
        self.free_whole(pageblock, pageblock_order)
    }

    /// Frees whole pageblocks, merged with their buddies, all of one owner: the order they have then.
    #[inline]
    fn free_whole(&mut self, pageblock: u32, order: u8) -> u8 {
        let pageblock_order = self.geometry.pageblock_order;
        let (first, pageblock_count) =
            (self.geometry.first_frame.number() >> pageblock_order, self.pageblock_lists.pageblock_count());
        let owner = self.pageblock_lists.owner(pageblock);
        let (mut merged_pageblock, mut merged_order) = (pageblock, order);
        self.pageblock_lists.set_state(pageblock, FrameTag::INSIDE_BLOCK);
        while merged_order < self.geometry.max_order && !self.has_bug(Bug::PageblocksNeverMerged) {
            let pageblocks = 1 << (merged_order - pageblock_order);
            let buddy = ((first + merged_pageblock) ^ pageblocks).wrapping_sub(first);
            if buddy >= pageblock_count
                || self.pageblock_lists.state(buddy) != FrameTag::from_free_order(merged_order)
            {
                break;
            }
            self.pageblock_lists.remove_pageblock(buddy);
            self.pageblock_lists.set_state(buddy, FrameTag::INSIDE_BLOCK);
            if !self.has_bug(Bug::MergedBlockKeepsOwners) {
                self.pageblock_lists.set_owner(buddy..buddy + pageblocks, owner);
            }
            merged_pageblock = merged_pageblock.min(buddy);
            merged_order += 1;
        }
        self.list_pageblock(owner, merged_order, merged_pageblock, false);
        merged_order
    }

    /// Finds a block of another owner: its pageblock, and the order that this is listed at.
    fn find_fallback(&mut self, alloc_list: u8, order: u8) -> Option<(u32, u8, Fallback)> {
        let pageblock_order = self.geometry.pageblock_order;
        let first_fallback = |compact: &CompactBuddy, size: u8| {
            let fallbacks = FALLBACKS[usize::from(alloc_list)].iter();
            fallbacks
                .copied()
                .find_map(|from| Some((from, compact.pageblock_lists.first_pageblock(from, size)?)))
        };
        let fallback_block = |block: u32, order: u8, from: u8, owns: bool| {
            let frame = self.geometry.first_frame + (block << pageblock_order);
            (
                block,
                order,
                Fallback { frame, order, alloc_list, fallback_list: from, changes_ownership: owns },
            )
        };
        for size in (order..=self.geometry.max_order).rev() {
            // Movable blocks do little harm in other pageblocks: for a small one, no pageblock is claimed.
            if size < pageblock_order / 2 && alloc_list == AllocationType::Movable as u8 {
                break;
            }
            let Some((from, block)) = first_fallback(self, size) else { continue };
            let half_frames = (1u32 << pageblock_order) / 2 + u32::from(self.has_bug(Bug::HalfNotClaimed));
            if size < pageblock_order
                && self.free_frames_in(block) < half_frames
                && !self.has_bug(Bug::AlwaysClaims)
            {
                continue;
            }
            let found = fallback_block(block, size, from, true);
            self.pageblock_lists.remove_pageblock(block);
            let pageblocks = 1 << size.saturating_sub(pageblock_order);
            self.pageblock_lists.set_owner(block..block + pageblocks, alloc_list);
            self.list_pageblock(alloc_list, size, block, false);
            return Some(found);
        }
        (order..=self.geometry.max_order).find_map(|size| {
            let (from, block) = first_fallback(self, size)?;
            Some(fallback_block(block, size, from, false))
        })
    }

    /// Free frames of a split pageblock.
    fn free_frames_in(&self, pageblock: u32) -> u32 {
        let (first, count) = self.groups_of_pageblock(pageblock);
        self.groups[first..first + count].iter().map(FrameBits::free_frames).sum()
    }

    /// First frame of the allocated block that contains a frame. A load therefore need not store its
    /// allocations.
    #[inline]
    pub fn allocated_block_containing(&self, frame: Frame) -> Option<Frame> {
        let at = self.geometry.contains(frame).then(|| frame - self.geometry.first_frame)?;
        let pageblock_order = self.geometry.pageblock_order;
        let (pageblock, state) = (at >> pageblock_order, self.pageblock_lists.state(at >> pageblock_order));
        if self.is_split(state) {
            let (group, offset_in_group) = self.group_of_frame(at);
            let group_start = frame - offset_in_group;
            return match self.groups[group].frame_cover(offset_in_group) {
                FrameCover::Free => None,
                FrameCover::BlockStart(head) => Some(group_start + head),
                FrameCover::BeforeGroup => Some(group_start - (1 << GROUP_ORDER)),
            };
        }
        // A block of whole pageblocks begins at one of its aligned ones.
        let first = self.geometry.first_frame.number() >> pageblock_order;
        (0..=self.geometry.max_order - pageblock_order).find_map(|order_above_pageblock| {
            let head = ((first + pageblock) & !((1 << order_above_pageblock) - 1)).checked_sub(first)?;
            let state = self.pageblock_lists.state(head);
            let covers_pageblock =
                state.order().is_some_and(|order| order >= pageblock_order + order_above_pageblock);
            let is_allocated_head = covers_pageblock && state.allocated_block().is_some();
            is_allocated_head.then_some(self.geometry.first_frame + (head << pageblock_order))
        })
    }

    /// Makes an allocated block several allocated ones, each of `order`.
    pub fn split_block(&mut self, frame: Frame, order: u8) -> Result<(), Error> {
        let size = self.allocated_order(frame)?;
        if order > size {
            return Err(Error::OrderTooLarge { order, max: size });
        }
        let (pageblock_order, at) = (self.geometry.pageblock_order, frame - self.geometry.first_frame);
        let alloc_type = match self.pageblock_lists.state(at >> pageblock_order).allocated_block() {
            Some((_, kind)) if size >= pageblock_order => kind,
            _ => AllocationType::Movable,
        };
        if size >= pageblock_order {
            // A split pageblock without a free frame; larger parts say so below.
            let pageblocks = at >> pageblock_order..(at >> pageblock_order) + (1 << (size - pageblock_order));
            pageblocks.for_each(|block| {
                self.pageblock_lists.set_state(
                    block,
                    if order < pageblock_order { FULL_PAGEBLOCK } else { FrameTag::INSIDE_BLOCK },
                )
            });
            if order < pageblock_order {
                let pageblocks =
                    at >> pageblock_order..(at >> pageblock_order) + (1 << (size - pageblock_order));
                pageblocks.for_each(|block| self.pageblock_lists.set_group_orders(block, 0));
            }
        } else {
            self.clear_block(at, size);
        }
        for part in (at..at + (1 << size)).step_by(1 << order) {
            if order >= pageblock_order {
                self.pageblock_lists
                    .set_state(part >> pageblock_order, FrameTag::from_allocated(order, alloc_type));
                continue;
            }
            let (group, offset_in_group) = self.group_of_frame(part);
            self.groups[group].mark_allocated(offset_in_group, order);
            if order > GROUP_ORDER {
                self.groups[group + 1].mark_inside_block();
            }
        }
        Ok(())
    }

    /// Removes the record of an allocated block of a split pageblock.
    fn clear_block(&mut self, offset: u32, order: u8) {
        let (group, offset_in_group) = self.group_of_frame(offset);
        match order {
            0..=GROUP_ORDER => self.groups[group].clear_allocated(offset_in_group, order),
            _ => self.groups[group..group + 2].fill(FrameBits::new(GROUP_ORDER)),
        }
    }

    /// Prefetches the state of a block that will be freed or looked up soon.
    #[inline]
    pub fn prefetch_block(&self, frame: Frame) {
        let offset = frame.wrapping_distance(self.geometry.first_frame);
        let pageblock = offset >> self.geometry.pageblock_order;
        let (group, _) = self.group_of_frame(offset);
        // Its words may be in two cache lines: the words of the next group follow them.
        prefetch::prefetch_line(&self.groups, group);
        prefetch::prefetch_line(&self.groups, group + 1);
        self.pageblock_lists.prefetch_pageblock(pageblock);
    }

    /// Prefetches, one step later, the neighbors of the pageblock on its list.
    #[inline]
    pub fn prefetch_neighbors(&self, frame: Frame) {
        let pageblock = frame.wrapping_distance(self.geometry.first_frame) >> self.geometry.pageblock_order;
        if pageblock < self.pageblock_lists.pageblock_count()
            && self.pageblock_lists.state(pageblock).free_order().is_some()
        {
            self.pageblock_lists.prefetch_neighbors(pageblock);
        }
    }
}

impl CompactBuddy {
    /// Fast path of an allocation: a frame whose buddy is allocated, in the first pageblock of the list.
    /// `None`: the slow path decides.
    #[inline(always)]
    fn allocate_single(&mut self, alloc_type: AllocationType) -> Option<Frame> {
        let (pageblock, _) = self.smallest_listed(alloc_type as u8, 0)?;
        let orders = self.pageblock_lists.group_orders(pageblock);
        let groups_with_singles = orders & 0x0101_0101;
        if groups_with_singles == 0 || self.has_bug(Bug::LargestBlockSplitFirst) {
            return None;
        }
        let group = groups_with_singles.trailing_zeros() / 8;
        let (first, _) = self.groups_of_pageblock(pageblock);
        let (offset, has_more_singles) = self.groups.get_mut(first + group as usize)?.allocate_single()?;
        let orders = orders & !(u32::from(!has_more_singles) << (8 * group));
        self.pageblock_lists.set_group_orders(pageblock, orders);
        if orders == 0 {
            self.pageblock_lists.remove_pageblock(pageblock);
            self.pageblock_lists.set_state(pageblock, FULL_PAGEBLOCK);
        }
        self.free_block_counts[0] -= 1;
        self.free_frame_count -= 1;
        Some(
            self.geometry.first_frame
                + (pageblock << self.geometry.pageblock_order)
                + (group << self.group_order())
                + offset,
        )
    }

    /// Fast path of a free: a single frame whose buddy is an allocated block of order 0. Returns whether it
    /// was so.
    #[inline(always)]
    fn free_single(&mut self, frame: Frame) -> bool {
        let offset = frame.wrapping_distance(self.geometry.first_frame);
        let (group, offset_in_group) = self.group_of_frame(offset);
        // A pageblock that is not split has no bits of frames, and neither has one behind the last.
        if !self.groups.get_mut(group).is_some_and(|group| group.free_single(offset_in_group)) {
            return false;
        }
        let pageblock = offset >> self.geometry.pageblock_order;
        let orders = self.pageblock_lists.group_orders(pageblock);
        self.pageblock_lists
            .set_group_orders(pageblock, orders | 1 << (8 * (group - self.groups_of_pageblock(pageblock).0)));
        if orders == 0 {
            self.list_pageblock(self.pageblock_lists.owner(pageblock), 0, pageblock, false);
        }
        self.free_block_counts[0] += 1;
        self.free_frame_count += 1;
        true
    }
}

/// An injected bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The rest of a split block is not free at its own order.
    RemainderOrdersForgotten,
    /// Groups of 128 frames that are wholly free are never merged.
    GroupsNeverMerged,
    /// Pageblocks that are wholly free are never merged.
    PageblocksNeverMerged,
    /// A pageblock stays on its list when its largest free block is another one.
    PageblockNotRelisted,
    /// A pageblock goes to the end of its list.
    PageblockAddedToTail,
    /// A merged block keeps the owners that its parts had.
    MergedBlockKeepsOwners,
    /// A pageblock of which just half is free is not claimed.
    HalfNotClaimed,
    /// A pageblock is claimed, however little of it is free.
    AlwaysClaims,
    /// The largest block of a pageblock is split, not the smallest that will do.
    LargestBlockSplitFirst,
    /// A frame inside of a large block can be freed.
    InnerFrameFreed,
}

#[cfg(test)]
impl Bug {
    /// All bugs.
    pub const ALL: [Bug; 10] = [
        Bug::RemainderOrdersForgotten,
        Bug::GroupsNeverMerged,
        Bug::PageblocksNeverMerged,
        Bug::PageblockNotRelisted,
        Bug::PageblockAddedToTail,
        Bug::MergedBlockKeepsOwners,
        Bug::HalfNotClaimed,
        Bug::AlwaysClaims,
        Bug::LargestBlockSplitFirst,
        Bug::InnerFrameFreed,
    ];
}
