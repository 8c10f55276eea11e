//! Compaction (mm/compaction.c of 6.1; large folios as a unit: 6.10): the migration scanner moves up, the
//! free scanner moves down.

mod scanners;

use super::journal::{Decision, MachineBug};
use super::reclaim::COSTLY_ORDER;
use super::{Machine, Release};
use crate::memory::Request;
use crate::types::{AllocationType, Error, Frame, ZoneGeometry};

/// Failures after which the deferral does not grow (`COMPACT_MAX_DEFER_SHIFT`): 64 compactions are deferred.
const COMPACT_MAX_DEFER_SHIFT: u8 = 6;

/// Compaction priority (`enum compact_priority`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompactPriority {
    /// Only pageblocks of the request's own migratetype are scanned (`COMPACT_PRIO_ASYNC`).
    Async,
    /// All pageblocks except skipped ones (`COMPACT_PRIO_SYNC_LIGHT`).
    SyncLight,
    /// The whole zone, without skip bits (`COMPACT_PRIO_SYNC_FULL`).
    SyncFull,
}

/// Result of a compaction, the best last (`enum compact_result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CompactResult {
    /// Compaction could not help.
    Skipped,
    Deferred,
    /// The whole zone was scanned.
    Complete,
    /// The zone was scanned to its end, but not from its beginning.
    PartialSkipped,
    /// It has moved the maximum number of pages.
    Interrupted,
    /// A large enough block is free.
    Success,
}

/// Purpose and limits of a compaction (`struct compact_control`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompactControl {
    /// Requested order.
    pub order: u8,
    /// The request's allocation type.
    pub alloc_type: AllocationType,
    pub priority: CompactPriority,
    /// Whether a request waits for it.
    pub is_direct: bool,
    /// It ends when at most this percentage of free memory is in blocks that are too small.
    pub target_score: Option<u64>,
    /// Maximum number of pages to migrate.
    pub max_pages: u32,
    /// It ends when the high watermark holds in whole pageblocks for requests up to this zone index.
    pub pageblock_zone_index: Option<u8>,
}

impl CompactControl {
    /// A compaction by `kcompactd` that ends when a block of an order is free.
    fn by_kcompactd(order: u8) -> CompactControl {
        CompactControl {
            order,
            alloc_type: AllocationType::Movable,
            priority: CompactPriority::SyncLight,
            is_direct: false,
            target_score: None,
            max_pages: u32::MAX,
            pageblock_zone_index: None,
        }
    }
}

/// Compaction state of a zone.
#[derive(Clone, Debug)]
pub(super) struct CompactState {
    geometry: ZoneGeometry,
    /// Skipped pageblocks (`PB_migrate_skip`).
    skip_bits: Vec<bool>,
    /// Cached start positions of the scanners: the migration scanner's for asynchronous compaction and for
    /// the others, and the free scanner's.
    cached_migrate_frames: [Frame; 2],
    cached_free_frame: Frame,
    /// Whether the skip bits are cleared when `kswapd` sleeps (`compact_blockskip_flush`).
    has_blockskip_flush: bool,
    /// Deferred compactions since the last one, of 2^shift, and the lowest order that failed.
    considered_count: u32,
    defer_shift: u8,
    order_failed: u8,
}

impl CompactState {
    /// State of a zone that was never compacted.
    pub fn for_zone(geometry: ZoneGeometry) -> CompactState {
        CompactState {
            geometry,
            skip_bits: vec![false; (geometry.frames >> geometry.pageblock_order) as usize],
            cached_migrate_frames: [geometry.first_frame; 2],
            cached_free_frame: geometry.end() - (1 << geometry.pageblock_order),
            has_blockskip_flush: false,
            considered_count: 0,
            defer_shift: 0,
            order_failed: u8::MAX,
        }
    }

    /// Sets both scanners to the ends of the zone.
    fn reset_cached_frames(&mut self) {
        self.cached_migrate_frames = [self.geometry.first_frame; 2];
        self.cached_free_frame = self.geometry.end() - (1 << self.geometry.pageblock_order);
    }

