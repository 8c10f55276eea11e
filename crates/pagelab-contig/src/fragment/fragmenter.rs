//! Memory of a fragmentation run: what it has allocated, and the few pages that it keeps.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_metrics::fragment_plan::KeepPattern;
use pagelab_model::{Absence, AbsenceReason, Bytes, NodeId, Order, PageSize, Pfn, Reading, ZoneEntry};
use pagelab_sys::mapping::{Advice, Mapping};

use super::inputs::FillMethod;
use crate::readback::{HugeReadback, read_pagemap_entry};

/// Address space is mapped in pieces of this size, or of one unit if that is larger.
const CHUNK_BYTES: u64 = 1 << 30;

/// Memory of units 0, 1, 2 …; the first [`Fragmenter::fragmented_units`] are fragmented: all but their kept
/// pages is freed. Everything is released when it is dropped.
#[derive(Debug)]
pub struct Fragmenter {
    fill_method: FillMethod,
    keep_pattern: KeepPattern,
    seed: u64,
    page_size: PageSize,
    node: Option<NodeId>,
    readback: HugeReadback,
    chunks: Vec<Mapping>,
    units_per_chunk: u64,
    fragmented_units: u64,
    /// Units that are complete or fragmented; with huge pages always `units`.
    filled_units: u64,
    is_locked: bool,
}

impl Fragmenter {
    /// No memory is allocated yet. With a node, all memory comes from it.
    pub fn new(
        fill_method: FillMethod,
        keep_pattern: KeepPattern,
        seed: u64,
        page_size: PageSize,
        node: Option<NodeId>,
    ) -> Fragmenter {
        let unit = page_size.block_bytes(keep_pattern.unit_order).0;
        Fragmenter {
            fill_method,
            keep_pattern,
            seed,
            page_size,
            node,
            readback: HugeReadback::open(),
            chunks: Vec::new(),
            units_per_chunk: (CHUNK_BYTES / unit).max(1),
            fragmented_units: 0,
            filled_units: 0,
            is_locked: false,
        }
    }

    /// Number of fragmented units.
    pub fn fragmented_units(&self) -> u64 {
        self.fragmented_units
    }

    /// Number of allocated units, fragmented or complete.
    pub fn filled_units(&self) -> u64 {
        self.filled_units
    }

    /// Method of allocation.
    pub fn fill_method(&self) -> FillMethod {
        self.fill_method
    }

    /// Which pages are kept.
    pub fn keep_pattern(&self) -> KeepPattern {
        self.keep_pattern
    }

    /// Pages that are kept.
    pub fn count_kept_pages(&self) -> u64 {
        self.fragmented_units.saturating_mul(self.keep_pattern.kept_pages_per_unit())
    }

    fn unit_bytes(&self) -> u64 {
        self.page_size.block_bytes(self.keep_pattern.unit_order).0
    }

    /// The piece that a unit is in, mapped if it is not yet, and the unit's bytes within it.
    fn locate_unit(&mut self, unit: u64) -> io::Result<(usize, Range<u64>)> {
        let bytes = self.unit_bytes();
        let chunk = usize::try_from(unit / self.units_per_chunk).map_err(|_| io::ErrorKind::OutOfMemory)?;
        while self.chunks.len() <= chunk {
            let mut map = Mapping::anonymous(Bytes(self.units_per_chunk * bytes), Bytes(bytes))?;
            if let Some(node) = self.node {
                map.bind_to_node(node.0)?;
            }
            self.chunks.push(map);
        }
        let start = unit % self.units_per_chunk * bytes;
        Ok((chunk, start..start + bytes))
    }

    /// Allocates base pages for this number of further units, and keeps all of them.
    pub fn fill_units(&mut self, units: u64) -> io::Result<()> {
        for unit in self.filled_units..self.filled_units.saturating_add(units) {
            let (chunk, range) = self.locate_unit(unit)?;
            let map = &mut self.chunks[chunk];
            // Also keeps khugepaged away.
            ignore_unsupported(map.advise(range.clone(), Advice::NoHugePage))?;
            map.touch_for_writing(range)?;
            self.filled_units = unit + 1;
        }
        Ok(())
    }

    /// Fragments up to this many more units, and returns their number. Fewer are fragmented if no huge page
    /// is available or, with base pages, if no more are filled.
    pub fn fragment_units(&mut self, units: u64) -> io::Result<u64> {
        self.unlock_kept_pages()?;
        let before = self.fragmented_units;
        match self.fill_method {
            FillMethod::BasePages => {
                for unit in before..before.saturating_add(units).min(self.filled_units) {
                    self.free_unkept_pages(unit)?;
                    self.fragmented_units = unit + 1;
                }
            }
            FillMethod::HugePages => {
                for unit in before..before.saturating_add(units) {
                    if !self.allocate_huge_page(unit)? {
                        break;
                    }
                    self.free_unkept_pages(unit)?;
                    self.split_unit(unit)?;
                    self.fragmented_units = unit + 1;
                    self.filled_units = self.fragmented_units;
                }
            }
        }
        Ok(self.fragmented_units - before)
    }

