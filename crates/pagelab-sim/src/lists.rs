//! Free lists: five bytes a frame, and four or more for each free block. A frame has a state of one byte and,
//! if it is the first of a free block, a place in a list of four.
//!
//! A list at one order is a ring of frames with two ends. A block that leaves from the middle writes to its
//! slot that it is gone, and to nothing else: the blocks beside it are not looked at, as those of a linked
//! list would be, which lie anywhere in memory. Slots that are gone are left out when the ring is full.

use std::ops::Range;

use crate::prefetch;
use crate::words::{Frame, Kind};

/// The state of a frame: 0 inside of a block; else the order plus one, with a flag or a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u8);

const FREE: u8 = 0x80;
const ORDER: u8 = 0x1f;
const KIND_SHIFT: u8 = 5;
/// Stands where a kind would.
const KEPT: u8 = 3;

impl State {
    /// Inside of a block.
    pub const INSIDE: State = State(0);

    /// The first frame of a free block.
    #[inline]
    pub fn free(order: u8) -> State {
        State(FREE | (order + 1))
    }

    /// The first frame of an allocated block.
    #[inline]
    pub const fn used(order: u8, kind: Kind) -> State {
        State((order + 1) | ((kind as u8) << KIND_SHIFT))
    }

    /// The first frame of a block that a processor keeps.
    #[inline]
    pub fn kept(order: u8) -> State {
        State((order + 1) | (KEPT << KIND_SHIFT))
    }

    /// The order, if it is the first frame of a block that a processor keeps.
    #[inline]
    pub fn kept_order(self) -> Option<u8> {
        (self.0 & FREE == 0 && self.0 >> KIND_SHIFT == KEPT).then(|| (self.0 & ORDER) - 1)
    }

    /// The order, if it is the first frame of a free block.
    #[inline]
    pub fn free_order(self) -> Option<u8> {
        (self.0 & FREE != 0).then(|| (self.0 & ORDER) - 1)
    }

    /// The order, if it is the first frame of a block of whatever sort.
    #[inline]
    pub fn order(self) -> Option<u8> {
        (self.0 & ORDER).checked_sub(1)
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
        Some(((self.0 & ORDER).checked_sub(1)?, kind))
    }
}

/// Stands in a list where a block was taken out of its middle.
const GONE: Frame = Frame::MAX;

/// Of a place, the bits that say where in the list; those above say which list.
const PLACE: u32 = (1 << PLACE_BITS) - 1;
const PLACE_BITS: u8 = 30;
/// Lists that these bits tell apart.
const NEAR: u8 = 4;

/// Frames that there can be lists of, at most: so many places can be told apart. 4 TiB of base pages.
pub const LISTED_MAX: u32 = 1 << PLACE_BITS;

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

    /// Whether a place is one of those between end and front.
    #[inline]
    fn has(&self, place: u32) -> bool {
        (place.wrapping_sub(self.end) & PLACE) < self.front.wrapping_sub(self.end)
    }

    /// What is gone at the front is left out, so that a block stands there if the list has any.
    #[inline]
    fn trim(&mut self) {
        while self.front != self.end && self.get(self.front.wrapping_sub(1)) == GONE {
            self.front = self.front.wrapping_sub(1);
        }
    }
}

/// The lists of a zone, over frames numbered from 0.
#[derive(Clone, Debug)]
pub struct Lists {
    /// All orders of the first list, then those of the next.
    lists: Box<[Blocks; LISTS]>,
    /// How many lists there are.
    count: u8,
    /// Of the first frame of each free block, its place in its list. Apart from the states, which who frees a
    /// block waits for: of these many stand in a line.
    places: Vec<u32>,
    states: Vec<State>,
}

impl Lists {
    /// So many empty lists at each order, over at most [`LISTED_MAX`] frames.
    pub fn new(frames: u32, lists: u8) -> Lists {
        Lists {
            lists: Box::new(std::array::from_fn(|_| Blocks::default())),
            count: lists,
            places: vec![0; frames as usize],
            states: vec![State::INSIDE; frames as usize],
        }
    }

    /// Frames.
    #[inline]
    pub fn frames(&self) -> u32 {
        self.states.len() as u32
    }

