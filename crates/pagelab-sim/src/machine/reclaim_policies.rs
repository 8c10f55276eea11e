//! Reclaim policies: what is reclaimed for a large block in addition to the oldest pages, or instead of them.
//! The table of them is here. The amount scanned and the end of reclaim are not their decision.

use std::fmt::Debug;

use crate::machine::journal::{Decision, MachineBug, PageVerdict};
use crate::machine::reclaim::{COSTLY_ORDER, DEF_PRIORITY, ScanControl};
use crate::machine::{BlockEntry, Machine, NO_HANDLE, PageUse};
use crate::types::{Error, Frame, NamedPolicy, ZoneGeometry};
use crate::zone::FrameContent;

/// A reclaim policy. All decisions are for one zone and one requested order; the machine decides whether a
/// page can be reclaimed at all.
pub trait ReclaimPolicy: Debug {
    /// Whether direct reclaim for this order reclaims regions ([`ReclaimPolicy::reclaim_regions`]) instead of
    /// the oldest pages. It then ends as soon as a block is free, not after a number of pages.
    fn has_region_reclaim(&self, _order: u8) -> bool {
        false
    }

    /// Reclaims regions of a zone at one priority; returns the number of freed pages. Called if
    /// [`ReclaimPolicy::has_region_reclaim`] is true.
    fn reclaim_regions(&self, _context: &mut ReclaimContext<'_>) -> Result<u32, Error> {
        Ok(0)
    }

    /// Reclaims neighbors of the page at the end of its list, which was at this frame. Called for orders
    /// above 0, also by `kswapd`.
    fn reclaim_neighbors(
        &self,
        _context: &mut ReclaimContext<'_>,
        _frame: Frame,
    ) -> Result<ReclaimCount, Error> {
        Ok(ReclaimCount::default())
    }

    /// Whether a page referenced since the last scan is kept, for this order.
    fn has_second_chance(&self, _order: u8) -> bool {
        true
    }
}

/// A reclaim policy that can be chosen by name, after a `+` of a scheme.
pub type ReclaimPolicyEntry = NamedPolicy<dyn ReclaimPolicy + Sync>;

/// All reclaim policies. The first is that of a scheme that names none.
pub const TABLE: &[ReclaimPolicyEntry] = &[
    ReclaimPolicyEntry {
        name: "lru",
        summary: "reclaim takes the oldest pages, regardless of their location",
        source: "mm/vmscan.c of Linux up to 2.6.22, and since 3.5",
        policy: &OldestFirst,
    },
    ReclaimPolicyEntry {
        name: "linear",
        summary: "for large blocks, reclaim empties aligned regions",
        source: "Gorman and Whitcroft 2006, section 10",
        policy: &LinearReclaim,
    },
    ReclaimPolicyEntry {
        name: "lumpy",
        summary: "reclaim also takes the physical neighbours of the oldest page",
        source: "Linux 2.6.23 to 3.4",
        policy: &LumpyReclaim,
    },
];

/// Only the oldest pages.
pub const LRU_ONLY: &ReclaimPolicyEntry = &TABLE[0];

/// The reclaim policies that a scheme can name.
pub fn selectable_policies() -> &'static [ReclaimPolicyEntry] {
    &TABLE[1..]
}

/// The orders that it is for begin here.
const MIN_ORDER: u8 = 3;

/// Linear reclaim (Gorman and Whitcroft 2006, section 10; their patches of September 2006 against 2.6.18):
/// memory is a row of regions of the missing order, and whole regions are reclaimed.
#[derive(Clone, Copy, Debug)]
pub struct LinearReclaim;

impl ReclaimPolicy for LinearReclaim {
    fn has_region_reclaim(&self, order: u8) -> bool {
        order >= MIN_ORDER
    }

    /// Assesses regions, from where it ended last: the share of them given by the priority, as for lists. All
    /// pages of a region that holds only free and reclaimable ones are tried.
    fn reclaim_regions(&self, context: &mut ReclaimContext<'_>) -> Result<u32, Error> {
        let (geometry, frames) = (context.geometry(), 1u32 << context.order());
        let first_region = match context.has_bug(MachineBug::RegionUnaligned) {
            true => geometry.first_frame + frames / 2,
            false => geometry.first_frame.align_up(context.order()),
        };
        let regions = geometry.end().frames_since(first_region) / frames;
        if regions == 0 {
            return Ok(0);
        }
        let regions_to_scan = ((regions >> context.priority()) + 1).min(regions);
        let mut freed = 0;
        for _ in 0..regions_to_scan {
            // Its last position may not be the start of a region of this order.
            let cursor = context.linear_cursor();
            let from = first_region + cursor.frames_since(first_region).div_ceil(frames) % regions * frames;
            *cursor = from + frames;
            let pages = context.reclaimable_pages(from, context.order()).unwrap_or_default();
            context.count_region(from, !pages.is_empty());
            for page in pages {
                freed += context.reclaim_page(page)?.freed;
            }
        }
        Ok(freed)
    }
}

