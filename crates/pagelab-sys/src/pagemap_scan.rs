//! PAGEMAP_SCAN ioctl (Linux 6.7): the mapped parts of an address range, and those mapped by huge pages.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsRawFd;

use pagelab_model::Bytes;

/// `struct page_region` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<PageRegion>() == 24 && size_of::<PmScanArg>() == 96);
const _: () = assert!(offset_of!(PmScanArg, vec) == 40 && offset_of!(PmScanArg, return_mask) == 88);

/// `PAGE_IS_FILE`: not anonymous; shared memory too.
const PAGE_IS_FILE: u64 = 1 << 2;
/// `PAGE_IS_PRESENT`: in memory.
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// `PAGE_IS_SWAPPED`: in swap.
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// `PAGE_IS_PFNZERO`: the zero page, or the huge zero page.
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// `PAGE_IS_HUGE`: mapped by a PMD, by transparent or hugetlb pages.
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `_IOWR('f', 16, struct pm_scan_arg)` in the encoding of asm-generic/ioctl.h.
const PAGEMAP_SCAN: u32 = (3 << 30) | ((size_of::<PmScanArg>() as u32) << 16) | ((b'f' as u32) << 8) | 16;
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610);

/// Pages to report, and the categories of each.
#[derive(Clone, Copy)]
struct ScanQuery {
    /// Those in all of these categories …
    all_of: u64,
    /// … and in any of these, if there are some.
    any_of: u64,
    /// Reported categories; regions end where one of them changes.
    returned: u64,
}

impl ScanQuery {
    fn with_any_of(categories: u64) -> ScanQuery {
        ScanQuery { all_of: 0, any_of: categories, returned: categories }
    }
}

/// Asks for the regions of `addresses` that the question means. Gives how many there are in `regions`,
/// and the address up to which the kernel looked: it stops early when there is no room left.
fn scan_regions(
    pagemap: &File,
    addresses: Range<u64>,
    query: ScanQuery,
    regions: &mut [PageRegion],
) -> io::Result<(usize, u64)> {
    let mut arg = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        start: addresses.start,
        end: addresses.end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        category_mask: query.all_of,
        category_anyof_mask: query.any_of,
        return_mask: query.returned,
        ..PmScanArg::default()
    };
    // SAFETY: the request reads `arg` and writes its `walk_end` and at most `vec_len` regions to `vec`; both
    // outlive the call, and their layouts are asserted above. The descriptor is open as long as `pagemap`.
    // JUSTIFICATION: no library has this request.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
    let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
    Ok((found, arg.walk_end))
}

/// Bytes of `addresses` that huge pages map. `pagemap` is the open `pagemap` file of the process in question.
/// A kernel before 6.7 answers `ENOTTY`.
pub fn huge_bytes(pagemap: &File, addresses: Range<u64>) -> io::Result<Bytes> {
    let mut huge = 0u64;
    for_each_region(pagemap, addresses, ScanQuery::with_any_of(PAGE_IS_HUGE), |region| {
        huge += region.end.saturating_sub(region.start)
    })?;
    Ok(Bytes(huge))
}

/// Gives `visit` the parts of `addresses` that are in memory or in swap, ascending. A kernel before 6.7
/// answers `ENOTTY`.
pub fn for_each_populated(
    pagemap: &File,
    addresses: Range<u64>,
    mut visit: impl FnMut(Range<u64>),
) -> io::Result<()> {
    let categories = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    for_each_region(pagemap, addresses, ScanQuery::with_any_of(categories), |region| {
        visit(region.start..region.end)
    })
}

/// Range of addresses on the kernel's zero page, small or huge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroPageRange {
    /// The addresses.
    pub addresses: Range<u64>,
    /// Base pages in memory that belong to no file: as [`for_each_zero_base_range`] reports.
    pub is_base: bool,
    /// Whether it is on the huge zero page. Before 6.17 the kernel does not report it
    /// ([`HugePageRange::is_zero`]).
    pub is_huge: bool,
}

/// Calls `visit` with the parts of `addresses` on the zero page, ascending, each with its kind, in one scan
/// of the page tables. A kernel before 6.7 answers `ENOTTY`.
pub fn for_each_zero_range(
    pagemap: &File,
    addresses: Range<u64>,
    mut visit: impl FnMut(ZeroPageRange),
) -> io::Result<()> {
    let told = PAGE_IS_PRESENT | PAGE_IS_PFNZERO | PAGE_IS_HUGE | PAGE_IS_FILE | PAGE_IS_SWAPPED;
    let query = ScanQuery { all_of: PAGE_IS_PFNZERO, any_of: 0, returned: told };
    for_each_region(pagemap, addresses, query, |region| {
        let has_any = |categories: u64| region.categories & categories != 0;
        visit(ZeroPageRange {
            addresses: region.start..region.end,
            is_base: has_any(PAGE_IS_PRESENT) && !has_any(PAGE_IS_HUGE | PAGE_IS_FILE | PAGE_IS_SWAPPED),
            is_huge: has_any(PAGE_IS_HUGE),
        });
    })
}

