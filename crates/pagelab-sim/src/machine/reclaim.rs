//! Reclaim: scan counts, lists and priorities (mm/vmscan.c: `try_to_free_pages`, `shrink_zone` and
//! `shrink_slab` of 2.6.16; `do_try_to_free_pages`, `shrink_node`, `get_scan_count` and `do_shrink_slab` of
//! 6.1).

use super::journal::Decision;
use super::lru::{LruKind, LruList};
use super::reclaim_policies::ReclaimContext;
use super::{BlockEntry, Machine, Release};
use crate::types::Error;

mod aging;

/// Initial priority (`DEF_PRIORITY`): of a list of n pages, n >> priority are scanned.
pub(super) const DEF_PRIORITY: u8 = 12;

/// Batch of reclaim: pages to free or to scan at a time (`SWAP_CLUSTER_MAX`).
pub(super) const SWAP_CLUSTER_MAX: u32 = 32;

/// Orders above this one are costly (`PAGE_ALLOC_COSTLY_ORDER`).
pub(super) const COSTLY_ORDER: u8 = 3;

/// Purpose of a reclaim.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanControl {
    /// Node of the request.
    pub node: u16,
    /// Highest zone index that serves the request.
    pub zone_index: u8,
    /// Requested order.
    pub order: u8,
    /// Scan counts of the lists.
    pub priority: u8,
    /// Pages to free.
    pub pages_to_reclaim: u32,
    /// Whether anonymous pages may be swapped.
    pub can_swap: bool,
    /// Whether it is direct reclaim, not `kswapd`.
    pub is_direct: bool,
}

impl ScanControl {
    /// A pass of `kswapd` at the initial priority.
    pub fn of_kswapd(node: u16, zone_index: u8, order: u8) -> ScanControl {
        ScanControl {
            node,
            zone_index,
            order,
            priority: DEF_PRIORITY,
            pages_to_reclaim: SWAP_CLUSTER_MAX,
            can_swap: true,
            is_direct: false,
        }
    }
}

impl Machine {
    pub(super) fn record_pass(&mut self, scan_control: &ScanControl) {
        let ScanControl { order, zone_index, is_direct, .. } = *scan_control;
        self.journal.record(Decision::ReclaimPass { order, zone_index, is_direct });
    }

    /// Reclaims for a request until enough pages are freed, or all were scanned. Returns the number of freed
    /// pages.
    pub(super) fn try_to_free_pages(&mut self, node: u16, zone_index: u8, order: u8) -> Result<u32, Error> {
        // With compaction, memory for both copies of a block is freed (`compact_gap`).
        let compact_gap = if self.config.has_compaction && order > 0 { 2 << order } else { 0 };
        let pages_to_reclaim = SWAP_CLUSTER_MAX.max(compact_gap);
        let kswapd_control = ScanControl::of_kswapd(node, zone_index, order);
        let mut scan_control = ScanControl { pages_to_reclaim, is_direct: true, ..kswapd_control };
        let (mut freed, scanned_before) = (0, self.stats.pages_scanned);
        for priority in (0..=DEF_PRIORITY).rev() {
            scan_control.priority = priority;
            freed += self.shrink_zones(&scan_control)?;
            // Reclaim of regions ends when one is free: parts of several regions are of no use.
            let is_region_reclaim = self.config.reclaim_policy.policy.has_region_reclaim(order);
            let is_enough = if is_region_reclaim {
                self.is_order_available(&scan_control)
            } else {
                freed >= scan_control.pages_to_reclaim
            };
            if is_enough {
                break;
            }
            self.throttle_direct_reclaim(priority, scanned_before);
        }
        Ok(freed)
    }

    /// Between two passes of direct reclaim: wakes the flusher, and from a certain priority on waits for the
    /// disk (`try_to_free_pages`).
    fn throttle_direct_reclaim(&mut self, priority: u8, scanned_before: u64) {
        if !self.has_disk() {
            return;
        }
        let scanned = self.stats.pages_scanned - scanned_before;
        if scanned > u64::from(SWAP_CLUSTER_MAX + SWAP_CLUSTER_MAX / 2) {
            self.disk.requested_pages = self.disk.requested_pages.max(scanned);
            self.journal.record(Decision::WritebackRequested { pages: scanned });
        }
        if scanned > 0 && priority < DEF_PRIORITY - 2 {
            self.congestion_wait();
        }
    }