/// Lumpy reclaim (mm/vmscan.c of 2.6.23 to 3.4, `isolate_lru_pages`): the neighbours of the page at the end
/// of the list are reclaimed with it, up to the requested order.
#[derive(Clone, Copy, Debug)]
pub struct LumpyReclaim;

impl ReclaimPolicy for LumpyReclaim {
    /// Tries the pages around a frame, in the block of the missing order that contains it.
    fn reclaim_neighbors(
        &self,
        context: &mut ReclaimContext<'_>,
        frame: Frame,
    ) -> Result<ReclaimCount, Error> {
        let (geometry, order) = (context.geometry(), context.order());
        let from = frame.align_down(order).max(geometry.first_frame);
        let end = (frame.align_down(order) + (1 << order)).min(geometry.end());
        // Active pages go along where the order is costly, or it has become hard.
        let can_take_active = order > COSTLY_ORDER || context.priority() < DEF_PRIORITY - 2;
        let (mut at, mut total) = (from, ReclaimCount::default());
        while at < end {
            let (current, page) = (at, context.page_info(at));
            at += context.frames_to_next_block(at);
            let Some(page) = page.filter(|_| current != frame) else { continue };
            if !page.has_swap_room {
                break;
            }
            if !page.is_on_lru || page.is_active && !can_take_active {
                continue;
            }
            let counted = context.reclaim_page(current)?;
            total =
                ReclaimCount { freed: total.freed + counted.freed, scanned: total.scanned + counted.scanned };
        }
        Ok(total)
    }

    /// For a costly order it also takes pages that were used.
    fn has_second_chance(&self, order: u8) -> bool {
        order <= COSTLY_ORDER
    }
}

/// LRU reclaim: the oldest pages, regardless of their location.
#[derive(Clone, Copy, Debug)]
pub struct OldestFirst;

impl ReclaimPolicy for OldestFirst {}

/// Zone and purpose of a reclaim.
#[derive(Debug)]
pub struct ReclaimContext<'a> {
    machine: &'a mut Machine,
    zone: usize,
    geometry: ZoneGeometry,
    scan_control: &'a ScanControl,
}

/// Content of a frame that reclaim can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageInfo {
    /// Whether it is on a list of programs' or files' pages, and not the kernel's own or of the hugetlb pool.
    pub is_on_lru: bool,
    /// Whether it is on the active one.
    pub is_active: bool,
    /// Whether there is room for it in swap; pages that need none have room.
    pub has_swap_room: bool,
}

/// Result of reclaim attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimCount {
    /// Base pages that were freed.
    pub freed: u32,
    /// Scanned base pages.
    pub scanned: u32,
}

