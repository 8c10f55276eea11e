//! Linked lists of pageblocks: sixteen bytes for each. All that is known of a pageblock beside its frames
//! lies together, four of them in a line: two links, which count where it is the first of a listed block,
//! what is free in it, its state and its owner.
//!
//! The heads of the lists are nodes behind the pageblocks, so that one leaves its list without anybody
//! knowing which one it is (as `list_del` in the kernel). [`crate::lists`] has rings instead, for frames:
//! there a merge takes a block out of a list's middle now and then, and reads of its neighbours would miss
//! all caches. Here all links lie near, and most that is done is to take a pageblock off one list and put it
//! on another, which leaves nothing behind in a chain.

use std::ops::Range;

use crate::lists::State;
use crate::prefetch;

/// What is known of a pageblock; of a list's head, the links alone.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    /// Of a split pageblock, the orders of the free blocks in each of its groups: a byte for each.
    orders: u32,
    state: State,
    owner: u8,
}

const _: () = assert!(size_of::<Link>() == 16, "four in a line");

/// The lists, over pageblocks numbered from 0.
#[derive(Clone, Debug)]
pub struct Chains {
    links: Vec<Link>,
    pageblocks: u32,
    /// A list has 2^`heads` heads, one for each order: as few as the largest order needs.
    heads: u32,
}

impl Chains {
    /// So many empty lists at each order up to the largest, and all pageblocks of one owner.
    pub fn new(pageblocks: u32, lists: u8, max_order: u8, owner: u8) -> Chains {
        let of_list = (u32::from(max_order) + 1).next_power_of_two().trailing_zeros();
        let heads = u32::from(lists) << of_list;
        let link = |at: u32| Link { next: at, prev: at, orders: 0, state: State::INSIDE, owner };
        let mut links = vec![link(0); pageblocks as usize];
        links.extend((pageblocks..pageblocks + heads).map(link));
        Chains { links, pageblocks, heads: of_list }
    }

    /// Pageblocks.
    #[inline]
    pub fn count(&self) -> u32 {
        self.pageblocks
    }

    /// The state of a pageblock.
    #[inline]
    pub fn state(&self, block: u32) -> State {
        self.links[block as usize].state
    }

    /// Sets the state of a pageblock.
    #[inline]
    pub fn set(&mut self, block: u32, state: State) {
        self.links[block as usize].state = state;
    }

    /// The orders of the free blocks in each group of a split pageblock.
    #[inline]
    pub fn orders(&self, block: u32) -> u32 {
        self.links[block as usize].orders
    }

    /// Sets them.
    #[inline]
    pub fn set_orders(&mut self, block: u32, orders: u32) {
        self.links[block as usize].orders = orders;
    }

    /// Who a pageblock belongs to.
    #[inline]
    pub fn owner(&self, block: u32) -> u8 {
        self.links[block as usize].owner
    }

    /// Gives pageblocks to an owner.
    #[inline]
    pub fn own(&mut self, blocks: Range<u32>, owner: u8) {
        let blocks = blocks.start as usize..blocks.end as usize;
        self.links[blocks].iter_mut().for_each(|link| link.owner = owner);
    }

    #[inline]
    fn head(&self, list: u8, order: u8) -> u32 {
        self.pageblocks + (u32::from(list) << self.heads) + u32::from(order)
    }

    /// The first pageblock of a list.
    #[inline]
    pub fn first(&self, list: u8, order: u8) -> Option<u32> {
        let first = self.links[self.head(list, order) as usize].next;
        (first < self.pageblocks).then_some(first)
    }

    /// Puts a pageblock in front of a list, or at its end.
    #[inline]
    pub fn add(&mut self, list: u8, order: u8, block: u32, at_end: bool) {
        let head = self.head(list, order);
        let beside = &self.links[head as usize];
        let (prev, next) = if at_end { (beside.prev, head) } else { (head, beside.next) };
        let link = &mut self.links[block as usize];
        (link.next, link.prev, link.state) = (next, prev, State::free(order));
        self.links[prev as usize].next = block;
        self.links[next as usize].prev = block;
    }

    /// Takes a pageblock from its list. Its state stays.
    #[inline]
    pub fn remove(&mut self, block: u32) {
        let Link { next, prev, .. } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
    }

    /// Where the books lie in this process's memory.
    pub fn place(&self) -> Range<usize> {
        let start = self.links.as_ptr() as usize;
        start..start + size_of_val(&self.links[..])
    }

    /// Brings near what freeing a block in a pageblock looks at first.
    #[inline]
    pub fn prefetch(&self, block: u32) {
        prefetch::near(&self.links, block as usize);
    }

    /// The same of both neighbours of a listed pageblock, which itself is near.
    #[inline]
    pub fn prefetch_beside(&self, block: u32) {
        let Link { next, prev, .. } = self.links[block as usize];
        prefetch::near(&self.links, next as usize);
        prefetch::near(&self.links, prev as usize);
    }

    /// The pageblocks of a list, the first one first.
    pub fn blocks(&self, list: u8, order: u8) -> impl Iterator<Item = u32> + '_ {
        let head = self.head(list, order);
        let mut at = self.links[head as usize].next;
        std::iter::from_fn(move || {
            let block = (at < self.pageblocks).then_some(at)?;
            at = self.links[block as usize].next;
            Some(block)
        })
    }
}
