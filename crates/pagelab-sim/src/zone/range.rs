//! Taking what lies at a place: for who empties a range, and for who rebuilds a state.

use crate::lists::State;
use crate::policy::Policy;
use crate::words::{Frame, Kind, Wrong};

use super::Zone;

impl<P: Policy> Zone<P> {
    /// Allocates just the block of an order that begins at a frame: `false` if not all of it is free. It may
    /// lie in a larger free block, whose rest goes to the list that a freed block of this kind would go to
    /// (`break_down_buddy_pages`), or be made of smaller ones.
    pub fn take_at(&mut self, frame: Frame, order: u8, kind: Kind) -> Result<bool, Wrong> {
        if order > self.shape.max_order {
            return Err(Wrong::Order { order, max: self.shape.max_order });
        }
        let size = 1u32 << order;
        if !frame.is_multiple_of(size) || !self.shape.has(frame) || !self.shape.has(frame + (size - 1)) {
            return Err(Wrong::Outside(frame));
        }
        let at = frame - self.shape.first;
        let larger = (order..=self.shape.max_order)
            .find_map(|size| Some((self.free_at(frame >> size << size, size)?, size)));
        match larger {
            Some((from, found)) => self.carve((from, found), (at, order), kind),
            None if self.is_all_free(at, size) => {
                let mut part = at;
                while part < at + size {
                    let order = self.lists.state(part).free_order().unwrap_or(0);
                    self.remove(part, order);
                    self.lists.set(part, State::INSIDE);
                    // Parts of different pageblocks may lie on different lists.
                    self.count_cma(self.owners[(part >> self.shape.block_order) as usize], -(1 << order));
                    part += 1 << order;
                }
            }
            None => return Ok(false),
        }
        self.lists.set(at, State::used(order, kind));
        self.free -= size;
        Ok(true)
    }

    fn is_all_free(&self, at: u32, size: u32) -> bool {
        let mut part = at;
        while part < at + size {
            match self.lists.state(part).free_order() {
                Some(order) => part += 1 << order,
                None => return false,
            }
        }
        true
    }

    /// Takes a free block from its list, and puts all of it back but the block of an order at `target`.
    fn carve(&mut self, (from, found): (u32, u8), (target, order): (u32, u8), kind: Kind) {
        let owner = self.owners[(from >> self.shape.block_order) as usize];
        let list = if self.is_reserve(owner) { owner } else { self.policy.home(kind, owner) };
        self.remove(from, found);
        self.lists.set(from, State::INSIDE);
        self.count_cma(owner, -(1 << order));
        let mut at = from;
        for half in (order..found).rev() {
            let upper = at + (1 << half);
            let (inner, outer) = if target >= upper { (upper, at) } else { (at, upper) };
            self.add(list, half, outer, false);
            at = inner;
        }
    }
}
