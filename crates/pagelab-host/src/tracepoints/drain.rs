//! Reading all rings in the order of time.
//!
//! Each round reads the clock first and then how far each ring is filled. Records up to that time are
//! delivered in order over all rings; later ones stay for the next round, so that rounds follow each other in
//! order too. The one exception: a CPU that took the time of an event and was held up (by an interrupt, by a
//! hypervisor) before it wrote the record. Such a record comes late; it is delivered all the same, and
//! counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use pagelab_formats::perf_record::{self, Record};
use pagelab_formats::trace_format::TraceFormat;
use pagelab_sys::clock::{boottime_ns, monotonic_ns, thread_cpu_ns};

use super::{Event, KindCount, Tracepoints};

/// A difference of the clocks by more than this is a sleep of the machine, not the time between two readings.
const SLEEP_NS: u64 = 1_000_000;

/// Bytes of a ring that are read before their room is given back.
const RELEASE_BYTES: usize = 64 << 10;

/// What did not come through, by the rings' own records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that did not fit into a ring.
    pub records: u64,
    /// Samples that the kernel dropped otherwise.
    pub samples: u64,
    /// Times that the kernel stopped sampling for a moment.
    pub throttled: u64,
    /// Records that could not be read; none is expected.
    pub malformed: u64,
    /// Events that came out of order, because their CPU was held up before it wrote them.
    pub late: u64,
}

impl Losses {
    /// Events that were lost for good.
    pub fn lost(&self) -> u64 {
        self.records.saturating_add(self.samples).saturating_add(self.malformed)
    }
}

/// A loss as a ring told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldLoss {
    /// CLOCK_BOOTTIME in nanoseconds of the first record that was taken again; the loss was before it.
    pub at_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// Events that did not fit in.
    pub events: u64,
}

/// Losses that are kept for whoever asks; more are added to the last one.
const TOLD_MAX: usize = 5_000;

/// What one round of reading brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events delivered.
    pub events: u64,
    /// Bytes of records read.
    pub bytes: u64,
    /// CPU time of this thread, callbacks included.
    pub cpu_ns: u64,
    /// Everything up to this time of CLOCK_BOOTTIME has been delivered, but for what comes late.
    pub until_ns: u64,
}

/// What goes on from round to round.
#[derive(Debug)]
pub(super) struct State {
    pub(super) losses: Losses,
    pub(super) cpu_ns: u64,
    /// Kind by the number of its tracepoint.
    kind_of: Vec<Option<u16>>,
    delivered: Vec<u64>,
    own: Vec<u64>,
    /// This process, if its events are left out.
    own_pid: Option<u32>,
    /// CLOCK_BOOTTIME ahead of CLOCK_MONOTONIC: the time asleep.
    pub(super) asleep_ns: u64,
    last_ns: u64,
    pub(super) told: Vec<ToldLoss>,
}

impl State {
    pub(super) fn new(ids: impl Iterator<Item = u16>, own_pid: Option<u32>) -> State {
        let mut kind_of = Vec::new();
        let mut kinds = 0;
        for (kind, id) in (0u16..).zip(ids) {
            let place = usize::from(id);
            kind_of.resize(kind_of.len().max(place + 1), None);
            kind_of[place] = Some(kind);
            kinds += 1;
        }
        let (delivered, own) = (vec![0; kinds], vec![0; kinds]);
        let (losses, asleep_ns) = (Losses::default(), asleep_ns());
        let told = Vec::new();
        State { losses, cpu_ns: 0, kind_of, delivered, own, own_pid, asleep_ns, last_ns: 0, told }
    }

    pub(super) fn counts(&self) -> Vec<KindCount> {
        let both = self.delivered.iter().zip(&self.own);
        both.map(|(&delivered, &own)| KindCount { times: 0, lost: Some(0), delivered, own }).collect()
    }

