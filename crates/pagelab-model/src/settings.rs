//! Current memory settings of the kernel: huge pages, compaction, swap.

use serde::{Deserialize, Serialize};

use crate::{Absence, Bytes, Counters, Order, PageSize, Reading};

/// Transparent huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThpSettings {
    /// `enabled`: the global mode for anonymous memory.
    pub enabled: Reading<SysfsChoice>,
    /// `defrag`: how hard a fault tries.
    pub defrag: Reading<SysfsChoice>,
    /// `shmem_enabled`: the mode for shared memory.
    pub shmem_enabled: Reading<SysfsChoice>,
    /// `hpage_pmd_size`.
    pub pmd_size: Reading<Bytes>,
    /// `use_zero_page`.
    pub use_zero_page: Reading<u64>,
    /// Modes by size (6.8 and later), ascending by size.
    pub sizes: Vec<ThpSize>,
    /// The plain numbers of `khugepaged/`.
    pub khugepaged: Counters,
}

/// One size of multi-size huge pages (mTHP).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThpSize {
    /// The size.
    pub size: Bytes,
    /// `enabled`: always, inherit, madvise, never.
    pub enabled: Reading<SysfsChoice>,
    /// `shmem_enabled`, where the kernel has it for this size.
    pub shmem_enabled: Reading<SysfsChoice>,
    /// The counters of `stats/`, since boot.
    pub stats: Counters,
}

/// One hugetlb pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugetlbPool {
    /// Size of its pages.
    pub page_size: Bytes,
    /// Pages in the pool.
    pub total: u64,
    /// Pages not in use.
    pub free: u64,
    /// Free pages that are promised.
    pub reserved: u64,
    /// Pages above the configured number.
    pub surplus: u64,
    /// How many surplus pages are allowed.
    pub overcommit: u64,
}

/// One line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapArea {
    /// File or device.
    pub name: String,
    /// `partition` or `file`.
    pub kind: String,
    /// Its size.
    pub size: Bytes,
    /// How much is in use.
    pub used: Bytes,
}

/// All settings of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Transparent huge pages, or why the kernel has none.
    pub thp: Reading<ThpSettings>,
    /// hugetlb pools, ascending by page size.
    pub hugetlb: Reading<Vec<HugetlbPool>>,
    /// The plain numbers of `/proc/sys/vm`, by name; unknown ones are kept.
    pub vm: Counters,
    /// Those of `/proc/sys/vm` that could not be read, with the reason.
    pub vm_absent: Vec<Absence>,
    /// Swap areas; an empty list is a machine without swap.
    pub swap: Reading<Vec<SwapArea>>,
}

impl Settings {
    /// The order of a huge page of PMD size.
    pub fn pmd_order(&self, page_size: PageSize) -> Order {
        page_size.pmd_order(self.thp.as_ref().ok().and_then(|thp| thp.pmd_size.as_ref().ok()).copied())
    }
}

/// The options of a setting, and the active one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedChoice")]
pub struct SysfsChoice {
    /// All options in the kernel's order.
    pub options: Vec<String>,
    /// Index of the bracketed option in `options`; a file that brackets none is malformed.
    pub selected: usize,
}

/// A setting as stored, not yet validated.
#[derive(Deserialize)]
struct UncheckedChoice {
    options: Vec<String>,
    selected: usize,
}

impl TryFrom<UncheckedChoice> for SysfsChoice {
    type Error = &'static str;

    fn try_from(stored: UncheckedChoice) -> Result<SysfsChoice, Self::Error> {
        let UncheckedChoice { options, selected } = stored;
        let is_offered = selected < options.len();
        is_offered
            .then_some(SysfsChoice { options, selected })
            .ok_or("the selected option is not in the list")
    }
}

impl SysfsChoice {
    /// The active option.
    pub fn selected(&self) -> &str {
        &self.options[self.selected]
    }

    /// Whether the kernel offers `option` at all: the probe is the presence of a word, not a version.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }
}