/// Calls `visit` with the parts of `addresses` whose base pages map the kernel's zero page, ascending: in
/// memory, not part of a huge page (nor of the huge zero page), no file and not in swap. A kernel before 6.7
/// answers `ENOTTY`.
pub fn for_each_zero_base_range(
    pagemap: &File,
    addresses: Range<u64>,
    mut visit: impl FnMut(Range<u64>),
) -> io::Result<()> {
    for_each_zero_range(pagemap, addresses, |range| {
        if range.is_base {
            visit(range.addresses);
        }
    })
}

/// A range of addresses that huge pages map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePageRange {
    /// The addresses.
    pub addresses: Range<u64>,
    /// The kernel calls it the zero page. Before 6.17 it compares the huge zero page with the small one
    /// (fs/proc/task_mmu.c, `pagemap_thp_category`), and so never does.
    pub is_zero: bool,
    /// Not anonymous: a file, or shared memory.
    pub is_file: bool,
}

/// Gives `visit` the parts of `addresses` that huge pages map, ascending. A kernel before 6.7 answers
/// `ENOTTY`.
pub fn for_each_huge_range(
    pagemap: &File,
    addresses: Range<u64>,
    mut visit: impl FnMut(HugePageRange),
) -> io::Result<()> {
    let told = PAGE_IS_HUGE | PAGE_IS_PFNZERO | PAGE_IS_FILE;
    let query = ScanQuery { all_of: PAGE_IS_HUGE, any_of: 0, returned: told };
    for_each_region(pagemap, addresses, query, |region| {
        visit(HugePageRange {
            addresses: region.start..region.end,
            is_zero: region.categories & PAGE_IS_PFNZERO != 0,
            is_file: region.categories & PAGE_IS_FILE != 0,
        });
    })
}

fn for_each_region(
    pagemap: &File,
    addresses: Range<u64>,
    query: ScanQuery,
    mut visit: impl FnMut(&PageRegion),
) -> io::Result<()> {
    let mut regions = [PageRegion::default(); 64];
    let mut at = addresses.start;
    while at < addresses.end {
        let (found, walk_end) = scan_regions(pagemap, at..addresses.end, query, &mut regions)?;
        let found = regions
            .get(..found)
            .ok_or_else(|| io::Error::other("the kernel returned more regions than the buffer holds"))?;
        found.iter().for_each(&mut visit);
        if walk_end <= at {
            return Err(io::Error::other("the scan made no progress"));
        }
        at = walk_end;
    }
    Ok(())
}

/// Whether the kernel supports the request: tested with an empty range, which scans nothing. `ENOTTY` is the
/// no.
pub fn probe_support(pagemap: &File) -> io::Result<()> {
    scan_regions(pagemap, 0..0, ScanQuery::with_any_of(PAGE_IS_HUGE), &mut [PageRegion::default()]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Advice, Mapping};

    #[test]
    fn the_question_ends_in_yes_or_in_the_error_that_means_no() {
        let answer = probe_support(&File::open("/proc/self/pagemap").unwrap());
        let no = answer.err().map(|error| error.raw_os_error());
        assert!(no.is_none() || no == Some(Some(libc::ENOTTY)), "{no:?}");
        let other = File::open("/proc/self/status").unwrap();
        assert_eq!(probe_support(&other).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn base_pages_of_zeros_are_those_that_were_read_and_never_written() {
        let page = rustix::param::page_size() as u64;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        if probe_support(&pagemap).is_err() {
            eprintln!("skipped: no-pagemap-scan: the kernel has no PAGEMAP_SCAN");
            return;
        }
        let mut map = Mapping::anonymous(Bytes(16 * page), Bytes(page)).unwrap();
        let start = map.addresses().start;
        map.advise(0..16 * page, Advice::NoHugePage).unwrap();
        map.touch_for_reading(2 * page..12 * page).unwrap();
        map.words_mut()[(5 * page / 8) as usize] = 7;
        let mut found = Vec::new();
        let addresses = map.addresses();
        for_each_zero_base_range(&pagemap, addresses, |part| found.push(part)).unwrap();
        let at = |from: u64, to: u64| start + from * page..start + to * page;
        assert_eq!(found, [at(2, 5), at(6, 12)]);
        let mut parts = Vec::new();
        for_each_zero_range(&pagemap, map.addresses(), |part| parts.push(part)).unwrap();
        let base = |addresses| ZeroPageRange { addresses, is_base: true, is_huge: false };
        assert_eq!(parts, [base(at(2, 5)), base(at(6, 12))], "one look tells the same");
    }
}
