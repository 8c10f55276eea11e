//! What lies at a frame, for scanners that go through memory by address.

use super::Zone;
use crate::policy::Policy;
use crate::words::{Frame, Kind};

/// What lies at a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A free block of this order begins there.
    Free(u8),
    /// A block of this order begins there that a processor keeps.
    Kept(u8),
    /// An allocated block of this order begins there.
    Used(u8),
    /// The inside of a block.
    Inside,
}

impl<P: Policy> Zone<P> {
    /// What lies at a frame of the zone.
    pub fn spot(&self, frame: Frame) -> Spot {
        let state = self.lists.state(frame - self.shape.first);
        match (state.free_order(), state.kept_order(), state.used_order()) {
            (Some(order), _, _) => Spot::Free(order),
            (_, Some(order), _) => Spot::Kept(order),
            (_, _, Some((order, _))) => Spot::Used(order),
            _ => Spot::Inside,
        }
    }

    /// Whether the pageblock of a frame belongs to a kind; where there are no owners, each does.
    pub fn is_block_of(&self, frame: Frame, kind: Kind) -> bool {
        let block = (frame - self.shape.first) >> self.shape.block_order;
        self.owners[block as usize] == self.policy.wanted(kind)
    }
}
