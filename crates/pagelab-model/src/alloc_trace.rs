//! Traces of the page allocator: what the kernel's tracepoints said, and the memory that it began with.

use serde::{Deserialize, Serialize};

use crate::free_areas::{BuddyInfo, ZoneKey};

/// One event, in 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// Thread that did it (`common_pid`); 0 is an idle processor.
    pub tid: u32,
    /// Processor.
    pub cpu: u16,
    /// What happened.
    pub what: TraceWhat,
}

/// What an event says. Orders and migratetypes are the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceWhat {
    /// `kmem:mm_page_alloc`.
    Alloc {
        /// Its first frame; `None`: the allocation failed.
        pfn: Option<u32>,
        /// Its order.
        order: u8,
        /// The migratetype that was asked for.
        migratetype: u8,
        /// `gfp_flags` as the kernel has them; their bits differ between releases.
        gfp: u32,
    },
    /// `kmem:mm_page_free`.
    Free {
        /// Its first frame.
        pfn: u32,
        /// Its order.
        order: u8,
    },
    /// `kmem:mm_page_alloc_extfrag`.
    Fallback {
        /// The first frame of the block that was taken.
        pfn: u32,
        /// The order that was asked for.
        order: u8,
        /// The order of the block that was taken.
        taken_order: u8,
        /// The migratetype that was short.
        wanted: u8,
        /// The migratetype that it was taken from.
        from: u8,
        /// Whether the pageblock changed hands.
        owns: bool,
    },
    /// `compaction:mm_compaction_begin`.
    CompactionBegin,
    /// `compaction:mm_compaction_end`.
    CompactionEnd,
    /// `compaction:mm_compaction_migratepages`.
    Migrated {
        /// Pages that were moved.
        moved: u32,
        /// Pages that could not be.
        failed: u32,
    },
    /// `vmscan:mm_vmscan_direct_reclaim_begin`.
    ReclaimBegin {
        /// The order that was asked for.
        order: u8,
    },
    /// `vmscan:mm_vmscan_direct_reclaim_end`.
    ReclaimEnd {
        /// Pages that were freed.
        freed: u32,
    },
    /// `vmscan:mm_vmscan_kswapd_wake`.
    KswapdWake {
        /// The order that it was woken for.
        order: u8,
    },
}

/// What is known of the machine that a trace was recorded on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceHead {
    /// `uname -r`.
    pub kernel: String,
    /// Bytes of a base page.
    pub page_bytes: u32,
    /// The largest order of the buddy allocator.
    pub max_order: u8,
    /// The order of a pageblock.
    pub block_order: u8,
    /// Processors.
    pub cpus: u16,
    /// The zones, by first frame.
    pub zones: Vec<TraceZone>,
    /// The names of migratetypes, by number (`/proc/pagetypeinfo`); empty where it was not readable.
    pub migratetypes: Vec<String>,
    /// Seconds since the epoch when it began.
    pub began: u64,
    /// Whose buffers the kernel wrote the events into.
    #[serde(default)]
    pub through: TraceThrough,
}

/// Whose buffers the kernel writes events into. Both have the same events in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceThrough {
    /// Rings of perf events; traces that do not say are of these.
    #[default]
    Perf,
    /// An instance of ftrace, which takes less of the traced program's time.
    Ftrace,
}

impl TraceThrough {
    /// Its name, in texts and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TraceThrough::Perf => "perf",
            TraceThrough::Ftrace => "ftrace",
        }
    }
}

/// A zone of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceZone {
    /// Which.
    pub key: ZoneKey,
    /// First frame.
    pub first: u32,
    /// Frames up to its last, holes included.
    pub spanned: u32,
    /// Frames that the allocator manages.
    pub managed: u32,
    /// Its watermarks: min, low, high.
    pub marks: [u32; 3],
    /// `batch` and `high` of its per-CPU lists.
    pub per_cpu: [u32; 2],
    /// Pages that each processor's lists held at the start (`count`); empty in traces that do not say.
    #[serde(default)]
    pub kept: Vec<u32>,
    /// `lowmem_reserve` by zone index of its node.
    pub reserves: Vec<u64>,
}

/// The state of frames that lie side by side, as a scan of `/proc/kpageflags` found them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRun {
    /// First frame.
    pub pfn: u32,
    /// How many.
    pub frames: u32,
    /// What they were.
    pub was: Was,
    /// When they were read, in nanoseconds since the trace began.
    pub read_ns: u64,
}

/// What a frame was when the trace began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Was {
    /// On a free list (BUDDY).
    Free = 0,
    /// Nobody's: on a per-CPU list, reserved, or a frame of the kernel that has no flag.
    Unknown = 1,
    /// The kernel's: slab, page tables, stacks.
    Kernel = 2,
    /// Of programs and files: on an LRU list, anonymous or mapped.
    User = 3,
    /// No memory there.
    Hole = 4,
}

/// Free blocks as the kernel said, at a moment of the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSample {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// `/proc/buddyinfo`.
    pub free: BuddyInfo,
}

