//! Free lists: four bytes per frame, and four or more per free block. A frame has a state of one byte, and
//! the first one of a free block a place in a list of four bytes.
//!
//! Of two frames that are buddies at most one begins a free block: if both did, they would be merged. So one
//! place does for two frames, and the states and places of sixteen are in one line. A free or an allocation
//! waits for that line, and for no other one of the frame's.
//!
//! A list at one order is a ring of frames with two ends. The removal of a block from the middle only marks
//! its slot: its neighbours, which are anywhere in memory, are not read, as those of a linked list would be.
//! Removed slots are skipped when the list returns its first block, or the ring is full.

use std::ops::Range;

use crate::prefetch;
use crate::types::{AllocationType, Frame, ORDER_MAX, ZoneOffset};

/// The state of a frame: the order of the block that begins there, with a flag or an allocation type above
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTag(u8);

const ORDER_MASK: u8 = 0x1f;
const TYPE_SHIFT: u8 = 5;
/// Stand where an allocation type would.
const PCP_FLAG: u8 = 3 << TYPE_SHIFT;
const FREE_FLAG: u8 = 4 << TYPE_SHIFT;

// An order, an allocation type, and the two flags that stand in its place do not overlap, and no state of a
// block is that of the inside of one.
const _: () = {
    assert!(ORDER_MASK as u32 + 1 == 1 << TYPE_SHIFT && ORDER_MAX < ORDER_MASK);
    assert!(AllocationType::ALL.len() as u8 <= PCP_FLAG >> TYPE_SHIFT && PCP_FLAG < FREE_FLAG);
    assert!(FREE_FLAG | ORDER_MASK < u8::MAX);
};

impl FrameTag {
    /// Inside of a block.
    pub const INSIDE_BLOCK: FrameTag = FrameTag(u8::MAX);

    /// The first frame of a free block.
    #[inline]
    pub fn from_free_order(order: u8) -> FrameTag {
        FrameTag(order | FREE_FLAG)
    }

    /// The first frame of an allocated block.
    #[inline]
    pub const fn from_allocated(order: u8, alloc_type: AllocationType) -> FrameTag {
        FrameTag(order | ((alloc_type as u8) << TYPE_SHIFT))
    }

    /// The first frame of a block that a processor keeps.
    #[inline]
    pub fn from_pcp_order(order: u8) -> FrameTag {
        FrameTag(order | PCP_FLAG)
    }

    /// The order, if it is the first frame of a block that a processor keeps.
    #[inline]
    pub fn pcp_order(self) -> Option<u8> {
        (self.0 & !ORDER_MASK == PCP_FLAG).then_some(self.0 & ORDER_MASK)
    }

    /// The order, if it is the first frame of a free block.
    #[inline]
    pub fn free_order(self) -> Option<u8> {
        (self.0 & !ORDER_MASK == FREE_FLAG).then_some(self.0 & ORDER_MASK)
    }

    /// The order, if it is the first frame of a block in any state.
    #[inline]
    pub fn order(self) -> Option<u8> {
        (self != FrameTag::INSIDE_BLOCK).then_some(self.0 & ORDER_MASK)
    }

    /// Order and allocation type, if it is the first frame of an allocated block.
    #[inline]
    pub fn allocated_block(self) -> Option<(u8, AllocationType)> {
        let alloc_type = match self.0 >> TYPE_SHIFT {
            0 => AllocationType::Unmovable,
            1 => AllocationType::Movable,
            2 => AllocationType::Reclaimable,
            _ => return None,
        };
        Some((self.0 & ORDER_MASK, alloc_type))
    }
}

/// Slot of a list from whose middle a block was removed.
const REMOVED_SLOT: ZoneOffset = ZoneOffset::MAX;

/// Maximum number of frames with lists: 4 TiB of base pages. A ring with twice as many slots can still
/// distinguish its positions.
pub const MAX_LISTED_FRAMES: u32 = 1 << 30;

