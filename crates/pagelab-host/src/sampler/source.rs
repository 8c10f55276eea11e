//! Source of metrics, and its cadence: read less often than every tick if it is expensive.

use pagelab_model::{Absence, FallbackStacks, Reading};
use pagelab_sys::clock;

use super::metrics::Metric;
use super::tables::{Notice, Tables};

/// Reader that fills tables.
pub(super) trait MetricSource: std::fmt::Debug + Send {
    /// Reads once. After an error, tables that were filled remain valid.
    fn read(&mut self, tables: &mut Tables) -> Reading<()>;

    /// Processes data that cannot wait for the next read.
    fn drain_pending(&mut self) {}

    /// Call stacks of fallbacks, if this source has them.
    fn stacks(&self) -> Option<FallbackStacks> {
        None
    }

    /// Whether each of its series is an object that may appear and disappear.
    fn has_transient_series(&self) -> bool {
        false
    }
}

/// A source at its cadence.
#[derive(Debug)]
pub(super) struct PacedSource {
    pub metric: Metric,
    pub tables: Tables,
    cadence: Cadence,
    pub source: Box<dyn MetricSource>,
    last_absence: Option<Absence>,
}

impl PacedSource {
    pub fn new(metric: Metric, cadence: Cadence, source: Box<dyn MetricSource>) -> PacedSource {
        PacedSource { metric, tables: Tables::default(), cadence, source, last_absence: None }
    }

    /// Reads if a reading is due.
    pub fn sample(&mut self, at_ns: u64) {
        self.tables.mark_stale();
        if !self.cadence.is_due(at_ns) {
            return;
        }
        let before_ns = clock::thread_cpu_ns();
        let read = self.source.read(&mut self.tables);
        let cost_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
        if read.is_err() && self.tables.tables.iter().all(|table| !table.is_fresh) {
            self.tables.clear_values();
        }
        let name = self.metric.name();
        note_transition(&mut self.last_absence, name, read.err(), &mut self.tables.notices);
        if self.source.has_transient_series() {
            for series in self.tables.drop_stale() {
                self.tables.notices.push(Notice { kind: "ended", text: format!("{series} disappeared") });
            }
        }
        if let Some((from_ns, to_ns)) = self.cadence.record_cost(at_ns, cost_ns) {
            let cost_us = cost_ns / 1000;
            let [from, to] = [from_ns, to_ns].map(|ns| match ns {
                0 => "at every tick".to_owned(),
                ns => format!("every {} s", ns as f64 / 1e9),
            });
            let text = format!("{name} {to} instead of {from}: a read took {cost_us} us of CPU time");
            self.tables.notices.push(Notice { kind: "cadence", text });
        }
    }
}

/// Reports once that a metric cannot be read, and once that it can be read again.
pub(super) fn note_transition(
    last_absence: &mut Option<Absence>,
    name: &str,
    current: Option<Absence>,
    notices: &mut Vec<Notice>,
) {
    match (&last_absence, &current) {
        (None, Some(absence)) => {
            let text = format!("{name}: {}: {}", absence.source, absence.reason());
            notices.push(Notice { kind: "unreadable", text });
        }
        (Some(was), None) => {
            notices
                .push(Notice { kind: "readable", text: format!("{name}: {}: readable again", was.source) });
        }
        _ => {}
    }
    *last_absence = current;
}
/// A read is cheap if it costs less than a quarter of the limit; after this number in a row the rate doubles
/// again.
const CHEAP_READS_MIN: u32 = 16;
const INTERVAL_MAX_NS: u64 = 3_600_000_000_000;

/// Cost limit of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostBound {
    /// This CPU time for each read.
    Nanoseconds(u64),
    /// This share of one CPU, in thousandths.
    Permille(u64),
}

/// An interval that doubles when a read costs too much, and slowly recovers.
#[derive(Clone, Debug)]
pub struct Cadence {
    interval_min_ns: u64,
    interval_ns: u64,
    bound: CostBound,
    cheap_reads: u32,
    due_ns: u64,
    last_read_ns: Option<u64>,
    /// Time of the last check whether a read is due, at every tick.
    last_query_ns: Option<u64>,
    tick_min_ns: u64,
}

impl Cadence {
    /// A first read at once, then one every `interval_min_ns` as long as reads stay within the bound.
    pub fn new(interval_min_ns: u64, bound: CostBound) -> Cadence {
        Cadence {
            interval_min_ns,
            interval_ns: interval_min_ns,
            bound,
            cheap_reads: 0,
            due_ns: 0,
            last_read_ns: None,
            last_query_ns: None,
            tick_min_ns: u64::MAX,
        }
    }

