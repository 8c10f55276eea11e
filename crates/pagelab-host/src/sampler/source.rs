//! A metric that is read less often than every tick where it costs too much.

use pagelab_model::{Absence, Reading, Stacks};
use pagelab_sys::clock;

use super::cadence::Cadence;
use super::metrics::Metric;
use super::tables::{Notice, Tables};
use super::{Part, Seen};

/// Something that puts what it reads into tables.
pub(super) trait Source: std::fmt::Debug + Send {
    /// Reads once. After an error, tables that were put are of use all the same.
    fn read(&mut self, tables: &mut Tables) -> Reading<()>;

    /// Does what cannot wait for the next read.
    fn between(&mut self) {}

    /// Call stacks of fallbacks, where this source has them.
    fn stacks(&self) -> Option<Stacks> {
        None
    }

    /// Whether each of its series is a thing of its own that may come and go.
    fn comes_and_goes(&self) -> bool {
        false
    }
}

/// A source at its cadence.
#[derive(Debug)]
pub(super) struct Paced {
    pub metric: Metric,
    pub tables: Tables,
    cadence: Cadence,
    source: Box<dyn Source>,
    failing: Option<Absence>,
}

impl Paced {
    pub fn new(metric: Metric, cadence: Cadence, source: Box<dyn Source>) -> Paced {
        Paced { metric, tables: Tables::default(), cadence, source, failing: None }
    }

    /// What was read last.
    pub fn part(&self) -> Part<'_> {
        Part { metric: &self.metric, shape: 0, seen: Seen::Tables(&self.tables.all) }
    }

    /// Does what cannot wait for the next read.
    pub fn between(&mut self) {
        self.source.between();
    }

    /// Call stacks of fallbacks, where this metric has them.
    pub fn stacks(&self) -> Option<Stacks> {
        self.source.stacks()
    }

    /// Reads if it is time to.
    pub fn sample(&mut self, at_ns: u64) {
        self.tables.stale();
        if !self.cadence.is_due(at_ns) {
            return;
        }
        let before_ns = clock::thread_cpu_ns();
        let read = self.source.read(&mut self.tables);
        let cost_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
        if read.is_err() && self.tables.all.iter().all(|table| !table.is_fresh) {
            self.tables.missing();
        }
        let name = self.metric.name();
        note(&mut self.failing, name, read.err(), &mut self.tables.notices);
        if self.source.comes_and_goes() {
            for series in self.tables.drop_stale() {
                self.tables.notices.push(Notice { kind: "ended", text: format!("{series} is gone") });
            }
        }
        if let Some((from_ns, to_ns)) = self.cadence.spent(at_ns, cost_ns) {
            let cost_us = cost_ns / 1000;
            let [from, to] = [from_ns, to_ns].map(|ns| match ns {
                0 => "at every tick".to_owned(),
                ns => format!("every {} s", ns as f64 / 1e9),
            });
            let text = format!("{name} {to} instead of {from}: a read cost {cost_us} us of CPU");
            self.tables.notices.push(Notice { kind: "cadence", text });
        }
    }
}

/// Says once that something cannot be read, and once that it can be read again.
pub(super) fn note(
    failing: &mut Option<Absence>,
    name: &str,
    now: Option<Absence>,
    notices: &mut Vec<Notice>,
) {
    match (&failing, &now) {
        (None, Some(absence)) => {
            let text = format!("{name}: {}: {}", absence.source, absence.reason());
            notices.push(Notice { kind: "unreadable", text });
        }
        (Some(was), None) => {
            notices.push(Notice { kind: "readable", text: format!("{name}: {}: read again", was.source) });
        }
        _ => {}
    }
    *failing = now;
}