/// The least slots of a ring.
const MIN_RING_SLOTS: usize = 16;

/// Orders of a list: a power of two above the largest order.
const ORDERS_PER_LIST: usize = 32;

const _: () = assert!((ORDER_MAX as usize) < ORDERS_PER_LIST);

/// Rings that there is room for: those of sixteen lists, more than a policy and its reserves have.
const RING_COUNT: usize = 16 * ORDERS_PER_LIST;

/// The blocks of a list at one order, from its end up to its front, in a ring.
#[derive(Clone, Debug, Default)]
struct BlockRing {
    /// As many as a power of two, or none.
    ring: Vec<ZoneOffset>,
    /// Places are counted on and on; the ring has them by their lower bits.
    front: u32,
    back: u32,
}

impl BlockRing {
    #[inline]
    fn slot_index(&self, position: u32) -> usize {
        position as usize & self.ring.len().wrapping_sub(1)
    }

    #[inline]
    fn frame_at(&self, position: u32) -> ZoneOffset {
        debug_assert!(!self.ring.is_empty(), "read from an empty ring at {position}");
        self.ring.get(self.slot_index(position)).copied().unwrap_or(REMOVED_SLOT)
    }

    /// Whether all slots are used, removed entries included.
    #[inline]
    fn is_full(&self) -> bool {
        self.front.wrapping_sub(self.back) as usize >= self.ring.len()
    }

    /// Puts a frame in a slot that is free, at the front or at the end. Returns its place.
    #[inline(always)]
    fn push(&mut self, offset: ZoneOffset, at_back: bool) -> u32 {
        let position = if at_back {
            self.back = self.back.wrapping_sub(1);
            self.back
        } else {
            self.front = self.front.wrapping_add(1);
            self.front.wrapping_sub(1)
        };
        let slot = self.slot_index(position);
        self.ring[slot] = offset;
        position
    }

    /// Removes the first entry, and skips removed ones.
    #[inline(always)]
    fn pop(&mut self) -> Option<ZoneOffset> {
        if self.front == self.back {
            return None;
        }
        let position = self.front.wrapping_sub(1);
        self.front = position;
        match self.frame_at(position) {
            REMOVED_SLOT => self.pop_past_removed(),
            offset => Some(offset),
        }
    }

    /// The same if the first slot was removed.
    #[cold]
    #[inline(never)]
    fn pop_past_removed(&mut self) -> Option<ZoneOffset> {
        while self.front != self.back {
            self.front = self.front.wrapping_sub(1);
            let offset = self.frame_at(self.front);
            if offset != REMOVED_SLOT {
                return Some(offset);
            }
        }
        None
    }
}

/// Frames of a group.
const FRAMES_PER_GROUP: usize = 16;
/// Blocks of lower orders than this are in one group with their buddies.
pub(crate) const GROUP_LOCAL_ORDERS: u8 = FRAMES_PER_GROUP.ilog2() as u8;

/// Metadata of adjacent frames in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct FrameGroup {
    states: [FrameTag; FRAMES_PER_GROUP],
    /// Of each two frames, the list that their pageblock belongs to.
    owners: [u8; FRAMES_PER_GROUP / 2],
    /// The list of the one that begins a free block, and its place there.
    lists: [u8; FRAMES_PER_GROUP / 2],
    positions: [u32; FRAMES_PER_GROUP / 2],
}

const _: () = assert!(size_of::<FrameGroup>() == 64, "a group is one cache line");

impl FrameGroup {
    const INSIDE_BLOCK: FrameGroup = FrameGroup {
        states: [FrameTag::INSIDE_BLOCK; FRAMES_PER_GROUP],
        owners: [0; FRAMES_PER_GROUP / 2],
        lists: [0; FRAMES_PER_GROUP / 2],
        positions: [0; FRAMES_PER_GROUP / 2],
    };

