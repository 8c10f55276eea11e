//! The allocator's books, counted twice: along the free lists, and frame by frame.

use crate::lists::State;
use crate::policy::{Policy, Short};
use crate::words::Wrong;
use crate::zone::Zone;

impl<P: Policy> Zone<P> {
    /// Checks all books: each free block stands on one list of its order, blocks do not overlap, no two free
    /// buddies stand side by side, and the sums agree.
    pub fn validate(&self) -> Result<(), Wrong> {
        let shape = self.shape();
        let wrong = |what: String| Err(Wrong::Books(what));
        let mut listed = vec![false; shape.frames as usize];
        let (mut frames, mut blocks) = (0u64, vec![0u32; usize::from(shape.max_order) + 1]);
        for list in 0..self.all_lists() {
            for order in 0..=shape.max_order {
                for at in self.lists().blocks(list, order) {
                    if self.lists().state(at) != State::free(order) {
                        return wrong(format!("{at:#x} is listed at order {order}, and is not free so"));
                    }
                    if std::mem::replace(&mut listed[at as usize], true) {
                        return wrong(format!("{at:#x} is listed twice"));
                    }
                    if !(shape.first + at).is_multiple_of(1 << order) {
                        return wrong(format!("{at:#x} is not aligned to order {order}"));
                    }
                    self.validate_owners(list, order, at)?;
                    frames += 1 << order;
                    blocks[usize::from(order)] += 1;
                }
            }
        }
        if frames != u64::from(self.free_frames()) || blocks != self.free_blocks() {
            return wrong(format!(
                "lists hold {frames} frames in blocks {blocks:?}, the books {} in {:?}",
                self.free_frames(),
                self.free_blocks()
            ));
        }
        self.validate_reserves()?;
        self.validate_states(&listed)
    }

    /// A free block lies on the list of its pageblocks, where the policy says so, and in reserves always.
    fn validate_owners(&self, list: u8, order: u8, at: u32) -> Result<(), Wrong> {
        let block = (at >> self.shape().block_order) as usize;
        let blocks = 1usize << order.saturating_sub(self.shape().block_order);
        let is_strict = self.policy().short().is_strict();
        let is_wrong =
            |&owner: &u8| owner != list && (is_strict || self.is_reserve(owner) || self.is_reserve(list));
        match self.owners()[block..block + blocks].iter().find(|owner| is_wrong(owner)) {
            Some(owner) => {
                let what = format!("{at:#x} of order {order} is on list {list}, its pageblock on {owner}");
                Err(Wrong::Books(what))
            }
            None => Ok(()),
        }
    }

    /// What is said of reserves is what their pageblocks and lists hold.
    fn validate_reserves(&self) -> Result<(), Wrong> {
        let (cma, highatomic) = (self.policy().lists(), self.policy().lists() + 1);
        let set_aside = self.owners().iter().filter(|&&owner| owner == highatomic).count() as u32;
        let set_aside = set_aside << self.shape().block_order;
        let free: u32 = match self.all_lists() > cma {
            true => (0..=self.shape().max_order)
                .map(|order| (self.lists().blocks(cma, order).count() as u32) << order)
                .sum(),
            false => 0,
        };
        let said = (self.highatomic_frames(), self.cma_free_frames());
        if (set_aside, free) != said {
            let what = format!("set aside and free of CMA: {:?}, the books say {said:?}", (set_aside, free));
            return Err(Wrong::Books(what));
        }
        Ok(())
    }

    /// Whether two free buddies may be merged: reserves and confined regions stay apart.
    fn are_of_one(&self, at: u32, buddy: u32, order: u8) -> bool {
        let owner = |at: u32| self.owners()[(at >> self.shape().block_order) as usize];
        let (one, other) = (owner(at), owner(buddy));
        let is_apart =
            self.policy().short() == Short::Border || self.is_reserve(one) || self.is_reserve(other);
        order < self.shape().block_order || one == other || !is_apart
    }

    /// Goes through all frames: blocks follow each other without a gap.
    fn validate_states(&self, listed: &[bool]) -> Result<(), Wrong> {
        let shape = self.shape();
        let wrong = |what: String| Err(Wrong::Books(what));
        let (mut at, mut free) = (0u32, 0u32);
        while at < shape.frames {
            if self.lists().owner(at) != self.owners()[(at >> shape.block_order) as usize] {
                return wrong(format!("{at:#x} and its pageblock are of two owners"));
            }
            let state = self.lists().state(at);
            let held = state.used_order().map(|(order, _)| order).or(state.kept_order());
            let order = match (state.free_order(), held) {
                (Some(order), _) => {
                    free += 1 << order;
                    if !listed[at as usize] {
                        return wrong(format!("{at:#x} is free and on no list"));
                    }
                    let buddy = ((shape.first + at) ^ (1 << order)).wrapping_sub(shape.first);
                    if order < shape.max_order
                        && buddy < shape.frames
                        && self.lists().state(buddy) == state
                        && self.are_of_one(at, buddy, order)
                    {
                        return wrong(format!("{at:#x} and its buddy are free at order {order}, unmerged"));
                    }
                    order
                }
                (None, Some(order)) => order,
                (None, None) => return wrong(format!("{at:#x} belongs to no block")),
            };
            let size = 1u32 << order;
            if size > shape.frames - at {
                return wrong(format!("{at:#x} of order {order} reaches out of the zone"));
            }
            if let Some(inside) = (at + 1..at + size).find(|&at| self.lists().state(at) != State::INSIDE) {
                return wrong(format!("{inside:#x} begins a block inside of that at {at:#x}"));
            }
            at += size;
        }
        if free != self.free_frames() {
            return wrong(format!("{free} frames are free, the books say {}", self.free_frames()));
        }
        Ok(())
    }
}
