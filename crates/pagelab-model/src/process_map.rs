//! What lies behind one process's mappings: runs of frames that are contiguous in memory and in the address
//! space, and the folios that the pages belong to.

use crate::process::Mapping;
use crate::{Bytes, Order, PageSize, Reading};

/// A process's mappings and the physical memory behind them.
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
    pub mappings: Vec<MappingMap>,
    /// Whether the folios could be told (kpageflags).
    pub folios_known: Reading<()>,
    /// What changed while it was read.
    pub tear: Tear,
    /// How long it took.
    pub read_ns: u64,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingMap {
    /// What the kernel says of it.
    pub mapping: Mapping,
    /// What was found behind it.
    pub behind: Behind,
}

/// Physical memory behind some addresses, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Present pages.
    pub present: u64,
    /// Pages in swap.
    pub swapped: u64,
    /// Present pages that show one of the kernel's zero pages; in no run and no folio.
    pub zero: u64,
    /// Present pages whose frame is hidden from the reader.
    pub hidden: u64,
    /// Pages that changed between two looks; in no run and no folio.
    pub moved: u64,
    /// Runs of frames, by the order that their length rounds down to.
    pub runs: Vec<u64>,
    /// Pages in these runs.
    pub run_pages: Vec<u64>,
    /// Pages of the longest run.
    pub longest: u64,
    /// Pages in blocks of each order that are contiguous and aligned in memory and in the address space: what
    /// one entry of this size could map.
    pub aligned_pages: Vec<u64>,
    /// Pages by the order of the folio that they belong to, mapped whole or in part.
    pub folio_pages: Vec<u64>,
    /// Pages that slab, drivers or hugetlb own, by no order of the page cache: in compound pages of odd
    /// shape.
    pub odd: u64,
}

impl Behind {
    /// One more than the largest order that is counted: 1 GiB in pages of 4 KiB, and beyond.
    pub const ORDERS: usize = 32;

    /// Nothing yet.
    pub fn new() -> Behind {
        let none = || vec![0; Behind::ORDERS];
        Behind {
            runs: none(),
            run_pages: none(),
            aligned_pages: none(),
            folio_pages: none(),
            ..Behind::default()
        }
    }

    /// Counts a run of frames from `frame` on, mapped from page number `page` of the address space on.
    pub fn add_run(&mut self, page: u64, frame: u64, pages: u64) {
        let Some(order) = pages.checked_ilog2() else { return };
        let order = (order as usize).min(Behind::ORDERS - 1);
        self.runs[order] += 1;
        self.run_pages[order] += pages;
        self.longest = self.longest.max(pages);
        for (order, aligned) in self.aligned_pages.iter_mut().enumerate().take(order + 1) {
            let block = 1u64 << order;
            // Blocks of the one and of the other must begin together.
            if (page ^ frame) & (block - 1) == 0 {
                let first = page.next_multiple_of(block);
                let end = (page + pages) / block * block;
                *aligned += end.saturating_sub(first);
            }
        }
    }

    /// Counts `pages` of a folio of this order.
    pub fn add_folio(&mut self, order: Order, pages: u64) {
        self.folio_pages[order.index().min(Behind::ORDERS - 1)] += pages;
    }

    /// Adds what is behind other addresses.
    pub fn add(&mut self, other: &Behind) {
        let sum = |into: &mut Vec<u64>, from: &[u64]| {
            into.resize(into.len().max(from.len()), 0);
            into.iter_mut().zip(from).for_each(|(sum, count)| *sum += count);
        };
        sum(&mut self.runs, &other.runs);
        sum(&mut self.run_pages, &other.run_pages);
        sum(&mut self.aligned_pages, &other.aligned_pages);
        sum(&mut self.folio_pages, &other.folio_pages);
        self.present += other.present;
        self.swapped += other.swapped;
        self.zero += other.zero;
        self.hidden += other.hidden;
        self.moved += other.moved;
        self.odd += other.odd;
        self.longest = self.longest.max(other.longest);
    }

    /// Pages whose frame is known and that did not move.
    pub fn known(&self) -> u64 {
        self.run_pages.iter().sum()
    }
}

/// How torn a look is: memory goes on while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tear {
    /// Mappings that were there before and were not, or not so, after.
    pub mappings_changed: u64,
    /// Resident memory before, by smaps.
    pub resident_before: Bytes,
    /// Resident memory after.
    pub resident_after: Option<Bytes>,
    /// The process ended, or its number was given to another, while it was read.
    pub ended: bool,
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
            let mut behind = Behind::new();
            behind.add_run(page, frame, pages);
            for order in 0..12 {
                assert_eq!(
                    behind.aligned_pages[order as usize],
                    twin(page, frame, pages, order),
                    "{page} {frame} {pages} order {order}"
                );
            }
            assert_eq!((behind.known(), behind.longest), (pages, pages));
        }
        let mut sum = Behind::default();
        let mut one = Behind::new();
        one.add_run(0, 8, 8);
        one.add_folio(Order(3), 8);
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.runs[3], sum.folio_pages[3], sum.aligned_pages[3]), (2, 16, 16));
    }
}
