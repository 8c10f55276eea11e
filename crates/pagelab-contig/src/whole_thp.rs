//! How many huge pages behind an address range are still whole: as mapped, and in physical memory.
//!
//! A page given back out of a huge page splits the mapping, but not the memory: the huge page stays whole
//! until reclaim splits it (deferred split), and nothing becomes free. So the two counts differ.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagelab_formats::pagemap;
use pagelab_host::paths::{KPAGEFLAGS, SELF_PAGEMAP};
use pagelab_host::root::Root;
use pagelab_model::pageflags::PageFlags;
use pagelab_model::{Absence, AbsentWhy, Order, PageSize, Reading};

use crate::readback::ReadBack;

/// Huge pages of PMD size behind an address range of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeThps {
    /// Mapped whole, as one huge page.
    pub mapped: Reading<u64>,
    /// Whole in physical memory, however they are mapped.
    pub in_memory: Reading<u64>,
}

/// Reads both counts back. `addresses` start at a multiple of the huge page size.
pub fn count(root: &Root, addresses: Range<u64>, page_size: PageSize, pmd_order: Order) -> WholeThps {
    let huge = page_size.block(pmd_order).0.max(1);
    let failed = |source: &str, error: String| Absence::new(source, AbsentWhy::Failed, error);
    let mapped = ReadBack::open().huge_bytes(addresses.clone()).map(|bytes| bytes.0 / huge);
    let in_memory =
        root.file(SELF_PAGEMAP).and_then(|map| Ok((map, root.file(KPAGEFLAGS)?))).and_then(|(map, flags)| {
            folios(&map, &flags, addresses, page_size, pmd_order)
                .map_err(|error| failed(KPAGEFLAGS, error.to_string()).or("run as root"))
        });
    WholeThps { mapped, in_memory }
}

/// Regions whose first page in memory belongs to a huge page that is whole.
fn folios(
    map: &File,
    flags: &File,
    addresses: Range<u64>,
    page_size: PageSize,
    pmd_order: Order,
) -> std::io::Result<u64> {
    let entry = pagemap::ENTRY_BYTES as u64;
    let pages = pmd_order.pages().0;
    let huge = page_size.block(pmd_order).0.max(1);
    let mut entries = vec![0; usize::try_from(pages * entry).unwrap_or(0)];
    let flags_of = |pfn: u64| -> std::io::Result<PageFlags> {
        let mut word = [0; 8];
        flags.read_exact_at(&mut word, pfn.saturating_mul(entry))?;
        Ok(PageFlags(u64::from_ne_bytes(word)))
    };
    let mut whole = 0;
    let mut at = addresses.start;
    while at.saturating_add(huge) <= addresses.end {
        map.read_exact_at(&mut entries, at / page_size.bytes() * entry)?;
        let mut seen = pagemap::entries(&entries).map_err(std::io::Error::other)?;
        if let Some(present) = seen.find(|entry| entry.is_present()) {
            // The kernel hides frames from whoever may not know them.
            let pfn = present.frame().ok_or(std::io::ErrorKind::PermissionDenied)?;
            let head = pfn.0 - pfn.0 % pages;
            let (first, last) = (flags_of(head)?, flags_of(head + pages - 1)?);
            let is_head = first.has(PageFlags::THP) && first.has(PageFlags::COMPOUND_HEAD);
            whole += u64::from(is_head && last.has(PageFlags::COMPOUND_TAIL));
        }
        at += huge;
    }
    Ok(whole)
}
