//! The two scanners, and the end of a compaction (`compact_zone`, `compact_finished`,
//! `isolate_migratepages_block`, `isolate_freepages`).

use super::{CompactControl, CompactPriority, CompactResult};
use crate::machine::journal::{Decision, MachineBug};
use crate::machine::{Machine, NO_HANDLE, PageUse};
use crate::types::{AllocationType, Error, Frame, corrupted};
use crate::zone::FrameContent;

/// Pages that are moved at a time (`COMPACT_CLUSTER_MAX`).
const COMPACT_CLUSTER_MAX: u32 = 32;

/// Progress of a compaction.
struct CompactRun {
    zone: usize,
    pageblock_order: u8,
    migrate_scanner: Frame,
    /// Position of the free scanner for each order of pages. That of base pages decides whether the scanners
    /// have met; larger pages need larger free blocks, and their scanners are further down.
    free_scanners: Vec<Frame>,
    /// Whether the current pageblock of each scanner had something: pages, and free base pages.
    has_found_pages: bool,
    has_found_free: bool,
    /// Whether it began at the first pageblock of the zone.
    is_from_zone_start: bool,
    migrated: u32,
}

impl CompactRun {
    /// The pageblock of a frame. Zones begin at a pageblock, and so does frame 0.
    fn pageblock_of(&self, frame: Frame) -> Frame {
        frame.align_down(self.pageblock_order)
    }

    fn has_met(&self) -> bool {
        self.pageblock_of(self.free_scanners[0]) <= self.pageblock_of(self.migrate_scanner)
    }
}

impl Machine {
    pub(super) fn compact_zone(
        &mut self,
        zone: usize,
        control: &CompactControl,
    ) -> Result<CompactResult, Error> {
        let state = &mut self.compactors[zone];
        if control.target_score.is_none() && state.is_restarting(control.order) {
            state.reset_isolation_suitable();
        }
        if control.priority == CompactPriority::SyncFull {
            state.reset_cached_frames();
        }
        let geometry = state.geometry;
        let start = state.cached_migrate_frames[usize::from(control.priority != CompactPriority::Async)];
        let mut run = CompactRun {
            zone,
            pageblock_order: geometry.pageblock_order,
            migrate_scanner: start,
            free_scanners: vec![state.cached_free_frame; usize::from(geometry.pageblock_order) + 1],
            has_found_pages: false,
            has_found_free: false,
            is_from_zone_start: start == geometry.first_frame,
            migrated: 0,
        };
        self.journal.record(Decision::CompactionBegan { zone, control: *control });
        let result = loop {
            if let Some(result) = self.compact_finished(control, &run) {
                break result;
            }
            for handle in self.isolate_migratepages(control, &mut run) {
                let order = self.entries[handle as usize].order;
                if let Some(to) = self.isolate_free_block(control, &mut run, order)? {
                    self.migrate_block(handle, to)?;
                    run.migrated += 1 << order;
                } else if order == 0 {
                    break;
                }
            }
            let state = &mut self.compactors[zone];
            state.cached_free_frame = run.free_scanners[0];
            state.cached_migrate_frames[1] = run.migrate_scanner;
            if control.priority == CompactPriority::Async {
                state.cached_migrate_frames[0] = run.migrate_scanner;
            }
        };
        if matches!(result, CompactResult::Complete | CompactResult::PartialSkipped) {
            self.compactors[zone].reset_cached_frames();
            self.compactors[zone].has_blockskip_flush |= control.is_direct || control.target_score.is_some();
        }
        self.journal.record(Decision::CompactionEnded { zone, result });
        Ok(result)
    }

    /// Whether a compaction has finished (`compact_finished`), and its result.
    fn compact_finished(&self, control: &CompactControl, run: &CompactRun) -> Option<CompactResult> {
        let (config, zone) = self.memory.zone(run.zone);
        let has_met = run.has_met() && !self.journal.has_bug(MachineBug::ScannersCross);
        if has_met || run.migrate_scanner >= config.geometry.end() {
            return Some(if run.is_from_zone_start {
                CompactResult::Complete
            } else {
                CompactResult::PartialSkipped
            });
        }
        if run.migrated >= control.max_pages {
            return Some(CompactResult::Interrupted);
        }
        // A pageblock is scanned to its end.
        if run.migrate_scanner != run.pageblock_of(run.migrate_scanner) {
            return None;
        }
        let is_done = match (control.target_score, control.pageblock_zone_index) {
            (Some(score), _) => {
                let (small, free) = self.unusable_free_frames_in_zone(run.zone, control.order);
                small * 100 / free.max(1) <= score
            }
            (None, Some(zone_index)) => {
                let high = config.watermarks.high;
                self.memory.is_pageblock_watermark_ok(run.zone, high, control.order, zone_index)
            }
            (None, None) => zone.zone().has_block(control.order),
        };
        is_done.then_some(CompactResult::Success)
    }

