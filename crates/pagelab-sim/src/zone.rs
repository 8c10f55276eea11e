//! The buddy allocator of one zone.
//!
//! Splitting, merging and the order of the lists are those of mm/page_alloc.c of Linux 6.1 to 6.8: `expand`,
//! `__free_one_page` with `buddy_merge_likely`, `__rmqueue_fallback`, `steal_suitable_fallback`. What later
//! kernels do when a list is empty is in `claim.rs` and `border.rs`, reserves and the order of lists that are
//! not LIFO in `extras.rs`.

mod border;
mod claim;
mod extras;
mod range;
pub mod spot;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::lists::{LISTED_MAX, Lists, NEAR_BUDDIES, State};
use crate::planted::{Bug, Planted};
use crate::policy::{Policy, Short, Take};
use crate::words::{Frame, Kind, Shape, Stolen, Wrong};

pub use crate::words::{Ends, Extras};
use extras::Reserves;
pub mod begin;

/// A block that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its first frame.
    pub frame: Frame,
    /// What was taken from another list for it.
    pub stolen: Option<Stolen>,
}

/// How an allocation is made, beside its order and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Whether kinds may be mixed in a pageblock; if not, only blocks of whole pageblocks are taken from
    /// other lists (`ALLOC_NOFRAGMENT`).
    pub may_mix: bool,
    /// Whether the highatomic reserve serves it, and grows by it: it cannot wait, and is not of order 0.
    pub is_atomic: bool,
    /// What served the last allocation of a batch (`enum rmqueue_mode` of Linux 6.15).
    pub(crate) last: Last,
}

impl Manner {
    /// Kinds may be mixed, and no reserve is touched.
    pub const USUAL: Manner = Manner { may_mix: true, is_atomic: false, last: Last::Own };
}

/// What served the last allocation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// The own list, or a pageblock that was claimed for it.
    Own,
    /// The CMA areas.
    Cma,
    /// A piece of another list's block: the own list is empty, and no pageblock can be claimed.
    Cut,
}

/// A block that was just taken off its list.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: u32,
    order: u8,
    /// Where what is left of it goes.
    rest: u8,
    stolen: Option<Stolen>,
}

/// A power of two above the most lists that a zone has: an index is cut to it, and needs no check.
const LISTS_MAX: usize = 16;
/// The same of orders.
const ORDERS: usize = 32;

/// One zone.
#[derive(Clone, Debug)]
pub struct Zone<P> {
    shape: Shape,
    policy: P,
    lists: Lists,
    /// The list that each pageblock belongs to; the lists know it too, for each frame.
    owners: Vec<u8>,
    /// Of each list, the orders at which there may be a block; a bit too many is found out when it is used.
    filled: [u32; LISTS_MAX],
    /// How many lists there are, with those of reserves.
    all_lists: u8,
    /// Free blocks of each order.
    blocks: [u32; ORDERS],
    free: u32,
    /// The first pageblock above the border, where the policy has one.
    border: u32,
    /// How often kinds were about to be mixed in a pageblock; it wraps.
    mixings: u32,
    extras: Option<Box<Reserves>>,
    /// Blocks below this order lie in one group with their buddy and with that of both; none, if more than
    /// that decides where they go.
    near: u8,
    /// A bug that a test planted.
    pub(crate) bug: Planted<Bug>,
}

impl<P: Policy> Zone<P> {
    /// A zone whose memory is free, in the largest blocks, the lowest first; of at most
    /// [`LISTED_MAX`] frames.
    pub fn new(shape: Shape, policy: P) -> Result<Zone<P>, Wrong> {
        Zone::with(shape, policy, &Extras::default())
    }

    /// The same with reserves, or with lists in another order.
    pub fn with(shape: Shape, policy: P, extras: &Extras) -> Result<Zone<P>, Wrong> {
        shape.check()?;
        if shape.frames > LISTED_MAX {
            let what = format!("a zone of {} frames: lists can tell {LISTED_MAX} apart", shape.frames);
            return Err(Wrong::Shape(what));
        }
        let lists = policy.lists();
        if lists == 0 || lists > 8 {
            return Err(Wrong::Shape(format!("a policy of {lists} lists: 1 to 8 are possible")));
        }
        let reserves = Reserves::new(shape, lists, extras)?;
        let blocks = shape.frames >> shape.block_order;
        let owners: Vec<u8> = (0..blocks).map(|block| policy.owner_at_start(block, blocks)).collect();
        let all_lists = lists + reserves.as_ref().map_or(0, |_| extras::LISTS);
        let mut zone = Zone {
            lists: Lists::new(shape.frames),
            border: owners.partition_point(|&owner| owner == 0) as u32,
            owners,
            filled: [0; LISTS_MAX],
            all_lists,
            blocks: [0; ORDERS],
            free: 0,
            mixings: 0,
            near: if reserves.is_some() { 0 } else { (NEAR_BUDDIES - 1).min(shape.block_order - 1) },
            extras: reserves,
            shape,
            policy,
            bug: Planted::NONE,
        };
        for block in 0..zone.owners.len() {
            zone.own(block..block + 1, zone.owners[block]);
        }
        zone.fill(extras);
        Ok(zone)
    }

