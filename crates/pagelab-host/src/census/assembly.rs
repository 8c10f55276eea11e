//! Assembly of the census from counted blocks: partial blocks are joined, and deferred memory and holes are
//! separated from unknown pages.

use pagelab_formats::kpageflags::ScanGeometry;
use pagelab_model::{
    Census, CensusZone, Coverage, FreeAreas, PageClass, PageblockCounts, Pfn, SamplePlan, UnlistedFree,
    ZoneEntry, Zoneinfo,
};

use super::frames::FrameMap;
use super::scan::ClusterSample;
use super::scan::{ScanResult, SegmentBlock};

/// Inputs of the assembly besides the counts.
pub(super) struct CensusAssembly<'a> {
    /// As read before the scan.
    pub zoneinfo: &'a Zoneinfo,
    pub frames: &'a FrameMap,
    pub geometry: ScanGeometry,
    pub off_lists: UnlistedFree,
}

/// One block of a zone.
struct ZoneBlock {
    /// Frame number divided by the block size.
    number: u64,
    counts: PageblockCounts,
    is_one_folio: bool,
    /// Frames inside of memory, by the memory map.
    memory_pages: u32,
    /// Reserved frames outside of memory, such as those of the firmware: the kernel has a page structure for
    /// them, and does not count them as present.
    reserved_outside: u32,
}

