//! Linked lists of pageblocks: nine bytes for each. A state of one byte, and two links that count where the
//! pageblock is the first of a listed block.
//!
//! The heads of the lists are nodes behind the pageblocks, so that one leaves its list without anybody
//! knowing which one it is (as `list_del` in the kernel). [`crate::lists`] has rings instead, for frames:
//! there a merge takes a block out of a list's middle now and then, and reads of its neighbours would miss
//! all caches. Here all links lie near, and most that is done is to take a pageblock off one list and put it
//! on another, which leaves nothing behind in a chain.

use std::ops::Range;

use crate::lists::State;
use crate::prefetch;
use crate::words::Frame;

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
}

/// The lists, over pageblocks numbered from 0.
#[derive(Clone, Debug)]
pub struct Chains {
    links: Vec<Link>,
    states: Vec<State>,
}

/// Heads of a list, one for each order: a power of two above the largest order.
const HEADS: u32 = 32;

impl Chains {
    /// So many empty lists at each order.
    pub fn new(frames: u32, lists: u8) -> Chains {
        let heads = HEADS * u32::from(lists);
        let mut links = vec![Link { next: 0, prev: 0 }; frames as usize];
        links.extend((0..heads).map(|head| Link { next: frames + head, prev: frames + head }));
        Chains { links, states: vec![State::INSIDE; frames as usize] }
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