    /// Whether a test planted this bug; nowhere else is there one.
    #[inline]
    fn has(&self, bug: Bug) -> bool {
        self.bug.has(&bug)
    }

    /// How it is cut.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Free frames.
    pub fn free_frames(&self) -> u32 {
        self.free
    }

    /// Free blocks of each order, from 0 up (`/proc/buddyinfo`).
    pub fn free_blocks(&self) -> &[u32] {
        self.blocks.get(..=usize::from(self.shape.max_order)).unwrap_or(&self.blocks)
    }

    /// Whether there is a free block of an order or a larger one.
    #[inline]
    pub fn has_block(&self, order: u8) -> bool {
        (order..=self.shape.max_order).any(|order| self.blocks[usize::from(order) % ORDERS] > 0)
    }

    /// The list that each pageblock belongs to.
    pub fn owners(&self) -> &[u8] {
        &self.owners
    }

    /// The free lists, over frames numbered from the zone's first one.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Free frames in blocks of a whole pageblock or more (`NR_FREE_PAGES_BLOCKS` of Linux 6.15, which
    /// `vm.defrag_mode` holds against the watermarks).
    pub fn free_in_pageblocks(&self) -> u32 {
        let orders =
            (self.shape.block_order..).zip(self.free_blocks().iter().skip(self.shape.block_order.into()));
        orders.map(|(order, &blocks)| blocks << order).sum()
    }

    /// How often a request looked for memory in a pageblock of another kind, of which it could not have all:
    /// Linux raises the watermarks then (`boost_watermark`). The number wraps.
    pub fn mixings(&self) -> u32 {
        self.mixings
    }

    /// Allocates a block. `None`: there is no free block of the order, or none that the policy gives.
    #[inline]
    pub fn take(&mut self, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        self.take_as(order, kind, &mut { Manner::USUAL })
    }

    /// The same, in a manner.
    #[inline]
    pub fn take_as(&mut self, order: u8, kind: Kind, manner: &mut Manner) -> Result<Option<Taken>, Wrong> {
        if order > self.shape.max_order {
            return Err(Wrong::Order { order, max: self.shape.max_order });
        }
        if manner.last == Last::Own
            && let Some(frame) = self.take_own(order, kind)
        {
            return Ok(Some(Taken { frame, stolen: None }));
        }
        Ok(self.take_elsewhere(self.policy.wanted(kind), order, kind, manner))
    }

    /// By far the most requests: the own list has a block, and there is no reserve to be asked or filled.
    /// `None`: it is for the others to say.
    #[inline(always)]
    pub(crate) fn take_own(&mut self, order: u8, kind: Kind) -> Option<Frame> {
        if self.extras.is_some() || order > self.shape.max_order {
            return None;
        }
        let wanted = self.policy.wanted(kind);
        let (at, found) = self.pop_smallest(wanted, order)?;
        self.book(at, (order, found), kind, wanted);
        Some(self.shape.first + at)
    }

    /// Allocates what no own list gives.
    #[cold]
    #[inline(never)]
    fn take_elsewhere(&mut self, wanted: u8, order: u8, kind: Kind, manner: &mut Manner) -> Option<Taken> {
        let found = self.find(wanted, order, kind, manner)?;
        self.book(found.at, (order, found.order), kind, found.rest);
        if manner.is_atomic && order > 0 {
            self.reserve(found.at, order);
        }
        Some(Taken { frame: self.shape.first + found.at, stolen: found.stolen })
    }