    fn reset_isolation_suitable(&mut self) {
        self.skip_bits.fill(false);
        self.has_blockskip_flush = false;
        self.reset_cached_frames();
    }

    /// Skip bits, and the cached frames of the scanners: two of the migrate scanner, one of the free scanner.
    #[cfg(test)]
    pub fn skip_bits_and_scanners(&self) -> (Vec<bool>, [Frame; 3]) {
        (
            self.skip_bits.clone(),
            [self.cached_migrate_frames[0], self.cached_migrate_frames[1], self.cached_free_frame],
        )
    }

    /// Clears all skip bits if the zone was scanned completely (`reset_isolation_suitable`).
    pub fn flush_skip_bits(&mut self) {
        if self.has_blockskip_flush {
            self.reset_isolation_suitable();
        }
    }

    /// Whether a compaction is deferred (`compaction_deferred`).
    fn is_deferred(&mut self, order: u8) -> bool {
        if order < self.order_failed {
            return false;
        }
        let limit = 1 << self.defer_shift;
        self.considered_count = (self.considered_count + 1).min(limit);
        self.considered_count < limit
    }

    /// Records a failure: twice as many compactions are deferred as before (`defer_compaction`).
    fn defer_compaction(&mut self, order: u8) {
        self.considered_count = 0;
        self.defer_shift = (self.defer_shift + 1).min(COMPACT_MAX_DEFER_SHIFT);
        self.order_failed = self.order_failed.min(order);
    }

    /// Records a success (`compaction_defer_reset`).
    pub fn reset_deferral(&mut self, order: u8, alloc_success: bool) {
        if alloc_success {
            (self.considered_count, self.defer_shift) = (0, 0);
        }
        if order >= self.order_failed {
            self.order_failed = order + 1;
        }
    }

    /// Whether the maximum number of compactions was deferred (`compaction_restarting`).
    fn is_restarting(&self, order: u8) -> bool {
        order >= self.order_failed
            && self.defer_shift == COMPACT_MAX_DEFER_SHIFT
            && self.considered_count >= 1 << self.defer_shift
    }
}

impl Machine {
    /// Compacts a zone for a waiting request, unless compaction is deferred.
    pub(super) fn compact_for_request(
        &mut self,
        zone: usize,
        request: &Request,
        priority: CompactPriority,
    ) -> Result<CompactResult, Error> {
        let order = request.order;
        if priority != CompactPriority::SyncFull && self.note_deferral(zone, order) {
            return Ok(CompactResult::Deferred);
        }
        if !self.is_compaction_suitable(zone, order, request.zone_index) {
            let min = self.memory.zone(zone).0.watermarks.min;
            let has_block = self.memory.is_watermark_ok(zone, min, order, request.zone_index);
            return Ok(if has_block { CompactResult::Success } else { CompactResult::Skipped });
        }
        let alloc_type = request.alloc_type;
        let control =
            CompactControl { alloc_type, priority, is_direct: true, ..CompactControl::by_kcompactd(order) };
        let result = self.compact_zone(zone, &control)?;
        match result {
            CompactResult::Success => self.compactors[zone].reset_deferral(order, false),
            CompactResult::Complete | CompactResult::PartialSkipped if priority != CompactPriority::Async => {
                self.compactors[zone].defer_compaction(order)
            }
            _ => {}
        }
        Ok(result)
    }

    fn note_deferral(&mut self, zone: usize, order: u8) -> bool {
        let is_deferred = match self.journal.has_bug(MachineBug::DeferralNeverEnds) {
            true => order >= self.compactors[zone].order_failed,
            false => self.compactors[zone].is_deferred(order),
        };
        self.journal.record(Decision::CompactionRequested { zone, order, is_deferred });
        self.stats.compactions_deferred += u64::from(is_deferred);
        is_deferred
    }

