//! Resizing of the unmovable region ([`crate::policies::Contiguitas`]): its boundary moves up when the pages
//! above it have been evacuated, and down when pageblocks below it are free.

use std::ops::Range;

use super::journal::{Decision, MachineBug};
use super::{Machine, NO_HANDLE};
use crate::memory::{Request, Watermark};
use crate::policies::{FallbackMode, Policy};
use crate::types::{AllocationType, Error, Frame, corrupted};
use crate::zone::FrameContent;

/// Frames above the boundary: free blocks, and the holders of the others.
#[derive(Debug, Default)]
struct RangeContents {
    free_blocks: Vec<(Frame, u8)>,
    held_blocks: Vec<u32>,
}

impl Machine {
    /// Expands the unmovable region for an unmovable request, in the first zone that may serve it and has
    /// free memory: evacuates the pages above the boundary. Returns whether it expanded. It does not for
    /// requests that cannot wait.
    pub(super) fn expand_region(&mut self, request: &Request) -> Result<bool, Error> {
        if request.watermark != Watermark::Min || request.alloc_type == AllocationType::Movable {
            return Ok(false);
        }
        for position in 0..self.memory.zone_count() {
            let Some(zone_number) = self.memory.zone_in_zonelist(request.node, position) else { break };
            let (config, per_cpu) = self.memory.zone(zone_number);
            let has_region_boundary = per_cpu.zone().policy().fallback_mode() == FallbackMode::ResizeRegion;
            if !has_region_boundary || config.zone_index > request.zone_index {
                continue;
            }
            if self.memory.is_watermark_ok(zone_number, config.watermarks.min, 0, request.zone_index)
                && self.evacuate_for_boundary(zone_number, request.order)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Evacuates the range that the boundary would cross for a block of an order: all of its pages, or none.
    fn evacuate_for_boundary(&mut self, zone: usize, order: u8) -> Result<bool, Error> {
        // The per-CPU lists are drained first (`drain_all_pages` in `alloc_contig_range`).
        self.memory.drain_pcp_lists();
        let range = self.memory.zone(zone).1.zone().frames_to_claim(0, order);
        let Some(range) = range else { return Ok(false) };
        let contents = self.range_contents(zone, &range);
        self.journal.record(Decision::RegionExpansion {
            zone,
            range: range.clone(),
            can_evacuate: contents.is_some(),
        });
        let is_empty = match contents {
            Some(beside) => self.migrate_out(zone, &range, &beside)?,
            None => false,
        };
        self.stats.region_expansions_failed += u64::from(!is_empty);
        self.stats.region_expansions += u64::from(is_empty);
        Ok(is_empty)
    }

    /// Pages in a range; `None`: one of them cannot be moved, or extends beyond the end of the range.
    fn range_contents(&self, zone: usize, range: &Range<Frame>) -> Option<RangeContents> {
        let (_, zone) = self.memory.zone(zone);
        let mut contents = RangeContents::default();
        let mut next = range.start;
        while next < range.end {
            let order = match zone.zone().frame_content(next) {
                // A block larger than the range: its part in the range is allocated.
                FrameContent::Free(order) => {
                    let order = order.min((range.end - next).ilog2() as u8);
                    contents.free_blocks.push((next, order));
                    order
                }
                FrameContent::Allocated(order) => {
                    let handle = self.handle_by_frame[(next - self.first_frame) as usize];
                    if !self.can_leave_range(handle) {
                        return None;
                    }
                    contents.held_blocks.push(handle);
                    order
                }
                FrameContent::OnPcpList(_) | FrameContent::InsideBlock => return None,
            };
            next += 1 << order;
        }
        (next == range.end).then_some(contents)
    }

    fn can_leave_range(&self, handle: u32) -> bool {
        handle != NO_HANDLE && {
            let entry = &self.entries[handle as usize];
            entry.page_use.allocation_type() == AllocationType::Movable
                && (!entry.is_pinned || self.journal.has_bug(MachineBug::PinnedPageLeavesRegion))
        }
    }

    /// Moves pages out of a range to free blocks above it: all, or none.
    fn migrate_out(
        &mut self,
        zone_number: usize,
        range: &Range<Frame>,
        contents: &RangeContents,
    ) -> Result<bool, Error> {
        let orders: Vec<u8> =
            contents.held_blocks.iter().map(|&held| self.entries[held as usize].order).collect();
        let zone = self.memory.zone_mut(zone_number);
        // Free frames of the range must not become migration targets.
        for &(frame, order) in &contents.free_blocks {
            if !zone.allocate_at(frame, order, AllocationType::Movable)? {
                return corrupted(format!("frame {frame:#x} is free, but cannot be allocated"));
            }
        }
        let mut targets = Vec::with_capacity(orders.len());
        for &order in &orders {
            match zone.allocate_above_boundary(order)? {
                Some(frame) => targets.push(frame),
                None => break,
            }
        }
        let has_all_targets = targets.len() == orders.len();
        if has_all_targets {
            for (&handle, &to) in contents.held_blocks.iter().zip(&targets) {
                debug_assert!(!range.contains(&to));
                let from = self.relocate_block(handle, to)?;
                self.stats.region_migrated_pages += u64::from(self.entries[handle as usize].pages());
                self.journal.record(Decision::BlockLeftRange { handle, from, to });
            }
        } else {
            targets.into_iter().try_for_each(|frame| zone.free_block(frame).map(|_| ()))?;
        }
        let zone = self.memory.zone_mut(zone_number);
        contents.free_blocks.iter().try_for_each(|&(frame, _)| zone.free_block(frame).map(|_| ()))?;
        self.journal.record(Decision::RegionExpansionEnded { zone: zone_number, has_room: has_all_targets });
        Ok(has_all_targets)
    }

    /// Returns free pageblocks below the boundary to the movable region.
    pub(super) fn lower_boundaries(&mut self) {
        for at in 0..self.memory.zone_count() {
            let pageblocks_returned = self.memory.zone_mut(at).lower_boundary();
            if pageblocks_returned > 0 {
                self.stats.region_pageblocks_returned += u64::from(pageblocks_returned);
                self.journal
                    .record(Decision::PageblocksReturned { zone: at, pageblocks: pageblocks_returned });
            }
        }
    }
}
