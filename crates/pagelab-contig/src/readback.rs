//! Readback of huge pages: the part of this process's memory that they back, and the number of unsplit ones.
//! A successful request is no proof.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagelab_formats::pagemap::{self, PagemapEntry};
use pagelab_formats::smaps;
use pagelab_host::paths::{KPAGEFLAGS, SELF_PAGEMAP, SELF_SMAPS};
use pagelab_host::root::Root;
use pagelab_model::pageflags::PageFlags;
use pagelab_model::process::Mapping;
use pagelab_model::{Absence, AbsenceReason, Bytes, Order, PageSize, Reading};
use pagelab_sys::pagemap_scan;

/// The better of two ways that works here.
#[derive(Debug)]
pub enum HugeReadback {
    /// The PAGEMAP_SCAN ioctl (6.7).
    PagemapScan(File),
    /// `AnonHugePages` in smaps (2.6.38), which walks the page tables of the whole process each time.
    Smaps,
}

impl HugeReadback {
    /// Tests the ioctl on an empty range of page tables.
    pub fn open() -> HugeReadback {
        match Root::live().open_regular_file(SELF_PAGEMAP) {
            Ok(pagemap) if pagemap_scan::probe_support(&pagemap).is_ok() => {
                HugeReadback::PagemapScan(pagemap)
            }
            _ => HugeReadback::Smaps,
        }
    }

    /// Its name for a report.
    pub fn name(&self) -> &'static str {
        match self {
            HugeReadback::PagemapScan(_) => "PAGEMAP_SCAN",
            HugeReadback::Smaps => "smaps",
        }
    }

    /// Bytes of an own address range that PMD huge pages map.
    pub fn count_huge_bytes(&self, addresses: Range<u64>) -> Reading<Bytes> {
        match self {
            HugeReadback::PagemapScan(pagemap) => pagemap_scan::huge_bytes(pagemap, addresses)
                .map_err(|error| Absence::new("PAGEMAP_SCAN", AbsenceReason::Failed, error.to_string())),
            HugeReadback::Smaps => {
                let text = Root::live().read(SELF_SMAPS)?;
                let malformed = |detail: String| Absence::new(SELF_SMAPS, AbsenceReason::Malformed, detail);
                let mappings =
                    smaps::parse(&text).map_err(|error| malformed(error.message_in_file(SELF_SMAPS)))?;
                sum_anon_huge(&mappings, addresses)
                    .ok_or_else(|| malformed("it does not list the range as mapped".to_owned()))
            }
        }
    }
}

/// The entry of a page of this process.
pub(crate) fn read_pagemap_entry(pagemap: &File, page: u64) -> Reading<PagemapEntry> {
    let mut entry = [0; pagemap::ENTRY_BYTES];
    let read = pagemap.read_exact_at(&mut entry, page * pagemap::ENTRY_BYTES as u64);
    read.map_err(|error| Absence::new(SELF_PAGEMAP, AbsenceReason::Failed, error.to_string()))?;
    Ok(PagemapEntry(u64::from_ne_bytes(entry)))
}

/// Sum of `AnonHugePages` over the mappings in `addresses`; `None` if one is only partly inside, or if parts
/// of the range are not mapped.
fn sum_anon_huge(mappings: &[Mapping], addresses: Range<u64>) -> Option<Bytes> {
    let (mut covered_bytes, mut huge) = (0u64, 0u64);
    for mapping in mappings.iter().filter(|m| m.start < addresses.end && m.end > addresses.start) {
        if mapping.start < addresses.start || mapping.end > addresses.end {
            return None;
        }
        covered_bytes += mapping.end - mapping.start;
        huge = huge.saturating_add(Bytes::from_kib(mapping.fields_kib.get("AnonHugePages")?).0);
    }
    (covered_bytes == addresses.end.saturating_sub(addresses.start)).then_some(Bytes(huge))
}

