//! Time budget of readings: a share of the trial's run time, accumulated before it is spent.
//!
//! A reading whose cost is known in advance waits until the budget covers it. So the share holds at every
//! time, not only in the long run as it would if a costly reading were paid off afterwards: a trial may end
//! right after it.

/// A reading that took more than this multiple of its usual time was interrupted: by another guest of the
/// hypervisor, whose time counts as ours, or by interrupts of the machine. Charged in full, one such reading
/// would use up the budget of seconds.
const INTERRUPTED_FACTOR: u64 = 4;
/// Total allowance for interrupted readings: a part of the share, and an initial amount, ns.
const FORGIVEN_DIVISOR: u64 = 4;
const FORGIVEN_NS_MIN: u64 = 1_000_000;

/// Time budget of one type of reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBudget {
    /// Millionths of the trial's time.
    share_ppm: u64,
    /// Initial budget, ns.
    grace_ns: u64,
    spent_ns: u64,
    forgiven_ns: u64,
}

impl TimeBudget {
    /// An unspent budget.
    pub(super) fn new(share_ppm: u64, grace_ns: u64) -> TimeBudget {
        TimeBudget { share_ppm, grace_ns, spent_ns: 0, forgiven_ns: 0 }
    }

    /// Whether a reading of about `expected_ns` may start, `elapsed_ns` after the trial began.
    pub(super) fn can_afford(&self, elapsed_ns: u64, expected_ns: u64) -> bool {
        self.spent_ns.saturating_add(expected_ns) <= self.budget_ns(elapsed_ns).saturating_add(self.grace_ns)
    }

    /// Charges a reading that took this long, and usually takes `usual_ns`.
    pub(super) fn spend(&mut self, elapsed_ns: u64, took_ns: u64, usual_ns: u64) {
        let excess_ns = took_ns.saturating_sub(usual_ns.saturating_mul(INTERRUPTED_FACTOR));
        let forgivable_ns = self.budget_ns(elapsed_ns) / FORGIVEN_DIVISOR + FORGIVEN_NS_MIN;
        let forgiven_ns = excess_ns.min(forgivable_ns.saturating_sub(self.forgiven_ns));
        self.forgiven_ns += forgiven_ns;
        self.spent_ns = self.spent_ns.saturating_add(took_ns - forgiven_ns);
    }

    /// Millionths of the trial's time.
    pub(super) fn share_ppm(&self) -> u64 {
        self.share_ppm
    }

    fn budget_ns(&self, elapsed_ns: u64) -> u64 {
        (elapsed_ns / 1000).saturating_mul(self.share_ppm) / 1000
    }
}

/// Usual cost of a reading, ns: follows the measured cost, down at once and up slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TypicalDuration(pub u64);

impl TypicalDuration {
    pub(super) fn update(&mut self, took_ns: u64) {
        self.0 = match took_ns.checked_sub(self.0) {
            Some(more_ns) => self.0.saturating_add(more_ns / 8),
            None => took_ns,
        };
    }
}

/// Cost of one page-table entry in a walk, learnt from earlier walks.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkRate {
    /// Thousandths of a nanosecond.
    ps_per_entry: u64,
    /// Initial estimate. The pages of a small trial are in the caches, and would suggest that those of a
    /// large one are too.
    min_ps: u64,
}

/// Fixed cost of a walk for each process, ns: opening the file and finding the process.
const PROCESS_NS: u64 = 20_000;
/// Walks of fewer entries than this are mostly overhead and are not used for the estimate.
const ENTRIES_MIN: u64 = 10_000;

impl WalkRate {
    pub(super) fn from_ns_per_entry(ns_per_entry: u64) -> WalkRate {
        WalkRate { ps_per_entry: ns_per_entry * 1000, min_ps: ns_per_entry * 1000 }
    }

    /// Estimated cost of a walk, ns.
    pub(super) fn expected_ns(self, processes: u64, entries: u64) -> u64 {
        processes.saturating_mul(PROCESS_NS).saturating_add(entries.saturating_mul(self.ps_per_entry) / 1000)
    }

    pub(super) fn record_walk(&mut self, entries: u64, took_ns: u64) {
        if entries >= ENTRIES_MIN {
            // At most 10 µs per entry: a walk may have been interrupted for long.
            self.ps_per_entry = (took_ns.saturating_mul(1000) / entries).clamp(self.min_ps, 10_000_000);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_share_holds_at_every_moment() {
        for cost_ns in [MS / 10, MS, 8 * MS, 300 * MS] {
            let mut allowance = TimeBudget::new(2000, MS);
            let mut spent_ns = 0;
            for tick in 1..=1000u64 {
                let elapsed_ns = tick * 100 * MS;
                if allowance.can_afford(elapsed_ns, cost_ns) {
                    allowance.spend(elapsed_ns, cost_ns, cost_ns);
                    spent_ns += cost_ns;
                }
                assert!(spent_ns <= elapsed_ns / 500 + MS, "{cost_ns} ns at {tick}");
            }
            // No budget remains that suffices for one more.
            let left_ns = 100_000 * MS / 500 + MS - spent_ns;
            assert!(left_ns < cost_ns || cost_ns * 1000 < 200 * MS, "{cost_ns}: {left_ns} ns left");
        }
    }

    #[test]
    fn an_interruption_is_forgiven_and_a_thousand_are_not() {
        let (usual_ns, took_ns) = (MS / 10, 20 * MS);
        let mut allowance = TimeBudget::new(1000, MS);
        // A quarter of ten seconds' share, and a millisecond.
        allowance.spend(10_000 * MS, took_ns, usual_ns);
        assert_eq!(allowance.spent_ns, took_ns - 10_000 * MS / 4000 - MS);
        let mut spent_ns = took_ns;
        for tick in 101..=1000u64 {
            let elapsed_ns = tick * 100 * MS;
            if allowance.can_afford(elapsed_ns, usual_ns) {
                allowance.spend(elapsed_ns, took_ns, usual_ns);
                spent_ns += took_ns;
            }
        }
        let most_ns = 100_000 * MS / 1000 * 5 / 4 + 2 * MS + took_ns;
        assert!(spent_ns <= most_ns, "{spent_ns} of {most_ns}");
    }

    #[test]
    fn what_is_usual_follows_down_at_once_and_up_slowly() {
        let mut usual = TypicalDuration(MS / 10);
        usual.update(40 * MS);
        assert_eq!(usual, TypicalDuration(MS / 10 + 399 * MS / 80));
        usual.update(MS / 20);
        assert_eq!(usual, TypicalDuration(MS / 20), "an interruption is forgotten at once");
        (0..30).for_each(|_| usual.update(5 * MS));
        assert!(usual.0 > 4 * MS, "{usual:?}");
    }

    #[test]
    fn a_pace_is_learnt_from_walks_that_are_long_enough() {
        let mut pace = WalkRate::from_ns_per_entry(30);
        assert_eq!(pace.expected_ns(1, 1_000_000), 30_020_000);
        pace.record_walk(100, 1_000_000);
        assert_eq!(pace.expected_ns(0, 1_000_000), 30_000_000);
        pace.record_walk(200_000, 10_000_000);
        assert_eq!(pace.expected_ns(0, 1_000_000), 50_000_000);
        pace.record_walk(200_000, 1_000_000);
        assert_eq!(pace.expected_ns(0, 1_000_000), 30_000_000, "not below the first guess");
        pace.record_walk(200_000, u64::MAX);
        assert!(pace.expected_ns(0, 1) <= 10_000);
    }
}