    /// Books a block of an order as allocated that is cut out of a larger one. The upper half of each halving
    /// goes in front of its list.
    #[inline(always)]
    fn book(&mut self, at: u32, (order, found): (u8, u8), kind: Kind, rest: u8) {
        if found > order {
            self.halve(at, (order, found), rest);
        }
        let kind = if self.has(Bug::KindForgotten) { Kind::Movable } else { kind };
        self.lists.set(at, State::used(order, kind));
        self.free -= 1 << order;
    }

    /// Puts all of a block on a list but the first part of it that is of an order (`expand`).
    #[inline(never)]
    fn halve(&mut self, at: u32, (order, found): (u8, u8), rest: u8) {
        for half in (order..found).rev() {
            let list = match self.has(Bug::SplitToItsOwner) {
                true => self.owners[(at >> self.shape.block_order) as usize],
                false => rest,
            };
            self.add(list, half, at + (1 << half), false);
        }
    }

    /// Takes the block for a request off another list than its own one, as the policy and the reserves say.
    fn find(&mut self, wanted: u8, order: u8, kind: Kind, manner: &mut Manner) -> Option<Found> {
        if self.extras.is_some() {
            return self.find_with_reserves(wanted, order, kind, manner);
        }
        if manner.last == Last::Cut {
            return self.go_on_cutting(wanted, order, manner);
        }
        self.find_elsewhere(wanted, order, manner)
    }

    fn find_elsewhere(&mut self, wanted: u8, order: u8, manner: &mut Manner) -> Option<Found> {
        match self.policy.short() {
            Short::Moves => {
                if let Some(found) = self.piece(wanted, order, manner) {
                    return Some(found);
                }
                let stolen = self.steal(wanted, order, manner)?;
                let (at, found) = self.pop_smallest(wanted, order)?;
                Some(Found { at, order: found, rest: wanted, stolen: Some(stolen) })
            }
            Short::Cuts => self.claim_or_cut(wanted, order, manner),
            Short::Claims => self.claim_then_cut(wanted, order, manner),
            Short::Border => self.over_border(wanted, order),
        }
    }

    /// Frees the block that begins at a frame. Returns its order.
    #[inline(always)]
    pub fn free(&mut self, frame: Frame) -> Result<u8, Wrong> {
        let (order, list) = self.used(frame)?;
        if order >= self.near && self.is_mixed(frame, order) {
            self.merge_by_pageblock(frame, order);
        } else {
            self.merge(frame, order, list);
        }
        Ok(order)
    }

    /// Says that the block at a frame will be freed soon: what that reads is brought near.
    #[inline]
    pub fn expect_free(&self, frame: Frame) {
        let at = frame.wrapping_sub(self.shape.first);
        self.lists.prefetch(at);
    }

    /// The same a moment later, when its state is near: the buddy that it may be merged with, and that of
    /// both together, if they do not lie in its line anyway. Nothing, where not [`Lists::may_be_large`].
    #[inline]
    pub fn expect_buddy(&self, frame: Frame) {
        let at = frame.wrapping_sub(self.shape.first);
        if let Some(order) = self.lists.get(at).and_then(State::order)
            && order >= NEAR_BUDDIES
        {
            let (size, first) = (1 << order, self.shape.first);
            self.lists.prefetch((frame ^ size).wrapping_sub(first));
            self.lists.prefetch((frame & !size ^ size << 1).wrapping_sub(first));
        }
    }

    /// Order of the allocated block that begins at a frame, and the list that it goes to.
    #[inline]
    pub(crate) fn used(&self, frame: Frame) -> Result<(u8, u8), Wrong> {
        let at = frame.wrapping_sub(self.shape.first);
        let used = self.lists.get(at).and_then(State::used_order);
        let (order, kind) = used.ok_or_else(|| self.not_allocated(frame))?;
        let owner = self.lists.owner(at);
        if self.is_reserve(owner) {
            return Ok((order, owner));
        }
        let list = self.policy.home(kind, if self.has(Bug::FreedToItsKind) { kind as u8 } else { owner });
        Ok((order, list))
    }

    #[cold]
    fn not_allocated(&self, frame: Frame) -> Wrong {
        if self.shape.has(frame) { Wrong::NotAllocated(frame) } else { Wrong::Outside(frame) }
    }

    /// Says that a processor keeps an allocated block.
    pub(crate) fn keep(&mut self, frame: Frame, order: u8) {
        self.lists.set(frame - self.shape.first, State::kept(order));
    }

    /// Says that a block which a processor kept is allocated.
    pub(crate) fn unkeep(&mut self, frame: Frame, order: u8, kind: Kind) {
        self.lists.set(frame - self.shape.first, State::used(order, kind));
    }