    #[inline]
    fn index_of(offset: ZoneOffset) -> usize {
        offset.index() / FRAMES_PER_GROUP
    }

    #[inline]
    fn frame_state(&self, offset: ZoneOffset) -> FrameTag {
        self.states[offset.index() % FRAMES_PER_GROUP]
    }

    #[inline]
    fn set_state(&mut self, offset: ZoneOffset, state: FrameTag) {
        self.states[offset.index() % FRAMES_PER_GROUP] = state;
    }

    /// Records a free block at a position of a list.
    #[inline]
    fn set_listed(&mut self, offset: ZoneOffset, order: u8, list: u8, position: u32) {
        self.set_state(offset, FrameTag::from_free_order(order));
        self.lists[offset.index() % FRAMES_PER_GROUP / 2] = list;
        self.positions[offset.index() % FRAMES_PER_GROUP / 2] = position;
    }
}

/// The lists of a zone, over frames numbered from 0.
#[derive(Clone, Debug)]
pub struct FreeLists {
    /// All orders of the first list, then those of the next.
    rings: Box<[BlockRing; RING_COUNT]>,
    frames: u32,
    groups: Vec<FrameGroup>,
}

impl FreeLists {
    /// Empty lists, over at most [`MAX_LISTED_FRAMES`] frames.
    pub fn new(frames: u32) -> FreeLists {
        FreeLists {
            rings: Box::new(std::array::from_fn(|_| BlockRing::default())),
            frames,
            groups: vec![FrameGroup::INSIDE_BLOCK; (frames as usize).div_ceil(FRAMES_PER_GROUP)],
        }
    }

    /// Frames.
    #[inline]
    pub fn frame_count(&self) -> u32 {
        self.frames
    }

    /// The state of a frame.
    #[inline]
    pub fn frame_state(&self, offset: ZoneOffset) -> FrameTag {
        self.groups[FrameGroup::index_of(offset)].frame_state(offset)
    }

    /// The state of a frame, if it is one of these. A few after the last one may count as inside of a block.
    #[inline]
    pub fn try_frame_state(&self, offset: ZoneOffset) -> Option<FrameTag> {
        self.groups.get(FrameGroup::index_of(offset)).map(|group| group.frame_state(offset))
    }

    /// Sets the state of a frame.
    #[inline]
    pub fn set_state(&mut self, offset: ZoneOffset, state: FrameTag) {
        self.groups[FrameGroup::index_of(offset)].set_state(offset, state);
    }

    /// The list that the pageblock of a frame belongs to.
    #[inline]
    pub fn pageblock_owner(&self, offset: ZoneOffset) -> u8 {
        self.groups[FrameGroup::index_of(offset)].owners[offset.index() % FRAMES_PER_GROUP / 2]
    }

    /// Says which list the pageblocks of some frames belong to; an even number of frames, from an even one.
    pub fn set_owner(&mut self, frames: Range<ZoneOffset>, list: u8) {
        let (start, end) = (frames.start.index(), frames.end.index());
        for group_index in start / FRAMES_PER_GROUP..end.div_ceil(FRAMES_PER_GROUP) {
            let first = group_index * FRAMES_PER_GROUP;
            let span = start.max(first) - first..end.min(first + FRAMES_PER_GROUP) - first;
            self.groups[group_index].owners[span.start / 2..span.end / 2].fill(list);
        }
    }

    #[inline]
    fn ring_index(list: u8, order: u8) -> usize {
        (usize::from(list) * ORDERS_PER_LIST + usize::from(order) % ORDERS_PER_LIST) % RING_COUNT
    }

    /// The first block of a list; removed entries before it are dropped.
    #[inline]
    pub fn first_block(&mut self, list: u8, order: u8) -> Option<ZoneOffset> {
        let ring = &mut self.rings[FreeLists::ring_index(list, order)];
        let first = ring.pop()?;
        ring.front = ring.front.wrapping_add(1);
        Some(first)
    }