    /// Whether a reading is due; called once per tick.
    pub fn is_due(&mut self, at_ns: u64) -> bool {
        if let Some(asked_ns) = self.last_query_ns.replace(at_ns) {
            self.tick_min_ns = self.tick_min_ns.min(at_ns.saturating_sub(asked_ns));
        }
        at_ns >= self.due_ns
    }

    /// Records the cost of a read at `at_ns`. Returns the old and the new interval, if it changed.
    pub fn record_cost(&mut self, at_ns: u64, cost_ns: u64) -> Option<(u64, u64)> {
        let previous_ns = self.interval_ns;
        let since_ns = self.last_read_ns.map(|last_ns| at_ns.saturating_sub(last_ns));
        self.last_read_ns = Some(at_ns);
        self.due_ns = at_ns.saturating_add(self.interval_ns);
        // Ticks further apart than the interval make the reads infrequent by themselves.
        let interval_ns = self.interval_ns.max(since_ns.unwrap_or(0));
        if interval_ns == 0 {
            return None;
        }
        let bound_ns = match self.bound {
            CostBound::Nanoseconds(ns) => ns,
            CostBound::Permille(share) => interval_ns / 1000 * share,
        };
        if cost_ns > bound_ns {
            self.interval_ns = (2 * interval_ns).min(INTERVAL_MAX_NS.max(self.interval_min_ns));
            self.cheap_reads = 0;
        } else if cost_ns <= bound_ns / 4 {
            self.cheap_reads += 1;
            if self.cheap_reads >= CHEAP_READS_MIN {
                let half_ns = self.interval_ns / 2;
                let tick_ns = if self.tick_min_ns == u64::MAX { 0 } else { self.tick_min_ns };
                let is_back = half_ns <= self.interval_min_ns.max(tick_ns);
                self.interval_ns = if is_back { self.interval_min_ns } else { half_ns };
                self.cheap_reads = 0;
            }
        } else {
            self.cheap_reads = 0;
        }
        self.due_ns = at_ns.saturating_add(self.interval_ns);
        (previous_ns != self.interval_ns).then_some((previous_ns, self.interval_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn what_costs_too_much_is_read_half_as_often_and_recovers_slowly() {
        let mut cadence = Cadence::new(60 * S, CostBound::Nanoseconds(MS));
        assert!(cadence.is_due(0));
        assert_eq!(cadence.record_cost(0, 47 * MS), Some((60 * S, 120 * S)));
        assert!(!cadence.is_due(119 * S) && cadence.is_due(120 * S));
        assert_eq!(cadence.record_cost(120 * S, 2 * MS), Some((120 * S, 240 * S)));
        assert_eq!(cadence.record_cost(360 * S, MS), None, "the bound itself is allowed");
        let mut at = 600 * S;
        for read in 1..=2 * CHEAP_READS_MIN {
            let change = cadence.record_cost(at, MS / 5);
            let want = match read {
                CHEAP_READS_MIN => Some((240 * S, 120 * S)),
                read if read == 2 * CHEAP_READS_MIN => Some((120 * S, 60 * S)),
                _ => None,
            };
            assert_eq!(change, want, "cheap read {read}");
            at += 240 * S;
        }
        for _ in 0..100 {
            cadence.record_cost(at, MS / 5);
        }
        assert_eq!(cadence.interval_ns, 60 * S, "never faster than it began");
        for _ in 0..100 {
            at += 60 * S;
            cadence.record_cost(at, u64::MAX);
        }
        assert_eq!(cadence.interval_ns, INTERVAL_MAX_NS);
    }

    #[test]
    fn a_share_allows_more_where_reads_are_seldom() {
        // 20 ms are a thousandth of 20 s: ticks of 5 s are too fast for it, 40 s are the first that are not.
        let mut cadence = Cadence::new(S, CostBound::Permille(1));
        let reads = |cadence: &mut Cadence, ticks: std::ops::Range<u64>, cost_ns: u64| -> Vec<(u64, u64)> {
            let due = |tick: u64| {
                if cadence.is_due(tick * 5 * S) { cadence.record_cost(tick * 5 * S, cost_ns) } else { None }
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
        let mut cadence = Cadence::new(0, CostBound::Nanoseconds(MS));
        assert_eq!(cadence.record_cost(0, 2 * MS), None, "how far ticks are apart is not known yet");
        assert!(cadence.is_due(S));
        assert_eq!(cadence.record_cost(S, 2 * MS), Some((0, 2 * S)));
        assert!(!cadence.is_due(2 * S) && cadence.is_due(3 * S));
        let changes =
            (0..40).filter_map(|read| cadence.record_cost((3 + 2 * read) * S, MS / 10)).collect::<Vec<_>>();
        assert_eq!(changes, [(2 * S, 0)]);
    }
}
