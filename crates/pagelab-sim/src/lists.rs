//! Free lists: four bytes a frame, and four or more for each free block. A frame has a state of one byte, and
//! the first one of a free block a place in a list of four bytes.
//!
//! Of two frames that are buddies at most one begins a free block: if both did, they would be merged. So one
//! place does for two frames, and the states and places of sixteen lie in one line. Who frees or allocates a
//! block waits for that line, and for no other one of the frame's.
//!
//! A list at one order is a ring of frames with two ends. A block that leaves from the middle writes to its
//! slot that it is gone, and to nothing else: the blocks beside it are not looked at, as those of a linked
//! list would be, which lie anywhere in memory. Slots that are gone are left out when the list is asked for
//! its first block, or the ring is full.

use std::ops::Range;

use crate::prefetch;
use crate::words::{Frame, Kind};

/// The state of a frame: the order of the block that begins there, with a flag or a kind above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u8);

const ORDER: u8 = 0x1f;
const KIND_SHIFT: u8 = 5;
/// Stand where a kind would.
const KEPT: u8 = 3 << KIND_SHIFT;
const FREE: u8 = 4 << KIND_SHIFT;

impl State {
    /// Inside of a block.
    pub const INSIDE: State = State(u8::MAX);

    /// The first frame of a free block.
    #[inline]
    pub fn free(order: u8) -> State {
        State(order | FREE)
    }

    /// The first frame of an allocated block.
    #[inline]
    pub const fn used(order: u8, kind: Kind) -> State {
        State(order | ((kind as u8) << KIND_SHIFT))
    }

    /// The first frame of a block that a processor keeps.
    #[inline]
    pub fn kept(order: u8) -> State {
        State(order | KEPT)
    }

    /// The order, if it is the first frame of a block that a processor keeps.
    #[inline]
    pub fn kept_order(self) -> Option<u8> {
        (self.0 & !ORDER == KEPT).then_some(self.0 & ORDER)
    }

    /// The order, if it is the first frame of a free block.
    #[inline]
    pub fn free_order(self) -> Option<u8> {
        (self.0 & !ORDER == FREE).then_some(self.0 & ORDER)
    }

    /// The order, if it is the first frame of a block of whatever sort.
    #[inline]
    pub fn order(self) -> Option<u8> {
        (self != State::INSIDE).then_some(self.0 & ORDER)
    }

    /// Order and kind, if it is the first frame of an allocated block.
    #[inline]
    pub fn used_order(self) -> Option<(u8, Kind)> {
        let kind = match self.0 >> KIND_SHIFT {
            0 => Kind::Unmovable,
            1 => Kind::Movable,
            2 => Kind::Reclaimable,
            _ => return None,
        };
        Some((self.0 & ORDER, kind))
    }
}

/// Stands in a list where a block was taken out of its middle.
const GONE: Frame = Frame::MAX;

/// Frames that there can be lists of, at most: 4 TiB of base pages. A ring of twice as many slots can still
/// tell its places apart.
pub const LISTED_MAX: u32 = 1 << 30;

/// The least slots of a ring.
const LEAST: usize = 16;

/// Orders of a list: a power of two above the largest order.
const ORDERS: usize = 32;

/// Rings that there is room for: those of sixteen lists, more than a policy and its reserves have.
const LISTS: usize = 16 * ORDERS;

/// The blocks of a list at one order, from its end up to its front, in a ring.
#[derive(Clone, Debug, Default)]
struct Blocks {
    /// As many as a power of two, or none.
    ring: Vec<Frame>,
    /// Places are counted on and on; the ring has them by their lower bits.
    front: u32,
    end: u32,
}

impl Blocks {
    #[inline]
    fn slot(&self, place: u32) -> usize {
        place as usize & self.ring.len().wrapping_sub(1)
    }

    #[inline]
    fn get(&self, place: u32) -> Frame {
        self.ring.get(self.slot(place)).copied().unwrap_or(GONE)
    }

