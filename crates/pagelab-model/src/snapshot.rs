//! Snapshot of a machine: the same record from a live host, a saved tree or a guest.

use crate::instruments::Instrument;
use crate::pagetype::Pagetypeinfo;
use crate::pressure::Pressure;
use crate::probe::ProbeResults;
use crate::process::HugePageCoverage;
use crate::settings::Settings;
use crate::slab::{AllocSite, SlabCache};
use crate::{
    Absence, BuddyInfo, Bytes, Census, Counters, Machine, Meminfo, Order, PageSize, Pages, Reading, Zoneinfo,
};

use serde::{Deserialize, Deserializer, Serialize};

/// One look at a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When and from where.
    pub taken: SnapshotOrigin,
    /// Description of the machine.
    pub machine: Machine,
    /// How its memory is set up.
    pub settings: Settings,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// Order of a pageblock.
    pub pageblock_order: Order,
    /// How the order of a pageblock was learnt: `pagetypeinfo`, or the rule by which it is assumed.
    pub pageblock_order_source: String,
    /// `/proc/meminfo`.
    pub meminfo: Reading<Meminfo>,
    /// `/proc/vmstat`.
    pub vmstat: Reading<Counters>,
    /// `/proc/buddyinfo`.
    pub buddyinfo: Reading<BuddyInfo>,
    /// Total change of the free lists between the readings of buddyinfo before and after meminfo. Run files
    /// of before store a bare number.
    #[serde(deserialize_with = "read_free_moved")]
    pub free_moved: Reading<Pages>,
    /// `/proc/zoneinfo`.
    pub zoneinfo: Reading<Zoneinfo>,
    /// `/proc/pagetypeinfo`, only on request.
    pub pagetypeinfo: Reading<Pagetypeinfo>,
    /// `/proc/pressure/memory`.
    pub pressure: Reading<Pressure>,
    /// `/proc/slabinfo`.
    pub slabs: Reading<Vec<SlabCache>>,
    /// `/proc/allocinfo`.
    pub alloc_sites: Reading<Vec<AllocSite>>,
    /// The kernel's own fragmentation indices beside a buddyinfo that did not move meanwhile.
    pub extfrag: Reading<ExtfragFiles>,
    /// Physical memory by pageblock.
    pub census: Reading<Census>,
    /// Processes and their huge pages.
    pub processes: Reading<HugePageCoverage>,
    /// Allocation failures found in the kernel's log.
    pub alloc_failures: Reading<AllocFailures>,
    /// Results of the probe, if one was requested.
    pub probe: Option<ProbeResults>,
    /// Which instruments work here.
    pub instruments: Vec<Instrument>,
    /// Malformed files, and other problems of the reading.
    pub problems: Vec<Problem>,
}

impl Snapshot {
    /// A snapshot of which nothing has been read yet but the page size; huge pages are of the usual size.
    pub fn new_unread(source: &str, page_size: PageSize) -> Snapshot {
        Snapshot {
            taken: SnapshotOrigin { source: source.to_owned(), ..SnapshotOrigin::default() },
            machine: Machine::new_unread(page_size),
            settings: Settings {
                thp: Err(Absence::not_read()),
                hugetlb: Err(Absence::not_read()),
                vm: Counters::default(),
                vm_absent: Vec::new(),
                swap: Err(Absence::not_read()),
            },
            pmd_order: page_size.default_pmd_order(),
            pageblock_order: page_size.default_pmd_order(),
            pageblock_order_source: "assumed".to_owned(),
            meminfo: Err(Absence::not_read()),
            vmstat: Err(Absence::not_read()),
            buddyinfo: Err(Absence::not_read()),
            free_moved: Err(Absence::not_read()),
            zoneinfo: Err(Absence::not_read()),
            pagetypeinfo: Err(Absence::not_read()),
            pressure: Err(Absence::not_read()),
            slabs: Err(Absence::not_read()),
            alloc_sites: Err(Absence::not_read()),
            extfrag: Err(Absence::not_read()),
            census: Err(Absence::not_read()),
            processes: Err(Absence::not_read()),
            alloc_failures: Err(Absence::not_read()),
            probe: None,
            instruments: Vec::new(),
            problems: Vec::new(),
        }
    }
}

