//! The list-based strategy of Gorman and Whitcroft (Ottawa Linux Symposium 2006, section 5): a list for each
//! type at each order, no pageblocks. A block goes back to the list of its own type; a type that is short
//! takes from the largest block that another has. What is left of it becomes its own if the block was large
//! (`__rmqueue_fallback` of their patches of January 2006 against 2.6.16-rc1: `current_order >= MAX_ORDER /
//! 2`), and else stays with the other.

use crate::policies::mobility::Mobility;
use crate::policy::{Policy, Take};
use crate::words::Kind;

/// How many types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// EasyRclm, and all that is the kernel's.
    Two,
    /// EasyRclm, KernRclm and KernNoRclm.
    Three,
}

impl Policy for Lists {
    fn lists(&self) -> u8 {
        match self {
            Lists::Two => 2,
            Lists::Three => 3,
        }
    }

    fn wanted(&self, kind: Kind) -> u8 {
        match (self, kind) {
            (Lists::Two, Kind::Reclaimable) => Kind::Unmovable as u8,
            (_, kind) => kind as u8,
        }
    }

    fn home(&self, kind: Kind, _block: u8) -> u8 {
        self.wanted(kind)
    }

    fn others(&self, wanted: u8) -> &'static [u8] {
        match self {
            Lists::Two => [&[1], &[0]][usize::from(wanted == 1)],
            Lists::Three => Mobility.others(wanted),
        }
    }

    fn take(&self, _wanted: u8, order: u8, block_order: u8) -> Take {
        if order >= block_order.div_ceil(2) { Take::Largest } else { Take::Piece }
    }

    fn looks_ahead(&self) -> bool {
        false
    }
}
