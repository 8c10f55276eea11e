//! The PAGEMAP_SCAN ioctl (Linux 6.7): which part of an address range is mapped, and which by huge pages.

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
/// `PAGE_IS_PFNZERO`: the shared page of zeros, or the huge one.
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// `PAGE_IS_HUGE`: mapped by a PMD, by transparent or hugetlb pages.
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `_IOWR('f', 16, struct pm_scan_arg)` in the encoding of asm-generic/ioctl.h.
const PAGEMAP_SCAN: u32 = (3 << 30) | ((size_of::<PmScanArg>() as u32) << 16) | ((b'f' as u32) << 8) | 16;
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610);

/// Which pages are asked for, and what is told of each.
#[derive(Clone, Copy)]
struct Question {
    /// Those in all of these categories …
    all: u64,
    /// … but in none of these, …
    none: u64,
    /// … and in any of these, where there are some.
    any: u64,
    /// The categories that are told; regions end where one of them changes.
    told: u64,
}

impl Question {
    fn any(categories: u64) -> Question {
        Question { all: 0, none: 0, any: categories, told: categories }
    }
}

/// Asks for the regions of `addresses` that the question means. Gives how many there are in `regions`,
/// and the address up to which the kernel looked: it stops early when there is no room left.
fn scan(
    pagemap: &File,
    addresses: Range<u64>,
    question: Question,
    regions: &mut [PageRegion],
) -> io::Result<(usize, u64)> {
    let mut arg = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        start: addresses.start,
        end: addresses.end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        // A category that is inverted is met where it is missing.
        category_inverted: question.none,
        category_mask: question.all | question.none,
        category_anyof_mask: question.any,
        return_mask: question.told,
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
    each(pagemap, addresses, Question::any(PAGE_IS_HUGE), |region| {
        huge += region.end.saturating_sub(region.start)
    })?;
    Ok(Bytes(huge))
}

/// Gives `take` the parts of `addresses` that are in memory or in swap, ascending. A kernel before 6.7
/// answers `ENOTTY`.
pub fn populated(pagemap: &File, addresses: Range<u64>, mut take: impl FnMut(Range<u64>)) -> io::Result<()> {
    let categories = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    each(pagemap, addresses, Question::any(categories), |region| take(region.start..region.end))
}

/// A range of addresses that the kernel's page of zeros maps, the small or the huge one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroPart {
    /// The addresses.
    pub addresses: Range<u64>,
    /// By base pages in memory, no file's: as [`zero_base_pages`] tells.
    pub is_base: bool,
    /// By the huge page of zeros. Before 6.17 the kernel does not tell it ([`HugePart::is_zero`]).
    pub is_huge: bool,
}

/// Gives `take` the parts of `addresses` that map the page of zeros, ascending, each with its kind: one look
/// at the page tables for all kinds. A kernel before 6.7 answers `ENOTTY`.
pub fn zero_parts(pagemap: &File, addresses: Range<u64>, mut take: impl FnMut(ZeroPart)) -> io::Result<()> {
    let told = PAGE_IS_PRESENT | PAGE_IS_PFNZERO | PAGE_IS_HUGE | PAGE_IS_FILE | PAGE_IS_SWAPPED;
    each(pagemap, addresses, Question { all: PAGE_IS_PFNZERO, none: 0, any: 0, told }, |region| {
        let has = |category: u64| region.categories & category != 0;
        take(ZeroPart {
            addresses: region.start..region.end,
            is_base: has(PAGE_IS_PRESENT)
                && !has(PAGE_IS_HUGE)
                && !has(PAGE_IS_FILE)
                && !has(PAGE_IS_SWAPPED),
            is_huge: has(PAGE_IS_HUGE),
        });
    })
}

/// Gives `take` the parts of `addresses` whose base pages map the kernel's page of zeros, ascending: in
/// memory, no part of a huge page (nor of the huge page of zeros), no file and not in swap. A kernel before
/// 6.7 answers `ENOTTY`.
pub fn zero_base_pages(
    pagemap: &File,
    addresses: Range<u64>,
    mut take: impl FnMut(Range<u64>),
) -> io::Result<()> {
    let question = Question {
        all: PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
        none: PAGE_IS_HUGE | PAGE_IS_FILE | PAGE_IS_SWAPPED,
        any: 0,
        told: PAGE_IS_PFNZERO,
    };
    each(pagemap, addresses, question, |region| take(region.start..region.end))
}

/// A range of addresses that huge pages map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePart {
    /// The addresses.
    pub addresses: Range<u64>,
    /// The kernel calls it the page of zeros. Before 6.17 it compares the huge page of zeros with the small
    /// one (fs/proc/task_mmu.c, `pagemap_thp_category`), and so never does.
    pub is_zero: bool,
    /// Not anonymous: a file, or shared memory.
    pub is_file: bool,
}

/// Gives `take` the parts of `addresses` that huge pages map, ascending. A kernel before 6.7 answers
/// `ENOTTY`.
pub fn huge_parts(pagemap: &File, addresses: Range<u64>, mut take: impl FnMut(HugePart)) -> io::Result<()> {
    let told = PAGE_IS_HUGE | PAGE_IS_PFNZERO | PAGE_IS_FILE;
    each(pagemap, addresses, Question { all: PAGE_IS_HUGE, none: 0, any: 0, told }, |region| {
        take(HugePart {
            addresses: region.start..region.end,
            is_zero: region.categories & PAGE_IS_PFNZERO != 0,
            is_file: region.categories & PAGE_IS_FILE != 0,
        });
    })
}

fn each(
    pagemap: &File,
    addresses: Range<u64>,
    question: Question,
    mut take: impl FnMut(&PageRegion),
) -> io::Result<()> {
    let mut regions = [PageRegion::default(); 64];
    let mut at = addresses.start;
    while at < addresses.end {
        let (found, walk_end) = scan(pagemap, at..addresses.end, question, &mut regions)?;
        let found =
            regions.get(..found).ok_or_else(|| io::Error::other("more regions than there is room for"))?;
        found.iter().for_each(&mut take);
        if walk_end <= at {
            return Err(io::Error::other("the scan made no progress"));
        }
        at = walk_end;
    }
    Ok(())
}

/// Whether the kernel has the request: asked about an empty range, which scans nothing. `ENOTTY` is the no.
pub fn is_known(pagemap: &File) -> io::Result<()> {
    scan(pagemap, 0..0, Question::any(PAGE_IS_HUGE), &mut [PageRegion::default()]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Advice, Mapping};

    #[test]
    fn the_question_ends_in_yes_or_in_the_error_that_means_no() {
        let answer = is_known(&File::open("/proc/self/pagemap").unwrap());
        let no = answer.err().map(|error| error.raw_os_error());
        assert!(no.is_none() || no == Some(Some(libc::ENOTTY)), "{no:?}");
        let other = File::open("/proc/self/status").unwrap();
        assert_eq!(is_known(&other).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn base_pages_of_zeros_are_those_that_were_read_and_never_written() {
        let page = rustix::param::page_size() as u64;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        if is_known(&pagemap).is_err() {
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
        zero_base_pages(&pagemap, addresses, |part| found.push(part)).unwrap();
        let at = |from: u64, to: u64| start + from * page..start + to * page;
        assert_eq!(found, [at(2, 5), at(6, 12)]);
        let mut parts = Vec::new();
        zero_parts(&pagemap, map.addresses(), |part| parts.push(part)).unwrap();
        let base = |addresses| ZeroPart { addresses, is_base: true, is_huge: false };
        assert_eq!(parts, [base(at(2, 5)), base(at(6, 12))], "one look tells the same");
    }
}
