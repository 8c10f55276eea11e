//! One policy's way through a trace: events replayed, free memory kept at each sample.

use std::path::Path;

use pagelab_model::alloc_trace::{TraceEvent, TraceHead, TraceSample};
use pagelab_model::free_areas::FreeAreas;
use pagelab_sim::replay::start::Start;
use pagelab_sim::replay::words::{Account, Misfit};
use pagelab_sys::clock;

use super::ahead::{Stumble, Taker};
use super::lane::Lane;
use super::{Free, Replayed, bad};
use crate::exit::Failure;

/// A lane, and what it came to so far.
pub struct Course<'a> {
    file: &'a Path,
    head: &'a TraceHead,
    lane: Box<dyn Lane>,
    replayed: Replayed,
    /// Samples behind the snapshot.
    samples: &'a [TraceSample],
    /// The time of the last event.
    end_ns: u64,
}

impl<'a> Course<'a> {
    pub fn new(
        (file, head): (&'a Path, &'a TraceHead),
        policy: &'static str,
        lane: Box<dyn Lane>,
        samples: &'a [TraceSample],
    ) -> Course<'a> {
        let replayed = Replayed {
            policy,
            free: Vec::new(),
            end: Free { all: FreeAreas::default(), zones: Vec::new() },
            kept_frames: 0,
            account: Account::default(),
            cpu_ns: 0,
        };
        Course { file, head, lane, replayed, samples, end_ns: 0 }
    }

    fn events(&mut self, events: &[TraceEvent]) -> Result<(), Misfit> {
        let before = clock::thread_cpu_ns();
        let fed = self.lane.feed(events);
        self.replayed.cpu_ns += clock::thread_cpu_ns().saturating_sub(before);
        fed
    }

    fn sample(&mut self) {
        self.replayed.free.push(Free::of(&self.lane.sample(), self.head));
    }

    fn next_sample(&self) -> Option<&'a TraceSample> {
        self.samples.get(self.replayed.free.len())
    }

    /// Behind the last event nothing happened: the samples that are left are of the memory as it is.
    pub fn rest(&mut self) {
        while let Some(sample) = self.next_sample() {
            self.sample();
            self.end_ns = self.end_ns.max(sample.at_ns);
        }
    }

    /// The time of the last event or sample.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// What it came to.
    pub fn done(self) -> Replayed {
        Replayed {
            end: Free::of(&self.lane.sample(), self.head),
            kept_frames: self.lane.kept_frames(),
            account: self.lane.account(),
            ..self.replayed
        }
    }

    fn misfit(&self, misfit: &Misfit) -> Failure {
        bad(
            self.file,
            format_args!(
                "{misfit}; a trace that `pagelab trace record` made does not say so: it is damaged, or \
                 memory was added to the machine meanwhile"
            ),
        )
    }
}

impl Taker for Course<'_> {
    fn take(&mut self, events: &[TraceEvent]) -> Result<(), Stumble> {
        let (mut from, mut step) = (0, 0);
        self.end_ns = events.last().map_or(self.end_ns, |event| event.at_ns);
        while let Some(sample) = self.next_sample().filter(|sample| sample.at_ns < self.end_ns) {
            let to = from + events[from..].partition_point(|event| event.at_ns <= sample.at_ns);
            self.events(&events[from..to])
                .map_err(|misfit| Stumble { step, failure: self.misfit(&misfit) })?;
            self.sample();
            (from, step) = (to, step + 1);
        }
        self.events(&events[from..]).map_err(|misfit| Stumble { step, failure: self.misfit(&misfit) })
    }
}

/// Learns what the first events tell of the state to begin with.
pub struct Observer(pub Start);

impl Taker for Observer {
    fn take(&mut self, events: &[TraceEvent]) -> Result<(), Stumble> {
        self.0.observe(events);
        Ok(())
    }
}
