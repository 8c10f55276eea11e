//! A trace that is being recorded: rings emptied, blocks written, memory scanned in between.

use std::time::Duration;

use pagelab_formats::alloc_trace::BLOCK_EVENTS_MAX;
use pagelab_formats::{buddyinfo, vmstat};
use pagelab_host::census::runs::RunScan;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::tracepoints::{AllocatorFields, Source};
use pagelab_model::alloc_trace::{TraceCheck, TraceEnd, TraceEvent, TraceLoss, TraceRun, TraceSample};
use pagelab_model::{BuddyInfo, Reading};
use pagelab_runfile::{Error, TraceEncoder, Writer};
use pagelab_sys::clock;

use super::names::Names;
use super::words::{KINDS, kind};

/// How long an event waits for its block at most: what a killed recording lacks.
const BLOCK_AFTER_NS: u64 = 1_000_000_000;

/// Runs of a snapshot that are written together.
const RUNS_AT_ONCE: usize = 1 << 16;

/// How long the scan goes on between two looks at the rings, at least: some eight pieces. Where a look takes
/// longer the scan does too, so that it comes to its end whatever happens on the machine; but not longer than
/// a ring of the usual size lasts.
const SCAN_NS: u64 = 4_000_000;
const SCAN_NS_MAX: u64 = 200_000_000;

/// A record that was being written when its tracepoint was switched off gets into the ring a little later,
/// and so does all that interrupted its writer; a virtual processor may be held up by its host meanwhile. How
/// often it is looked for, and how long in between.
const LAST_LOOKS: u32 = 160;
const LAST_PAUSE: Duration = Duration::from_millis(3);

/// What was recorded so far.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Events by kind.
    pub kinds: [u64; KINDS],
    /// Bytes of blocks as they are stored.
    pub packed: u64,
    /// Events in blocks that are written.
    pub written: u64,
    /// Events lost, as far as rings have told it.
    pub lost: u64,
    /// Events that a trace cannot hold.
    pub unreadable: u64,
    /// Runs of the snapshot.
    pub runs: u64,
    /// CPU time of the scan.
    pub scan_cpu_ns: u64,
    /// Samples of free memory.
    pub samples: u64,
    /// When the first and the last event were.
    pub span_ns: Option<(u64, u64)>,
}

impl Totals {
    /// Events of all kinds.
    pub fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Bytes of an event in the file.
    pub fn bytes_per_event(&self) -> f64 {
        self.packed as f64 / self.written.max(1) as f64
    }
}

/// Events on their way into blocks.
struct Blocks {
    start_ns: u64,
    pending: Vec<TraceEvent>,
    encoder: TraceEncoder,
    /// The time of the last event of the block before.
    last_ns: u64,
    /// When the first pending event was read.
    since_ns: u64,
    failed: Option<Error>,
}

/// Everything that a recording needs.
pub struct Session<'r> {
    writer: Writer,
    pub totals: Totals,
    reader: &'r Reader<'r>,
    tracepoints: Source,
    fields: AllocatorFields,
    is_filtered: bool,
    blocks: Blocks,
    samples: Vec<TraceSample>,
    losses: Vec<TraceLoss>,
    /// How often buddyinfo is read, and when next.
    every_ns: u64,
    sample_ns: u64,
    vmstat: Option<[u64; 2]>,
    check: Option<TraceCheck>,
    names: Names,
}

