//! Session of a recording: drains rings, writes blocks, scans memory in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pagelab_formats::alloc_trace::BLOCK_EVENTS_MAX;
use pagelab_formats::{buddyinfo, vmstat};
use pagelab_host::census::run_scan::RunScan;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::{AllocatorEventFields, TraceSource};
use pagelab_model::alloc_trace::{
    FrameRun, FreeAreasSample, FreeListCheck, LostEvents, TraceEvent, TraceEventKind, TraceSummary,
    TraceThread,
};
use pagelab_model::{BuddyInfo, Reading};
use pagelab_runfile::{Error, RunWriter, TraceEncoder};
use pagelab_sys::clock;

/// Longest time that an event waits for its block: the part that a killed recording loses.
const BLOCK_LATENCY_MAX_NS: u64 = 1_000_000_000;

/// Runs of a snapshot per write.
const RUNS_PER_WRITE: usize = 1 << 16;

/// Shortest time of the scan between two drains of the rings: about eight chunks. If a drain takes longer,
/// the scan does too, so that it completes under any load; but not longer than a ring of the default size
/// lasts.
const SCAN_SLICE_NS: u64 = 4_000_000;
const SCAN_SLICE_NS_MAX: u64 = 200_000_000;

/// Number and interval of the final polls of the rings. A record that was being written when its tracepoint
/// was disabled reaches the ring a little later, as do the records of everything that interrupted its writer;
/// the host may delay a virtual CPU.
const FINAL_POLLS: u32 = 160;
const FINAL_POLL_PAUSE: Duration = Duration::from_millis(3);

pub const KIND_COUNT: usize = 9;

/// Their names in JSON and for display.
pub const KIND_NAMES: [(&str, &str); KIND_COUNT] = [
    ("alloc", "allocations"),
    ("free", "frees"),
    ("fallback", "fallbacks"),
    ("compaction_begin", "compactions started"),
    ("compaction_end", "compactions ended"),
    ("migrated", "migrations"),
    ("reclaim_begin", "direct reclaims started"),
    ("reclaim_end", "direct reclaims ended"),
    ("kswapd_wake", "kswapd wake-ups"),
];

/// Index of an event's kind.
#[inline]
pub fn kind_of(event: &TraceEventKind) -> usize {
    match event {
        TraceEventKind::Alloc { .. } => 0,
        TraceEventKind::Free { .. } => 1,
        TraceEventKind::Fallback { .. } => 2,
        TraceEventKind::CompactionBegin => 3,
        TraceEventKind::CompactionEnd => 4,
        TraceEventKind::Migrated { .. } => 5,
        TraceEventKind::ReclaimBegin { .. } => 6,
        TraceEventKind::ReclaimEnd { .. } => 7,
        TraceEventKind::KswapdWake { .. } => 8,
    }
}

#[derive(Clone, Debug, Default)]
pub struct TraceTotals {
    pub kinds: [u64; KIND_COUNT],
    pub compressed_bytes: u64,
    /// Events in written blocks.
    pub written_events: u64,
    /// Lost events, as reported by the rings.
    pub lost_events: u64,
    /// Events that a trace cannot represent.
    pub unreadable_events: u64,
    pub scan_cpu_ns: u64,
    /// Times of the first and the last event.
    pub span_ns: Option<(u64, u64)>,
}

impl TraceTotals {
    pub fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Bytes per event in the file.
    pub fn bytes_per_event(&self) -> f64 {
        self.compressed_bytes as f64 / self.written_events.max(1) as f64
    }
}

/// Events waiting to be written as blocks.
struct BlockWriter {
    start_ns: u64,
    pending: Vec<TraceEvent>,
    encoder: TraceEncoder,
    /// Time of the last event of the previous block.
    last_ns: u64,
    /// Time at which the first pending event was read.
    pending_since_ns: u64,
    failed: Option<Error>,
}

pub struct TraceSession<'r> {
    writer: RunWriter,
    pub totals: TraceTotals,
    reader: &'r Reader<'r>,
    tracepoints: TraceSource,
    fields: AllocatorEventFields,
    is_filtered: bool,
    blocks: BlockWriter,
    samples: Vec<FreeAreasSample>,
    losses: Vec<LostEvents>,
    /// Interval and next time of buddyinfo readings.
    every_ns: u64,
    next_sample_ns: u64,
    vmstat: Option<[u64; 2]>,
    check: Option<FreeListCheck>,
    names: ThreadNames,
}

