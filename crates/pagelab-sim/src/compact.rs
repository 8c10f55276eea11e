//! A buddy allocator for terabytes: less than a quarter of a byte a frame.
//!
//! Two levels. Pageblocks that are free or allocated as a whole are blocks of [`Chains`], as frames are in
//! [`crate::zone`]. A pageblock that is split has three bits for each pair of its frames (`group.rs`), and
//! stands on the list of its owner at the order of its largest free block, so that only what changes that
//! order touches a list.
//!
//! Which block is taken: of the wanted owner's lists the first pageblock at the lowest order that is large
//! enough; in it the smallest free block that is large enough, and of those the lowest. Pageblocks go to the
//! front of their lists. When the owner has nothing, a pageblock of another one is claimed if it is free as a
//! whole or half of it is; else one block is taken from it and it stays where it is (mm/page_alloc.c of Linux
//! 6.15: `__rmqueue_claim`, `__rmqueue_steal`). What the allocated half is used for is not asked: kinds of
//! allocated blocks are not kept.

mod alone;
mod group;
#[cfg(test)]
mod naive;
mod planted;
#[cfg(test)]
mod twins;
mod validate;

use std::ops::Range;

use crate::chains::Chains;
use crate::lists::State;
use crate::planted::Planted;
use crate::prefetch;
use crate::words::{Frame, Kind, Shape, Stolen, Wrong};
use crate::zone::Taken;
use group::{Covering, GROUP, Group};
use planted::Bug;

/// Pageblocks of more than four groups are not for this engine.
const BLOCK_ORDER_MAX: u8 = 9;

/// The state of a split pageblock in which nothing is free.
const FULL: State = State::used(0, Kind::Unmovable);

/// By owner, the others whose pageblocks are looked at, the best first (`fallbacks`).
const OTHERS: [[u8; 2]; 3] = [[2, 1], [2, 0], [0, 1]];

/// The allocator.
#[derive(Clone, Debug)]
pub struct Compact {
    shape: Shape,
    /// Over pageblocks, numbered from 0.
    lists: Chains,
    groups: Vec<Group>,
    /// Of each owner, the orders at which there may be a pageblock; a bit too many is found out when used.
    filled: [u32; 3],
    /// Free blocks of each order.
    blocks: Vec<u32>,
    free: u32,
    /// A bug that a test planted.
    bug: Planted<Bug>,
}

/// The orders of a pageblock's free blocks, as bits, from those of its groups.
#[inline]
fn summary(orders: u32) -> u32 {
    let low = orders | orders >> 16;
    let low = (low | low >> 8) & 0x7f;
    let whole = orders >> GROUP & 0x0101_0101;
    let lone = (whole ^ whole >> 8) & 0x0001_0001;
    let both = whole & whole >> 8 & 0x0001_0001;
    let four = both & both >> 16;
    low | u32::from(lone != 0) << 7 | ((both ^ both >> 16) & 1) << 8 | four << 9
}

/// The largest order of a summary, plus one; 0: nothing is free.
#[inline]
fn largest(summary: u32) -> u32 {
    u32::BITS - summary.leading_zeros()
}

impl Compact {
    /// Free memory, all of it movable, in the largest blocks, the lowest first. Its pageblocks have 512
    /// frames at most.
    pub fn new(shape: Shape) -> Result<Compact, Wrong> {
        shape.check()?;
        if shape.block_order > BLOCK_ORDER_MAX {
            let what = format!(
                "pageblocks of order {}: the compact engine has them up to order {BLOCK_ORDER_MAX}, the \
                 engines with lists of frames up to any",
                shape.block_order
            );
            return Err(Wrong::Shape(what));
        }
        let pageblocks = shape.frames >> shape.block_order;
        let groups = (pageblocks as usize) << shape.block_order.saturating_sub(GROUP);
        let mut compact = Compact {
            shape,
            lists: Chains::new(pageblocks, Kind::ALL.len() as u8, shape.max_order, Kind::Movable as u8),
            groups: vec![Group::new(shape.block_order); groups],
            filled: [0; 3],
            blocks: vec![0; usize::from(shape.max_order) + 1],
            free: shape.frames,
            bug: Planted::NONE,
        };
        let mut at = 0;
        while at < shape.frames {
            let order = shape.largest_order(at);
            compact.list(Kind::Movable as u8, order, at >> shape.block_order, true);
            compact.blocks[usize::from(order)] += 1;
            at += 1 << order;
        }
        Ok(compact)
    }

