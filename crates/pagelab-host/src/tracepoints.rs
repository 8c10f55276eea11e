//! Tracepoints of the running kernel: opened on every CPU, read in time order, with every loss reported.
//! [`Tracepoints`] has rings of perf events, [`FtraceSession`] an instance of ftrace; [`TraceSource`] is
//! either.
//!
//! ```text
//! let (mut tracepoints, absent) = Tracepoints::open(&reader, &EXTFRAG, &TracepointOptions::default())?;
//! tracepoints.enable()?;
//! while tracepoints.wait(Duration::from_secs(5))? { tracepoints.drain(|event| …); }
//! ```
//! CPUs that come online later are not recorded. [`Tracepoints::cpus`] lists the recorded ones.

mod drain;
mod event_fields;
mod ftrace;
mod source;
mod stacks;
mod tally;
mod tracefs;

use std::io;
use std::time::Duration;

use drain::DrainState;
use pagelab_formats::cpu_list;
use pagelab_formats::perf_record::{self, Callchain, SampleLayout, sample_type};
use pagelab_formats::trace_format::{NumberField, TraceFormat};
use pagelab_model::size::format_bytes;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};
use pagelab_sys::perf_ring::{self, PerfEvent, Ring, TracepointSampling};
use rustix::io::Errno;

use crate::paths;
use crate::reader::Reader;

pub use drain::{LossCounts, LossReport};
pub use event_fields::AllocatorEventFields;
pub use event_fields::ExtfragEventFields;
pub use ftrace::{FtraceSession, FtraceSupport};
pub use source::TraceSource;
pub use stacks::{KernelSymbols, StackCollector};
pub use tally::EventTally;
pub(crate) use tracefs::find_mount;
pub use tracefs::{TraceInstance, Tracefs};

/// Requested tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointRequest<'a> {
    /// Its system: `kmem`.
    pub system: &'a str,
    /// Its name: `mm_page_alloc_extfrag`.
    pub name: &'a str,
    /// An expression over its fields that must hold: `order > 3`; empty for none.
    pub filter: &'a str,
    /// Whether call chains are requested.
    pub stacks: StackDepth,
}

/// Part of a call chain that is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StackDepth {
    /// Nothing.
    #[default]
    None,
    /// Frames of the kernel.
    Kernel,
    /// Frames of the kernel and of the program, if it keeps frame pointers.
    KernelAndUser,
}

/// Options of a recording of tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointOptions {
    /// Room for records on each CPU, rounded up to a power of two. A record has about 56 bytes, with a call
    /// chain about 250. A waiting reader is woken when a quarter of a ring is filled.
    pub ring_bytes: Bytes,
    /// Whether events of this process itself are reported. The kernel leaves out the thread that opens the
    /// tracepoints, the reader the other threads of the process.
    pub own_events: bool,
    /// [`Tracepoints::leave_out_threads`] later excludes threads, once all threads to be excluded exist.
    pub excludes_threads_later: bool,
}

impl Default for TracepointOptions {
    fn default() -> TracepointOptions {
        TracepointOptions { ring_bytes: Bytes(1 << 20), own_events: false, excludes_threads_later: false }
    }
}

/// An open tracepoint.
#[derive(Clone, Debug)]
pub struct TracepointKind {
    /// Its system.
    pub system: String,
    /// Layout of its records.
    pub format: TraceFormat,
}

impl TracepointKind {
    /// `kmem:mm_page_alloc_extfrag`
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.system, self.format.name)
    }
}

/// One event, while it is read.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Its tracepoint: an index into [`Tracepoints::kinds`].
    pub kind: usize,
    /// Its time, in nanoseconds of CLOCK_BOOTTIME.
    pub time_ns: u64,
    /// Its CPU.
    pub cpu: u32,
    /// The process, in the PID namespace of this one; 0 if it is not visible there, and in records of ftrace,
    /// which have only the thread.
    pub pid: u32,
    /// Its thread.
    pub tid: u32,
    /// Call chain, innermost first.
    pub callchain: Callchain<'a>,
    /// The tracepoint's record, for fields that were looked up in its format.
    pub record: &'a [u8],
}

