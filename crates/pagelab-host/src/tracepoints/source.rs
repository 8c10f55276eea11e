//! Tracepoints through perf or ftrace, behind one interface.

use std::io;
use std::time::Duration;

use pagelab_model::alloc_trace::{BufferCounts, LostEvents, TraceBackend, TracepointCounts};
use pagelab_model::{Bytes, Reading};

use super::{Event, FtraceSession, LossCounts, LossReport, TracepointCount, TracepointKind, Tracepoints};
use crate::reader::Reader;

/// Source of tracepoints. Both kinds report events, their order and losses in the same form.
#[derive(Debug)]
pub enum TraceSource {
    /// Rings of perf events.
    Perf(Box<Tracepoints>),
    /// A trace instance.
    Ftrace(Box<FtraceSession>),
}

impl TraceSource {
    /// Its kind.
    pub fn mechanism(&self) -> TraceBackend {
        match self {
            TraceSource::Perf(_) => TraceBackend::Perf,
            TraceSource::Ftrace(_) => TraceBackend::Ftrace,
        }
    }

    /// Open tracepoints, in the requested order.
    pub fn kinds(&self) -> &[TracepointKind] {
        match self {
            TraceSource::Perf(perf) => &perf.kinds,
            TraceSource::Ftrace(ftrace) => &ftrace.kinds,
        }
    }

    /// Room for records on each processor.
    pub fn ring_bytes(&self) -> Bytes {
        match self {
            TraceSource::Perf(perf) => perf.ring_bytes(),
            TraceSource::Ftrace(ftrace) => ftrace.ring_bytes,
        }
    }

    /// Leaves out all present threads of this process. Returns whether the kernel does it, else the reader
    /// does.
    pub fn leave_out_threads(&mut self, reader: &Reader<'_>) -> Reading<bool> {
        match self {
            TraceSource::Perf(perf) => perf.leave_out_threads(reader),
            TraceSource::Ftrace(ftrace) => ftrace.leave_out_threads(reader).map(|()| false),
        }
    }

    /// Starts recording.
    pub fn enable(&self) -> io::Result<()> {
        match self {
            TraceSource::Perf(perf) => perf.enable(),
            TraceSource::Ftrace(ftrace) => ftrace.set_tracing("1"),
        }
    }

    /// Stops recording. Remaining events can still be read.
    pub fn disable(&self) -> io::Result<()> {
        match self {
            TraceSource::Perf(perf) => perf.disable(),
            TraceSource::Ftrace(ftrace) => ftrace.set_tracing("0"),
        }
    }

    /// Waits for the next reading, at most for `timeout`; it may end early.
    pub fn wait(&self, timeout: Duration) {
        match self {
            // A signal or another error may end the wait: the rings are read in any case.
            TraceSource::Perf(perf) => drop(perf.wait(timeout)),
            TraceSource::Ftrace(ftrace) => ftrace.wait(timeout),
        }
    }

    /// Delivers the events up to now, in time order.
    pub fn drain(&mut self, each: impl FnMut(&Event<'_>)) {
        match self {
            // Rings that cannot be read at all report it as losses.
            TraceSource::Perf(perf) => {
                perf.drain(each);
            }
            TraceSource::Ftrace(ftrace) => ftrace.drain(each),
        }
    }

    /// Lost and late events so far.
    pub fn losses(&self) -> LossCounts {
        match self {
            TraceSource::Perf(perf) => perf.state.losses,
            TraceSource::Ftrace(ftrace) => ftrace.state.losses,
        }
    }

    /// Records that could not be read and are not among the reported losses; none is expected.
    pub fn unreadable_records(&self) -> u64 {
        match self {
            TraceSource::Perf(_) => 0,
            TraceSource::Ftrace(ftrace) => ftrace.state.losses.malformed,
        }
    }

    /// The losses reported since the last call, in reading order.
    pub fn take_loss_reports(&mut self) -> Vec<LossReport> {
        let state = match self {
            TraceSource::Perf(perf) => &mut perf.state,
            TraceSource::Ftrace(ftrace) => &mut ftrace.state,
        };
        std::mem::take(&mut state.loss_reports)
    }

    /// Whether all events of the kernel were read.
    pub fn is_all_read(&self) -> bool {
        match self {
            TraceSource::Perf(perf) => {
                let read =
                    |count: &TracepointCount| count.delivered + count.own_events + count.lost.unwrap_or(0);
                perf.counts().unwrap_or_default().iter().all(|count| count.times <= read(count))
            }
            TraceSource::Ftrace(ftrace) => ftrace.is_all_read(),
        }
    }

    /// Result of each tracepoint.
    pub fn tracepoint_counts(&self) -> Vec<TracepointCounts> {
        let counts = match self {
            TraceSource::Perf(perf) => perf.counts().unwrap_or_default(),
            TraceSource::Ftrace(ftrace) => ftrace.state.counts(),
        };
        let is_counted = matches!(self, TraceSource::Perf(_));
        let kinds = self.kinds().iter().zip(counts);
        let kinds = kinds.map(|(kind, count)| TracepointCounts {
            name: kind.full_name(),
            occurred: is_counted.then_some(count.times),
            lost: count.lost.filter(|_| is_counted),
            delivered: count.delivered,
            by_recorder: count.own_events,
        });
        kinds.collect()
    }

    /// Count of the kernel for each processor's buffer, if it has one.
    pub fn buffers(&self) -> Vec<BufferCounts> {
        match self {
            TraceSource::Perf(_) => Vec::new(),
            TraceSource::Ftrace(ftrace) => ftrace.buffers(),
        }
    }

    /// Lost events that the kernel counted beyond the `reported` ones, by processor if that is known.
    /// Called after the last read: events still in a buffer are lost too.
    pub fn unreported_losses(&self, reported: u64) -> Vec<(u16, u64)> {
        match self {
            TraceSource::Perf(perf) => {
                let more = unaccounted_events(&perf.counts().unwrap_or_default(), reported);
                (more > 0).then_some((LostEvents::CPU_UNKNOWN, more)).into_iter().collect()
            }
            TraceSource::Ftrace(ftrace) => ftrace.unreported_losses(),
        }
    }
}

/// Events that were neither read nor `reported` as lost: the kernel's count of lost events, or its count of
/// unread ones if that is larger.
fn unaccounted_events(counts: &[TracepointCount], reported: u64) -> u64 {
    let lost: u64 = counts.iter().filter_map(|count| count.lost).sum();
    let unread = |count: &TracepointCount| count.times.saturating_sub(count.delivered + count.own_events);
    lost.max(counts.iter().map(unread).sum()).saturating_sub(reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_and_not_read_is_missing_whatever_the_kernel_says_was_lost() {
        let count = |times, lost, delivered, own| TracepointCount { times, lost, delivered, own_events: own };
        for (counts, told, wanted) in [
            (vec![count(90, Some(0), 90, 0)], 0, 0),
            // A processor was held up while it wrote records, until after the last look.
            (vec![count(67_627, Some(0), 67_610, 0), count(5, Some(0), 5, 0)], 0, 17),
            (vec![count(90, Some(7), 83, 0)], 7, 0),
            (vec![count(90, Some(7), 80, 3)], 4, 3),
            (vec![count(90, Some(7), 70, 3)], 7, 10),
            // Before Linux 6.0.
            (vec![count(90, None, 80, 0)], 4, 6),
            // Events in the page that the reader took over are included in the count, or not.
            (vec![count(90, Some(0), 90, 10)], 0, 0),
        ] {
            assert_eq!(unaccounted_events(&counts, told), wanted, "{counts:?}, {told}");
        }
    }
}
