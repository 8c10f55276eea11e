//! Traces of the page allocator: events of the kernel's tracepoints, and the initial state of memory.

use serde::{Deserialize, Serialize};

use crate::free_areas::{BuddyInfo, ZoneKey};

/// One event, in 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Nanoseconds since the trace began.
    pub time_ns: u64,
    /// Thread that caused it (`common_pid`); 0 is an idle processor.
    pub tid: u32,
    /// Processor.
    pub cpu: u16,
    /// Contents of the event.
    pub kind: TraceEventKind,
}

/// Contents of an event. Orders and migratetypes are the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEventKind {
    /// `kmem:mm_page_alloc`.
    Alloc {
        /// Its first frame; `None`: the allocation failed.
        pfn: Option<u32>,
        /// Its order.
        order: u8,
        /// The requested migratetype.
        migratetype: u8,
        /// `gfp_flags` as the kernel has them; their bits differ between releases.
        gfp_flags: u32,
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
        /// The first frame of the allocated block.
        pfn: u32,
        /// The requested order.
        alloc_order: u8,
        /// The order of the allocated block.
        fallback_order: u8,
        /// The migratetype of the request.
        alloc_migratetype: u8,
        /// The migratetype of the allocated block.
        fallback_migratetype: u8,
        /// Whether the migratetype of the pageblock changed.
        change_ownership: bool,
    },
    /// `compaction:mm_compaction_begin`.
    CompactionBegin,
    /// `compaction:mm_compaction_end`.
    CompactionEnd,
    /// `compaction:mm_compaction_migratepages`.
    Migrated {
        /// Migrated pages.
        moved: u32,
        /// Pages that failed to migrate.
        failed: u32,
    },
    /// `vmscan:mm_vmscan_direct_reclaim_begin`.
    ReclaimBegin {
        /// The requested order.
        order: u8,
    },
    /// `vmscan:mm_vmscan_direct_reclaim_end`.
    ReclaimEnd {
        /// Freed pages.
        freed: u32,
    },
    /// `vmscan:mm_vmscan_kswapd_wake`.
    KswapdWake {
        /// The order of the wakeup.
        order: u8,
    },
}

/// The machine of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// `uname -r`.
    pub kernel: String,
    /// Bytes of a base page.
    pub page_bytes: u32,
    /// The largest order of the buddy allocator.
    pub max_order: u8,
    /// The order of a pageblock.
    #[serde(alias = "block_order")]
    pub pageblock_order: u8,
    /// Processors.
    pub cpus: u16,
    /// The zones, by first frame.
    pub zones: Vec<TraceZone>,
    /// The names of migratetypes, by number (`/proc/pagetypeinfo`); empty if it was not readable.
    pub migratetypes: Vec<String>,
    /// Start time in seconds since the epoch.
    pub began: u64,
    /// Mechanism of the kernel's event buffers.
    #[serde(default)]
    #[serde(alias = "through")]
    pub backend: TraceBackend,
}

/// Mechanism of the kernel's event buffers. Both have the same events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceBackend {
    /// Rings of perf events; the default for traces without this field.
    #[default]
    Perf,
    /// An ftrace instance, which costs the traced program less time.
    Ftrace,
}

impl TraceBackend {
    /// Its name, in texts and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TraceBackend::Perf => "perf",
            TraceBackend::Ftrace => "ftrace",
        }
    }
}

/// A zone of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceZone {
    /// Its name and node.
    pub key: ZoneKey,
    /// First frame.
    pub first: u32,
    /// Frames up to its last, including holes.
    pub spanned: u32,
    /// Frames that the allocator manages.
    pub managed: u32,
    /// Its watermarks: min, low, high.
    #[serde(alias = "marks")]
    pub watermarks: [u32; 3],
    /// `batch` and `high` of its per-CPU lists.
    #[serde(alias = "per_cpu")]
    pub pcp_batch_high: [u32; 2],
    /// Pages on each processor's lists at the start (`count`); empty in traces without this field.
    #[serde(default)]
    #[serde(alias = "kept")]
    pub pcp_counts: Vec<u32>,
    /// `lowmem_reserve` by zone index of its node.
    #[serde(alias = "reserves")]
    pub lowmem_reserve: Vec<u64>,
}

/// The state of a run of adjacent frames, from a scan of `/proc/kpageflags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// First frame.
    pub pfn: u32,
    /// Number of frames.
    pub frames: u32,
    /// Their state.
    pub state: FrameState,
    /// Time of the reading, in nanoseconds since the trace began.
    pub read_ns: u64,
}

/// State of a frame when the trace began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FrameState {
    /// On a free list (BUDDY).
    Free = 0,
    /// No owner: on a per-CPU list, reserved, or a kernel frame without flags.
    Unknown = 1,
    /// Kernel memory: slab, page tables, stacks.
    Kernel = 2,
    /// Memory of programs and files: on an LRU list, anonymous or mapped.
    User = 3,
    /// No memory there.
    Hole = 4,
}

/// Free blocks reported by the kernel at a time of the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeAreasSample {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// `/proc/buddyinfo`.
    pub free: BuddyInfo,
}