    /// Whether a zone has a block for the request above its min watermark.
    fn is_order_available(&self, scan_control: &ScanControl) -> bool {
        let ScanControl { node, zone_index, order, .. } = *scan_control;
        self.memory.zonelist(node, zone_index).any(|zone| {
            let min = self.memory.zone(zone).0.watermarks.min;
            self.memory.is_watermark_ok(zone, min, order, zone_index)
        })
    }

    /// One pass over all zones that may serve a request.
    fn shrink_zones(&mut self, scan_control: &ScanControl) -> Result<u32, Error> {
        self.record_pass(scan_control);
        let (scanned_before, policy) = (self.stats.pages_scanned, self.config.reclaim_policy.policy);
        let (mut freed, mut pages, mut previous_lruvec) = (0, 0u64, None);
        for position in 0..self.memory.zone_count() {
            let Some(zone) = self.memory.zone_in_zonelist(scan_control.node, position) else { break };
            if self.memory.zone(zone).0.zone_index > scan_control.zone_index {
                continue;
            }
            let lruvec = usize::from(self.lruvec_of_zone[zone]);
            if previous_lruvec != Some(lruvec) {
                pages += u64::from(self.lru_pages(lruvec));
            }
            if policy.has_region_reclaim(scan_control.order) {
                freed += policy.reclaim_regions(&mut ReclaimContext::new(self, zone, scan_control))?;
            } else if previous_lruvec != Some(lruvec)
                && (scan_control.priority == DEF_PRIORITY || !self.is_all_unreclaimable(lruvec))
            {
                freed += self.shrink_lruvec(lruvec, scan_control)?;
            }
            if previous_lruvec != Some(lruvec) && self.tuning.release == Release::V6_1 {
                freed += self.shrink_slab(lruvec, scan_control.priority, 0, 0)?;
            }
            previous_lruvec = Some(lruvec);
        }
        if self.tuning.release == Release::V2_6_16 {
            let scanned = self.stats.pages_scanned - scanned_before;
            for area in 0..self.lruvecs.len() {
                freed += self.shrink_slab(area, scan_control.priority, scanned, pages)?;
            }
        }
        Ok(freed)
    }

    /// Anonymous and file pages in an area.
    pub(super) fn lru_pages(&self, lruvec: usize) -> u32 {
        self.pages_of_kind(lruvec, LruKind::Anonymous) + self.pages_of_kind(lruvec, LruKind::File)
    }

    /// Pages on both lists of a kind in an area.
    pub(super) fn pages_of_kind(&self, lruvec: usize, kind: LruKind) -> u32 {
        let inactive = LruList { lruvec, kind, is_active: false };
        self.lru.page_count(inactive) + self.lru.page_count(inactive.counterpart())
    }

    /// Whether an area was scanned four times without a freed page (`all_unreclaimable`, 2.6.16).
    pub(super) fn is_all_unreclaimable(&self, lruvec: usize) -> bool {
        self.tuning.release == Release::V2_6_16
            && self.lruvecs[lruvec].pages_scanned >= 4 * u64::from(self.lru_pages(lruvec))
    }

    pub(super) fn has_swap_for(&self, entry: &BlockEntry) -> bool {
        self.config.swap_frames - self.swapped_frames.min(self.config.swap_frames) >= entry.pages()
    }

    /// Reclaims the oldest pages of an area.
    pub(super) fn shrink_lruvec(&mut self, lruvec: usize, plan: &ScanControl) -> Result<u32, Error> {
        match self.tuning.release {
            Release::V2_6_16 => self.shrink_unified_lists(lruvec, plan),
            Release::V6_1 => self.shrink_split_lists(lruvec, plan),
        }
    }

    /// Scans an area whose file and anonymous pages are on the same lists (`shrink_zone`, 2.6.16).
    fn shrink_unified_lists(&mut self, lruvec: usize, plan: &ScanControl) -> Result<u32, Error> {
        let inactive = LruList { lruvec, kind: LruKind::Anonymous, is_active: false };
        let mut pages_to_scan = [0; 2];
        for (is_active, look) in pages_to_scan.iter_mut().enumerate() {
            let list = LruList { is_active: is_active == 1, ..inactive };
            let remainder = &mut self.lruvecs[lruvec].scan_remainder[is_active];
            *remainder += (self.lru.page_count(list) >> plan.priority) + 1;
            if *remainder >= SWAP_CLUSTER_MAX {
                *look = std::mem::take(remainder);
            }
        }
        let mut freed = 0;
        while pages_to_scan != [0, 0] {
            let batch = pages_to_scan.map(|left| left.min(SWAP_CLUSTER_MAX));
            pages_to_scan = [pages_to_scan[0] - batch[0], pages_to_scan[1] - batch[1]];
            self.shrink_active_list(inactive.counterpart(), batch[1], plan);
            freed += self.shrink_list(inactive, batch[0], plan)?;
        }
        self.lruvecs[lruvec].prev_priority = plan.priority;
        Ok(freed)
    }