impl CensusAssembly<'_> {
    pub fn assemble_census(
        &self,
        scanned: ScanResult,
        sample: Option<ClusterSample>,
        zoneinfo_after: &Zoneinfo,
        scan_ns: u64,
    ) -> Census {
        let mut zones: Vec<CensusZone> = Vec::new();
        let mut totals = FreeAreas::new(vec![0; self.orders()]);
        let mut by_zone: Vec<Vec<&SegmentBlock>> = vec![Vec::new(); self.zoneinfo.zones.len()];
        for tally in &scanned.blocks {
            by_zone[self.frames.segments[tally.segment].zone].push(tally);
        }
        for (index, info) in self.zoneinfo.zones.iter().enumerate() {
            if !self.frames.segments.iter().any(|segment| segment.zone == index) {
                continue;
            }
            let per_cpu_after = zoneinfo_after.zone(&info.key).map(ZoneEntry::count_pcp_pages);
            let mut zone = self.assemble_zone(index, &by_zone[index], sample.as_ref());
            zone.per_cpu = Some(info.count_pcp_pages()).max(per_cpu_after);
            if sample.is_none() {
                zone.free_blocks = scanned.free_blocks.get(index).cloned().and_then(FreeAreas::new);
            }
            if let (Some(sum), Some(free)) = (&mut totals, &zone.free_blocks) {
                sum.counts_mut().iter_mut().zip(free.counts()).for_each(|(sum, count)| *sum += count);
            }
            zones.push(zone);
        }
        zones.sort_by_key(|zone| zone.first);
        let coverage = sample.as_ref().map_or(Coverage::Whole, |draw| {
            Coverage::Sample(SamplePlan {
                seed: draw.seed,
                blocks: zones.iter().map(|zone| zone.blocks.len() as u64).sum(),
                blocks_total: zones.iter().map(|zone| zone.blocks_total).sum(),
            })
        });
        let free_blocks = if sample.is_none() { totals } else { None };
        Census { pageblock_order: self.geometry.pageblock_order, zones, coverage, free_blocks, scan_ns }
    }

    fn orders(&self) -> usize {
        self.geometry.orders.clamp(1, FreeAreas::ORDERS_MAX)
    }

    fn block_pages(&self) -> u64 {
        self.geometry.pageblock_order.to_pages().0
    }

    fn assemble_zone(
        &self,
        index: usize,
        tallies: &[&SegmentBlock],
        sample: Option<&ClusterSample>,
    ) -> CensusZone {
        let info = &self.zoneinfo.zones[index];
        let mut blocks = self.merge_blocks(tallies);
        let (mut total, mut known) = (0, 1);
        if let Some(draw) = sample {
            let per_cluster = draw.blocks_per_cluster(self.geometry.pageblock_order);
            total = draw.clusters_total(index).saturating_mul(per_cluster);
            known = draw.clusters_read(index).saturating_mul(per_cluster).max(1);
        }
        let scale = if sample.is_some() { total as f64 / known as f64 } else { 1.0 };
        let deferred = self.mark_deferred(index, info, &mut blocks, scale);
        if sample.is_none() {
            if !self.frames.holes_known {
                self.mark_holes(index, info, &mut blocks, deferred);
            }
            let pages = self.block_pages();
            blocks.retain(|block| {
                block.memory_pages > 0 && u64::from(block.counts.pages_of_class(PageClass::Hole)) < pages
            });
            total = blocks.len() as u64;
        }
        let first = info.start.map_or(0, |start| start.0) >> self.geometry.pageblock_order.0;
        CensusZone {
            key: info.key.clone(),
            first: Pfn(first << self.geometry.pageblock_order.0),
            blocks_total: total,
            one_folio: blocks
                .iter()
                .filter(|block| block.is_one_folio)
                .map(|block| block.number - first)
                .collect(),
            blocks: blocks.into_iter().map(|block| (block.number - first, block.counts)).collect(),
            free_blocks: None,
            per_cpu: None,
        }
    }

    /// Whole blocks of one zone, ascending. A block of two segments is joined, and frames in no segment are
    /// holes.
    fn merge_blocks(&self, tallies: &[&SegmentBlock]) -> Vec<ZoneBlock> {
        let mut blocks: Vec<ZoneBlock> = Vec::new();
        for tally in tallies {
            let counts = tally.block.counts;
            let (memory_pages, reserved_outside) =
                match self.frames.segments[tally.segment].unflagged_class == PageClass::Hole {
                    true => (0, counts.pages_of_class(PageClass::Reserved)),
                    false => (counts.total(), 0),
                };
            match blocks.last_mut() {
                Some(last) if last.number == tally.block.number => {
                    last.counts.0.iter_mut().zip(counts.0).for_each(|(sum, count)| *sum += count);
                    last.memory_pages += memory_pages;
                    last.reserved_outside += reserved_outside;
                }
                _ => blocks.push(ZoneBlock {
                    number: tally.block.number,
                    counts,
                    is_one_folio: tally.block.is_single_folio,
                    memory_pages,
                    reserved_outside,
                }),
            }
        }
        for block in &mut blocks {
            let missing = self.block_pages().saturating_sub(u64::from(block.counts.total()));
            block.counts.0[PageClass::Hole.index()] += missing as u32;
            block.is_one_folio &= missing == 0;
        }
        blocks
    }

    /// Marks the zone's deferred blocks and returns the number of their pages.
    ///
    /// Deferred memory has pages without flags, like unknown pages. It is at the end of its zone and not
    /// managed. So it is at most `present - managed` less the reserved pages, counted from the end, and
    /// within that the trailing run of blocks in which no page has a flag.
    ///
    /// The run also contains pages reserved at boot, such as the memory map itself, whose flags are set as
    /// late. Boot memory is allocated from the top down (mm/memblock.c), so it is the run's end: what
    /// [`UnlistedFree::Pages`] does not explain is reserved. Without these two counts the run stays unknown.
    /// `scale` is the zone's size divided by the part that was read.
    fn mark_deferred(&self, index: usize, info: &ZoneEntry, blocks: &mut [ZoneBlock], scale: f64) -> u64 {
        let (Some(present), Some(managed)) = (info.present, info.managed) else { return 0 };
        let outside: u64 = blocks.iter().map(|block| u64::from(block.reserved_outside)).sum();
        let reserved = count_pages(blocks, PageClass::Reserved).saturating_sub(outside);
        let reserved = (reserved as f64 * scale) as u64;
        let unaccounted = present.0.saturating_sub(managed.0).saturating_sub(reserved);
        if unaccounted < self.block_pages() {
            return 0;
        }
        let Some(first_deferred) = self.frame_from_end(index, unaccounted) else { return 0 };
        let in_run = |block: &&ZoneBlock| {
            let [unknown, hole] =
                [PageClass::Unknown, PageClass::Hole].map(|class| block.counts.pages_of_class(class));
            block.number >= first_deferred >> self.geometry.pageblock_order.0
                && unknown + hole + block.reserved_outside == block.counts.total()
        };
        let length = blocks.iter().rev().take_while(in_run).count();
        let start = blocks.len() - length;
        let free = match self.off_lists {
            UnlistedFree::Pages(pages) => (pages as f64 / scale) as u64,
            UnlistedFree::None => u64::MAX,
            UnlistedFree::Unknown => return 0,
        };
        let mut deferred = 0;
        for ZoneBlock { counts, .. } in &mut blocks[start..] {
            let pages = std::mem::take(&mut counts.0[PageClass::Unknown.index()]);
            let is_free = deferred + u64::from(pages) <= free;
            deferred += if is_free { u64::from(pages) } else { 0 };
            let class = if is_free { PageClass::Deferred } else { PageClass::Reserved };
            counts.0[class.index()] += pages;
        }
        deferred
    }

    /// The frame of the zone from which it has `pages` of memory.
    fn frame_from_end(&self, index: usize, mut pages: u64) -> Option<u64> {
        let memory = |zero| zero == PageClass::Unknown;
        let own = self.frames.segments.iter().rev().filter(|s| s.zone == index && memory(s.unflagged_class));
        let mut first = None;
        for segment in own {
            let length = segment.end - segment.first;
            if pages <= length {
                return Some(segment.end - pages);
            }
            pages -= length;
            first = Some(segment.first);
        }
        first
    }

    /// If the memory ranges are unknown and the kernel prints 0 for a hole, holes are the longest runs of
    /// blocks without any flag, up to `spanned - present`. Frames outside of memory that are reserved have
    /// flags and need no run.
    fn mark_holes(&self, index: usize, info: &ZoneEntry, blocks: &mut [ZoneBlock], deferred: u64) {
        let (Some(spanned), Some(present), Some(managed)) = (info.spanned, info.present, info.managed) else {
            return;
        };
        let zone_segments = self.frames.segments.iter().filter(|segment| segment.zone == index);
        let scanned: u64 = zone_segments.map(|segment| segment.end - segment.first).sum();
        let memory_reserved = present.0.saturating_sub(managed.0).saturating_sub(deferred);
        let hole_reserved = count_pages(blocks, PageClass::Reserved).saturating_sub(memory_reserved);
        let counted_holes = count_pages(blocks, PageClass::Hole).saturating_sub(self.edge_pages(info));
        let mut budget = spanned.0.saturating_sub(present.0);
        for known in [spanned.0.saturating_sub(scanned), hole_reserved, counted_holes] {
            budget = budget.saturating_sub(known);
        }
        let pages = self.block_pages();
        let is_empty =
            |block: &ZoneBlock| u64::from(block.counts.pages_of_class(PageClass::Unknown)) == pages;
        let mut runs: Vec<&mut [ZoneBlock]> =
            blocks.chunk_by_mut(|a, b| is_empty(a) && is_empty(b) && a.number + 1 == b.number).collect();
        runs.retain(|run| is_empty(&run[0]));
        runs.sort_by_key(|run| std::cmp::Reverse(run.len()));
        for run in runs {
            let length = run.len() as u64 * pages;
            if length > budget {
                continue;
            }
            budget -= length;
            for ZoneBlock { counts, .. } in run {
                *counts = PageblockCounts::default();
                counts.0[PageClass::Hole.index()] = pages as u32;
            }
        }
    }

    /// Frames of the zone's first and last block outside the zone.
    fn edge_pages(&self, info: &ZoneEntry) -> u64 {
        let pages = self.block_pages();
        let start = info.start.map_or(0, |start| start.0);
        let end = info.end().map_or(0, |end| end.0);
        start % pages + end.checked_next_multiple_of(pages).map_or(0, |up| up - end)
    }
}

fn count_pages(blocks: &[ZoneBlock], class: PageClass) -> u64 {
    blocks.iter().map(|block| u64::from(block.counts.pages_of_class(class))).sum()
}
