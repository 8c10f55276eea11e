//! The path of a request (mm/page_alloc.c: `__alloc_pages` of 2.6.16, `__alloc_pages_slowpath` of 6.1).

use super::compaction::{CompactPriority, CompactResult};
use super::journal::Decision;
use super::reclaim::COSTLY_ORDER;
use super::{AllocRequest, Effort, Machine, PageUse, Release};
use crate::memory::{Request, Watermark};
use crate::types::{Error, Frame};

/// Maximum number of retries of a request while reclaim makes progress.
const MAX_ROUNDS: u32 = 1000;

/// Rounds of reclaim without a page freed, and of compaction (`MAX_RECLAIM_RETRIES`, `MAX_COMPACT_RETRIES`).
const MAX_RETRIES: u32 = 16;

type ZoneFrame = Option<(u8, Frame)>;

impl Machine {
    /// Serves a request: zone and frame.
    pub(super) fn allocate_frame(&mut self, alloc_request: &AllocRequest) -> Result<ZoneFrame, Error> {
        let zone_limits = self.config.zone_limits;
        let AllocRequest { page_use, order, effort, node, cpu } = *alloc_request;
        let zone_index = match page_use {
            PageUse::Kernel | PageUse::Slab | PageUse::BlockDevice => zone_limits.kernel,
            PageUse::PageTable => zone_limits.page_tables,
            PageUse::File | PageUse::Anonymous | PageUse::Hugetlb => zone_limits.user,
        };
        if order > self.max_order {
            return Err(Error::OrderTooLarge { order, max: self.max_order });
        }
        let (alloc_type, can_fragment) = (page_use.allocation_type(), !self.memory.is_defrag_mode());
        let mut request =
            Request { order, alloc_type, zone_index, node, cpu, watermark: Watermark::Low, can_fragment };
        if let Some(found) = self.try_allocate(&request)? {
            return Ok(Some(found));
        }
        self.wake_all_kswapds(node, zone_index, order);
        request.watermark = if effort == Effort::Atomic { Watermark::BelowMin } else { Watermark::Min };
        let found = match self.try_allocate(&request)? {
            Some(found) => Some(found),
            None if effort == Effort::Atomic => None,
            None if self.config.has_compaction || self.tuning.release == Release::V6_1 => {
                self.allocate_slowpath(&request, effort)?
            }
            None => self.reclaim_and_retry(&request, effort)?,
        };
        // Mixing migratetypes is the last resort (`defrag_mode` in `__alloc_pages_slowpath` of 6.15).
        request.can_fragment = true;
        let found = if found.is_none() && !can_fragment { self.try_allocate(&request)? } else { found };
        self.stats.allocations_failed[usize::from(order)] += u64::from(found.is_none());
        Ok(found)
    }

    fn try_allocate(&mut self, request: &Request) -> Result<ZoneFrame, Error> {
        let mut found = self.memory.allocate_block(request)?;
        if found.is_none() && self.expand_region(request)? {
            found = self.memory.allocate_block(request)?;
        }
        self.boost_watermarks(found.map(|(zone, _)| zone));
        let Some((zone, taken)) = found else { return Ok(None) };
        self.stats.fallbacks += u64::from(taken.fallback.is_some());
        self.stats.allocations_served[usize::from(request.order)] += 1;
        Ok(Some((zone as u8, taken.frame)))
    }

    /// Reclaims and retries while reclaim makes progress (2.6.16: from the label `rebalance` on).
    fn reclaim_and_retry(&mut self, request: &Request, effort: Effort) -> Result<ZoneFrame, Error> {
        let can_retry = match effort {
            Effort::RetryMayFail => true,
            Effort::Normal => request.order <= COSTLY_ORDER,
            Effort::NoRetry | Effort::Atomic => false,
        };
        for _ in 0..MAX_ROUNDS {
            self.stats.direct_reclaims += 1;
            let slab_objects_before = self.stats.slab_objects;
            let freed = self.try_to_free_pages(request.node, request.zone_index, request.order)?;
            if let Some(found) = self.try_allocate(request)? {
                return Ok(Some(found));
            }
            // The kernel would kill a program if nothing was freed. Objects without a page count here, unlike
            // there, so nothing is killed.
            let has_no_progress = freed == 0
                && self.stats.slab_objects == slab_objects_before
                && self.disk.writeback_pages == 0;
            if has_no_progress || !can_retry {
                break;
            }
            self.congestion_wait();
        }
        Ok(None)
    }

