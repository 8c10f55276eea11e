//! Background activity: `kswapd` (mm/vmscan.c: `wakeup_kswapd`, `balance_pgdat`) and `kcompactd`
//! (mm/compaction.c), in time slices that the load grants.

use super::journal::{Decision, MachineBug};
use super::reclaim::{DEF_PRIORITY, SWAP_CLUSTER_MAX, ScanControl};
use super::{Machine, Release};
use crate::types::Error;

/// Failures after which `kswapd` is not woken until a page is freed (`MAX_RECLAIM_RETRIES`).
const MAX_KSWAPD_FAILURES: u8 = 16;

/// State of `kswapd` of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KswapdState {
    /// Requested order; `None`: it sleeps.
    order: Option<u8>,
    /// Highest requested zone.
    zone_index: u8,
    /// Pages freed since it was woken.
    pages_freed: u32,
    /// Whether it has begun, and pages to free for boosted watermarks.
    is_running: bool,
    boost_pages: u64,
    /// Number of failures, and the number of reclaimed pages at the last one.
    failure_count: u8,
    reclaimed_at_failure: u64,
    /// Time slices until the next proactive compaction.
    pub(super) proactive_defer: u32,
    /// Priority at which it waits for the disk; `None`: it does not wait.
    wait_priority: Option<u8>,
}

impl KswapdState {
    fn count_failure(&mut self, pages_reclaimed: u64) {
        self.failure_count = self.failure_count.saturating_add(1);
        self.reclaimed_at_failure = pages_reclaimed;
    }
}

impl Machine {
    /// Wakes `kswapd` of all nodes that may serve a request and have a zone below its watermark.
    pub(super) fn wake_all_kswapds(&mut self, node: u16, highest_zone_index: u8, order: u8) {
        for position in 0..self.memory.zone_count() {
            let Some(zone) = self.memory.zone_in_zonelist(node, position) else { break };
            let (config, _) = self.memory.zone(zone);
            if config.zone_index <= highest_zone_index {
                // Pageblocks are requested, regardless of the order (`wake_all_kswapds` of 6.15).
                let min_order = if self.is_pageblock_mode() { config.geometry.pageblock_order } else { 0 };
                self.wakeup_kswapd(zone, highest_zone_index, order.max(min_order));
            }
        }
    }

    /// Wakes `kswapd` of a zone's node if the zone is below its watermark (`wakeup_kswapd`).
    pub(super) fn wakeup_kswapd(&mut self, zone: usize, highest_zone_index: u8, order: u8) {
        let (config, _) = self.memory.zone(zone);
        let (node, low_watermark) = (config.node, config.watermarks.low);
        let is_balanced = match self.tuning.release {
            Release::V2_6_16 => self.memory.is_watermark_ok(zone, low_watermark, order, 0),
            Release::V6_1 => {
                self.is_node_balanced(node, order, highest_zone_index)
                    && !self.is_node_boosted(node, highest_zone_index)
            }
        };
        let kswapd = &mut self.kswapd_states[usize::from(node)];
        if kswapd.reclaimed_at_failure != self.stats.pages_reclaimed {
            kswapd.failure_count = 0;
        }
        if is_balanced || kswapd.failure_count >= MAX_KSWAPD_FAILURES {
            return;
        }
        if kswapd.order.is_none() {
            self.stats.kswapd_wakeups += 1;
            (kswapd.pages_freed, kswapd.zone_index, kswapd.is_running, kswapd.boost_pages) = (0, 0, false, 0);
        }
        kswapd.order = Some(kswapd.order.map_or(order, |before| before.max(order)));
        kswapd.zone_index = kswapd.zone_index.max(highest_zone_index);
        self.has_background_work = true;
    }

    /// Whether a zone of a node has a block above its high watermark (`pgdat_balanced`, 6.1). With
    /// `vm.defrag_mode`, the watermark must hold in whole pageblocks (6.15).
    fn is_node_balanced(&self, node: u16, order: u8, highest_zone_index: u8) -> bool {
        let is_pageblock_mode =
            order > 0 && self.is_pageblock_mode() && !self.journal.has_bug(MachineBug::SmallBlocksCounted);
        self.zones_of_node(node, highest_zone_index).any(|(at, config)| {
            let high = config.watermarks.high;
            match is_pageblock_mode {
                true => self.memory.is_pageblock_watermark_ok(at, high, order, highest_zone_index),
                false => self.memory.is_watermark_ok(at, high, order, highest_zone_index),
            }
        })
    }

