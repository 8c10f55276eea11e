//! Share of the time saving of all huge pages that a part of them has.
//!
//! Huge pages save page walks, in user mode, and page faults of first touches, in the kernel. A part of them
//! has one share of the walks and another of the first touches: few hot regions have most of the walks and
//! hardly any fault. So the two savings of a pair of times, without huge pages and with all memory on them,
//! are separated.

/// Shares of what all huge pages have, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GainShares {
    /// Of the cost of page walks, less what huge pages still cost.
    pub cost: f64,
    /// Of the number of page walks.
    pub walk_count: f64,
    /// Of the accesses, where the source counts them, and so of what misses the first TLB alone.
    pub accesses: Option<f64>,
    /// Of the memory that is touched, and so of the page faults.
    pub touched_memory: f64,
    /// Savings of all by the cost of their walks, ns, if that cost is known: a pair's savings beyond it are
    /// not walks.
    pub all_walks_ns: Option<f64>,
}

/// A program's times without huge pages and with all of its memory on them, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimePair {
    /// Without.
    pub base_ns: f64,
    /// With all.
    pub huge_ns: f64,
    /// CPU time in the kernel of both, if it is known.
    pub kernel_ns: Option<(f64, f64)>,
}

/// Time that is saved, ns; negative where huge pages cost time. The bounds rise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeSaved {
    /// Expected value.
    pub likely_ns: f64,
    /// Between which the truth is expected.
    pub interval_ns: (f64, f64),
}

/// Half width of the interval of the saved time, relative to it (docs/plan.md gives the basis).
pub const RELATIVE_ERROR: f64 = 0.3;

impl TimePair {
    /// Savings of all huge pages in user mode, and in the kernel.
    fn split_by_mode(&self) -> (f64, f64) {
        let all = self.base_ns - self.huge_ns;
        let kernel = self.kernel_ns.map_or(0.0, |(base, huge)| base - huge);
        // Of a program of several threads, CPU time is more than the time.
        let kernel = kernel.clamp(all.min(0.0), all.max(0.0));
        (all - kernel, kernel)
    }
}

impl GainShares {
    /// All of it.
    pub const ALL: GainShares = GainShares {
        cost: 1.0,
        walk_count: 1.0,
        accesses: Some(1.0),
        touched_memory: 1.0,
        all_walks_ns: None,
    };

    /// Savings of this part. A part that is all has no error but that of the times.
    pub fn predict_time_saved(&self, pair: TimePair) -> TimeSaved {
        let (user, kernel) = pair.split_by_mode();
        let combine = |walks: f64| walks * user + self.touched_memory * kernel;
        // Huge pages save misses of the first TLB too, each some cycles. They go by accesses.
        let walk_ns = self.all_walks_ns.map_or(user, |ns| user.min(ns.max(0.0)));
        let accesses = self.accesses.unwrap_or(self.cost);
        let likely_ns = self.cost * walk_ns + accesses * (user - walk_ns) + self.touched_memory * kernel;
        let mut ends = vec![likely_ns, combine(self.cost), combine(self.walk_count)];
        ends.extend(self.accesses.filter(|_| walk_ns < user).map(combine));
        if pair.kernel_ns.is_none() {
            // It may be all page faults.
            ends.push(self.touched_memory * user);
        }
        let error = if *self == GainShares::ALL { 0.0 } else { RELATIVE_ERROR };
        let all = user + kernel;
        let bound = |ns: f64| ns.clamp(all.min(0.0), all.max(0.0));
        let error_bounds = |ns: f64| [bound(ns - error * ns.abs()), bound(ns + error * ns.abs())];
        let ends = ends.into_iter().flat_map(error_bounds).chain([likely_ns]);
        let (low, high) =
            ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), ns| (ns.min(low), ns.max(high)));
        TimeSaved { likely_ns, interval_ns: (low, high) }
    }
}