    #[inline]
    fn has(&self, bug: Bug) -> bool {
        self.bug.has(&bug)
    }

    /// How it is cut.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Free frames.
    pub fn free_frames(&self) -> u32 {
        self.free
    }

    /// Free blocks of each order, from 0 up (`/proc/buddyinfo`).
    pub fn free_blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The kind that each pageblock belongs to.
    pub fn owners(&self) -> Vec<u8> {
        (0..self.lists.count()).map(|block| self.lists.owner(block)).collect()
    }

    /// Where the books lie in this process's memory.
    pub fn places(&self) -> Vec<Range<usize>> {
        let start = self.groups.as_ptr() as usize;
        vec![start..start + size_of_val(&self.groups[..]), self.lists.place()]
    }

    /// All memory that the books take, in bytes.
    pub fn bytes(&self) -> u64 {
        let small = size_of::<Compact>() + size_of_val(&self.blocks[..]);
        (self.places().iter().map(Range::len).sum::<usize>() + small) as u64
    }

    /// The order of a group, or of a pageblock that is smaller.
    #[inline]
    fn top(&self) -> u8 {
        self.shape.block_order.min(GROUP)
    }

    /// The groups of a pageblock, the first one and how many.
    #[inline]
    fn groups_of(&self, block: u32) -> (usize, usize) {
        let more = self.shape.block_order.saturating_sub(GROUP);
        ((block as usize) << more, 1 << more)
    }

    /// The group of a frame counted from the first one, and the frame's place in it.
    #[inline]
    fn group_of(&self, at: u32) -> (usize, u32) {
        let top = self.top();
        ((at >> top) as usize, at & ((1 << top) - 1))
    }

    #[inline]
    fn is_split(&self, state: State) -> bool {
        state.order().is_some_and(|order| order < self.shape.block_order)
    }

    #[inline]
    fn list(&mut self, owner: u8, order: u8, block: u32, at_end: bool) {
        self.lists.add(owner, order, block, at_end || self.has(Bug::ListedAtTheEnd));
        self.filled[usize::from(owner)] |= 1 << order;
    }

    /// Moves a split pageblock to where it belongs, when the orders of its free blocks were others before.
    #[inline]
    fn relist(&mut self, block: u32, was: u32, is: u32) {
        if largest(was) == largest(is) || self.has(Bug::StaysListed) && was != 0 && is != 0 {
            return;
        }
        if was != 0 {
            self.lists.remove(block);
        }
        match largest(is) {
            0 => self.lists.set(block, FULL),
            order => self.list(self.lists.owner(block), order as u8 - 1, block, false),
        }
    }

    /// Allocates a block. `None`: there is no free block of the order.
    #[inline]
    pub fn take(&mut self, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        if order == 0
            && let Some(frame) = self.take_alone(kind)
        {
            return Ok(Some(Taken { frame, stolen: None }));
        }
        self.take_any(order, kind)
    }

    /// Allocates what is no such frame.
    #[inline(never)]
    fn take_any(&mut self, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        if order > self.shape.max_order {
            return Err(Wrong::Order { order, max: self.shape.max_order });
        }
        let mut stolen = None;
        let mut found = self.smallest(kind as u8, order);
        if found.is_none()
            && let Some((block, size, what)) = self.steal(kind as u8, order)
        {
            (found, stolen) = (Some((block, size)), Some(what));
        }
        let Some((block, size)) = found else { return Ok(None) };
        let (at, size) = match size < self.shape.block_order {
            true => self.take_part(block, order),
            false => (self.take_whole(block, size, order, kind), size),
        };
        self.blocks[usize::from(size)] -= 1;
        self.blocks[usize::from(order)..usize::from(size)].iter_mut().for_each(|blocks| *blocks += 1);
        self.free -= 1 << order;
        Ok(Some(Taken { frame: self.shape.first + at, stolen }))
    }

    /// The pageblock to take from, and the order that it is listed at.
    #[inline]
    fn smallest(&mut self, owner: u8, order: u8) -> Option<(u32, u8)> {
        let filled = &mut self.filled[usize::from(owner)];
        loop {
            let found = (*filled >> order << order).trailing_zeros() as u8;
            if found >= 32 {
                return None;
            }
            match self.lists.first(owner, found) {
                Some(block) => return Some((block, found)),
                None => *filled &= !(1 << found),
            }
        }
    }