    /// Adds a free block to the front of a list, or to its end. Its buddy must not be on a list of the order.
    #[inline(always)]
    pub fn add_block(&mut self, list: u8, order: u8, offset: ZoneOffset, at_tail: bool) {
        let ring_index = FreeLists::ring_index(list, order);
        if self.rings[ring_index].is_full() {
            self.grow_ring(ring_index);
        }
        let position = self.rings[ring_index].push(offset, at_tail);
        self.groups[FrameGroup::index_of(offset)].set_listed(offset, order, list, position);
    }

    /// Adds a block to the front of a list. Returns `false`, and does nothing, if its buddy or the buddy of
    /// both together is free, or if there is no room. Both must be in its group.
    #[inline(always)]
    pub fn add_unmerged(&mut self, list: u8, order: u8, offset: ZoneOffset) -> bool {
        let ring = &mut self.rings[FreeLists::ring_index(list, order)];
        debug_assert!(offset.number() < self.frames, "{offset:?} is beyond {:#x} frames", self.frames);
        let Some(group) = self.groups.get_mut(FrameGroup::index_of(offset)) else { return false };
        let parent_buddy = offset.parent_buddy(order);
        if group.frame_state(offset.buddy_in_group(order)) == FrameTag::from_free_order(order)
            || group.frame_state(parent_buddy) == FrameTag::from_free_order(order + 1)
            || ring.is_full()
        {
            return false;
        }
        let position = ring.push(offset, false);
        group.set_listed(offset, order, list, position);
        true
    }

    /// Takes the first block of a list, if there is one. Its state stays.
    #[inline(always)]
    pub fn pop_block(&mut self, list: u8, order: u8) -> Option<ZoneOffset> {
        self.rings[FreeLists::ring_index(list, order)].pop()
    }

    /// Takes a free block of an order from its list. Its state stays.
    #[inline(always)]
    pub fn remove_block(&mut self, offset: ZoneOffset, order: u8) {
        let group = &self.groups[FrameGroup::index_of(offset)];
        let pair = offset.index() % FRAMES_PER_GROUP / 2;
        let ring = &mut self.rings[FreeLists::ring_index(group.lists[pair], order)];
        let slot = ring.slot_index(group.positions[pair]);
        debug_assert_eq!(ring.ring.get(slot), Some(&offset), "the block at {offset:?} is not on this list");
        if let Some(slot) = ring.ring.get_mut(slot) {
            *slot = REMOVED_SLOT;
        }
    }

    /// Compacts a full ring by dropping removed entries, and doubles it if more than half of its entries are
    /// blocks.
    #[cold]
    #[inline(never)]
    fn grow_ring(&mut self, ring_index: usize) {
        let BlockRing { ring, front, back: end } = std::mem::take(&mut self.rings[ring_index]);
        let mask = ring.len().wrapping_sub(1);
        let listed = (0..front.wrapping_sub(end)).map(|step| ring[end.wrapping_add(step) as usize & mask]);
        let live = listed.clone().filter(|&offset| offset != REMOVED_SLOT).count();
        let size = if live * 2 > ring.len() { ring.len() * 2 } else { ring.len() }.max(MIN_RING_SLOTS);
        let mut packed = vec![REMOVED_SLOT; size];
        for (position, offset) in listed.filter(|&offset| offset != REMOVED_SLOT).enumerate() {
            packed[position] = offset;
            self.groups[FrameGroup::index_of(offset)].positions[offset.index() % FRAMES_PER_GROUP / 2] =
                position as u32;
        }
        self.rings[ring_index] = BlockRing { ring: packed, front: live as u32, back: 0 };
    }

