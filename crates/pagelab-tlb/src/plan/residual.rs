//! Remaining cost of huge pages: TLB entries, and a walk after each eviction.
//!
//! An entry is evicted after as many insertions of others as there are entries. After Che, Tung and
//! Wang (IEEE JSAC 2002) there is one time T, counted in walks, for which an unused entry stays: a huge page
//! that is used r times as often as there are walks is there with probability 1 − exp(−r T), and T is
//! the one for which the expected number of entries in use is what there are.

use pagelab_model::profile::WalkCostCurve;
use pagelab_model::{Bytes, TlbProfile};

use super::{RankedMapping, Region};
use crate::cost::{ENTRIES_PER_LINE, walk_cost_ps};
use crate::grid;

/// Entries if the profile has no TLB: those of Intel's second level since Broadwell, rounded down.
const DEFAULT_ENTRIES: f64 = 1024.0;

/// The TLB that pages compete for.
pub(super) struct TlbContention<'a> {
    entries: f64,
    page: Bytes,
    walk_cost: Option<&'a WalkCostCurve>,
    /// All walks of the profiled run.
    walks: f64,
}

impl<'a> TlbContention<'a> {
    pub fn from_profile(
        profile: &TlbProfile,
        page: Bytes,
        walk_cost: Option<&'a WalkCostCurve>,
    ) -> TlbContention<'a> {
        let reach = profile.tlb.as_ref().and_then(|tlb| tlb.reach(page));
        let entries = reach.map_or(DEFAULT_ENTRIES, |reach| (reach.0 / page.0.max(1)) as f64).max(1.0);
        let walks: f64 = profile.images.iter().map(|image| super::count_walks(image) as f64).sum();
        TlbContention { entries, page, walk_cost, walks }
    }

    /// Sets the remaining cost of each region if it alone is on a huge page.
    pub fn fill_residuals(&self, regions: &mut [Region], mappings: &[RankedMapping]) {
        for region in regions {
            let remaining =
                self.residual_cost(std::slice::from_ref(region), mappings, self.walks - region.misses);
            region.residual = remaining.min(region.cost);
        }
    }

    /// The saving of the first `n` regions together.
    pub fn combined_saving(&self, regions: &[Region], mappings: &[RankedMapping], n: usize) -> f64 {
        let huge_regions = &regions[..n.min(regions.len())];
        let misses: f64 = huge_regions.iter().map(|region| region.misses).sum();
        let cost: f64 = huge_regions.iter().map(|region| region.cost).sum();
        (cost - self.residual_cost(huge_regions, mappings, (self.walks - misses).max(0.0))).max(0.0)
    }

    /// The remaining cost of `huge` regions among `walks` walks of base pages.
    fn residual_cost(&self, huge: &[Region], mappings: &[RankedMapping], walks: f64) -> f64 {
        let uses: Vec<f64> =
            huge.iter().map(|region| region.accesses.unwrap_or(region.misses).max(region.misses)).collect();
        let walk_counts = expected_walks(&uses, walks, self.entries);
        let all = walks + walk_counts.iter().sum::<f64>();
        let Some(walk_cost) = self.walk_cost else { return walk_counts.iter().sum() };
        // A line of the next level maps eight huge pages: its walks are those of all of them.
        let line = |region: &Region| {
            let base = mappings
                .get(region.mapping)
                .map_or(0, |mapping| grid::base_address(&mapping.key, mapping.start));
            (region.mapping, base.saturating_add(region.offset) / self.page.0.max(1) / ENTRIES_PER_LINE)
        };
        let mut by_line = std::collections::HashMap::new();
        for (region, walk_count) in huge.iter().zip(&walk_counts) {
            *by_line.entry(line(region)).or_insert(0.0) += walk_count;
        }
        let line_walk_ps =
            |walks: f64| walk_cost_ps(walk_cost, (all / walks.max(f64::MIN_POSITIVE)).max(1.0).log2());
        by_line.values().filter(|walks| **walks > 0.0).map(|&walks| walks * line_walk_ps(walks)).sum()
    }
}

/// The walks of each huge page, if they are used so often among `walks` other walks.
fn expected_walks(uses: &[f64], walks: f64, entries: f64) -> Vec<f64> {
    let used = uses.iter().filter(|uses| **uses > 0.0).count() as f64;
    if used <= entries && walks <= 0.0 {
        return vec![0.0; uses.len()];
    }
    // In use at time t, in which each of the other walks brings an entry of its own.
    let used_entries = |t: f64| walks * t + uses.iter().map(|uses| 1.0 - (-uses * t).exp()).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while used_entries(high) > entries && high > f64::MIN_POSITIVE {
        high /= 2.0;
    }
    while used_entries(high) < entries && high < 1e18 {
        (low, high) = (high, high * 2.0);
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if used_entries(middle) < entries { low = middle } else { high = middle }
    }
    uses.iter().map(|uses| uses * (-uses * high).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::random::SplitMix64;

    /// Misses of an LRU TLB of `entries`, fed with `uses` of huge pages at random positions among `walks`
    /// pages that are never used again.
    fn simulate_misses(uses: &[u64], walks: u64, entries: usize) -> Vec<f64> {
        let all: u64 = uses.iter().sum::<u64>() + walks;
        let (mut random, mut tlb) = (SplitMix64::new(3), std::collections::VecDeque::new());
        let mut misses = vec![0.0; uses.len()];
        for turn in 0..all {
            let mut random_use = random.next_below(all);
            let chosen = uses.iter().position(|&uses| {
                let is_here = random_use < uses;
                random_use = random_use.wrapping_sub(if is_here { 0 } else { uses });
                is_here
            });
            let entry = chosen.map_or((1, turn), |page| (0, page as u64));
            match tlb.iter().position(|known| *known == entry) {
                Some(at) => drop(tlb.remove(at)),
                None => chosen.into_iter().for_each(|page| misses[page] += 1.0),
            }
            tlb.push_front(entry);
            tlb.truncate(entries);
        }
        misses
    }

    #[test]
    fn lost_entries_are_those_of_a_simulated_tlb() {
        for (uses, walks, entries) in [
            (vec![500, 300, 100, 50, 20, 10], 2000, 16),
            (vec![100; 40], 0, 16),
            (vec![400; 12], 4000, 16),
            (vec![50; 8], 0, 16),
        ] {
            let model =
                expected_walks(&uses.iter().map(|&uses| uses as f64).collect::<Vec<_>>(), walks as f64, 16.0);
            let truth = simulate_misses(&uses, walks, entries);
            let (model, truth): (f64, f64) = (model.iter().sum(), truth.iter().sum());
            // First uses are misses that the model does not count.
            let slack = uses.len() as f64 + 0.1 * truth;
            assert!((model - truth).abs() <= slack, "{uses:?} {walks}: {model} for {truth}");
        }
    }
}
