//! What huge pages still cost: they need entries of the TLB, and a walk when the entry was lost.
//!
//! An entry is used last, and lost when as many others came in as there are entries. After Che, Tung and
//! Wang (IEEE JSAC 2002) there is one time T, counted in walks, for which an unused entry stays: a huge page
//! that is used r times as often as there are walks is there with probability 1 − exp(−r T), and T is
//! the one for which the expected number of entries in use is what there are.

use pagelab_model::profile::WalkCost;
use pagelab_model::{Bytes, Profile};

use super::{Ranked, Region};
use crate::cost::{ENTRIES_OF_LINE, walk_ps};
use crate::grid;

/// Entries where the profile tells of no TLB: those of Intel's second level since Broadwell, rounded down.
const ENTRIES: f64 = 1024.0;

/// The TLB that pages compete for.
pub(super) struct Tlb<'a> {
    entries: f64,
    page: Bytes,
    price: Option<&'a WalkCost>,
    /// All walks of the profiled run.
    walks: f64,
}

impl<'a> Tlb<'a> {
    pub fn of(profile: &Profile, page: Bytes, price: Option<&'a WalkCost>) -> Tlb<'a> {
        let reach = profile.tlb.as_ref().and_then(|tlb| tlb.reach(page));
        let entries = reach.map_or(ENTRIES, |reach| (reach.0 / page.0.max(1)) as f64).max(1.0);
        let walks: f64 = profile.images.iter().map(|image| super::walks(image) as f64).sum();
        Tlb { entries, page, price, walks }
    }

    /// Fills in what is left of each region's cost if it alone is on a huge page.
    pub fn alone(&self, regions: &mut [Region], mappings: &[Ranked]) {
        for region in regions {
            let left = self.left(std::slice::from_ref(region), mappings, self.walks - region.misses);
            region.residual = left.min(region.cost);
        }
    }

    /// What the first `n` regions save together.
    pub fn saved(&self, regions: &[Region], mappings: &[Ranked], n: usize) -> f64 {
        let chosen = &regions[..n.min(regions.len())];
        let misses: f64 = chosen.iter().map(|region| region.misses).sum();
        let cost: f64 = chosen.iter().map(|region| region.cost).sum();
        (cost - self.left(chosen, mappings, (self.walks - misses).max(0.0))).max(0.0)
    }

    /// What `huge` regions still cost while `walks` walks of base pages go on beside them.
    fn left(&self, huge: &[Region], mappings: &[Ranked], walks: f64) -> f64 {
        let uses: Vec<f64> =
            huge.iter().map(|region| region.accesses.unwrap_or(region.misses).max(region.misses)).collect();
        let lost = lost(&uses, walks, self.entries);
        let all = walks + lost.iter().sum::<f64>();
        let Some(price) = self.price else { return lost.iter().sum() };
        // A line of the next level maps eight huge pages: its walks are those of all of them.
        let line = |region: &Region| {
            let base = mappings.get(region.mapping).map_or(0, |of| grid::base(&of.key, of.start));
            (region.mapping, base.saturating_add(region.offset) / self.page.0.max(1) / ENTRIES_OF_LINE)
        };
        let mut by_line = std::collections::HashMap::new();
        for (region, lost) in huge.iter().zip(&lost) {
            *by_line.entry(line(region)).or_insert(0.0) += lost;
        }
        let ps = |walks: f64| walk_ps(price, (all / walks.max(f64::MIN_POSITIVE)).max(1.0).log2());
        by_line.values().filter(|walks| **walks > 0.0).map(|&walks| walks * ps(walks)).sum()
    }
}

/// How often each huge page is walked for, if they are used so often while `walks` other walks go on.
fn lost(uses: &[f64], walks: f64, entries: f64) -> Vec<f64> {
    let used = uses.iter().filter(|uses| **uses > 0.0).count() as f64;
    if used <= entries && walks <= 0.0 {
        return vec![0.0; uses.len()];
    }
    // In use at time t, in which each of the other walks brings an entry of its own.
    let in_use = |t: f64| walks * t + uses.iter().map(|uses| 1.0 - (-uses * t).exp()).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while in_use(high) > entries && high > f64::MIN_POSITIVE {
        high /= 2.0;
    }
    while in_use(high) < entries && high < 1e18 {
        (low, high) = (high, high * 2.0);
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if in_use(middle) < entries { low = middle } else { high = middle }
    }
    uses.iter().map(|uses| uses * (-uses * high).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::seed::SplitMix64;

    /// Misses of an LRU TLB of `entries`, fed with `uses` of huge pages among `walks` pages that never
    /// come again, by chance.
    fn simulated(uses: &[u64], walks: u64, entries: usize) -> Vec<f64> {
        let all: u64 = uses.iter().sum::<u64>() + walks;
        let (mut random, mut tlb) = (SplitMix64::new(3), std::collections::VecDeque::new());
        let mut misses = vec![0.0; uses.len()];
        for turn in 0..all {
            let mut drawn = random.below(all);
            let chosen = uses.iter().position(|&uses| {
                let is_here = drawn < uses;
                drawn = drawn.wrapping_sub(if is_here { 0 } else { uses });
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
            let model = lost(&uses.iter().map(|&uses| uses as f64).collect::<Vec<_>>(), walks as f64, 16.0);
            let truth = simulated(&uses, walks, entries);
            let (model, truth): (f64, f64) = (model.iter().sum(), truth.iter().sum());
            // First uses are misses that the model does not count.
            let slack = uses.len() as f64 + 0.1 * truth;
            assert!((model - truth).abs() <= slack, "{uses:?} {walks}: {model} for {truth}");
        }
    }
}
