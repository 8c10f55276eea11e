//! Linked lists of pageblocks: sixteen bytes per pageblock, and four pageblocks in a cache line: two links,
//! which are valid for the first pageblock of a listed block, its free blocks, its state and its owner.
//!
//! The heads of the lists are nodes after the pageblocks, so that a removal does not need to know the list
//! (as `list_del` in the kernel). [`crate::free_lists`] has rings instead, for frames: a merge sometimes
//! removes a block from the middle of a list, and reads of its neighbours would miss all caches. Here all
//! links are close together, and most operations move a pageblock from one list to another, for which a chain
//! needs no marks of removed entries.

use std::ops::Range;

use crate::free_lists::FrameTag;
use crate::prefetch;

/// Metadata of a pageblock; for the head of a list, the links alone.
#[derive(Clone, Copy, Debug)]
struct PageblockNode {
    next: u32,
    prev: u32,
    /// Of a split pageblock, the orders of the free blocks in each of its groups: a byte for each.
    group_orders: u32,
    state: FrameTag,
    owner: u8,
}

const _: () = assert!(size_of::<PageblockNode>() == 16, "four in a line");

/// The lists, over pageblocks numbered from 0.
#[derive(Clone, Debug)]
pub struct PageblockLists {
    nodes: Vec<PageblockNode>,
    pageblocks: u32,
    /// A list has 2^`head_shift` heads, one for each order: as few as the largest order needs.
    head_shift: u32,
}

impl PageblockLists {
    /// So many empty lists at each order up to the largest, and all pageblocks of one owner.
    pub fn new(pageblocks: u32, lists: u8, max_order: u8, owner: u8) -> PageblockLists {
        let head_shift = (u32::from(max_order) + 1).next_power_of_two().trailing_zeros();
        let head_count = u32::from(lists) << head_shift;
        let new_node = |index: u32| PageblockNode {
            next: index,
            prev: index,
            group_orders: 0,
            state: FrameTag::INSIDE_BLOCK,
            owner,
        };
        let mut nodes = vec![new_node(0); pageblocks as usize];
        nodes.extend((pageblocks..pageblocks + head_count).map(new_node));
        PageblockLists { nodes, pageblocks, head_shift }
    }

    /// Pageblocks.
    #[inline]
    pub fn pageblock_count(&self) -> u32 {
        self.pageblocks
    }

    /// The state of a pageblock.
    #[inline]
    pub fn state(&self, pageblock: u32) -> FrameTag {
        self.nodes[pageblock as usize].state
    }

    /// Sets the state of a pageblock.
    #[inline]
    pub fn set_state(&mut self, pageblock: u32, state: FrameTag) {
        self.nodes[pageblock as usize].state = state;
    }

    /// The orders of the free blocks in each group of a split pageblock.
    #[inline]
    pub fn group_orders(&self, pageblock: u32) -> u32 {
        self.nodes[pageblock as usize].group_orders
    }

    /// Sets them.
    #[inline]
    pub fn set_group_orders(&mut self, pageblock: u32, orders: u32) {
        self.nodes[pageblock as usize].group_orders = orders;
    }

    /// Owner of a pageblock.
    #[inline]
    pub fn owner(&self, pageblock: u32) -> u8 {
        self.nodes[pageblock as usize].owner
    }

    /// Gives pageblocks to an owner.
    #[inline]
    pub fn set_owner(&mut self, pageblocks: Range<u32>, owner: u8) {
        let blocks = pageblocks.start as usize..pageblocks.end as usize;
        self.nodes[blocks].iter_mut().for_each(|link| link.owner = owner);
    }

    #[inline]
    fn head(&self, list: u8, order: u8) -> u32 {
        self.pageblocks + (u32::from(list) << self.head_shift) + u32::from(order)
    }

    /// The first pageblock of a list.
    #[inline]
    pub fn first_pageblock(&self, list: u8, order: u8) -> Option<u32> {
        let first = self.nodes[self.head(list, order) as usize].next;
        (first < self.pageblocks).then_some(first)
    }

    /// Adds a pageblock to the front of a list, or to its end.
    #[inline]
    pub fn add_pageblock(&mut self, list: u8, order: u8, pageblock: u32, at_tail: bool) {
        let head = self.head(list, order);
        let head_node = &self.nodes[head as usize];
        let (prev, next) = if at_tail { (head_node.prev, head) } else { (head, head_node.next) };
        let link = &mut self.nodes[pageblock as usize];
        (link.next, link.prev, link.state) = (next, prev, FrameTag::from_free_order(order));
        self.nodes[prev as usize].next = pageblock;
        self.nodes[next as usize].prev = pageblock;
    }

    /// Takes a pageblock from its list. Its state stays.
    #[inline]
    pub fn remove_pageblock(&mut self, pageblock: u32) {
        let PageblockNode { next, prev, .. } = self.nodes[pageblock as usize];
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
    }

    /// Address range of the metadata in this process.
    pub fn memory_range(&self) -> Range<usize> {
        let start = self.nodes.as_ptr() as usize;
        start..start + size_of_val(&self.nodes[..])
    }

    /// Prefetches the data of a pageblock that freeing a block in it reads first.
    #[inline]
    pub fn prefetch_pageblock(&self, pageblock: u32) {
        prefetch::prefetch_line(&self.nodes, pageblock as usize);
    }

    /// The same of both neighbours of a listed pageblock, which itself is near.
    #[inline]
    pub fn prefetch_neighbors(&self, pageblock: u32) {
        let PageblockNode { next, prev, .. } = self.nodes[pageblock as usize];
        prefetch::prefetch_line(&self.nodes, next as usize);
        prefetch::prefetch_line(&self.nodes, prev as usize);
    }

    /// The pageblocks of a list, the first one first.
    pub fn pageblocks(&self, list: u8, order: u8) -> impl Iterator<Item = u32> + '_ {
        let head = self.head(list, order);
        let mut next = self.nodes[head as usize].next;
        std::iter::from_fn(move || {
            let pageblock = (next < self.pageblocks).then_some(next)?;
            next = self.nodes[pageblock as usize].next;
            Some(pageblock)
        })
    }
}