    /// Runs background work until all zones are above their high watermarks, or `max_pages` pages of a node
    /// were freed or moved. Does nothing if memory is not short.
    pub fn run_background(&mut self, max_pages: u32) -> Result<(), Error> {
        self.lower_boundaries();
        self.run_disk_slice();
        if !self.has_background_work {
            return Ok(());
        }
        let mut has_background_work = self.tuning.compaction_proactiveness > 0 && self.config.has_compaction;
        for node in 0..self.kswapd_states.len() {
            let Some(order) = self.kswapd_states[node].order else {
                self.compact_proactively(node as u16, max_pages)?;
                continue;
            };
            match self.tuning.release {
                Release::V2_6_16 => self.balance_node_2_6(node as u16, order, max_pages)?,
                Release::V6_1 => self.balance_pgdat(node as u16, order, max_pages)?,
            }
            has_background_work |= self.kswapd_states[node].order.is_some();
        }
        self.has_background_work = has_background_work;
        Ok(())
    }

    /// The highest zone of a node below its high watermark, in the order in which 2.6.16 searches.
    fn highest_short_zone(&self, node: u16, order: u8, priority: u8) -> Option<u8> {
        let zones = self.zones_of_node(node, u8::MAX).filter(|&(at, config)| {
            let is_hopeless =
                self.is_all_unreclaimable(usize::from(self.lruvec_of_zone[at])) && priority != DEF_PRIORITY;
            !is_hopeless && !self.memory.is_watermark_ok(at, config.watermarks.high, order, 0)
        });
        zones.map(|(_, config)| config.zone_index).max()
    }

    /// Reclaims until each zone has a block above its high watermark (2.6.16). From a certain priority on it
    /// waits for the disk between two passes (`blk_congestion_wait`), and also when the queue is full
    /// (`get_request_wait`).
    fn balance_node_2_6(&mut self, node: u16, order: u8, max_pages: u32) -> Result<(), Error> {
        let wait_priority = self.kswapd_states[usize::from(node)].wait_priority.take();
        let (mut freed, mut priority, mut freed_in_loop) = (0, wait_priority.unwrap_or(DEF_PRIORITY), 0);
        while freed < max_pages {
            let Some(zone_index) = self.highest_short_zone(node, order, priority) else {
                return self.put_kswapd_to_sleep(node, order);
            };
            let scan_control = ScanControl { priority, ..ScanControl::of_kswapd(node, zone_index, order) };
            let freed_in_pass = self.shrink_node_zones(&scan_control)?;
            freed += freed_in_pass;
            freed_in_loop += freed_in_pass;
            if freed_in_loop < SWAP_CLUSTER_MAX && priority > 0 {
                priority -= 1;
            } else if freed_in_loop == 0 {
                return self.stop_kswapd(node);
            } else {
                (priority, freed_in_loop) = (DEF_PRIORITY, 0);
            }
            if self.is_queue_full() || priority < DEF_PRIORITY - 2 && self.is_congested() {
                self.kswapd_states[usize::from(node)].wait_priority = Some(priority);
                break;
            }
        }
        Ok(())
    }

    /// One pass over the zones of a node.
    fn shrink_node_zones(&mut self, scan_control: &ScanControl) -> Result<u32, Error> {
        self.record_pass(scan_control);
        let (before, mut freed, mut pages) = (self.stats.pages_scanned, 0, 0);
        for at in 0..self.memory.zone_count() {
            let lruvec = usize::from(self.lruvec_of_zone[at]);
            let (config, _) = self.memory.zone(at);
            if config.node != scan_control.node || config.zone_index > scan_control.zone_index {
                continue;
            }
            pages += u64::from(self.lru_pages(lruvec));
            if scan_control.priority == DEF_PRIORITY || !self.is_all_unreclaimable(lruvec) {
                freed += self.shrink_lruvec(lruvec, scan_control)?;
            }
        }
        let scanned = self.stats.pages_scanned - before;
        for area in 0..self.lruvecs.len() {
            freed += self.shrink_slab(area, scan_control.priority, scanned, pages)?;
        }
        Ok(freed)
    }

