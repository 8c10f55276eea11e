//! Expected moves of a compaction, computed at once from a flat copy of the zone.

use super::{NaiveMachine, OwnershipRule};
use crate::machine::PageUse;
use crate::machine::compaction::{CompactControl, CompactPriority, CompactResult};
use crate::types::{AllocationType, Frame, ZoneGeometry};

/// Flat copy of a zone: the holder of each frame.
pub(super) struct FlatZone {
    pub(super) geometry: ZoneGeometry,
    pub(super) holders: Vec<Option<u32>>,
    /// Boundary of the unmovable region; no block crosses it.
    pub(super) boundary: Option<Frame>,
}

impl FlatZone {
    pub(super) fn pageblock_of(&self, frame: Frame) -> Frame {
        frame.align_down(self.geometry.pageblock_order)
    }

    pub(super) fn is_free(&self, frame: Frame) -> bool {
        self.geometry.contains(frame) && self.holders[(frame - self.geometry.first_frame) as usize].is_none()
    }

    /// Whether the boundary is inside a block.
    fn is_split_by_boundary(&self, from: Frame, order: u8) -> bool {
        self.boundary.is_some_and(|boundary| from < boundary && boundary < from + (1 << order))
    }

    /// The largest aligned free block that contains a frame, and its order.
    pub(super) fn free_block(&self, frame: Frame) -> Option<(Frame, u8)> {
        let whole = |order: &u8| {
            let from = frame.align_down(*order);
            !self.is_split_by_boundary(from, *order)
                && Frame::range(from..from + (1 << order)).all(|at| self.is_free(at))
        };
        let order = (0..=self.geometry.max_order).rev().find(whole)?;
        Some((frame.align_down(order), order))
    }

    pub(super) fn set_holder(&mut self, frame: Frame, order: u8, holder: Option<u32>) {
        let at = (frame - self.geometry.first_frame) as usize;
        self.holders[at..at + (1 << order)].fill(holder);
    }

    /// Frames in free blocks of at least an order.
    fn free_frames_from_order(&self, order: u8) -> u64 {
        let size = 1u32 << order;
        let starts = Frame::blocks(self.geometry.first_frame.align_up(order)..self.geometry.end(), order);
        let is_block = |from: &Frame| {
            !self.is_split_by_boundary(*from, order)
                && Frame::range(*from..*from + size).all(|at| self.is_free(at))
        };
        let whole = starts.filter(is_block);
        whole.count() as u64 * u64::from(size)
    }

    /// Whether a block of the order is free, alone or in a larger one.
    pub(super) fn has_free_block(&self, order: u8) -> bool {
        self.free_frames_from_order(order) > 0
    }

    /// Whether a watermark holds after an allocation of an order, when only free blocks of at least
    /// `min_order` count.
    pub(super) fn is_watermark_ok(&self, watermark: u64, order: u8, min_order: u8) -> bool {
        self.free_frames_from_order(min_order) >= watermark + (1 << order) && self.has_free_block(order)
    }

    /// Percentage of free frames in blocks smaller than the order.
    fn fragmentation_score(&self, order: u8) -> u64 {
        let (mut small, mut all) = (0u64, 0u64);
        for frame in Frame::range(self.geometry.first_frame..self.geometry.end()) {
            if let Some((_, found)) = self.free_block(frame) {
                all += 1;
                small += u64::from(found < order);
            }
        }
        small * 100 / all.max(1)
    }
}

/// Position of the free scanner for one order of pages, and whether it found anything in its pageblock.
#[derive(Clone, Copy)]
struct FreeScannerPosition {
    frame: Frame,
    has_found: bool,
}

impl NaiveMachine {
    /// Flat copy of a zone in its current state.
    pub(super) fn flat_zone(&self, zone: usize) -> FlatZone {
        let boundary = (self.rule == OwnershipRule::Regions).then(|| self.boundary(zone));
        FlatZone { geometry: self.config.zones[zone].geometry, holders: self.holders(zone), boundary }
    }

