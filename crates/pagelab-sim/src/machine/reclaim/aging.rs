//! Scans of the LRU lists: which pages are reclaimed, kept, activated or deactivated (mm/vmscan.c:
//! `refill_inactive_zone` and `shrink_list` of 2.6.16; `shrink_active_list`, `folio_check_references` and
//! `shrink_folio_list` of 6.1).

use super::ScanControl;
use crate::machine::journal::{Decision, MachineBug, PageVerdict};
use crate::machine::lru::{LruList, LruLists};
use crate::machine::reclaim_policies::ReclaimContext;
use crate::machine::writeback::WritebackState;
use crate::machine::{BlockEntry, Machine, NO_FRAME, PageUse, Release};
use crate::types::Error;

impl Machine {
    /// Scans a number of pages at the end of an inactive list. Returns the number of freed pages.
    pub(super) fn shrink_list(
        &mut self,
        list: LruList,
        pages_to_scan: u32,
        plan: &ScanControl,
    ) -> Result<u32, Error> {
        let list = if self.journal.has_bug(MachineBug::ActiveListFirst) { list.counterpart() } else { list };
        let looks = pages_to_scan.min(self.lru.page_count(list));
        let (mut freed, mut scanned, policy) = (0, 0, self.config.reclaim_policy.policy);
        while scanned < looks {
            let Some(handle) = self.lru.oldest(list) else { break };
            let entry = self.entries[handle as usize];
            scanned += entry.pages();
            self.stats.pages_scanned += u64::from(entry.pages());
            self.lruvecs[list.lruvec].pages_scanned += u64::from(entry.pages());
            let verdict = self.decide_page(handle, plan);
            self.journal.record(Decision::InactivePageScanned { list, handle, verdict });
            freed += self.apply_verdict(handle, verdict)?;
            if plan.order > 0 && verdict != PageVerdict::Skip {
                let mut context = ReclaimContext::new(self, usize::from(entry.zone), plan);
                let neighbors = policy.reclaim_neighbors(&mut context, entry.frame)?;
                (freed, scanned) = (freed + neighbors.freed, scanned + neighbors.scanned);
            }
        }
        Ok(freed)
    }

    /// Decision about a scanned page.
    pub(in crate::machine) fn decide_page(&mut self, handle: u32, plan: &ScanControl) -> PageVerdict {
        let entry = self.entries[handle as usize];
        let is_zone_ineligible = self.memory.zone(usize::from(entry.zone)).0.zone_index > plan.zone_index;
        if is_zone_ineligible {
            return PageVerdict::Skip;
        }
        if entry.writeback_state.is_writing() && !self.journal.has_bug(MachineBug::FreedUnderWriteback) {
            return if self.tuning.release == Release::V6_1 {
                PageVerdict::AwaitWriteback
            } else {
                PageVerdict::Keep
            };
        }
        let is_swap_full = entry.page_use == PageUse::Anonymous
            && !self.has_swap_for(&entry)
            && !self.journal.has_bug(MachineBug::SwapUnlimited);
        if entry.is_pinned || is_swap_full {
            return PageVerdict::Activate;
        }
        let is_recently_used =
            entry.is_accessed && self.config.reclaim_policy.policy.has_second_chance(plan.order);
        if !is_recently_used || self.journal.has_bug(MachineBug::NoSecondChance) {
            return self.decide_unused_page(&entry, plan);
        }
        let accessed_entry = &mut self.entries[handle as usize];
        accessed_entry.is_accessed = false;
        if self.tuning.release == Release::V6_1 && !entry.is_referenced {
            accessed_entry.is_referenced = true;
            return PageVerdict::Keep;
        }
        if self.config.activates_referenced {
            PageVerdict::Activate
        } else {
            self.decide_unused_page(&entry, plan)
        }
    }

    /// Decision about an unreferenced page: a dirty one is written first (`pageout`). Direct reclaim does not
    /// write to a congested disk (`may_write_to_queue`, 2.6.16); file pages are never written here in 6.1.
    fn decide_unused_page(&self, entry: &BlockEntry, plan: &ScanControl) -> PageVerdict {
        if entry.writeback_state != WritebackState::Dirty
            || self.journal.has_bug(MachineBug::DirtyPageDropped)
        {
            return PageVerdict::Reclaim;
        }
        match self.tuning.release {
            Release::V2_6_16 if plan.is_direct && self.is_congested() => PageVerdict::Keep,
            Release::V6_1 if entry.page_use.is_file() => PageVerdict::AwaitWriteback,
            Release::V2_6_16 | Release::V6_1 => PageVerdict::Write,
        }
    }

