//! What a placement policy decides: on which list a block lies, and what is taken from the list of another
//! kind. The policies themselves are in [`crate::policies`].

use std::fmt::Debug;

use crate::words::Kind;

pub use crate::policies::lists::Lists;
pub use crate::policies::mobility::Mobility;
pub use crate::policies::standard::Standard;

/// How much a request takes from a list that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All free blocks of the pageblock, and the pageblock itself if enough of it is alike.
    Pageblock,
    /// One block, the smallest that will do.
    Smallest,
    /// One block, the largest.
    Largest,
    /// What is asked for, out of the largest block; the rest stays on its list.
    Piece,
}

/// How a request is served whose own list is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// Free blocks move to the list that is short, whoever owns their pageblock, and it is served from there:
    /// Linux up to 6.9.
    Moves,
    /// The pageblock of the largest block is claimed; if too little of it is alike, what is asked for is cut
    /// out of that block, and the rest stays with its owner: `steal_suitable_fallback` of Linux 6.10 to 6.14.
    Cuts,
    /// Pageblocks are tried from the largest block down until one can be claimed; then what is asked for is
    /// cut out of the smallest block: `__rmqueue_claim` and `__rmqueue_steal` of Linux 6.15 to 6.18.
    Claims,
    /// List 0 owns the pageblocks below a border, list 1 those above, and the border moves over pageblocks
    /// that are wholly free.
    Border,
}

impl Short {
    /// Whether each free block lies on the list that owns its pageblock.
    pub fn is_strict(self) -> bool {
        self != Short::Moves
    }
}

/// A policy. All decisions are by numbers: lists are numbered from 0.
pub trait Policy: Debug {
    /// How many lists there are at each order; 1 to 8.
    fn lists(&self) -> u8;

    /// The list that an allocation of this kind takes from.
    fn wanted(&self, kind: Kind) -> u8;

    /// The list that a block of this kind goes to when it is freed, in a pageblock that belongs to a list.
    fn home(&self, kind: Kind, block: u8) -> u8;

    /// The lists that are looked at when the own one is empty, the best first.
    fn others(&self, wanted: u8) -> &'static [u8];

    /// What is taken when the largest block that others have is of this order.
    fn take(&self, wanted: u8, order: u8, block_order: u8) -> Take;

    /// How a request is served whose own list is empty. Lists that are not [`Short::Moves`] are strict:
    /// `home` must give the pageblock's list.
    fn short(&self) -> Short {
        Short::Moves
    }

    /// Whether a request asks for pageblocks that are wholly free before it mixes kinds in one, and reclaims
    /// and compacts in between (`vm.defrag_mode` of Linux 6.15). The caller of the allocator acts on it.
    fn avoids_mixing(&self) -> bool {
        false
    }

    /// Whether a freed block that is likely to be merged soon goes to the end of its list
    /// (`buddy_merge_likely`, Linux 2.6.35 and later).
    fn looks_ahead(&self) -> bool {
        true
    }

    /// The list that a pageblock belongs to when all is free, of so many in the zone.
    fn owner_at_start(&self, _block: u32, _blocks: u32) -> u8 {
        self.wanted(Kind::Movable)
    }
}

/// So that one that is chosen at run time can stand where a type is asked for.
impl<P: Policy + ?Sized> Policy for &P {
    fn lists(&self) -> u8 {
        (**self).lists()
    }

    fn wanted(&self, kind: Kind) -> u8 {
        (**self).wanted(kind)
    }

    fn home(&self, kind: Kind, block: u8) -> u8 {
        (**self).home(kind, block)
    }

    fn others(&self, wanted: u8) -> &'static [u8] {
        (**self).others(wanted)
    }

    fn take(&self, wanted: u8, order: u8, block_order: u8) -> Take {
        (**self).take(wanted, order, block_order)
    }

    fn short(&self) -> Short {
        (**self).short()
    }

    fn avoids_mixing(&self) -> bool {
        (**self).avoids_mixing()
    }

    fn looks_ahead(&self) -> bool {
        (**self).looks_ahead()
    }

    fn owner_at_start(&self, block: u32, blocks: u32) -> u8 {
        (**self).owner_at_start(block, blocks)
    }
}