    /// Compacts a zone as `kcompactd` does when `kswapd` has finished (`kcompactd_do_work`), for requests up
    /// to a zone index.
    pub(super) fn compact_by_kcompactd(
        &mut self,
        zone: usize,
        order: u8,
        zone_index: u8,
    ) -> Result<(), Error> {
        let (config, _) = self.memory.zone(zone);
        let (own_zone_index, high_watermark) = (config.zone_index, config.watermarks.high);
        let is_pageblock_mode = self.is_pageblock_mode();
        let is_worth_it = match self.note_deferral(zone, order) {
            true => false,
            false if is_pageblock_mode => {
                self.is_pageblock_watermark_low(zone, order, high_watermark, own_zone_index)
            }
            false => self.is_compaction_suitable(zone, order, own_zone_index),
        };
        if !is_worth_it {
            return Ok(());
        }
        let pageblock_zone_index = is_pageblock_mode.then_some(zone_index);
        let control = CompactControl { pageblock_zone_index, ..CompactControl::by_kcompactd(order) };
        match self.compact_zone(zone, &control)? {
            CompactResult::Success => self.compactors[zone].reset_deferral(order, false),
            CompactResult::Complete | CompactResult::PartialSkipped => {
                self.memory.drain_pcp_lists();
                self.compactors[zone].defer_compaction(order);
            }
            _ => {}
        }
        Ok(())
    }

    /// Compacts a node proactively (`proactive_compact_node`) if its fragmentation score is too high:
    /// migrates up to `max_pages` pages.
    pub(super) fn compact_proactively(&mut self, node: u16, max_pages: u32) -> Result<(), Error> {
        let proactiveness = u64::from(self.tuning.compaction_proactiveness.min(100));
        let kswapd = &mut self.kswapd_states[usize::from(node)];
        if proactiveness == 0 || !self.config.has_compaction || max_pages == 0 {
            return Ok(());
        }
        if kswapd.proactive_defer > 0 {
            kswapd.proactive_defer -= 1;
            return Ok(());
        }
        let score_low = (100 - proactiveness).max(5);
        let score_before = self.fragmentation_score(node);
        if score_before <= (score_low + 10).min(100) {
            return Ok(());
        }
        self.stats.proactive_compactions += 1;
        let migrated_before = self.stats.pages_migrated;
        for zone in 0..self.memory.zone_count() {
            let (config, _) = self.memory.zone(zone);
            if config.node != node {
                continue;
            }
            let order = config.geometry.pageblock_order;
            let target_score = Some(score_low);
            let control = CompactControl { target_score, max_pages, ..CompactControl::by_kcompactd(order) };
            let result = self.compact_zone(zone, &control)?;
            if matches!(result, CompactResult::Complete | CompactResult::PartialSkipped) {
                self.memory.drain_pcp_lists();
            }
        }
        // The score did not fall although the whole zone was scanned: wait, and clear the skip bits.
        if self.fragmentation_score(node) >= score_before
            && self.stats.pages_migrated - migrated_before < u64::from(max_pages)
        {
            self.kswapd_states[usize::from(node)].proactive_defer = 1 << COMPACT_MAX_DEFER_SHIFT;
            for zone in 0..self.compactors.len() {
                self.compactors[zone].flush_skip_bits();
                self.journal.record(Decision::SkipBitsReset { zone });
            }
        }
        Ok(())
    }

    /// Fragmentation score of a node (`fragmentation_score_node`): percentage of free memory in blocks
    /// smaller than a pageblock, weighted by the size of the zones.
    fn fragmentation_score(&self, node: u16) -> u64 {
        let zones = || self.zones_of_node(node, u8::MAX).map(|(at, config)| (at, config.geometry));
        let all: u64 = zones().map(|(_, geometry)| u64::from(geometry.frames)).sum();
        let zone_score = |(at, geometry): (usize, ZoneGeometry)| {
            let (smaller_blocks, free) = self.unusable_free_frames_in_zone(at, geometry.pageblock_order);
            u64::from(geometry.frames) * (smaller_blocks * 100 / free.max(1)) / (all + 1)
        };
        zones().map(zone_score).sum()
    }

