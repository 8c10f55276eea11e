//! Optional parts of a zone: the highatomic reserve, CMA areas, lists that are not LIFO.
//!
//! Both reserves are pageblocks on separate lists, after those of the policy. They merge with nothing else
//! (`migratetype_is_mergeable`).

use pagelab_model::random::SplitMix64;

use crate::injected_bugs::Bug;
use crate::policies::{FallbackMode, Policy};
use crate::types::{
    AllocationType, Error, Frame, FreeListDiscipline, ZoneFeatures, ZoneGeometry, ZoneOffset, invalid,
};

use super::{AllocFlags, RmqueueMode, TakenBlock, Zone};

/// Lists after those of the policy.
pub(super) const RESERVE_LISTS: u8 = 2;

/// The reserves of a zone.
#[derive(Clone, Debug)]
pub(super) struct Reserves {
    list_discipline: FreeListDiscipline,
    random: SplitMix64,
    /// Bits of a random number that were not used yet, the next one lowest, and how many.
    random_bits: u64,
    random_bit_count: u8,
    /// The list of CMA areas; the next one is that of the highatomic reserve.
    cma_list: u8,
    has_highatomic: bool,
    cma_free_frames: u32,
    /// Frames that are set aside for atomic requests.
    highatomic_frames: u32,
}

impl Reserves {
    pub fn new(
        geometry: ZoneGeometry,
        lists: u8,
        features: &ZoneFeatures,
    ) -> Result<Option<Box<Reserves>>, Error> {
        for area in &features.cma_areas {
            let frames = format!("{:#x}..{:#x}", area.start, area.end);
            if area.is_empty()
                || !area.start.is_aligned(geometry.pageblock_order)
                || !area.end.is_aligned(geometry.pageblock_order)
            {
                return invalid(format!("a CMA area that does not consist of whole pageblocks: {frames}"));
            }
            if !geometry.contains(area.start) || !geometry.contains(area.end - 1) {
                return invalid(format!("a CMA area outside its zone: {frames}"));
            }
        }
        if *features == ZoneFeatures::default() {
            return Ok(None);
        }
        let seed = if let FreeListDiscipline::Shuffled(seed) = features.list_discipline { seed } else { 0 };
        Ok(Some(Box::new(Reserves {
            list_discipline: features.list_discipline,
            random: SplitMix64::new(seed),
            random_bits: 0,
            random_bit_count: 0,
            cma_list: lists,
            has_highatomic: features.has_highatomic,
            cma_free_frames: 0,
            highatomic_frames: 0,
        })))
    }

    /// A random bit, the lowest of a random number first (`shuffle_pick_tail`).
    fn random_bit(&mut self) -> bool {
        if self.random_bit_count == 0 {
            (self.random_bits, self.random_bit_count) = (self.random.next_u64(), 64);
        }
        let bit = self.random_bits & 1;
        self.random_bits >>= 1;
        self.random_bit_count -= 1;
        bit == 1
    }
}

impl<P: Policy> Zone<P> {
    /// Puts all memory on its lists, in the largest blocks.
    pub(super) fn fill_free_lists(&mut self, features: &ZoneFeatures) {
        let (geometry, lists) = (self.geometry, self.policy.list_count());
        for area in &features.cma_areas {
            let pageblocks =
                geometry.pageblock_of(area.start) as usize..geometry.pageblock_of(area.end - 1) as usize + 1;
            self.set_owner(pageblocks, lists);
        }
        let mut max_order_blocks = Vec::new();
        let mut offset = ZoneOffset::default();
        while offset < geometry.end_offset() {
            let mut order = geometry.largest_order_at(offset);
            let pageblock = offset.pageblock_index(geometry.pageblock_order);
            let owner = self.pageblock_owners[pageblock];
            let owners_of_block = |order: u8| {
                &self.pageblock_owners[pageblock..pageblock + (1 << (order - geometry.pageblock_order))]
            };
            while order > geometry.pageblock_order
                && owners_of_block(order).iter().any(|&other| other != owner)
            {
                order -= 1;
            }
            if order == geometry.max_order
                && matches!(features.list_discipline, FreeListDiscipline::Shuffled(_))
            {
                max_order_blocks.push((owner, offset));
            } else {
                // Above a boundary the farthest first, so that there is room for it to move.
                let is_above_boundary =
                    owner == 1 && self.policy.fallback_mode() == FallbackMode::ResizeRegion;
                self.add_to_free_list(owner, order, offset, !is_above_boundary);
            }
            self.free_frame_count += 1 << order;
            self.count_cma(owner, 1 << order);
            offset += 1 << order;
        }
        if let Some(reserves) = &mut self.reserves {
            reserves.random.shuffle(&mut max_order_blocks);
        }
        for (owner, at) in max_order_blocks {
            self.add_to_free_list(owner, geometry.max_order, at, true);
        }
    }

    /// Whether it has reserves besides its lists.
    #[inline]
    pub(crate) fn has_reserves(&self) -> bool {
        self.reserves.is_some()
    }