impl<'r> TraceSession<'r> {
    /// Starts a recording whose times count from `start_ns` of CLOCK_BOOTTIME.
    pub fn begin(
        reader: &'r Reader<'r>,
        tracepoints: TraceSource,
        fields: AllocatorEventFields,
        is_filtered: bool,
        writer: RunWriter,
        start_ns: u64,
    ) -> Result<TraceSession<'r>, Error> {
        let blocks = BlockWriter {
            start_ns,
            pending: Vec::with_capacity(BLOCK_EVENTS_MAX),
            encoder: TraceEncoder::new()?,
            last_ns: 0,
            pending_since_ns: 0,
            failed: None,
        };
        Ok(TraceSession {
            writer,
            totals: TraceTotals::default(),
            tracepoints,
            fields,
            is_filtered,
            blocks,
            samples: Vec::new(),
            losses: Vec::new(),
            every_ns: u64::MAX,
            next_sample_ns: u64::MAX,
            vmstat: vmstat_pages(reader),
            check: None,
            names: ThreadNames::default(),
            reader,
        })
    }

    /// Enables the tracepoints, and the sampling of free memory every `every_ns`.
    pub fn enable_tracepoints(&mut self, every_ns: u64) -> std::io::Result<()> {
        self.every_ns = every_ns;
        self.next_sample_ns = 0;
        self.tracepoints.enable()
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        clock::boottime_ns().saturating_sub(self.blocks.start_ns)
    }

    /// Waits for events, at most for `patience` and until the next sample is due, and stores them.
    pub fn drain_or_wait(&mut self, patience: Duration) -> Result<(), Error> {
        let due = Duration::from_nanos(self.next_sample_ns.saturating_sub(self.now_ns()));
        self.tracepoints.wait(patience.min(due));
        self.drain_rings()?;
        let now_ns = self.now_ns();
        if now_ns >= self.next_sample_ns {
            self.sample_free_memory(now_ns);
            self.next_sample_ns = now_ns.saturating_add(self.every_ns);
        }
        if now_ns.saturating_sub(self.blocks.pending_since_ns) >= BLOCK_LATENCY_MAX_NS {
            self.write_collected()?;
            self.names.reread_recent(self.reader.root());
            self.blocks.pending_since_ns = now_ns;
            self.writer.request_commit();
        }
        Ok(())
    }

    fn drain_rings(&mut self) -> Result<(), Error> {
        let TraceSession { tracepoints, fields, blocks, writer, totals, losses, names, .. } = self;
        let start_ns = blocks.start_ns;
        tracepoints.drain(|event| {
            let Some(what) = fields.read(event) else {
                totals.unreadable_events += 1;
                return;
            };
            totals.kinds[kind_of(&what)] += 1;
            let at_ns = event.time_ns.saturating_sub(start_ns);
            let (tid, cpu) = (event.tid, event.cpu as u16);
            names.note_event(cpu, tid);
            blocks.pending.push(TraceEvent { time_ns: at_ns, tid, cpu, kind: what });
            if blocks.pending.len() == BLOCK_EVENTS_MAX {
                blocks.write_block(writer, totals);
            }
        });
        names.read_unread(self.reader.root());
        for loss in tracepoints.take_loss_reports() {
            totals.lost_events += loss.events;
            let at_ns = loss.time_ns.saturating_sub(start_ns);
            losses.push(LostEvents { at_ns, cpu: loss.cpu as u16, events: loss.events });
        }
        blocks.failed.clone().map_or(Ok(()), Err)
    }

    fn write_collected(&mut self) -> Result<(), Error> {
        let TraceSession { blocks, writer, totals, .. } = self;
        blocks.write_block(writer, totals);
        if let Some(error) = &self.blocks.failed {
            return Err(error.clone());
        }
        self.writer.add_trace_samples(&self.samples)?;
        self.writer.add_trace_losses(&self.losses)?;
        self.samples.clear();
        self.losses.clear();
        self.writer.failure().map_or(Ok(()), Err)
    }

    fn sample_free_memory(&mut self, at_ns: u64) {
        // A machine whose buddyinfo cannot be read was rejected before.
        let Ok(free) = self.reader.parse(paths::BUDDYINFO, buddyinfo::parse) else { return };
        self.samples.push(FreeAreasSample { at_ns, free });
    }

    /// Reads the state of all frames, and drains the rings in between. `between` returns whether to continue.
    pub fn scan_snapshot(
        &mut self,
        mut scan: RunScan,
        mut between: impl FnMut(&TraceSession<'r>, u64) -> bool,
    ) -> Result<Reading<()>, Error> {
        let mut runs: Vec<FrameRun> = Vec::with_capacity(RUNS_PER_WRITE + (1 << 16));
        let free_before = self.free_blocks();
        let (mut goes_on, mut turn_ns) = (true, 0u64);
        while goes_on {
            let (began, began_ns) = (clock::thread_cpu_ns(), self.now_ns());
            let until_ns = began_ns + turn_ns.clamp(SCAN_SLICE_NS, SCAN_SLICE_NS_MAX);
            let mut now_ns = began_ns;
            while goes_on && now_ns < until_ns {
                match scan.scan_chunk(now_ns, &mut runs) {
                    Ok(more) => goes_on = more,
                    Err(absence) => return Ok(Err(absence)),
                }
                now_ns = self.now_ns();
            }
            self.totals.scan_cpu_ns += clock::thread_cpu_ns().saturating_sub(began);
            if runs.len() >= RUNS_PER_WRITE || !goes_on {
                self.writer.add_trace_runs(&runs)?;
                runs.clear();
            }
            self.drain_or_wait(Duration::ZERO)?;
            turn_ns = self.now_ns().saturating_sub(now_ns);
            if !between(self, scan.frames_left()) {
                return Ok(Ok(()));
            }
        }
        let after = self.free_blocks();
        if let (Some(before), Some(after)) = (free_before, after) {
            let rebuilt = scan.free_blocks().iter().fold(Vec::new(), |sum, zone| add_elementwise(sum, zone));
            self.check = Some(FreeListCheck { rebuilt, before, after });
        }
        Ok(Ok(()))
    }

    /// Free blocks by order over all zones.
    fn free_blocks(&self) -> Option<Vec<u64>> {
        let info: BuddyInfo = self.reader.parse(paths::BUDDYINFO, buddyinfo::parse).ok()?;
        Some(info.zones.iter().fold(Vec::new(), |sum, zone| add_elementwise(sum, zone.areas.counts())))
    }

    /// Ends the recording: stores the remaining events, and writes the summary.
    pub fn finish(&mut self) -> Result<TraceSummary, Error> {
        let vmstat = vmstat_pages(self.reader);
        // Later events do not matter; a kernel that keeps counting does no harm.
        let _ = self.tracepoints.disable();
        for _ in 0..FINAL_POLLS {
            self.drain_rings()?;
            if self.tracepoints.is_all_read() {
                break;
            }
            std::thread::sleep(FINAL_POLL_PAUSE);
        }
        let end = self.end_record(vmstat);
        for (cpu, events) in self.tracepoints.unreported_losses(self.totals.lost_events) {
            self.totals.lost_events += events;
            self.losses.push(LostEvents { at_ns: self.now_ns(), cpu, events });
        }
        self.write_collected()?;
        let threads = std::mem::take(&mut self.names).into_threads(self.reader.root());
        self.writer.add_trace_threads(self.now_ns(), &threads)?;
        self.writer.add_trace_summary(self.now_ns(), &end)?;
        Ok(end)
    }

    /// Returns the writer and the totals, and closes everything else.
    pub fn into_parts(self) -> (RunWriter, TraceTotals) {
        (self.writer, self.totals)
    }

    fn end_record(&self, vmstat: Option<[u64; 2]>) -> TraceSummary {
        let counters = self.vmstat.zip(vmstat);
        TraceSummary {
            tracepoints: self.tracepoints.tracepoint_counts(),
            buffers: self.tracepoints.buffers(),
            unreadable: self.totals.unreadable_events + self.tracepoints.unreadable_records(),
            out_of_order: self.tracepoints.losses().out_of_order,
            cpu_ns: clock::process_cpu_ns(std::process::id()).unwrap_or(0),
            scan_cpu_ns: self.totals.scan_cpu_ns,
            ring_bytes: self.tracepoints.ring_bytes().0,
            is_filtered: self.is_filtered,
            vmstat_pages: counters.map(|(from, to)| [0, 1].map(|at| to[at].wrapping_sub(from[at]))),
            free_list_check: self.check.clone(),
        }
    }
}