impl<'a> ReclaimContext<'a> {
    pub(in crate::machine) fn new(
        machine: &'a mut Machine,
        zone: usize,
        scan_control: &'a ScanControl,
    ) -> ReclaimContext<'a> {
        let geometry = machine.memory.zone(zone).0.geometry;
        ReclaimContext { machine, zone, geometry, scan_control }
    }

    /// The zone's frames.
    pub fn geometry(&self) -> ZoneGeometry {
        self.geometry
    }

    /// The missing order.
    pub fn order(&self) -> u8 {
        self.scan_control.order
    }

    /// Scan priority, from 12 down to 0: (n ≫ priority) + 1 of n regions or pages are scanned.
    pub fn priority(&self) -> u8 {
        self.scan_control.priority.min(DEF_PRIORITY)
    }

    /// Position at which to continue in this zone; at the start the first frame.
    pub fn linear_cursor(&mut self) -> &mut Frame {
        &mut self.machine.linear_cursors[self.zone]
    }

    /// Content of a frame of the zone.
    pub fn frame_content(&self, frame: Frame) -> FrameContent {
        if !self.geometry.contains(frame) {
            return FrameContent::InsideBlock;
        }
        self.machine.memory.zone(self.zone).1.zone().frame_content(frame)
    }

    /// Frames to the next beginning of a block, from one.
    pub fn frames_to_next_block(&self, frame: Frame) -> u32 {
        match self.frame_content(frame) {
            FrameContent::Allocated(order) | FrameContent::Free(order) | FrameContent::OnPcpList(order) => {
                1 << order
            }
            FrameContent::InsideBlock => 1,
        }
    }

    /// The held block that begins at a frame.
    pub fn page_info(&self, frame: Frame) -> Option<PageInfo> {
        let entry = self.entry(self.handle_at(frame)?);
        Some(PageInfo {
            is_on_lru: entry.page_use.is_file() || entry.page_use == PageUse::Anonymous,
            is_active: entry.is_active,
            has_swap_room: entry.page_use != PageUse::Anonymous || self.machine.has_swap_for(entry),
        })
    }

    fn entry(&self, handle: u32) -> &BlockEntry {
        &self.machine.entries[handle as usize]
    }

    fn handle_at(&self, frame: Frame) -> Option<u32> {
        let FrameContent::Allocated(_) = self.frame_content(frame) else { return None };
        let handle = self.machine.handle_by_frame[(frame - self.machine.first_frame) as usize];
        (handle != NO_HANDLE).then_some(handle)
    }

    /// The pages of an aligned region, if all that it holds is free or likely to be reclaimable; `None`: it
    /// holds something else, or reaches out of the zone.
    pub fn reclaimable_pages(&self, from: Frame, order: u8) -> Option<Vec<Frame>> {
        let mut pages = Vec::new();
        let (mut at, end) = (from, from + (1 << order));
        while at < end {
            match self.frame_content(at) {
                FrameContent::Free(_) => {}
                FrameContent::Allocated(_) => {
                    let is_likely_reclaimable =
                        self.handle_at(at).is_some_and(|handle| self.is_likely_reclaimable(handle));
                    if !is_likely_reclaimable && !self.has_bug(MachineBug::RegionNotAssessed) {
                        return None;
                    }
                    if is_likely_reclaimable {
                        pages.push(at);
                    }
                }
                // On a processor's list, or a part of a larger block.
                FrameContent::OnPcpList(_) | FrameContent::InsideBlock => return None,
            }
            at += self.frames_to_next_block(at);
        }
        Some(pages)
    }

    /// Whether a page is on an LRU list, and nothing is known to keep it from being reclaimed.
    fn is_likely_reclaimable(&self, handle: u32) -> bool {
        let entry = self.entry(handle);
        if entry.writeback_state.is_writing() && !self.has_bug(MachineBug::RegionUnderWriteback) {
            return false;
        }
        match entry.page_use {
            PageUse::File | PageUse::BlockDevice => !entry.is_pinned,
            PageUse::Anonymous => !entry.is_pinned && self.machine.has_swap_for(entry),
            PageUse::Kernel | PageUse::PageTable | PageUse::Slab | PageUse::Hugetlb => false,
        }
    }

    /// Counts a region that was assessed, and whether its pages are tried now.
    pub fn count_region(&mut self, from: Frame, is_tried: bool) {
        self.machine.stats.regions_tried += u64::from(is_tried);
        self.machine.journal.record(Decision::RegionAssessed {
            from,
            order: self.scan_control.order,
            is_tried,
        });
    }

    /// Tries the page at a frame as one at the end of its list: it is freed, written first, or spared.
    /// Nothing is done where no page is on a list.
    pub fn reclaim_page(&mut self, frame: Frame) -> Result<ReclaimCount, Error> {
        let is_on_lru = self.page_info(frame).is_some_and(|page| page.is_on_lru);
        let Some(handle) = self.handle_at(frame).filter(|_| is_on_lru) else {
            return Ok(ReclaimCount::default());
        };
        let scanned = self.entry(handle).pages();
        self.machine.stats.pages_scanned += u64::from(scanned);
        let verdict = self.machine.decide_page(handle, self.scan_control);
        self.machine.journal.record(Decision::NeighborScanned { handle, verdict });
        let freed =
            if verdict == PageVerdict::Skip { 0 } else { self.machine.apply_verdict(handle, verdict)? };
        Ok(ReclaimCount { freed, scanned })
    }

    pub(in crate::machine) fn has_bug(&self, bug: MachineBug) -> bool {
        self.machine.journal.has_bug(bug)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_chosen_from() {
        for entry in TABLE {
            let of_this_name = TABLE.iter().filter(|other| other.name == entry.name);
            assert_eq!(of_this_name.count(), 1, "two of one name");
            assert!(entry.summary.len() <= 80 && !entry.source.is_empty(), "{}", entry.name);
            // Each name in a scheme is unambiguous.
            assert!(
                crate::policies::find_policy(entry.name).is_none(),
                "{} is a placement policy",
                entry.name
            );
        }
        assert_eq!(LRU_ONLY.name, "lru");
    }

    /// For a base page, pages are reclaimed by age, whatever the policy.
    #[test]
    fn one_page_is_never_reclaimed_by_its_place() {
        for entry in TABLE {
            assert!(
                !entry.policy.has_region_reclaim(0) && entry.policy.has_second_chance(0),
                "{}",
                entry.name
            );
        }
    }
}