    /// Writes to the kept pages of a unit, so that one huge page is allocated for all of them. `false`: no
    /// huge page was allocated, and nothing of the unit is held.
    fn allocate_huge_page(&mut self, unit: u64) -> io::Result<bool> {
        let (chunk, range) = self.locate_unit(unit)?;
        let words_per_page = self.page_size.bytes() / size_of::<u64>() as u64;
        let first = range.start / size_of::<u64>() as u64;
        let map = &mut self.chunks[chunk];
        map.advise(range.clone(), Advice::HugePage)?;
        for page in self.keep_pattern.kept_pages(self.seed, unit) {
            let word_index = (first + page * words_per_page) as usize;
            // A page that contains only zeros would be replaced by the shared zero page at the split
            // (mm/migrate.c, `try_to_map_unused_to_zeropage`, 6.13), and equal pages might be merged.
            map.words_mut()[word_index] = (unit << 16) | (page << 1) | 1;
        }
        let start = map.addresses().start;
        let huge = self.readback.count_huge_bytes(start + range.start..start + range.end);
        let huge_bytes = huge.map_err(|absence| io::Error::other(absence.reason().to_owned()))?;
        if huge_bytes.0 == range.end - range.start {
            return Ok(true);
        }
        map.advise(range, Advice::DontNeed)?;
        Ok(false)
    }

