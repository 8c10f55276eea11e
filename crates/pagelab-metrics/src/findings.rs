//! Findings: conditions of this machine that deserve attention, each with its numbers.
//!
//! A finding is a kind with its evidence; the report adds the sentence, the units and the next command. All
//! thresholds are in this file, each with its reason. A machine below all of them has no findings.

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::snapshot::LimitFile;
use pagelab_model::{Bytes, Order, PageClass, Pages};

use crate::supply::{CountEstimate, EstimateRange};

/// One finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How much it matters; findings are ranked by it, highest first.
    pub weight: FindingWeight,
    /// Finding with its numbers.
    pub kind: FindingKind,
}

impl Finding {
    /// Whether there is something to do about it. The host's handling of free memory is a property of this
    /// machine: it is reported, but is no problem to solve.
    pub fn needs_action(&self) -> bool {
        !matches!(self.kind, FindingKind::FreePageReporting { .. })
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingWeight {
    /// Worth knowing; nothing breaks.
    Notice,
    /// Costs time or memory now.
    Cost,
    /// Allocations fail, processes die or stall.
    Failure,
}

impl FindingWeight {
    /// One word, the same in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            FindingWeight::Notice => "notice",
            FindingWeight::Cost => "cost",
            FindingWeight::Failure => "failure",
        }
    }
}

/// Why a process with much memory has no huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHugePagesReason {
    /// The mode is `never`.
    ModeNever,
    /// The mode is `madvise`, and the program does not advise.
    NotAdvised,
    /// The process switched them off by prctl.
    SwitchedOff,
    /// The mode is `always`: it could have had them.
    NotAllocated,
}

/// Kind of a finding.
#[derive(Clone, Debug, PartialEq)]
pub enum FindingKind {
    /// Much of the free memory is in pieces smaller than a huge page.
    FreeMemoryUnusable {
        /// The zone that holds most of the unusable free memory.
        zone: ZoneKey,
        /// F_u at the huge page's order in that zone, of the free memory on its lists.
        unusable: f64,
        /// Free memory of that zone.
        free: Bytes,
        /// Huge pages that the zone's free memory could give now.
        free_huge_pages: u64,
    },
    /// Many pageblocks cannot become huge pages, because a page that cannot be moved sits in them.
    PollutedBlocks {
        /// Blocks polluted for certain, and if every page without a flag is in use.
        polluted: EstimateRange,
        /// Blocks there are.
        total: u64,
        /// The class that holds the most of the polluted blocks, and how many hold it.
        largest_class: Option<(PageClass, CountEstimate)>,
    },
    /// Page faults that fell back to base pages.
    ThpFallback {
        /// Huge page faults since boot.
        faults: u64,
        /// Share refused.
        share: f64,
    },
    /// Direct compaction that stalls programs and fails.
    CompactionFails {
        /// Stalls that ended since boot.
        ended: u64,
        /// Share that failed.
        share: f64,
    },
    /// A process with much anonymous memory and almost no huge pages.
    ProcessWithoutHugePages {
        /// Process id.
        pid: u32,
        /// Its name, if it may be shown.
        name: Option<String>,
        /// Its anonymous memory.
        anonymous: Bytes,
        /// How much of it huge pages map.
        huge: Bytes,
        /// Why.
        reason: NoHugePagesReason,
    },
    /// Unused hugetlb pages of a pool.
    IdleHugetlb {
        /// Size of the pool's pages.
        page_size: Bytes,
        /// Pages that are free and not promised.
        idle_pages: u64,
        /// Pages in the pool.
        total: u64,
    },
    /// Programs wait for memory.
    Pressure {
        /// Share of the last 10 s in which some task waited, in hundredths of a percent.
        some_avg10_centipercent: u32,
        /// The same over 60 s.
        some_avg60_centipercent: u32,
    },
    /// Swap is nearly full.
    SwapNearlyFull {
        /// In use.
        used: Bytes,
        /// In all.
        total: Bytes,
    },
    /// The kernel log contains allocation failures.
    AllocationFailures {
        /// Reports in the log.
        reports: u64,
        /// The highest order that failed.
        order_max: Option<u32>,
        /// The process of the last report.
        last_process: String,
    },
    /// Processes were killed because the machine ran out of memory.
    OomKills {
        /// Since boot.
        kills: u64,
        /// Those for which no log states whether the machine or a cgroup ran out of memory.
        unexplained: u64,
        /// The last one that the log names.
        last_process: Option<String>,
    },
    /// Processes were killed because their control group reached its limit.
    CgroupOomKills {
        /// In the kernel's log.
        kills: u64,
        /// The last one.
        last_process: String,
        /// The group whose limit it was, where the log names it.
        group: Option<String>,
        /// The limit then.
        limit: Option<Bytes>,
        /// The file with the limit of that group, if it is known.
        limit_file: Option<LimitFile>,
    },
    /// Free memory is reported to the hypervisor, which takes it back: its first touch waits for the host.
    FreePageReporting {
        /// Free blocks of this order and larger are reported.
        order: Option<Order>,
        /// The order that the command line requests and the kernel did not accept.
        requested_order: Option<i64>,
        /// The balloon that takes the reports.
        device: Option<String>,
        /// Counted free memory that the host has now.
        reported: Option<Bytes>,
    },
    /// Page tables take much memory: fewer entries would map the same with huge pages.
    PageTables {
        /// Memory in page tables.
        bytes: Bytes,
        /// As a share of all memory.
        share: f64,
    },
    /// Slab that cannot be reclaimed takes much memory.
    SlabUnreclaimable {
        /// How much.
        bytes: Bytes,
        /// As a share of all memory.
        share: f64,
        /// The largest cache, where slabinfo may be read.
        largest: Option<(String, Bytes)>,
    },
    /// The limit of this process's own control group is close.
    CgroupNearLimit {
        /// Charged.
        used: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The kernel's own index files disagree with our arithmetic on the same numbers: our bug.
    IndexDiffers {
        /// Cells that differ.
        cells: u64,
        /// Cells compared.
        compared: u64,
    },
    /// The free counter and the free lists differ and nothing explains it.
    FreeMemoryUnexplained {
        /// On the lists.
        on_lists: Pages,
        /// By the counter.
        counted: Pages,
    },
    /// Not all huge pages that the probe requested were allocated.
    ProbeFallback {
        /// Number of requested huge pages.
        requested: u64,
        /// Number of allocated huge pages.
        allocated: u64,
    },
}

impl FindingKind {
    pub(crate) fn weight(&self) -> FindingWeight {
        self.weight_and_id().0
    }

