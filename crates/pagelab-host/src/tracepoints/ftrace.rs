//! Tracepoints through a private ftrace instance.
//!
//! It costs the traced program less: a record is only written into its processor's buffer, while perf also
//! looks up the event's context and filter, and wakes its reader.
//!
//! The kernel leaves out no threads here. A filter would write each record to a temporary buffer first, and a
//! list of threads would add work at each task switch, for a few records.
//!
//! The buffer is overwritten: a late reader loses the oldest events, and the kernel writes their number into
//! the next page. A buffer that is not overwritten counts its losses only as a total, so their position would
//! be unknown.
//!
//! The reader polls. To be woken, each record would have to check for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pagelab_formats::cpu_list;
use pagelab_formats::perf_record::Callchain;
use pagelab_formats::ring_page::{self, BufferStats, Cursor, MissedEvents, RingPageLayout, RingPageRecord};
use pagelab_formats::trace_format::NumberField;
use pagelab_model::alloc_trace::BufferCounts;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};
use pagelab_sys::clock::{boottime_ns, monotonic_ns};
use rustix::fs::OFlags;

use super::drain::DrainState;
use super::{Event, TraceInstance, Tracefs, TracepointKind, TracepointRequest};
use super::{is_init_pid_namespace, own_threads};
use crate::paths;
use crate::reader::Reader;

/// Fill rate that determines the polling interval. On 2 processors 1.3 million events a second of about 34
/// bytes were measured: a tenth of this.
const FILL_BYTES_PER_US: u64 = 320;
/// Interval at which a buffer of a few pages is read.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Clocks of records, best first, by their names in `trace_clock`.
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

/// Support of trace instances on this machine, and the permission that is needed.
#[derive(Debug)]
pub struct FtraceSupport {
    tracefs: Tracefs,
    cpus: Vec<u32>,
}

/// Tracepoints recorded into a trace instance.
#[derive(Debug)]
pub struct FtraceSession {
    tracefs: Tracefs,
    /// Its path within tracefs.
    instance_path: String,
    pub(super) kinds: Vec<TracepointKind>,
    layout: RingPageLayout,
    clock: Clock,
    /// Field of a record's thread.
    tid: NumberField,
    pub(super) ring_bytes: Bytes,
    own_tids: Vec<u32>,
    pub(super) state: DrainState,
    buffers: Vec<CpuBuffer>,
    /// The kernel stops recording and frees the buffer when this is closed, even if the process is killed.
    _free_buffer: Option<OwnedFd>,
}

