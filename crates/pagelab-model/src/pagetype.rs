//! `/proc/pagetypeinfo`: free blocks and pageblocks by migratetype.

use crate::free_areas::{FreeAreas, ZoneKey};
use crate::units::Order;

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

impl Pagetypeinfo {
    /// The zones of the free-block tables, in the kernel's order.
    pub fn zone_keys(&self) -> Vec<&ZoneKey> {
        let mut keys: Vec<&ZoneKey> = self.free.iter().map(|row| &row.key).collect();
        keys.dedup();
        keys
    }

    /// Free blocks of one zone, summed over the migratetypes that `is_included` accepts; `None` if a sum
    /// exceeds 64 bits.
    pub fn free_areas(&self, key: &ZoneKey, is_included: impl Fn(&str) -> bool) -> Option<CappedAreas> {
        let orders = self.free.first().map_or(0, |row| row.counts.len());
        let mut sums = vec![CappedCount::Exact(0); orders];
        for row in self.free.iter().filter(|row| row.key == *key && is_included(&row.migratetype)) {
            for (sum, count) in sums.iter_mut().zip(&row.counts) {
                *sum = sum.checked_add(*count)?;
            }
        }
        let counts_min = FreeAreas::new(sums.iter().map(|count| count.at_least()).collect())?;
        let is_capped = sums.iter().map(|count| count.is_capped()).collect();
        Some(CappedAreas { counts_min, is_capped })
    }
}

/// Free blocks of which the kernel capped some counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CappedAreas {
    /// Counts by order; where the kernel capped one, there are more.
    pub counts_min: FreeAreas,
    /// By order, whether the kernel capped a count.
    pub is_capped: Vec<bool>,
}

impl CappedAreas {
    /// Whether every count is exact.
    pub fn is_exact(&self) -> bool {
        self.is_exact_from(Order(0))
    }

    /// Whether the counts from an order on are exact.
    pub fn is_exact_from(&self, order: Order) -> bool {
        !self.is_capped.iter().skip(order.index()).any(|&capped| capped)
    }

    /// Whether the counts below an order are exact.
    pub fn is_exact_below(&self, order: Order) -> bool {
        !self.is_capped.iter().take(order.index()).any(|&capped| capped)
    }
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

    /// Whether there are more.
    pub fn is_capped(self) -> bool {
        matches!(self, CappedCount::MoreThan(_))
    }

    /// The sum of two counts, unless it exceeds 64 bits: capped if one of them is.
    fn checked_add(self, other: CappedCount) -> Option<CappedCount> {
        let sum = self.at_least().checked_add(other.at_least())?;
        Some(match (self, other) {
            (CappedCount::Exact(_), CappedCount::Exact(_)) => CappedCount::Exact(sum),
            _ => CappedCount::MoreThan(sum),
        })
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