/// Events that the recorder lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostEvents {
    /// Nanoseconds since the trace began: the loss was reported at this time; it happened before.
    pub at_ns: u64,
    /// The processor; [`LostEvents::CPU_UNKNOWN`] if the kernel reported only their sum.
    pub cpu: u16,
    /// Number of lost events.
    pub events: u64,
}

/// A thread that has events in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceThread {
    /// Its TID, as in the events.
    pub tid: u32,
    /// The last name that was read of it, at most 15 bytes of a program's and 63 of a kernel thread's
    /// (`/proc/TID/comm`); `None`: the thread exited before its name was read.
    pub name: Option<String>,
}

impl LostEvents {
    /// Unknown processor: the events were lost at the end, after the last record of one of the rings.
    pub const CPU_UNKNOWN: u16 = u16::MAX;
}

impl FrameState {
    /// All states, by number.
    pub const ALL: [FrameState; 5] =
        [FrameState::Free, FrameState::Unknown, FrameState::Kernel, FrameState::User, FrameState::Hole];
}

/// Summary of a recording, by the recorder's and the kernel's own counts; absent if the recorder was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Each tracepoint.
    #[serde(alias = "kinds")]
    pub tracepoints: Vec<TracepointCounts>,
    /// Each processor's buffer by the kernel's count, if it counts by buffer: ftrace.
    #[serde(default)]
    pub buffers: Vec<BufferCounts>,
    /// Events with values that a trace cannot hold: none are expected.
    pub unreadable: u64,
    /// Events that arrived after a later one, because their processor was delayed before it wrote them.
    #[serde(alias = "late")]
    pub out_of_order: u64,
    /// Nanoseconds of CPU time of the recorder's process: reading, encoding, writing, and its scan of memory.
    pub cpu_ns: u64,
    /// The part of the scan.
    pub scan_cpu_ns: u64,
    /// Bytes for records on each processor.
    pub ring_bytes: u64,
    /// Whether the kernel filtered the recorder's threads; otherwise the recorder did.
    pub is_filtered: bool,
    /// Pages allocated and freed during the recording by `/proc/vmstat` (sum of `pgalloc_*`, `pgfree`),
    /// including the recorder's own and those of bulk allocations, which have no tracepoint.
    pub vmstat_pages: Option<[u64; 2]>,
    /// The free lists of the snapshot compared with those of the kernel.
    #[serde(alias = "check")]
    pub free_list_check: Option<FreeListCheck>,
}

/// One tracepoint of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracepointCounts {
    /// `kmem:mm_page_alloc`.
    pub name: String,
    /// Number of events by the kernel's count, without filtered ones. `None` if the kernel counts by
    /// buffer.
    #[serde(alias = "times")]
    pub occurred: Option<u64>,
    /// How many of these did not get into a ring, by the kernel's count; `None` before Linux 6.0, and where
    /// the kernel counts by buffer.
    pub lost: Option<u64>,
    /// Read events.
    pub delivered: u64,
    /// Events that were read and dropped, because the recorder caused them.
    #[serde(alias = "own")]
    pub by_recorder: u64,
}

/// The kernel's counts for one processor's buffer, all tracepoints together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferCounts {
    /// The processor.
    pub cpu: u16,
    /// Events that occurred.
    pub written: u64,
    /// Read events.
    pub read: u64,
    /// Lost events.
    pub lost: u64,
}

/// Free blocks by order over all zones: rebuilt from runs of free frames, and from `/proc/buddyinfo` before
/// and after the scan. On an idle machine the three agree except for order 0, which the recorder itself
/// allocates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeListCheck {
    /// From the snapshot.
    #[serde(alias = "found")]
    pub rebuilt: Vec<u64>,
    /// From the kernel, before.
    pub before: Vec<u64>,
    /// From the kernel, after.
    pub after: Vec<u64>,
}

impl FreeListCheck {
    /// Orders from 1 on whose count is between the two readings or equal to one of them, and the number of
    /// orders.
    pub fn count_agreeing_orders(&self) -> (usize, usize) {
        let between = self.rebuilt.iter().zip(self.before.iter().zip(&self.after)).skip(1);
        let agrees = |&(&found, (&before, &after)): &(&u64, (&u64, &u64))| {
            (before.min(after)..=before.max(after)).contains(&found)
        };
        (between.clone().filter(agrees).count(), between.count())
    }

    /// Pages of free blocks of order 1 and more by which the snapshot is outside of the two readings, and
    /// free pages of these orders before it.
    pub fn count_differing_pages(&self) -> (u64, u64) {
        let orders = self.rebuilt.iter().zip(self.before.iter().zip(&self.after)).enumerate().skip(1);
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
        let check = FreeListCheck { rebuilt: vec![1, 11, 20, 32], before, after };
        assert_eq!(
            (check.count_agreeing_orders(), check.count_differing_pages()),
            ((2, 3), (16, 20 + 80 + 240))
        );
        assert_eq!(FreeListCheck::default().count_agreeing_orders(), (0, 0));
    }
}