    /// The state of a frame.
    #[inline]
    pub fn state(&self, frame: Frame) -> State {
        self.states[frame as usize]
    }

    /// The state of a frame, if it is one of these.
    #[inline]
    pub fn get(&self, frame: Frame) -> Option<State> {
        self.states.get(frame as usize).copied()
    }

    /// Sets the state of a frame.
    #[inline]
    pub fn set(&mut self, frame: Frame, state: State) {
        self.states[frame as usize] = state;
    }

    #[inline]
    fn at(list: u8, order: u8) -> usize {
        (usize::from(list) * ORDERS + usize::from(order) % ORDERS) % LISTS
    }

    /// The first block of a list.
    #[inline]
    pub fn first(&self, list: u8, order: u8) -> Option<Frame> {
        let blocks = &self.lists[Lists::at(list, order)];
        (blocks.front != blocks.end).then(|| blocks.get(blocks.front.wrapping_sub(1)))
    }

    /// Puts a free block in front of a list, or at its end.
    #[inline(always)]
    pub fn add(&mut self, list: u8, order: u8, frame: Frame, at_end: bool) {
        let number = Lists::at(list, order);
        let blocks = &self.lists[number];
        if blocks.front.wrapping_sub(blocks.end) as usize >= blocks.ring.len() {
            self.make_room(number);
        }
        let blocks = &mut self.lists[number];
        blocks.end = blocks.end.wrapping_sub(u32::from(at_end));
        let place = if at_end { blocks.end } else { blocks.front };
        blocks.front = blocks.front.wrapping_add(u32::from(!at_end));
        let slot = blocks.slot(place);
        blocks.ring[slot] = frame;
        self.places[frame as usize] = place & PLACE | u32::from(list) << PLACE_BITS;
        self.states[frame as usize] = State::free(order);
    }

    /// Takes the first block of a list, if there is one. Its state stays.
    #[inline(always)]
    pub fn pop(&mut self, list: u8, order: u8) -> Option<Frame> {
        let blocks = &mut self.lists[Lists::at(list, order)];
        if blocks.front == blocks.end {
            return None;
        }
        blocks.front = blocks.front.wrapping_sub(1);
        let first = blocks.get(blocks.front);
        blocks.trim();
        Some(first)
    }

    /// Takes a free block of an order from its list. Its state stays.
    #[inline(always)]
    pub fn remove(&mut self, frame: Frame, order: u8) {
        let place = self.places[frame as usize];
        let list = match self.count {
            ..=NEAR => (place >> PLACE_BITS) as u8,
            _ => self.far_list(frame, order),
        };
        let blocks = &mut self.lists[Lists::at(list, order)];
        let slot = blocks.slot(place);
        if let Some(slot) = blocks.ring.get_mut(slot) {
            *slot = GONE;
        }
        blocks.trim();
    }

    /// The list that a block is on, where there are too many for a place to say which: the only one of them
    /// that has the block there.
    #[cold]
    #[inline(never)]
    fn far_list(&self, frame: Frame, order: u8) -> u8 {
        let place = self.places[frame as usize];
        let is_on = |&list: &u8| {
            let blocks = &self.lists[Lists::at(list, order)];
            blocks.has(place & PLACE) && blocks.get(place) == frame
        };
        let near = (place >> PLACE_BITS) as u8;
        (near..self.count).step_by(NEAR.into()).find(is_on).unwrap_or(near)
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
            let old = &mut self.places[frame as usize];
            *old = *old & !PLACE | place as u32;
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
        let mut places = vec![range(&self.places), range(&self.states)];
        places.extend(rings.map(|blocks| range(&blocks.ring)));
        places
    }

    /// Brings near what is known of a frame.
    #[inline]
    pub fn prefetch(&self, frame: Frame) {
        prefetch::near(&self.states, frame as usize);
        prefetch::near(&self.places, frame as usize);
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

    /// Six lists: more than a place can tell apart.
    #[test]
    fn rings_hold_what_queues_hold_in_the_same_order() {
        let mut lists = Lists::new(4096, 6);
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
                    if lists.state(frame) == State::INSIDE {
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
