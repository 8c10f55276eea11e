//! Free lists: nine bytes a frame. A state of one byte, and two links that count where the frame is the
//! first of a free block.
//!
//! The heads of the lists are nodes behind the frames, so that a block leaves its list without anybody
//! knowing which one it is (as `list_del` in the kernel).

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
        if self.0 & FREE != 0 || self.0 == 0 {
            return None;
        }
        Some(((self.0 & ORDER) - 1, Kind::of(self.0 >> KIND_SHIFT)?))
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
}

/// The lists of a zone, over frames numbered from 0.
#[derive(Clone, Debug)]
pub struct Lists {
    links: Vec<Link>,
    states: Vec<State>,
}

/// Heads of a list, one for each order: a power of two above the largest order.
const HEADS: u32 = 32;

impl Lists {
    /// So many empty lists at each order.
    pub fn new(frames: u32, lists: u8) -> Lists {
        let heads = HEADS * u32::from(lists);
        let mut links = vec![Link { next: 0, prev: 0 }; frames as usize];
        links.extend((0..heads).map(|head| Link { next: frames + head, prev: frames + head }));
        Lists { links, states: vec![State::INSIDE; frames as usize] }
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

    /// Sets the state of a frame.
    #[inline]
    pub fn set(&mut self, frame: Frame, state: State) {
        self.states[frame as usize] = state;
    }

    #[inline]
    fn head(&self, list: u8, order: u8) -> u32 {
        self.frames() + u32::from(list) * HEADS + u32::from(order)
    }

    /// The first block of a list.
    #[inline]
    pub fn first(&self, list: u8, order: u8) -> Option<Frame> {
        let first = self.links[self.head(list, order) as usize].next;
        (first < self.frames()).then_some(first)
    }

    /// Puts a free block in front of a list, or at its end.
    #[inline]
    pub fn add(&mut self, list: u8, order: u8, frame: Frame, at_end: bool) {
        let head = self.head(list, order);
        let beside = self.links[head as usize];
        let (prev, next) = if at_end { (beside.prev, head) } else { (head, beside.next) };
        self.links[frame as usize] = Link { next, prev };
        self.links[prev as usize].next = frame;
        self.links[next as usize].prev = frame;
        self.states[frame as usize] = State::free(order);
    }

    /// Takes the first block of a list, if there is one. Its state stays.
    #[inline]
    pub fn pop(&mut self, list: u8, order: u8) -> Option<Frame> {
        let head = self.head(list, order);
        let first = self.links[head as usize].next;
        if first >= self.frames() {
            return None;
        }
        let next = self.links[first as usize].next;
        self.links[head as usize].next = next;
        let link = &mut self.links[next as usize];
        link.prev = head;
        // The next one that is taken writes to the link behind it.
        let behind = link.next;
        self.prefetch_link(behind);
        Some(first)
    }

    /// Takes a free block from its list. Its state stays.
    #[inline]
    pub fn remove(&mut self, frame: Frame) {
        let Link { next, prev } = self.links[frame as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
    }

    /// Where the books lie in this process's memory.
    pub fn places(&self) -> [Range<usize>; 2] {
        let range = |start: usize, bytes: usize| start..start + bytes;
        [
            range(self.links.as_ptr() as usize, size_of_val(&self.links[..])),
            range(self.states.as_ptr() as usize, size_of_val(&self.states[..])),
        ]
    }

    /// Brings near what freeing the block at a frame looks at first.
    #[inline]
    pub fn prefetch_state(&self, frame: Frame) {
        prefetch::near(&self.states, frame as usize);
    }

    /// The same for the links.
    #[inline]
    pub fn prefetch_link(&self, frame: Frame) {
        prefetch::near(&self.links, frame as usize);
    }

    /// The links of both neighbours of a listed block, whose own are near.
    #[inline]
    pub fn prefetch_beside(&self, frame: Frame) {
        let Link { next, prev } = self.links[frame as usize];
        prefetch::near(&self.links, next as usize);
        prefetch::near(&self.links, prev as usize);
    }

    /// The blocks of a list, the first one first.
    pub fn blocks(&self, list: u8, order: u8) -> impl Iterator<Item = Frame> + '_ {
        let head = self.head(list, order);
        let mut at = self.links[head as usize].next;
        std::iter::from_fn(move || {
            let frame = (at < self.frames()).then_some(at)?;
            at = self.links[frame as usize].next;
            Some(frame)
        })
    }
}
