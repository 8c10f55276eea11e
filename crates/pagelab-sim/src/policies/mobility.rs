//! Grouping by mobility as Linux has it: a list for each kind, and each pageblock belongs to one.
//!
//! In mm/page_alloc.c of all releases since 6.1 the order of `fallbacks` is the same, and so is the question
//! whether a pageblock is asked for (`can_steal_fallback`, since 6.15 `should_try_claim_block`). What is done
//! when the own list is empty changed twice: see [`Short`].

use crate::policy::{Policy, Short, Take};
use crate::words::Kind;

/// Linux 6.1 to 6.9.
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

/// Linux since 6.10: the free blocks of a pageblock are all on its owner's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict {
    /// 6.10 to 6.14 as first released (commit c0cd6f557b90); 6.12.y and 6.14.y took over what follows in May
    /// 2025.
    Cuts,
    /// 6.15 to 6.18 (commits c2f6ea38fc1b and 90abee6d7895).
    Claims,
    /// The same with `vm.defrag_mode=1` (commit e3aa7df331bc).
    Defrag,
}

impl Policy for Strict {
    fn lists(&self) -> u8 {
        Mobility.lists()
    }

    fn wanted(&self, kind: Kind) -> u8 {
        kind as u8
    }

    fn home(&self, _kind: Kind, block: u8) -> u8 {
        block
    }

    fn others(&self, wanted: u8) -> &'static [u8] {
        Mobility.others(wanted)
    }

    fn take(&self, wanted: u8, order: u8, block_order: u8) -> Take {
        Mobility.take(wanted, order, block_order)
    }

    fn short(&self) -> Short {
        match self {
            Strict::Cuts => Short::Cuts,
            Strict::Claims | Strict::Defrag => Short::Claims,
        }
    }

    fn avoids_mixing(&self) -> bool {
        *self == Strict::Defrag
    }
}