    /// Scans an area with separate lists of file and anonymous pages (`shrink_lruvec`, 6.1).
    fn shrink_split_lists(&mut self, lruvec: usize, plan: &ScanControl) -> Result<u32, Error> {
        let lru_kinds = [LruKind::Anonymous, LruKind::File];
        let scan_shares = self.scan_shares(lruvec, plan);
        // Inactive and active lists of anonymous pages, then of file pages.
        let mut pages_to_scan = [[0; 2]; 2];
        for ((sort, (part, whole)), looks) in lru_kinds.into_iter().zip(scan_shares).zip(&mut pages_to_scan) {
            for (is_active, look) in looks.iter_mut().enumerate() {
                let pages = self.lru.page_count(LruList { lruvec, kind: sort, is_active: is_active == 1 });
                *look = (u64::from(pages >> plan.priority) * part / whole.max(1)) as u32;
            }
        }
        let mut freed = 0;
        while pages_to_scan[0][0] > 0 || pages_to_scan[1] != [0, 0] {
            for (sort, looks) in lru_kinds.into_iter().zip(&mut pages_to_scan) {
                let inactive = LruList { lruvec, kind: sort, is_active: false };
                let batch = looks.map(|left| left.min(SWAP_CLUSTER_MAX));
                *looks = [looks[0] - batch[0], looks[1] - batch[1]];
                freed += self.shrink_list(inactive, batch[0], plan)?;
                if self.is_inactive_low(inactive) {
                    self.shrink_active_list(inactive.counterpart(), batch[1], plan);
                }
            }
            if freed >= plan.pages_to_reclaim && plan.priority < DEF_PRIORITY {
                break;
            }
        }
        let anonymous = LruList { lruvec, kind: LruKind::Anonymous, is_active: false };
        if self.swapped_frames < self.config.swap_frames && self.is_inactive_low(anonymous) {
            self.shrink_active_list(anonymous.counterpart(), SWAP_CLUSTER_MAX, plan);
        }
        Ok(freed)
    }

    /// Numbers of pages to scan on the lists of anonymous and of file pages (`get_scan_count`, 6.1).
    fn scan_shares(&self, lruvec: usize, plan: &ScanControl) -> [(u64, u64); 2] {
        let file = LruList { lruvec, kind: LruKind::File, is_active: false };
        let swappiness = u64::from(self.tuning.swappiness.min(200));
        let has_swap = plan.can_swap && self.swapped_frames < self.config.swap_frames;
        if !has_swap || swappiness == 0 && plan.priority > 0 {
            return [(0, 1), (1, 1)];
        }
        if plan.priority == 0 && swappiness > 0 {
            return [(1, 1), (1, 1)];
        }
        if self.lru.page_count(file) >> plan.priority > 0 && !self.is_inactive_low(file) {
            return [(0, 1), (1, 1)];
        }
        let [anonymous, files] = self.lruvecs[lruvec].reclaim_costs;
        let total = anonymous + files;
        let (anonymous, files) = (total + anonymous, total + files);
        let total = anonymous + files;
        let parts =
            [swappiness * (total + 1) / (anonymous + 1), (200 - swappiness) * (total + 1) / (files + 1)];
        let total_parts = parts[0] + parts[1] + 1;
        parts.map(|part| (part, total_parts))
    }

    /// Whether an inactive list is short relative to its active one (`inactive_is_low`, 6.1): ratio 1 up to 1
    /// GiB of pages, √(10 · GiB) above.
    fn is_inactive_low(&self, inactive: LruList) -> bool {
        let (inactive_pages, active_pages) =
            (self.lru.page_count(inactive), self.lru.page_count(inactive.counterpart()));
        // Of base pages of 4 KiB.
        let gib = (u64::from(inactive_pages) + u64::from(active_pages)) >> 18;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        u64::from(inactive_pages) * ratio < u64::from(active_pages)
    }

