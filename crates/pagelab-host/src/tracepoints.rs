//! Tracepoints of the running kernel: opened on every CPU, read in the order of time, with every loss told.
//! [`Tracepoints`] has rings of perf events, [`Ftrace`] an instance of ftrace; [`Source`] is either.
//!
//! ```text
//! let (mut tracepoints, absent) = Tracepoints::open(&reader, &sets::EXTFRAG, &Options::default())?;
//! tracepoints.enable()?;
//! while tracepoints.wait(Duration::from_secs(5))? { tracepoints.drain(|event| …)?; }
//! ```
//! CPUs that come online later are not followed: what happens there is not seen. [`Tracepoints::cpus`] are
//! those that are.

mod allocator;
mod drain;
mod extfrag;
mod ftrace;
mod open;
pub mod sets;
mod source;
mod stacks;
mod tally;
mod tracefs;

use std::io;
use std::time::Duration;

use pagelab_formats::perf_record::{Callchain, Layout};
use pagelab_formats::trace_format::{Field, TraceFormat};
use pagelab_model::Bytes;
use pagelab_sys::perf_ring::{self, PerfEvent, Ring};

pub use allocator::AllocatorFields;
pub use drain::{Drained, Losses, ToldLoss};
pub use extfrag::ExtfragFields;
pub use ftrace::{Ftrace, Possible};
pub use source::Source;
pub use stacks::{KernelSymbols, StackCollector};
pub use tally::Tally;
pub use tracefs::Tracefs;

/// One tracepoint that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Its system: `kmem`.
    pub system: &'a str,
    /// Its name: `mm_page_alloc_extfrag`.
    pub name: &'a str,
    /// An expression over its fields that must hold: `order > 3`; empty for none.
    pub filter: &'a str,
    /// Whether its call chains are wanted.
    pub stacks: StackDepth,
}

/// How much of a call chain is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StackDepth {
    /// Nothing.
    #[default]
    None,
    /// Frames of the kernel.
    Kernel,
    /// Frames of the kernel and of the program, as far as it keeps frame pointers.
    KernelAndUser,
}

/// How tracepoints are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Room for records on each CPU, rounded up to a power of two. A record has about 56 bytes, with a call
    /// chain some 250.
    pub ring_bytes: Bytes,
    /// A waiting reader is woken when so much of a ring is filled; 0 for a quarter of it.
    pub wakeup_bytes: u32,
    /// Whether events of this process itself are seen. The thread that opens the tracepoints is left out by
    /// the kernel already, other threads of the process when they are read.
    pub own_events: bool,
    /// The kernel is told later which threads to leave out, by [`Tracepoints::leave_out_threads`]: once all
    /// threads are there that shall be left out.
    pub own_threads_later: bool,
}

impl Default for Options {
    fn default() -> Options {
        let (own_events, own_threads_later) = (false, false);
        Options { ring_bytes: Bytes(1 << 20), wakeup_bytes: 0, own_events, own_threads_later }
    }
}

/// A tracepoint that is open.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its system.
    pub system: String,
    /// What its records hold.
    pub format: TraceFormat,
}

impl Kind {
    /// `kmem:mm_page_alloc_extfrag`
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.system, self.format.name)
    }
}

/// One event, while it is read.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Which tracepoint: an index into [`Tracepoints::kinds`].
    pub kind: usize,
    /// When it happened, in nanoseconds of CLOCK_BOOTTIME.
    pub at_ns: u64,
    /// The CPU that it happened on.
    pub cpu: u32,
    /// The process, in the PID namespace of this one; 0 if it is not visible there, and in records of
    /// ftrace, which have the thread alone.
    pub pid: u32,
    /// Its thread.
    pub tid: u32,
    /// Who called whom, innermost first.
    pub callchain: Callchain<'a>,
    /// The tracepoint's record, for fields that were looked up in its format.
    pub record: &'a [u8],
}

impl Event<'_> {
    /// The value of a field of this event's tracepoint.
    #[inline]
    pub fn u64(&self, field: Field) -> Option<u64> {
        field.u64(self.record)
    }

    /// The value of a field with a sign.
    #[inline]
    pub fn i64(&self, field: Field) -> Option<i64> {
        field.i64(self.record)
    }
}

/// What one tracepoint counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCount {
    /// How often it happened on all CPUs while it was enabled, by the kernel's own count.
    pub times: u64,
    /// How many of these did not get into a ring; `None` before Linux 6.0.
    pub lost: Option<u64>,
    /// How many were read.
    pub delivered: u64,
    /// How many were read and left out, because this process caused them.
    pub own: u64,
}

/// Tracepoints that are open on every CPU that was online.
#[derive(Debug)]
pub struct Tracepoints {
    kinds: Vec<Kind>,
    cpus: Vec<u32>,
    /// One for each CPU; the first kind's event owns it.
    rings: Vec<Ring>,
    /// Events of the other kinds: kind and event.
    others: Vec<(usize, PerfEvent)>,
    layout: Layout,
    state: drain::State,
}

impl Tracepoints {
    /// What is open, in the order in which it was wanted.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The kind with this name.
    pub fn kind(&self, system: &str, name: &str) -> Option<usize> {
        self.kinds.iter().position(|kind| kind.system == system && kind.format.name == name)
    }

    /// The CPUs that are watched.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Room for records on each CPU.
    pub fn ring_bytes(&self) -> Bytes {
        Bytes(self.rings.first().map_or(0, Ring::data_bytes))
    }

    fn events(&self) -> impl Iterator<Item = (usize, &PerfEvent)> {
        let owners = self.rings.iter().map(|ring| (0, ring.event()));
        owners.chain(self.others.iter().map(|(kind, event)| (*kind, event)))
    }

    /// Begins to record.
    pub fn enable(&self) -> io::Result<()> {
        self.events().try_for_each(|(_, event)| event.enable())
    }

    /// Ends to record. What is in the rings can still be read.
    pub fn disable(&self) -> io::Result<()> {
        self.events().try_for_each(|(_, event)| event.disable())
    }

    /// Waits until a ring is filled up to its watermark, at most for `timeout`; a signal ends the wait early.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        perf_ring::wait(&self.rings, timeout)
    }

    /// What each kind counted, by the kernel's own counters: one system call for each kind and CPU.
    pub fn counts(&self) -> io::Result<Vec<KindCount>> {
        let mut counts = self.state.counts();
        for (kind, event) in self.events() {
            let counted = event.counted()?;
            let Some(count) = counts.get_mut(kind) else { continue };
            count.times += counted.times;
            count.lost = count.lost.zip(counted.lost).map(|(sum, lost)| sum + lost);
        }
        Ok(counts)
    }

    /// What was lost so far, as the rings tell it. A loss at the very end, with no record behind it, is seen
    /// by
    /// [`Tracepoints::counts`] alone.
    pub fn losses(&self) -> Losses {
        self.state.losses
    }

    /// The losses that rings told since the last call, in the order of reading.
    pub fn take_losses(&mut self) -> Vec<ToldLoss> {
        std::mem::take(&mut self.state.told)
    }

    /// CPU time in nanoseconds that reading the rings has cost so far, callbacks included.
    pub fn cpu_ns(&self) -> u64 {
        self.state.cpu_ns
    }
}
