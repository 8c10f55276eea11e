//! Tracepoints through a trace instance: a buffer of ftrace's that is nobody else's.
//!
//! For the program that is traced this is the shorter way: a record is written into its processor's buffer
//! and nothing else happens, while perf looks for the event's context and filter, and wakes its reader.
//!
//! Nothing in the kernel leaves threads out here. A filter would have each record written aside first, and
//! a list of threads would have a look at each switch of tasks, for a few records of ours.
//!
//! The buffer is overwritten: what a reader who comes too late lacks is the oldest, and the kernel writes
//! into the next page how many records that were. A buffer that is not overwritten counts what it lacks for
//! its whole time alone, so that nobody could say where it was.
//!
//! The reader looks by the clock. To be woken, each record would have to look whether it is time for that.

mod buffer;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pagelab_formats::cpu_list;
use pagelab_formats::perf_record::Callchain;
use pagelab_formats::ring_page::{self, PageLayout};
use pagelab_formats::trace_format::Field;
use pagelab_model::alloc_trace::TraceBuffer;
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use pagelab_sys::clock::{boottime_ns, monotonic_ns, thread_cpu_ns};
use rustix::fs::OFlags;

use super::drain::State;
use super::open::{knows_itself, own_threads};
use super::{Drained, Event, Kind, KindCount, Losses, ToldLoss, Tracefs, Wanted};
use crate::guard::TraceInstance;
use crate::paths;
use crate::reader::Reader;
use buffer::Buffer;

/// How often the reader looks: a buffer is filled in no less. On 2 processors 1.3 million events a second
/// were seen, of some 34 bytes: a tenth of this.
const FILLED_BYTES_PER_US: u64 = 320;
/// A buffer of a few pages is looked at so often.
const NAP_MIN: Duration = Duration::from_millis(1);

/// The clocks that records can have, best first, by their names in `trace_clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// CLOCK_BOOTTIME (4.10 and later).
    Boot,
    /// CLOCK_MONOTONIC (4.1 and later).
    Mono,
}

impl Clock {
    const ALL: [Clock; 2] = [Clock::Boot, Clock::Mono];

    fn name(self) -> &'static str {
        match self {
            Clock::Boot => "boot",
            Clock::Mono => "mono",
        }
    }
}

/// Whether this machine lets a trace instance be read, and what it takes.
#[derive(Debug)]
pub struct Possible {
    tracefs: Tracefs,
    cpus: Vec<u32>,
}

/// Tracepoints that are recorded into a trace instance.
#[derive(Debug)]
pub struct Ftrace {
    tracefs: Tracefs,
    /// Its path within tracefs.
    at: String,
    kinds: Vec<Kind>,
    layout: PageLayout,
    clock: Clock,
    /// Where a record has its thread.
    tid: Field,
    ring_bytes: u64,
    own_tids: Vec<u32>,
    state: State,
    buffers: Vec<Buffer>,
    /// The kernel stops recording and frees the buffer when this is closed, whatever ends the process.
    _free: Option<OwnedFd>,
}

