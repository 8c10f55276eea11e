//! What a zone may have beside its lists: the highatomic reserve, CMA areas, lists that are not LIFO.
//!
//! Both reserves are pageblocks on lists of their own, behind those of the policy. They merge with nothing
//! else (`migratetype_is_mergeable`).

use pagelab_model::seed::SplitMix64;

use crate::planted::Bug;
use crate::policy::{Policy, Short};
use crate::words::{Ends, Extras, Frame, Kind, Shape, Wrong};

use super::{Found, Last, Manner, Zone};

/// Lists behind those of the policy.
pub(super) const LISTS: u8 = 2;

/// The reserves of a zone.
#[derive(Clone, Debug)]
pub(super) struct Reserves {
    ends: Ends,
    random: SplitMix64,
    /// Bits that are left of the last draw.
    bits: (u64, u8),
    /// The list of CMA areas; the next one is that of the highatomic reserve.
    cma: u8,
    has_highatomic: bool,
    cma_free: u32,
    /// Frames that are set aside for atomic requests.
    highatomic: u32,
}

impl Reserves {
    pub fn new(shape: Shape, lists: u8, extras: &Extras) -> Result<Option<Box<Reserves>>, Wrong> {
        let wrong = |what: String| Err(Wrong::Shape(what));
        let block = 1 << shape.block_order;
        for area in &extras.cma {
            if area.is_empty() || !area.start.is_multiple_of(block) || !area.end.is_multiple_of(block) {
                return wrong(format!("a CMA area that is not made of whole pageblocks: {area:#x?}"));
            }
            if !shape.has(area.start) || !shape.has(area.end - 1) {
                return wrong(format!("a CMA area that does not lie in its zone: {area:#x?}"));
            }
        }
        if *extras == Extras::default() {
            return Ok(None);
        }
        let seed = if let Ends::Shuffled(seed) = extras.ends { seed } else { 0 };
        Ok(Some(Box::new(Reserves {
            ends: extras.ends,
            random: SplitMix64::new(seed),
            bits: (0, 0),
            cma: lists,
            has_highatomic: extras.has_highatomic,
            cma_free: 0,
            highatomic: 0,
        })))
    }

    /// A random bit, the lowest of a draw first (`shuffle_pick_tail`).
    fn bit(&mut self) -> bool {
        if self.bits.1 == 0 {
            self.bits = (self.random.draw(), 64);
        }
        let bit = self.bits.0 & 1 == 1;
        self.bits = (self.bits.0 >> 1, self.bits.1 - 1);
        bit
    }
}

impl<P: Policy> Zone<P> {
    /// Puts all memory on its lists, in the largest blocks.
    pub(super) fn fill(&mut self, extras: &Extras) {
        let (shape, lists) = (self.shape, self.policy.lists());
        for frame in extras.cma.iter().cloned().flatten().step_by(1 << shape.block_order) {
            let block = ((frame - shape.first) >> shape.block_order) as usize;
            self.own(block..block + 1, lists);
        }
        let mut largest = Vec::new();
        let mut at = 0;
        while at < shape.frames {
            let mut order = shape.largest_order(at);
            let block = (at >> shape.block_order) as usize;
            let owner = self.owners[block];
            let blocks = |order: u8| &self.owners[block..block + (1 << (order - shape.block_order))];
            while order > shape.block_order && blocks(order).iter().any(|&other| other != owner) {
                order -= 1;
            }
            if order == shape.max_order && matches!(extras.ends, Ends::Shuffled(_)) {
                largest.push((owner, at));
            } else {
                // Above a border the farthest first, so that there is room for it to move.
                let is_above = owner == 1 && self.policy.short() == Short::Border;
                self.add(owner, order, at, !is_above);
            }
            self.free += 1 << order;
            self.count_cma(owner, 1 << order);
            at += 1 << order;
        }
        if let Some(reserves) = &mut self.extras {
            for last in (1..largest.len()).rev() {
                largest.swap(last, reserves.random.below(last as u64 + 1) as usize);
            }
        }
        for (owner, at) in largest {
            self.add(owner, shape.max_order, at, true);
        }
    }

    /// Whether it has anything beside its lists.
    #[inline]
    pub(crate) fn has_extras(&self) -> bool {
        self.extras.is_some()
    }

