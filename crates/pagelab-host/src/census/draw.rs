//! Drawing pageblocks at random, without replacement, from each zone, by a seed.

use std::collections::HashSet;

use pagelab_model::seed::SplitMix64;
use pagelab_model::{Order, PageClass, Zoneinfo};

use super::frames::{Range, Segment, joined};
use super::scan::Cluster;

/// Clusters drawn from each zone at least, so that a small zone is not missed.
const PER_ZONE_MIN: u64 = 32;

/// A population of clusters by zone, and what was drawn of it. A cluster is an aligned range of the size of
/// a huge page, or of a pageblock where that is larger.
#[derive(Debug)]
pub(super) struct Draw {
    pub seed: u64,
    cluster_order: Order,
    /// For each zone the ranges of cluster numbers that touch memory.
    zones: Vec<Vec<Range>>,
    /// For each zone how many clusters were read.
    read: Vec<u64>,
}

impl Draw {
    pub fn new(segments: &[Segment], zoneinfo: &Zoneinfo, cluster_order: Order, seed: u64) -> Draw {
        let numbers = |segment: &Segment| {
            (segment.first >> cluster_order.0, ((segment.end - 1) >> cluster_order.0) + 1)
        };
        let memory = |zone: usize| {
            let own = segments.iter().filter(|s| s.zone == zone && s.zero == PageClass::Unknown);
            joined(own.map(numbers).collect())
        };
        let zones: Vec<Vec<Range>> = (0..zoneinfo.zones.len()).map(memory).collect();
        Draw { seed, cluster_order, read: vec![0; zones.len()], zones }
    }

    /// Clusters of a zone, drawn or not.
    pub fn clusters_total(&self, zone: usize) -> u64 {
        self.zones.get(zone).map_or(0, |ranges| ranges.iter().map(|(first, end)| end - first).sum())
    }

    /// Blocks of `block_order` in a cluster.
    pub fn blocks_per_cluster(&self, block_order: Order) -> u64 {
        self.cluster_order.pages().0 / block_order.pages().0
    }

    /// Clusters of a zone that were read.
    pub fn clusters_read(&self, zone: usize) -> u64 {
        self.read.get(zone).copied().unwrap_or(0)
    }

    /// About `wanted` clusters, from each zone in proportion to its size and at least some, in random order.
    pub fn clusters(&self, wanted: usize) -> Vec<Cluster> {
        let mut random = SplitMix64::new(self.seed);
        let total: u64 = (0..self.zones.len()).map(|zone| self.clusters_total(zone)).sum();
        let mut drawn = Vec::new();
        for (zone, ranges) in self.zones.iter().enumerate() {
            let size = self.clusters_total(zone);
            let share = u128::from(size) * wanted as u128 / u128::from(total.max(1));
            let take = u64::try_from(share).unwrap_or(u64::MAX).max(PER_ZONE_MIN).min(size);
            drawn.extend(distinct(&mut random, take, size).into_iter().filter_map(|index| {
                let number = nth(ranges, index)?;
                let first = number << self.cluster_order.0;
                Some(Cluster { zone, first, end: first.saturating_add(self.cluster_order.pages().0) })
            }));
        }
        for last in (1..drawn.len()).rev() {
            drawn.swap(last, random.below(last as u64 + 1) as usize);
        }
        drawn
    }

    /// Remembers which clusters were read.
    pub fn keep(&mut self, read: &[Cluster]) {
        for cluster in read {
            self.read[cluster.zone] += 1;
        }
    }
}

/// `take` different numbers below `size`, by Floyd's algorithm: each set is equally likely.
fn distinct(random: &mut SplitMix64, take: u64, size: u64) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for top in size.saturating_sub(take)..size {
        let drawn = random.below(top + 1);
        let number = if seen.insert(drawn) { drawn } else { top };
        seen.insert(number);
        out.push(number);
    }
    out
}

/// The number at `index` of ascending ranges.
fn nth(ranges: &[Range], mut index: u64) -> Option<u64> {
    for (first, end) in ranges {
        if index < end - first {
            return Some(first + index);
        }
        index -= end - first;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::{NodeId, ZoneInfo, ZoneKey};

    #[test]
    fn draws_are_distinct_and_even() {
        let mut random = SplitMix64::new(7);
        let mut hits = [0u32; 20];
        for _ in 0..4000 {
            let set = distinct(&mut random, 5, 20);
            assert_eq!(set.iter().collect::<HashSet<_>>().len(), 5);
            set.iter().for_each(|&at| hits[at as usize] += 1);
        }
        // 1000 expected each, with a standard deviation of 27.
        assert!(hits.iter().all(|&n| (880..=1120).contains(&n)), "{hits:?}");
        let mut all = distinct(&mut random, 20, 20);
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn clusters_come_from_memory_only_and_small_zones_are_not_missed() {
        let segment = |first: u64, end: u64, zone, zero| Segment { first, end, zone, zero };
        let segments = [
            segment(1, 4096, 0, PageClass::Unknown),
            segment(4096, 8192, 1, PageClass::Hole),
            segment(8192, 1 << 22, 1, PageClass::Unknown),
        ];
        let zoneinfo = Zoneinfo {
            nodes: Vec::new(),
            zones: vec![ZoneInfo::empty(ZoneKey { node: NodeId(0), zone: String::new() }); 2],
        };
        let draw = Draw::new(&segments, &zoneinfo, Order(9), 3);
        let clusters = draw.clusters(100);
        assert_eq!(clusters.iter().filter(|c| c.zone == 0).count(), 8);
        assert!(clusters.iter().all(|c| c.zone == 0 && c.end <= 4096 || c.first >= 8192));
        assert_eq!(clusters, draw.clusters(100));
    }
}