    /// Puts a block back to a list, merged with its buddies. By far the most are small, and stay alone.
    #[inline(always)]
    pub(crate) fn merge(&mut self, frame: Frame, order: u8, list: u8) {
        if order < self.near && self.lists.add_alone(list, order, frame - self.shape.first) {
            self.count_added(list, order);
            self.free += 1 << order;
        } else {
            self.merge_any(frame, order, list);
        }
    }

    /// The same of any block.
    #[inline(never)]
    fn merge_any(&mut self, frame: Frame, order: u8, list: u8) {
        let first = self.shape.first;
        let (mut from, mut size) = (frame, order);
        let most = self.shape.max_order - u8::from(self.has(Bug::TopOrderUnmerged));
        while size < most
            && let Some(buddy) = self.free_at(from ^ (1 << size), size)
            && (size < self.shape.block_order || self.may_merge(from - first, buddy, size))
        {
            self.remove(buddy, size);
            if !self.has(Bug::BuddyStaysFree) {
                self.lists.set(buddy, State::INSIDE);
            }
            from &= !(1 << size);
            size += 1;
        }
        if size > order {
            self.lists.set(frame - first, State::INSIDE);
        }
        let at_end = if self.extras.is_none() {
            self.merges_soon(from, size)
        } else {
            self.count_cma(list, 1i64 << order);
            self.goes_last(from, size)
        };
        self.add(list, size, from - first, at_end);
        self.free += 1 << order;
    }

    /// Makes an allocated block several allocated ones, each of `order`.
    pub fn split(&mut self, frame: Frame, order: u8) -> Result<(), Wrong> {
        if !self.shape.has(frame) {
            return Err(Wrong::Outside(frame));
        }
        let at = frame - self.shape.first;
        let (whole, kind) = self.lists.state(at).used_order().ok_or(Wrong::NotAllocated(frame))?;
        if order > whole {
            return Err(Wrong::Order { order, max: whole });
        }
        for part in (0..1u32 << whole).step_by(1 << order) {
            self.lists.set(at + part, State::used(order, kind));
        }
        Ok(())
    }

    /// The frame, counted from the zone's first, if a free block of this order begins there.
    #[inline]
    fn free_at(&self, frame: Frame, order: u8) -> Option<u32> {
        let at = frame.wrapping_sub(self.shape.first);
        (self.lists.get(at) == Some(State::free(order))).then_some(at)
    }

    /// Whether the buddy of the block that this one would be half of is free: then this one is likely to be
    /// merged soon, and goes to the end of its list, where the policy looks ahead (`buddy_merge_likely`).
    #[inline]
    fn merges_soon(&self, frame: Frame, order: u8) -> bool {
        if !self.policy.looks_ahead() || order + 1 >= self.shape.max_order || self.has(Bug::NoLookAhead) {
            return false;
        }
        let larger = frame & !(1 << order);
        self.free_at(larger ^ (1 << (order + 1)), order + 1).is_some()
    }

    #[inline(always)]
    fn add(&mut self, list: u8, order: u8, at: u32, at_end: bool) {
        self.lists.add(list, order, at, at_end);
        self.count_added(list, order);
    }

    #[inline(always)]
    fn count_added(&mut self, list: u8, order: u8) {
        self.filled[usize::from(list) % LISTS_MAX] |= 1 << order;
        self.blocks[usize::from(order) % ORDERS] += 1;
    }

    #[inline(always)]
    fn remove(&mut self, at: u32, order: u8) {
        self.lists.remove(at, order);
        self.blocks[usize::from(order) % ORDERS] -= 1;
    }

    /// Takes the first block of the smallest order that is large enough from one list
    /// (`__rmqueue_smallest`).
    #[inline(always)]
    fn pop_smallest(&mut self, list: u8, order: u8) -> Option<(u32, u8)> {
        if let Some(at) = self.lists.pop(list, order) {
            self.blocks[usize::from(order) % ORDERS] -= 1;
            return Some((at, order));
        }
        self.pop_larger(list, order)
    }

    /// The same where it has none of just this order.
    #[inline(never)]
    fn pop_larger(&mut self, list: u8, order: u8) -> Option<(u32, u8)> {
        let filled = &mut self.filled[usize::from(list) % LISTS_MAX];
        loop {
            let found = (*filled >> order << order).trailing_zeros() as u8;
            if found >= 32 {
                return None;
            }
            match self.lists.pop(list, found) {
                Some(at) => {
                    self.blocks[usize::from(found) % ORDERS] -= 1;
                    return Some((at, found));
                }
                None => *filled &= !(1 << found),
            }
        }
    }