    /// Whether a list is that of a reserve.
    #[inline]
    pub(crate) fn is_reserve(&self, list: u8) -> bool {
        list >= self.policy.lists()
    }

    /// All lists: those of the policy, and of reserves.
    pub(crate) fn all_lists(&self) -> u8 {
        self.all_lists
    }

    /// The list that a processor keeps a block of a list in: reserves are kept with what is movable
    /// (`free_unref_page`).
    #[inline]
    pub(crate) fn shelf(&self, list: u8) -> u8 {
        if self.is_reserve(list) { self.policy.wanted(Kind::Movable) } else { list }
    }

    /// The list that a kept block goes back to. Simplified: a pageblock that became a reserve, or ceased to
    /// be one, while a processor kept the block counts as it is now; Linux up to 6.9 looks when it is freed.
    #[inline]
    pub(crate) fn off_shelf(&self, frame: Frame, list: u8) -> u8 {
        let owner = self.owners[((frame - self.shape.first) >> self.shape.block_order) as usize];
        let now = self.policy.short().is_strict() && !self.has(Bug::ShelfIsForGood);
        if now || self.is_reserve(owner) { owner } else { list }
    }

    /// Frames that are set aside for requests that cannot wait.
    pub fn highatomic_frames(&self) -> u32 {
        self.extras.as_ref().map_or(0, |reserves| reserves.highatomic)
    }

    /// Free frames of the CMA areas, which only movable requests may use.
    pub fn cma_free_frames(&self) -> u32 {
        self.extras.as_ref().map_or(0, |reserves| reserves.cma_free)
    }

    pub(super) fn count_cma(&mut self, list: u8, frames: i64) {
        if let Some(reserves) = &mut self.extras
            && reserves.cma == list
        {
            reserves.cma_free = (i64::from(reserves.cma_free) + frames) as u32;
        }
    }

    /// Whether a block of a pageblock or more may be merged with its buddy. Where free blocks lie on the list
    /// of their pageblock, the buddy's pageblocks change hands.
    pub(super) fn may_merge(&mut self, at: u32, buddy: u32, size: u8) -> bool {
        let block_order = self.shape.block_order;
        let short = self.policy.short();
        if !short.is_strict() && self.extras.is_none() {
            return true;
        }
        let block = (buddy >> block_order) as usize;
        let (owner, other) = (self.owners[(at >> block_order) as usize], self.owners[block]);
        if owner == other {
            return true;
        }
        let is_fixed = short == Short::Border;
        if is_fixed || self.is_reserve(owner) || self.is_reserve(other) {
            return self.has(Bug::ReservesMerge);
        }
        if short.is_strict() && !self.has(Bug::BuddyKeepsItsOwner) {
            self.own(block..block + (1 << (size - block_order)), owner);
        }
        true
    }

    /// Whether an allocated block lies in pageblocks of several owners whose lists are strict: who took it by
    /// its place, or began with it, may have got such a one.
    pub(super) fn is_mixed(&self, frame: Frame, order: u8) -> bool {
        if order <= self.shape.block_order {
            return false;
        }
        let block = ((frame - self.shape.first) >> self.shape.block_order) as usize;
        let owners = &self.owners[block..block + (1 << (order - self.shape.block_order))];
        let is_apart = self.policy.short().is_strict() || owners.iter().any(|&list| self.is_reserve(list));
        is_apart && owners.iter().any(|&list| list != owners[0])
    }

    /// Frees a block one pageblock after the other, each to its owner's list (`split_large_buddy`).
    pub(super) fn merge_by_pageblock(&mut self, frame: Frame, order: u8) {
        let block_order = self.shape.block_order;
        for part in (frame..frame + (1 << order)).step_by(1 << block_order) {
            let owner = self.owners[((part - self.shape.first) >> block_order) as usize];
            self.merge(part, block_order, owner);
        }
    }

    /// Whether a freed block goes to the end of its list.
    pub(super) fn goes_last(&mut self, frame: Frame, order: u8) -> bool {
        let is_largest = order == self.shape.max_order;
        match self.extras.as_deref_mut() {
            Some(Reserves { ends: Ends::Fifo, .. }) => true,
            Some(reserves @ Reserves { ends: Ends::Shuffled(_), .. }) if is_largest => reserves.bit(),
            _ => self.merges_soon(frame, order),
        }
    }