impl<'r> Session<'r> {
    /// A recording whose times count from `start_ns` of CLOCK_BOOTTIME, and which has begun.
    pub fn begin(
        reader: &'r Reader<'r>,
        tracepoints: Source,
        fields: AllocatorFields,
        is_filtered: bool,
        writer: Writer,
        start_ns: u64,
    ) -> Result<Session<'r>, Error> {
        let blocks = Blocks {
            start_ns,
            pending: Vec::with_capacity(BLOCK_EVENTS_MAX),
            encoder: TraceEncoder::new()?,
            last_ns: 0,
            since_ns: 0,
            failed: None,
        };
        Ok(Session {
            writer,
            totals: Totals::default(),
            tracepoints,
            fields,
            is_filtered,
            blocks,
            samples: Vec::new(),
            losses: Vec::new(),
            every_ns: u64::MAX,
            sample_ns: u64::MAX,
            vmstat: vmstat_pages(reader),
            check: None,
            names: Names::default(),
            reader,
        })
    }

    /// Lets the kernel begin, and free memory be sampled every `every_ns`.
    pub fn enable(&mut self, every_ns: u64) -> std::io::Result<()> {
        self.every_ns = every_ns;
        self.sample_ns = 0;
        self.tracepoints.enable()
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        clock::boottime_ns().saturating_sub(self.blocks.start_ns)
    }

    /// Waits for events, at most for `patience` and until the next sample is due, and takes them in.
    pub fn turn(&mut self, patience: Duration) -> Result<(), Error> {
        let due = Duration::from_nanos(self.sample_ns.saturating_sub(self.now_ns()));
        self.tracepoints.wait(patience.min(due));
        self.drain()?;
        let now_ns = self.now_ns();
        if now_ns >= self.sample_ns {
            self.sample(now_ns);
            self.sample_ns = now_ns.saturating_add(self.every_ns);
        }
        if now_ns.saturating_sub(self.blocks.since_ns) >= BLOCK_AFTER_NS {
            self.flush()?;
            self.names.read_young(self.reader.root());
            self.blocks.since_ns = now_ns;
            self.writer.hurry();
        }
        Ok(())
    }

    /// Takes in what the rings hold.
    fn drain(&mut self) -> Result<(), Error> {
        let Session { tracepoints, fields, blocks, writer, totals, losses, names, .. } = self;
        let start_ns = blocks.start_ns;
        tracepoints.drain(|event| {
            let Some(what) = fields.read(event) else {
                totals.unreadable += 1;
                return;
            };
            totals.kinds[kind(&what)] += 1;
            let at_ns = event.at_ns.saturating_sub(start_ns);
            let (tid, cpu) = (event.tid, event.cpu as u16);
            names.see(cpu, tid);
            blocks.pending.push(TraceEvent { at_ns, tid, cpu, what });
            if blocks.pending.len() == BLOCK_EVENTS_MAX {
                blocks.write(writer, totals);
            }
        });
        names.read_fresh(self.reader.root());
        for told in tracepoints.take_losses() {
            totals.lost += told.events;
            let at_ns = told.at_ns.saturating_sub(start_ns);
            losses.push(TraceLoss { at_ns, cpu: told.cpu as u16, events: told.events });
        }
        blocks.failed.clone().map_or(Ok(()), Err)
    }

    /// Writes what has been collected.
    fn flush(&mut self) -> Result<(), Error> {
        let Session { blocks, writer, totals, .. } = self;
        blocks.write(writer, totals);
        if let Some(error) = &self.blocks.failed {
            return Err(error.clone());
        }
        self.writer.trace_samples(&self.samples)?;
        self.writer.trace_losses(&self.losses)?;
        self.samples.clear();
        self.losses.clear();
        self.writer.failure().map_or(Ok(()), Err)
    }

    fn sample(&mut self, at_ns: u64) {
        // A machine whose buddyinfo cannot be read was refused before.
        let Ok(free) = self.reader.parse(paths::BUDDYINFO, buddyinfo::parse) else { return };
        self.totals.samples += 1;
        self.samples.push(TraceSample { at_ns, free });
    }

    /// Reads the state of all frames, and keeps the rings empty meanwhile. `between` is asked for whether to
    /// go on.
    pub fn snapshot(
        &mut self,
        mut scan: RunScan,
        mut between: impl FnMut(&Session<'r>, u64) -> bool,
    ) -> Result<Reading<()>, Error> {
        let mut runs: Vec<TraceRun> = Vec::with_capacity(RUNS_AT_ONCE + (1 << 16));
        let before = self.free();
        let (mut goes_on, mut turn_ns) = (true, 0u64);
        while goes_on {
            let (began, began_ns) = (clock::thread_cpu_ns(), self.now_ns());
            let until_ns = began_ns + turn_ns.clamp(SCAN_NS, SCAN_NS_MAX);
            let mut now_ns = began_ns;
            while goes_on && now_ns < until_ns {
                match scan.step(now_ns, &mut runs) {
                    Ok(more) => goes_on = more,
                    Err(absence) => return Ok(Err(absence)),
                }
                now_ns = self.now_ns();
            }
            self.totals.scan_cpu_ns += clock::thread_cpu_ns().saturating_sub(began);
            if runs.len() >= RUNS_AT_ONCE || !goes_on {
                self.totals.runs += runs.len() as u64;
                self.writer.trace_runs(&runs)?;
                runs.clear();
            }
            self.turn(Duration::ZERO)?;
            turn_ns = self.now_ns().saturating_sub(now_ns);
            if !between(self, scan.frames_left()) {
                return Ok(Ok(()));
            }
        }
        let after = self.free();
        if let (Some(before), Some(after)) = (before, after) {
            let found = scan.free_blocks().iter().fold(Vec::new(), |sum, zone| added(sum, zone));
            self.check = Some(TraceCheck { found, before, after });
        }
        Ok(Ok(()))
    }

    /// Free blocks by order over all zones.
    fn free(&self) -> Option<Vec<u64>> {
        let info: BuddyInfo = self.reader.parse(paths::BUDDYINFO, buddyinfo::parse).ok()?;
        Some(info.zones.iter().fold(Vec::new(), |sum, zone| added(sum, zone.areas.counts())))
    }

    /// Ends the recording: takes in what is left, and writes what it came to.
    pub fn end(&mut self) -> Result<TraceEnd, Error> {
        let vmstat = vmstat_pages(self.reader);
        // What happens from here on is of no interest; a kernel that goes on counting does no harm.
        let _ = self.tracepoints.disable();
        for _ in 0..LAST_LOOKS {
            self.drain()?;
            if self.tracepoints.is_all_read() {
                break;
            }
            std::thread::sleep(LAST_PAUSE);
        }
        let end = self.told(vmstat);
        for (cpu, events) in self.tracepoints.untold(self.totals.lost) {
            self.totals.lost += events;
            self.losses.push(TraceLoss { at_ns: self.now_ns(), cpu, events });
        }
        self.flush()?;
        let threads = std::mem::take(&mut self.names).all(self.reader.root());
        self.writer.trace_threads(self.now_ns(), &threads)?;
        self.writer.trace_end(self.now_ns(), &end)?;
        Ok(end)
    }

    /// What is needed behind the end. Everything else is closed.
    pub fn into_parts(self) -> (Writer, Totals) {
        (self.writer, self.totals)
    }

    fn told(&self, vmstat: Option<[u64; 2]>) -> TraceEnd {
        let both = self.vmstat.zip(vmstat);
        TraceEnd {
            kinds: self.tracepoints.told(),
            buffers: self.tracepoints.buffers(),
            unreadable: self.totals.unreadable + self.tracepoints.unreadable(),
            late: self.tracepoints.losses().late,
            cpu_ns: clock::process_cpu_ns(std::process::id()).unwrap_or(0),
            scan_cpu_ns: self.totals.scan_cpu_ns,
            ring_bytes: self.tracepoints.ring_bytes().0,
            is_filtered: self.is_filtered,
            vmstat_pages: both.map(|(from, to)| [0, 1].map(|at| to[at].wrapping_sub(from[at]))),
            check: self.check.clone(),
        }
    }
}

