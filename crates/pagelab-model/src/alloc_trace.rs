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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSample {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// `/proc/buddyinfo`.
    pub free: BuddyInfo,
}

/// Events that the recorder did not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLoss {
    /// Nanoseconds since the trace began: the loss was told here; it happened before.
    pub at_ns: u64,
    /// The processor.
    pub cpu: u16,
    /// How many.
    pub events: u64,
}