    /// A stable name, the same in text and JSON.
    pub fn id(&self) -> &'static str {
        self.weight_and_id().1
    }

    fn weight_and_id(&self) -> (FindingWeight, &'static str) {
        use FindingWeight::{Cost, Failure, Notice};
        match self {
            FindingKind::FreeMemoryUnusable { .. } => (Cost, "free_memory_unusable"),
            FindingKind::PollutedBlocks { .. } => (Cost, "polluted_pageblocks"),
            FindingKind::ThpFallback { .. } => (Cost, "thp_fallback"),
            FindingKind::CompactionFails { .. } => (Cost, "compaction_fails"),
            FindingKind::ProcessWithoutHugePages { .. } => (Notice, "process_without_huge_pages"),
            FindingKind::IdleHugetlb { .. } => (Cost, "hugetlb_idle"),
            FindingKind::Pressure { .. } => (Failure, "memory_pressure"),
            FindingKind::SwapNearlyFull { .. } => (Failure, "swap_full"),
            FindingKind::AllocationFailures { .. } => (Failure, "allocation_failures"),
            FindingKind::OomKills { .. } => (Failure, "oom_kills"),
            FindingKind::CgroupOomKills { .. } => (Failure, "cgroup_oom_kills"),
            FindingKind::FreePageReporting { .. } => (Notice, "host_takes_free_memory"),
            FindingKind::PageTables { .. } => (Cost, "page_tables"),
            FindingKind::SlabUnreclaimable { .. } => (Cost, "slab_unreclaimable"),
            FindingKind::CgroupNearLimit { .. } => (Notice, "cgroup_tight"),
            FindingKind::IndexDiffers { .. } => (Failure, "index_differs"),
            FindingKind::FreeMemoryUnexplained { .. } => (Notice, "free_unexplained"),
            FindingKind::ProbeFallback { .. } => (Cost, "probe_fallback"),
        }
    }
}

/// From what number on something is a finding.
pub(crate) mod thresholds {
    use pagelab_model::Bytes;

    /// F_u at the huge page's order. Below one half, most free memory is still available as huge pages.
    pub const UNUSABLE: f64 = 0.5;
    /// Free memory below this share of all memory is normal use, not fragmentation: page cache fills the
    /// rest.
    pub const FREE_SHARE: f64 = 0.05;
    /// Certainly polluted blocks, as a share of all. Kernel memory of a healthy machine fills less.
    pub const POLLUTED_SHARE: f64 = 0.25;
    /// Share of huge-page faults refused.
    pub const THP_FALLBACK_SHARE: f64 = 0.05;
    /// Minimum number of faults for a meaningful share.
    pub const FAULT_COUNT_MIN: u64 = 100;
    /// Share of compaction stalls that failed.
    pub const COMPACTION_FAILED_SHARE: f64 = 0.5;
    /// A process is large from this share of all memory on …
    pub const PROCESS_SHARE: f64 = 0.05;
    /// … and from this size on: below it even perfect coverage buys little.
    pub const PROCESS_BYTES_MIN: Bytes = Bytes(256 << 20);
    /// Coverage by huge pages below this share is almost none.
    pub const COVERAGE_SHARE: f64 = 0.1;
    /// Idle hugetlb memory, as a share of all memory.
    pub const HUGETLB_IDLE_SHARE: f64 = 0.01;
    /// Stalls of the last 10 s in hundredths of a percent. 10 % is felt by people.
    pub const PRESSURE_CENTIPERCENT: u32 = 1000;
    /// Swap in use, as a share.
    pub const SWAP_USED_SHARE: f64 = 0.9;
    /// Page tables, as a share of all memory: dense 4 KiB mappings of all memory once are 0.2 %.
    pub const PAGE_TABLES_SHARE: f64 = 0.02;
    /// Unreclaimable slab, as a share of all memory.
    pub const SLAB_SHARE: f64 = 0.1;
    /// Use of a control group's limit.
    pub const CGROUP_SHARE: f64 = 0.9;
    /// Allocated huge pages, as a share of those requested by the probe.
    pub const PROBE_ALLOCATED_SHARE: f64 = 1.0;
}
