//! The compact engine's books, counted twice: along the lists, and frame by frame.

use super::{Compact, FULL, largest, summary};
use crate::lists::State;
use crate::words::{Kind, Wrong};

impl Compact {
    /// Checks all books: each pageblock stands on the list that its largest free block says, blocks do not
    /// overlap, and the sums agree.
    pub fn validate(&self) -> Result<(), Wrong> {
        let shape = self.shape;
        let wrong = |what: String| Err(Wrong::Books(what));
        let mut listed = vec![false; self.lists.count() as usize];
        for owner in 0..Kind::ALL.len() as u8 {
            for order in 0..=shape.max_order {
                for block in self.lists.blocks(owner, order) {
                    if self.lists.state(block) != State::free(order) {
                        return wrong(format!(
                            "pageblock {block:#x} is listed at order {order}, and is not so"
                        ));
                    }
                    if self.lists.owner(block) != owner {
                        return wrong(format!("pageblock {block:#x} is on the list of another owner"));
                    }
                    if std::mem::replace(&mut listed[block as usize], true) {
                        return wrong(format!("pageblock {block:#x} is listed twice"));
                    }
                }
            }
        }
        let mut blocks = vec![0u32; usize::from(shape.max_order) + 1];
        let mut at = 0;
        while at < self.lists.count() {
            let state = self.lists.state(at);
            if state.free_order().is_some() != listed[at as usize] {
                return wrong(format!("pageblock {at:#x} is free and on no list"));
            }
            if self.is_split(state) {
                self.validate_split(at, &mut blocks)?;
                at += 1;
            } else {
                at += self.validate_whole(at, &mut blocks)?;
            }
        }
        let free: u64 = blocks.iter().enumerate().map(|(order, &blocks)| u64::from(blocks) << order).sum();
        if blocks != self.blocks || free != u64::from(self.free) {
            return wrong(format!(
                "{free} frames are free in blocks {blocks:?}, the books say {} in {:?}",
                self.free, self.blocks
            ));
        }
        Ok(())
    }

    /// A block of whole pageblocks: how many of them.
    fn validate_whole(&self, block: u32, blocks: &mut [u32]) -> Result<u32, Wrong> {
        let wrong = |what: String| Err(Wrong::Books(what));
        let (whole, state) = (self.shape.block_order, self.lists.state(block));
        let Some(order) = state.order() else {
            return wrong(format!("pageblock {block:#x} belongs to no block"));
        };
        let pageblocks = 1u32 << (order - whole);
        let (first, count) = (self.shape.first >> whole, self.lists.count());
        if pageblocks > count - block || !(first + block).is_multiple_of(pageblocks) {
            return wrong(format!("pageblock {block:#x} of order {order} is not aligned, or reaches out"));
        }
        if let Some(inside) =
            (block + 1..block + pageblocks).find(|&at| self.lists.state(at) != State::INSIDE)
        {
            return wrong(format!("pageblock {inside:#x} is not inside of that at {block:#x}"));
        }
        let (from, groups) = self.groups_of(block);
        let fresh = group_of(self, from..from + groups * pageblocks as usize);
        if !fresh {
            return wrong(format!("pageblock {block:#x} is whole, and has bits of a split one"));
        }
        if state.free_order().is_some() {
            let buddy = ((first + block) ^ pageblocks).wrapping_sub(first);
            if order < self.shape.max_order && buddy < count && self.lists.state(buddy) == state {
                return wrong(format!(
                    "pageblock {block:#x} and its buddy are free at order {order}, unmerged"
                ));
            }
            blocks[usize::from(order)] += 1;
        }
        Ok(pageblocks)
    }

    /// A split pageblock, frame by frame.
    fn validate_split(&self, block: u32, blocks: &mut [u32]) -> Result<(), Wrong> {
        let wrong = |what: String| Err(Wrong::Books(what));
        let (whole, top) = (self.shape.block_order, self.top());
        let is_free = |at: u32| {
            let (group, place) = self.group_of(at);
            self.groups[group].is_free(place)
        };
        let (begin, mut orders) = (block << whole, 0u32);
        let mut at = begin;
        while at < begin + (1 << whole) {
            let order = if is_free(at) {
                let fits = |order: u8| {
                    at.is_multiple_of(1 << order) && (at..at + (1 << order)).all(is_free) && order < whole
                };
                let order = (0..whole).take_while(|&order| fits(order)).last().unwrap_or(0);
                blocks[usize::from(order)] += 1;
                for group in (at - begin) >> top..((at - begin + (1 << order) - 1) >> top) + 1 {
                    orders |= 1 << order.min(top) << (8 * group);
                }
                order
            } else {
                let Some(order) = self.order_at(at) else {
                    return wrong(format!("{at:#x} belongs to no block"));
                };
                let end = at + (1 << order);
                let inside = (at + 1..end).find(|&inside| is_free(inside) || self.order_at(inside).is_some());
                if !at.is_multiple_of(1 << order) || inside.is_some() {
                    return wrong(format!("the block of order {order} at {at:#x} is not whole"));
                }
                order
            };
            at += 1 << order;
        }
        let found = self.lists.orders(block);
        if orders != found {
            return wrong(format!(
                "pageblock {block:#x} has free blocks {orders:#x}, the books say {found:#x}"
            ));
        }
        let state = self.lists.state(block);
        let is_right = match largest(summary(orders)) {
            0 => state == FULL,
            order => state == State::free(order as u8 - 1),
        };
        if !is_right {
            return wrong(format!(
                "pageblock {block:#x} is listed as {state:?}, its free blocks {orders:#x}"
            ));
        }
        Ok(())
    }
}

/// Whether groups have no bit of a split pageblock.
fn group_of(compact: &Compact, groups: std::ops::Range<usize>) -> bool {
    let fresh = super::group::Group::new(compact.shape.block_order);
    compact.groups[groups].iter().all(|group| *group == fresh)
}