    /// Compacts and reclaims in turns.
    fn allocate_slowpath(&mut self, request: &Request, effort: Effort) -> Result<ZoneFrame, Error> {
        let order = request.order;
        let is_costly = order > COSTLY_ORDER;
        let mut priority = CompactPriority::SyncLight;
        if is_costly || order > 0 && request.alloc_type != crate::types::AllocationType::Movable {
            let (result, found) = self.compact_zones_for(request, CompactPriority::Async)?;
            if found.is_some() {
                return Ok(found);
            }
            if is_costly && effort == Effort::NoRetry {
                if result <= CompactResult::Deferred {
                    return Ok(None);
                }
                priority = CompactPriority::Async;
            }
        }
        let (mut no_progress_rounds, mut compacted) = (0, 0);
        for _ in 0..MAX_ROUNDS {
            self.wake_all_kswapds(request.node, request.zone_index, order);
            if let Some(found) = self.try_allocate(request)? {
                return Ok(Some(found));
            }
            let freed = self.reclaim_directly(request)?;
            if let Some(found) = freed.1 {
                return Ok(Some(found));
            }
            let (result, found) = self.compact_zones_for(request, priority)?;
            if found.is_some() {
                return Ok(found);
            }
            if effort == Effort::NoRetry || is_costly && effort != Effort::RetryMayFail {
                break;
            }
            no_progress_rounds = if freed.0 && !is_costly { 0 } else { no_progress_rounds + 1 };
            // Before the request fails, the highatomic reserve is returned (`should_reclaim_retry`).
            let has_exhausted_retries = no_progress_rounds > MAX_RETRIES;
            let should_retry = if has_exhausted_retries {
                self.unreserve_highatomic(request, true)
            } else {
                self.can_reclaim_help(request)
            };
            if !(should_retry
                || freed.0 && self.should_compact_retry(request, result, &mut priority, &mut compacted))
            {
                break;
            }
        }
        Ok(None)
    }

    /// Direct reclaim (`__alloc_pages_direct_reclaim`): whether pages were freed, and the block found after
    /// it.
    fn reclaim_directly(&mut self, request: &Request) -> Result<(bool, ZoneFrame), Error> {
        if self.is_compaction_ready(request) {
            return Ok((true, None));
        }
        self.stats.direct_reclaims += 1;
        let before = self.stats.slab_objects;
        let freed = self.try_to_free_pages(request.node, request.zone_index, request.order)?;
        if freed == 0 {
            return Ok((self.stats.slab_objects > before, None));
        }
        if let Some(found) = self.try_allocate(request)? {
            return Ok((true, Some(found)));
        }
        self.unreserve_highatomic(request, false);
        self.memory.drain_pcp_lists();
        Ok((true, self.try_allocate(request)?))
    }

    /// Returns a pageblock of the highatomic reserve to a request that would fail, from the first zone that
    /// has one (`unreserve_highatomic_pageblock`): whether one was returned.
    fn unreserve_highatomic(&mut self, request: &Request, is_forced: bool) -> bool {
        (0..self.memory.zone_count()).any(|place| {
            let zone = self.memory.zone_in_zonelist(request.node, place);
            zone.is_some_and(|zone| {
                self.memory.zone_mut(zone).unreserve_highatomic(request.alloc_type, is_forced)
            })
        })
    }