    fn is_pageblock_of_type(&self, zone: usize, pageblock: Frame, kind: AllocationType) -> bool {
        let geometry = self.config.zones[zone].geometry;
        let owner = match (self.rule, kind) {
            (OwnershipRule::Unowned, _) => return true,
            (OwnershipRule::Regions, kind) => u8::from(kind == AllocationType::Movable),
            (OwnershipRule::ByAllocationType | OwnershipRule::DefragMode, kind) => kind as u8,
        };
        self.pageblock_owners[zone][geometry.pageblock_of(pageblock) as usize] == owner
    }

    fn can_migrate(&self, handle: u32, job: &CompactControl, geometry: ZoneGeometry) -> bool {
        self.pages[handle as usize].as_ref().is_some_and(|page| {
            (super::is_page_cache(page.page_use) || page.page_use == PageUse::Anonymous)
                && !page.is_pinned
                && !page.write.is_writing
                && page.order < job.order
                && page.order < geometry.pageblock_order
        })
    }

    /// The next pages of the pageblock at `at` to migrate, and the position of the scanner after them.
    fn pages_to_migrate(
        &mut self,
        zone: usize,
        flat: &FlatZone,
        job: &CompactControl,
        at: Frame,
        seen: &mut bool,
    ) -> (Vec<u32>, Frame) {
        let (pageblock, size) = (flat.pageblock_of(at), 1u32 << flat.geometry.pageblock_order);
        if at == pageblock {
            *seen = false;
            let is_skipped = self.compact_states[zone].skipped_pageblocks.contains(&pageblock)
                && job.priority != CompactPriority::SyncFull;
            let is_other = job.priority == CompactPriority::Async
                && !self.is_pageblock_of_type(zone, pageblock, job.alloc_type);
            let at_pageblock = (pageblock - flat.geometry.first_frame) as usize;
            let starts_before = match flat.holders[at_pageblock] {
                // Planned moves are applied to the copy only.
                Some(handle) => at_pageblock > 0 && flat.holders[at_pageblock - 1] == Some(handle),
                None => flat.free_block(pageblock).is_some_and(|(from, _)| from < pageblock),
            };
            if is_skipped || is_other || starts_before {
                return (Vec::new(), pageblock + size);
            }
        }
        let (mut at, mut batch, mut pages) = (at, Vec::new(), 0);
        while at < pageblock + size && pages < 32 {
            at = match flat.holders[(at - flat.geometry.first_frame) as usize] {
                None => flat.free_block(at).map_or(at + 1, |(from, order)| from + (1 << order)),
                Some(handle) => {
                    let order = self.pages[handle as usize].as_ref().map_or(0, |page| page.order);
                    if self.can_migrate(handle, job, flat.geometry) {
                        batch.push(handle);
                        pages += 1 << order;
                    }
                    at + (1 << order)
                }
            };
        }
        *seen |= !batch.is_empty();
        if at >= pageblock + size && !*seen {
            self.compact_states[zone].skipped_pageblocks.push(pageblock);
        }
        (batch, at)
    }