impl Event<'_> {
    /// The value of a field of this event's tracepoint.
    #[inline]
    pub fn u64(&self, field: NumberField) -> Option<u64> {
        field.u64(self.record)
    }

    /// The value of a field with a sign.
    #[inline]
    pub fn i64(&self, field: NumberField) -> Option<i64> {
        field.i64(self.record)
    }
}

/// Count of one tracepoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracepointCount {
    /// Events on all CPUs while it was enabled, by the kernel's own count.
    pub times: u64,
    /// Those that did not fit into a ring; `None` before Linux 6.0.
    pub lost: Option<u64>,
    /// Read events.
    pub delivered: u64,
    /// Read events that were left out because this process caused them.
    pub own_events: u64,
}

/// Tracepoints that are open on every online CPU.
#[derive(Debug)]
pub struct Tracepoints {
    kinds: Vec<TracepointKind>,
    cpus: Vec<u32>,
    /// One for each CPU; the first kind's event owns it.
    rings: Vec<Ring>,
    /// Events of the other kinds: kind and event.
    group_events: Vec<(usize, PerfEvent)>,
    layout: SampleLayout,
    state: DrainState,
}

impl Tracepoints {
    /// Opened tracepoints, in the requested order.
    pub fn kinds(&self) -> &[TracepointKind] {
        &self.kinds
    }

    /// The kind with this name.
    pub fn kind(&self, system: &str, name: &str) -> Option<usize> {
        self.kinds.iter().position(|kind| kind.system == system && kind.format.name == name)
    }

    /// The recorded CPUs.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Room for records on each CPU.
    pub fn ring_bytes(&self) -> Bytes {
        Bytes(self.rings.first().map_or(0, Ring::data_bytes))
    }

    fn events(&self) -> impl Iterator<Item = (usize, &PerfEvent)> {
        let owners = self.rings.iter().map(|ring| (0, ring.event()));
        owners.chain(self.group_events.iter().map(|(kind, event)| (*kind, event)))
    }

    /// Starts recording.
    pub fn enable(&self) -> io::Result<()> {
        self.events().try_for_each(|(_, event)| event.enable())
    }

    /// Stops recording. Records in the rings remain readable.
    pub fn disable(&self) -> io::Result<()> {
        self.events().try_for_each(|(_, event)| event.disable())
    }

    /// Waits until a ring is filled up to its watermark, at most for `timeout`; a signal ends the wait early.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        perf_ring::wait_for_records(&self.rings, timeout)
    }

    /// Count of each kind by the kernel's own counters: one system call for each kind and CPU.
    pub fn counts(&self) -> io::Result<Vec<TracepointCount>> {
        let mut counts = self.state.counts();
        for (kind, event) in self.events() {
            let counted = event.read_count()?;
            let Some(count) = counts.get_mut(kind) else { continue };
            count.times += counted.count;
            count.lost = count.lost.zip(counted.lost).map(|(sum, lost)| sum + lost);
        }
        Ok(counts)
    }

    /// Losses so far, as the rings report them. Only [`Tracepoints::counts`] includes a loss at the very end,
    /// without a record after it.
    pub fn losses(&self) -> LossCounts {
        self.state.losses
    }

    /// CPU time in nanoseconds that reading the rings has cost so far, callbacks included.
    pub fn cpu_ns(&self) -> u64 {
        self.state.cpu_ns
    }
}

// pagelab-formats decodes the layout that pagelab-sys requests.
const _: () = assert!(perf_ring::SAMPLE_ID_ALL == perf_record::SAMPLE_ID_ALL);

/// Frames of a call chain, at most: the allocator's dozen, and enough to see the caller.
const CALLCHAIN_FRAMES_MAX: u16 = 48;