    /// Whether a refaulted page was reclaimed so recently that it would still be resident had active pages
    /// been reclaimed instead (`workingset_refault`, 6.1). The cost is recorded.
    pub(super) fn is_workingset_refault(&mut self, entry: &BlockEntry) -> bool {
        let (lru_kind, other) = match entry.page_use {
            super::PageUse::Anonymous => (LruKind::Anonymous, LruKind::File),
            super::PageUse::File | super::PageUse::BlockDevice => (LruKind::File, LruKind::Anonymous),
            _ => return false,
        };
        if self.tuning.release == Release::V2_6_16 {
            return false;
        }
        let area = usize::from(self.lruvec_of_zone[usize::from(entry.zone)]);
        let active = LruList { lruvec: area, kind: lru_kind, is_active: true };
        let has_swap = self.swapped_frames < self.config.swap_frames;
        let usable = |sort| sort == LruKind::File || has_swap;
        let mut workingset_pages = if usable(lru_kind) { self.lru.page_count(active) } else { 0 };
        workingset_pages += if usable(other) { self.pages_of_kind(area, other) } else { 0 };
        let refault_distance = (self.stats.pages_reclaimed as u32).wrapping_sub(entry.eviction_stamp);
        if refault_distance > workingset_pages {
            return false;
        }
        let size = u64::from(self.lru_pages(area));
        let costs = &mut self.lruvecs[area].reclaim_costs;
        costs[lru_kind as usize] += u64::from(entry.pages());
        if costs[0] + costs[1] > size / 4 {
            *costs = costs.map(|cost| cost / 2);
        }
        true
    }
}

/// Batch of the shrinkers, in objects (`SHRINK_BATCH`).
const SHRINK_BATCH: u64 = 128;

impl Machine {
    /// Shrinks the kernel's caches by the pressure on the pages of their area: `scanned` of `pages` in
    /// 2.6.16, the priority in 6.1. Returns the number of freed pages.
    ///
    /// The objects of a page were last used at different times: each visit of the shrinker finds half of the
    /// unused ones old enough.
    pub(super) fn shrink_slab(
        &mut self,
        lruvec: usize,
        priority: u8,
        scanned: u64,
        pages: u64,
    ) -> Result<u32, Error> {
        let list = LruList { lruvec, kind: LruKind::Slab, is_active: false };
        let objects = self.lruvecs[lruvec].slab_objects;
        if objects == 0 {
            return Ok(0);
        }
        // Two seeks to make an object again (`DEFAULT_SEEKS`), of four that count.
        let added_scan = match self.tuning.release {
            Release::V2_6_16 => u128::from(2 * scanned) * u128::from(objects) / u128::from(pages + 1),
            Release::V6_1 => u128::from(2 * (objects >> priority.min(DEF_PRIORITY))),
        };
        let mut objects_to_scan = (u128::from(self.lruvecs[lruvec].slab_scan_remainder) + added_scan)
            .min(u128::from(2 * objects)) as u64;
        let mut freed = 0;
        while objects_to_scan > 0 && (objects_to_scan >= SHRINK_BATCH || objects_to_scan >= objects) {
            let Some(handle) = self.lru.oldest(list) else { break };
            let entry = self.entries[handle as usize];
            objects_to_scan -=
                u64::from(entry.slab_objects - entry.slab_objects_in_use).clamp(1, objects_to_scan);
            self.stats.pages_scanned += u64::from(entry.pages());
            freed += self.shrink_slab_page(handle)?;
        }
        self.lruvecs[lruvec].slab_scan_remainder = objects_to_scan;
        Ok(freed)
    }

    fn shrink_slab_page(&mut self, handle: u32) -> Result<u32, Error> {
        let entry = &mut self.entries[handle as usize];
        let pages = entry.pages();
        let was_touched = std::mem::take(&mut entry.is_accessed);
        let freed_objects = match was_touched || entry.is_pinned {
            true => 0,
            false => (entry.slab_objects - entry.slab_objects_in_use).div_ceil(2),
        };
        entry.slab_objects -= freed_objects;
        self.stats.slab_objects += u64::from(freed_objects);
        let (objects, zone) = (entry.slab_objects, usize::from(entry.zone));
        self.lruvecs[usize::from(self.lruvec_of_zone[zone])].slab_objects -= u64::from(freed_objects);
        self.journal.record(Decision::SlabPageShrunk { handle, objects });
        if objects > 0 {
            self.move_to_lru_head(handle, false);
            return Ok(0);
        }
        self.stats.slab_pages += u64::from(pages);
        self.evict_block(handle)?;
        Ok(pages)
    }
}
