//! Events in the order of time.
//!
//! Each CPU's ring is in order, and perf writes one ring after the other in rounds. At the end of a round it
//! leaves a mark; what is older than everything that the round before had seen can then go out
//! (tools/perf/util/ordered-events.c). Where no mark comes for long, the older half goes out, so that memory
//! stays bounded; what comes later than that is counted.

use super::Event;

/// Events that are held back, at most: some 300 MB of them.
const HELD_MAX: usize = 2 << 20;

/// Holds events back until nothing older can come.
#[derive(Debug, Default)]
pub struct Queue {
    /// With their time.
    held: Vec<(u64, Event)>,
    /// The latest time that was seen.
    latest: u64,
    /// What the last round saw: up to here all may go out at the next mark.
    round: u64,
    /// The time of the last one that went out.
    gone: u64,
    late: u64,
}

impl Queue {
    /// One more event. Those without a time, 0, were there before all others or have no order at all; they go
    /// out at once while nothing is held.
    pub fn push(&mut self, time: u64, event: Event, out: &mut dyn FnMut(Event)) {
        if time == 0 && self.held.is_empty() {
            return out(event);
        }
        self.late += u64::from(time != 0 && time < self.gone);
        self.latest = self.latest.max(time);
        self.held.push((time, event));
        if self.held.len() >= HELD_MAX {
            self.held.sort_by_key(|(time, _)| *time);
            let middle = self.held[HELD_MAX / 2].0;
            self.let_out(middle, out);
        }
    }

    /// A round ended.
    pub fn round(&mut self, out: &mut dyn FnMut(Event)) {
        self.let_out(self.round, out);
        self.round = self.latest;
    }

    /// Nothing more comes: everything goes out.
    pub fn finish(&mut self, out: &mut dyn FnMut(Event)) {
        self.let_out(u64::MAX, out);
    }

    /// How many came too late for their place.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn let_out(&mut self, until: u64, out: &mut dyn FnMut(Event)) {
        // Equal times keep the order of the file.
        self.held.sort_by_key(|(time, _)| *time);
        let count = self.held.partition_point(|(time, _)| *time <= until);
        for (time, event) in self.held.drain(..count) {
            self.gone = self.gone.max(time);
            out(event);
        }
    }
}
