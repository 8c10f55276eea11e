//! Reader of all rings in time order.
//!
//! Each round reads the clock first and then the fill level of each ring. Records up to that time are
//! delivered in order over all rings; later ones stay for the next round, so that rounds follow each other in
//! order too. The one exception is a CPU that read the time of an event and was delayed (by an interrupt or a
//! hypervisor) before it wrote the record. Such a late record is delivered and counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pagelab_formats::perf_record::{self, Record};
use pagelab_formats::trace_format::TraceFormat;
use pagelab_sys::clock::{boottime_ns, monotonic_ns, thread_cpu_ns};

use super::{Event, TracepointCount, Tracepoints};

/// A larger difference of the clocks is a suspend of the machine, not the time between two readings.
const SLEEP_NS: u64 = 1_000_000;

/// Bytes of a ring that are read before they are released to the kernel.
const RELEASE_BYTES: usize = 64 << 10;

/// Losses, by the rings' own records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// Records that did not fit into a ring.
    pub records: u64,
    /// Samples that the kernel dropped otherwise.
    pub samples: u64,
    /// Number of times that the kernel throttled sampling.
    pub throttled: u64,
    /// Records that could not be read; none is expected.
    pub malformed: u64,
    /// Events that arrived out of order because their CPU was delayed before it wrote them.
    pub out_of_order: u64,
}

impl LossCounts {
    /// Lost events.
    pub fn lost_events(&self) -> u64 {
        self.records.saturating_add(self.samples).saturating_add(self.malformed)
    }
}

/// Loss reported by a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossReport {
    /// CLOCK_BOOTTIME in nanoseconds of the first record after the loss.
    pub time_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// Events that did not fit.
    pub events: u64,
}

/// Maximum of stored losses; more are added to the last one.
const LOSS_REPORTS_MAX: usize = 5_000;

/// State kept between rounds.
#[derive(Debug)]
pub(super) struct DrainState {
    pub(super) losses: LossCounts,
    pub(super) cpu_ns: u64,
    /// Kind by the number of its tracepoint.
    kind_by_id: Vec<Option<u16>>,
    delivered: Vec<u64>,
    own_events: Vec<u64>,
    /// This process, if its events are left out.
    own_pid: Option<u32>,
    /// CLOCK_BOOTTIME minus CLOCK_MONOTONIC: the time suspended.
    pub(super) sleep_offset_ns: u64,
    last_delivered_ns: u64,
    pub(super) loss_reports: Vec<LossReport>,
}

impl DrainState {
    pub(super) fn new(ids: impl Iterator<Item = u16>, own_pid: Option<u32>) -> DrainState {
        let mut kind_by_id = Vec::new();
        let mut kinds = 0;
        for (kind, id) in (0u16..).zip(ids) {
            let place = usize::from(id);
            kind_by_id.resize(kind_by_id.len().max(place + 1), None);
            kind_by_id[place] = Some(kind);
            kinds += 1;
        }
        DrainState {
            losses: LossCounts::default(),
            cpu_ns: 0,
            kind_by_id,
            delivered: vec![0; kinds],
            own_events: vec![0; kinds],
            own_pid,
            sleep_offset_ns: read_sleep_offset_ns(),
            last_delivered_ns: 0,
            loss_reports: Vec::new(),
        }
    }

    pub(super) fn counts(&self) -> Vec<TracepointCount> {
        let both = self.delivered.iter().zip(&self.own_events);
        both.map(|(&delivered, &own)| TracepointCount { times: 0, lost: Some(0), delivered, own_events: own })
            .collect()
    }

