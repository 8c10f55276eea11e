//! What a part of the huge pages saves of the time that all of them save.
//!
//! Huge pages save page walks, in user mode, and page faults of first touches, in the kernel. A part of them
//! has one share of the walks and another of the first touches: few hot regions have most of the walks and
//! hardly any fault. So the two savings of a pair of times, without huge pages and with all memory on them,
//! are laid out apart.

/// Shares of what all huge pages have, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Of the price of page walks, less what huge pages still cost.
    pub cost: f64,
    /// Of the number of page walks.
    pub walks: f64,
    /// Of the accesses, where the source counts them, and so of what misses the first TLB alone.
    pub accesses: Option<f64>,
    /// Of the memory that is touched, and so of the page faults.
    pub touched: f64,
    /// What all save by the price of their walks, ns, where walks have a price: what a pair saves beyond that
    /// is no walk.
    pub walks_ns: Option<f64>,
}

/// A program's times without huge pages and with all of its memory on them, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimePair {
    /// Without.
    pub base_ns: f64,
    /// With all.
    pub huge_ns: f64,
    /// CPU time in the kernel of both, where it is known.
    pub kernel_ns: Option<(f64, f64)>,
}

/// Time that is saved, ns; negative where huge pages cost time. The bounds rise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// What is expected.
    pub likely_ns: f64,
    /// Between which the truth is expected.
    pub within_ns: (f64, f64),
}

/// How far the time that is saved may be off, as a part of itself (docs/plan.md says on what it rests).
pub const ERROR: f64 = 0.3;

impl TimePair {
    /// What all huge pages save in user mode, and in the kernel.
    fn saved(&self) -> (f64, f64) {
        let all = self.base_ns - self.huge_ns;
        let kernel = self.kernel_ns.map_or(0.0, |(base, huge)| base - huge);
        // Of a program of several threads, CPU time is more than the time.
        let kernel = kernel.clamp(all.min(0.0), all.max(0.0));
        (all - kernel, kernel)
    }
}

impl Shares {
    /// All of it.
    pub const ALL: Shares =
        Shares { cost: 1.0, walks: 1.0, accesses: Some(1.0), touched: 1.0, walks_ns: None };

    /// What this part saves. A part that is all has no error but that of the times.
    pub fn saved(&self, pair: TimePair) -> Saved {
        let (user, kernel) = pair.saved();
        let at = |walks: f64| walks * user + self.touched * kernel;
        // Huge pages save misses of the first TLB too, each some cycles. They go by accesses.
        let walked = self.walks_ns.map_or(user, |ns| user.min(ns.max(0.0)));
        let accesses = self.accesses.unwrap_or(self.cost);
        let likely_ns = self.cost * walked + accesses * (user - walked) + self.touched * kernel;
        let mut ends = vec![likely_ns, at(self.cost), at(self.walks)];
        ends.extend(self.accesses.filter(|_| walked < user).map(at));
        if pair.kernel_ns.is_none() {
            // It may be all page faults.
            ends.push(self.touched * user);
        }
        let error = if *self == Shares::ALL { 0.0 } else { ERROR };
        let all = user + kernel;
        let bound = |ns: f64| ns.clamp(all.min(0.0), all.max(0.0));
        let off = |ns: f64| [bound(ns - error * ns.abs()), bound(ns + error * ns.abs())];
        let ends = ends.into_iter().flat_map(off).chain([likely_ns]);
        let (low, high) =
            ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), ns| (ns.min(low), ns.max(high)));
        Saved { likely_ns, within_ns: (low, high) }
    }
}

impl Saved {
    /// Time over time: what is expected, and between which ratios. `None` where all of the time would be
    /// saved.
    pub fn speed_ups(&self, base_ns: f64) -> Option<(f64, (f64, f64))> {
        let ratio = |saved: f64| (base_ns > 0.0 && saved < base_ns).then(|| base_ns / (base_ns - saved));
        let (low, high) = self.within_ns;
        Some((ratio(self.likely_ns)?, (ratio(low)?, ratio(high)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: Shares = Shares { cost: 0.6, walks: 0.8, accesses: Some(0.4), touched: 0.1, walks_ns: None };

    fn pair(base_ns: f64, huge_ns: f64, kernel_ns: Option<(f64, f64)>) -> TimePair {
        TimePair { base_ns, huge_ns, kernel_ns }
    }

    /// A program that saves page faults alone gains by memory, whatever its walks are.
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
            let found = HOT.saved(pair(1000.0, 600.0, kernel));
            assert!((found.likely_ns - likely).abs() < 1e-9, "{kernel:?}: {found:?}");
            assert!(found.within_ns.0 <= likely && likely <= found.within_ns.1, "{found:?}");
            assert!(found.within_ns.0 >= 0.0 && found.within_ns.1 <= 400.0, "{found:?}");
        }
    }

    /// A program whose walks cost less than is saved saves what goes by accesses; one whose walks overlap
    /// saves less than their price, and all of that goes by it.
    #[test]
    fn what_is_no_walk_goes_by_accesses() {
        for (walks_ns, likely) in [
            (100.0, 0.6 * 100.0 + 0.4 * 300.0),
            (0.0, 0.4 * 400.0),
            (400.0, 0.6 * 400.0),
            (4000.0, 0.6 * 400.0),
        ] {
            let shares = Shares { walks_ns: Some(walks_ns), ..HOT };
            let found = shares.saved(pair(1000.0, 600.0, Some((100.0, 100.0))));
            assert!((found.likely_ns - likely).abs() < 1e-9, "{walks_ns}: {found:?}");
            assert!(found.within_ns.0 <= 0.7 * likely && 0.8 * 400.0 <= found.within_ns.1, "{found:?}");
        }
        let slower = Shares { walks_ns: Some(100.0), ..HOT }.saved(pair(1000.0, 1100.0, None));
        assert!((slower.likely_ns + 60.0).abs() < 1e-9, "{slower:?}");
    }

    #[test]
    fn what_is_not_known_widens_the_interval() {
        let told = HOT.saved(pair(1000.0, 600.0, Some((100.0, 100.0))));
        let untold = HOT.saved(pair(1000.0, 600.0, None));
        assert!(untold.within_ns.0 < told.within_ns.0, "{untold:?} {told:?}");
        assert!(untold.within_ns.0 <= 0.1 * 400.0, "it may be page faults alone: {untold:?}");
    }

    #[test]
    fn all_is_the_pair_itself_and_slower_is_slower() {
        let found = Shares::ALL.saved(pair(1000.0, 600.0, Some((300.0, 100.0))));
        assert_eq!((found.likely_ns, found.within_ns), (400.0, (400.0, 400.0)));
        let slower = HOT.saved(pair(1000.0, 1250.0, None));
        let (likely, (low, high)) = slower.speed_ups(1000.0).unwrap();
        assert!(0.8 <= low && low < likely && likely < high && high <= 1.0, "{slower:?}");
        assert_eq!(Saved { likely_ns: 10.0, within_ns: (0.0, 10.0) }.speed_ups(10.0), None);
    }
}