    /// Takes from a free block of whole pageblocks: the first frame.
    #[inline]
    fn take_whole(&mut self, block: u32, size: u8, order: u8, kind: Kind) -> u32 {
        let whole = self.shape.block_order;
        let owner = self.lists.owner(block);
        self.lists.remove(block);
        for half in (order.max(whole)..size).rev() {
            self.list(owner, half, block + (1 << (half - whole)), false);
        }
        if order >= whole {
            self.lists.set(block, State::used(order, kind));
            return block << whole;
        }
        let (_, groups) = self.groups_of(block);
        let orders = (0..groups).fold(0, |orders, group| orders | (1 << self.top()) << (8 * group));
        let (at, orders) = self.split_groups(block, 0, orders, order);
        self.lists.set_orders(block, orders);
        self.relist(block, 0, summary(orders));
        at
    }

    /// Takes from a split pageblock: the frame, and the order of the free block that was split.
    #[inline]
    fn take_part(&mut self, block: u32, order: u8) -> (u32, u8) {
        let orders = self.lists.orders(block);
        let was = summary(orders);
        let found = match self.has(Bug::LargestFirst) {
            true => largest(was) as u8 - 1,
            false => (was >> order << order).trailing_zeros() as u8,
        };
        let (at, orders) = if found < self.top() {
            let group = (orders >> found & 0x0101_0101).trailing_zeros() as usize / 8;
            let (first, _) = self.groups_of(block);
            let old = (orders >> (8 * group)) as u8;
            let (at, new) = self.groups[first + group].take(old, order, found);
            let new = if self.has(Bug::HalvesForgotten) { new & old } else { new };
            let at = (block << self.shape.block_order) + ((group as u32) << self.top()) + at;
            (at, orders ^ u32::from(old ^ new) << (8 * group))
        } else {
            let whole = orders >> GROUP & 0x0101_0101;
            let both = whole & whole >> 8 & 0x0001_0001;
            let lone = (whole ^ whole >> 8) & 0x0001_0001;
            let group = match found {
                GROUP => whole & (lone | lone << 8),
                _ => both,
            };
            self.split_groups(block, group.trailing_zeros() as usize / 8, orders, order)
        };
        self.lists.set_orders(block, orders);
        self.relist(block, was, summary(orders));
        (at, found)
    }

    /// Takes from a group that is wholly free, or from two.
    #[inline]
    fn split_groups(&mut self, block: u32, group: usize, orders: u32, order: u8) -> (u32, u32) {
        let (top, (first, _)) = (self.top(), self.groups_of(block));
        self.groups[first + group].mark(0, order);
        let left = ((1u32 << top) - (1 << order.min(top))) << (8 * group);
        let mut orders = orders & !(0xff << (8 * group)) | left;
        if order > top {
            self.groups[first + group + 1].mark_inside();
            orders &= !(0xff << (8 * (group + 1)));
        }
        ((block << self.shape.block_order) + ((group as u32) << top), orders)
    }

    /// Frees the block that begins at a frame. Returns its order.
    #[inline]
    pub fn free(&mut self, frame: Frame) -> Result<u8, Wrong> {
        if self.free_alone(frame) { Ok(0) } else { self.free_any(frame) }
    }

    /// Frees any block.
    #[inline(never)]
    fn free_any(&mut self, frame: Frame) -> Result<u8, Wrong> {
        let order = self.order(frame)?;
        let at = frame - self.shape.first;
        let merged = match order < self.shape.block_order {
            true => self.free_part(at, order),
            false => self.merge_whole(at >> self.shape.block_order, order),
        };
        self.free += 1 << order;
        self.blocks[usize::from(order)..usize::from(merged)].iter_mut().for_each(|blocks| *blocks -= 1);
        self.blocks[usize::from(merged)] += 1;
        Ok(order)
    }

    /// The order of the allocated block that begins at a frame.
    #[inline]
    pub fn order(&self, frame: Frame) -> Result<u8, Wrong> {
        if !self.shape.has(frame) {
            return Err(Wrong::Outside(frame));
        }
        self.order_at(frame - self.shape.first).ok_or(Wrong::NotAllocated(frame))
    }

