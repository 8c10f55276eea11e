//! What sweeps may cost one process image, and what they have cost it: kept below a share of its time at
//! every moment, and not only in the long run. The share is earned as time goes by, so a short program has
//! little.
//!
//! A cleared page costs its program something when it is accessed again. That may come at any time after the
//! sweep, so all pages that are cleared and not known to have been accessed again count as if they were about
//! to be.

use std::time::Duration;

use pagelab_model::profile::AccessedPrice;

/// The account of one process image.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Picoseconds that a cleared page costs.
    page_ps: u64,
    /// Picoseconds for cleared pages that were accessed again, by what is known.
    paid_ps: u64,
    /// Cleared pages that may still be.
    due_pages: u64,
    /// Of the pages in memory at the last look, those found accessed; `None` once some time has passed.
    young: Option<u64>,
    /// What drops of entries of the page of zeros cost, by what is known: page faults and stops.
    dropped: Duration,
    /// The part of the share that is for these.
    zero_part: f64,
    /// Time in which it stood, or waited for a CPU that sweeps took.
    stood: Duration,
    /// In so many splits and merges.
    splits: u32,
    /// Its time since it was first seen, as of the last look, but for that in which it waited for a CPU: a
    /// program that gets half of one has half of the time to earn.
    lived: Duration,
}

impl Account {
    /// It has had so much time since it was first seen, and has so much memory.
    pub fn lives(&mut self, lived: Duration, resident: u64, price: &AccessedPrice) {
        self.lived = self.lived.max(lived);
        // Pages that are due were cleared when there was as much memory as ever.
        self.page_ps = self.page_ps.max(price.page_ps(resident));
    }

    /// What `pages` cost when they are accessed again.
    pub fn price(&self, pages: u64) -> Duration {
        Duration::from_nanos(pages.saturating_mul(self.page_ps) / 1000)
    }

    /// What was spent, with all that may still come.
    pub fn spent(&self) -> Duration {
        self.on_sweeps().saturating_add(self.dropped)
    }

    /// What sweeps of accessed bits have of it.
    fn on_sweeps(&self) -> Duration {
        let ps = self.due_pages.saturating_mul(self.page_ps).saturating_add(self.paid_ps);
        Duration::from_nanos(ps / 1000).saturating_add(self.stood)
    }

    /// The same as a part of its time, in millionths.
    pub fn spent_ppm(&self) -> u64 {
        let ppm = self.spent().as_nanos() * 1_000_000 / self.lived.as_nanos().max(1);
        u64::try_from(ppm).unwrap_or(u64::MAX)
    }

    /// Whether so much more may be spent now, of a share in permille. A tenth of the share is kept for what
    /// nobody foresees, such as stops that take longer than before.
    pub fn allows(&self, more: Duration, permille: u32) -> bool {
        let earned = self.earned(permille);
        self.spent().saturating_add(more) <= earned
            && self.on_sweeps().saturating_add(more) <= earned.mul_f64(self.sweeps_part())
    }

    fn earned(&self, permille: u32) -> Duration {
        let ns = self.lived.as_nanos() * u128::from(permille) / 1000 * 9 / 10;
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// The memory that is in it, and what of it was never written: the share is parted after them, so that
    /// neither of sweeps and drops waits for ever until the other has nothing to do.
    pub fn parts(&mut self, resident: u64, zero: u64, least: u64) {
        self.zero_part = match (resident >= least, zero >= least) {
            (_, false) => 0.0,
            (false, true) => 1.0,
            (true, true) => (zero as f64 / (resident as f64 + zero as f64)).clamp(0.1, 0.9),
        };
    }

    /// The part of the share that sweeps have.
    pub fn sweeps_part(&self) -> f64 {
        1.0 - self.zero_part
    }

    /// What drops may cost now, of a share in permille.
    pub fn room_for_drops(&self, permille: u32) -> Duration {
        let earned = self.earned(permille);
        let own = earned.mul_f64(self.zero_part).saturating_sub(self.dropped);
        own.min(earned.saturating_sub(self.spent()))
    }

    /// Entries were dropped: each may come back at any time, so all are paid at once.
    pub fn drops(&mut self, cost: Duration) {
        self.dropped = self.dropped.saturating_add(cost);
    }

    /// What a sweep of `resident` pages will cost, with a split into so many pieces, where so much work of
    /// sweeps is taken from it.
    pub fn expected(&self, resident: u64, pieces: u64, taken: Duration) -> Duration {
        /// Of a piece, split and merged: half of the pieces are advised, twice, at some 15 µs a call.
        const PIECE: Duration = Duration::from_micros(15);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let stood = match self.splits {
            0 => PIECE.saturating_mul(pieces).saturating_add(taken),
            splits => self.stood / splits,
        };
        self.price(self.again(resident)).saturating_add(stood)
    }

    /// Pages that clearing makes due, more than are.
    fn again(&self, resident: u64) -> u64 {
        match self.young {
            // Some more are accessed until it is cleared.
            Some(young) => young.saturating_add(young / 2).min(resident),
            None => resident,
        }
    }

    /// What one more sweep right after the last costs.
    pub fn expected_soon(&self) -> Duration {
        self.young.map_or(Duration::MAX, |young| self.price(young.saturating_add(young / 2)))
    }

    /// All pages in memory are about to be cleared.
    pub fn clears(&mut self, resident: u64) {
        let met = match self.young.take() {
            Some(young) => self.due_pages.min(young / 2),
            // What was due was accessed since, for all that is known.
            None => self.due_pages,
        };
        self.pays(met);
        self.due_pages = resident;
    }

    /// It was looked which pages in memory are accessed.
    pub fn looked(&mut self, resident: u64, young: u64) {
        let due = self.due_pages.min(resident.saturating_sub(young));
        self.pays(self.due_pages - due);
        self.due_pages = due;
        self.young = Some(young);
    }

    fn pays(&mut self, pages: u64) {
        self.paid_ps = self.paid_ps.saturating_add(pages.saturating_mul(self.page_ps));
    }

    /// Some time goes by, in which it may access what was cleared.
    pub fn goes_on(&mut self) {
        self.young = None;
    }

    /// It stood for so long, for a split and its merge.
    pub fn stood(&mut self, time: Duration) {
        self.stood = self.stood.saturating_add(time);
        self.splits += 1;
    }

    /// It was swept.
    pub fn is_used(&self) -> bool {
        self.due_pages > 0 || self.paid_ps > 0 || !self.dropped.is_zero()
    }

    /// Picoseconds of a cleared page.
    pub fn page_ps(&self) -> u64 {
        self.page_ps
    }

    /// How long it was there.
    pub fn lived(&self) -> Duration {
        self.lived
    }
}

/// Whether a program is still filling its memory: most of what a sweep finds then is worth little after.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Most bytes in memory at any look.
    pub most: u64,
    /// The time and the bytes that later ones are compared with.
    mark: (Duration, u64),
    /// Whether it had stopped growing at the last mark.
    is_filled: bool,
    /// When it was swept last.
    swept: Duration,
}