    /// Takes the block for a request off its list: that of a reserve which it may use, its own one, or as the
    /// policy says (`rmqueue_buddy`, `__rmqueue`).
    pub(super) fn find_with_reserves(
        &mut self,
        wanted: u8,
        order: u8,
        kind: Kind,
        manner: &mut Manner,
    ) -> Option<Found> {
        let (cma, is_cma_rich) = match &self.extras {
            Some(reserves) => (reserves.cma, reserves.cma_free > self.free / 2),
            None => return None,
        };
        let block = |list: u8, (at, order)| Found { at, order, rest: list, stolen: None };
        if manner.is_atomic
            && order > 0
            && let Some(found) = self.pop_smallest(cma + 1, order)
        {
            return Some(block(cma + 1, found));
        }
        let may_cma = kind == Kind::Movable;
        let is_first = is_cma_rich && !self.has(Bug::CmaLast);
        if may_cma
            && is_first
            && let Some(found) = self.pop_smallest(cma, order)
        {
            self.count_cma(cma, -(1 << order));
            return Some(block(cma, found));
        }
        if manner.last == Last::Own
            && let Some(found) = self.pop_smallest(wanted, order)
        {
            return Some(block(wanted, found));
        }
        if may_cma
            && manner.last != Last::Cut
            && let Some(found) = self.pop_smallest(cma, order)
        {
            manner.last = Last::Cma;
            self.count_cma(cma, -(1 << order));
            return Some(block(cma, found));
        }
        match manner.last {
            Last::Cut => self.go_on_cutting(wanted, order, manner),
            _ => self.find_elsewhere(wanted, order, manner),
        }
    }

    /// Sets the pageblock of a block aside that an atomic request just got
    /// (`reserve_highatomic_pageblock`). Of a block above the order of pageblocks all of them, as since 6.10.
    pub(crate) fn reserve(&mut self, at: u32, order: u8) {
        let (block_order, lists) = (self.shape.block_order, self.policy.lists());
        let block = (at >> block_order) as usize;
        let blocks = 1usize << order.saturating_sub(block_order);
        let frames = (blocks as u32) << block_order;
        let most = self.shape.frames / 100 + (1 << block_order);
        let is_full = !self.has(Bug::ReserveUnbounded);
        let Some(reserves) = &mut self.extras else { return };
        if !reserves.has_highatomic
            || (reserves.highatomic >= most && is_full)
            || self.owners[block..block + blocks].iter().any(|&owner| owner >= lists)
        {
            return;
        }
        reserves.highatomic += frames;
        let list = reserves.cma + 1;
        self.own(block..block + blocks, list);
        if order < block_order {
            self.relist_pageblock(block, list);
        }
    }

    /// Gives a pageblock of the highatomic reserve back to a kind: `true` if there was one. All but one
    /// pageblock, unless it is forced to give the last one (`unreserve_highatomic_pageblock`). Simplified: a
    /// pageblock that is wholly free merges at once, in the kernel when it is next freed.
    pub fn unreserve(&mut self, kind: Kind, is_forced: bool) -> bool {
        let block_order = self.shape.block_order;
        let Some(reserves) = &self.extras else { return false };
        let (list, held) = (reserves.cma + 1, reserves.highatomic);
        if held == 0 || (held <= 1 << block_order && !is_forced) {
            return false;
        }
        let lists = &mut self.lists;
        let first = |order: u8| Some((lists.first(list, order)?, order));
        let Some((at, order)) = (0..=self.shape.max_order).find_map(first) else { return false };
        let block = at >> block_order;
        let wanted = match self.policy.short() {
            Short::Border => u8::from(block >= self.border),
            _ => self.policy.wanted(kind),
        };
        let blocks = 1u32 << order.saturating_sub(block_order);
        if order < block_order {
            self.relist_pageblock(block as usize, wanted);
            self.own(block as usize..block as usize + 1, wanted);
        } else {
            (block..block + blocks).for_each(|block| self.move_pageblock(block, wanted));
        }
        if let Some(reserves) = &mut self.extras {
            reserves.highatomic -= blocks << block_order;
        }
        true
    }
}