impl BlockWriter {
    /// Writes the pending events as one block. The first failure is kept.
    fn write_block(&mut self, writer: &mut RunWriter, totals: &mut TraceTotals) {
        if self.pending.is_empty() || self.failed.is_some() {
            self.pending.clear();
            return;
        }
        if !self.pending.is_sorted_by_key(|event| event.time_ns) {
            self.pending.sort_by_key(|event| event.time_ns);
        }
        // An event that arrives after its block was written moves to the end of that block.
        let last_ns = self.last_ns;
        let early = self.pending.iter_mut().take_while(|event| event.time_ns < last_ns);
        early.for_each(|event| event.time_ns = last_ns);
        self.last_ns = self.pending.last().map_or(last_ns, |event| event.time_ns);
        let first_ns = self.pending.first().map_or(last_ns, |event| event.time_ns);
        // With the times that a reader decodes, so that both print the same rate.
        let (first_ns, last_ns) = (self.encoder.stored_ns(first_ns), self.encoder.stored_ns(self.last_ns));
        totals.span_ns = Some((totals.span_ns.map_or(first_ns, |(first, _)| first), last_ns));
        let written = self.encoder.encode_block(&self.pending).and_then(|block| {
            let bytes = block.packed_bytes();
            writer.add_trace_block(block).map(|()| bytes)
        });
        match written {
            Ok(bytes) => {
                totals.compressed_bytes += bytes;
                totals.written_events += self.pending.len() as u64;
            }
            Err(error) => self.failed = Some(error),
        }
        self.pending.clear();
    }
}