    /// Migration target for a page of an order.
    fn find_target(
        &mut self,
        zone: usize,
        flat: &FlatZone,
        job: &CompactControl,
        floor: Frame,
        order: u8,
        place: &mut FreeScannerPosition,
    ) -> Option<Frame> {
        let size = 1u32 << flat.geometry.pageblock_order;
        while flat.pageblock_of(place.frame) > floor.max(flat.geometry.first_frame) {
            let pageblock = flat.pageblock_of(place.frame);
            let is_new = place.frame == pageblock;
            place.has_found &= !is_new;
            let is_whole =
                flat.free_block(pageblock).is_some_and(|(_, found)| found >= flat.geometry.pageblock_order);
            let inside = flat.holders[(pageblock - flat.geometry.first_frame) as usize]
                .and_then(|handle| self.pages[handle as usize].as_ref())
                .is_some_and(|page| {
                    page.frame < Some(pageblock) && page.order > flat.geometry.pageblock_order
                });
            let is_open = job.priority == CompactPriority::SyncFull
                || !self.compact_states[zone].skipped_pageblocks.contains(&pageblock)
                    && self.is_pageblock_of_type(zone, pageblock, AllocationType::Movable);
            if !is_new || !is_whole && !inside && is_open {
                let begins = |&frame: &Frame| {
                    flat.free_block(frame).is_some_and(|(from, found)| from == frame && found >= order)
                };
                if let Some(found) = Frame::range(place.frame..pageblock + size).find(begins) {
                    let next = found + (1 << order);
                    let at = if next < pageblock + size { next } else { pageblock - size };
                    *place = FreeScannerPosition { frame: at, has_found: true };
                    return Some(found);
                }
                if order == 0 && !place.has_found {
                    self.compact_states[zone].skipped_pageblocks.push(pageblock);
                }
            }
            *place = FreeScannerPosition { frame: pageblock - size, has_found: false };
        }
        None
    }

    /// All moves of a compaction, and its result.
    pub(super) fn plan_compaction(&mut self, zone: usize, job: &CompactControl) {
        let geometry = self.config.zones[zone].geometry;
        let past = &self.compact_states[zone];
        let is_late =
            past.min_failed_order.is_some_and(|failed| job.order >= failed) && past.deferred_count >= 64;
        if is_late && job.target_score.is_none() {
            self.reset_compaction(zone);
        }
        if job.priority == CompactPriority::SyncFull {
            self.compact_states[zone].reset_scanners(geometry);
        }
        let mut flat = self.flat_zone(zone);
        let free = self.compact_states[zone].free;
        let mut places = vec![FreeScannerPosition { frame: free, has_found: false }; 32];
        let mut at = self.compact_states[zone].migrate[usize::from(job.priority != CompactPriority::Async)];
        let (is_whole, mut moved, mut seen) = (at == geometry.first_frame, 0u32, false);
        self.expected_moves.clear();
        let result = loop {
            if flat.pageblock_of(places[0].frame) <= flat.pageblock_of(at) || at >= geometry.end() {
                self.compact_states[zone].reset_scanners(geometry);
                break if is_whole { CompactResult::Complete } else { CompactResult::PartialSkipped };
            }
            if moved >= job.max_pages {
                break CompactResult::Interrupted;
            }
            let high = self.high_watermark(zone);
            let reached = |flat: &FlatZone| match (job.target_score, job.pageblock_zone_index) {
                (Some(score), _) => flat.fragmentation_score(job.order) <= score,
                (None, Some(_)) => flat.is_watermark_ok(high, job.order, geometry.pageblock_order),
                (None, None) => flat.has_free_block(job.order),
            };
            if at == flat.pageblock_of(at) && reached(&flat) {
                break CompactResult::Success;
            }
            let (batch, next) = self.pages_to_migrate(zone, &flat, job, at, &mut seen);
            at = next;
            for handle in batch {
                let Some(page) = self.pages[handle as usize] else { continue };
                let floor = flat.pageblock_of(at - 1);
                let place = &mut places[usize::from(page.order)];
                let to = self.find_target(zone, &flat, job, floor, page.order, place);
                match (to, page.frame) {
                    (Some(to), Some(from)) => {
                        flat.set_holder(to, page.order, Some(handle));
                        flat.set_holder(from, page.order, None);
                        self.expected_moves.push((handle, from, to));
                        moved += 1 << page.order;
                    }
                    _ if page.order == 0 => break,
                    _ => {}
                }
            }
            let past = &mut self.compact_states[zone];
            past.free = places[0].frame;
            past.migrate[1] = at;
            if job.priority == CompactPriority::Async {
                past.migrate[0] = at;
            }
        };
        self.expected_end = Some((*job, result));
    }
}