    /// Whether all slots are taken, be it by what is gone.
    #[inline]
    fn is_full(&self) -> bool {
        self.front.wrapping_sub(self.end) as usize >= self.ring.len()
    }

    /// Puts a frame in a slot that is free, at the front or at the end. Returns its place.
    #[inline(always)]
    fn put(&mut self, frame: Frame, at_end: bool) -> u32 {
        let place = if at_end {
            self.end = self.end.wrapping_sub(1);
            self.end
        } else {
            self.front = self.front.wrapping_add(1);
            self.front.wrapping_sub(1)
        };
        let slot = self.slot(place);
        self.ring[slot] = frame;
        place
    }

    /// Takes what stands at the front, and leaves out what is gone there.
    #[inline(always)]
    fn pop(&mut self) -> Option<Frame> {
        if self.front == self.end {
            return None;
        }
        let place = self.front.wrapping_sub(1);
        self.front = place;
        match self.get(place) {
            GONE => self.pop_behind(),
            frame => Some(frame),
        }
    }

    /// The same where the first one is gone.
    #[cold]
    #[inline(never)]
    fn pop_behind(&mut self) -> Option<Frame> {
        while self.front != self.end {
            self.front = self.front.wrapping_sub(1);
            let frame = self.get(self.front);
            if frame != GONE {
                return Some(frame);
            }
        }
        None
    }
}

/// Frames of a group.
const GROUP: usize = 16;
/// Orders of blocks that lie in one group with their buddies: lower than this.
pub(crate) const NEAR_BUDDIES: u8 = GROUP.ilog2() as u8;

/// What is known of some frames side by side, in one line of the caches.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group {
    states: [State; GROUP],
    /// Of each two frames, the list that their pageblock belongs to.
    owners: [u8; GROUP / 2],
    /// The list of the one that begins a free block, and its place there.
    lists: [u8; GROUP / 2],
    places: [u32; GROUP / 2],
}

impl Group {
    const INSIDE: Group = Group {
        states: [State::INSIDE; GROUP],
        owners: [0; GROUP / 2],
        lists: [0; GROUP / 2],
        places: [0; GROUP / 2],
    };

    #[inline]
    fn of(frame: Frame) -> usize {
        frame as usize / GROUP
    }

    #[inline]
    fn state(&self, frame: Frame) -> State {
        self.states[frame as usize % GROUP]
    }

    #[inline]
    fn set(&mut self, frame: Frame, state: State) {
        self.states[frame as usize % GROUP] = state;
    }

    /// Books a free block that is on a list at a place.
    #[inline]
    fn list(&mut self, frame: Frame, order: u8, list: u8, place: u32) {
        self.set(frame, State::free(order));
        self.lists[frame as usize % GROUP / 2] = list;
        self.places[frame as usize % GROUP / 2] = place;
    }
}

/// The lists of a zone, over frames numbered from 0.
#[derive(Clone, Debug)]
pub struct Lists {
    /// All orders of the first list, then those of the next.
    lists: Box<[Blocks; LISTS]>,
    frames: u32,
    groups: Vec<Group>,
}

impl Lists {
    /// Empty lists, over at most [`LISTED_MAX`] frames.
    pub fn new(frames: u32) -> Lists {
        Lists {
            lists: Box::new(std::array::from_fn(|_| Blocks::default())),
            frames,
            groups: vec![Group::INSIDE; (frames as usize).div_ceil(GROUP)],
        }
    }

    /// Frames.
    #[inline]
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The state of a frame.
    #[inline]
    pub fn state(&self, frame: Frame) -> State {
        self.groups[Group::of(frame)].state(frame)
    }

    /// The state of a frame, if it is one of these. A few behind the last one may count as inside of a block.
    #[inline]
    pub fn get(&self, frame: Frame) -> Option<State> {
        self.groups.get(Group::of(frame)).map(|group| group.state(frame))
    }

