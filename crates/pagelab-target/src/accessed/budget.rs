//! Budget of the sweeps of one process image: their cost stays below a share of its time at every moment, not
//! only on average. The share is earned as time goes by, so a short program has little.
//!
//! A cleared page costs its program something when it is accessed again. That may come at any time after the
//! sweep, so all pages that are cleared and not known to have been accessed again count as if they were about
//! to be.

use std::time::Duration;

use pagelab_model::profile::AccessedBitCost;

/// The account of one process image.
#[derive(Clone, Debug, Default)]
pub struct CostAccount {
    /// Picoseconds that a cleared page costs.
    pub page_ps: u64,
    /// Estimated cost of cleared pages that were accessed again, in picoseconds.
    charged_ps: u64,
    /// Cleared pages that may still be accessed.
    pending_pages: u64,
    /// Of the pages in memory at the last scan, those found accessed; `None` once some time has passed.
    accessed_pages: Option<u64>,
    /// Estimated cost of drops of zero-page entries: page faults and stops.
    drop_cost: Duration,
    /// The part of the share that is for these.
    drop_share: f64,
    /// Time for which it was stopped, or waited for a CPU that sweeps used.
    stopped: Duration,
    /// The number of these splits and merges.
    splits: u32,
    /// Its time since it was first seen, as of the last scan, without the time in which it waited for a CPU:
    /// a program that has half of a CPU has half of the time to earn.
    pub lifetime: Duration,
}

impl CostAccount {
    /// Updates the time since it was first seen, and its memory.
    pub fn update_lifetime(&mut self, lifetime: Duration, resident: u64, bit_cost: &AccessedBitCost) {
        self.lifetime = self.lifetime.max(lifetime);
        // Pages that are due were cleared when there was as much memory as ever.
        self.page_ps = self.page_ps.max(bit_cost.cost_per_page_ps(resident));
    }

    /// Cost of `pages` when they are accessed again.
    pub fn cost_of_pages(&self, pages: u64) -> Duration {
        Duration::from_nanos(pages.saturating_mul(self.page_ps) / 1000)
    }

    /// Spent budget, including all possible later costs.
    pub fn spent_time(&self) -> Duration {
        self.sweep_cost().saturating_add(self.drop_cost)
    }

    /// The part of it for sweeps of accessed bits.
    fn sweep_cost(&self) -> Duration {
        let ps = self.pending_pages.saturating_mul(self.page_ps).saturating_add(self.charged_ps);
        Duration::from_nanos(ps / 1000).saturating_add(self.stopped)
    }

    /// The same as a part of its time, in millionths.
    pub fn spent_ppm(&self) -> u64 {
        let ppm = self.spent_time().as_nanos() * 1_000_000 / self.lifetime.as_nanos().max(1);
        u64::try_from(ppm).unwrap_or(u64::MAX)
    }

    /// Whether this much more may be spent now, of a share in permille. A tenth of the share is reserved for
    /// unforeseen costs, such as longer stops.
    pub fn allows(&self, more: Duration, permille: u32) -> bool {
        let earned = self.earned_time(permille);
        self.spent_time().saturating_add(more) <= earned
            && self.sweep_cost().saturating_add(more) <= earned.mul_f64(self.sweep_share())
    }