impl TimeSaved {
    /// Ratio of the times: expected value and interval. `None` if all of the time would be saved.
    pub fn to_speed_ups(&self, base_ns: f64) -> Option<(f64, (f64, f64))> {
        let ratio = |saved: f64| (base_ns > 0.0 && saved < base_ns).then(|| base_ns / (base_ns - saved));
        let (low, high) = self.interval_ns;
        Some((ratio(self.likely_ns)?, (ratio(low)?, ratio(high)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: GainShares = GainShares {
        cost: 0.6,
        walk_count: 0.8,
        accesses: Some(0.4),
        touched_memory: 0.1,
        all_walks_ns: None,
    };

    fn pair(base_ns: f64, huge_ns: f64, kernel_ns: Option<(f64, f64)>) -> TimePair {
        TimePair { base_ns, huge_ns, kernel_ns }
    }

    /// A program that saves only page faults gains by memory, independent of its walks.
    #[test]
    fn walks_and_faults_are_laid_out_apart() {
        for (kernel, likely) in [
            (Some((100.0, 100.0)), 0.6 * 400.0),
            (Some((500.0, 100.0)), 0.1 * 400.0),
            (Some((300.0, 100.0)), 0.6 * 200.0 + 0.1 * 200.0),
            // More in the kernel than in all: several threads.
            (Some((5000.0, 100.0)), 0.1 * 400.0),
            (None, 0.6 * 400.0),
        ] {
            let found = HOT.predict_time_saved(pair(1000.0, 600.0, kernel));
            assert!((found.likely_ns - likely).abs() < 1e-9, "{kernel:?}: {found:?}");
            assert!(found.interval_ns.0 <= likely && likely <= found.interval_ns.1, "{found:?}");
            assert!(found.interval_ns.0 >= 0.0 && found.interval_ns.1 <= 400.0, "{found:?}");
        }
    }

    /// A program whose walks cost less than the savings also saves by accesses; one whose walks overlap saves
    /// less than their cost, and all of it by walks.
    #[test]
    fn what_is_no_walk_goes_by_accesses() {
        for (walks_ns, likely) in [
            (100.0, 0.6 * 100.0 + 0.4 * 300.0),
            (0.0, 0.4 * 400.0),
            (400.0, 0.6 * 400.0),
            (4000.0, 0.6 * 400.0),
        ] {
            let shares = GainShares { all_walks_ns: Some(walks_ns), ..HOT };
            let found = shares.predict_time_saved(pair(1000.0, 600.0, Some((100.0, 100.0))));
            assert!((found.likely_ns - likely).abs() < 1e-9, "{walks_ns}: {found:?}");
            assert!(found.interval_ns.0 <= 0.7 * likely && 0.8 * 400.0 <= found.interval_ns.1, "{found:?}");
        }
        let slower =
            GainShares { all_walks_ns: Some(100.0), ..HOT }.predict_time_saved(pair(1000.0, 1100.0, None));
        assert!((slower.likely_ns + 60.0).abs() < 1e-9, "{slower:?}");
    }

    #[test]
    fn what_is_not_known_widens_the_interval() {
        let told = HOT.predict_time_saved(pair(1000.0, 600.0, Some((100.0, 100.0))));
        let untold = HOT.predict_time_saved(pair(1000.0, 600.0, None));
        assert!(untold.interval_ns.0 < told.interval_ns.0, "{untold:?} {told:?}");
        assert!(untold.interval_ns.0 <= 0.1 * 400.0, "it may be page faults alone: {untold:?}");
    }

    #[test]
    fn all_is_the_pair_itself_and_slower_is_slower() {
        let found = GainShares::ALL.predict_time_saved(pair(1000.0, 600.0, Some((300.0, 100.0))));
        assert_eq!((found.likely_ns, found.interval_ns), (400.0, (400.0, 400.0)));
        let slower = HOT.predict_time_saved(pair(1000.0, 1250.0, None));
        let (likely, (low, high)) = slower.to_speed_ups(1000.0).unwrap();
        assert!(0.8 <= low && low < likely && likely < high && high <= 1.0, "{slower:?}");
        assert_eq!(TimeSaved { likely_ns: 10.0, interval_ns: (0.0, 10.0) }.to_speed_ups(10.0), None);
    }
}