impl Blocks {
    /// Writes the pending events as one block. The first failure stays.
    fn write(&mut self, writer: &mut Writer, totals: &mut Totals) {
        if self.pending.is_empty() || self.failed.is_some() {
            self.pending.clear();
            return;
        }
        if !self.pending.is_sorted_by_key(|event| event.at_ns) {
            self.pending.sort_by_key(|event| event.at_ns);
        }
        // One that came later than its block is put to that block's end.
        let last_ns = self.last_ns;
        let early = self.pending.iter_mut().take_while(|event| event.at_ns < last_ns);
        early.for_each(|event| event.at_ns = last_ns);
        self.last_ns = self.pending.last().map_or(last_ns, |event| event.at_ns);
        let first_ns = self.pending.first().map_or(last_ns, |event| event.at_ns);
        // As whoever reads the file counts, so that both print the same rate.
        let (first_ns, last_ns) = (self.encoder.stored_ns(first_ns), self.encoder.stored_ns(self.last_ns));
        totals.span_ns = Some((totals.span_ns.map_or(first_ns, |(first, _)| first), last_ns));
        let written = self.encoder.encode(&self.pending).and_then(|block| {
            let bytes = block.bytes();
            writer.trace_events(block).map(|()| bytes)
        });
        match written {
            Ok(bytes) => {
                totals.packed += bytes;
                totals.written += self.pending.len() as u64;
            }
            Err(error) => self.failed = Some(error),
        }
        self.pending.clear();
    }
}

fn added(mut sum: Vec<u64>, more: &[u64]) -> Vec<u64> {
    sum.resize(sum.len().max(more.len()), 0);
    sum.iter_mut().zip(more).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    sum
}

/// Pages allocated and freed since boot.
fn vmstat_pages(reader: &Reader<'_>) -> Option<[u64; 2]> {
    let counters = reader.parse(paths::VMSTAT, vmstat::parse).ok()?;
    let allocated = counters.iter().filter(|(name, _)| name.starts_with("pgalloc_"));
    Some([allocated.map(|(_, pages)| pages).sum(), counters.get("pgfree")?])
}