    /// The next pages to migrate, of one pageblock.
    fn isolate_migratepages(&mut self, control: &CompactControl, run: &mut CompactRun) -> Vec<u32> {
        let mut found = Vec::new();
        let (config, zone) = self.memory.zone(run.zone);
        let (zone, geometry) = (zone.zone(), config.geometry);
        let from = run.pageblock_of(run.migrate_scanner);
        let (pageblock, end) =
            ((from - geometry.first_frame) >> geometry.pageblock_order, from + (1 << run.pageblock_order));
        if run.migrate_scanner == from {
            run.has_found_pages = false;
            let is_skipped = self.compactors[run.zone].skip_bits[pageblock as usize]
                && control.priority != CompactPriority::SyncFull;
            let is_other_type = control.priority == CompactPriority::Async
                && !zone.is_pageblock_of_type(from, control.alloc_type)
                && !self.journal.has_bug(MachineBug::AnyPageblockUsed);
            if is_skipped || is_other_type || zone.frame_content(from) == FrameContent::InsideBlock {
                run.migrate_scanner = end;
                return found;
            }
        }
        let (mut at, mut pages) = (run.migrate_scanner, 0);
        while at < end && pages < COMPACT_CLUSTER_MAX {
            let size = match zone.frame_content(at) {
                FrameContent::Free(order) | FrameContent::OnPcpList(order) => order,
                FrameContent::Allocated(order) => {
                    let handle = self.handle_by_frame[(at - self.first_frame) as usize];
                    if order < control.order.min(geometry.pageblock_order) && self.can_migrate(handle) {
                        found.push(handle);
                        pages += 1 << order;
                    }
                    order
                }
                FrameContent::InsideBlock => 0,
            };
            at += 1 << size;
        }
        run.migrate_scanner = at;
        run.has_found_pages |= !found.is_empty();
        if at >= end && !run.has_found_pages {
            self.compactors[run.zone].skip_bits[pageblock as usize] = true;
        }
        found
    }

    fn can_migrate(&self, handle: u32) -> bool {
        if handle == NO_HANDLE {
            return false;
        }
        let entry = &self.entries[handle as usize];
        (entry.page_use.is_file() || entry.page_use == PageUse::Anonymous)
            && !entry.writeback_state.is_writing()
            && (!entry.is_pinned || self.journal.has_bug(MachineBug::PinnedPageMigrated))
    }

    /// Takes a migration target for a page of an order.
    fn isolate_free_block(
        &mut self,
        control: &CompactControl,
        run: &mut CompactRun,
        order: u8,
    ) -> Result<Option<Frame>, Error> {
        let order_index = usize::from(order);
        let geometry = self.compactors[run.zone].geometry;
        loop {
            let at = run.free_scanners[order_index];
            let from = run.pageblock_of(at);
            let has_met = from <= run.pageblock_of(run.migrate_scanner - 1)
                && !self.journal.has_bug(MachineBug::ScannersCross);
            if has_met || from == geometry.first_frame {
                return Ok(None);
            }
            if at == from && order_index == 0 {
                run.has_found_free = false;
            }
            let end = from + (1 << run.pageblock_order);
            let is_suitable_target = at != from || self.is_suitable_migration_target(control, run.zone, from);
            let found =
                if is_suitable_target { self.find_free_block(run.zone, at, end, order) } else { None };
            let Some(found) = found else {
                if is_suitable_target && order_index == 0 && !run.has_found_free {
                    let pageblock = (from - geometry.first_frame) >> geometry.pageblock_order;
                    self.compactors[run.zone].skip_bits[pageblock as usize] = true;
                }
                run.free_scanners[order_index] = from - (1 << run.pageblock_order);
                continue;
            };
            run.has_found_free |= order_index == 0;
            let next = found + (1 << order);
            run.free_scanners[order_index] =
                if next < end { next } else { from - (1 << run.pageblock_order) };
            if !self.memory.zone_mut(run.zone).allocate_at(found, order, AllocationType::Movable)? {
                return corrupted(format!("frame {found:#x} is free, but cannot be allocated"));
            }
            return Ok(Some(found));
        }
    }

    /// Whether a pageblock is a migration target (`suitable_migration_target`): a movable one that is not
    /// completely free.
    fn is_suitable_migration_target(&self, control: &CompactControl, zone: usize, from: Frame) -> bool {
        let (config, per_cpu) = self.memory.zone(zone);
        let pageblock = (from - config.geometry.first_frame) >> config.geometry.pageblock_order;
        let is_free = match per_cpu.zone().frame_content(from) {
            FrameContent::Free(order) => order >= config.geometry.pageblock_order,
            FrameContent::InsideBlock => true,
            FrameContent::Allocated(_) | FrameContent::OnPcpList(_) => false,
        };
        let is_skipped = self.compactors[zone].skip_bits[pageblock as usize];
        let is_movable = per_cpu.zone().is_pageblock_of_type(from, AllocationType::Movable)
            || self.journal.has_bug(MachineBug::AnyPageblockUsed);
        !is_free && (control.priority == CompactPriority::SyncFull || !is_skipped && is_movable)
    }

    /// The lowest free block of an order, or of a larger one, that begins in a range.
    fn find_free_block(&self, zone: usize, from: Frame, end: Frame, order: u8) -> Option<Frame> {
        let (_, per_cpu) = self.memory.zone(zone);
        let mut at = from;
        while at < end {
            at += match per_cpu.zone().frame_content(at) {
                FrameContent::Free(size) if size >= order => return Some(at),
                FrameContent::Free(size) | FrameContent::Allocated(size) | FrameContent::OnPcpList(size) => {
                    1 << size
                }
                FrameContent::InsideBlock => 1,
            };
        }
        None
    }
}