    /// The best of the other lists that has a block of just this order, and the block.
    fn other(&mut self, wanted: u8, order: u8) -> Option<(u8, u32)> {
        let (others, lists) = (self.policy.others(wanted), &mut self.lists);
        others.iter().find_map(|&list| Some((list, lists.first(list, order)?)))
    }

    /// Brings a block onto the list that is short (`__rmqueue_fallback`).
    fn steal(&mut self, wanted: u8, order: u8, manner: &Manner) -> Option<Stolen> {
        let max = self.shape.max_order;
        let largest =
            (self.least(order, manner)..=max).rev().find_map(|size| Some((size, self.other(wanted, size)?)));
        let (mut size, (mut from, mut at)) = largest?;
        let mut take = self.policy.take(wanted, size, self.shape.block_order);
        if take == Take::Smallest && !self.has(Bug::LargestForMovable) {
            let smallest = (order..=size).find_map(|size| Some((size, self.other(wanted, size)?)));
            (size, (from, at)) = smallest?;
            take = self.policy.take(wanted, size, self.shape.block_order);
        }
        let owns = self.hand_over(wanted, at, size, take);
        Some(Stolen { frame: self.shape.first + at, order: size, wanted, from, owns })
    }

    /// Moves a free block, or all that is free in its pageblock, to another list; whether the pageblock went
    /// along (`steal_suitable_fallback`).
    fn hand_over(&mut self, wanted: u8, at: u32, size: u8, take: Take) -> bool {
        let block_order = self.shape.block_order;
        let block = (at >> block_order) as usize;
        if take == Take::Largest {
            self.relist(at, size, wanted);
            return false;
        }
        if size >= block_order {
            self.own(block..block + (1 << (size - block_order)), wanted);
            self.relist(at, size, wanted);
            return true;
        }
        self.mixes();
        if take != Take::Pageblock {
            self.relist(at, size, wanted);
            return false;
        }
        let (free, movable) = self.relist_pageblock(block, wanted);
        let owns = self.is_enough(block, wanted, free, movable);
        if owns {
            self.own(block..block + 1, wanted);
        }
        owns
    }

    /// Gives pageblocks to a list.
    fn own(&mut self, blocks: Range<usize>, list: u8) {
        let frame = |block: usize| (block as u32) << self.shape.block_order;
        self.lists.own(frame(blocks.start)..frame(blocks.end), list);
        self.owners[blocks].fill(list);
    }

    /// Whether enough of a pageblock is free or of the kind that wants it.
    fn is_enough(&self, block: usize, wanted: u8, free: u32, movable: u32) -> bool {
        let frames = 1u32 << self.shape.block_order;
        let alike = if wanted == Kind::Movable as u8 {
            movable
        } else if self.owners[block] == Kind::Movable as u8 {
            if self.has(Bug::ThirdKindIsAlike) { frames - free } else { frames - free - movable }
        } else {
            0
        };
        free + alike >= frames / 2 + u32::from(self.has(Bug::HalfIsNotEnough))
    }

    /// The least order that may be taken from another list.
    fn least(&self, order: u8, manner: &Manner) -> u8 {
        if manner.may_mix || self.has(Bug::MixesAnyway) { order } else { order.max(self.shape.block_order) }
    }

    /// Moves a free block to the end of a list.
    fn relist(&mut self, at: u32, order: u8, list: u8) {
        self.remove(at, order);
        self.add(list, order, at, !self.has(Bug::MovedToTheFront));
    }

    /// The same with all that is free in a pageblock; frames that were moved, and movable ones that are not
    /// free (`move_freepages_block`).
    fn relist_pageblock(&mut self, block: usize, list: u8) -> (u32, u32) {
        let from = (block as u32) << self.shape.block_order;
        let to = from + (1 << self.shape.block_order);
        let (mut at, mut free, mut movable) = (from, 0, 0);
        while at < to {
            let state = self.lists.state(at);
            if let Some(order) = state.free_order() {
                self.relist(at, order, list);
                free += 1 << order;
                at += 1 << order;
            } else if let Some((order, kind)) = state.used_order() {
                movable += if kind == Kind::Movable { 1u32 << order } else { 0 };
                at += 1 << order;
            } else {
                at += 1;
            }
        }
        (free, movable.min(to - from))
    }
}