// Number of unsplit huge pages in an address range: as mapped, and in physical memory.
//
// Freeing one page of a huge page splits the mapping, but not the memory: the huge page stays whole until
// reclaim splits it (deferred split), and nothing becomes free. So the two counts differ.

/// Huge pages of PMD size behind an address range of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsplitThps {
    /// Mapped whole, as one huge page.
    pub pmd_mapped: Reading<u64>,
    /// Whole in physical memory, however they are mapped.
    pub unsplit_folios: Reading<u64>,
}

/// Reads both counts back. `addresses` start at a multiple of the huge page size.
pub fn count_unsplit_thps(
    root: &Root,
    addresses: Range<u64>,
    page_size: PageSize,
    pmd_order: Order,
) -> UnsplitThps {
    let huge = page_size.block_bytes(pmd_order).0.max(1);
    let pmd_mapped = HugeReadback::open().count_huge_bytes(addresses.clone()).map(|bytes| bytes.0 / huge);
    let count_in_memory = || {
        let map = root.open_regular_file(SELF_PAGEMAP)?;
        let flags = root.open_regular_file(KPAGEFLAGS)?;
        count_unsplit_folios(&map, &flags, addresses, page_size, pmd_order).map_err(|error| {
            Absence::new(KPAGEFLAGS, AbsenceReason::Failed, error.to_string()).with_hint("run as root")
        })
    };
    UnsplitThps { pmd_mapped, unsplit_folios: count_in_memory() }
}

/// Regions whose first page belongs to an unsplit huge page in physical memory.
fn count_unsplit_folios(
    pagemap: &File,
    kpageflags: &File,
    addresses: Range<u64>,
    page_size: PageSize,
    pmd_order: Order,
) -> std::io::Result<u64> {
    let entry = pagemap::ENTRY_BYTES as u64;
    let pages = pmd_order.to_pages().0;
    let huge = page_size.block_bytes(pmd_order).0.max(1);
    let mut entries = vec![0; usize::try_from(pages * entry).unwrap_or(0)];
    let flags_of = |pfn: u64| -> std::io::Result<PageFlags> {
        let mut word = [0; 8];
        kpageflags.read_exact_at(&mut word, pfn.saturating_mul(entry))?;
        Ok(PageFlags(u64::from_ne_bytes(word)))
    };
    let mut unsplit = 0;
    let mut at = addresses.start;
    while at.saturating_add(huge) <= addresses.end {
        pagemap.read_exact_at(&mut entries, at / page_size.bytes() * entry)?;
        let mut page_entries = pagemap::entries(&entries).map_err(std::io::Error::other)?;
        if let Some(present) = page_entries.find(|entry| entry.is_present()) {
            // The kernel hides frames from unprivileged readers.
            let pfn = present.pfn().ok_or(std::io::ErrorKind::PermissionDenied)?;
            let head = pfn.0 - pfn.0 % pages;
            let (first, last) = (flags_of(head)?, flags_of(head + pages - 1)?);
            let is_head = first.has_any(PageFlags::THP) && first.has_any(PageFlags::COMPOUND_HEAD);
            unsplit += u64::from(is_head && last.has_any(PageFlags::COMPOUND_TAIL));
        }
        at += huge;
    }
    Ok(unsplit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
AnonHugePages:      2048 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac nh
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
";

    #[test]
    fn smaps_counts_only_the_range_and_refuses_merged_mappings() {
        let cases = [
            (0x7f00_0000_0000..0x7f00_0040_0000, Some(2 << 20)),
            (0x7f00_0000_0000..0x7f00_0080_0000, Some(6 << 20)),
            (0x7f00_0000_0000..0x7f00_0060_0000, None),
            (0x7f00_0000_1000..0x7f00_0040_0000, None),
            (0x7f00_0080_0000..0x7f00_00a0_0000, None),
        ];
        let mappings = smaps::parse(SMAPS).unwrap();
        for (range, expected) in cases {
            assert_eq!(sum_anon_huge(&mappings, range.clone()), expected.map(Bytes), "{range:x?}");
        }
    }
}
