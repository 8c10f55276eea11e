//! `/proc/zoneinfo`: watermarks, sizes and statistics of each zone, and of each node.

use crate::free_areas::ZoneKey;
use crate::{Counters, NodeId, Pages, Pfn};

use serde::{Deserialize, Serialize};

/// All nodes and zones, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zoneinfo {
    /// Per-node statistics; kernels before 4.8 have none.
    pub nodes: Vec<NodeStats>,
    /// The zones.
    pub zones: Vec<ZoneEntry>,
}

impl Zoneinfo {
    /// One zone by its key.
    pub fn zone(&self, key: &ZoneKey) -> Option<&ZoneEntry> {
        self.zones.iter().find(|zone| &zone.key == key)
    }
}

/// The `per-node stats` block of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// The node.
    pub node: NodeId,
    /// Its counters, in pages or events as the kernel counts them.
    pub stats: Counters,
}

/// One zone. A line that the kernel at hand does not print is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneEntry {
    /// Which zone.
    pub key: ZoneKey,
    /// Pages free, from the line `pages free` (per-CPU lists not included).
    pub free: Option<Pages>,
    /// Temporary rise of the watermarks after fallbacks (5.0 and later).
    pub boost: Option<Pages>,
    /// Watermark below which only emergencies are served.
    pub min: Option<Pages>,
    /// Watermark at which kswapd wakes.
    pub low: Option<Pages>,
    /// Watermark at which kswapd sleeps again.
    pub high: Option<Pages>,
    /// Watermark for promotion between memory tiers (6.1 and later).
    pub promo: Option<Pages>,
    /// Frames between the zone's first and last, holes included.
    pub spanned: Option<Pages>,
    /// Frames with memory behind them.
    pub present: Option<Pages>,
    /// Frames that the page allocator manages: present less reserved and not yet initialised.
    pub managed: Option<Pages>,
    /// Frames reserved for CMA.
    pub cma: Option<Pages>,
    /// `lowmem_reserve` by zone index.
    pub protection: Vec<u64>,
    /// The zone's counters.
    pub stats: Counters,
    /// Per-CPU page lists.
    pub pagesets: Vec<PerCpuPageset>,
    /// First frame of the zone.
    pub start: Option<Pfn>,
}

/// A per-CPU page list of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerCpuPageset {
    /// The CPU.
    pub cpu: u32,
    /// Pages on the list now.
    pub count: Pages,
    /// Pages above which the list is drained.
    pub high: Option<Pages>,
    /// Pages moved at a time.
    pub batch: Option<Pages>,
    /// Lowest value that the kernel tunes `high` to (6.7 and later).
    pub high_min: Option<Pages>,
    /// Highest value that the kernel tunes `high` to (6.7 and later).
    pub high_max: Option<Pages>,
    /// The zone's counters may be off by this much because of this CPU.
    pub stat_threshold: Option<u64>,
}

impl ZoneEntry {
    /// A zone of which unknown yet but its name.
    pub fn empty(key: ZoneKey) -> ZoneEntry {
        ZoneEntry { key, ..ZoneEntry::default() }
    }

    /// The frame after the zone's last, where start and span are known.
    pub fn end(&self) -> Option<Pfn> {
        Some(self.start?.saturating_add(self.spanned?))
    }

    /// Pages on all per-CPU lists.
    pub fn count_pcp_pages(&self) -> Pages {
        Pages(self.pagesets.iter().map(|set| set.count.0).fold(0, u64::saturating_add))
    }
}