    /// Address range of the metadata in this process.
    pub fn memory_ranges(&self) -> Vec<Range<usize>> {
        fn range<T>(slice: &[T]) -> Range<usize> {
            let start = slice.as_ptr() as usize;
            start..start + size_of_val(slice)
        }
        let used_rings = self.rings.iter().filter(|blocks| !blocks.ring.is_empty());
        let mut ranges = vec![range(&self.groups)];
        ranges.extend(used_rings.map(|blocks| range(&blocks.ring)));
        ranges
    }

    /// Whether a block at a frame may be so large that its buddy is in another group. The frame is one of the
    /// memory, not of the zone.
    #[inline]
    pub fn can_cross_group(frame: Frame) -> bool {
        frame.is_aligned(GROUP_LOCAL_ORDERS)
    }

    /// Prefetches the metadata of a frame.
    #[inline]
    pub fn prefetch_frame(&self, offset: ZoneOffset) {
        prefetch::prefetch_line(&self.groups, FrameGroup::index_of(offset));
    }

    /// The blocks of a list, the first one first.
    pub fn blocks(&self, list: u8, order: u8) -> impl Iterator<Item = ZoneOffset> + '_ {
        let ring = &self.rings[FreeLists::ring_index(list, order)];
        let steps = 1..=ring.front.wrapping_sub(ring.back);
        steps
            .map(|step| ring.frame_at(ring.front.wrapping_sub(step)))
            .filter(|&offset| offset != REMOVED_SLOT)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use pagelab_model::random::SplitMix64;

    use super::*;

    #[test]
    fn a_group_knows_the_owner_of_each_two_frames() {
        let mut lists = FreeLists::new(90);
        // Pageblocks of two frames and of many.
        for (frames, list) in [(0..90, 1), (2..4, 2), (14..18, 3), (30..66, 4), (88..90, 5)] {
            lists.set_owner(ZoneOffset::new(frames.start)..ZoneOffset::new(frames.end), list);
        }
        let owner = |offset: u32| match offset {
            2..4 => 2,
            14..18 => 3,
            30..66 => 4,
            88..90 => 5,
            _ => 1,
        };
        assert!((0..90).all(|offset| lists.pageblock_owner(ZoneOffset::new(offset)) == owner(offset)));
    }

    #[test]
    fn rings_hold_what_queues_hold_in_the_same_order() {
        let mut lists = FreeLists::new(4096);
        let mut queues = vec![VecDeque::new(); 12];
        let mut random = SplitMix64::new(3);
        for step in 0..200_000u32 {
            let (list, order) = (random.next_below(6) as u8, random.next_below(2) as u8);
            let queue = &mut queues[usize::from(list * 2 + order)];
            // The lists grow, and shrink again.
            let grows = step / 20_000 % 2 == 0;
            match random.next_below(8) {
                0..4 if grows || queue.is_empty() => {
                    let offset = ZoneOffset::new(random.next_below(4096) as u32);
                    // Two buddies are never free at one order.
                    if lists.frame_state(offset) == FrameTag::INSIDE_BLOCK
                        && lists.frame_state(offset.buddy_in_group(0)) == FrameTag::INSIDE_BLOCK
                    {
                        let at_end = random.next_below(3) == 0;
                        lists.add_block(list, order, offset, at_end);
                        if at_end { queue.push_back(offset) } else { queue.push_front(offset) }
                    }
                }
                0..6 if !queue.is_empty() => {
                    let offset = queue.remove(random.next_below(queue.len() as u64) as usize).unwrap();
                    lists.remove_block(offset, order);
                    lists.set_state(offset, FrameTag::INSIDE_BLOCK);
                }
                _ => {
                    assert_eq!(lists.first_block(list, order), queue.front().copied());
                    let offset = lists.pop_block(list, order);
                    assert_eq!(offset, queue.pop_front());
                    offset.into_iter().for_each(|offset| lists.set_state(offset, FrameTag::INSIDE_BLOCK));
                }
            }
            if step % 1000 == 0 {
                assert!(lists.blocks(list, order).eq(queues[usize::from(list * 2 + order)].iter().copied()));
            }
        }
    }
}
