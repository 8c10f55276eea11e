//! Processes and the huge pages that back them.

use crate::{Absence, Bytes, Counters};

use serde::{Deserialize, Serialize};

/// `/proc/PID/smaps_rollup`: the sum of a process's mappings (4.14 and later). Amounts in kB as printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmapsRollup {
    /// Field names with the printed kB.
    pub fields_kib: Counters,
    /// Label and text of the lines that are not amounts in kB.
    pub other: Vec<(String, String)>,
}

impl SmapsRollup {
    /// The amount called `name`.
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.fields_kib.get(name).map(Bytes::from_kib)
    }
}

/// One mapping of `/proc/PID/smaps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Permissions as printed: `rw-p`.
    pub permissions: String,
    /// Offset into the file.
    pub offset: u64,
    /// Inode; 0 for anonymous memory.
    pub inode: u64,
    /// The file or the kernel's name in brackets; empty for plain anonymous memory.
    pub name: String,
    /// The `…: n kB` fields.
    pub fields_kib: Counters,
    /// `THPeligible: 1` (5.0 and later).
    pub thp_eligible: Option<bool>,
    /// Two-letter flags of the `VmFlags` line; unknown ones are kept.
    pub vm_flags: Vec<String>,
    /// Label and text of the other lines that are not amounts in kB, such as `ProtectionKey`.
    pub other: Vec<(String, String)>,
}

/// The largest processes, and the part of their memory in huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePageCoverage {
    /// The scanned processes, largest first.
    pub processes: Vec<ProcessMemory>,
    /// Total number of processes.
    pub processes_total: u64,
    /// Processes whose memory was not readable, with the first reason.
    pub unreadable: Option<(u64, Absence)>,
    /// Processes that were skipped because a walk of their page tables would, by their size, have exceeded
    /// the time limit of one process.
    #[serde(alias = "over_budget")]
    pub skipped_over_budget: u64,
    /// Whether the time budget ended the scan before all requested processes were read.
    #[serde(alias = "budget_spent")]
    pub is_budget_spent: bool,
}

/// One process's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Process id.
    pub pid: u32,
    /// The kernel's name for it (`comm`); `None` in a tree saved without process names.
    pub name: Option<String>,
    /// Resident memory.
    pub rss: Bytes,
    /// Resident anonymous memory.
    pub anonymous: Bytes,
    /// Anonymous memory mapped by huge pages of PMD size. The shared huge zero page is not in it.
    pub anon_huge: Bytes,
    /// Shared memory mapped by huge pages.
    pub shmem_huge: Bytes,
    /// File mappings mapped by huge pages.
    pub file_huge: Bytes,
    /// hugetlb pages, private and shared.
    pub hugetlb: Bytes,
    /// `THP_enabled` of its status file: false if it switched transparent huge pages off by prctl.
    pub thp_enabled: Option<bool>,
    /// Memory in mappings that the kernel calls eligible; only from a deep scan of smaps.
    pub eligible: Option<Bytes>,
    /// Duration of the read, during which the process's mmap lock was held.
    pub read_ns: u64,
}
