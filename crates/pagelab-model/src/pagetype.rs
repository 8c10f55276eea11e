//! `/proc/pagetypeinfo`: free blocks and pageblocks by migratetype.

use crate::Order;
use crate::free_areas::ZoneKey;

use serde::{Deserialize, Serialize};

/// Everything that pagetypeinfo prints. Migratetypes are the kernel's own words; new ones are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pagetypeinfo {
    /// Order of a pageblock.
    pub pageblock_order: Option<Order>,
    /// Base pages in a pageblock.
    pub pages_per_block: Option<u64>,
    /// Free blocks by order, a row for each zone and migratetype.
    pub free: Vec<TypeFree>,
    /// Pageblocks by migratetype, a row for each zone.
    pub blocks: Vec<TypeBlocks>,
    /// Pageblocks that hold pages of another type than their own, by their own type; only a kernel
    /// that was booted with `page_owner=on` prints them.
    pub mixed: Vec<TypeBlocks>,
}

/// Free blocks of one migratetype in one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeFree {
    /// The zone.
    pub key: ZoneKey,
    /// The migratetype: `Unmovable`, `Movable`, `Reclaimable`, `HighAtomic`, `CMA`, `Isolate` …
    pub migratetype: String,
    /// Blocks by order.
    pub counts: Vec<TypeCount>,
}

/// A count that the kernel may have stopped at a cap (5.4.2 and later print `>100000`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TypeCount {
    /// The exact count.
    Exact(u64),
    /// More than this many.
    MoreThan(u64),
}

impl TypeCount {
    /// The exact count or the bound from below.
    pub fn at_least(self) -> u64 {
        match self {
            TypeCount::Exact(n) | TypeCount::MoreThan(n) => n,
        }
    }
}

/// Pageblocks by migratetype in one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeBlocks {
    /// The zone.
    pub key: ZoneKey,
    /// Migratetype and number of pageblocks, in the kernel's order.
    pub counts: Vec<(String, u64)>,
}