impl Growth {
    /// Marks lie so far apart, at least, …
    const LEAST: Duration = Duration::from_millis(20);
    /// … and a tenth of its time: memory that is filled evenly since its start grows by a ninth in that. A
    /// program that waits for a CPU has no time, so does not seem to rest.
    const PART: u32 = 10;
    /// It grows if it grew by more than one part of so many from mark to mark.
    const GROWS: u64 = 12;
    /// One that grows and grows is swept after so long nevertheless.
    const MOST: Duration = Duration::from_secs(5);

    /// Whether it is filled, by so much memory after so much of its time.
    pub fn is_over(&mut self, lived: Duration, resident: u64) -> bool {
        let is_like_before = resident <= self.mark.1 + self.mark.1 / Growth::GROWS;
        if lived >= self.mark.0 + (lived / Growth::PART).max(Growth::LEAST) {
            self.is_filled = is_like_before && self.mark.1 > 0;
            self.mark = (lived, resident);
        } else {
            self.is_filled &= is_like_before;
        }
        self.most = self.most.max(resident);
        self.is_filled || lived >= self.swept + Growth::MOST
    }

    /// It is swept.
    pub fn sweeps(&mut self, lived: Duration) {
        self.swept = lived;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::seed::SplitMix64;

    const MIB: u64 = 1 << 20;

    fn price() -> AccessedPrice {
        AccessedPrice { points: vec![(64 * MIB, 200_000), (256 * MIB, 300_000)], origin: String::new() }
    }

    fn paid(account: &Account) -> u64 {
        account.paid_ps / account.page_ps
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_first_sweep_waits_until_all_of_it_is_earned() {
        let mut account = Account::default();
        account.lives(ms(1), 64 * MIB, &price());
        let pages = 16_384;
        let expected = account.expected(pages, 32, Duration::ZERO);
        // 16 384 × 200 ns, and 32 × 15 µs.
        assert_eq!(expected, Duration::from_nanos(16_384 * 200 + 480_000));
        assert!(!account.allows(expected, 20));
        account.lives(expected * 55, 64 * MIB, &price());
        assert!(!account.allows(expected, 20));
        account.lives(expected * 56, 64 * MIB, &price());
        assert!(account.allows(expected, 20));
    }

    #[test]
    fn what_is_looked_at_again_is_due_no_longer_and_what_rests_costs_once() {
        let mut account = Account::default();
        account.lives(ms(1000), 64 * MIB, &price());
        account.clears(1000);
        assert_eq!(account.spent(), account.price(1000));
        account.looked(1000, 300);
        assert_eq!((paid(&account), account.due_pages), (300, 700));
        // One more at once: 300 are cleared again, and some 150 were accessed meanwhile.
        assert_eq!(account.expected_soon(), account.price(450));
        account.clears(1000);
        assert_eq!((paid(&account), account.due_pages), (450, 1000));
        account.goes_on();
        assert_eq!(account.expected_soon(), Duration::MAX);
        // Of a program that rests, nothing more was accessed: only what is, is cleared again.
        account.looked(1000, 100);
        assert_eq!((paid(&account), account.due_pages), (550, 900));
        assert_eq!(account.expected(1000, 0, Duration::ZERO), account.price(150));
        account.goes_on();
        account.clears(1000);
        assert_eq!((paid(&account), account.due_pages), (1450, 1000));
    }

    /// A program whose pages are accessed at random, under a controller that asks the account: what it truly
    /// paid is never above what the account says, and that is never above what was earned.
    #[test]
    fn whatever_a_program_does_the_account_is_never_below_the_truth_nor_above_the_share() {
        for seed in 0..40u64 {
            let mut draws = SplitMix64::new(seed);
            let (mut account, mut old, mut paid) = (Account::default(), [false; 512], 0u64);
            let mut sweeps = 0;
            let touch = |draws: &mut SplitMix64, old: &mut [bool; 512], paid: &mut u64, most: u64| {
                for _ in 0..draws.below(most) {
                    let at = draws.below(512) as usize;
                    *paid += u64::from(std::mem::take(&mut old[at]));
                }
            };
            for tick in 1..2000u64 {
                let busy = [1, 20, 400][(seed % 3) as usize];
                touch(&mut draws, &mut old, &mut paid, busy);
                account.goes_on();
                account.lives(Duration::from_micros(tick * 20), 2 * MIB, &price());
                if draws.below(4) == 0 {
                    let young = old.iter().filter(|old| !**old).count() as u64;
                    account.looked(512, young);
                }
                if account.allows(account.expected(512, 0, Duration::ZERO), 20) {
                    account.clears(512);
                    old = [true; 512];
                    sweeps += 1;
                    touch(&mut draws, &mut old, &mut paid, busy);
                    let young = old.iter().filter(|old| !**old).count() as u64;
                    account.looked(512, young);
                }
                let truth = account.price(paid);
                assert!(truth <= account.spent(), "seed {seed}: {truth:?} of {:?}", account.spent());
                assert!(account.spent_ppm() <= 20_000, "seed {seed}: {}", account.spent_ppm());
            }
            assert!(sweeps > 3, "seed {seed}: {sweeps}");
        }
    }

    #[test]
    fn sweeps_and_drops_have_their_parts_of_the_share_and_one_takes_all_where_it_is_alone() {
        let mut account = Account::default();
        account.lives(ms(1000), 64 * MIB, &price());
        // 2 % of a second, but for a tenth.
        account.parts(0, 100 * MIB, MIB);
        assert_eq!(account.room_for_drops(20), ms(18));
        account.parts(100 * MIB, 0, MIB);
        assert_eq!(account.room_for_drops(20), ms(0));
        assert!(account.allows(ms(18), 20));
        account.parts(100 * MIB, 300 * MIB, MIB);
        assert_eq!(account.room_for_drops(20), Duration::from_micros(13_500));
        assert!(account.allows(Duration::from_micros(4500), 20) && !account.allows(ms(5), 20));
        account.drops(ms(10));
        assert_eq!(account.room_for_drops(20), Duration::from_micros(3500));
        assert!(account.allows(Duration::from_micros(4500), 20) && account.is_used());
        // What one has spent, the other cannot: its memory came later.
        account.parts(0, 100 * MIB, MIB);
        account.drops(ms(8));
        account.parts(100 * MIB, 0, MIB);
        assert!(!account.allows(ms(1), 20) && account.spent_ppm() == 18_000);
    }

    /// When memory of this course is first said to be filled, in ms.
    fn filled(resident: impl Fn(u64) -> u64) -> u64 {
        let mut growth = Growth::default();
        (1..).find(|&now| growth.is_over(ms(now), resident(now))).unwrap()
    }

    #[test]
    fn memory_is_filled_when_it_grows_no_longer() {
        let fill = |from: u64, to: u64| move |now: u64| MIB + (now.clamp(from, to) - from) * MIB;
        // Steady at once, filled at the start, and after a rest.
        assert!(filled(|_| 5 * MIB) <= 40);
        let end = filled(fill(10, 1000));
        assert!((1000..1250).contains(&end), "{end}");
        let mut growth = Growth::default();
        let late = fill(300, 800);
        assert!((1..300).filter(|&now| growth.is_over(ms(now), late(now))).count() > 250);
        assert!((302..800).step_by(3).all(|now| !growth.is_over(ms(now), late(now))));
        assert!((800..1000).any(|now| growth.is_over(ms(now), late(now))));
        // It grows and grows, evenly, or ever more slowly.
        assert_eq!(filled(|now| now * MIB), 5000);
        assert!(filled(|now| (now * 1_000_000).isqrt() * MIB) < 200);
    }

    #[test]
    fn a_price_lies_between_its_points_and_goes_on_above_them() {
        let price = price();
        let ps = [1, 64, 128, 256, 512, 1024].map(|mib| price.page_ps(mib * MIB));
        assert_eq!(ps, [200_000, 200_000, 250_000, 300_000, 350_000, 400_000]);
    }
}
