//! The buddy allocator of one zone.
//!
//! Splitting, merging and the order of the lists are those of mm/page_alloc.c of Linux 6.1 to 6.8: `expand`,
//! `__free_one_page` with `buddy_merge_likely`, `__rmqueue_fallback`, `steal_suitable_fallback`. What later
//! kernels do when a list is empty is in `claim.rs` and `region_boundary.rs`, reserves and the order of lists
//! that are not LIFO in `reserves.rs`.

use std::ops::Range;

use crate::free_lists::{FrameTag, FreeLists, GROUP_LOCAL_ORDERS, MAX_LISTED_FRAMES};
use crate::injected_bugs::{Bug, InjectedBug};
use crate::policies::{FallbackMode, Policy, StealExtent};
use crate::types::{AllocationType, Error, Fallback, Frame, ORDER_MAX, ZoneGeometry, ZoneOffset};
use reserves::Reserves;

pub use crate::types::{FreeListDiscipline, ZoneFeatures};

mod claim;
mod region_boundary;
mod reserves;
#[cfg(test)]
mod tests;

pub mod initial_state;

/// A block that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBlock {
    /// Its first frame.
    pub frame: Frame,
    /// Block that was stolen for it.
    pub fallback: Option<Fallback>,
}

/// Options of an allocation besides its order and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocFlags {
    /// Whether kinds may be mixed in a pageblock; if not, only blocks of whole pageblocks are taken from
    /// other lists (`ALLOC_NOFRAGMENT`).
    pub can_fragment: bool,
    /// Whether the highatomic reserve serves it, and grows by it: it cannot wait, and is not of order 0.
    pub is_atomic: bool,
    /// Source of the last allocation of a batch (`enum rmqueue_mode` of Linux 6.15).
    pub(crate) rmqueue_mode: RmqueueMode,
}

impl AllocFlags {
    /// Migratetypes may be mixed, and no reserve is touched.
    pub const DEFAULT: AllocFlags =
        AllocFlags { can_fragment: true, is_atomic: false, rmqueue_mode: RmqueueMode::Normal };
}

/// Source of the last allocation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RmqueueMode {
    /// The own list, or a pageblock that was claimed for it.
    Normal,
    /// The CMA areas.
    Cma,
    /// A piece of another list's block: the own list is empty, and no pageblock can be claimed.
    Steal,
}

/// A block that was just taken off its list.
#[derive(Clone, Copy, Debug)]
struct TakenBlock {
    offset: ZoneOffset,
    order: u8,
    /// List for the rest of the block.
    remainder_list: u8,
    fallback: Option<Fallback>,
}

#[derive(Clone, Copy, Debug)]
struct ZoneBlock {
    /// Its first frame, counted from that of the zone.
    offset: ZoneOffset,
    order: u8,
}

/// A free block on the list of another migratetype.
#[derive(Clone, Copy, Debug)]
struct FallbackBlock {
    list: u8,
    block: ZoneBlock,
}

/// A power of two above the most lists that a zone has: an index is cut to it, and needs no check.
const MAX_LISTS: usize = 16;
/// The same of orders.
const MAX_ORDERS: usize = 32;

const _: () = assert!(MAX_ORDERS > ORDER_MAX as usize && MAX_ORDERS.is_power_of_two());
const _: () = assert!(MAX_LISTS.is_power_of_two() && MAX_LISTS > 8 + reserves::RESERVE_LISTS as usize);

/// One zone.
#[derive(Clone, Debug)]
pub struct Zone<P> {
    geometry: ZoneGeometry,
    policy: P,
    free_lists: FreeLists,
    /// The list that each pageblock belongs to; the lists know it too, for each frame.
    pageblock_owners: Vec<u8>,
    /// Of each list, the orders at which there may be a block; the use of a stale bit clears it.
    nonempty_orders: [u32; MAX_LISTS],
    /// Number of lists, with those of reserves.
    list_count: u8,
    /// Free blocks of each order.
    free_block_counts: [u32; MAX_ORDERS],
    free_frame_count: u32,
    /// The first pageblock above the boundary, where the policy has one.
    boundary: u32,
    /// Number of fallbacks that could mix migratetypes in a pageblock; it wraps.
    fragmentation_events: u32,
    reserves: Option<Box<Reserves>>,
    /// Blocks below this order are in one group with their buddy and with the buddy of both; 0 if their list
    /// depends on more than that.
    fast_merge_order: u8,
    /// Injected bug.
    pub(crate) bug: InjectedBug<Bug>,
}

