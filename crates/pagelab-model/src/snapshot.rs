//! Everything that one look at a machine yields: the same record from a live host, a saved tree or a guest.

use crate::instruments::Instrument;
use crate::pagetype::Pagetypeinfo;
use crate::pressure::Pressure;
use crate::probe::ProbeResults;
use crate::process::ProcessCoverage;
use crate::settings::Settings;
use crate::slab::{AllocSite, SlabCache};
use crate::{
    Absence, BuddyInfo, Bytes, Census, Counters, Machine, Meminfo, Order, PageSize, Pages, Reading, Zoneinfo,
};

use serde::{Deserialize, Serialize};

/// One look at a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When and from where.
    pub taken: Taken,
    /// What the machine is.
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
    /// How much the free lists changed in sum while meminfo was read between two readings of buddyinfo.
    pub free_moved: Pages,
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
    pub processes: Reading<ProcessCoverage>,
    /// Allocation failures found in the kernel's log.
    pub alloc_failures: Reading<AllocFailures>,
    /// What a probe measured, if one was asked for.
    pub probe: Option<ProbeResults>,
    /// Which instruments work here.
    pub instruments: Vec<Instrument>,
    /// Files that were there and could not be understood, and other things that went wrong on the way.
    pub problems: Vec<Problem>,
}

impl Snapshot {
    /// A snapshot of which nothing has been read yet but the page size; huge pages are of the usual size.
    pub fn unread(from: &str, page_size: PageSize) -> Snapshot {
        Snapshot {
            taken: Taken { from: from.to_owned(), realtime_ns: None, boottime_ns: None, euid: None },
            machine: Machine::unread(page_size),
            settings: Settings {
                thp: Err(Absence::unread()),
                hugetlb: Err(Absence::unread()),
                vm: Counters::default(),
                vm_absent: Vec::new(),
                swap: Err(Absence::unread()),
            },
            pmd_order: page_size.usual_pmd_order(),
            pageblock_order: page_size.usual_pmd_order(),
            pageblock_order_source: "assumed".to_owned(),
            meminfo: Err(Absence::unread()),
            vmstat: Err(Absence::unread()),
            buddyinfo: Err(Absence::unread()),
            free_moved: Pages(0),
            zoneinfo: Err(Absence::unread()),
            pagetypeinfo: Err(Absence::unread()),
            pressure: Err(Absence::unread()),
            slabs: Err(Absence::unread()),
            alloc_sites: Err(Absence::unread()),
            extfrag: Err(Absence::unread()),
            census: Err(Absence::unread()),
            processes: Err(Absence::unread()),
            alloc_failures: Err(Absence::unread()),
            probe: None,
            instruments: Vec::new(),
            problems: Vec::new(),
        }
    }
}

impl Snapshot {
    /// The files without which a judgement has a hole, as far as they could not be read.
    pub fn unread_files(&self) -> Vec<&str> {
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// `this machine`, or the saved tree's name.
    pub from: String,
    /// Wall clock in nanoseconds since 1970, UTC; `None` if the saved tree does not say.
    pub realtime_ns: Option<u64>,
    /// Nanoseconds since boot, sleep included.
    pub boottime_ns: Option<u64>,
    /// Effective user id of the reader, for a live machine.
    pub euid: Option<u32>,
}

/// A file that was there and could not be understood, or another thing that went wrong on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// File, operation and way out, in one sentence without a trailing dot.
    pub message: String,
    /// Whether it was the input that was bad (exit code 3) rather than the machine that refused.
    pub bad_input: bool,
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
    /// Allocations that failed or stalled, oldest first. Files written before the kills were told apart have
    /// the heads of out-of-memory reports here too.
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
    /// The order asked for.
    pub order: Option<u32>,
    /// The rest of the line: mode, nodemask.
    pub detail: String,
}

/// What ran out of memory when the kernel killed a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OomScope {
    /// The machine, or the nodes that the process was bound to.
    Machine,
    /// A control group reached its limit.
    ControlGroup,
}

/// A process that the kernel killed for lack of memory, as its log tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKill {
    /// Microseconds since boot; `None` if the log was written without times.
    pub at_us: Option<u64>,
    /// What ran out.
    pub scope: OomScope,
    /// Process id.
    pub pid: Option<u64>,
    /// The process's name.
    pub process: String,
    /// The control group that reached its limit, where the log names it.
    pub group: Option<String>,
    /// Its limit then, where the log says it.
    pub limit: Option<Bytes>,
}