    /// Carries out the decision; returns the freed pages.
    pub(in crate::machine) fn apply_verdict(
        &mut self,
        handle: u32,
        verdict: PageVerdict,
    ) -> Result<u32, Error> {
        let entry = self.entries[handle as usize];
        match verdict {
            PageVerdict::Reclaim => {
                self.evict_block(handle)?;
                return Ok(entry.pages());
            }
            PageVerdict::Activate => {
                self.entries[handle as usize].is_referenced = false;
                self.move_to_lru_head(handle, true);
            }
            PageVerdict::Write => {
                self.submit_write(handle, true);
                self.move_to_lru_head(handle, false);
            }
            PageVerdict::AwaitWriteback => {
                self.entries[handle as usize].is_reclaim_pending = true;
                self.disk.requested_pages += u64::from(entry.pages());
                self.move_to_lru_head(handle, true);
            }
            PageVerdict::Keep | PageVerdict::Skip => self.move_to_lru_head(handle, entry.is_active),
        }
        Ok(0)
    }

    /// Moves pages from the end of an active list to its inactive one.
    pub(super) fn shrink_active_list(&mut self, active: LruList, pages_to_scan: u32, plan: &ScanControl) {
        let can_reclaim_mapped = self.can_reclaim_mapped(active.lruvec);
        let looks = pages_to_scan.min(self.lru.page_count(active));
        let mut scanned = 0;
        while scanned < looks {
            let Some(handle) = self.lru.oldest(active) else { break };
            let entry = self.entries[handle as usize];
            scanned += entry.pages();
            let stays_active = match self.tuning.release {
                Release::V2_6_16 if entry.page_use != PageUse::Anonymous => false,
                Release::V2_6_16 => {
                    let is_accessed = &mut self.entries[handle as usize].is_accessed;
                    !can_reclaim_mapped || self.config.swap_frames == 0 || std::mem::take(is_accessed)
                }
                Release::V6_1 => {
                    let (config, _) = self.memory.zone(usize::from(entry.zone));
                    let is_zone_ineligible = config.zone_index > plan.zone_index;
                    let entry = &mut self.entries[handle as usize];
                    entry.is_accessed &= is_zone_ineligible;
                    is_zone_ineligible
                }
            };
            self.journal.record(Decision::ActivePageScanned {
                list: active,
                handle,
                can_reclaim_mapped,
                stays_active,
            });
            self.move_to_lru_head(handle, stays_active);
        }
    }

    /// Whether anonymous pages may be deactivated (`reclaim_mapped`, 2.6.16): depends on their share, on the
    /// priority, and on `vm.swappiness`.
    fn can_reclaim_mapped(&self, lruvec: usize) -> bool {
        let distress = 100u64 >> self.lruvecs[lruvec].prev_priority;
        let mapped = u64::from(self.mapped_pages) * 100 / self.handle_by_frame.len().max(1) as u64;
        mapped / 2 + distress + u64::from(self.tuning.swappiness) >= 100
    }

    /// Adds a page at the head of its list, or of the other list of its type.
    pub(super) fn move_to_lru_head(&mut self, handle: u32, to_active: bool) {
        self.move_in_lru(handle, to_active, LruLists::add_newest);
    }

    /// Adds a page at an end of its list, or of the other list of its type.
    pub(in crate::machine) fn move_in_lru(
        &mut self,
        handle: u32,
        to_active: bool,
        add_to_list: fn(&mut LruLists, LruList, u32, u32),
    ) {
        let entry = self.entries[handle as usize];
        let Some(list) = self.lru_list_of(&entry) else {
            debug_assert!(false, "block {handle} is on no LRU list: {entry:?}");
            return;
        };
        self.lru.remove_handle(list, handle, entry.pages());
        self.entries[handle as usize].is_active = to_active;
        add_to_list(&mut self.lru, LruList { is_active: to_active, ..list }, handle, entry.pages());
    }

    /// Frees the frame of a page; its holder keeps the handle.
    pub(in crate::machine) fn evict_block(&mut self, handle: u32) -> Result<(), Error> {
        self.cancel_writeback(handle);
        self.untrack_block(handle);
        let entry = &mut self.entries[handle as usize];
        let frame = std::mem::replace(&mut entry.frame, NO_FRAME);
        (entry.is_accessed, entry.is_referenced, entry.is_active) = (false, false, false);
        entry.slab_objects = 0;
        entry.eviction_stamp = self.stats.pages_reclaimed as u32;
        let pages = entry.pages();
        if entry.page_use == PageUse::Anonymous {
            self.swapped_frames += pages;
            self.stats.pages_swapped += u64::from(pages);
        }
        self.stats.pages_reclaimed += u64::from(pages);
        self.memory.free_block(0, frame)?;
        Ok(())
    }
}