    fn earned_time(&self, permille: u32) -> Duration {
        let ns = self.lifetime.as_nanos() * u128::from(permille) / 1000 * 9 / 10;
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Divides the share in proportion to the memory and its never-written part, so that neither sweeps nor
    /// drops starve.
    pub fn set_shares(&mut self, resident: u64, zero_bytes: u64, threshold: u64) {
        self.drop_share = match (resident >= threshold, zero_bytes >= threshold) {
            (_, false) => 0.0,
            (false, true) => 1.0,
            (true, true) => (zero_bytes as f64 / (resident as f64 + zero_bytes as f64)).clamp(0.1, 0.9),
        };
    }

    /// The part of the share for sweeps.
    pub fn sweep_share(&self) -> f64 {
        1.0 - self.drop_share
    }

    /// Permitted cost of drops now, for a share in permille.
    pub fn drop_budget(&self, permille: u32) -> Duration {
        let earned = self.earned_time(permille);
        let own_budget = earned.mul_f64(self.drop_share).saturating_sub(self.drop_cost);
        own_budget.min(earned.saturating_sub(self.spent_time()))
    }

    /// Charges a drop: each entry may return at any time, so all are charged at once.
    pub fn charge_drop(&mut self, cost: Duration) {
        self.drop_cost = self.drop_cost.saturating_add(cost);
    }

    /// The expected cost of a sweep of `resident` pages, with a split into pieces, if sweeps take so much CPU
    /// time from the program.
    pub fn expected_sweep_cost(&self, resident: u64, pieces: u64, cpu_taken: Duration) -> Duration {
        /// Of a piece, split and merged: half of the pieces are advised, twice, at some 15 µs a call.
        const PIECE_COST: Duration = Duration::from_micros(15);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let stop_time = match self.splits {
            0 => PIECE_COST.saturating_mul(pieces).saturating_add(cpu_taken),
            splits => self.stopped / splits,
        };
        self.cost_of_pages(self.expected_pending(resident)).saturating_add(stop_time)
    }

    /// Pages that clearing adds to the pending ones.
    fn expected_pending(&self, resident: u64) -> u64 {
        match self.accessed_pages {
            // Some more are accessed until it is cleared.
            Some(accessed) => accessed.saturating_add(accessed / 2).min(resident),
            None => resident,
        }
    }

    /// The cost of another sweep right after the last one.
    pub fn repeat_sweep_cost(&self) -> Duration {
        self.accessed_pages.map_or(Duration::MAX, |young| self.cost_of_pages(young.saturating_add(young / 2)))
    }

    /// Records that all pages in memory are cleared now.
    pub fn record_clear(&mut self, resident: u64) {
        let charged = match self.accessed_pages.take() {
            Some(young) => self.pending_pages.min(young / 2),
            // All cleared pages are assumed to be accessed again.
            None => self.pending_pages,
        };
        self.charge_pages(charged);
        self.pending_pages = resident;
    }

    /// Records a scan: accessed pages among those in memory.
    pub fn record_scan(&mut self, resident: u64, accessed: u64) {
        let pending = self.pending_pages.min(resident.saturating_sub(accessed));
        self.charge_pages(self.pending_pages - pending);
        self.pending_pages = pending;
        self.accessed_pages = Some(accessed);
    }

    fn charge_pages(&mut self, pages: u64) {
        self.charged_ps = self.charged_ps.saturating_add(pages.saturating_mul(self.page_ps));
    }

    /// Time passes, in which it may access cleared pages.
    pub fn expire_scan(&mut self) {
        self.accessed_pages = None;
    }

    /// It was stopped for this long, for a split and its merge.
    pub fn charge_stop(&mut self, time: Duration) {
        self.stopped = self.stopped.saturating_add(time);
        self.splits += 1;
    }

    /// Whether a sweep or a drop was charged.
    pub fn has_costs(&self) -> bool {
        self.pending_pages > 0 || self.charged_ps > 0 || !self.drop_cost.is_zero()
    }
}

/// Detects whether a program is still filling its memory: sweeps then soon become useless.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryGrowth {
    /// Most bytes in memory at any scan.
    pub resident_max: u64,
    /// The time and the bytes that later ones are compared with.
    reference: (Duration, u64),
    /// Whether it had stopped growing at the last mark.
    is_filled: bool,
    /// When it was swept last.
    last_sweep: Duration,
}

impl MemoryGrowth {
    /// Minimum distance of marks, …
    const REFERENCE_AGE_MIN: Duration = Duration::from_millis(20);
    /// … and a tenth of its time: memory that is filled evenly since its start grows by a ninth in that. A
    /// program that waits for a CPU has no time, so it does not seem idle.
    const REFERENCE_AGE_DIVISOR: u32 = 10;
    /// It is growing if it grew by more than this fraction (1/N) between two marks.
    const GROWTH_DIVISOR: u64 = 12;
    /// A program that grows all the time is swept after this interval nevertheless.
    const SWEEP_INTERVAL_MAX: Duration = Duration::from_secs(5);

