//! The twin's writeback: what the disk should write and when, from a scan of all pages.

use super::{CheckResult, NaiveMachine, NaivePage, expect_same, is_page_cache};
use crate::machine::journal::PageVerdict;
use crate::machine::{PageUse, Release};

/// Time slices after which a dirty page is written in any case.
const DIRTY_EXPIRE_SLICES: u64 = 3000;

/// Writeback state of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct NaiveWriteback {
    pub is_dirty: bool,
    pub is_writing: bool,
    pub is_reclaim_pending: bool,
    /// Event number and time slice at which the page became dirty, or event number at which it was queued for
    /// writing.
    turn: u64,
    slice: u64,
}

/// Next disk operation that the twin expects.
#[derive(Clone, Debug, Default)]
pub struct NaiveDisk {
    turns: u64,
    slices: u64,
    pub requested_pages: u64,
    finishing: Vec<u32>,
    sending: Vec<u32>,
    /// Ages of the pages that were moved to the end of their list.
    oldest: i64,
}

impl NaiveMachine {
    /// A page was written to by its holder.
    pub fn record_write(&mut self, handle: u32) {
        self.disk.turns += 1;
        let (turn, slice) = (self.disk.turns, self.disk.slices);
        let has_disk = self.tuning.disk_pages_per_slice > 0;
        let Some(page) = self.pages.get_mut(handle as usize).and_then(Option::as_mut) else { return };
        let counts = has_disk
            && page.frame.is_some()
            && (is_page_cache(page.page_use) || page.page_use == PageUse::Anonymous);
        if counts && !page.write.is_dirty {
            page.write.is_dirty = true;
            if !page.write.is_writing {
                (page.write.turn, page.write.slice) = (turn, slice);
            }
        }
    }

    /// Whether a page must be written before it can be reclaimed.
    pub(super) fn verdict_for_unused(&self, page: &NaivePage) -> PageVerdict {
        let is_congested = self.count_pages(|page| page.write.is_writing) >= self.tuning.queue_pages;
        match (page.write.is_dirty, self.tuning.release) {
            (false, _) => PageVerdict::Reclaim,
            (true, Release::V6_1) if is_page_cache(page.page_use) => PageVerdict::AwaitWriteback,
            (true, Release::V2_6_16) if self.is_direct && is_congested => PageVerdict::Keep,
            (true, _) => PageVerdict::Write,
        }
    }

    /// A page was queued for writing.
    pub(super) fn check_submit(&mut self, handle: u32, is_hasty: bool) -> CheckResult {
        self.disk.turns += 1;
        let turn = self.disk.turns;
        let page = self.page(handle)?;
        page.write.is_reclaim_pending |= is_hasty;
        (page.write.is_dirty, page.write.is_writing, page.write.turn) = (false, true, turn);
        if is_hasty {
            page.is_active = false;
        }
        Ok(())
    }

    /// Pages that something holds of, by their turn.
    fn pages_by_queue_order(&self, is_counted: impl Fn(&NaivePage) -> bool) -> Vec<(u64, u32)> {
        let pages = (0u32..).zip(&self.pages);
        let mut found: Vec<(u64, u32)> = pages
            .filter_map(|(handle, page)| {
                page.as_ref().filter(|page| is_counted(page)).map(|page| (page.write.turn, handle))
            })
            .collect();
        found.sort_unstable();
        found
    }

    pub(super) fn check_disk_slice(&mut self, pages: u64, is_congestion_wait: bool) -> CheckResult {
        expect_same("pages under writeback", &[][..], &self.pending_pages()[..])?;
        self.disk.slices += u64::from(!is_congestion_wait);
        let (mut left, mut all) = (pages as i64, Vec::new());
        for (_, handle) in self.pages_by_queue_order(|page| page.write.is_writing) {
            if left > 0 {
                left -= 1 << self.page(handle)?.order;
                all.push(handle);
            }
        }
        all.reverse();
        self.disk.finishing = all;
        Ok(())
    }

    fn pending_pages(&self) -> Vec<u32> {
        self.disk.finishing.iter().chain(&self.disk.sending).copied().collect()
    }

    pub(super) fn check_completion(&mut self, handle: u32) -> CheckResult {
        expect_same("the page that is written", Some(handle), self.disk.finishing.pop())?;
        self.disk.turns += 1;
        let (turn, slice, release) = (self.disk.turns, self.disk.slices, self.tuning.release);
        self.disk.oldest -= 1;
        let oldest = self.disk.oldest;
        let page = self.page(handle)?;
        let rotates = page.write.is_reclaim_pending
            && !page.write.is_dirty
            && !(page.is_active && release == Release::V2_6_16);
        page.write =
            NaiveWriteback { is_dirty: page.write.is_dirty, turn, slice, ..NaiveWriteback::default() };
        if rotates {
            (page.is_active, page.list_age) = (false, oldest);
        }
        Ok(())
    }

    /// Number of dirty pages above which the flusher writes (`dirty_background_ratio`).
    fn background_limit(&self) -> u64 {
        let frames: u64 = self.config.zones.iter().map(|zone| u64::from(zone.geometry.frames)).sum();
        let mapped = self.count_pages(|page| page.page_use == PageUse::Anonymous && page.frame.is_some());
        let held = self.count_pages(|page| page.frame.is_some());
        let files = self.count_pages(|page| is_page_cache(page.page_use) && page.frame.is_some());
        match self.tuning.release {
            Release::V6_1 => (frames - u64::from(held) + u64::from(files)) / 10,
            Release::V2_6_16 => {
                let most = ((100 - u64::from(mapped) * 100 / frames) / 2).clamp(5, 40);
                frames * if most > 10 { 10 } else { most / 2 } / 100
            }
        }
    }

    pub(super) fn check_flusher(&mut self) -> CheckResult {
        expect_same("pages under writeback", &[][..], &self.disk.finishing[..])?;
        let is_lined =
            |page: &NaivePage| is_page_cache(page.page_use) && page.write.is_dirty && !page.write.is_writing;
        let mut dirty = u64::from(self.count_pages(is_lined));
        let mut writing = self.count_pages(|page| page.write.is_writing);
        let (limit, mut all) = (self.background_limit(), Vec::new());
        for (_, handle) in self.pages_by_queue_order(is_lined) {
            let page = *self.page(handle)?;
            let is_old = self.disk.slices - page.write.slice >= DIRTY_EXPIRE_SLICES;
            if writing >= self.tuning.queue_pages
                || !is_old && dirty <= limit && self.disk.requested_pages == 0
            {
                break;
            }
            let pages = 1u64 << page.order;
            self.disk.requested_pages = self.disk.requested_pages.saturating_sub(pages);
            (dirty, writing) = (dirty - pages, writing + (1 << page.order));
            all.push(handle);
        }
        if dirty == 0 {
            self.disk.requested_pages = 0;
        }
        all.reverse();
        self.disk.sending = all;
        Ok(())
    }

    pub(super) fn check_flusher_write(&mut self, handle: u32) -> CheckResult {
        expect_same("the page submitted to the disk", Some(handle), self.disk.sending.pop())?;
        self.check_submit(handle, false)
    }
}