    #[inline]
    fn order_at(&self, at: u32) -> Option<u8> {
        let whole = self.shape.block_order;
        let state = self.lists.state(at >> whole);
        if !self.is_split(state) {
            return at.is_multiple_of(1 << whole).then(|| Some(state.used_order()?.0))?;
        }
        let (group, place) = self.group_of(at);
        let order = match self.groups[group].order_at(place) {
            None if self.has(Bug::InsideIsFreed) && !self.groups[group].is_free(place) => 0,
            order => order?,
        };
        // Within a pageblock, a block of a whole group may go on in the next one.
        let goes_on = order == GROUP
            && group.is_multiple_of(2)
            && self.groups.get(group + 1).is_some_and(Group::continues);
        Some(order + u8::from(goes_on))
    }

    /// Frees within a split pageblock: the order that the block has when it is merged.
    #[inline]
    fn free_part(&mut self, at: u32, order: u8) -> u8 {
        let whole = self.shape.block_order;
        let block = at >> whole;
        let (group, place) = self.group_of(at);
        let inside = group - self.groups_of(block).0;
        let mut orders = self.lists.orders(block);
        let was = summary(orders);
        let mut merged = GROUP;
        if order > GROUP {
            self.groups[group..group + 2].fill(Group::new(GROUP));
            orders |= 0x8080 << (8 * inside);
        } else {
            let old = (orders >> (8 * inside)) as u8;
            let (size, new) = self.groups[group].free(old, place, order, whole.min(GROUP));
            merged = size;
            orders ^= u32::from(old ^ new) << (8 * inside);
        }
        let is_free = |group: usize| orders >> (8 * group) & 0x80 != 0;
        if merged == GROUP && whole > GROUP && is_free(inside ^ 1) && !self.has(Bug::GroupsUnmerged) {
            merged += 1;
            if whole > GROUP + 1 && is_free(inside ^ 2) && is_free(inside ^ 3) {
                merged += 1;
            }
        }
        if merged < whole {
            self.lists.set_orders(block, orders);
            self.relist(block, was, summary(orders));
            return merged;
        }
        if was != 0 {
            self.lists.remove(block);
        }
        self.merge_whole(block, whole)
    }

    /// Frees whole pageblocks, merged with their buddies, all of one owner: the order they have then.
    #[inline]
    fn merge_whole(&mut self, block: u32, order: u8) -> u8 {
        let whole = self.shape.block_order;
        let (first, count) = (self.shape.first >> whole, self.lists.count());
        let owner = self.lists.owner(block);
        let (mut from, mut size) = (block, order);
        self.lists.set(block, State::INSIDE);
        while size < self.shape.max_order && !self.has(Bug::PageblocksUnmerged) {
            let pageblocks = 1 << (size - whole);
            let buddy = ((first + from) ^ pageblocks).wrapping_sub(first);
            if buddy >= count || self.lists.state(buddy) != State::free(size) {
                break;
            }
            self.lists.remove(buddy);
            self.lists.set(buddy, State::INSIDE);
            if !self.has(Bug::OwnersKept) {
                self.lists.own(buddy..buddy + pageblocks, owner);
            }
            from = from.min(buddy);
            size += 1;
        }
        self.list(owner, size, from, false);
        size
    }

    /// Finds a block of another owner: its pageblock, and the order that this is listed at.
    fn steal(&mut self, wanted: u8, order: u8) -> Option<(u32, u8, Stolen)> {
        let whole = self.shape.block_order;
        let other = |compact: &Compact, size: u8| {
            let others = OTHERS[usize::from(wanted)].iter();
            others.copied().find_map(|from| Some((from, compact.lists.first(from, size)?)))
        };
        let what = |block: u32, order: u8, from: u8, owns: bool| {
            let frame = self.shape.first + (block << whole);
            (block, order, Stolen { frame, order, wanted, from, owns })
        };
        for size in (order..=self.shape.max_order).rev() {
            // Movable blocks do little harm among others: for them, no pageblock is claimed for a small one.
            if size < whole / 2 && wanted == Kind::Movable as u8 {
                break;
            }
            let Some((from, block)) = other(self, size) else { continue };
            let half = (1u32 << whole) / 2 + u32::from(self.has(Bug::HalfIsNotEnough));
            if size < whole && self.free_in(block) < half && !self.has(Bug::AlwaysClaims) {
                continue;
            }
            let found = what(block, size, from, true);
            self.lists.remove(block);
            let pageblocks = 1 << size.saturating_sub(whole);
            self.lists.own(block..block + pageblocks, wanted);
            self.list(wanted, size, block, false);
            return Some(found);
        }
        (order..=self.shape.max_order).find_map(|size| {
            let (from, block) = other(self, size)?;
            Some(what(block, size, from, false))
        })
    }

