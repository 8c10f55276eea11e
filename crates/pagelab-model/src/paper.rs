//! The figures of Gorman and Whitcroft, *The What, The Why and the Where To of Anti-Fragmentation*, Ottawa
//! Linux Symposium 2006.

/// A row of Figure 11: the phase and name of our figure, and the paper's cells: clean, zone-0MB and
/// zone-1024MB. The first two are the same kernel but for an empty zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The phase of our load.
    pub phase: &'static str,
    /// The name of our figure.
    pub name: &'static str,
    /// The paper's cells.
    pub cells: [u64; 3],
}

const fn row(phase: &'static str, name: &'static str, cells: [u64; 3]) -> Row {
    Row { phase, name, cells }
}

const FIRST: &str = "highalloc under load, pass 1";
const SECOND: &str = "highalloc under load, pass 2";
const REST: &str = "highalloc at rest";

/// Figure 11: huge pages of 4 MiB that were got, of 379.
pub const FIGURE_11: [Row; 18] = [
    row(FIRST, "huge pages", [72, 20, 82]),
    row(FIRST, "from DMA", [1, 1, 1]),
    row(FIRST, "from Normal", [5, 5, 6]),
    row(FIRST, "from HighMem", [66, 14, 7]),
    row(FIRST, "from EasyRclm", [0, 0, 68]),
    row(SECOND, "huge pages", [82, 70, 106]),
    row(SECOND, "from DMA", [1, 1, 1]),
    row(SECOND, "from Normal", [5, 5, 6]),
    row(SECOND, "from HighMem", [76, 64, 7]),
    row(SECOND, "from EasyRclm", [0, 0, 92]),
    row(REST, "huge pages", [110, 130, 181]),
    row(REST, "from DMA", [1, 1, 1]),
    row(REST, "from Normal", [16, 46, 44]),
    row(REST, "from HighMem", [93, 83, 9]),
    row(REST, "from EasyRclm", [0, 0, 127]),
    row("hugetlb during compile", "huge pages", [5, 5, 5]),
    row("hugetlb at rest before dd", "huge pages", [51, 52, 48]),
    row("hugetlb at rest after dd", "huge pages", [67, 64, 92]),
];

/// Section 10: huge pages in the pool under load: clean, zone-based, zone-based with linear reclaim.
pub const LINEAR: [u64; 3] = [6, 10, 41];

/// Section 8.2: huge pages from ZONE_NORMAL at rest, list-based, after light and after full load.
pub const BREAKDOWN: [u64; 2] = [119, 77];

/// Section 8.2: the last F_u of PPC64 with half of memory in ZONE_EASYRCLM, in hundredths.
pub const PPC64_ZONE: u64 = 66;

/// Huge pages that the x86 machine of Figure 11 could have at most.
pub const POSSIBLE: u64 = 379;