    /// Sets the state of a frame.
    #[inline]
    pub fn set(&mut self, frame: Frame, state: State) {
        self.groups[Group::of(frame)].set(frame, state);
    }

    /// The list that the pageblock of a frame belongs to.
    #[inline]
    pub fn owner(&self, frame: Frame) -> u8 {
        self.groups[Group::of(frame)].owners[frame as usize % GROUP / 2]
    }

    /// Says which list the pageblocks of some frames belong to; an even number of frames, from an even one.
    pub fn own(&mut self, frames: Range<Frame>, list: u8) {
        let (start, end) = (frames.start as usize, frames.end as usize);
        for number in start / GROUP..end.div_ceil(GROUP) {
            let first = number * GROUP;
            let within = start.max(first) - first..end.min(first + GROUP) - first;
            self.groups[number].owners[within.start / 2..within.end / 2].fill(list);
        }
    }

    #[inline]
    fn at(list: u8, order: u8) -> usize {
        (usize::from(list) * ORDERS + usize::from(order) % ORDERS) % LISTS
    }

    /// The first block of a list. What is gone in front of it is left out.
    #[inline]
    pub fn first(&mut self, list: u8, order: u8) -> Option<Frame> {
        let blocks = &mut self.lists[Lists::at(list, order)];
        let first = blocks.pop()?;
        blocks.front = blocks.front.wrapping_add(1);
        Some(first)
    }

    /// Puts a free block in front of a list, or at its end. Its buddy must not be on a list of the order.
    #[inline(always)]
    pub fn add(&mut self, list: u8, order: u8, frame: Frame, at_end: bool) {
        let number = Lists::at(list, order);
        if self.lists[number].is_full() {
            self.make_room(number);
        }
        let place = self.lists[number].put(frame, at_end);
        self.groups[Group::of(frame)].list(frame, order, list, place);
    }

    /// Puts a block in front of a list, unless its buddy is free, or the buddy of both together, or there is
    /// no room: then it returns `false`, and nothing is done. Both must lie in its group.
    #[inline(always)]
    pub fn add_alone(&mut self, list: u8, order: u8, frame: Frame) -> bool {
        let blocks = &mut self.lists[Lists::at(list, order)];
        let Some(group) = self.groups.get_mut(Group::of(frame)) else { return false };
        let size = 1 << order;
        let larger = frame & !size ^ size << 1;
        if group.state(frame ^ size) == State::free(order)
            || group.state(larger) == State::free(order + 1)
            || blocks.is_full()
        {
            return false;
        }
        let place = blocks.put(frame, false);
        group.list(frame, order, list, place);
        true
    }

    /// Takes the first block of a list, if there is one. Its state stays.
    #[inline(always)]
    pub fn pop(&mut self, list: u8, order: u8) -> Option<Frame> {
        self.lists[Lists::at(list, order)].pop()
    }

    /// Takes a free block of an order from its list. Its state stays.
    #[inline(always)]
    pub fn remove(&mut self, frame: Frame, order: u8) {
        let group = &self.groups[Group::of(frame)];
        let pair = frame as usize % GROUP / 2;
        let blocks = &mut self.lists[Lists::at(group.lists[pair], order)];
        let slot = blocks.slot(group.places[pair]);
        if let Some(slot) = blocks.ring.get_mut(slot) {
            *slot = GONE;
        }
    }