    /// Free frames of a split pageblock.
    fn free_in(&self, block: u32) -> u32 {
        let (first, count) = self.groups_of(block);
        self.groups[first..first + count].iter().map(Group::free_frames).sum()
    }

    /// The first frame of the allocated block that a frame lies in. So a load need not remember what it has
    /// allocated.
    #[inline]
    pub fn used_at(&self, frame: Frame) -> Option<Frame> {
        let at = self.shape.has(frame).then(|| frame - self.shape.first)?;
        let whole = self.shape.block_order;
        let (block, state) = (at >> whole, self.lists.state(at >> whole));
        if self.is_split(state) {
            let (group, place) = self.group_of(at);
            let begin = frame - place;
            return match self.groups[group].covering(place) {
                Covering::Free => None,
                Covering::From(head) => Some(begin + head),
                Covering::Before => Some(begin - (1 << GROUP)),
            };
        }
        // A block of whole pageblocks begins at one of its aligned ones.
        let first = self.shape.first >> whole;
        (0..=self.shape.max_order - whole).find_map(|larger| {
            let head = ((first + block) & !((1 << larger) - 1)).checked_sub(first)?;
            let state = self.lists.state(head);
            let reaches = state.order().is_some_and(|order| order >= whole + larger);
            let is = reaches && state.used_order().is_some();
            is.then_some(self.shape.first + (head << whole))
        })
    }

    /// Makes an allocated block several allocated ones, each of `order`.
    pub fn split(&mut self, frame: Frame, order: u8) -> Result<(), Wrong> {
        let size = self.order(frame)?;
        if order > size {
            return Err(Wrong::Order { order, max: size });
        }
        let (whole, at) = (self.shape.block_order, frame - self.shape.first);
        let kind = match self.lists.state(at >> whole).used_order() {
            Some((_, kind)) if size >= whole => kind,
            _ => Kind::Movable,
        };
        if size >= whole {
            // A split pageblock without a free frame; larger parts say so below.
            let pageblocks = at >> whole..(at >> whole) + (1 << (size - whole));
            pageblocks
                .for_each(|block| self.lists.set(block, if order < whole { FULL } else { State::INSIDE }));
            if order < whole {
                let pageblocks = at >> whole..(at >> whole) + (1 << (size - whole));
                pageblocks.for_each(|block| self.lists.set_orders(block, 0));
            }
        } else {
            self.clear(at, size);
        }
        for part in (at..at + (1 << size)).step_by(1 << order) {
            if order >= whole {
                self.lists.set(part >> whole, State::used(order, kind));
                continue;
            }
            let (group, place) = self.group_of(part);
            self.groups[group].mark(place, order);
            if order > GROUP {
                self.groups[group + 1].mark_inside();
            }
        }
        Ok(())
    }

    /// Forgets an allocated block of a split pageblock.
    fn clear(&mut self, at: u32, order: u8) {
        let (group, place) = self.group_of(at);
        match order {
            0..=GROUP => self.groups[group].unmark(place, order),
            _ => self.groups[group..group + 2].fill(Group::new(GROUP)),
        }
    }

    /// Says that the block at a frame will be freed soon, or looked for: what that reads is brought near.
    #[inline]
    pub fn expect_free(&self, frame: Frame) {
        let at = frame.wrapping_sub(self.shape.first);
        let block = at >> self.shape.block_order;
        let (group, _) = self.group_of(at);
        // Its words may lie in two lines: the next group's begin where they end.
        prefetch::near(&self.groups, group);
        prefetch::near(&self.groups, group + 1);
        self.lists.prefetch(block);
    }

    /// The same a moment later: the pageblocks beside it on its list.
    #[inline]
    pub fn expect_merge(&self, frame: Frame) {
        let block = frame.wrapping_sub(self.shape.first) >> self.shape.block_order;
        if block < self.lists.count() && self.lists.state(block).free_order().is_some() {
            self.lists.prefetch_beside(block);
        }
    }
}