impl FtraceSupport {
    /// Checks without changing anything.
    pub fn probe(reader: &Reader<'_>) -> Reading<FtraceSupport> {
        let tracefs = Tracefs::find(reader)?;
        let shown = format!("{}/{}", tracefs.mount_path(), Tracefs::INSTANCES);
        if !is_init_pid_namespace(reader) {
            let detail = "its records contain thread IDs of another PID namespace";
            return Err(
                Absence::new(shown, AbsenceReason::NotPermitted, detail).with_hint("run pagelab on the host")
            );
        }
        tracefs.open(Tracefs::INSTANCES, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let event = "events/header_event";
        ring_page::check_header_event(&tracefs.read(event)?)
            .map_err(|error| malformed_absence(event, &error))?;
        let clocks = tracefs.read("trace_clock")?;
        if best_clock(&clocks).is_none() {
            let detail =
                "it has neither the `boot` nor the `mono` clock, so its timestamps cannot be compared";
            return Err(Absence::new("trace_clock", AbsenceReason::NotThere, detail));
        }
        let cpus = reader.parse(paths::CPU_ONLINE, cpu_list::parse)?;
        Ok(FtraceSupport { tracefs, cpus })
    }

    /// Sets up a new instance of this process. Events that this kernel does not have are returned as
    /// absences. Nothing is recorded yet.
    pub fn open(
        self,
        instance: &TraceInstance,
        requests: &[TracepointRequest<'_>],
        ring_bytes: Bytes,
    ) -> Reading<(FtraceSession, Vec<Absence>)> {
        let FtraceSupport { tracefs, cpus } = self;
        let instance_path = format!("{}/{}", Tracefs::INSTANCES, instance.name);
        let path = |file: &str| format!("{instance_path}/{file}");
        tracefs.write(&path("tracing_on"), "0")?;
        let clock = best_clock(&tracefs.read(&path("trace_clock"))?);
        let clock = clock
            .ok_or_else(|| Absence::new(path("trace_clock"), AbsenceReason::NotThere, "no usable clock"))?;
        tracefs.write(&path("trace_clock"), clock.name())?;
        tracefs.write(&path("options/overwrite"), "1")?;
        // They exist since 2.6.39 and 3.10; without them a killed recorder only leaves more behind.
        let _ = tracefs.write(&path("options/disable_on_free"), "1");
        let free = tracefs.open(&path("free_buffer"), OFlags::WRONLY).ok();
        tracefs.write(&path("buffer_size_kb"), &ring_bytes.0.div_ceil(1 << 10).max(1).to_string())?;
        let (mut kinds, mut absent) = (Vec::new(), Vec::new());
        for TracepointRequest { system, name, .. } in requests {
            match tracefs.read_format(system, name) {
                Ok(format) => {
                    tracefs.write(&path(&format!("events/{system}/{name}/enable")), "1")?;
                    kinds.push(TracepointKind { system: (*system).to_owned(), format });
                }
                Err(absence) => absent.push(absence),
            }
        }
        let tid = kinds.first().and_then(|kind| kind.format.field("common_pid")).ok_or_else(|| {
            let detail = "no requested tracepoint reports its thread";
            let none = || Absence::new(&instance_path, AbsenceReason::NotRequested, detail);
            absent.first().cloned().unwrap_or_else(none)
        })?;
        let layout = read_layout(&tracefs, &instance_path)?;
        let open = |cpu: u32| {
            let pipe = tracefs.open(&path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw")), OFlags::RDONLY)?;
            Ok(CpuBuffer::new(cpu, pipe, &layout))
        };
        let buffers = cpus.iter().map(|&cpu| open(cpu)).collect::<Reading<Vec<CpuBuffer>>>()?;
        let mut state = DrainState::new(kinds.iter().map(|kind| kind.format.id), None);
        if clock == Clock::Boot {
            state.sleep_offset_ns = 0;
        }
        let ftrace = FtraceSession {
            tracefs,
            instance_path,
            kinds,
            layout,
            clock,
            tid,
            ring_bytes,
            own_tids: Vec::new(),
            state,
            buffers,
            _free_buffer: free,
        };
        Ok((ftrace, absent))
    }
}

fn malformed_absence(path: &str, error: &pagelab_formats::ParseError) -> Absence {
    Absence::new(path, AbsenceReason::Malformed, error.message_in_file(path))
}

/// The best clock of a text such as `[local] global mono boot`.
fn best_clock(text: &[u8]) -> Option<Clock> {
    let has = |clock: &Clock| {
        let mut words = text.split(|byte| byte.is_ascii_whitespace() || matches!(byte, b'[' | b']'));
        words.any(|word| word == clock.name().as_bytes())
    };
    Clock::ALL.into_iter().find(has)
}

/// Layout of the pages of an instance.
fn read_layout(tracefs: &Tracefs, instance_path: &str) -> Reading<RingPageLayout> {
    let own = format!("{instance_path}/events/header_page");
    let text = tracefs.read(&own).or_else(|_| tracefs.read("events/header_page"))?;
    let layout = ring_page::parse_header_page(&text).map_err(|error| malformed_absence(&own, &error))?;
    // 6.8 and later; before, a buffer's pages have the machine's page size.
    let size = tracefs.read(&format!("{instance_path}/buffer_subbuf_size_kb")).ok();
    let size = size.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse::<u32>().ok());
    let own = size.and_then(|kib| layout.with_page_bytes(kib.checked_mul(1 << 10)?));
    Ok(own.unwrap_or(layout))
}

impl FtraceSession {
    /// Leaves out the events of all present threads of this process when they are read.
    pub fn leave_out_threads(&mut self, reader: &Reader<'_>) -> Reading<()> {
        self.own_tids = own_threads(reader)?;
        Ok(())
    }

    /// Starts (`1`) or stops (`0`) recording. The buffers can still be read.
    pub(super) fn set_tracing(&self, value: &str) -> io::Result<()> {
        let written = self.tracefs.write(&format!("{}/tracing_on", self.instance_path), value);
        written.map_err(|absence| io::Error::other(format!("{}: {}", absence.source, absence.reason())))
    }

    /// Waits for the next poll, at most for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let nap = Duration::from_micros(self.ring_bytes.0 / FILL_BYTES_PER_US).max(POLL_INTERVAL_MIN);
        if !timeout.is_zero() {
            std::thread::sleep(timeout.min(nap));
        }
    }

    /// The kernel's counts for each buffer; it has none for each kind.
    pub fn buffers(&self) -> Vec<BufferCounts> {
        let counted = |buffer: &CpuBuffer| {
            let stats = buffer.stats(&self.tracefs, &self.instance_path)?;
            let (written, read, lost) = (stats.total_events(), stats.read, stats.lost_records());
            Some(BufferCounts { cpu: u16::try_from(buffer.cpu).unwrap_or(u16::MAX), written, read, lost })
        };
        self.buffers.iter().filter_map(counted).collect()
    }

    /// Whether the buffers were read completely.
    pub fn is_all_read(&self) -> bool {
        let is_empty = |buffer: &CpuBuffer| {
            let stats = buffer.stats(&self.tracefs, &self.instance_path);
            buffer.peeked_record.is_none() && stats.is_none_or(|stats| stats.entries == 0)
        };
        self.buffers.iter().all(is_empty)
    }

    /// Lost events that no page reported, by processor: those lost after the last page, and those still in
    /// the buffer after the last read.
    pub fn unreported_losses(&self) -> Vec<(u16, u64)> {
        let lost = |buffer: &CpuBuffer| {
            let stats = buffer.stats(&self.tracefs, &self.instance_path)?;
            let lost = stats.lost_records().saturating_add(stats.entries);
            let cpu = u16::try_from(buffer.cpu).unwrap_or(u16::MAX);
            lost.checked_sub(buffer.reported_lost).filter(|&more| more > 0).map(|more| (cpu, more))
        };
        self.buffers.iter().filter_map(lost).collect()
    }

    /// Delivers the events up to now, in time order over all processors, as
    /// [`Tracepoints::drain`](super::Tracepoints::drain) does.
    pub fn drain(&mut self, mut visit: impl FnMut(&Event<'_>)) {
        let until_ns = match self.clock {
            Clock::Boot => boottime_ns(),
            Clock::Mono => {
                self.state.update_sleep_offset();
                monotonic_ns()
            }
        };
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(self.buffers.len());
        for place in 0..self.buffers.len() {
            let due = self.peek_time(place).filter(|&time| time <= until_ns);
            next.extend(due.map(|time| Reverse((time, place))));
        }
        // The buffer with the earliest record is read until another buffer has an earlier one.
        while let Some(Reverse((_, place))) = next.pop() {
            let limit = next.peek().map_or(until_ns, |Reverse((time, _))| *time);
            let after = self.drain_buffer(place, limit, &mut visit).filter(|&time| time <= until_ns);
            next.extend(after.map(|time| Reverse((time, place))));
        }
    }

    fn peek_time(&mut self, index: usize) -> Option<u64> {
        let FtraceSession { buffers, state, layout, tracefs, instance_path: at, .. } = self;
        let buffer = buffers.get_mut(index)?;
        buffer.peek_record(layout, state, (tracefs, at)).map(|record| record.time_ns)
    }

    /// Reads one buffer up to `limit`, and returns the time of its next record.
    fn drain_buffer(&mut self, index: usize, limit: u64, visit: &mut impl FnMut(&Event<'_>)) -> Option<u64> {
        let FtraceSession { buffers, state, layout, tracefs, instance_path: at, tid, own_tids, .. } = self;
        let buffer = buffers.get_mut(index)?;
        let cpu = buffer.cpu;
        loop {
            let peeked = buffer.peek_record(layout, state, (tracefs, at))?;
            if peeked.time_ns > limit {
                return Some(peeked.time_ns);
            }
            let record = buffer.take_record(peeked);
            let (Some(kind), Some(tid)) = (state.kind(record), tid.u64(record)) else {
                state.losses.malformed += 1;
                continue;
            };
            let tid = tid as u32;
            if own_tids.contains(&tid) {
                state.count_own(kind);
                continue;
            }
            let at_ns = state.deliver(kind, peeked.time_ns);
            visit(&Event { kind, time_ns: at_ns, cpu, pid: 0, tid, callchain: Callchain::default(), record });
        }
    }
}

/// A processor's buffer, while it is read.
#[derive(Debug)]
struct CpuBuffer {
    cpu: u32,
    pipe: OwnedFd,
    page: Vec<u8>,
    cursor: Cursor,
    peeked_record: Option<RingPageRecord>,
    /// Events lost before the page's first record.
    page_missed: Option<MissedEvents>,
    /// Lost records reported so far.
    reported_lost: u64,
    /// Whether a page did not state the number of events lost before it: from then on the kernel's count is
    /// used, which may be ahead of the pages.
    uses_kernel_counts: bool,
}

impl CpuBuffer {
    fn new(cpu: u32, pipe: OwnedFd, layout: &RingPageLayout) -> CpuBuffer {
        CpuBuffer {
            cpu,
            pipe,
            page: vec![0; layout.page_bytes()],
            cursor: Cursor::default(),
            peeked_record: None,
            page_missed: None,
            reported_lost: 0,
            uses_kernel_counts: false,
        }
    }

    /// Count of the kernel for it.
    fn stats(&self, tracefs: &Tracefs, instance_path: &str) -> Option<BufferStats> {
        let text = tracefs.read(&format!("{instance_path}/per_cpu/cpu{}/stats", self.cpu)).ok()?;
        ring_page::parse_stats(&text).ok()
    }

    /// The next record, without consuming it.
    #[inline]
    fn peek_record(
        &mut self,
        layout: &RingPageLayout,
        state: &mut DrainState,
        counter_source: (&Tracefs, &str),
    ) -> Option<RingPageRecord> {
        loop {
            if self.peeked_record.is_some() {
                return self.peeked_record;
            }
            match self.cursor.next(&self.page) {
                Ok(Some(record)) => {
                    if let Some(missed) = self.page_missed.take() {
                        self.report_loss(missed, record.time_ns, state, counter_source);
                    }
                    self.peeked_record = Some(record);
                }
                Ok(None) if !self.read_page(layout, state) => return None,
                Ok(None) => {}
                Err(_) => {
                    // The rest of the page is unknown.
                    state.losses.malformed += 1;
                    self.cursor = Cursor::default();
                }
            }
        }
    }

    #[inline]
    fn take_record(&mut self, record: RingPageRecord) -> &[u8] {
        self.peeked_record = None;
        record.data_in(&self.page)
    }

    /// Reads the next page; `false` if there is none yet.
    fn read_page(&mut self, layout: &RingPageLayout, state: &mut DrainState) -> bool {
        let Ok(bytes @ 1..) = rustix::io::read(&self.pipe, &mut self.page) else { return false };
        match layout.read_header(&self.page[..bytes]) {
            Ok((head, cursor)) => {
                self.cursor = cursor;
                self.page_missed = head.missed_events.or(self.page_missed);
            }
            Err(_) => {
                state.losses.malformed += 1;
                self.cursor = Cursor::default();
            }
        }
        true
    }

    #[cold]
    fn report_loss(
        &mut self,
        missed: MissedEvents,
        time_ns: u64,
        state: &mut DrainState,
        (tracefs, at): (&Tracefs, &str),
    ) {
        let by_page = match missed {
            MissedEvents::Events(events) if !self.uses_kernel_counts => Some(events),
            _ => None,
        };
        let events = by_page.unwrap_or_else(|| {
            self.uses_kernel_counts = true;
            self.stats(tracefs, at).map_or(0, |stats| stats.lost_records().saturating_sub(self.reported_lost))
        });
        if events > 0 {
            self.reported_lost += events;
            state.losses.records = state.losses.records.saturating_add(events);
            state.report_loss(time_ns, self.cpu, events);
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
            assert_eq!(best_clock(text.as_bytes()), clock, "{text}");
        }
    }
}