impl<P: Policy> Zone<P> {
    /// A zone whose memory is free, in the largest blocks, the lowest first; of at most
    /// [`MAX_LISTED_FRAMES`] frames.
    pub fn new(geometry: ZoneGeometry, policy: P) -> Result<Zone<P>, Error> {
        Zone::with_features(geometry, policy, &ZoneFeatures::default())
    }

    /// The same with reserves, or with lists in another order.
    pub fn with_features(
        geometry: ZoneGeometry,
        policy: P,
        features: &ZoneFeatures,
    ) -> Result<Zone<P>, Error> {
        geometry.validate()?;
        if geometry.frames > MAX_LISTED_FRAMES {
            let what =
                format!("a zone of {} frames; lists support at most {MAX_LISTED_FRAMES}", geometry.frames);
            return Err(Error::InvalidConfig(what));
        }
        let policy_lists = policy.list_count();
        if policy_lists == 0 || policy_lists > 8 {
            return Err(Error::InvalidConfig(format!("a policy with {policy_lists} lists; expected 1 to 8")));
        }
        let reserves = Reserves::new(geometry, policy_lists, features)?;
        let pageblocks = geometry.frames >> geometry.pageblock_order;
        let pageblock_owners: Vec<u8> =
            (0..pageblocks).map(|pageblock| policy.initial_owner(pageblock, pageblocks)).collect();
        let list_count = policy_lists + reserves.as_ref().map_or(0, |_| reserves::RESERVE_LISTS);
        let mut zone = Zone {
            free_lists: FreeLists::new(geometry.frames),
            boundary: pageblock_owners.partition_point(|&owner| owner == 0) as u32,
            pageblock_owners,
            nonempty_orders: [0; MAX_LISTS],
            list_count,
            free_block_counts: [0; MAX_ORDERS],
            free_frame_count: 0,
            fragmentation_events: 0,
            fast_merge_order: if reserves.is_some() {
                0
            } else {
                (GROUP_LOCAL_ORDERS - 1).min(geometry.pageblock_order - 1)
            },
            reserves,
            geometry,
            policy,
            bug: InjectedBug::NONE,
        };
        for pageblock in 0..zone.pageblock_owners.len() {
            zone.set_owner(pageblock..pageblock + 1, zone.pageblock_owners[pageblock]);
        }
        zone.fill_free_lists(features);
        Ok(zone)
    }