/// The inode of the first PID namespace (include/linux/proc_ns.h, `PROC_PID_INIT_INO`).
const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";

impl Tracepoints {
    /// Opens the requested tracepoints on every online CPU, still disabled. Unsupported ones are returned
    /// beside the rest; if none can be opened, the absence states the reason.
    pub fn open(
        reader: &Reader<'_>,
        requests: &[TracepointRequest<'_>],
        options: &TracepointOptions,
    ) -> Reading<(Tracepoints, Vec<Absence>)> {
        let tracefs = Tracefs::find(reader)?;
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for wanted in requests {
            match tracefs.read_format(wanted.system, wanted.name) {
                Ok(format) => {
                    found.push((*wanted, TracepointKind { system: wanted.system.to_owned(), format }))
                }
                Err(absence) => absent.push(absence),
            }
        }
        if found.is_empty() {
            let none = || {
                Absence::new(tracefs.mount_path(), AbsenceReason::NotRequested, "no tracepoint was requested")
            };
            return Err(absent.into_iter().next().unwrap_or_else(none));
        }
        let cpus = reader.parse(paths::CPU_ONLINE, cpu_list::parse)?;
        let opening =
            TracepointOpener { reader, options, with_stacks: found.iter().any(|(w, _)| has_stacks(w)) };
        let tracepoints = opening.open_all(found, &cpus)?;
        Ok((tracepoints, absent))
    }

    /// Makes the kernel leave out all present threads of this process, if it knows them by their numbers
    /// here; `false` if it does not: then the reader leaves them out. For tracepoints opened with
    /// [`TracepointOptions::excludes_threads_later`], once: a filter cannot be changed.
    pub fn leave_out_threads(&self, reader: &Reader<'_>) -> Reading<bool> {
        if !is_init_pid_namespace(reader) {
            return Ok(false);
        }
        let threads = own_threads(reader)?;
        let not: Vec<String> = threads.iter().map(|thread| format!("common_pid != {thread}")).collect();
        let expression = not.join(" && ");
        self.events().try_for_each(|(kind, event)| {
            event.set_filter(&expression).map_err(|error| {
                let name = self.kinds.get(kind).map_or_else(String::new, TracepointKind::full_name);
                filter_absence(name, &expression, &error)
            })
        })?;
        Ok(true)
    }
}

/// Whether this process is in the initial PID namespace, so that thread numbers equal those of the kernel.
fn is_init_pid_namespace(reader: &Reader<'_>) -> bool {
    let namespace = reader.root().read_link(paths::SELF_PID_NAMESPACE);
    namespace.is_ok_and(|link| link == INIT_PID_NAMESPACE)
}

fn own_threads(reader: &Reader<'_>) -> Reading<Vec<u32>> {
    let threads = reader.root().list_dir(paths::SELF_TASK)?;
    Ok(threads.iter().filter_map(|thread| thread.parse().ok()).collect())
}

fn filter_absence(name: String, expression: &str, error: &io::Error) -> Absence {
    let detail = format!("the kernel rejected the filter `{expression}`: {error}");
    Absence::new(name, AbsenceReason::Failed, detail)
}

fn has_stacks(request: &TracepointRequest<'_>) -> bool {
    request.stacks != StackDepth::None
}

struct TracepointOpener<'a, 'r> {
    reader: &'a Reader<'r>,
    options: &'a TracepointOptions,
    /// Whether any event has a call chain. All events of a ring must have the same layout, so events without
    /// a chain have an empty one then.
    with_stacks: bool,
}

impl TracepointOpener<'_, '_> {
    fn open_all(
        &self,
        tracepoints_found: Vec<(TracepointRequest<'_>, TracepointKind)>,
        cpus: &[u32],
    ) -> Reading<Tracepoints> {
        let (mut rings, mut group_events, mut cpus_watched) = (Vec::new(), Vec::new(), Vec::new());
        let events = tracepoints_found.len() * cpus.len();
        for &cpu in cpus {
            let mut ring: Option<Ring> = None;
            for (place, (wanted, kind)) in tracepoints_found.iter().enumerate() {
                let event = match PerfEvent::open_tracepoint(kind.format.id, cpu, &self.to_sampling(wanted)) {
                    Ok(event) => event,
                    // The CPU went offline since the list was read.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => break,
                    Err(error) => return Err(self.open_absence(&error, events)),
                };
                self.set_filter(&event, wanted, kind)?;
                match &ring {
                    None => {
                        let new = Ring::new(event, self.options.ring_bytes.0);
                        ring = Some(new.map_err(|error| self.ring_absence(&error))?);
                    }
                    Some(ring) => {
                        event.set_output(ring).map_err(|error| self.open_absence(&error, events))?;
                        group_events.push((place, event));
                    }
                }
            }
            if let Some(ring) = ring {
                rings.push(ring);
                cpus_watched.push(cpu);
            }
        }
        let kinds: Vec<TracepointKind> = tracepoints_found.into_iter().map(|(_, kind)| kind).collect();
        let layout = SampleLayout::new(self.sample_type())
            .ok_or_else(|| Absence::new(PERF, AbsenceReason::Failed, "unsupported sample type"))?;
        let own = (!self.options.own_events).then(std::process::id);
        let state = DrainState::new(kinds.iter().map(|kind| kind.format.id), own);
        Ok(Tracepoints { kinds, cpus: cpus_watched, rings, group_events, layout, state })
    }

    fn sample_type(&self) -> u64 {
        use sample_type::{CALLCHAIN, CPU, RAW, TID, TIME};
        TIME | TID | CPU | RAW | if self.with_stacks { CALLCHAIN } else { 0 }
    }

    fn to_sampling(&self, request: &TracepointRequest<'_>) -> TracepointSampling {
        TracepointSampling {
            sample_type: self.sample_type(),
            wakeup_bytes: u32::try_from(self.options.ring_bytes.0 / 4).unwrap_or(u32::MAX),
            frames_max: if self.with_stacks { CALLCHAIN_FRAMES_MAX } else { 0 },
            kernel_frames: has_stacks(request),
            user_frames: request.stacks == StackDepth::KernelAndUser,
        }
    }

    /// Sets the requested filter, and excludes the reading thread if the kernel can. It knows threads by
    /// their numbers in the first PID namespace; in another one the reader leaves them out.
    fn set_filter(
        &self,
        event: &PerfEvent,
        request: &TracepointRequest<'_>,
        kind: &TracepointKind,
    ) -> Reading<()> {
        let is_now = !self.options.own_events && !self.options.excludes_threads_later;
        let own = (is_now && is_init_pid_namespace(self.reader))
            .then(|| format!("common_pid != {}", rustix::thread::gettid().as_raw_nonzero()));
        let expression = match (request.filter, own) {
            ("", None) => return Ok(()),
            ("", Some(own)) => own,
            (filter, None) => filter.to_owned(),
            (filter, Some(own)) => format!("({filter}) && {own}"),
        };
        event.set_filter(&expression).map_err(|error| {
            filter_absence(kind.full_name(), &expression, &error)
                .with_hint("use field names from the event's format file")
        })
    }

    fn open_absence(&self, error: &io::Error, events: usize) -> Absence {
        match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                let level =
                    self.reader.read_line(paths::PERF_EVENT_PARANOID).unwrap_or_else(|_| "unknown".into());
                let detail = match rustix::process::geteuid().is_root() {
                    true => "denied even to root, by a container, seccomp or lockdown".to_owned(),
                    false => format!(
                        "tracing all processes requires privileges (kernel.perf_event_paranoid is \
                         {level})"
                    ),
                };
                Absence::new(PERF, AbsenceReason::NotPermitted, detail).with_hint(
                    "run as root, or give pagelab CAP_PERFMON (5.8 and later), or sysctl \
                     kernel.perf_event_paranoid=-1; in a container, run on the host",
                )
            }
            Some(Errno::MFILE | Errno::NFILE) => {
                let detail = format!("{events} events exceed the limit on open files: each needs one");
                Absence::new(PERF, AbsenceReason::NotPermitted, detail)
                    .with_hint(format!("ulimit -n {}", events + 256))
            }
            Some(Errno::NOSYS) => {
                Absence::new(PERF, AbsenceReason::NotThere, "this kernel has no perf events")
                    .with_hint("boot a kernel built with CONFIG_PERF_EVENTS=y")
            }
            _ => Absence::new(PERF, AbsenceReason::Failed, error.to_string()),
        }
    }