    /// Makes room in a full ring: what is gone is left out. If that is less than half of it, it becomes twice
    /// as large.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, number: usize) {
        let Blocks { ring, front, end } = std::mem::take(&mut self.lists[number]);
        let mask = ring.len().wrapping_sub(1);
        let listed = (0..front.wrapping_sub(end)).map(|step| ring[end.wrapping_add(step) as usize & mask]);
        let left = listed.clone().filter(|&frame| frame != GONE).count();
        let size = if left * 2 > ring.len() { ring.len() * 2 } else { ring.len() }.max(LEAST);
        let mut packed = vec![GONE; size];
        for (place, frame) in listed.filter(|&frame| frame != GONE).enumerate() {
            packed[place] = frame;
            self.groups[Group::of(frame)].places[frame as usize % GROUP / 2] = place as u32;
        }
        self.lists[number] = Blocks { ring: packed, front: left as u32, end: 0 };
    }

    /// Where the books lie in this process's memory.
    pub fn places(&self) -> Vec<Range<usize>> {
        fn range<T>(of: &[T]) -> Range<usize> {
            let start = of.as_ptr() as usize;
            start..start + size_of_val(of)
        }
        let rings = self.lists.iter().filter(|blocks| !blocks.ring.is_empty());
        let mut places = vec![range(&self.groups)];
        places.extend(rings.map(|blocks| range(&blocks.ring)));
        places
    }

    /// Whether a block that begins at a frame may be so large that its buddy lies in another group. The frame
    /// is one of the memory, not of the zone.
    #[inline]
    pub fn may_be_large(frame: Frame) -> bool {
        (frame as usize).is_multiple_of(GROUP)
    }

    /// Brings near what is known of a frame.
    #[inline]
    pub fn prefetch(&self, frame: Frame) {
        prefetch::near(&self.groups, Group::of(frame));
    }

    /// The blocks of a list, the first one first.
    pub fn blocks(&self, list: u8, order: u8) -> impl Iterator<Item = Frame> + '_ {
        let blocks = &self.lists[Lists::at(list, order)];
        let steps = 1..=blocks.front.wrapping_sub(blocks.end);
        steps.map(|step| blocks.get(blocks.front.wrapping_sub(step))).filter(|&frame| frame != GONE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use pagelab_model::seed::SplitMix64;

    use super::*;

    #[test]
    fn a_group_is_a_line_and_knows_the_owner_of_each_two_frames() {
        assert_eq!(size_of::<Group>(), 64);
        let mut lists = Lists::new(90);
        // Pageblocks of two frames and of many.
        for (frames, list) in [(0..90, 1), (2..4, 2), (14..18, 3), (30..66, 4), (88..90, 5)] {
            lists.own(frames, list);
        }
        let owner = |frame: Frame| match frame {
            2..4 => 2,
            14..18 => 3,
            30..66 => 4,
            88..90 => 5,
            _ => 1,
        };
        assert!((0..90).all(|frame| lists.owner(frame) == owner(frame)));
    }

    #[test]
    fn rings_hold_what_queues_hold_in_the_same_order() {
        let mut lists = Lists::new(4096);
        let mut queues = vec![VecDeque::new(); 12];
        let mut random = SplitMix64::new(3);
        for step in 0..200_000u32 {
            let (list, order) = (random.below(6) as u8, random.below(2) as u8);
            let queue = &mut queues[usize::from(list * 2 + order)];
            // The lists grow, and shrink again.
            let grows = step / 20_000 % 2 == 0;
            match random.below(8) {
                0..4 if grows || queue.is_empty() => {
                    let frame = random.below(4096) as Frame;
                    // Two buddies are never free at one order.
                    if lists.state(frame) == State::INSIDE && lists.state(frame ^ 1) == State::INSIDE {
                        let at_end = random.below(3) == 0;
                        lists.add(list, order, frame, at_end);
                        if at_end { queue.push_back(frame) } else { queue.push_front(frame) }
                    }
                }
                0..6 if !queue.is_empty() => {
                    let frame = queue.remove(random.below(queue.len() as u64) as usize).unwrap();
                    lists.remove(frame, order);
                    lists.set(frame, State::INSIDE);
                }
                _ => {
                    assert_eq!(lists.first(list, order), queue.front().copied());
                    let frame = lists.pop(list, order);
                    assert_eq!(frame, queue.pop_front());
                    frame.into_iter().for_each(|frame| lists.set(frame, State::INSIDE));
                }
            }
            if step % 1000 == 0 {
                assert!(lists.blocks(list, order).eq(queues[usize::from(list * 2 + order)].iter().copied()));
            }
        }
    }
}