    /// Reclaims until one zone has a block above its high watermark. For large blocks no more is freed than
    /// compaction needs (6.1).
    fn balance_pgdat(&mut self, node: u16, order: u8, max_pages: u32) -> Result<(), Error> {
        let (mut freed, mut priority) = (0, DEF_PRIORITY);
        let lruvec = usize::from(node);
        if !std::mem::replace(&mut self.kswapd_states[lruvec].is_running, true) {
            self.kswapd_states[lruvec].boost_pages =
                self.start_boost_reclaim(node, self.kswapd_states[lruvec].zone_index);
        }
        while freed < max_pages {
            let KswapdState { zone_index, boost_pages: boost, pages_freed: total_freed, .. } =
                self.kswapd_states[lruvec];
            let order_to_balance = if order > 0 && total_freed >= 2 << order { 0 } else { order };
            let is_balanced = self.is_node_balanced(node, order_to_balance, zone_index);
            if boost > 0 && !is_balanced {
                // Zones below their watermarks come first, boosts included.
                (self.kswapd_states[lruvec].boost_pages, priority) = (0, DEF_PRIORITY);
                continue;
            }
            self.journal.record(Decision::KswapdPass {
                order: order_to_balance,
                zone_index,
                is_balanced,
                boost,
            });
            if is_balanced && boost == 0 {
                return self.put_kswapd_to_sleep(node, order);
            }
            let can_swap = boost == 0 || self.journal.has_bug(MachineBug::BoostSwaps);
            let first_pass = ScanControl::of_kswapd(node, zone_index, order_to_balance);
            let scan_control = ScanControl { priority, can_swap, ..first_pass };
            self.record_pass(&scan_control);
            let scanned_before = self.stats.pages_scanned;
            let freed_in_pass =
                self.shrink_lruvec(lruvec, &scan_control)? + self.shrink_slab(lruvec, priority, 0, 0)?;
            freed += freed_in_pass;
            self.kswapd_states[lruvec].pages_freed += freed_in_pass;
            let boost_left = boost - boost.min(u64::from(freed_in_pass));
            self.kswapd_states[lruvec].boost_pages = boost_left;
            if boost_left > 0 && freed_in_pass == 0 {
                // For raised watermarks nothing is written; it may have no end.
                if total_freed == 0 {
                    self.kswapd_states[lruvec].count_failure(self.stats.pages_reclaimed);
                }
                return self.put_kswapd_to_sleep(node, order);
            }
            let has_scanned_too_little =
                self.stats.pages_scanned - scanned_before < self.pages_to_scan(node, zone_index);
            let raises_priority = boost > 0 && has_scanned_too_little && priority > DEF_PRIORITY - 2;
            priority -= u8::from(freed_in_pass == 0 || raises_priority);
            if priority == 0 {
                return self.stop_kswapd(node);
            }
        }
        Ok(())
    }

    fn stop_kswapd(&mut self, node: u16) -> Result<(), Error> {
        let kswapd = &mut self.kswapd_states[usize::from(node)];
        kswapd.order = None;
        kswapd.count_failure(self.stats.pages_reclaimed);
        if self.end_boost_reclaim(node) && self.config.has_compaction {
            self.wake_kcompactd(node, 0, true)?;
        }
        Ok(())
    }

    /// Puts `kswapd` to sleep: skipped pageblocks are scanned again, and memory is compacted for the
    /// requested order.
    fn put_kswapd_to_sleep(&mut self, node: u16, order: u8) -> Result<(), Error> {
        self.kswapd_states[usize::from(node)].order = None;
        let was_boosted = self.end_boost_reclaim(node);
        if !self.config.has_compaction {
            return Ok(());
        }
        for at in 0..self.memory.zone_count() {
            if self.memory.zone(at).0.node == node {
                self.compactors[at].flush_skip_bits();
                self.journal.record(Decision::SkipBitsReset { zone: at });
            }
        }
        self.wake_kcompactd(node, order, was_boosted)
    }

    /// Compacts the zones of a node for an order, or for whole pageblocks at least (`wakeup_kcompactd`).
    fn wake_kcompactd(&mut self, node: u16, order: u8, for_pageblocks: bool) -> Result<(), Error> {
        let zone_index = self.kswapd_states[usize::from(node)].zone_index;
        if self.is_pageblock_mode() && !self.is_node_short_of_pageblocks(node, order, zone_index) {
            return Ok(());
        }
        for at in 0..self.memory.zone_count() {
            let (config, _) = self.memory.zone(at);
            let (node_of_zone, own_zone_index) = (config.node, config.zone_index);
            let order = if for_pageblocks { order.max(config.geometry.pageblock_order) } else { order };
            if node_of_zone == node && order > 0 && own_zone_index <= zone_index {
                self.compact_by_kcompactd(at, order, zone_index)?;
            }
        }
        Ok(())
    }
}

/// Unit of `watermark_boost_factor`: ten-thousandths.
const BOOST_FACTOR_DIVISOR: u64 = 10_000;