    /// Whether its memory has stopped growing at this point of its time.
    pub fn check_steady(&mut self, lifetime: Duration, resident: u64) -> bool {
        let is_unchanged = resident <= self.reference.1 + self.reference.1 / MemoryGrowth::GROWTH_DIVISOR;
        if lifetime
            >= self.reference.0
                + (lifetime / MemoryGrowth::REFERENCE_AGE_DIVISOR).max(MemoryGrowth::REFERENCE_AGE_MIN)
        {
            self.is_filled = is_unchanged && self.reference.1 > 0;
            self.reference = (lifetime, resident);
        } else {
            self.is_filled &= is_unchanged;
        }
        self.resident_max = self.resident_max.max(resident);
        self.is_filled || lifetime >= self.last_sweep + MemoryGrowth::SWEEP_INTERVAL_MAX
    }

    pub fn record_sweep(&mut self, lifetime: Duration) {
        self.last_sweep = lifetime;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::random::SplitMix64;

    const MIB: u64 = 1 << 20;

    fn bit_cost() -> AccessedBitCost {
        AccessedBitCost { points: vec![(64 * MIB, 200_000), (256 * MIB, 300_000)], origin: String::new() }
    }

    fn charged_pages(account: &CostAccount) -> u64 {
        account.charged_ps / account.page_ps
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_first_sweep_waits_until_all_of_it_is_earned() {
        let mut account = CostAccount::default();
        account.update_lifetime(ms(1), 64 * MIB, &bit_cost());
        let pages = 16_384;
        let expected = account.expected_sweep_cost(pages, 32, Duration::ZERO);
        // 16 384 × 200 ns, and 32 × 15 µs.
        assert_eq!(expected, Duration::from_nanos(16_384 * 200 + 480_000));
        assert!(!account.allows(expected, 20));
        account.update_lifetime(expected * 55, 64 * MIB, &bit_cost());
        assert!(!account.allows(expected, 20));
        account.update_lifetime(expected * 56, 64 * MIB, &bit_cost());
        assert!(account.allows(expected, 20));
    }

    #[test]
    fn what_is_looked_at_again_is_due_no_longer_and_what_rests_costs_once() {
        let mut account = CostAccount::default();
        account.update_lifetime(ms(1000), 64 * MIB, &bit_cost());
        account.record_clear(1000);
        assert_eq!(account.spent_time(), account.cost_of_pages(1000));
        account.record_scan(1000, 300);
        assert_eq!((charged_pages(&account), account.pending_pages), (300, 700));
        // One more at once: 300 are cleared again, and some 150 were accessed meanwhile.
        assert_eq!(account.repeat_sweep_cost(), account.cost_of_pages(450));
        account.record_clear(1000);
        assert_eq!((charged_pages(&account), account.pending_pages), (450, 1000));
        account.expire_scan();
        assert_eq!(account.repeat_sweep_cost(), Duration::MAX);
        // An idle program accesses nothing more: only accessed pages are cleared again.
        account.record_scan(1000, 100);
        assert_eq!((charged_pages(&account), account.pending_pages), (550, 900));
        assert_eq!(account.expected_sweep_cost(1000, 0, Duration::ZERO), account.cost_of_pages(150));
        account.expire_scan();
        account.record_clear(1000);
        assert_eq!((charged_pages(&account), account.pending_pages), (1450, 1000));
    }

    /// A program whose pages are accessed at random, under a controller that queries the account: what it
    /// truly paid is never above what the account says, and that is never above what was earned.
    #[test]
    fn whatever_a_program_does_the_account_is_never_below_the_truth_nor_above_the_share() {
        for seed in 0..40u64 {
            let mut random = SplitMix64::new(seed);
            let (mut account, mut old, mut paid) = (CostAccount::default(), [false; 512], 0u64);
            let mut sweeps = 0;
            let touch = |random: &mut SplitMix64, old: &mut [bool; 512], paid: &mut u64, most: u64| {
                for _ in 0..random.next_below(most) {
                    let at = random.next_below(512) as usize;
                    *paid += u64::from(std::mem::take(&mut old[at]));
                }
            };
            for tick in 1..2000u64 {
                let busy = [1, 20, 400][(seed % 3) as usize];
                touch(&mut random, &mut old, &mut paid, busy);
                account.expire_scan();
                account.update_lifetime(Duration::from_micros(tick * 20), 2 * MIB, &bit_cost());
                if random.next_below(4) == 0 {
                    let young = old.iter().filter(|old| !**old).count() as u64;
                    account.record_scan(512, young);
                }
                if account.allows(account.expected_sweep_cost(512, 0, Duration::ZERO), 20) {
                    account.record_clear(512);
                    old = [true; 512];
                    sweeps += 1;
                    touch(&mut random, &mut old, &mut paid, busy);
                    let young = old.iter().filter(|old| !**old).count() as u64;
                    account.record_scan(512, young);
                }
                let truth = account.cost_of_pages(paid);
                assert!(
                    truth <= account.spent_time(),
                    "seed {seed}: {truth:?} of {:?}",
                    account.spent_time()
                );
                assert!(account.spent_ppm() <= 20_000, "seed {seed}: {}", account.spent_ppm());
            }
            assert!(sweeps > 3, "seed {seed}: {sweeps}");
        }
    }

    #[test]
    fn sweeps_and_drops_have_their_parts_of_the_share_and_one_takes_all_where_it_is_alone() {
        let mut account = CostAccount::default();
        account.update_lifetime(ms(1000), 64 * MIB, &bit_cost());
        // 2 % of a second, but for a tenth.
        account.set_shares(0, 100 * MIB, MIB);
        assert_eq!(account.drop_budget(20), ms(18));
        account.set_shares(100 * MIB, 0, MIB);
        assert_eq!(account.drop_budget(20), ms(0));
        assert!(account.allows(ms(18), 20));
        account.set_shares(100 * MIB, 300 * MIB, MIB);
        assert_eq!(account.drop_budget(20), Duration::from_micros(13_500));
        assert!(account.allows(Duration::from_micros(4500), 20) && !account.allows(ms(5), 20));
        account.charge_drop(ms(10));
        assert_eq!(account.drop_budget(20), Duration::from_micros(3500));
        assert!(account.allows(Duration::from_micros(4500), 20) && account.has_costs());
        // The budgets exclude each other: the memory of one grew later.
        account.set_shares(0, 100 * MIB, MIB);
        account.charge_drop(ms(8));
        account.set_shares(100 * MIB, 0, MIB);
        assert!(!account.allows(ms(1), 20) && account.spent_ppm() == 18_000);
    }

    /// The time at which such memory first counts as filled, in ms.
    fn steady_after(resident: impl Fn(u64) -> u64) -> u64 {
        let mut growth = MemoryGrowth::default();
        (1..).find(|&now| growth.check_steady(ms(now), resident(now))).unwrap()
    }

    #[test]
    fn memory_is_filled_when_it_grows_no_longer() {
        let fill = |from: u64, to: u64| move |now: u64| MIB + (now.clamp(from, to) - from) * MIB;
        // Steady at once, filled at the start, and after an idle time.
        assert!(steady_after(|_| 5 * MIB) <= 40);
        let end = steady_after(fill(10, 1000));
        assert!((1000..1250).contains(&end), "{end}");
        let mut growth = MemoryGrowth::default();
        let late = fill(300, 800);
        assert!((1..300).filter(|&now| growth.check_steady(ms(now), late(now))).count() > 250);
        assert!((302..800).step_by(3).all(|now| !growth.check_steady(ms(now), late(now))));
        assert!((800..1000).any(|now| growth.check_steady(ms(now), late(now))));
        // It grows all the time, evenly, or more and more slowly.
        assert_eq!(steady_after(|now| now * MIB), 5000);
        assert!(steady_after(|now| (now * 1_000_000).isqrt() * MIB) < 200);
    }

    #[test]
    fn a_cost_is_interpolated_and_extrapolated() {
        let page_cost = bit_cost();
        let ps = [1, 64, 128, 256, 512, 1024].map(|mib| page_cost.cost_per_page_ps(mib * MIB));
        assert_eq!(ps, [200_000, 200_000, 250_000, 300_000, 350_000, 400_000]);
    }
}