    /// Gives the pages between the kept ones back.
    fn free_unkept_pages(&mut self, unit: u64) -> io::Result<()> {
        let (chunk, range) = self.locate_unit(unit)?;
        let page = self.page_size.bytes();
        let map = &mut self.chunks[chunk];
        let mut from = range.start;
        for kept in self.keep_pattern.kept_pages(self.seed, unit) {
            let at = range.start + kept * page;
            if at > from {
                map.advise(from..at, Advice::DontNeed)?;
            }
            from = at + page;
        }
        if range.end > from {
            map.advise(from..range.end, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Splits the rest of a huge page; until then the kernel keeps the unmapped pages (docs/fragment.md has
    /// the alternatives and their costs). Then keeps khugepaged from making it whole again.
    fn split_unit(&mut self, unit: u64) -> io::Result<()> {
        let (chunk, range) = self.locate_unit(unit)?;
        let page = self.page_size.bytes();
        let map = &mut self.chunks[chunk];
        if let Some(kept) = self.keep_pattern.kept_pages(self.seed, unit).next() {
            let at = range.start + kept * page;
            map.advise(at..at + page, Advice::Cold)?;
        }
        map.advise(range, Advice::NoHugePage)
    }

    /// Frees this many fragmented units completely, the last ones first.
    pub fn release_units(&mut self, units: u64) -> io::Result<()> {
        self.unlock_kept_pages()?;
        self.release_unfragmented()?;
        for _ in 0..units.min(self.fragmented_units) {
            let (chunk, range) = self.locate_unit(self.fragmented_units - 1)?;
            self.chunks[chunk].advise(range, Advice::DontNeed)?;
            self.fragmented_units -= 1;
            self.filled_units = self.fragmented_units;
        }
        Ok(())
    }

    /// Frees units that are filled but not fragmented.
    pub fn release_unfragmented(&mut self) -> io::Result<()> {
        while self.filled_units > self.fragmented_units {
            let (chunk, range) = self.locate_unit(self.filled_units - 1)?;
            self.chunks[chunk].advise(range, Advice::DontNeed)?;
            self.filled_units -= 1;
        }
        Ok(())
    }

    /// Frees everything.
    pub fn release_all(&mut self) {
        self.chunks.clear();
        (self.fragmented_units, self.filled_units, self.is_locked) = (0, 0, false);
    }

    /// Keeps the kept pages from being swapped out.
    pub fn lock_kept_pages(&mut self) -> io::Result<()> {
        self.chunks.iter_mut().try_for_each(Mapping::lock_present)?;
        self.is_locked = true;
        Ok(())
    }

    fn unlock_kept_pages(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_locked) {
            self.chunks.iter_mut().try_for_each(Mapping::unlock)?;
        }
        Ok(())
    }

    /// Address of a fragmented unit, and its kept pages.
    pub fn kept_pages_of_unit(&self, unit: u64) -> Option<(u64, Vec<u64>)> {
        let map = self.chunks.get(usize::try_from(unit / self.units_per_chunk).ok()?)?;
        let start = map.addresses().start + unit % self.units_per_chunk * self.unit_bytes();
        (unit < self.fragmented_units)
            .then(|| (start, self.keep_pattern.kept_pages(self.seed, unit).collect()))
    }
}

/// A kernel without transparent huge pages does not know the advice, and needs none.
pub(crate) fn ignore_unsupported(advised: io::Result<()>) -> io::Result<()> {
    match advised {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Maximum of sampled units; larger runs are sampled evenly.
const SAMPLED_UNITS_MAX: u64 = 16 << 10;

/// Page-table entries of the kept pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptPageCheck {
    /// Kept pages that were checked.
    pub checked: u64,
    /// Of these, pages that are there.
    pub present: u64,
    /// Of these, pages in the zone in question.
    pub in_zone: u64,
    /// Blocks of the order in question, in that zone, that hold at least one of them.
    pub blocks_held: u64,
    /// Minimum number of blocks that the zone's kept pages occupy at their original places.
    pub blocks_planned: u64,
}

/// Share of blocks that may be missing before the kept pages count as moved together: one in this number.
const MISSING_BLOCKS_DIVISOR: u64 = 20;

impl KeptPageCheck {
    /// Whether compaction moved kept pages together into fewer blocks. The remaining fragmentation is then
    /// accidental, and the process does not hold it.
    pub fn has_moved(&self) -> bool {
        self.blocks_held.saturating_add(self.blocks_planned / MISSING_BLOCKS_DIVISOR) < self.blocks_planned
    }
}

/// One page is kept in each group, so that a block of `order` holds at most as many as it has groups.
fn count_planned_blocks(kept_pages: u64, shape: KeepPattern, order: Order) -> u64 {
    kept_pages.div_ceil(
        1u64.checked_shl(u32::from(order.0.saturating_sub(shape.group_order.0))).unwrap_or(u64::MAX),
    )
}

/// Looks the kept pages up. Frame numbers need CAP_SYS_ADMIN (4.2).
pub fn check_kept_pages(
    fragmenter: &Fragmenter,
    zone: &ZoneEntry,
    order: Order,
    page_size: PageSize,
) -> Reading<KeptPageCheck> {
    let pagemap = Root::live().open_regular_file(paths::SELF_PAGEMAP)?;
    let zone_span = zone.start.zip(zone.end());
    let mut check = KeptPageCheck::default();
    let mut blocks = BTreeSet::new();
    let units = fragmenter.fragmented_units();
    let stride = units.div_ceil(SAMPLED_UNITS_MAX).max(1);
    for unit in (0..units).step_by(usize::try_from(stride).unwrap_or(usize::MAX)) {
        let Some((address, kept)) = fragmenter.kept_pages_of_unit(unit) else { continue };
        for page in kept {
            let entry = read_pagemap_entry(&pagemap, (address >> page_size.shift()) + page)?;
            check.checked += 1;
            check.present += u64::from(entry.is_present());
            if entry.is_present() && entry.pfn().is_none() {
                let why = Absence::new(paths::SELF_PAGEMAP, AbsenceReason::NotPermitted, "");
                return Err(why.with_hint("run as root, or with CAP_SYS_ADMIN"));
            }
            let in_zone = |frame: &Pfn| zone_span.is_none_or(|(start, end)| (start..end).contains(frame));
            if let Some(frame) = entry.pfn().filter(in_zone) {
                check.in_zone += 1;
                blocks.insert(frame.0 >> order.0.min(63));
            }
        }
    }
    check.blocks_held = blocks.len() as u64;
    check.blocks_planned = count_planned_blocks(check.in_zone, fragmenter.keep_pattern(), order);
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_pages_that_lie_together_do_not_count_as_held() {
        let huge = Order(9);
        // Kept pages, order of the requests, order of the target, blocks seen; blocks planned, moved.
        let cases = [
            (647, KeepPattern::for_aligned_units(huge, huge), huge, 20, 647, true),
            (647, KeepPattern::for_aligned_units(huge, huge), huge, 647, 647, false),
            (1000, KeepPattern::for_aligned_units(huge, huge), huge, 950, 1000, false),
            (1000, KeepPattern::for_aligned_units(huge, huge), huge, 949, 1000, true),
            // Two huge pages may share a block of the order above.
            (1000, KeepPattern::for_aligned_units(huge, Order(10)), Order(10), 500, 500, false),
            // 32 pages of each huge page for blocks of 16 pages.
            (3200, KeepPattern::for_aligned_units(huge, Order(4)), Order(4), 3200, 3200, false),
            // Of base pages, two in each block.
            (1000, KeepPattern::for_unaligned_units(huge, huge), huge, 500, 500, false),
            (1000, KeepPattern::for_unaligned_units(huge, huge), huge, 100, 500, true),
            (0, KeepPattern::for_aligned_units(huge, huge), huge, 0, 0, false),
            (7, KeepPattern::for_aligned_units(huge, huge), huge, 7, 7, false),
        ];
        for (kept, shape, order, blocks, planned, moved) in cases {
            let verified = KeptPageCheck {
                blocks_held: blocks,
                blocks_planned: count_planned_blocks(kept, shape, order),
                ..KeptPageCheck::default()
            };
            assert_eq!(
                (verified.blocks_planned, verified.has_moved()),
                (planned, moved),
                "{kept} {shape:?} {order:?}"
            );
        }
    }
}