impl Possible {
    /// Looks without changing anything.
    pub fn look(reader: &Reader<'_>) -> Reading<Possible> {
        let tracefs = Tracefs::find(reader)?;
        let shown = format!("{}/{}", tracefs.place(), Tracefs::INSTANCES);
        if !knows_itself(reader) {
            let detail = "its records have the numbers of threads outside this PID namespace";
            return Err(Absence::new(shown, AbsentWhy::NotPermitted, detail).or("run pagelab on the host"));
        }
        tracefs.open(Tracefs::INSTANCES, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let event = "events/header_event";
        ring_page::check_header_event(&tracefs.read(event)?).map_err(|error| malformed(event, &error))?;
        let clocks = tracefs.read("trace_clock")?;
        if clock_of(&clocks).is_none() {
            let detail = "it has neither `boot` nor `mono`, so that its times cannot be compared with others";
            return Err(Absence::new("trace_clock", AbsentWhy::NotThere, detail));
        }
        let cpus = reader.parse(paths::CPU_ONLINE, cpu_list::parse)?;
        Ok(Possible { tracefs, cpus })
    }

    /// Sets an instance up that is new and nobody else's. What this kernel does not have is told beside the
    /// rest. Nothing is recorded yet.
    pub fn open(
        self,
        instance: &TraceInstance,
        wanted: &[Wanted<'_>],
        ring_bytes: Bytes,
    ) -> Reading<(Ftrace, Vec<Absence>)> {
        let Possible { tracefs, cpus } = self;
        let at = format!("{}/{}", Tracefs::INSTANCES, instance.name);
        let path = |file: &str| format!("{at}/{file}");
        tracefs.write(&path("tracing_on"), "0")?;
        let clock = clock_of(&tracefs.read(&path("trace_clock"))?);
        let clock =
            clock.ok_or_else(|| Absence::new(path("trace_clock"), AbsentWhy::NotThere, "no clock"))?;
        tracefs.write(&path("trace_clock"), clock.name())?;
        tracefs.write(&path("options/overwrite"), "1")?;
        // Both are of 2.6.39 and 3.10; without them a killed recorder leaves more behind, and that is all.
        let _ = tracefs.write(&path("options/disable_on_free"), "1");
        let free = tracefs.open(&path("free_buffer"), OFlags::WRONLY).ok();
        tracefs.write(&path("buffer_size_kb"), &ring_bytes.0.div_ceil(1 << 10).max(1).to_string())?;
        let (mut kinds, mut absent) = (Vec::new(), Vec::new());
        for Wanted { system, name, .. } in wanted {
            match tracefs.format(system, name) {
                Ok(format) => {
                    tracefs.write(&path(&format!("events/{system}/{name}/enable")), "1")?;
                    kinds.push(Kind { system: (*system).to_owned(), format });
                }
                Err(absence) => absent.push(absence),
            }
        }
        let tid = kinds.first().and_then(|kind| kind.format.field("common_pid")).ok_or_else(|| {
            let none = || Absence::new(&at, AbsentWhy::NotAsked, "no tracepoint that tells its thread");
            absent.first().cloned().unwrap_or_else(none)
        })?;
        let layout = layout(&tracefs, &at)?;
        let open = |cpu: u32| {
            let pipe = tracefs.open(&path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw")), OFlags::RDONLY)?;
            Ok(Buffer::new(cpu, pipe, &layout))
        };
        let buffers = cpus.iter().map(|&cpu| open(cpu)).collect::<Reading<Vec<Buffer>>>()?;
        let mut state = State::new(kinds.iter().map(|kind| kind.format.id), None);
        if clock == Clock::Boot {
            state.asleep_ns = 0;
        }
        let (ring_bytes, own_tids, _free) = (ring_bytes.0, Vec::new(), free);
        let ftrace =
            Ftrace { tracefs, at, kinds, layout, clock, tid, ring_bytes, own_tids, state, buffers, _free };
        Ok((ftrace, absent))
    }
}

fn malformed(path: &str, error: &pagelab_formats::ParseError) -> Absence {
    Absence::new(path, AbsentWhy::Malformed, error.in_file(path))
}

/// The best clock of a text such as `[local] global mono boot`.
fn clock_of(text: &[u8]) -> Option<Clock> {
    let has = |clock: &Clock| {
        let mut words = text.split(|byte| byte.is_ascii_whitespace() || matches!(byte, b'[' | b']'));
        words.any(|word| word == clock.name().as_bytes())
    };
    Clock::ALL.into_iter().find(has)
}

/// How the pages of an instance are laid out.
fn layout(tracefs: &Tracefs, at: &str) -> Reading<PageLayout> {
    let own = format!("{at}/events/header_page");
    let text = tracefs.read(&own).or_else(|_| tracefs.read("events/header_page"))?;
    let layout = ring_page::parse_header_page(&text).map_err(|error| malformed(&own, &error))?;
    // 6.8 and later; before, a buffer's pages are the machine's.
    let size = tracefs.read(&format!("{at}/buffer_subbuf_size_kb")).ok();
    let size = size.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse::<u32>().ok());
    let own = size.and_then(|kib| layout.with_page_bytes(kib.checked_mul(1 << 10)?));
    Ok(own.unwrap_or(layout))
}

impl Ftrace {
    /// What is recorded, in the order in which it was wanted.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Room for records on each CPU.
    pub fn ring_bytes(&self) -> Bytes {
        Bytes(self.ring_bytes)
    }

    /// Has all threads that this process has now left out, when their events are read.
    pub fn leave_out_threads(&mut self, reader: &Reader<'_>) -> Reading<()> {
        self.own_tids = own_threads(reader)?;
        Ok(())
    }

    fn switch(&self, to: &str) -> io::Result<()> {
        let written = self.tracefs.write(&format!("{}/tracing_on", self.at), to);
        written.map_err(|absence| io::Error::other(format!("{}: {}", absence.source, absence.reason())))
    }

    /// Begins to record.
    pub fn enable(&self) -> io::Result<()> {
        self.switch("1")
    }

    /// Ends to record. What is in the buffers can still be read.
    pub fn disable(&self) -> io::Result<()> {
        self.switch("0")
    }

    /// Waits until it is time to look, at most for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let nap = Duration::from_micros(self.ring_bytes / FILLED_BYTES_PER_US).max(NAP_MIN);
        if !timeout.is_zero() {
            std::thread::sleep(timeout.min(nap));
        }
    }

    /// What was lost so far, as pages told it.
    pub fn losses(&self) -> Losses {
        self.state.losses
    }

    /// The losses that pages told since the last call, in the order of reading.
    pub fn take_losses(&mut self) -> Vec<ToldLoss> {
        std::mem::take(&mut self.state.told)
    }

    /// What was read of each kind. The kernel counts by buffer: [`Ftrace::buffers`].
    pub fn counts(&self) -> Vec<KindCount> {
        self.state.counts()
    }

    /// What the kernel counted for each buffer.
    pub fn buffers(&self) -> Vec<TraceBuffer> {
        let counted = |buffer: &Buffer| {
            let stats = buffer.stats(&self.tracefs, &self.at)?;
            let (written, read, lost) = (stats.written(), stats.read, stats.lost());
            Some(TraceBuffer { cpu: u16::try_from(buffer.cpu).unwrap_or(u16::MAX), written, read, lost })
        };
        self.buffers.iter().filter_map(counted).collect()
    }

    /// Whether all that is in the buffers was read.
    pub fn is_all_read(&self) -> bool {
        let is_empty = |buffer: &Buffer| {
            let stats = buffer.stats(&self.tracefs, &self.at);
            buffer.is_read() && stats.is_none_or(|stats| stats.entries == 0)
        };
        self.buffers.iter().all(is_empty)
    }

    /// Events that the kernel lost and no page told, by processor: what was lost behind the last page, and
    /// what is still in the buffer when nobody reads it any more.
    pub fn untold(&self) -> Vec<(u16, u64)> {
        let lost = |buffer: &Buffer| {
            let stats = buffer.stats(&self.tracefs, &self.at)?;
            let lost = stats.lost().saturating_add(stats.entries);
            let cpu = u16::try_from(buffer.cpu).unwrap_or(u16::MAX);
            lost.checked_sub(buffer.told).filter(|&more| more > 0).map(|more| (cpu, more))
        };
        self.buffers.iter().filter_map(lost).collect()
    }

    /// Delivers what has happened up to now, in the order of time over all processors, as
    /// [`Tracepoints::drain`](super::Tracepoints::drain) does.
    pub fn drain(&mut self, mut each: impl FnMut(&Event<'_>)) -> Drained {
        let began_ns = thread_cpu_ns();
        let until = match self.clock {
            Clock::Boot => boottime_ns(),
            Clock::Mono => {
                self.state.follow_sleep();
                monotonic_ns()
            }
        };
        let mut drained = Drained { until_ns: until + self.state.asleep_ns, ..Drained::default() };
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(self.buffers.len());
        for place in 0..self.buffers.len() {
            let due = self.peek(place).filter(|&time| time <= until);
            next.extend(due.map(|time| Reverse((time, place))));
        }
        // The buffer with the earliest record is read until another one's is earlier.
        while let Some(Reverse((_, place))) = next.pop() {
            let limit = next.peek().map_or(until, |Reverse((time, _))| *time);
            let after = self.run(place, limit, &mut drained, &mut each).filter(|&time| time <= until);
            next.extend(after.map(|time| Reverse((time, place))));
        }
        drained.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        self.state.cpu_ns += drained.cpu_ns;
        drained
    }

    fn peek(&mut self, place: usize) -> Option<u64> {
        let Ftrace { buffers, state, layout, tracefs, at, .. } = self;
        let buffer = buffers.get_mut(place)?;
        buffer.peek(layout, state, (tracefs, at)).map(|record| record.time_ns)
    }

    /// Reads one buffer as long as its records are not after `limit`; the time of its next one.
    fn run(
        &mut self,
        place: usize,
        limit: u64,
        drained: &mut Drained,
        each: &mut impl FnMut(&Event<'_>),
    ) -> Option<u64> {
        let Ftrace { buffers, state, layout, tracefs, at, tid, own_tids, .. } = self;
        let buffer = buffers.get_mut(place)?;
        let cpu = buffer.cpu;
        loop {
            let found = buffer.peek(layout, state, (tracefs, at))?;
            if found.time_ns > limit {
                return Some(found.time_ns);
            }
            let record = buffer.take(found);
            drained.bytes += record.len() as u64;
            let (Some(kind), Some(tid)) = (state.kind(record), tid.u64(record)) else {
                state.losses.malformed += 1;
                continue;
            };
            let tid = tid as u32;
            if own_tids.contains(&tid) {
                state.leave_out(kind);
                continue;
            }
            let at_ns = state.deliver(kind, found.time_ns);
            drained.events += 1;
            each(&Event { kind, at_ns, cpu, pid: 0, tid, callchain: Callchain::default(), record });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_clock_is_taken() {
        for (text, clock) in [
            ("[local] global counter uptime perf mono mono_raw boot tai x86-tsc\n", Some(Clock::Boot)),
            ("local global [boot]\n", Some(Clock::Boot)),
            ("[local] global mono mono_raw\n", Some(Clock::Mono)),
            ("[local] global uptime mono_raw\n", None),
        ] {
            assert_eq!(clock_of(text.as_bytes()), clock, "{text}");
        }
    }
}
