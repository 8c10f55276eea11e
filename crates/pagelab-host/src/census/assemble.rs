//! From counted blocks to the census: blocks made whole, deferred memory and holes told from unknown pages.

use pagelab_formats::kpageflags::Shape;
use pagelab_model::{
    BlockCounts, Census, CensusZone, Coverage, FreeAreas, OffLists, PageClass, Pfn, SamplePlan, ZoneInfo,
    Zoneinfo,
};

use super::draw::Draw;
use super::frames::Frames;
use super::scan::{Scanned, Tally};

/// What the counts are put together with.
pub(super) struct Assembly<'a> {
    /// As read before the scan.
    pub zoneinfo: &'a Zoneinfo,
    pub frames: &'a Frames,
    pub shape: Shape,
    pub off_lists: OffLists,
}

/// One block of a zone: frame number divided by the block size, counts, whether it is one folio.
type ZoneBlock = (u64, BlockCounts, bool);

impl Assembly<'_> {
    pub fn census(
        &self,
        scanned: Scanned,
        draw: Option<Draw>,
        zoneinfo_after: &Zoneinfo,
        scan_ns: u64,
    ) -> Census {
        let mut zones: Vec<CensusZone> = Vec::new();
        let mut sum = FreeAreas::new(vec![0; self.orders()]);
        let mut by_zone: Vec<Vec<&Tally>> = vec![Vec::new(); self.zoneinfo.zones.len()];
        for tally in &scanned.tallies {
            by_zone[self.frames.segments[tally.segment].zone].push(tally);
        }
        for (index, info) in self.zoneinfo.zones.iter().enumerate() {
            if !self.frames.segments.iter().any(|segment| segment.zone == index) {
                continue;
            }
            let per_cpu_after = zoneinfo_after.zone(&info.key).map(ZoneInfo::pages_per_cpu);
            let mut zone = self.zone(index, &by_zone[index], draw.as_ref());
            zone.per_cpu = Some(info.pages_per_cpu()).max(per_cpu_after);
            if draw.is_none() {
                zone.free_blocks = scanned.free_blocks.get(index).cloned().and_then(FreeAreas::new);
            }
            if let (Some(sum), Some(free)) = (&mut sum, &zone.free_blocks) {
                sum.counts_mut().iter_mut().zip(free.counts()).for_each(|(sum, count)| *sum += count);
            }
            zones.push(zone);
        }
        zones.sort_by_key(|zone| zone.first);
        let coverage = draw.as_ref().map_or(Coverage::Whole, |draw| {
            Coverage::Sample(SamplePlan {
                seed: draw.seed,
                blocks: zones.iter().map(|zone| zone.blocks.len() as u64).sum(),
                blocks_total: zones.iter().map(|zone| zone.blocks_total).sum(),
            })
        });
        let free_blocks = if draw.is_none() { sum } else { None };
        Census { block_order: self.shape.block_order, zones, coverage, free_blocks, scan_ns }
    }

    fn orders(&self) -> usize {
        self.shape.orders.clamp(1, FreeAreas::ORDERS_MAX)
    }

    fn block_pages(&self) -> u64 {
        self.shape.block_order.pages().0
    }

    fn zone(&self, index: usize, tallies: &[&Tally], draw: Option<&Draw>) -> CensusZone {
        let info = &self.zoneinfo.zones[index];
        let mut blocks = self.merged(tallies);
        let (mut total, mut known) = (0, 1);
        if let Some(draw) = draw {
            let per_cluster = draw.blocks_per_cluster(self.shape.block_order);
            total = draw.clusters_total(index).saturating_mul(per_cluster);
            known = draw.clusters_read(index).saturating_mul(per_cluster).max(1);
        }
        let scale = if draw.is_some() { total as f64 / known as f64 } else { 1.0 };
        let deferred = self.mark_deferred(index, info, &mut blocks, scale);
        if draw.is_none() {
            if !self.frames.holes_known {
                self.mark_holes(index, info, &mut blocks, deferred);
            }
            let pages = self.block_pages();
            blocks.retain(|(_, counts, _)| u64::from(counts.of(PageClass::Hole)) < pages);
            total = blocks.len() as u64;
        }
        let first = info.start.map_or(0, |start| start.0) >> self.shape.block_order.0;
        CensusZone {
            key: info.key.clone(),
            first: Pfn(first << self.shape.block_order.0),
            blocks_total: total,
            one_folio: blocks.iter().filter(|block| block.2).map(|block| block.0 - first).collect(),
            blocks: blocks.into_iter().map(|(number, counts, _)| (number - first, counts)).collect(),
            free_blocks: None,
            per_cpu: None,
        }
    }

    /// Whole blocks of one zone, ascending. A block that two segments share is one block again; frames that
    /// were in no segment, or reserved outside of memory, are holes.
    fn merged(&self, tallies: &[&Tally]) -> Vec<ZoneBlock> {
        let mut blocks: Vec<ZoneBlock> = Vec::new();
        for tally in tallies {
            let mut counts = tally.block.counts;
            if self.frames.segments[tally.segment].zero == PageClass::Hole {
                let reserved = std::mem::take(&mut counts.0[PageClass::Reserved.index()]);
                counts.0[PageClass::Hole.index()] += reserved;
            }
            match blocks.last_mut() {
                Some(last) if last.0 == tally.block.number => {
                    last.1.0.iter_mut().zip(counts.0).for_each(|(sum, count)| *sum += count);
                }
                _ => blocks.push((tally.block.number, counts, tally.block.one_folio)),
            }
        }
        for (_, counts, one_folio) in &mut blocks {
            let missing = self.block_pages().saturating_sub(u64::from(counts.total()));
            counts.0[PageClass::Hole.index()] += missing as u32;
            *one_folio &= missing == 0;
        }
        blocks
    }

    /// Marks the zone's deferred blocks and gives their pages.
    ///
    /// Memory that is not yet handed to the allocator has pages without flags, as unknown pages have. It is
    /// the end of its zone, and it is not managed. So it is at most `present - managed` less the reserved
    /// pages, taken from the end, and of that the trailing run of blocks in which no page has a flag.
    ///
    /// The run also holds what was set aside at boot, such as the memory map itself, whose pages get their
    /// flag as late. Boot memory is given out from the top down (mm/memblock.c), so it is the run's end:
    /// what [`OffLists::Pages`] does not explain is reserved. Without these two counts the run stays unknown.
    /// `scale` is the zone's size in units of what was read.
    fn mark_deferred(&self, index: usize, info: &ZoneInfo, blocks: &mut [ZoneBlock], scale: f64) -> u64 {
        let (Some(present), Some(managed)) = (info.present, info.managed) else { return 0 };
        let reserved = (pages_of(blocks, PageClass::Reserved) as f64 * scale) as u64;
        let unaccounted = present.0.saturating_sub(managed.0).saturating_sub(reserved);
        if unaccounted < self.block_pages() {
            return 0;
        }
        let Some(from) = self.frame_from_end(index, unaccounted) else { return 0 };
        let in_run = |(number, counts, _): &&ZoneBlock| {
            let [unknown, hole] = [PageClass::Unknown, PageClass::Hole].map(|class| counts.of(class));
            *number >= from >> self.shape.block_order.0 && unknown + hole == counts.total()
        };
        let length = blocks.iter().rev().take_while(in_run).count();
        let start = blocks.len() - length;
        let free = match self.off_lists {
            OffLists::Pages(pages) => (pages as f64 / scale) as u64,
            OffLists::None => u64::MAX,
            OffLists::CannotTell => return 0,
        };
        let mut deferred = 0;
        for (_, counts, _) in &mut blocks[start..] {
            let pages = std::mem::take(&mut counts.0[PageClass::Unknown.index()]);
            let is_free = deferred + u64::from(pages) <= free;
            deferred += if is_free { u64::from(pages) } else { 0 };
            let class = if is_free { PageClass::Deferred } else { PageClass::Reserved };
            counts.0[class.index()] += pages;
        }
        deferred
    }

    /// The frame of the zone from which on it has `pages` of memory.
    fn frame_from_end(&self, index: usize, mut pages: u64) -> Option<u64> {
        let memory = |zero| zero == PageClass::Unknown;
        let own = self.frames.segments.iter().rev().filter(|s| s.zone == index && memory(s.zero));
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

    /// Where nothing says which addresses are memory, and the kernel prints 0 for a hole: the longest runs of
    /// blocks without any flag, as far as `spanned - present` goes. Frames outside of memory that are
    /// reserved have flags and need no run.
    fn mark_holes(&self, index: usize, info: &ZoneInfo, blocks: &mut [ZoneBlock], deferred: u64) {
        let (Some(spanned), Some(present), Some(managed)) = (info.spanned, info.present, info.managed) else {
            return;
        };
        let own = self.frames.segments.iter().filter(|segment| segment.zone == index);
        let scanned: u64 = own.map(|segment| segment.end - segment.first).sum();
        let inside = present.0.saturating_sub(managed.0).saturating_sub(deferred);
        let outside = pages_of(blocks, PageClass::Reserved).saturating_sub(inside);
        let counted = pages_of(blocks, PageClass::Hole).saturating_sub(self.edge_pages(info));
        let mut budget = spanned.0.saturating_sub(present.0);
        for known in [spanned.0.saturating_sub(scanned), outside, counted] {
            budget = budget.saturating_sub(known);
        }
        let pages = self.block_pages();
        let is_empty = |block: &ZoneBlock| u64::from(block.1.of(PageClass::Unknown)) == pages;
        let mut runs: Vec<&mut [ZoneBlock]> =
            blocks.chunk_by_mut(|a, b| is_empty(a) && is_empty(b) && a.0 + 1 == b.0).collect();
        runs.retain(|run| is_empty(&run[0]));
        runs.sort_by_key(|run| std::cmp::Reverse(run.len()));
        for run in runs {
            let length = run.len() as u64 * pages;
            if length > budget {
                continue;
            }
            budget -= length;
            for (_, counts, _) in run {
                *counts = BlockCounts::default();
                counts.0[PageClass::Hole.index()] = pages as u32;
            }
        }
    }

    /// Frames of the zone's first and last block that are not the zone's.
    fn edge_pages(&self, info: &ZoneInfo) -> u64 {
        let pages = self.block_pages();
        let start = info.start.map_or(0, |start| start.0);
        let end = info.end().map_or(0, |end| end.0);
        start % pages + end.checked_next_multiple_of(pages).map_or(0, |up| up - end)
    }
}

fn pages_of(blocks: &[ZoneBlock], class: PageClass) -> u64 {
    blocks.iter().map(|(_, counts, _)| u64::from(counts.of(class))).sum()
}
