//! Free blocks by order, for a zone and for a machine, as in `/proc/buddyinfo`.

use crate::{NodeId, Order};

use serde::{Deserialize, Serialize};

/// A zone: its node and its name. Reports of old kernels may not name a node; it is then node 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ZoneKey {
    /// The NUMA node.
    pub node: NodeId,
    /// The kernel's name for the zone: `DMA32`, `Normal`, `HighMem`, `Movable` …
    pub zone: String,
}

impl ZoneKey {
    /// Maximum length of a zone name in bytes; the kernel's own have at most 7.
    pub const NAME_MAX: usize = 32;
}

/// Free blocks by order; the index is the order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct FreeAreas {
    counts: Vec<u64>,
}

impl TryFrom<Vec<u64>> for FreeAreas {
    type Error = &'static str;

    fn try_from(counts: Vec<u64>) -> Result<FreeAreas, Self::Error> {
        FreeAreas::new(counts).ok_or("too many orders")
    }
}

impl From<FreeAreas> for Vec<u64> {
    fn from(areas: FreeAreas) -> Vec<u64> {
        areas.counts
    }
}

impl FreeAreas {
    /// At most this many orders: a block of order 63 is the largest that 64-bit frame numbers can hold.
    pub const ORDERS_MAX: usize = 64;

    /// Free areas from counts by order; `None` for more than [`FreeAreas::ORDERS_MAX`] orders.
    pub fn new(counts: Vec<u64>) -> Option<FreeAreas> {
        (counts.len() <= FreeAreas::ORDERS_MAX).then_some(FreeAreas { counts })
    }

    /// Number of orders (the largest order is one less).
    pub fn orders(&self) -> usize {
        self.counts.len()
    }

    /// Free blocks of exactly `order`; 0 above the largest.
    pub fn blocks(&self, order: Order) -> u64 {
        self.counts.get(order.index()).copied().unwrap_or(0)
    }

    /// Counts by order.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Counts by order, for overwriting in place by a reader.
    pub fn counts_mut(&mut self) -> &mut [u64] {
        &mut self.counts
    }

    /// All free base pages. Counts of up to 2^63 blocks of order 63 do not overflow 128 bits.
    pub fn free_pages(&self) -> u128 {
        self.free_pages_from_order(Order(0))
    }

    /// Free base pages in blocks of `order` or larger.
    pub fn free_pages_from_order(&self, order: Order) -> u128 {
        self.counts.iter().enumerate().skip(order.index()).map(|(j, &n)| u128::from(n) << j).sum()
    }

    /// All free blocks of any order.
    pub fn blocks_total(&self) -> u128 {
        self.counts.iter().map(|&n| u128::from(n)).sum()
    }

    /// Number of available blocks of `order`: larger blocks are split.
    pub fn blocks_suitable(&self, order: Order) -> u128 {
        self.free_pages_from_order(order).checked_shr(u32::from(order.0)).unwrap_or(0)
    }
}

/// One zone's free blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneFreeAreas {
    /// The zone.
    pub key: ZoneKey,
    /// Its free blocks by order.
    pub areas: FreeAreas,
}

/// All zones' free blocks, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuddyInfo {
    /// The zones.
    pub zones: Vec<ZoneFreeAreas>,
}

impl BuddyInfo {
    /// More zones than any kernel can have: 1024 nodes (the largest NODES_SHIFT is 10) of at most 6 zones.
    pub const ZONES_MAX: usize = 1024 * 6;

    /// All free base pages of the machine.
    pub fn free_pages(&self) -> u128 {
        self.zones.iter().map(|zone| zone.areas.free_pages()).sum()
    }

    /// The free areas of one zone.
    pub fn zone(&self, key: &ZoneKey) -> Option<&FreeAreas> {
        self.zones.iter().find(|zone| &zone.key == key).map(|zone| &zone.areas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_up_to_two_to_the_63_do_not_overflow() {
        let areas = FreeAreas::new(vec![1 << 63; FreeAreas::ORDERS_MAX]).unwrap();
        assert_eq!(areas.free_pages(), (1u128 << 127) - (1u128 << 63));
        assert_eq!(areas.blocks_total(), 1 << 69);
        assert_eq!(areas.blocks_suitable(Order(63)), 1 << 63);
        assert_eq!(areas.blocks_suitable(Order(200)), 0);
        assert_eq!(FreeAreas::new(vec![0; 65]), None);
    }
}