    /// Whether a costly request needs only compaction (`compaction_ready`): a zone has memory for both copies
    /// of the block above its high watermark.
    fn is_compaction_ready(&self, request: &Request) -> bool {
        if !self.config.has_compaction || request.order <= COSTLY_ORDER {
            return false;
        }
        let compact_gap = 2u64 << request.order;
        self.memory.zonelist(request.node, request.zone_index).any(|zone| {
            let watermark = self.memory.zone(zone).0.watermarks.high + compact_gap;
            self.memory.is_watermark_ok(zone, watermark, 0, request.zone_index)
        })
    }

    /// Whether the request could be served if all reclaimable pages were free (`should_reclaim_retry`).
    fn can_reclaim_help(&self, request: &Request) -> bool {
        self.memory.zonelist(request.node, request.zone_index).any(|at| {
            let (config, zone) = self.memory.zone(at);
            let lowmem_reserve = config.lowmem_reserve_for(request.zone_index);
            let available = u64::from(zone.zone().free_frames())
                + u64::from(self.lru_pages(usize::from(self.lruvec_of_zone[at])));
            zone.zone().has_block(request.order) && available > config.watermarks.min + lowmem_reserve
        })
    }

    /// Whether compaction is retried, and with which priority (`should_compact_retry`).
    fn should_compact_retry(
        &self,
        request: &Request,
        result: CompactResult,
        priority: &mut CompactPriority,
        compaction_retries: &mut u32,
    ) -> bool {
        if request.order == 0 || !self.config.has_compaction {
            return false;
        }
        match result {
            CompactResult::Skipped => return self.can_make_room(request),
            CompactResult::Success => {
                *compaction_retries += 1;
                let max_retries = if request.order > COSTLY_ORDER { MAX_RETRIES / 4 } else { MAX_RETRIES };
                if *compaction_retries <= max_retries {
                    return true;
                }
            }
            CompactResult::Deferred
            | CompactResult::PartialSkipped
            | CompactResult::Complete
            | CompactResult::Interrupted => {}
        }
        let next_priority = match (*priority, request.order > COSTLY_ORDER) {
            (CompactPriority::Async, _) => CompactPriority::SyncLight,
            (CompactPriority::SyncLight, false) => CompactPriority::SyncFull,
            (CompactPriority::SyncLight, true) | (CompactPriority::SyncFull, _) => return false,
        };
        (*priority, *compaction_retries) = (next_priority, 0);
        true
    }

    /// Whether reclaim can free the memory that compaction needs (`compaction_zonelist_suitable`).
    fn can_make_room(&self, request: &Request) -> bool {
        self.memory.zonelist(request.node, request.zone_index).any(|at| {
            let (config, zone) = self.memory.zone(at);
            let watermark =
                if request.order > COSTLY_ORDER { config.watermarks.low } else { config.watermarks.min };
            let lowmem_reserve = config.lowmem_reserve_for(request.zone_index);
            let lru_pages = u64::from(self.lru_pages(usize::from(self.lruvec_of_zone[at])));
            let available =
                u64::from(zone.zone().free_frames()) + lru_pages / u64::from(request.order.max(1));
            available > watermark + lowmem_reserve + (2 << request.order)
        })
    }

    /// Compacts the zones that may serve a request, until one has a block (`try_to_compact_pages`).
    fn compact_zones_for(
        &mut self,
        request: &Request,
        priority: CompactPriority,
    ) -> Result<(CompactResult, ZoneFrame), Error> {
        let mut best_result = CompactResult::Skipped;
        if request.order == 0 || !self.config.has_compaction {
            return Ok((best_result, None));
        }
        for position in 0..self.memory.zone_count() {
            let Some(zone) = self.memory.zone_in_zonelist(request.node, position) else { break };
            if self.memory.zone(zone).0.zone_index > request.zone_index {
                continue;
            }
            let result = self.compact_for_request(zone, request, priority)?;
            best_result = best_result.max(result);
            if result == CompactResult::Success {
                break;
            }
        }
        let found = self.try_allocate(request)?;
        if let Some((zone, _)) = found {
            self.compactors[usize::from(zone)].reset_deferral(request.order, true);
            self.journal.record(Decision::DeferralReset { zone: usize::from(zone), order: request.order });
        }
        Ok((best_result, found))
    }
}
