//! The ways of reclaim: what is taken for a large block beside the oldest pages, or in their place. One file
//! each, and the table of them. How much is looked at, and when reclaim is done, is not theirs.

pub mod ground;
pub mod linear;
pub mod lru;
pub mod lumpy;

use std::fmt::Debug;

use crate::words::{Frame, Wrong};

pub use ground::{Ground, Page, Tried};

/// A way of reclaim. All decisions are for one zone and one order that is short; whether a page can be
/// reclaimed at all is the machine's to say.
pub trait Reclaim: Debug {
    /// Whether direct reclaim for this order empties memory by its place ([`Reclaim::empty`]) in place of
    /// the oldest pages. Then it ends as soon as there is a block, and not after so many pages.
    fn empties(&self, _order: u8) -> bool {
        false
    }

    /// Empties memory of a zone at one priority: pages freed. Asked where [`Reclaim::empties`] says so.
    fn empty(&self, _ground: &mut Ground<'_>) -> Result<u32, Wrong> {
        Ok(0)
    }

    /// Tries what goes along with the page at the end of its list, which lay at this frame. Asked for orders
    /// above 0, also in the background.
    fn beside(&self, _ground: &mut Ground<'_>, _frame: Frame) -> Result<Tried, Wrong> {
        Ok(Tried::default())
    }

    /// Whether a page that was used since reclaim saw it last is spared, for this order.
    fn spares_used(&self, _order: u8) -> bool {
        true
    }
}

/// A way that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it is called behind a `+` of a scheme.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is from: kernel file and release, or the paper.
    pub source: &'static str,
    /// The way.
    pub way: &'static (dyn Reclaim + Sync),
}

/// There is one of a name.
impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

/// All of them. The first is that of a scheme which names none.
pub const TABLE: &[Entry] = &[
    Entry {
        name: "lru",
        summary: "reclaim takes the oldest pages, wherever they lie",
        source: "mm/vmscan.c of Linux up to 2.6.22, and since 3.5",
        way: &lru::Lru,
    },
    Entry {
        name: "linear",
        summary: "for large blocks, reclaim empties aligned regions",
        source: "Gorman and Whitcroft 2006, section 10",
        way: &linear::Linear,
    },
    Entry {
        name: "lumpy",
        summary: "reclaim takes the neighbours of the oldest page too",
        source: "Linux 2.6.23 to 3.4",
        way: &lumpy::Lumpy,
    },
];

/// The oldest pages alone.
pub const LRU: &Entry = &TABLE[0];

/// The ways that a scheme can name.
pub fn named() -> &'static [Entry] {
    &TABLE[1..]
}

/// The one of a name.
pub fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_chosen_from() {
        for entry in TABLE {
            assert_eq!(find(entry.name).unwrap().summary, entry.summary, "two of one name");
            assert!(entry.summary.len() <= 80 && !entry.source.is_empty(), "{}", entry.name);
            // A word of a scheme stands for one thing.
            assert!(crate::policies::find(entry.name).is_none(), "{} is a placement policy", entry.name);
        }
        assert_eq!(LRU.name, "lru");
    }

    /// Pages go by their age for a base page, whatever the way.
    #[test]
    fn one_page_is_never_reclaimed_by_its_place() {
        for entry in TABLE {
            assert!(!entry.way.empties(0) && entry.way.spares_used(0), "{}", entry.name);
        }
    }
}
