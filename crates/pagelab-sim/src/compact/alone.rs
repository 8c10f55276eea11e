//! The usual way through the compact engine: frames whose buddies are allocated.

use super::planted::Bug;
use super::{Compact, FULL};
use crate::words::{Frame, Kind};

impl Compact {
    /// By far the most requests: a frame whose buddy is allocated, of the pageblock that is asked first.
    /// `None`: it is for the others to say.
    #[inline(always)]
    pub(super) fn take_alone(&mut self, kind: Kind) -> Option<Frame> {
        let (block, _) = self.smallest(kind as u8, 0)?;
        let orders = self.lists.orders(block);
        let alone = orders & 0x0101_0101;
        if alone == 0 || self.has(Bug::LargestFirst) {
            return None;
        }
        let group = alone.trailing_zeros() / 8;
        let (first, _) = self.groups_of(block);
        let (at, is_left) = self.groups.get_mut(first + group as usize)?.take_alone()?;
        let orders = orders & !(u32::from(!is_left) << (8 * group));
        self.lists.set_orders(block, orders);
        if orders == 0 {
            self.lists.remove(block);
            self.lists.set(block, FULL);
        }
        self.blocks[0] -= 1;
        self.free -= 1;
        Some(self.shape.first + (block << self.shape.block_order) + (group << self.top()) + at)
    }

    /// By far the most frees: of one frame whose buddy is one frame's block. Whether it was so.
    #[inline(always)]
    pub(super) fn free_alone(&mut self, frame: Frame) -> bool {
        let at = frame.wrapping_sub(self.shape.first);
        let (group, place) = self.group_of(at);
        // A pageblock that is not split has no bits of frames, and neither has one behind the last.
        if !self.groups.get_mut(group).is_some_and(|group| group.free_alone(place)) {
            return false;
        }
        let block = at >> self.shape.block_order;
        let orders = self.lists.orders(block);
        self.lists.set_orders(block, orders | 1 << (8 * (group - self.groups_of(block).0)));
        if orders == 0 {
            self.list(self.lists.owner(block), 0, block, false);
        }
        self.blocks[0] += 1;
        self.free += 1;
        true
    }
}