    /// Whether compaction may help (`compaction_suitable`): no block of the order is free, both copies of one
    /// fit, and the cause is fragmentation, not lack of memory.
    fn is_compaction_suitable(&self, zone: usize, order: u8, zone_index: u8) -> bool {
        let (config, _) = self.memory.zone(zone);
        if self.memory.is_watermark_ok(zone, config.watermarks.min, order, zone_index) {
            return false;
        }
        let watermark = if order > COSTLY_ORDER { config.watermarks.low } else { config.watermarks.min };
        if !self.memory.is_watermark_ok(zone, watermark + (2 << order), 0, zone_index) {
            return false;
        }
        self.is_fragmented(zone, order)
    }

    /// Whether a costly order lacks a block because of fragmentation, not for lack of memory.
    fn is_fragmented(&self, zone: usize, order: u8) -> bool {
        let index = self.fragmentation_index(zone, order);
        order <= COSTLY_ORDER || !(0..=i64::from(self.tuning.extfrag_threshold)).contains(&index)
    }

    /// Whether `kswapd` and `kcompactd` count only whole free pageblocks (`vm.defrag_mode`, 6.15).
    pub(super) fn is_pageblock_mode(&self) -> bool {
        self.tuning.release == Release::V6_1 && self.memory.is_defrag_mode()
    }

    /// Whether a watermark does not hold in whole pageblocks, and compaction may help
    /// (`compaction_suit_allocation_order` of 6.15 for `kcompactd`).
    fn is_pageblock_watermark_low(&self, zone: usize, order: u8, watermark: u64, zone_index: u8) -> bool {
        let (config, _) = self.memory.zone(zone);
        if self.memory.is_pageblock_watermark_ok(zone, watermark, order, zone_index) {
            return false;
        }
        let costly_margin =
            if order > COSTLY_ORDER { config.watermarks.low - config.watermarks.min } else { 0 };
        self.memory.is_watermark_ok(zone, watermark + (2 << order) + costly_margin, 0, zone_index)
            && self.is_fragmented(zone, order)
    }

    /// Whether this is the case for the min watermark of a zone of a node (`kcompactd_node_suitable`).
    pub(super) fn is_node_short_of_pageblocks(&self, node: u16, order: u8, zone_index: u8) -> bool {
        self.zones_of_node(node, zone_index)
            .any(|(at, config)| self.is_pageblock_watermark_low(at, order, config.watermarks.min, zone_index))
    }

    /// The kernel's fragmentation index in thousandths (`__fragmentation_index`): near 0 an allocation fails
    /// for lack of memory, near 1000 because of fragmentation; −1000 if a block is free.
    pub fn fragmentation_index(&self, zone: usize, order: u8) -> i64 {
        let (_, zone) = self.memory.zone(zone);
        let (mut blocks, mut frames) = (0u64, 0u64);
        for (size, &count) in (0u8..).zip(zone.zone().free_blocks()) {
            if size >= order && count > 0 {
                return -1000;
            }
            blocks += u64::from(count);
            frames += u64::from(count) << size;
        }
        if blocks == 0 {
            return 0;
        }
        1000 - ((1000 + ((frames * 1000) >> order)) / blocks) as i64
    }

    /// Moves a block to an allocated target in its zone.
    fn migrate_block(&mut self, handle: u32, to: Frame) -> Result<(), Error> {
        let from = self.relocate_block(handle, to)?;
        if self.journal.has_bug(MachineBug::HandleNotUpdated) {
            self.handle_by_frame[(to - self.first_frame) as usize] = super::NO_HANDLE;
        }
        self.stats.pages_migrated += u64::from(self.entries[handle as usize].pages());
        self.journal.record(Decision::PageMigrated { handle, from, to });
        Ok(())
    }
}