fn add_elementwise(mut sum: Vec<u64>, addends: &[u64]) -> Vec<u64> {
    sum.resize(sum.len().max(addends.len()), 0);
    sum.iter_mut().zip(addends).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    sum
}

/// Pages allocated and freed since boot.
fn vmstat_pages(reader: &Reader<'_>) -> Option<[u64; 2]> {
    let counters = reader.parse(paths::VMSTAT, vmstat::parse).ok()?;
    let allocated = counters.iter().filter(|(name, _)| name.starts_with("pgalloc_"));
    Some([allocated.map(|(_, pages)| pages).sum(), counters.get("pgfree")?])
}

// The kernel's list (`saved_cmdlines`) would be filled at each context switch, and holds 128 names.

/// Maximum number of threads with names.
const THREADS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub struct ThreadNames {
    /// Thread of the last event by CPU: most events have the same thread as the previous one.
    last_tids: Vec<u32>,
    names: BTreeMap<u32, Option<String>>,
    /// Seen, but not read yet.
    unread: Vec<u32>,
    /// Read once, perhaps before an exec.
    read_once: BTreeSet<u32>,
}

impl ThreadNames {
    /// Notes an event of this thread. 0 is an idle CPU.
    #[inline]
    pub fn note_event(&mut self, cpu: u16, tid: u32) {
        if self.last_tids.get(usize::from(cpu)) != Some(&tid) {
            self.note_thread(usize::from(cpu), tid);
        }
    }

    fn note_thread(&mut self, cpu: usize, tid: u32) {
        if self.last_tids.len() <= cpu {
            self.last_tids.resize(cpu + 1, 0);
        }
        self.last_tids[cpu] = tid;
        if tid != 0 && self.names.len() < THREADS_MAX && !self.names.contains_key(&tid) {
            self.names.insert(tid, None);
            self.unread.push(tid);
        }
    }

    /// Reads the names of new threads.
    pub fn read_unread(&mut self, root: &Root) {
        for tid in std::mem::take(&mut self.unread) {
            self.read_name(root, tid);
            self.read_once.insert(tid);
        }
    }

    /// Rereads the names of threads that are known for at most a second.
    pub fn reread_recent(&mut self, root: &Root) {
        for tid in std::mem::take(&mut self.read_once) {
            self.read_name(root, tid);
        }
    }

    /// Returns all threads with the last name read, reread if they still run.
    pub fn into_threads(mut self, root: &Root) -> Vec<TraceThread> {
        let tids: Vec<u32> = self.names.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.read_name(root, tid));
        self.names.into_iter().map(|(tid, name)| TraceThread { tid, name }).collect()
    }

    /// A thread that exited keeps its last name.
    fn read_name(&mut self, root: &Root, tid: u32) {
        if let Ok(text) = root.read(&paths::process_file(tid, "comm")) {
            let name = String::from_utf8_lossy(text.trim_ascii()).into_owned();
            self.names.insert(tid, Some(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_when_a_thread_is_new_and_again_and_stay_when_it_ends() {
        let lab = tempfile::tempdir().unwrap();
        let process = |tid: u32| lab.path().join(format!("proc/{tid}"));
        let name = |tid: u32, name: &str| {
            std::fs::create_dir_all(process(tid)).unwrap();
            std::fs::write(process(tid).join("comm"), format!("{name}\n")).unwrap();
        };
        name(7, "sh");
        name(8, "Web Content");
        name(9, "cc1");
        let root = Root::open(lab.path()).unwrap();
        let mut names = ThreadNames::default();
        for (cpu, tid) in [(0, 7), (3, 0), (0, 7), (1, 9), (0, 8), (0, 7), (2, 10)] {
            names.note_event(cpu, tid);
        }
        names.read_unread(&root);
        // One thread execs, one exits, one never existed.
        name(7, "make");
        std::fs::remove_dir_all(process(9)).unwrap();
        names.reread_recent(&root);
        name(8, "renamed");
        let all: Vec<(u32, Option<String>)> =
            names.into_threads(&root).into_iter().map(|thread| (thread.tid, thread.name)).collect();
        let expected = [(7, Some("make")), (8, Some("renamed")), (9, Some("cc1")), (10, None)];
        assert_eq!(all, expected.map(|(tid, name)| (tid, name.map(str::to_owned))));
    }
}
