//! Allocations that fell back into another migratetype's memory, and their callers.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::{Order, Pfn};

/// A migratetype as the kernel numbers it (include/linux/mmzone.h, `enum migratetype`, in this order since
/// 4.4). Numbers from 4 on depend on how the kernel was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MigrateType(pub i32);

impl MigrateType {
    /// Unmovable memory: kernel objects, page tables.
    pub const UNMOVABLE: MigrateType = MigrateType(0);
    /// Memory of programs and page cache.
    pub const MOVABLE: MigrateType = MigrateType(1);
    /// Kernel memory that is reclaimed under pressure: dentries, inodes.
    pub const RECLAIMABLE: MigrateType = MigrateType(2);

    /// The kernel's word for it, in lower case; `None` if the number's meaning depends on the kernel.
    pub fn name(self) -> Option<&'static str> {
        ["unmovable", "movable", "reclaimable", "highatomic"].get(usize::try_from(self.0).ok()?).copied()
    }
}

/// One allocation that found no free block of its own migratetype and took one of another
/// (`kmem:mm_page_alloc_extfrag`; include/trace/events/kmem.h, mm/page_alloc.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtfragEvent {
    /// First frame of the block.
    pub pfn: Pfn,
    /// The requested order.
    pub alloc_order: Order,
    /// The block that was taken.
    pub fallback_order: Order,
    /// The requested migratetype.
    pub alloc_migratetype: MigrateType,
    /// The migratetype whose free block was taken.
    pub fallback_migratetype: MigrateType,
    /// The pageblock has the requested migratetype: it was claimed whole, or had it before.
    pub change_ownership: bool,
}

impl ExtfragEvent {
    /// Whether the kernel calls the event fragmenting: the block that was taken is smaller than a pageblock.
    /// It depends on `fallback_order`, not on the requested order (include/trace/events/kmem.h, 6.18).
    pub fn is_fragmenting(&self, pageblock_order: Order) -> bool {
        self.fallback_order < pageblock_order
    }

    /// Whether it pollutes a movable pageblock: what cannot be moved at will took memory of what can.
    pub fn is_polluting(&self) -> bool {
        self.alloc_migratetype != MigrateType::MOVABLE && self.fallback_migratetype == MigrateType::MOVABLE
    }
}

/// Numbers of fallback events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackCounts {
    /// All of them.
    pub events: u64,
    /// Those that took a block smaller than a pageblock.
    pub fragmenting: u64,
    /// Unmovable or reclaimable allocations that took movable memory.
    #[serde(alias = "spoiling")]
    pub polluting: u64,
    /// Those of the polluting ones whose pageblock became the allocation's own: it is lost as a whole, but
    /// keeps its like together. The others leave a page that cannot be moved in a pageblock that stays
    /// movable.
    #[serde(alias = "spoiling_claimed")]
    pub polluting_claimed: u64,
}

impl FallbackCounts {
    /// Counts one event.
    pub fn add(&mut self, event: &ExtfragEvent, pageblock_order: Order) {
        let is_polluting = event.is_polluting();
        *self += FallbackCounts {
            events: 1,
            fragmenting: u64::from(event.is_fragmenting(pageblock_order)),
            polluting: u64::from(is_polluting),
            polluting_claimed: u64::from(is_polluting && event.change_ownership),
        };
    }
}

impl AddAssign for FallbackCounts {
    fn add_assign(&mut self, other: FallbackCounts) {
        self.events = self.events.saturating_add(other.events);
        self.fragmenting = self.fragmenting.saturating_add(other.fragmenting);
        self.polluting = self.polluting.saturating_add(other.polluting);
        self.polluting_claimed = self.polluting_claimed.saturating_add(other.polluting_claimed);
    }
}

/// Callers of allocations that fell back, each call stack once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackStacks {
    /// The stacks, in no order.
    pub stacks: Vec<FallbackStack>,
    /// Events whose stack was not kept, because there were too many different ones.
    #[serde(alias = "not_kept")]
    pub overflow: FallbackCounts,
    /// Events that did not get into the ring; they are in no other number.
    pub lost: u64,
    /// Notes about the frames, such as why functions have no names.
    pub notes: Vec<String>,
}

/// One call stack and its fallbacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackStack {
    /// Name of the thread's program (`comm`); `None` if it had exited.
    #[serde(alias = "process")]
    pub comm: Option<String>,
    /// Kernel functions, innermost first: names, or addresses if there is no name.
    pub kernel: Vec<String>,
    /// Frames of the program, innermost first: `/usr/bin/tar+0x1f30`.
    pub user: Vec<String>,
    /// Its fallbacks.
    pub counts: FallbackCounts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart_by_both_types_and_by_the_block_that_was_taken() {
        let (u, m, r) = (MigrateType::UNMOVABLE, MigrateType::MOVABLE, MigrateType::RECLAIMABLE);
        let pageblock = Order(9);
        // alloc, fallback, order taken, change_ownership: events, fragmenting, polluting, claimed
        let cases = [
            (u, m, 9, true, [1, 0, 1, 1]),
            (r, m, 3, false, [1, 1, 1, 0]),
            (m, u, 3, true, [1, 1, 0, 0]),
            (u, r, 10, true, [1, 0, 0, 0]),
        ];
        for (alloc_migratetype, fallback_migratetype, order, change_ownership, expected) in cases {
            let event = ExtfragEvent {
                pfn: Pfn(1),
                alloc_order: Order(0),
                fallback_order: Order(order),
                alloc_migratetype,
                fallback_migratetype,
                change_ownership,
            };
            let mut counts = FallbackCounts::default();
            counts.add(&event, pageblock);
            let got = [counts.events, counts.fragmenting, counts.polluting, counts.polluting_claimed];
            assert_eq!(got, expected, "{event:?}");
        }
        assert_eq!((m.name(), MigrateType(4).name(), MigrateType(-1).name()), (Some("movable"), None, None));
    }
}