    /// Processes one record; `true` if it was a delivered event.
    #[inline]
    fn handle_record(
        &mut self,
        bytes: &[u8],
        layout: &perf_record::SampleLayout,
        visit: &mut impl FnMut(&Event<'_>),
    ) -> bool {
        let sample = match perf_record::parse(bytes, layout) {
            Ok(Record::Sample(sample)) => sample,
            Ok(other) => {
                self.count_loss(&other);
                return false;
            }
            Err(_) => {
                self.losses.malformed += 1;
                return false;
            }
        };
        let Some(kind) = self.kind(sample.raw) else {
            self.losses.malformed += 1;
            return false;
        };
        if self.own_pid == Some(sample.pid) {
            self.count_own(kind);
            return false;
        }
        let at_ns = self.deliver(kind, sample.time_ns);
        visit(&Event {
            kind,
            time_ns: at_ns,
            cpu: sample.cpu,
            pid: sample.pid,
            tid: sample.tid,
            callchain: sample.callchain,
            record: sample.raw,
        });
        true
    }

    /// Checks whether the machine was suspended since the clocks were compared.
    pub(super) fn update_sleep_offset(&mut self) {
        let ahead = read_sleep_offset_ns();
        if ahead.abs_diff(self.sleep_offset_ns) > SLEEP_NS {
            self.sleep_offset_ns = ahead;
        }
    }

    /// The kind of a tracepoint's record.
    #[inline]
    pub(super) fn kind(&self, record: &[u8]) -> Option<usize> {
        let id = TraceFormat::read_event_id(record).map(usize::from)?;
        self.kind_by_id.get(id).copied().flatten().map(usize::from)
    }

    /// Counts an event that this process caused.
    #[inline]
    pub(super) fn count_own(&mut self, kind: usize) {
        self.own_events[kind] += 1;
    }

    /// Counts an event that is delivered, and finds its time in CLOCK_BOOTTIME.
    #[inline]
    pub(super) fn deliver(&mut self, kind: usize, time_ns: u64) -> u64 {
        self.losses.out_of_order += u64::from(time_ns < self.last_delivered_ns);
        self.last_delivered_ns = self.last_delivered_ns.max(time_ns);
        self.delivered[kind] += 1;
        time_ns.saturating_add(self.sleep_offset_ns)
    }

    /// A ring reported a loss.
    #[cold]
    pub(super) fn report_loss(&mut self, time_ns: u64, cpu: u32, events: u64) {
        let is_full = self.loss_reports.len() >= LOSS_REPORTS_MAX;
        match self.loss_reports.last_mut() {
            Some(last) if is_full => last.events = last.events.saturating_add(events),
            _ => self.loss_reports.push(LossReport {
                time_ns: time_ns.saturating_add(self.sleep_offset_ns),
                cpu,
                events,
            }),
        }
    }

    #[cold]
    fn count_loss(&mut self, record: &Record<'_>) {
        match *record {
            Record::Lost { records } => self.losses.records = self.losses.records.saturating_add(records),
            Record::LostSamples { samples } => {
                self.losses.samples = self.losses.samples.saturating_add(samples);
            }
            Record::Throttle => self.losses.throttled += 1,
            Record::Unthrottle | Record::Other { .. } | Record::Sample(_) => {}
        }
    }
}

/// CLOCK_BOOTTIME minus CLOCK_MONOTONIC, from the closest of a few readings.
fn read_sleep_offset_ns() -> u64 {
    let reading = || {
        let before = monotonic_ns();
        let boot = boottime_ns();
        let after = monotonic_ns();
        (after - before, boot.saturating_sub(before + (after - before) / 2))
    };
    (0..5).map(|_| reading()).min().map_or(0, |(_, ahead)| ahead)
}

impl Tracepoints {
    /// Delivers the events up to now, in time order. It ends even if events arrive fast: later events are
    /// left for the next call. Returns their number.
    ///
    /// In the first round after a suspend, events from before it get a time after it.
    pub fn drain(&mut self, mut visit: impl FnMut(&Event<'_>)) -> u64 {
        let start_ns = thread_cpu_ns();
        self.state.update_sleep_offset();
        let until_ns = monotonic_ns();
        let mut events = 0;
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(self.rings.len());
        for ring in 0..self.rings.len() {
            self.rings[ring].update_head();
            next.extend(self.next_time(ring, until_ns).map(|time| Reverse((time, ring))));
        }
        // The ring with the earliest record is read until another ring has an earlier one.
        while let Some(Reverse((_, ring))) = next.pop() {
            let limit = next.peek().map_or(until_ns, |Reverse((time, _))| *time);
            let after = self.drain_ring(ring, limit, until_ns, &mut events, &mut visit);
            next.extend(after.map(|time| Reverse((time, ring))));
        }
        self.rings.iter_mut().for_each(|ring| ring.release_space());
        self.state.cpu_ns += thread_cpu_ns().saturating_sub(start_ns);
        events
    }

    /// Time of the next record of a ring; `None` if there is none up to `until`. One without a time is
    /// delivered at once.
    fn next_time(&mut self, ring: usize, until: u64) -> Option<u64> {
        match self.rings[ring].next_record() {
            Ok(record) => Some(self.layout.time(record?).unwrap_or(0)).filter(|&time| time <= until),
            Err(_) => {
                self.state.losses.malformed += 1;
                None
            }
        }
    }

    /// Reads one ring up to `limit`, and returns the time of its next record.
    fn drain_ring(
        &mut self,
        ring: usize,
        limit: u64,
        until_ns: u64,
        events: &mut u64,
        visit: &mut impl FnMut(&Event<'_>),
    ) -> Option<u64> {
        let Tracepoints { rings, layout, state, cpus, .. } = self;
        let cpu = cpus.get(ring).copied().unwrap_or(u32::MAX);
        let ring = &mut rings[ring];
        let mut unreleased = 0;
        loop {
            let record = match ring.next_record() {
                Ok(record) => record?,
                Err(_) => {
                    state.losses.malformed += 1;
                    return None;
                }
            };
            let time = layout.time(record).unwrap_or(0);
            if time > limit {
                return Some(time).filter(|&time| time <= until_ns);
            }
            let size = record.len();
            let lost = state.losses.lost_events();
            *events += u64::from(state.handle_record(record, layout, visit));
            let lost = state.losses.lost_events() - lost;
            if lost > 0 {
                state.report_loss(time, cpu, lost);
            }
            ring.advance(size);
            unreleased += size;
            if unreleased >= RELEASE_BYTES {
                ring.release_space();
                unreleased = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_make_no_sense_are_counted_and_not_delivered() {
        use pagelab_formats::perf_record::sample_type::{RAW, TIME};
        let layout = perf_record::SampleLayout::new(TIME | RAW).unwrap();
        let mut state = DrainState::new([7u16, 3].into_iter(), None);
        let record = |id: u16, time: u64| {
            let mut bytes = vec![9, 0, 0, 0, 0, 0, 32, 0];
            bytes.extend(time.to_ne_bytes());
            bytes.extend(12u32.to_ne_bytes());
            bytes.extend(id.to_ne_bytes());
            bytes.resize(32, 0);
            bytes
        };
        let mut seen = Vec::new();
        for bytes in [record(3, 10), record(4, 11), record(7, 9), record(7, 12)[..20].to_vec()] {
            state.handle_record(&bytes, &layout, &mut |event| seen.push(event.kind));
        }
        assert_eq!(seen, [1, 0], "by the place among the kinds");
        assert_eq!(
            (state.losses.malformed, state.losses.out_of_order, state.losses.lost_events()),
            (2, 1, 2)
        );
        state.count_loss(&Record::Lost { records: 40 });
        state.count_loss(&Record::LostSamples { samples: 2 });
        state.count_loss(&Record::Throttle);
        assert_eq!((state.losses.lost_events(), state.losses.throttled), (44, 1));
        let delivered: Vec<_> = state.counts().iter().map(|count| count.delivered).collect();
        assert_eq!(delivered, [1, 1]);
    }
}
