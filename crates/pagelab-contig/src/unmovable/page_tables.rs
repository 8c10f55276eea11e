//! Page tables: a page that is read in each PMD range of a mapping that was never written takes one page for
//! its table and none for data, since all of them map the zero page.

use std::io;

use pagelab_model::{Bytes, PageSize};
use pagelab_sys::map::{Advice, Mapping};

use super::Source;

/// Mappings that are read at one page in each PMD range.
#[derive(Debug)]
pub struct PageTables {
    /// A page and the range that one page table maps, in bytes.
    page: u64,
    range: u64,
    /// Of so many page tables one will be kept. Page tables go with the whole mapping, so that one stands in
    /// a mapping of its own.
    stride: u64,
    /// Each with its page tables.
    held: Vec<(Mapping, u64)>,
}

impl PageTables {
    pub fn new(page_size: PageSize, stride: u64) -> PageTables {
        let range = page_size.block(page_size.usual_pmd_order()).0;
        PageTables { page: page_size.bytes(), range, stride, held: Vec::new() }
    }

    fn add(&mut self, ranges: u64) -> io::Result<()> {
        let mut mapping = Mapping::anonymous(Bytes(ranges * self.range), Bytes(self.range))?;
        let len = mapping.len().0;
        match mapping.advise(0..len, Advice::NoHugePage) {
            // A kernel without transparent huge pages has no huge zero page to map either.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            done => done?,
        }
        for range in 0..ranges {
            let at = range * self.range;
            mapping.touch_for_reading(at..at + self.page)?;
        }
        self.held.push((mapping, ranges));
        Ok(())
    }
}

impl Source for PageTables {
    fn grow(&mut self, pages: u64) -> io::Result<u64> {
        let mut taken = 0;
        while taken < pages {
            if self.stride > 1 {
                self.add(self.stride - 1)?;
            }
            self.add(1)?;
            taken += self.stride;
        }
        Ok(taken)
    }

    fn thin(&mut self) -> io::Result<u64> {
        self.held.retain(|(_, ranges)| *ranges == 1);
        Ok(self.held.len() as u64)
    }
}