    fn ring_absence(&self, error: &io::Error) -> Absence {
        match Errno::from_io_error(error) {
            Some(Errno::PERM) => {
                let detail = format!(
                    "ring buffers of {} per CPU exceed kernel.perf_event_mlock_kb",
                    format_bytes(self.options.ring_bytes)
                );
                Absence::new(PERF, AbsenceReason::NotPermitted, detail)
                    .with_hint("run as root, use smaller ring buffers, or raise kernel.perf_event_mlock_kb")
            }
            _ => Absence::new(PERF, AbsenceReason::Failed, format!("cannot map the ring buffer: {error}")),
        }
    }
}

const PERF: &str = "perf_event_open";

const fn request(system: &'static str, name: &'static str) -> TracepointRequest<'static> {
    TracepointRequest { system, name, filter: "", stacks: StackDepth::None }
}

/// Allocations that fell back into another migratetype's memory.
pub const EXTFRAG: [TracepointRequest<'static>; 1] = [request("kmem", "mm_page_alloc_extfrag")];

/// Runs of compaction over one zone by any task, and the compaction thread.
pub const COMPACTION: [TracepointRequest<'static>; 5] = [
    request("compaction", "mm_compaction_begin"),
    request("compaction", "mm_compaction_end"),
    request("compaction", "mm_compaction_try_to_compact_pages"),
    request("compaction", "mm_compaction_kcompactd_wake"),
    request("compaction", "mm_compaction_kcompactd_sleep"),
];

/// Reclaim: direct, and by kswapd.
pub const VMSCAN: [TracepointRequest<'static>; 4] = [
    request("vmscan", "mm_vmscan_direct_reclaim_begin"),
    request("vmscan", "mm_vmscan_direct_reclaim_end"),
    request("vmscan", "mm_vmscan_kswapd_wake"),
    request("vmscan", "mm_vmscan_kswapd_sleep"),
];

/// Collapse into huge pages.
pub const HUGE_MEMORY: [TracepointRequest<'static>; 2] =
    [request("huge_memory", "mm_collapse_huge_page"), request("huge_memory", "mm_khugepaged_collapse_file")];

/// Each allocation and free of the page allocator, and its actions when memory is short.
/// `mm_page_free_batched` is left out: each of its pages has an `mm_page_free` before it (mm/page_alloc.c,
/// `free_unref_page_list`).
pub const ALLOCATOR: [TracepointRequest<'static>; 9] = [
    request("kmem", "mm_page_alloc"),
    request("kmem", "mm_page_free"),
    request("kmem", "mm_page_alloc_extfrag"),
    request("compaction", "mm_compaction_begin"),
    request("compaction", "mm_compaction_end"),
    request("compaction", "mm_compaction_migratepages"),
    request("vmscan", "mm_vmscan_direct_reclaim_begin"),
    request("vmscan", "mm_vmscan_direct_reclaim_end"),
    request("vmscan", "mm_vmscan_kswapd_wake"),
];

/// Tracepoints of a machine recording: all of the above, with call chains of fallbacks if requested.
pub fn recording_set(stacks: StackDepth) -> Vec<TracepointRequest<'static>> {
    let extfrag = EXTFRAG.map(|wanted| TracepointRequest { stacks, ..wanted });
    extfrag.into_iter().chain(COMPACTION).chain(VMSCAN).chain(HUGE_MEMORY).collect()
}
