//! Tracepoints through perf or through ftrace, for a reader to whom it is the same.

use std::io;
use std::time::Duration;

use pagelab_model::alloc_trace::{TraceBuffer, TraceKind, TraceLoss, TraceThrough};
use pagelab_model::{Bytes, Reading};

use super::{Event, Ftrace, Kind, KindCount, Losses, ToldLoss, Tracepoints};
use crate::reader::Reader;

/// Either of the two. Events, their order, and losses are told in the same words.
#[derive(Debug)]
pub enum Source {
    /// Rings of perf events.
    Perf(Box<Tracepoints>),
    /// A trace instance.
    Ftrace(Box<Ftrace>),
}

impl Source {
    /// Which of the two it is.
    pub fn through(&self) -> TraceThrough {
        match self {
            Source::Perf(_) => TraceThrough::Perf,
            Source::Ftrace(_) => TraceThrough::Ftrace,
        }
    }

    /// What is open, in the order in which it was wanted.
    pub fn kinds(&self) -> &[Kind] {
        match self {
            Source::Perf(perf) => perf.kinds(),
            Source::Ftrace(ftrace) => ftrace.kinds(),
        }
    }

    /// The kind with this name.
    pub fn kind(&self, system: &str, name: &str) -> Option<usize> {
        self.kinds().iter().position(|kind| kind.system == system && kind.format.name == name)
    }

    /// Room for records on each processor.
    pub fn ring_bytes(&self) -> Bytes {
        match self {
            Source::Perf(perf) => perf.ring_bytes(),
            Source::Ftrace(ftrace) => ftrace.ring_bytes(),
        }
    }

    /// Leaves out all threads that this process has now; whether the kernel does it, else the reader.
    pub fn leave_out_threads(&mut self, reader: &Reader<'_>) -> Reading<bool> {
        match self {
            Source::Perf(perf) => perf.leave_out_threads(reader),
            Source::Ftrace(ftrace) => ftrace.leave_out_threads(reader).map(|()| false),
        }
    }

    /// Begins to record.
    pub fn enable(&self) -> io::Result<()> {
        match self {
            Source::Perf(perf) => perf.enable(),
            Source::Ftrace(ftrace) => ftrace.enable(),
        }
    }

    /// Ends to record. What is there can still be read.
    pub fn disable(&self) -> io::Result<()> {
        match self {
            Source::Perf(perf) => perf.disable(),
            Source::Ftrace(ftrace) => ftrace.disable(),
        }
    }

    /// Waits until it is time to read, at most for `timeout`; it may end early.
    pub fn wait(&self, timeout: Duration) {
        match self {
            // That a signal or another error ended the wait is no matter: the rings are looked at anyway.
            Source::Perf(perf) => drop(perf.wait(timeout)),
            Source::Ftrace(ftrace) => ftrace.wait(timeout),
        }
    }

    /// Delivers what has happened up to now, in the order of time.
    pub fn drain(&mut self, each: impl FnMut(&Event<'_>)) {
        match self {
            // Rings that cannot be read at all tell so by losses.
            Source::Perf(perf) => drop(perf.drain(each)),
            Source::Ftrace(ftrace) => drop(ftrace.drain(each)),
        }
    }

    /// What was lost or late so far.
    pub fn losses(&self) -> Losses {
        match self {
            Source::Perf(perf) => perf.losses(),
            Source::Ftrace(ftrace) => ftrace.losses(),
        }
    }

    /// Records that could not be read and are not among the losses that are told; none is expected.
    pub fn unreadable(&self) -> u64 {
        match self {
            Source::Perf(_) => 0,
            Source::Ftrace(ftrace) => ftrace.losses().malformed,
        }
    }

    /// The losses that were told since the last call, in the order of reading.
    pub fn take_losses(&mut self) -> Vec<ToldLoss> {
        match self {
            Source::Perf(perf) => perf.take_losses(),
            Source::Ftrace(ftrace) => ftrace.take_losses(),
        }
    }

    /// Whether everything that the kernel has was read.
    pub fn is_all_read(&self) -> bool {
        match self {
            Source::Perf(perf) => {
                let read = |count: &KindCount| count.delivered + count.own + count.lost.unwrap_or(0);
                perf.counts().unwrap_or_default().iter().all(|count| count.times <= read(count))
            }
            Source::Ftrace(ftrace) => ftrace.is_all_read(),
        }
    }

    /// What each tracepoint came to.
    pub fn told(&self) -> Vec<TraceKind> {
        let counts = match self {
            Source::Perf(perf) => perf.counts().unwrap_or_default(),
            Source::Ftrace(ftrace) => ftrace.counts(),
        };
        let is_counted = matches!(self, Source::Perf(_));
        let kinds = self.kinds().iter().zip(counts);
        let kinds = kinds.map(|(kind, count)| TraceKind {
            name: kind.full_name(),
            times: is_counted.then_some(count.times),
            lost: count.lost.filter(|_| is_counted),
            delivered: count.delivered,
            own: count.own,
        });
        kinds.collect()
    }

    /// What the kernel counted for each processor's buffer, where it does that.
    pub fn buffers(&self) -> Vec<TraceBuffer> {
        match self {
            Source::Perf(_) => Vec::new(),
            Source::Ftrace(ftrace) => ftrace.buffers(),
        }
    }

    /// Lost events that the kernel counted beyond the `told` ones, by processor where that is known. Asked
    /// when nothing more is read: what is in a buffer then is lost too.
    pub fn untold(&self, told: u64) -> Vec<(u16, u64)> {
        match self {
            Source::Perf(perf) => {
                let more = missing(&perf.counts().unwrap_or_default(), told);
                (more > 0).then_some((TraceLoss::CPU_UNKNOWN, more)).into_iter().collect()
            }
            Source::Ftrace(ftrace) => ftrace.untold(),
        }
    }
}

/// Events that happened and were neither read nor `told` as lost: what the kernel counts as lost, or what it
/// counted and nobody read, if that is more.
fn missing(counts: &[KindCount], told: u64) -> u64 {
    let lost: u64 = counts.iter().filter_map(|count| count.lost).sum();
    let unread = |count: &KindCount| count.times.saturating_sub(count.delivered + count.own);
    lost.max(counts.iter().map(unread).sum()).saturating_sub(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_and_not_read_is_missing_whatever_the_kernel_says_was_lost() {
        let count = |times, lost, delivered, own| KindCount { times, lost, delivered, own };
        for (counts, told, wanted) in [
            (vec![count(90, Some(0), 90, 0)], 0, 0),
            // A processor was held up while it wrote records, until after the last look.
            (vec![count(67_627, Some(0), 67_610, 0), count(5, Some(0), 5, 0)], 0, 17),
            (vec![count(90, Some(7), 83, 0)], 7, 0),
            (vec![count(90, Some(7), 80, 3)], 4, 3),
            (vec![count(90, Some(7), 70, 3)], 7, 10),
            // Before Linux 6.0.
            (vec![count(90, None, 80, 0)], 4, 6),
            // What a reader took for its own was counted too, or was not.
            (vec![count(90, Some(0), 90, 10)], 0, 0),
        ] {
            assert_eq!(missing(&counts, told), wanted, "{counts:?}, {told}");
        }
    }
}