fn read_free_moved<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Reading<Pages>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        Reading(Reading<Pages>),
        Number(Pages),
    }
    Ok(match Stored::deserialize(deserializer)? {
        Stored::Reading(reading) => reading,
        Stored::Number(pages) => Ok(pages),
    })
}

impl Snapshot {
    /// Unreadable files that are required for a complete judgement.
    pub fn list_unread_files(&self) -> Vec<&str> {
        let absences = [
            self.buddyinfo.as_ref().err(),
            self.meminfo.as_ref().err(),
            self.vmstat.as_ref().err(),
            self.zoneinfo.as_ref().err(),
        ];
        absences.into_iter().flatten().map(|absence| absence.source.as_str()).collect()
    }
}

/// When and from where a snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOrigin {
    /// `this machine`, or the saved tree's name.
    #[serde(alias = "from")]
    pub source: String,
    /// Wall clock in nanoseconds since 1970, UTC; `None` if the saved tree does not state it.
    pub realtime_ns: Option<u64>,
    /// Nanoseconds since boot, sleep included.
    pub boottime_ns: Option<u64>,
    /// Effective user id of the reader, for a live machine.
    pub euid: Option<u32>,
}

/// A malformed file, or another problem of the reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// File, operation and hint, in one sentence without a trailing dot.
    pub message: String,
    /// Whether it was the input that was bad (exit code 3) rather than the machine that refused.
    #[serde(alias = "bad_input")]
    pub is_bad_input: bool,
}

/// The kernel's own index files, as text, and the buddyinfo they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtfragFiles {
    /// `extfrag/unusable_index`.
    pub unusable: String,
    /// `extfrag/extfrag_index`.
    pub extfrag: String,
    /// buddyinfo as read before and, equal, after.
    pub buddyinfo: BuddyInfo,
    /// How many tries it took until nothing moved.
    pub tries: u32,
}

/// Past `page allocation failure` reports and out-of-memory kills of the kernel's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocFailures {
    /// Allocations that failed or stalled, oldest first. Files of versions that did not distinguish kills
    /// have the headers of OOM reports here too.
    pub reports: Vec<AllocFailure>,
    /// Processes that the kernel killed, oldest first.
    #[serde(default)]
    pub kills: Vec<OomKill>,
    /// Whether the log's ring had already overwritten its beginning.
    pub log_overwritten: bool,
}

/// One report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocFailure {
    /// Microseconds since boot; `None` if the log was written without times.
    pub at_us: Option<u64>,
    /// The process, as the report names it.
    pub process: String,
    /// The requested order.
    pub order: Option<u32>,
    /// The rest of the line: mode, nodemask.
    pub detail: String,
}

/// Domain that ran out of memory when the kernel killed a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OomScope {
    /// The machine, or the nodes that the process was bound to.
    Machine,
    /// A control group reached its limit.
    ControlGroup,
}

/// A process that the OOM killer killed, according to the kernel log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKill {
    /// Microseconds since boot; `None` if the log was written without times.
    pub at_us: Option<u64>,
    /// Domain that ran out of memory.
    pub scope: OomScope,
    /// Process id.
    pub pid: Option<u64>,
    /// The process's name.
    pub process: String,
    /// The control group that reached its limit, where the log names it.
    pub group: Option<String>,
    /// Its limit at that time, if the log states it.
    pub limit: Option<Bytes>,
    /// The file with its limit; `None` if no group is named, and in older files.
    #[serde(default)]
    pub limit_file: Option<LimitFile>,
}

/// The file with the memory limit of a control group, where it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitFile {
    /// The group exists.
    Present {
        /// `memory.max` or `memory.limit_in_bytes`, by its path as mounted.
        path: String,
        /// The limit now; `None` if there is none.
        limit: Option<Bytes>,
    },
    /// The group does not exist any more.
    GroupGone,
    /// Whether the group exists cannot be seen.
    Unseen(Absence),
}
