//! Replay of a trace under one policy: events replayed, free memory recorded at each sample.

use std::path::Path;

use pagelab_command::exit::Failure;
use pagelab_model::alloc_trace::{FreeAreasSample, TraceEvent, TraceHeader};
use pagelab_model::free_areas::BuddyInfo;
use pagelab_sim::policies::{GroupByMobility, Policy, PolicyEntry, SingleList, StrictMobility};
use pagelab_sim::replay::Replay;
use pagelab_sim::replay::snapshot::ReplaySnapshot;
use pagelab_sim::replay::types::{ReplayError, ReplayStats, ZoneSelection};
use pagelab_sim::types::Error;
use pagelab_sys::{advice, clock};

use super::parallel_decode::{EventSink, SinkError};
use super::{FreeMemory, PolicyOutcome, bad_trace};

/// Replay with its results so far.
pub struct PolicyReplay<'a> {
    file: &'a Path,
    head: &'a TraceHeader,
    engine: Box<dyn ReplayEngine>,
    outcome: PolicyOutcome,
    /// Samples after the snapshot.
    samples: &'a [FreeAreasSample],
    /// Time of the last event.
    end_ns: u64,
}

impl<'a> PolicyReplay<'a> {
    pub(super) fn new(
        (file, head): (&'a Path, &'a TraceHeader),
        policy: &'static str,
        lane: Box<dyn ReplayEngine>,
        samples: &'a [FreeAreasSample],
    ) -> PolicyReplay<'a> {
        let outcome = PolicyOutcome { policy, ..PolicyOutcome::default() };
        PolicyReplay { file, head, engine: lane, outcome, samples, end_ns: 0 }
    }

    fn feed_events(&mut self, events: &[TraceEvent]) -> Result<(), ReplayError> {
        let before = clock::thread_cpu_ns();
        let fed = self.engine.feed(events);
        self.outcome.cpu_ns += clock::thread_cpu_ns().saturating_sub(before);
        fed
    }

    fn record_sample(&mut self) {
        self.outcome.free.push(FreeMemory::from_buddyinfo(&self.engine.sample(), self.head));
    }

    fn next_sample(&self) -> Option<&'a FreeAreasSample> {
        self.samples.get(self.outcome.free.len())
    }

    /// Records the remaining samples: after the last event, memory does not change.
    pub fn record_remaining_samples(&mut self) {
        while let Some(sample) = self.next_sample() {
            self.record_sample();
            self.end_ns = self.end_ns.max(sample.at_ns);
        }
    }

    /// Time of the last event or sample.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    pub(super) fn into_outcome(self) -> PolicyOutcome {
        PolicyOutcome {
            end: FreeMemory::from_buddyinfo(&self.engine.sample(), self.head),
            kept_frames: self.engine.kept_frames(),
            account: self.engine.account(),
            ..self.outcome
        }
    }

    fn misfit_failure(&self, misfit: &ReplayError) -> Failure {
        bad_trace(
            self.file,
            format_args!("{misfit}: corrupt trace, or memory was hot-added during the recording"),
        )
    }
}

impl EventSink for PolicyReplay<'_> {
    fn accept(&mut self, events: &[TraceEvent]) -> Result<(), SinkError> {
        let (mut from, mut step) = (0, 0);
        self.end_ns = events.last().map_or(self.end_ns, |event| event.time_ns);
        while let Some(sample) = self.next_sample().filter(|sample| sample.at_ns < self.end_ns) {
            let to = from + events[from..].partition_point(|event| event.time_ns <= sample.at_ns);
            self.feed_events(&events[from..to])
                .map_err(|misfit| SinkError { step, failure: self.misfit_failure(&misfit) })?;
            self.record_sample();
            (from, step) = (to, step + 1);
        }
        self.feed_events(&events[from..])
            .map_err(|misfit| SinkError { step, failure: self.misfit_failure(&misfit) })
    }
}

/// Infers the initial state from the first events.
impl EventSink for ReplaySnapshot {
    fn accept(&mut self, events: &[TraceEvent]) -> Result<(), SinkError> {
        self.observe_events(events);
        Ok(())
    }
}

/// Replay behind a dispatch table: events arrive in blocks, so the calls cost nothing.
pub trait ReplayEngine: Send {
    /// Replays events.
    fn feed(&mut self, events: &[TraceEvent]) -> Result<(), ReplayError>;
    /// Free blocks by zone and order.
    fn sample(&self) -> BuddyInfo;
    /// Frames of known objects.
    fn kept_frames(&self) -> u64;
    /// Counts of replayed events.
    fn account(&self) -> ReplayStats;
}

impl<P: Policy + Clone + Send> ReplayEngine for Replay<P> {
    fn feed(&mut self, events: &[TraceEvent]) -> Result<(), ReplayError> {
        Replay::replay_events(self, events)
    }

    fn sample(&self) -> BuddyInfo {
        Replay::free_blocks_now(self)
    }

    fn kept_frames(&self) -> u64 {
        Replay::pcp_frames(self)
    }

    fn account(&self) -> ReplayStats {
        Replay::stats(self)
    }
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Builds the replay of a policy.
pub fn build_engine(
    entry: &PolicyEntry,
    start: &ReplaySnapshot,
    zones: ZoneSelection,
) -> Result<Box<dyn ReplayEngine>, Error> {
    // The common policies are compiled statically: calls through a table cost 10 %.
    match entry.name {
        "standard" => build_boxed(start, &SingleList, zones),
        "mobility-6.1" => build_boxed(start, &GroupByMobility, zones),
        "mobility-6.18" => build_boxed(start, &StrictMobility::ClaimThenSteal, zones),
        _ => build_boxed(start, &entry.policy, zones),
    }
}

/// Builds a replay with its tables on huge pages if the kernel allows it: its reads are spread over all of
/// them.
fn build_boxed<P: Policy + Clone + Send + 'static>(
    start: &ReplaySnapshot,
    policy: &P,
    zones: ZoneSelection,
) -> Result<Box<dyn ReplayEngine>, Error> {
    let replay = Replay::new(start, policy, zones)?;
    for place in replay.memory_ranges() {
        let _ = advice::collapse_range(place, HUGE_PAGE_BYTES);
    }
    Ok(Box::new(replay))
}
