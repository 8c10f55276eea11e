//! Placement policies: on which list a block lies, and what is taken from the list of another kind.

use crate::words::Kind;

/// How much a request takes from a list that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All free blocks of the pageblock, and the pageblock itself if enough of it is alike.
    Pageblock,
    /// One block, the smallest that will do.
    Smallest,
    /// One block, the largest.
    Largest,
}

/// A policy. All decisions are by numbers: lists are numbered from 0.
pub trait Policy: std::fmt::Debug {
    /// How many lists there are at each order.
    fn lists(&self) -> u8;

    /// The list that an allocation of this kind takes from.
    fn wanted(&self, kind: Kind) -> u8;

    /// The list that a block of this kind goes to when it is freed, in a pageblock that belongs to a list.
    fn home(&self, kind: Kind, block: u8) -> u8;

    /// The lists that are looked at when the own one is empty, the best first.
    fn others(&self, wanted: u8) -> &'static [u8];

    /// What is taken when the largest block that others have is of this order.
    fn take(&self, wanted: u8, order: u8, block_order: u8) -> Take;
}

impl Policy for &'static (dyn Policy + Sync) {
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
}

/// Binary buddies with one list at each order: Linux up to 2.6.23.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standard;

impl Policy for Standard {
    fn lists(&self) -> u8 {
        1
    }

    fn wanted(&self, _kind: Kind) -> u8 {
        0
    }

    fn home(&self, _kind: Kind, _block: u8) -> u8 {
        0
    }

    fn others(&self, _wanted: u8) -> &'static [u8] {
        &[]
    }

    fn take(&self, _wanted: u8, _order: u8, _block_order: u8) -> Take {
        Take::Smallest
    }
}

/// Grouping by mobility as Linux has it (mm/page_alloc.c of 6.1 to 6.8: `fallbacks`, `can_steal_fallback`,
/// `__rmqueue_fallback`, `steal_suitable_fallback`): a list for each kind, and each pageblock belongs to one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mobility;

impl Policy for Mobility {
    fn lists(&self) -> u8 {
        Kind::ALL.len() as u8
    }

    fn wanted(&self, kind: Kind) -> u8 {
        kind as u8
    }

    fn home(&self, _kind: Kind, block: u8) -> u8 {
        block
    }

    fn others(&self, wanted: u8) -> &'static [u8] {
        const UNMOVABLE: u8 = Kind::Unmovable as u8;
        const MOVABLE: u8 = Kind::Movable as u8;
        const RECLAIMABLE: u8 = Kind::Reclaimable as u8;
        match wanted {
            UNMOVABLE => &[RECLAIMABLE, MOVABLE],
            MOVABLE => &[RECLAIMABLE, UNMOVABLE],
            _ => &[UNMOVABLE, MOVABLE],
        }
    }

    fn take(&self, wanted: u8, order: u8, block_order: u8) -> Take {
        if order >= block_order / 2 || wanted != Kind::Movable as u8 {
            Take::Pageblock
        } else {
            Take::Smallest
        }
    }
}

/// The list-based strategy of Gorman and Whitcroft (Ottawa Linux Symposium 2006, section 5): a list for each
/// type at each order, no pageblocks. A block goes back to the list of its own type; a type that is short
/// takes the largest block that another has, and keeps what is left of it.
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

    fn take(&self, _wanted: u8, _order: u8, _block_order: u8) -> Take {
        Take::Largest
    }
}
