//! The figures of Gorman and Whitcroft, *The What, The Why and the Where To of Anti-Fragmentation*, Ottawa
//! Linux Symposium 2006.

/// A row of Figure 11: the phase and name of our figure, and the paper's cells: clean, zone-0MB and
/// zone-1024MB. The first two are the same kernel but for an empty zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure11Row {
    /// The phase of our load.
    pub phase: &'static str,
    /// The name of our figure.
    pub name: &'static str,
    /// The paper's cells.
    pub cells: [u64; 3],
}

const fn figure_11_row(phase: &'static str, name: &'static str, cells: [u64; 3]) -> Figure11Row {
    Figure11Row { phase, name, cells }
}

const LOAD_PASS_1: &str = "highalloc under load, pass 1";
const LOAD_PASS_2: &str = "highalloc under load, pass 2";
const AT_REST: &str = "highalloc at rest";

/// Figure 11: huge pages of 4 MiB that were got, of 379.
pub const FIGURE_11: [Figure11Row; 18] = [
    figure_11_row(LOAD_PASS_1, "huge pages", [72, 20, 82]),
    figure_11_row(LOAD_PASS_1, "from DMA", [1, 1, 1]),
    figure_11_row(LOAD_PASS_1, "from Normal", [5, 5, 6]),
    figure_11_row(LOAD_PASS_1, "from HighMem", [66, 14, 7]),
    figure_11_row(LOAD_PASS_1, "from EasyRclm", [0, 0, 68]),
    figure_11_row(LOAD_PASS_2, "huge pages", [82, 70, 106]),
    figure_11_row(LOAD_PASS_2, "from DMA", [1, 1, 1]),
    figure_11_row(LOAD_PASS_2, "from Normal", [5, 5, 6]),
    figure_11_row(LOAD_PASS_2, "from HighMem", [76, 64, 7]),
    figure_11_row(LOAD_PASS_2, "from EasyRclm", [0, 0, 92]),
    figure_11_row(AT_REST, "huge pages", [110, 130, 181]),
    figure_11_row(AT_REST, "from DMA", [1, 1, 1]),
    figure_11_row(AT_REST, "from Normal", [16, 46, 44]),
    figure_11_row(AT_REST, "from HighMem", [93, 83, 9]),
    figure_11_row(AT_REST, "from EasyRclm", [0, 0, 127]),
    figure_11_row("hugetlb during compile", "huge pages", [5, 5, 5]),
    figure_11_row("hugetlb at rest before dd", "huge pages", [51, 52, 48]),
    figure_11_row("hugetlb at rest after dd", "huge pages", [67, 64, 92]),
];

/// Section 10: huge pages in the pool under load: clean, zone-based, zone-based with linear reclaim.
pub const POOL_UNDER_LOAD: [u64; 3] = [6, 10, 41];

/// Section 8.2: huge pages from ZONE_NORMAL at rest, list-based, after light and after full load.
pub const NORMAL_ZONE_AT_REST: [u64; 2] = [119, 77];

/// Section 8.2: the last F_u of PPC64 with half of memory in ZONE_EASYRCLM, in hundredths.
pub const PPC64_UNUSABLE: u64 = 66;

/// Huge pages that the x86 machine of Figure 11 could have at most.
pub const HUGE_PAGES_POSSIBLE: u64 = 379;
