//! How often something that costs much is read: seldom enough that it does no harm.

/// A read that costs less than a quarter of what it may is a cheap one; so many of them in a row make the
/// cadence twice as fast again.
const CHEAP_IN_A_ROW: u32 = 16;
/// Longer than this is not waited.
const INTERVAL_MAX_NS: u64 = 3_600_000_000_000;

/// What one read may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// So much CPU time for each read.
    Nanoseconds(u64),
    /// This share of one CPU, in thousandths.
    Permille(u64),
}

/// An interval that doubles when a read costs too much, and slowly recovers.
#[derive(Clone, Debug)]
pub struct Cadence {
    floor_ns: u64,
    interval_ns: u64,
    bound: Bound,
    cheap: u32,
    due_ns: u64,
    /// Time of the last read.
    last_ns: Option<u64>,
    /// Time of the last question whether a read is due, which is asked at every tick.
    asked_ns: Option<u64>,
    /// The shortest time between two ticks.
    tick_ns: u64,
}

impl Cadence {
    /// A first read at once, then one every `floor_ns` as long as reads stay within the bound.
    pub fn new(floor_ns: u64, bound: Bound) -> Cadence {
        Cadence {
            floor_ns,
            interval_ns: floor_ns,
            bound,
            cheap: 0,
            due_ns: 0,
            last_ns: None,
            asked_ns: None,
            tick_ns: u64::MAX,
        }
    }

    /// Whether it is time for a read; asked once at every tick.
    pub fn is_due(&mut self, at_ns: u64) -> bool {
        if let Some(asked_ns) = self.asked_ns.replace(at_ns) {
            self.tick_ns = self.tick_ns.min(at_ns.saturating_sub(asked_ns));
        }
        at_ns >= self.due_ns
    }

    /// Takes the cost of a read that was made at `at_ns`. The old and the new interval, if it changed.
    pub fn spent(&mut self, at_ns: u64, cost_ns: u64) -> Option<(u64, u64)> {
        let before = self.interval_ns;
        let since_ns = self.last_ns.map(|last_ns| at_ns.saturating_sub(last_ns));
        self.last_ns = Some(at_ns);
        self.due_ns = at_ns.saturating_add(self.interval_ns);
        // Ticks that are further apart than the interval make the reads seldom by themselves.
        let interval_ns = self.interval_ns.max(since_ns.unwrap_or(0));
        if interval_ns == 0 {
            return None;
        }
        let bound_ns = match self.bound {
            Bound::Nanoseconds(ns) => ns,
            Bound::Permille(share) => interval_ns / 1000 * share,
        };
        if cost_ns > bound_ns {
            self.interval_ns = (2 * interval_ns).min(INTERVAL_MAX_NS.max(self.floor_ns));
            self.cheap = 0;
        } else if cost_ns <= bound_ns / 4 {
            self.cheap += 1;
            if self.cheap >= CHEAP_IN_A_ROW {
                let half_ns = self.interval_ns / 2;
                let tick_ns = if self.tick_ns == u64::MAX { 0 } else { self.tick_ns };
                let is_back = half_ns <= self.floor_ns.max(tick_ns);
                self.interval_ns = if is_back { self.floor_ns } else { half_ns };
                self.cheap = 0;
            }
        } else {
            self.cheap = 0;
        }
        self.due_ns = at_ns.saturating_add(self.interval_ns);
        (before != self.interval_ns).then_some((before, self.interval_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn what_costs_too_much_is_read_half_as_often_and_recovers_slowly() {
        let mut cadence = Cadence::new(60 * S, Bound::Nanoseconds(MS));
        assert!(cadence.is_due(0));
        assert_eq!(cadence.spent(0, 47 * MS), Some((60 * S, 120 * S)));
        assert!(!cadence.is_due(119 * S) && cadence.is_due(120 * S));
        assert_eq!(cadence.spent(120 * S, 2 * MS), Some((120 * S, 240 * S)));
        assert_eq!(cadence.spent(360 * S, MS), None, "the bound itself is allowed");
        let mut at = 600 * S;
        for read in 1..=2 * CHEAP_IN_A_ROW {
            let change = cadence.spent(at, MS / 5);
            let want = match read {
                CHEAP_IN_A_ROW => Some((240 * S, 120 * S)),
                read if read == 2 * CHEAP_IN_A_ROW => Some((120 * S, 60 * S)),
                _ => None,
            };
            assert_eq!(change, want, "cheap read {read}");
            at += 240 * S;
        }
        for _ in 0..100 {
            cadence.spent(at, MS / 5);
        }
        assert_eq!(cadence.interval_ns, 60 * S, "never faster than it began");
        for _ in 0..100 {
            at += 60 * S;
            cadence.spent(at, u64::MAX);
        }
        assert_eq!(cadence.interval_ns, INTERVAL_MAX_NS);
    }

    #[test]
    fn a_share_allows_more_where_reads_are_seldom() {
        // 20 ms are a thousandth of 20 s: ticks of 5 s are too fast for it, 40 s are the first that are not.
        let mut cadence = Cadence::new(S, Bound::Permille(1));
        let reads = |cadence: &mut Cadence, ticks: std::ops::Range<u64>, cost_ns: u64| -> Vec<(u64, u64)> {
            let due = |tick: u64| {
                if cadence.is_due(tick * 5 * S) { cadence.spent(tick * 5 * S, cost_ns) } else { None }
            };
            ticks.filter_map(due).collect()
        };
        assert_eq!(reads(&mut cadence, 0..1, 20 * MS), [(S, 2 * S)]);
        assert_eq!(reads(&mut cadence, 1..100, 20 * MS), [(2 * S, 10 * S), (10 * S, 20 * S)]);
        assert_eq!(reads(&mut cadence, 100..300, MS), [(20 * S, 10 * S), (10 * S, S)]);
        assert_eq!(reads(&mut cadence, 300..400, MS), [], "ticks are the interval");
    }

    #[test]
    fn what_is_read_at_every_tick_backs_off_from_the_ticks() {
        let mut cadence = Cadence::new(0, Bound::Nanoseconds(MS));
        assert_eq!(cadence.spent(0, 2 * MS), None, "how far ticks are apart is not known yet");
        assert!(cadence.is_due(S));
        assert_eq!(cadence.spent(S, 2 * MS), Some((0, 2 * S)));
        assert!(!cadence.is_due(2 * S) && cadence.is_due(3 * S));
        let changes =
            (0..40).filter_map(|read| cadence.spent((3 + 2 * read) * S, MS / 10)).collect::<Vec<_>>();
        assert_eq!(changes, [(2 * S, 0)]);
    }
}