    /// Whether this bug is injected; only tests inject bugs.
    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        self.bug.is_injected(&bug)
    }

    /// Its geometry.
    pub fn geometry(&self) -> ZoneGeometry {
        self.geometry
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Free frames.
    pub fn free_frames(&self) -> u32 {
        self.free_frame_count
    }

    /// Free blocks of each order, from 0 up (`/proc/buddyinfo`).
    pub fn free_blocks(&self) -> &[u32] {
        &self.free_block_counts[..=usize::from(self.geometry.max_order)]
    }

    /// Whether there is a free block of an order or a larger one.
    #[inline]
    pub fn has_block(&self, order: u8) -> bool {
        (order..=self.geometry.max_order)
            .any(|order| self.free_block_counts[usize::from(order) % MAX_ORDERS] > 0)
    }

    /// The list that each pageblock belongs to.
    pub fn pageblock_owners(&self) -> &[u8] {
        &self.pageblock_owners
    }

    /// The free lists, over frames numbered from the zone's first one.
    pub fn free_lists(&self) -> &FreeLists {
        &self.free_lists
    }

    /// Free frames in blocks of a whole pageblock or more (`NR_FREE_PAGES_BLOCKS` of Linux 6.15, which
    /// `vm.defrag_mode` holds against the watermarks).
    pub fn free_frames_in_pageblocks(&self) -> u32 {
        let orders = (self.geometry.pageblock_order..)
            .zip(self.free_blocks().iter().skip(self.geometry.pageblock_order.into()));
        orders.map(|(order, &blocks)| blocks << order).sum()
    }

    /// Number of requests that searched for memory in a pageblock of another migratetype, of which they could
    /// not have all: Linux raises the watermarks then (`boost_watermark`). The number wraps.
    pub fn fragmentation_events(&self) -> u32 {
        self.fragmentation_events
    }

    /// Allocates a block. `None`: no block of the order is free, or the policy gives none.
    #[inline]
    pub fn allocate_block(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<Option<AllocatedBlock>, Error> {
        self.allocate_with_flags(order, alloc_type, &mut { AllocFlags::DEFAULT })
    }

    /// The same with flags.
    #[inline]
    pub fn allocate_with_flags(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
        alloc_flags: &mut AllocFlags,
    ) -> Result<Option<AllocatedBlock>, Error> {
        if order > self.geometry.max_order {
            return Err(Error::OrderTooLarge { order, max: self.geometry.max_order });
        }
        if alloc_flags.rmqueue_mode == RmqueueMode::Normal
            && let Some(frame) = self.allocate_fast(order, alloc_type)
        {
            return Ok(Some(AllocatedBlock { frame, fallback: None }));
        }
        Ok(self.allocate_slow(self.policy.allocation_list(alloc_type), order, alloc_type, alloc_flags))
    }

    /// Most requests: the own list has a block, and no reserve must be checked or filled. `None`: it is for
    /// the others to say.
    #[inline(always)]
    pub(crate) fn allocate_fast(&mut self, order: u8, alloc_type: AllocationType) -> Option<Frame> {
        if self.reserves.is_some() || order > self.geometry.max_order {
            return None;
        }
        let alloc_list = self.policy.allocation_list(alloc_type);
        let (offset, found) = self.pop_smallest(alloc_list, order)?;
        self.mark_allocated(offset, order, found, alloc_type, alloc_list);
        Some(self.geometry.frame_at(offset))
    }

    /// Allocates from other lists than the request's own.
    #[cold]
    #[inline(never)]
    fn allocate_slow(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_type: AllocationType,
        alloc_flags: &mut AllocFlags,
    ) -> Option<AllocatedBlock> {
        let taken = self.take_fallback_block(alloc_list, order, alloc_type, alloc_flags)?;
        self.mark_allocated(taken.offset, order, taken.order, alloc_type, taken.remainder_list);
        if alloc_flags.is_atomic && order > 0 {
            self.reserve_highatomic(taken.offset, order);
        }
        Some(AllocatedBlock { frame: self.geometry.frame_at(taken.offset), fallback: taken.fallback })
    }

    /// Records a block that is split off a larger one as allocated. The upper half of each halving goes in
    /// front of its list.
    #[inline(always)]
    fn mark_allocated(
        &mut self,
        offset: ZoneOffset,
        order: u8,
        found_order: u8,
        alloc_type: AllocationType,
        remainder_list: u8,
    ) {
        if found_order > order {
            self.expand(offset, order, found_order, remainder_list);
        }
        let alloc_type =
            if self.has_bug(Bug::AllocationTypeForgotten) { AllocationType::Movable } else { alloc_type };
        self.free_lists.set_state(offset, FrameTag::from_allocated(order, alloc_type));
        self.free_frame_count -= 1 << order;
    }

    /// Adds the rest of a split block to a list: all but its first part of the requested order (`expand`).
    #[inline(never)]
    fn expand(&mut self, offset: ZoneOffset, order: u8, found_order: u8, remainder_list: u8) {
        for half in (order..found_order).rev() {
            let list = match self.has_bug(Bug::RemainderToPageblockOwner) {
                true => self.pageblock_owners[offset.pageblock_index(self.geometry.pageblock_order)],
                false => remainder_list,
            };
            self.add_to_free_list(list, half, offset + (1 << half), false);
        }
    }

    /// Removes the block for a request from a fallback list, according to the policy and the reserves.
    fn take_fallback_block(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_type: AllocationType,
        alloc_flags: &mut AllocFlags,
    ) -> Option<TakenBlock> {
        if self.reserves.is_some() {
            return self.take_block_with_reserves(alloc_list, order, alloc_type, alloc_flags);
        }
        if alloc_flags.rmqueue_mode == RmqueueMode::Steal {
            return self.continue_stealing(alloc_list, order, alloc_flags);
        }
        self.take_by_fallback_mode(alloc_list, order, alloc_flags)
    }

    fn take_by_fallback_mode(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_flags: &mut AllocFlags,
    ) -> Option<TakenBlock> {
        match self.policy.fallback_mode() {
            FallbackMode::MoveFreeBlocks => {
                if let Some(found) = self.steal_requested_order(alloc_list, order, alloc_flags) {
                    return Some(found);
                }
                let fallback = self.steal_fallback(alloc_list, order, alloc_flags)?;
                let (offset, found) = self.pop_smallest(alloc_list, order)?;
                Some(TakenBlock {
                    offset,
                    order: found,
                    remainder_list: alloc_list,
                    fallback: Some(fallback),
                })
            }
            FallbackMode::ClaimLargestOrSteal => self.claim_largest_or_steal(alloc_list, order, alloc_flags),
            FallbackMode::ClaimThenSteal => self.claim_then_steal(alloc_list, order, alloc_flags),
            FallbackMode::ResizeRegion => self.allocate_by_resizing_region(alloc_list, order),
        }
    }

    /// Frees the block that begins at a frame. Returns its order.
    #[inline(always)]
    pub fn free_block(&mut self, frame: Frame) -> Result<u8, Error> {
        let (order, list) = self.allocated_order_and_list(frame)?;
        if order >= self.fast_merge_order && self.has_several_owners(frame, order) {
            self.free_by_pageblock(frame, order);
        } else {
            self.free_and_merge(frame, order, list);
        }
        Ok(order)
    }

    /// Prefetches the data for freeing the block at a frame, which will be freed soon.
    #[inline]
    pub fn prefetch_block(&self, frame: Frame) {
        let offset = self.geometry.wrapping_offset_of(frame);
        self.free_lists.prefetch_frame(offset);
    }

    /// The same a moment later, when its state is in the cache: prefetches its buddy and the buddy of both
    /// together, unless they are in the same cache line. Nothing, where not [`FreeLists::can_cross_group`].
    #[inline]
    pub fn prefetch_buddy(&self, frame: Frame) {
        let offset = self.geometry.wrapping_offset_of(frame);
        if let Some(order) = self.free_lists.try_frame_state(offset).and_then(FrameTag::order)
            && order >= GROUP_LOCAL_ORDERS
        {
            for buddy in [frame.buddy(order), frame.parent_buddy(order)] {
                self.free_lists.prefetch_frame(self.geometry.wrapping_offset_of(buddy));
            }
        }
    }

    /// Order of the allocated block that begins at a frame, and the list that it goes to.
    #[inline]
    pub(crate) fn allocated_order_and_list(&self, frame: Frame) -> Result<(u8, u8), Error> {
        let offset = self.geometry.wrapping_offset_of(frame);
        let used = self.free_lists.try_frame_state(offset).and_then(FrameTag::allocated_block);
        let (order, kind) = used.ok_or_else(|| self.not_allocated_error(frame))?;
        let owner = self.free_lists.pageblock_owner(offset);
        if self.is_reserve_list(owner) {
            return Ok((order, owner));
        }
        let list = self
            .policy
            .free_list(kind, if self.has_bug(Bug::FreedToAllocationType) { kind as u8 } else { owner });
        Ok((order, list))
    }

    #[cold]
    fn not_allocated_error(&self, frame: Frame) -> Error {
        if self.geometry.contains(frame) { Error::NotAllocated(frame) } else { Error::OutsideZone(frame) }
    }

    /// Says that a processor keeps an allocated block.
    pub(crate) fn mark_on_pcp_list(&mut self, frame: Frame, order: u8) {
        self.free_lists.set_state(self.geometry.offset_of(frame), FrameTag::from_pcp_order(order));
    }

    /// Says that a block which a processor kept is allocated.
    pub(crate) fn mark_allocated_from_pcp(&mut self, frame: Frame, order: u8, alloc_type: AllocationType) {
        self.free_lists
            .set_state(self.geometry.offset_of(frame), FrameTag::from_allocated(order, alloc_type));
    }

    /// Puts a block back to a list, merged with its buddies. By far the most are small, and stay alone.
    #[inline(always)]
    pub(crate) fn free_and_merge(&mut self, frame: Frame, order: u8, list: u8) {
        if order < self.fast_merge_order
            && self.free_lists.add_unmerged(list, order, self.geometry.offset_of(frame))
        {
            self.count_listed_block(list, order);
            self.free_frame_count += 1 << order;
        } else {
            self.free_and_merge_slow(frame, order, list);
        }
    }

    /// The same of any block.
    #[inline(never)]
    fn free_and_merge_slow(&mut self, frame: Frame, order: u8, list: u8) {
        let geometry = self.geometry;
        let (mut merged_frame, mut merged_order) = (frame, order);
        let max_merge_order = geometry.max_order - u8::from(self.has_bug(Bug::MaxOrderNeverMerged));
        while merged_order < max_merge_order
            && let Some(buddy) = self.free_block_at(merged_frame.buddy(merged_order), merged_order)
            && (merged_order < self.geometry.pageblock_order
                || self.merge_owners(geometry.offset_of(merged_frame), buddy, merged_order))
        {
            self.del_from_free_list(buddy, merged_order);
            if !self.has_bug(Bug::BuddyStaysFree) {
                self.free_lists.set_state(buddy, FrameTag::INSIDE_BLOCK);
            }
            merged_order += 1;
            merged_frame = merged_frame.align_down(merged_order);
        }
        if merged_order > order {
            self.free_lists.set_state(geometry.offset_of(frame), FrameTag::INSIDE_BLOCK);
        }
        let at_tail = if self.reserves.is_none() {
            self.is_merge_likely(merged_frame, merged_order)
        } else {
            self.count_cma(list, 1i64 << order);
            self.is_added_to_tail(merged_frame, merged_order)
        };
        self.add_to_free_list(list, merged_order, geometry.offset_of(merged_frame), at_tail);
        self.free_frame_count += 1 << order;
    }

    /// Makes an allocated block several allocated ones, each of `order`.
    pub fn split_block(&mut self, frame: Frame, order: u8) -> Result<(), Error> {
        if !self.geometry.contains(frame) {
            return Err(Error::OutsideZone(frame));
        }
        let offset = self.geometry.offset_of(frame);
        let (block_order, kind) =
            self.free_lists.frame_state(offset).allocated_block().ok_or(Error::NotAllocated(frame))?;
        if order > block_order {
            return Err(Error::OrderTooLarge { order, max: block_order });
        }
        for part in (0..1u32 << block_order).step_by(1 << order) {
            self.free_lists.set_state(offset + part, FrameTag::from_allocated(order, kind));
        }
        Ok(())
    }

    /// The frame, counted from the zone's first, if a free block of this order begins there.
    #[inline]
    fn free_block_at(&self, frame: Frame, order: u8) -> Option<ZoneOffset> {
        let offset = self.geometry.wrapping_offset_of(frame);
        (self.free_lists.try_frame_state(offset) == Some(FrameTag::from_free_order(order))).then_some(offset)
    }

    /// Whether the buddy of the block that this one would be half of is free: then this one is likely to be
    /// merged soon, and goes to the end of its list, where the policy looks ahead (`buddy_merge_likely`).
    #[inline]
    fn is_merge_likely(&self, frame: Frame, order: u8) -> bool {
        if !self.policy.has_merge_prediction()
            || order + 1 >= self.geometry.max_order
            || self.has_bug(Bug::NoMergePrediction)
        {
            return false;
        }
        self.free_block_at(frame.parent_buddy(order), order + 1).is_some()
    }

    #[inline(always)]
    fn add_to_free_list(&mut self, list: u8, order: u8, offset: ZoneOffset, at_tail: bool) {
        self.free_lists.add_block(list, order, offset, at_tail);
        self.count_listed_block(list, order);
    }

    #[inline(always)]
    fn count_listed_block(&mut self, list: u8, order: u8) {
        self.nonempty_orders[usize::from(list) % MAX_LISTS] |= 1 << order;
        self.free_block_counts[usize::from(order) % MAX_ORDERS] += 1;
    }

    #[inline(always)]
    fn del_from_free_list(&mut self, offset: ZoneOffset, order: u8) {
        self.free_lists.remove_block(offset, order);
        self.free_block_counts[usize::from(order) % MAX_ORDERS] -= 1;
    }

    /// Takes the first block of the smallest order that is large enough from one list
    /// (`__rmqueue_smallest`).
    #[inline(always)]
    fn pop_smallest(&mut self, list: u8, order: u8) -> Option<(ZoneOffset, u8)> {
        if let Some(at) = self.free_lists.pop_block(list, order) {
            self.free_block_counts[usize::from(order) % MAX_ORDERS] -= 1;
            return Some((at, order));
        }
        self.pop_larger(list, order)
    }

    /// The same where it has none of just this order.
    #[inline(never)]
    fn pop_larger(&mut self, list: u8, order: u8) -> Option<(ZoneOffset, u8)> {
        let nonempty_orders = &mut self.nonempty_orders[usize::from(list) % MAX_LISTS];
        loop {
            let found_order = (*nonempty_orders >> order << order).trailing_zeros() as u8;
            if found_order >= 32 {
                return None;
            }
            match self.free_lists.pop_block(list, found_order) {
                Some(offset) => {
                    self.free_block_counts[usize::from(found_order) % MAX_ORDERS] -= 1;
                    return Some((offset, found_order));
                }
                None => *nonempty_orders &= !(1 << found_order),
            }
        }
    }

    /// The first block of just this order, of the best of the other lists that has one.
    fn find_fallback_block(&mut self, alloc_list: u8, order: u8) -> Option<FallbackBlock> {
        let (fallbacks, lists) = (self.policy.fallbacks(alloc_list), &mut self.free_lists);
        fallbacks.iter().find_map(|&list| {
            let offset = lists.first_block(list, order)?;
            Some(FallbackBlock { list, block: ZoneBlock { offset, order } })
        })
    }

    /// The same at the largest order that has one, down to `min_order`.
    fn find_largest_fallback(&mut self, alloc_list: u8, min_order: u8) -> Option<FallbackBlock> {
        let mut orders = (min_order..=self.geometry.max_order).rev();
        orders.find_map(|order| self.find_fallback_block(alloc_list, order))
    }

    /// The same at the smallest order from `min_order` up.
    fn find_smallest_fallback(&mut self, alloc_list: u8, min_order: u8) -> Option<FallbackBlock> {
        let mut orders = min_order..=self.geometry.max_order;
        orders.find_map(|order| self.find_fallback_block(alloc_list, order))
    }

    /// Fields of the tracepoint for a fallback.
    fn fallback_of(&self, taken: FallbackBlock, alloc_list: u8, changes_ownership: bool) -> Fallback {
        Fallback {
            frame: self.geometry.frame_at(taken.block.offset),
            order: taken.block.order,
            alloc_list,
            fallback_list: taken.list,
            changes_ownership,
        }
    }

    /// Moves a block to the empty list (`__rmqueue_fallback`).
    fn steal_fallback(&mut self, alloc_list: u8, order: u8, alloc_flags: &AllocFlags) -> Option<Fallback> {
        let pageblock_order = self.geometry.pageblock_order;
        let min_order = self.min_fallback_order(order, alloc_flags);
        let mut found = self.find_largest_fallback(alloc_list, min_order)?;
        let mut extent = self.policy.steal_extent(alloc_list, found.block.order, pageblock_order);
        if extent == StealExtent::SmallestBlock && !self.has_bug(Bug::MovableStealsLargest) {
            found = self.find_smallest_fallback(alloc_list, order)?;
            extent = self.policy.steal_extent(alloc_list, found.block.order, pageblock_order);
        }
        let changes_ownership = self.steal_block(alloc_list, found.block, extent);
        Some(self.fallback_of(found, alloc_list, changes_ownership))
    }

    /// Moves a free block, or all that is free in its pageblock, to another list; whether the pageblock went
    /// along (`steal_suitable_fallback`).
    fn steal_block(&mut self, alloc_list: u8, block: ZoneBlock, extent: StealExtent) -> bool {
        let ZoneBlock { offset, order } = block;
        let pageblock_order = self.geometry.pageblock_order;
        let pageblock = offset.pageblock_index(pageblock_order);
        if extent == StealExtent::LargestBlock {
            self.move_to_free_list(offset, order, alloc_list);
            return false;
        }
        if order >= pageblock_order {
            self.set_owner(pageblock..pageblock + (1 << (order - pageblock_order)), alloc_list);
            self.move_to_free_list(offset, order, alloc_list);
            return true;
        }
        self.count_fragmentation_event();
        if extent != StealExtent::Pageblock {
            self.move_to_free_list(offset, order, alloc_list);
            return false;
        }
        let (free, movable) = self.move_pageblock_blocks(pageblock, alloc_list);
        let changes_ownership = self.can_claim_pageblock(pageblock, alloc_list, free, movable);
        if changes_ownership {
            self.set_owner(pageblock..pageblock + 1, alloc_list);
        }
        changes_ownership
    }

    /// Sets the list that owns pageblocks.
    fn set_owner(&mut self, pageblocks: Range<usize>, list: u8) {
        let start =
            |pageblock: usize| ZoneOffset::of_pageblock(pageblock as u32, self.geometry.pageblock_order);
        self.free_lists.set_owner(start(pageblocks.start)..start(pageblocks.end), list);
        self.pageblock_owners[pageblocks].fill(list);
    }

    /// Whether enough of a pageblock is free or of the migratetype that wants it.
    fn can_claim_pageblock(
        &self,
        pageblock: usize,
        alloc_list: u8,
        free_frames: u32,
        movable_frames: u32,
    ) -> bool {
        let frames = 1u32 << self.geometry.pageblock_order;
        let alike_frames = if alloc_list == AllocationType::Movable as u8 {
            movable_frames
        } else if self.pageblock_owners[pageblock] == AllocationType::Movable as u8 {
            if self.has_bug(Bug::MovableCountsAsAlike) {
                frames - free_frames
            } else {
                frames - free_frames - movable_frames
            }
        } else {
            0
        };
        free_frames + alike_frames >= frames / 2 + u32::from(self.has_bug(Bug::HalfNotClaimed))
    }

    /// Smallest order that may be stolen.
    fn min_fallback_order(&self, order: u8, alloc_flags: &AllocFlags) -> u8 {
        if alloc_flags.can_fragment || self.has_bug(Bug::NoFragmentIgnored) {
            order
        } else {
            order.max(self.geometry.pageblock_order)
        }
    }

    /// Moves a free block to the end of a list.
    fn move_to_free_list(&mut self, offset: ZoneOffset, order: u8, list: u8) {
        self.del_from_free_list(offset, order);
        self.add_to_free_list(list, order, offset, !self.has_bug(Bug::StolenToHead));
    }

    /// The same with all that is free in a pageblock; frames that were moved, and movable ones that are not
    /// free (`move_freepages_block`).
    fn move_pageblock_blocks(&mut self, pageblock: usize, list: u8) -> (u32, u32) {
        let from = ZoneOffset::of_pageblock(pageblock as u32, self.geometry.pageblock_order);
        let to = from + (1 << self.geometry.pageblock_order);
        let (mut offset, mut free, mut movable) = (from, 0, 0);
        while offset < to {
            let state = self.free_lists.frame_state(offset);
            if let Some(order) = state.free_order() {
                self.move_to_free_list(offset, order, list);
                free += 1 << order;
                offset += 1 << order;
            } else if let Some((order, kind)) = state.allocated_block() {
                movable += if kind == AllocationType::Movable { 1u32 << order } else { 0 };
                offset += 1 << order;
            } else {
                offset += 1;
            }
        }
        (free, movable.min(to - from))
    }
}

impl<P: Policy> Zone<P> {
    /// Allocates the block of an order at a given frame; `false` if not all of it is free. A larger free
    /// block that contains it is split, and its rest goes to the list of freed blocks of this type
    /// (`break_down_buddy_pages`); smaller free blocks are joined.
    pub fn allocate_at(
        &mut self,
        frame: Frame,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<bool, Error> {
        if order > self.geometry.max_order {
            return Err(Error::OrderTooLarge { order, max: self.geometry.max_order });
        }
        let size = 1u32 << order;
        if !frame.is_aligned(order)
            || !self.geometry.contains(frame)
            || !self.geometry.contains(frame + (size - 1))
        {
            return Err(Error::OutsideZone(frame));
        }
        let offset = self.geometry.offset_of(frame);
        let enclosing_block = (order..=self.geometry.max_order).find_map(|order| {
            let offset = self.free_block_at(frame.align_down(order), order)?;
            Some(ZoneBlock { offset, order })
        });
        match enclosing_block {
            Some(enclosing) => self.split_out(enclosing, ZoneBlock { offset, order }, alloc_type),
            None if self.is_range_free(offset, size) => {
                let mut offset_in_range = offset;
                while offset_in_range < offset + size {
                    let order = self.free_lists.frame_state(offset_in_range).free_order();
                    let Some(order) = order else {
                        return Err(Error::Corrupted(format!("{offset_in_range:#x} is in a free range")));
                    };
                    self.del_from_free_list(offset_in_range, order);
                    self.free_lists.set_state(offset_in_range, FrameTag::INSIDE_BLOCK);
                    // Parts of different pageblocks may be on different lists.
                    self.count_cma(
                        self.pageblock_owners[offset_in_range.pageblock_index(self.geometry.pageblock_order)],
                        -(1 << order),
                    );
                    offset_in_range += 1 << order;
                }
            }
            None => return Ok(false),
        }
        self.free_lists.set_state(offset, FrameTag::from_allocated(order, alloc_type));
        self.free_frame_count -= size;
        Ok(true)
    }

    fn is_range_free(&self, offset: ZoneOffset, size: u32) -> bool {
        let mut next = offset;
        while next < offset + size {
            match self.free_lists.frame_state(next).free_order() {
                Some(order) => next += 1 << order,
                None => return false,
            }
        }
        true
    }

    /// Removes a free block from its list, and adds all of it but `target` again.
    fn split_out(&mut self, enclosing: ZoneBlock, target: ZoneBlock, alloc_type: AllocationType) {
        let owner = self.pageblock_owners[enclosing.offset.pageblock_index(self.geometry.pageblock_order)];
        let list = if self.is_reserve_list(owner) { owner } else { self.policy.free_list(alloc_type, owner) };
        self.del_from_free_list(enclosing.offset, enclosing.order);
        self.free_lists.set_state(enclosing.offset, FrameTag::INSIDE_BLOCK);
        self.count_cma(owner, -(1 << target.order));
        let mut offset = enclosing.offset;
        for half in (target.order..enclosing.order).rev() {
            let upper = offset + (1 << half);
            let (inner, outer) = if target.offset >= upper { (upper, offset) } else { (offset, upper) };
            self.add_to_free_list(list, half, outer, false);
            offset = inner;
        }
    }
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameContent {
    /// A free block of this order begins there.
    Free(u8),
    /// A block of this order begins there that a processor keeps.
    OnPcpList(u8),
    /// An allocated block of this order begins there.
    Allocated(u8),
    /// The inside of a block.
    InsideBlock,
}

impl<P: Policy> Zone<P> {
    /// Content of a frame of the zone.
    pub fn frame_content(&self, frame: Frame) -> FrameContent {
        let state = self.free_lists.frame_state(self.geometry.offset_of(frame));
        match (state.free_order(), state.pcp_order(), state.allocated_block()) {
            (Some(order), _, _) => FrameContent::Free(order),
            (_, Some(order), _) => FrameContent::OnPcpList(order),
            (_, _, Some((order, _))) => FrameContent::Allocated(order),
            _ => FrameContent::InsideBlock,
        }
    }

    /// Whether the pageblock of a frame belongs to an allocation type; where there are no owners, each does.
    pub fn is_pageblock_of_type(&self, frame: Frame, alloc_type: AllocationType) -> bool {
        let pageblock = self.geometry.pageblock_of(frame);
        self.pageblock_owners[pageblock as usize] == self.policy.allocation_list(alloc_type)
    }
}
