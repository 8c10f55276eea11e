//! Physical memory of one process's mappings: runs of frames that are contiguous in memory and in the address
//! space, and the folios of the pages.

use crate::process::Mapping;
use crate::{Bytes, Order, PageSize, Reading};

/// A process's mappings and their physical memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMap {
    /// Process id.
    pub pid: u32,
    /// The kernel's name for it (`comm`).
    pub name: Option<String>,
    /// The base page size.
    pub page_size: PageSize,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// The mappings, by address.
    pub mappings: Vec<MappingBacking>,
    /// Whether the folios are known (kpageflags).
    pub folios_known: Reading<()>,
    /// Changes during the scan.
    pub inconsistency: ScanInconsistency,
    /// Duration of the scan.
    pub read_ns: u64,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingBacking {
    /// The kernel's data of it.
    pub mapping: Mapping,
    /// Its physical memory.
    pub backing: PhysicalBacking,
}

/// Physical memory of some addresses, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhysicalBacking {
    /// Present pages.
    pub present: u64,
    /// Pages in swap.
    pub swapped: u64,
    /// Present pages that map one of the kernel's zero pages; in no run and no folio.
    pub zero_pages: u64,
    /// Present pages whose frame number is hidden from the reader.
    pub hidden_pages: u64,
    /// Pages that changed between two readings; in no run and no folio.
    pub changed_pages: u64,
    /// Runs of frames, by the order that their length rounds down to.
    pub runs_by_order: Vec<u64>,
    /// Pages in these runs.
    pub run_pages: Vec<u64>,
    /// Pages of the longest run.
    pub longest_run_pages: u64,
    /// Pages in blocks of each order that are contiguous and aligned in memory and in the address space: the
    /// pages that one entry of this size could map.
    pub aligned_pages: Vec<u64>,
    /// Pages by the order of their folio, mapped completely or in part.
    pub folio_pages: Vec<u64>,
    /// Pages of slab, drivers or hugetlb, outside of the orders of the page cache: in compound pages of
    /// irregular size.
    pub other_compound_pages: u64,
}

impl PhysicalBacking {
    /// One more than the largest counted order: 1 GiB in pages of 4 KiB, and more.
    pub const ORDER_COUNT: usize = 32;

    /// An empty count.
    pub fn new() -> PhysicalBacking {
        let zero_counts = || vec![0; PhysicalBacking::ORDER_COUNT];
        PhysicalBacking {
            runs_by_order: zero_counts(),
            run_pages: zero_counts(),
            aligned_pages: zero_counts(),
            folio_pages: zero_counts(),
            ..PhysicalBacking::default()
        }
    }

    /// Counts a run of frames from `frame` on, mapped from page number `page` of the address space on.
    pub fn add_run(&mut self, page: u64, frame: u64, pages: u64) {
        let Some(order) = pages.checked_ilog2() else { return };
        let order = (order as usize).min(PhysicalBacking::ORDER_COUNT - 1);
        self.runs_by_order[order] += 1;
        self.run_pages[order] += pages;
        self.longest_run_pages = self.longest_run_pages.max(pages);
        for (order, aligned_pages) in self.aligned_pages.iter_mut().enumerate().take(order + 1) {
            let block = 1u64 << order;
            // Blocks of both must be aligned together.
            if (page ^ frame) & (block - 1) == 0 {
                let first = page.next_multiple_of(block);
                let end = (page + pages) / block * block;
                *aligned_pages += end.saturating_sub(first);
            }
        }
    }

    /// Counts `pages` of a folio of this order.
    pub fn add_folio(&mut self, order: Order, pages: u64) {
        self.folio_pages[order.index().min(PhysicalBacking::ORDER_COUNT - 1)] += pages;
    }

    /// Adds the memory of other addresses.
    pub fn merge(&mut self, other: &PhysicalBacking) {
        let sum = |into: &mut Vec<u64>, from: &[u64]| {
            into.resize(into.len().max(from.len()), 0);
            into.iter_mut().zip(from).for_each(|(sum, count)| *sum += count);
        };
        sum(&mut self.runs_by_order, &other.runs_by_order);
        sum(&mut self.run_pages, &other.run_pages);
        sum(&mut self.aligned_pages, &other.aligned_pages);
        sum(&mut self.folio_pages, &other.folio_pages);
        self.present += other.present;
        self.swapped += other.swapped;
        self.zero_pages += other.zero_pages;
        self.hidden_pages += other.hidden_pages;
        self.changed_pages += other.changed_pages;
        self.other_compound_pages += other.other_compound_pages;
        self.longest_run_pages = self.longest_run_pages.max(other.longest_run_pages);
    }

    /// Pages with a known frame that did not move.
    pub fn known_pages(&self) -> u64 {
        self.run_pages.iter().sum()
    }
}

/// Inconsistency of a scan: memory changes while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanInconsistency {
    /// Mappings that existed before and were absent or changed after.
    pub mappings_changed: u64,
    /// Resident memory before, by smaps.
    pub resident_before: Bytes,
    /// Resident memory after.
    pub resident_after: Option<Bytes>,
    /// The process ended, or its PID was reused, during the scan.
    pub has_ended: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts aligned blocks one by one.
    fn twin(page: u64, frame: u64, pages: u64, order: u32) -> u64 {
        let block = 1u64 << order;
        let starts = (page..page + pages).filter(|start| {
            start.is_multiple_of(block)
                && (frame + start - page).is_multiple_of(block)
                && start + block <= page + pages
        });
        starts.count() as u64 * block
    }

    #[test]
    fn aligned_blocks_are_those_that_one_entry_could_map() {
        for (page, frame, pages) in [
            (0, 0, 16),
            (5, 5, 100),
            (5, 21, 100),
            (5, 6, 100),
            (3, 67, 64),
            (16, 48, 15),
            (0, 512, 1024),
            (7, 7, 1),
        ] {
            let mut behind = PhysicalBacking::new();
            behind.add_run(page, frame, pages);
            for order in 0..12 {
                assert_eq!(
                    behind.aligned_pages[order as usize],
                    twin(page, frame, pages, order),
                    "{page} {frame} {pages} order {order}"
                );
            }
            assert_eq!((behind.known_pages(), behind.longest_run_pages), (pages, pages));
        }
        let mut sum = PhysicalBacking::default();
        let mut one = PhysicalBacking::new();
        one.add_run(0, 8, 8);
        one.add_folio(Order(3), 8);
        sum.merge(&one);
        sum.merge(&one);
        assert_eq!((sum.runs_by_order[3], sum.folio_pages[3], sum.aligned_pages[3]), (2, 16, 16));
    }
}
