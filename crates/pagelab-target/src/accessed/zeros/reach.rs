//! From accesses to walks: how many of them find their page in the TLB.
//!
//! A page that comes back was accessed; of one whose translation is in the TLB no walk is made for that. In a
//! cache of C entries with LRU, whose pages are accessed independently at the rates λ_i, a page stays for the
//! time T after each access, with Σ (1 − exp(−λ_i·T)) = C; so of its accesses the part exp(−λ_i·T) walks
//! (Che, Tung and Wang, "Hierarchical Web Caching Systems", IEEE JSAC 20(7), 2002). Processors of a program
//! that share its accesses evenly have the same part each.

/// Halvings of the interval in which the time lies.
const STEPS: u32 = 80;

/// How long a translation stays in a TLB of so many entries, where groups of (pages, accesses of one page in
/// a nanosecond) are accessed. `None`: all pages fit, and stay for good.
pub fn residence_ns(groups: &[(u64, f64)], entries: u64) -> Option<f64> {
    let used = || groups.iter().filter(|(pages, rate)| *pages > 0 && *rate > 0.0);
    let pages: u64 = used().map(|(pages, _)| pages).sum();
    if pages <= entries {
        return None;
    }
    let held = |time: f64| used().map(|(pages, rate)| *pages as f64 * -(-rate * time).exp_m1()).sum::<f64>();
    let fastest = used().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let slowest = used().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
    // 1 − exp(−x) is at most x, and above 1 − 1/pages where x is ln(pages).
    let (mut low, mut high) =
        (entries as f64 / (pages as f64 * fastest) / 2.0, (pages as f64).ln().max(1.0) * 2.0 / slowest);
    for _ in 0..STEPS {
        let middle = (low * high).sqrt();
        if held(middle) > entries as f64 { high = middle } else { low = middle }
    }
    Some((low * high).sqrt())
}

/// The part of the accesses of a page that walk, at this rate.
pub fn walking(rate: f64, residence_ns: Option<f64>) -> f64 {
    residence_ns.map_or(0.0, |time| (-rate * time).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::seed::SplitMix64;
    use std::collections::{BTreeMap, HashMap};

    /// Misses of each group by a plain LRU cache under random accesses: (all, missed).
    fn simulated(groups: &[(u64, f64)], entries: usize, accesses: u64) -> Vec<(u64, u64)> {
        let mut draws = SplitMix64::new(11);
        let weights: Vec<f64> = groups.iter().map(|(pages, rate)| *pages as f64 * rate).collect();
        let all: f64 = weights.iter().sum();
        let (mut by_time, mut by_page) = (BTreeMap::new(), HashMap::new());
        let mut counts = vec![(0, 0); groups.len()];
        for now in 0..accesses {
            let mut left = draws.below(1 << 52) as f64 / (1u64 << 52) as f64 * all;
            let group = weights
                .iter()
                .position(|weight| {
                    left -= weight;
                    left < 0.0
                })
                .unwrap_or(0);
            let page = (group, draws.below(groups[group].0));
            let is_counted = now > accesses / 4;
            counts[group].0 += u64::from(is_counted);
            match by_page.insert(page, now) {
                Some(before) => drop(by_time.remove(&before)),
                None => {
                    counts[group].1 += u64::from(is_counted);
                    if by_page.len() > entries
                        && let Some((_, oldest)) = by_time.pop_first()
                    {
                        by_page.remove(&oldest);
                    }
                }
            }
            by_time.insert(now, page);
        }
        counts
    }

    #[test]
    fn the_part_that_walks_is_that_of_an_lru_cache() {
        for groups in [
            vec![(1000, 3e-3), (20_000, 2e-4)],
            vec![(100, 0.1), (3000, 1e-3), (9000, 1e-4)],
            vec![(5000, 1e-6)],
        ] {
            let time = residence_ns(&groups, 1024);
            for ((pages, rate), (all, missed)) in groups.iter().zip(simulated(&groups, 1024, 150_000)) {
                let (found, wanted) = (walking(*rate, time), missed as f64 / all as f64);
                assert!((found - wanted).abs() < 0.03, "{pages} pages: {found} is not {wanted}");
            }
        }
    }

    #[test]
    fn what_fits_never_walks_and_nothing_is_nothing() {
        assert_eq!(residence_ns(&[(1000, 1e-3), (5000, 0.0)], 1024), None);
        assert_eq!(residence_ns(&[], 1024), None);
        assert!(walking(1e-3, None) < f64::EPSILON);
        assert!((walking(0.0, Some(5.0)) - 1.0).abs() < f64::EPSILON);
    }
}