/// Watermark boost of a zone: the watermarks are raised temporarily when a fallback mixes migratetypes in a
/// pageblock (`boost_watermark` of mm/page_alloc.c, `balance_pgdat` of mm/vmscan.c; Linux since 5.0, here as
/// in 6.1). Background reclaim frees as much, and memory is compacted for pageblocks, so that the next
/// request finds one of its own migratetype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WatermarkBoost {
    /// Number of mixing fallbacks at the last check.
    events_seen: u32,
    /// Current boost.
    current: u64,
    /// Boost when `kswapd` began.
    at_kswapd_start: u64,
    /// Whether `kswapd` is to be woken (`ZONE_BOOSTED_WATERMARK`).
    has_pending_wakeup: bool,
}

impl Machine {
    /// Boosts the watermarks of zones in which fallbacks have mixed migratetypes since the last check, and
    /// wakes `kswapd` of the serving zone.
    pub(super) fn boost_watermarks(&mut self, served_zone: Option<usize>) {
        if self.tuning.watermark_boost_factor == 0 {
            return;
        }
        for at in 0..self.watermark_boosts.len() {
            let (config, zone) = self.memory.zone(at);
            let events = zone.zone().fragmentation_events();
            let new_events =
                events.wrapping_sub(std::mem::replace(&mut self.watermark_boosts[at].events_seen, events));
            if new_events == 0 {
                continue;
            }
            let (pageblock_frames, frames) =
                (1u64 << config.geometry.pageblock_order, u64::from(config.geometry.frames));
            let high_watermark = config.watermarks.high - self.watermark_boosts[at].current;
            let max_boost =
                high_watermark * u64::from(self.tuning.watermark_boost_factor) / BOOST_FACTOR_DIVISOR;
            // Small zones, and zones without watermarks, are skipped.
            if 4 * pageblock_frames > frames || max_boost == 0 {
                continue;
            }
            self.stats.watermark_boosts += u64::from(new_events);
            let boost = (self.watermark_boosts[at].current + u64::from(new_events) * pageblock_frames)
                .min(max_boost.max(pageblock_frames));
            self.set_boost(at, boost);
            self.watermark_boosts[at].has_pending_wakeup = true;
            self.journal.record(Decision::WatermarksBoosted { zone: at, times: new_events, boost });
        }
        if let Some(at) =
            served_zone.filter(|&at| std::mem::take(&mut self.watermark_boosts[at].has_pending_wakeup))
        {
            self.wakeup_kswapd(at, self.memory.zone(at).0.zone_index, 0);
        }
    }

    fn set_boost(&mut self, zone: usize, boost: u64) {
        self.watermark_boosts[zone].current = boost;
        self.memory.set_watermark_boost(zone, boost);
    }

    /// Whether the watermarks of a zone of a node are boosted (`pgdat_watermark_boosted`).
    pub(super) fn is_node_boosted(&self, node: u16, highest_zone_index: u8) -> bool {
        self.zones_of_node(node, highest_zone_index).any(|(at, _)| self.watermark_boosts[at].current > 0)
    }

    /// `kswapd` of a node begins: pages to free for boosted watermarks.
    pub(super) fn start_boost_reclaim(&mut self, node: u16, highest_zone_index: u8) -> u64 {
        let mut sum = 0;
        for ((config, _), boost) in self.memory.zones().zip(&mut self.watermark_boosts) {
            let is_eligible = config.node == node && config.zone_index <= highest_zone_index;
            boost.at_kswapd_start = if is_eligible { boost.current } else { 0 };
            sum += boost.at_kswapd_start;
        }
        sum
    }

    /// `kswapd` of a node ends: the boosts of its begin are removed, and memory is compacted for pageblocks.
    /// Returns whether there was a boost.
    pub(super) fn end_boost_reclaim(&mut self, node: u16) -> bool {
        self.journal.record(Decision::KswapdFinished { node });
        let mut was_boosted = false;
        for at in 0..self.watermark_boosts.len() {
            if self.memory.zone(at).0.node != node {
                continue;
            }
            let boost_at_start = std::mem::take(&mut self.watermark_boosts[at].at_kswapd_start);
            if boost_at_start == 0 {
                continue;
            }
            was_boosted = true;
            if !self.journal.has_bug(MachineBug::BoostNeverReduced) {
                self.set_boost(at, self.watermark_boosts[at].current.saturating_sub(boost_at_start));
            }
            self.journal
                .record(Decision::BoostReduced { zone: at, boost: self.watermark_boosts[at].current });
        }
        was_boosted
    }

    /// Pages that a pass of `kswapd` should scan; if it does, its priority is high enough
    /// (`kswapd_shrink_node`).
    pub(super) fn pages_to_scan(&self, node: u16, highest_zone_index: u8) -> u64 {
        let zones = self.zones_of_node(node, highest_zone_index);
        zones.map(|(_, config)| config.watermarks.high.max(32)).sum()
    }
}