    #[inline]
    pub(crate) fn is_reserve_list(&self, list: u8) -> bool {
        list >= self.policy.list_count()
    }

    /// All lists: those of the policy, and of reserves.
    pub(crate) fn list_count(&self) -> u8 {
        self.list_count
    }

    /// The pcp list of a block of a free list: blocks of reserves are on the movable list
    /// (`free_unref_page`).
    #[inline]
    pub(crate) fn pcp_list(&self, list: u8) -> u8 {
        if self.is_reserve_list(list) { self.policy.allocation_list(AllocationType::Movable) } else { list }
    }

    /// The list that a kept block goes back to. Simplified: a pageblock that became a reserve, or ceased to
    /// be one, while a processor kept the block counts as it is now; Linux up to 6.9 looks when it is freed.
    #[inline]
    pub(crate) fn list_after_pcp(&self, frame: Frame, list: u8) -> u8 {
        let owner = self.pageblock_owners[self.geometry.pageblock_of(frame) as usize];
        let follows_owner =
            self.policy.fallback_mode().is_strict() && !self.has_bug(Bug::PcpListIgnoresOwnerChange);
        if follows_owner || self.is_reserve_list(owner) { owner } else { list }
    }

    /// Frames that are set aside for requests that cannot wait.
    pub fn highatomic_frames(&self) -> u32 {
        self.reserves.as_ref().map_or(0, |reserves| reserves.highatomic_frames)
    }

    /// Free frames of the CMA areas, which only movable requests may use.
    pub fn cma_free_frames(&self) -> u32 {
        self.reserves.as_ref().map_or(0, |reserves| reserves.cma_free_frames)
    }

    pub(super) fn count_cma(&mut self, list: u8, frames: i64) {
        if let Some(reserves) = &mut self.reserves
            && reserves.cma_list == list
        {
            reserves.cma_free_frames = (i64::from(reserves.cma_free_frames) + frames) as u32;
        }
    }

    /// Whether a block of a pageblock or more may be merged with its buddy. Where free blocks lie on the list
    /// of their pageblock, the buddy's pageblocks change hands.
    pub(super) fn merge_owners(&mut self, offset: ZoneOffset, buddy: ZoneOffset, size: u8) -> bool {
        let pageblock_order = self.geometry.pageblock_order;
        let fallback_mode = self.policy.fallback_mode();
        if !fallback_mode.is_strict() && self.reserves.is_none() {
            return true;
        }
        let buddy_pageblock = buddy.pageblock_index(pageblock_order);
        let (owner, other) = (
            self.pageblock_owners[offset.pageblock_index(pageblock_order)],
            self.pageblock_owners[buddy_pageblock],
        );
        if owner == other {
            return true;
        }
        let has_fixed_regions = fallback_mode == FallbackMode::ResizeRegion;
        if has_fixed_regions || self.is_reserve_list(owner) || self.is_reserve_list(other) {
            return self.has_bug(Bug::ReservesMerged);
        }
        if fallback_mode.is_strict() && !self.has_bug(Bug::MergedBuddyKeepsOwner) {
            self.set_owner(buddy_pageblock..buddy_pageblock + (1 << (size - pageblock_order)), owner);
        }
        true
    }

    /// Whether an allocated block covers pageblocks of several owners with strict lists. Only a block that
    /// was allocated at a given frame or in the initial state can do so.
    pub(super) fn has_several_owners(&self, frame: Frame, order: u8) -> bool {
        if order <= self.geometry.pageblock_order {
            return false;
        }
        let pageblock = self.geometry.pageblock_of(frame) as usize;
        let owners =
            &self.pageblock_owners[pageblock..pageblock + (1 << (order - self.geometry.pageblock_order))];
        let is_owner_strict =
            self.policy.fallback_mode().is_strict() || owners.iter().any(|&list| self.is_reserve_list(list));
        is_owner_strict && owners.iter().any(|&list| list != owners[0])
    }

    /// Frees a block one pageblock after the other, each to its owner's list (`split_large_buddy`).
    pub(super) fn free_by_pageblock(&mut self, frame: Frame, order: u8) {
        let pageblock_order = self.geometry.pageblock_order;
        for part in Frame::blocks(frame..frame + (1 << order), pageblock_order) {
            let owner = self.pageblock_owners[self.geometry.pageblock_of(part) as usize];
            self.free_and_merge(part, pageblock_order, owner);
        }
    }

    /// Whether a freed block is added at the tail of its list.
    pub(super) fn is_added_to_tail(&mut self, frame: Frame, order: u8) -> bool {
        let is_largest = order == self.geometry.max_order;
        match self.reserves.as_deref_mut() {
            Some(Reserves { list_discipline: FreeListDiscipline::Fifo, .. }) => true,
            Some(reserves @ Reserves { list_discipline: FreeListDiscipline::Shuffled(_), .. })
                if is_largest =>
            {
                reserves.random_bit()
            }
            _ => self.is_merge_likely(frame, order),
        }
    }

