//! `/proc/pagetypeinfo`: free blocks and pageblocks by migratetype.

use crate::Order;
use crate::free_areas::ZoneKey;

use serde::{Deserialize, Serialize};

/// Contents of pagetypeinfo. Migratetypes are the kernel's own names; new ones are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pagetypeinfo {
    /// Order of a pageblock.
    pub pageblock_order: Option<Order>,
    /// Base pages in a pageblock.
    pub pages_per_block: Option<u64>,
    /// Free blocks by order, a row for each zone and migratetype.
    pub free: Vec<MigratetypeFreeAreas>,
    /// Pageblocks by migratetype, a row for each zone.
    pub blocks: Vec<MigratetypePageblocks>,
    /// Pageblocks that have pages of another type than their own, by their own type; only a kernel booted
    /// with `page_owner=on` prints them.
    pub mixed: Vec<MigratetypePageblocks>,
}

/// Free blocks of one migratetype in one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratetypeFreeAreas {
    /// The zone.
    pub key: ZoneKey,
    /// The migratetype: `Unmovable`, `Movable`, `Reclaimable`, `HighAtomic`, `CMA`, `Isolate` …
    pub migratetype: String,
    /// Blocks by order.
    pub counts: Vec<CappedCount>,
}

/// A count that the kernel may have capped (5.4.2 and later print `>100000`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CappedCount {
    /// The exact count.
    Exact(u64),
    /// More than this many.
    MoreThan(u64),
}

impl CappedCount {
    /// The exact count or the lower bound.
    pub fn at_least(self) -> u64 {
        match self {
            CappedCount::Exact(n) | CappedCount::MoreThan(n) => n,
        }
    }
}

/// Pageblocks by migratetype in one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratetypePageblocks {
    /// The zone.
    pub key: ZoneKey,
    /// Migratetype and number of pageblocks, in the kernel's order.
    pub counts: Vec<(String, u64)>,
}