    /// Takes one record in; `true` if it was an event that was delivered.
    #[inline]
    fn take(
        &mut self,
        bytes: &[u8],
        layout: &perf_record::Layout,
        each: &mut impl FnMut(&Event<'_>),
    ) -> bool {
        let sample = match perf_record::parse(bytes, layout) {
            Ok(Record::Sample(sample)) => sample,
            Ok(other) => {
                self.note(&other);
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
            self.leave_out(kind);
            return false;
        }
        let at_ns = self.deliver(kind, sample.time_ns);
        each(&Event {
            kind,
            at_ns,
            cpu: sample.cpu,
            pid: sample.pid,
            tid: sample.tid,
            callchain: sample.callchain,
            record: sample.raw,
        });
        true
    }

    /// Looks whether the machine has slept since the clocks were compared.
    pub(super) fn follow_sleep(&mut self) {
        let ahead = asleep_ns();
        if ahead.abs_diff(self.asleep_ns) > SLEEP_NS {
            self.asleep_ns = ahead;
        }
    }

    /// The kind of a tracepoint's record.
    #[inline]
    pub(super) fn kind(&self, record: &[u8]) -> Option<usize> {
        let id = TraceFormat::id_of(record).map(usize::from)?;
        self.kind_of.get(id).copied().flatten().map(usize::from)
    }

    /// Counts an event that this process caused.
    #[inline]
    pub(super) fn leave_out(&mut self, kind: usize) {
        self.own[kind] += 1;
    }

    /// Counts an event that is delivered, and finds its time in CLOCK_BOOTTIME.
    #[inline]
    pub(super) fn deliver(&mut self, kind: usize, time_ns: u64) -> u64 {
        self.losses.late += u64::from(time_ns < self.last_ns);
        self.last_ns = self.last_ns.max(time_ns);
        self.delivered[kind] += 1;
        time_ns.saturating_add(self.asleep_ns)
    }

    /// A ring told of a loss.
    #[cold]
    pub(super) fn tell(&mut self, time_ns: u64, cpu: u32, events: u64) {
        let is_full = self.told.len() >= TOLD_MAX;
        match self.told.last_mut() {
            Some(last) if is_full => last.events = last.events.saturating_add(events),
            _ => self.told.push(ToldLoss { at_ns: time_ns.saturating_add(self.asleep_ns), cpu, events }),
        }
    }

    #[cold]
    fn note(&mut self, record: &Record<'_>) {
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

/// How far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC, from the tightest of a few readings.
fn asleep_ns() -> u64 {
    let reading = || {
        let before = monotonic_ns();
        let boot = boottime_ns();
        let after = monotonic_ns();
        (after - before, boot.saturating_sub(before + (after - before) / 2))
    };
    (0..5).map(|_| reading()).min().map_or(0, |(_, ahead)| ahead)
}

impl Tracepoints {
    /// Delivers what has happened up to now, in the order of time. It ends by itself however fast events come
    /// in: what happens while it runs is left for the next call.
    ///
    /// In the first round after the machine slept, events from before the sleep get the time after it.
    pub fn drain(&mut self, mut each: impl FnMut(&Event<'_>)) -> io::Result<Drained> {
        let began_ns = thread_cpu_ns();
        self.state.follow_sleep();
        let until = monotonic_ns();
        let mut drained = Drained { until_ns: until + self.state.asleep_ns, ..Drained::default() };
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(self.rings.len());
        for ring in 0..self.rings.len() {
            self.rings[ring].look();
            next.extend(self.next(ring, until).map(|time| Reverse((time, ring))));
        }
        // The ring with the earliest record is read until another one's is earlier.
        while let Some(Reverse((_, ring))) = next.pop() {
            let limit = next.peek().map_or(until, |Reverse((time, _))| *time);
            let after = self.run(ring, limit, until, &mut drained, &mut each);
            next.extend(after.map(|time| Reverse((time, ring))));
        }
        self.rings.iter_mut().for_each(|ring| ring.release());
        drained.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        self.state.cpu_ns += drained.cpu_ns;
        Ok(drained)
    }

    /// The time of the next record of a ring; `None` if there is none up to `until`. One without a time is
    /// due at once.
    fn next(&mut self, ring: usize, until: u64) -> Option<u64> {
        match self.rings[ring].record() {
            Ok(record) => Some(self.layout.time(record?).unwrap_or(0)).filter(|&time| time <= until),
            Err(_) => {
                self.state.losses.malformed += 1;
                None
            }
        }
    }

    /// Reads one ring as long as its records are not after `limit`; the time of its next one.
    fn run(
        &mut self,
        ring: usize,
        limit: u64,
        until: u64,
        drained: &mut Drained,
        each: &mut impl FnMut(&Event<'_>),
    ) -> Option<u64> {
        let Tracepoints { rings, layout, state, cpus, .. } = self;
        let cpu = cpus.get(ring).copied().unwrap_or(u32::MAX);
        let ring = &mut rings[ring];
        let mut unreleased = 0;
        loop {
            let record = match ring.record() {
                Ok(record) => record?,
                Err(_) => {
                    state.losses.malformed += 1;
                    return None;
                }
            };
            let time = layout.time(record).unwrap_or(0);
            if time > limit {
                return Some(time).filter(|&time| time <= until);
            }
            let size = record.len();
            let lost = state.losses.lost();
            drained.events += u64::from(state.take(record, layout, each));
            let lost = state.losses.lost() - lost;
            if lost > 0 {
                state.tell(time, cpu, lost);
            }
            drained.bytes += size as u64;
            ring.pass(size);
            unreleased += size;
            if unreleased >= RELEASE_BYTES {
                ring.release();
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
        let layout = perf_record::Layout::new(TIME | RAW).unwrap();
        let mut state = State::new([7u16, 3].into_iter(), None);
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
            state.take(&bytes, &layout, &mut |event| seen.push(event.kind));
        }
        assert_eq!(seen, [1, 0], "by the place among the kinds");
        assert_eq!((state.losses.malformed, state.losses.late, state.losses.lost()), (2, 1, 2));
        state.note(&Record::Lost { records: 40 });
        state.note(&Record::LostSamples { samples: 2 });
        state.note(&Record::Throttle);
        assert_eq!((state.losses.lost(), state.losses.throttled), (44, 1));
        let delivered: Vec<_> = state.counts().iter().map(|count| count.delivered).collect();
        assert_eq!(delivered, [1, 1]);
    }
}