    /// Takes the block for a request off its list: that of a reserve which it may use, its own one, or as the
    /// policy says (`rmqueue_buddy`, `__rmqueue`).
    pub(super) fn take_block_with_reserves(
        &mut self,
        alloc_list: u8,
        order: u8,
        alloc_type: AllocationType,
        alloc_flags: &mut AllocFlags,
    ) -> Option<TakenBlock> {
        let (cma, is_mostly_cma) = match &self.reserves {
            Some(reserves) => (reserves.cma_list, reserves.cma_free_frames > self.free_frame_count / 2),
            None => return None,
        };
        let taken_block =
            |list: u8, (at, order)| TakenBlock { offset: at, order, remainder_list: list, fallback: None };
        if alloc_flags.is_atomic
            && order > 0
            && let Some(found) = self.pop_smallest(cma + 1, order)
        {
            return Some(taken_block(cma + 1, found));
        }
        let can_use_cma = alloc_type == AllocationType::Movable;
        let is_cma_first = is_mostly_cma && !self.has_bug(Bug::CmaUsedLast);
        if can_use_cma
            && is_cma_first
            && let Some(found) = self.pop_smallest(cma, order)
        {
            self.count_cma(cma, -(1 << order));
            return Some(taken_block(cma, found));
        }
        if alloc_flags.rmqueue_mode == RmqueueMode::Normal
            && let Some(found) = self.pop_smallest(alloc_list, order)
        {
            return Some(taken_block(alloc_list, found));
        }
        if can_use_cma
            && alloc_flags.rmqueue_mode != RmqueueMode::Steal
            && let Some(found) = self.pop_smallest(cma, order)
        {
            alloc_flags.rmqueue_mode = RmqueueMode::Cma;
            self.count_cma(cma, -(1 << order));
            return Some(taken_block(cma, found));
        }
        match alloc_flags.rmqueue_mode {
            RmqueueMode::Steal => self.continue_stealing(alloc_list, order, alloc_flags),
            _ => self.take_by_fallback_mode(alloc_list, order, alloc_flags),
        }
    }

    /// Reserves the pageblock of a block that an atomic request has just received, or all its pageblocks, as
    /// since 6.10 (`reserve_highatomic_pageblock`).
    pub(crate) fn reserve_highatomic(&mut self, offset: ZoneOffset, order: u8) {
        let (pageblock_order, lists) = (self.geometry.pageblock_order, self.policy.list_count());
        let pageblock = offset.pageblock_index(pageblock_order);
        let pageblocks = 1usize << order.saturating_sub(pageblock_order);
        let frames = (pageblocks as u32) << pageblock_order;
        let max_frames = self.geometry.frames / 100 + (1 << pageblock_order);
        let is_bounded = !self.has_bug(Bug::HighatomicUnbounded);
        let Some(reserves) = &mut self.reserves else { return };
        if !reserves.has_highatomic
            || (reserves.highatomic_frames >= max_frames && is_bounded)
            || self.pageblock_owners[pageblock..pageblock + pageblocks].iter().any(|&owner| owner >= lists)
        {
            return;
        }
        reserves.highatomic_frames += frames;
        let list = reserves.cma_list + 1;
        self.set_owner(pageblock..pageblock + pageblocks, list);
        if order < pageblock_order {
            self.move_pageblock_blocks(pageblock, list);
        }
    }

    /// Returns a pageblock of the highatomic reserve to an allocation type: `true` if there was one. The last
    /// one is returned only if forced (`unreserve_highatomic_pageblock`). Simplified: a free pageblock is
    /// merged at once; the kernel merges it when it is next freed.
    pub fn unreserve_highatomic(&mut self, alloc_type: AllocationType, is_forced: bool) -> bool {
        let pageblock_order = self.geometry.pageblock_order;
        let Some(reserves) = &self.reserves else { return false };
        let (list, reserved_frames) = (reserves.cma_list + 1, reserves.highatomic_frames);
        if reserved_frames == 0 || (reserved_frames <= 1 << pageblock_order && !is_forced) {
            return false;
        }
        let lists = &mut self.free_lists;
        let first_block = |order: u8| Some((lists.first_block(list, order)?, order));
        let Some((at, order)) = (0..=self.geometry.max_order).find_map(first_block) else { return false };
        let pageblock = at.pageblock(pageblock_order);
        let new_owner = match self.policy.fallback_mode() {
            FallbackMode::ResizeRegion => u8::from(pageblock >= self.boundary),
            _ => self.policy.allocation_list(alloc_type),
        };
        let pageblocks = 1u32 << order.saturating_sub(pageblock_order);
        if order < pageblock_order {
            self.move_pageblock_blocks(pageblock as usize, new_owner);
            self.set_owner(pageblock as usize..pageblock as usize + 1, new_owner);
        } else {
            (pageblock..pageblock + pageblocks)
                .for_each(|pageblock| self.move_free_pageblock(pageblock, new_owner));
        }
        debug_assert!(self.reserves.is_some(), "a highatomic block is returned without a reserve");
        if let Some(reserves) = &mut self.reserves {
            reserves.highatomic_frames -= pageblocks << pageblock_order;
        }
        true
    }
}
