//! Findings: what on this machine deserves attention, each with the numbers that say so.
//!
//! A finding is a kind with its evidence; the sentence, the units and the next command are the report's.
//! Thresholds stand here in one place, each with its reason. A machine below all of them has no findings:
//! nothing is invented to fill the page.

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Bytes, Order, PageClass, Pages};

use crate::supply::{Estimate, Interval};

/// One finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How much it matters; findings are ranked by it, highest first.
    pub weight: Weight,
    /// What was found, with its numbers.
    pub kind: FindingKind,
}

impl Finding {
    /// Whether there is something to do about it. What the host does with free memory is how this machine is
    /// built: it is told, and it stays so.
    pub fn needs_action(&self) -> bool {
        !matches!(self.kind, FindingKind::HostTakesFree { .. })
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Worth knowing; nothing breaks.
    Notice,
    /// Costs time or memory now.
    Cost,
    /// Allocations fail, processes die or stall.
    Failure,
}

impl Weight {
    /// One word, the same in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Weight::Notice => "notice",
            Weight::Cost => "cost",
            Weight::Failure => "failure",
        }
    }
}

/// Why a process with much memory has no huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHugePages {
    /// The mode is `never`.
    ModeNever,
    /// The mode is `madvise`, and the program does not advise.
    NeverAsks,
    /// The process switched them off by prctl.
    SwitchedOff,
    /// The mode is `always`: it could have had them.
    NotGiven,
}

/// What was found.
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
        huge_now: u64,
    },
    /// Many pageblocks cannot become huge pages, because a page that cannot be moved sits in them.
    SpoiledBlocks {
        /// Blocks spoiled for certain, and if every page without a flag is in use.
        spoiled: Interval,
        /// Blocks there are.
        total: u64,
        /// The class that holds the most of the spoiled blocks, and how many hold it.
        culprit: Option<(PageClass, Estimate)>,
    },
    /// Page faults that wanted a huge page and were refused.
    ThpRefused {
        /// Faults that wanted one since boot.
        wanted: u64,
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
    ProcessWithoutHuge {
        /// Process id.
        pid: u32,
        /// Its name, where it may be told.
        name: Option<String>,
        /// Its anonymous memory.
        anonymous: Bytes,
        /// How much of it huge pages map.
        huge: Bytes,
        /// Why.
        why: NoHugePages,
    },
    /// hugetlb pages that are reserved for a pool and used by nobody.
    HugetlbIdle {
        /// Size of the pool's pages.
        page_size: Bytes,
        /// Pages that are free and not promised.
        idle: u64,
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
    SwapFull {
        /// In use.
        used: Bytes,
        /// In all.
        total: Bytes,
    },
    /// The kernel log tells of allocations that failed.
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
        /// Of them those of which no log says whether the machine or a control group ran out.
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
    },
    /// The hypervisor is told of free memory and takes it back: its first touch waits for the host.
    HostTakesFree {
        /// Free blocks of this order and larger are reported.
        order: Option<Order>,
        /// The order that the command line asked for and the kernel did not take.
        asked: Option<i64>,
        /// The balloon that takes the reports.
        device: Option<String>,
        /// Free memory that is with the host now, as far as it could be counted.
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
    CgroupTight {
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
    FreeUnexplained {
        /// On the lists.
        on_lists: Pages,
        /// By the counter.
        counted: Pages,
    },
    /// The probe asked for huge pages and did not get all.
    ProbeRefused {
        /// Asked for.
        asked: u64,
        /// Came.
        came: u64,
    },
}

impl FindingKind {
    /// A stable name, the same in text and JSON.
    pub fn id(&self) -> &'static str {
        match self {
            FindingKind::FreeMemoryUnusable { .. } => "free_memory_unusable",
            FindingKind::SpoiledBlocks { .. } => "spoiled_blocks",
            FindingKind::ThpRefused { .. } => "thp_refused",
            FindingKind::CompactionFails { .. } => "compaction_fails",
            FindingKind::ProcessWithoutHuge { .. } => "process_without_huge_pages",
            FindingKind::HugetlbIdle { .. } => "hugetlb_idle",
            FindingKind::Pressure { .. } => "memory_pressure",
            FindingKind::SwapFull { .. } => "swap_full",
            FindingKind::AllocationFailures { .. } => "allocation_failures",
            FindingKind::OomKills { .. } => "oom_kills",
            FindingKind::CgroupOomKills { .. } => "cgroup_oom_kills",
            FindingKind::HostTakesFree { .. } => "host_takes_free_memory",
            FindingKind::PageTables { .. } => "page_tables",
            FindingKind::SlabUnreclaimable { .. } => "slab_unreclaimable",
            FindingKind::CgroupTight { .. } => "cgroup_tight",
            FindingKind::IndexDiffers { .. } => "index_differs",
            FindingKind::FreeUnexplained { .. } => "free_unexplained",
            FindingKind::ProbeRefused { .. } => "probe_refused",
        }
    }
}

/// From what number on something is a finding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// F_u at the huge page's order. Below one half, most free memory can still be had as huge pages.
    pub unusable: f64,
    /// Free memory below this share of all memory is normal use, not fragmentation: page cache fills the
    /// rest.
    pub free_share: f64,
    /// Spoiled blocks, as a share of all, for certain. Kernel memory of a healthy machine fills less.
    pub spoiled_share: f64,
    /// Share of huge-page faults refused.
    pub thp_refused_share: f64,
    /// Faults below which a share says nothing.
    pub events_min: u64,
    /// Share of compaction stalls that failed.
    pub compaction_failed_share: f64,
    /// A process is large from this share of all memory on …
    pub process_share: f64,
    /// … and from this size on: below it even perfect coverage buys little.
    pub process_bytes_min: Bytes,
    /// Coverage by huge pages below this share is almost none.
    pub coverage_share: f64,
    /// Idle hugetlb memory, as a share of all memory.
    pub hugetlb_idle_share: f64,
    /// Stalls of the last 10 s in hundredths of a percent. 10 % is felt by people.
    pub pressure_centipercent: u32,
    /// Swap in use, as a share.
    pub swap_used_share: f64,
    /// Page tables, as a share of all memory: dense 4 KiB mappings of all memory once are 0.2 %.
    pub page_tables_share: f64,
    /// Unreclaimable slab, as a share of all memory.
    pub slab_share: f64,
    /// Use of a control group's limit.
    pub cgroup_share: f64,
    /// Huge pages that came, as a share of those asked for by the probe.
    pub probe_came_share: f64,
}

impl Thresholds {
    /// The thresholds in force.
    pub const DEFAULT: Thresholds = Thresholds {
        unusable: 0.5,
        free_share: 0.05,
        spoiled_share: 0.25,
        thp_refused_share: 0.05,
        events_min: 100,
        compaction_failed_share: 0.5,
        process_share: 0.05,
        process_bytes_min: Bytes(256 << 20),
        coverage_share: 0.1,
        hugetlb_idle_share: 0.01,
        pressure_centipercent: 1000,
        swap_used_share: 0.9,
        page_tables_share: 0.02,
        slab_share: 0.1,
        cgroup_share: 0.9,
        probe_came_share: 1.0,
    };
}

/// The findings in the order of their weight; equal weights keep the order in which they were found.
pub fn ranked(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    findings
}