/// Events that the recorder did not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLoss {
    /// Nanoseconds since the trace began: the loss was told here; it happened before.
    pub at_ns: u64,
    /// The processor; [`TraceLoss::CPU_UNKNOWN`] where the kernel told only their sum.
    pub cpu: u16,
    /// How many.
    pub events: u64,
}

/// A thread that a trace has events of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceThread {
    /// Its number, as in the events.
    pub tid: u32,
    /// The last name that was read of it, at most 15 bytes of a program's and 63 of a kernel thread's
    /// (`/proc/TID/comm`); `None`: it ended before its name was read.
    pub name: Option<String>,
}

impl TraceLoss {
    /// No processor: the events were lost at the end, behind the last record that one of the rings took.
    pub const CPU_UNKNOWN: u16 = u16::MAX;
}

impl Was {
    /// All states, by number.
    pub const ALL: [Was; 5] = [Was::Free, Was::Unknown, Was::Kernel, Was::User, Was::Hole];
}

/// What a recording came to, by the recorder's and the kernel's own counts; absent where it was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEnd {
    /// Each tracepoint.
    pub kinds: Vec<TraceKind>,
    /// Each processor's buffer by the kernel's count, where it counts by buffer: ftrace.
    #[serde(default)]
    pub buffers: Vec<TraceBuffer>,
    /// Events that hold what a trace cannot: none is expected.
    pub unreadable: u64,
    /// Events that came after a later one, because their processor was held up before it wrote them.
    pub late: u64,
    /// Nanoseconds of CPU time of the recorder's process: reading, encoding, writing, and its scan of memory.
    pub cpu_ns: u64,
    /// Of these, what the scan took.
    pub scan_cpu_ns: u64,
    /// Bytes for records on each processor.
    pub ring_bytes: u64,
    /// Whether the kernel left the recorder's threads out; else the recorder did.
    pub is_filtered: bool,
    /// Pages allocated and freed meanwhile by `/proc/vmstat` (`pgalloc_*` in sum, `pgfree`): the recorder's
    /// own and those of bulk allocations included, which no tracepoint tells.
    pub vmstat_pages: Option<[u64; 2]>,
    /// The free lists of the snapshot beside those of the kernel.
    pub check: Option<TraceCheck>,
}

/// One tracepoint of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceKind {
    /// `kmem:mm_page_alloc`.
    pub name: String,
    /// How often it happened, by the kernel's count; what was filtered out is not in it. `None` where the
    /// kernel counts by buffer.
    pub times: Option<u64>,
    /// How many of these did not get into a ring, by the kernel's count; `None` before Linux 6.0, and where
    /// the kernel counts by buffer.
    pub lost: Option<u64>,
    /// How many were read.
    pub delivered: u64,
    /// How many were read and left out, because the recorder caused them.
    pub own: u64,
}

/// What the kernel counted for one processor's buffer, all tracepoints together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceBuffer {
    /// The processor.
    pub cpu: u16,
    /// Events that happened there.
    pub written: u64,
    /// Events that were read.
    pub read: u64,
    /// Events that were lost.
    pub lost: u64,
}

/// Free blocks by order over all zones: rebuilt from runs of free frames, and as `/proc/buddyinfo` had them
/// before and after the scan. On a machine at rest the three agree but for order 0, which the recorder itself
/// takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCheck {
    /// From the snapshot.
    pub found: Vec<u64>,
    /// From the kernel, before.
    pub before: Vec<u64>,
    /// From the kernel, after.
    pub after: Vec<u64>,
}

impl TraceCheck {
    /// Orders from 1 on whose count lies between the two readings or on one of them, and how many orders.
    pub fn agreeing(&self) -> (usize, usize) {
        let between = self.found.iter().zip(self.before.iter().zip(&self.after)).skip(1);
        let agrees = |&(&found, (&before, &after)): &(&u64, (&u64, &u64))| {
            (before.min(after)..=before.max(after)).contains(&found)
        };
        (between.clone().filter(agrees).count(), between.count())
    }

    /// Pages of free blocks of order 1 and more by which the snapshot lies outside of the two readings, and
    /// free pages of these orders before it.
    pub fn pages_off(&self) -> (u64, u64) {
        let orders = self.found.iter().zip(self.before.iter().zip(&self.after)).enumerate().skip(1);
        orders.fold((0, 0), |(off, free), (order, (&found, (&before, &after)))| {
            let (low, high) = (before.min(after), before.max(after));
            let outside = low.saturating_sub(found).max(found.saturating_sub(high));
            let pages = |blocks: u64| blocks.saturating_mul(1 << order.min(40));
            (off + pages(outside), free + pages(before))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_lists_agree_where_they_lie_between_two_readings() {
        let (before, after) = (vec![90, 10, 20, 30], vec![70, 12, 20, 29]);
        let check = TraceCheck { found: vec![1, 11, 20, 32], before, after };
        assert_eq!((check.agreeing(), check.pages_off()), ((2, 3), (16, 20 + 80 + 240)));
        assert_eq!(TraceCheck::default().agreeing(), (0, 0));
    }
}
