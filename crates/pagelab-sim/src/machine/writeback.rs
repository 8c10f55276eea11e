//! Writeback of dirty pages: what starts it, how many pages the disk writes per time slice, and when writers
//! wait (mm/page-writeback.c: `balance_dirty_pages`, `background_writeout`, `wb_kupdate`; mm/filemap.c:
//! `end_page_writeback`; block/ll_rw_blk.c: `blk_congestion_wait`).
//!
//! A slice is what [`Machine::run_background`] lets pass: 10 ms where loads call it.

use std::collections::VecDeque;

use super::journal::{Decision, MachineBug};
use super::lru::{LruKind, LruLists};
use super::{BlockEntry, Machine, NO_FRAME, PageUse, Release};
use crate::types::{Error, corrupted};

/// Time slices after which a dirty page of a file is written without demand for its frame
/// (`dirty_expire_centisecs`: 30 s).
pub(super) const DIRTY_EXPIRE_SLICES: u64 = 3000;

/// Pages of one disk request: this number of pages of a program is adjacent in swap (`SWAPFILE_CLUSTER` is a
/// multiple of it); files of a tree have three.
pub(super) const REQUEST_PAGES: u32 = 8;

/// Writeback state of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WritebackState {
    /// Its contents are on the disk, or need not be.
    #[default]
    Clean,
    /// Its contents are not on the disk (`PG_dirty`).
    Dirty,
    /// It is being written (`PG_writeback`).
    Writeback,
    /// It is being written, and was written to since the write began.
    WritebackRedirtied,
}

impl WritebackState {
    /// Whether the disk is writing it: it cannot be freed or moved.
    pub fn is_writing(self) -> bool {
        matches!(self, WritebackState::Writeback | WritebackState::WritebackRedirtied)
    }
}

/// A queued page. The entry is stale if the page has another sequence number.
#[derive(Clone, Copy, Debug)]
struct QueuedPage {
    handle: u32,
    queue_id: u32,
    /// Time slice in which it was queued.
    queued_at: u64,
}

/// The disk and its queues.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskModel {
    /// Pages to write, the oldest first, and their number.
    writeback_queue: VecDeque<QueuedPage>,
    pub writeback_pages: u32,
    /// Dirty pages of files, the oldest first, and their number.
    dirty_queue: VecDeque<QueuedPage>,
    pub dirty_pages: u32,
    /// Pages that reclaim asked the flusher to write, beside those that it writes itself.
    pub requested_pages: u64,
    /// Time slices so far.
    current_slice: u64,
    /// Pages written ahead of time, because requests waited for the disk.
    owed_pages: u64,
    /// Whether reads are sequential.
    is_streaming: bool,
    next_queue_id: u32,
}

impl DiskModel {
    fn take_queue_id(&mut self) -> u32 {
        self.next_queue_id = self.next_queue_id.wrapping_add(1);
        self.next_queue_id
    }
}

impl Machine {
    /// Writes to a held block: it is dirty until the disk has written it. Returns whether the block is
    /// resident.
    pub fn write_block(&mut self, held: super::BlockHandle) -> Result<bool, Error> {
        let is_resident = self.entry(held)?.frame != NO_FRAME;
        if is_resident {
            self.mark_dirty(held.0);
        }
        Ok(is_resident)
    }

    /// Whether writers to files must wait until fewer pages are dirty (`balance_dirty_pages`).
    pub fn is_throttled(&self) -> bool {
        u64::from(self.disk.dirty_pages) + u64::from(self.disk.writeback_pages) > self.dirty_limits().1
    }

    /// Whether requests have waited for the disk longer than time has passed since: programs stall.
    pub fn is_io_blocked(&self) -> bool {
        self.disk.owed_pages > 0
    }

    /// Sets whether refaulted pages are contiguous on the disk from now on, as those of a large file that is
    /// read sequentially: no seek time passes.
    pub fn set_streaming(&mut self, is_streaming: bool) {
        self.disk.is_streaming = is_streaming;
    }

    pub(super) fn has_disk(&self) -> bool {
        self.tuning.disk_pages_per_slice > 0
    }

    /// Whether the queue of the disk is congested (`bdi_write_congested`).
    pub(super) fn is_congested(&self) -> bool {
        self.disk.writeback_pages >= self.tuning.queue_pages
    }

    /// Whether the queue of the disk is full (`get_request_wait`): 128 requests; it is congested from 113 on.
    pub(super) fn is_queue_full(&self) -> bool {
        u64::from(self.disk.writeback_pages) * 113 >= u64::from(self.tuning.queue_pages) * 128
    }

    /// Numbers of dirty pages above which the flusher writes them in the background, and above which writers
    /// must wait (`get_dirty_limits`).
    fn dirty_limits(&self) -> (u64, u64) {
        let total_frames = self.handle_by_frame.len() as u64;
        match self.tuning.release {
            Release::V2_6_16 => {
                let unmapped = 100 - u64::from(self.mapped_pages) * 100 / total_frames.max(1);
                let dirty_percent = (unmapped / 2).clamp(5, 40);
                let background_percent = if dirty_percent <= 10 { dirty_percent / 2 } else { 10 };
                (total_frames * background_percent / 100, total_frames * dirty_percent / 100)
            }
            Release::V6_1 => {
                let files = |area| u64::from(self.pages_of_kind(area, LruKind::File));
                let files: u64 = (0..self.lruvecs.len()).map(files).sum();
                let available = self.free_frames() + files;
                (available / 10, available / 5)
            }
        }
    }

    /// Records a write to a page.
    pub(super) fn mark_dirty(&mut self, handle: u32) {
        if !self.has_disk() {
            return;
        }
        let entry = &mut self.entries[handle as usize];
        match (entry.writeback_state, entry.page_use) {
            (WritebackState::Clean, PageUse::File | PageUse::BlockDevice) => self.queue_dirty(handle),
            (WritebackState::Clean, PageUse::Anonymous) => entry.writeback_state = WritebackState::Dirty,
            (WritebackState::Writeback, PageUse::File | PageUse::BlockDevice | PageUse::Anonymous) => {
                entry.writeback_state = WritebackState::WritebackRedirtied
            }
            _ => {}
        }
    }

    /// An anonymous page is new or was refaulted: swap does not have its contents.
    pub(super) fn mark_new_dirty(&mut self, handle: u32) {
        if self.entries[handle as usize].page_use == PageUse::Anonymous {
            self.mark_dirty(handle);
        }
    }

    /// Adds a page of a file at the end of the dirty pages.
    fn queue_dirty(&mut self, handle: u32) {
        let queue_id = self.disk.take_queue_id();
        let entry = &mut self.entries[handle as usize];
        (entry.writeback_state, entry.queue_id) = (WritebackState::Dirty, queue_id);
        self.disk.dirty_pages += entry.pages();
        self.disk.dirty_queue.push_back(QueuedPage { handle, queue_id, queued_at: self.disk.current_slice });
    }

    /// Queues a dirty page for writing.
    pub(super) fn submit_write(&mut self, handle: u32, is_reclaim_pending: bool) {
        let queue_id = self.disk.take_queue_id();
        let entry = &mut self.entries[handle as usize];
        if entry.page_use.is_file() {
            self.disk.dirty_pages -= entry.pages();
        }
        (entry.writeback_state, entry.queue_id) = (WritebackState::Writeback, queue_id);
        entry.is_reclaim_pending |= is_reclaim_pending;
        self.disk.writeback_pages += entry.pages();
        self.disk.writeback_queue.push_back(QueuedPage {
            handle,
            queue_id,
            queued_at: self.disk.current_slice,
        });
        self.stats.pages_written += u64::from(entry.pages());
    }

    /// Removes a page that is about to be freed from the queues.
    pub(super) fn cancel_writeback(&mut self, handle: u32) {
        let entry = &mut self.entries[handle as usize];
        match entry.writeback_state {
            WritebackState::Dirty if entry.page_use.is_file() => self.disk.dirty_pages -= entry.pages(),
            WritebackState::Writeback | WritebackState::WritebackRedirtied => {
                self.disk.writeback_pages -= entry.pages()
            }
            _ => {}
        }
        (entry.writeback_state, entry.queue_id, entry.is_reclaim_pending) = (WritebackState::Clean, 0, false);
    }

    fn is_current(&self, queued: &QueuedPage) -> bool {
        let entry = &self.entries[queued.handle as usize];
        queued.queue_id != 0 && entry.queue_id == queued.queue_id
    }

    /// A time slice of the disk: the pages that it finishes, and those that the flusher (`pdflush`) queues
    /// next.
    pub(super) fn run_disk_slice(&mut self) {
        if !self.has_disk() {
            return;
        }
        self.disk.current_slice += 1;
        let pages = u64::from(self.tuning.disk_pages_per_slice);
        let repaid_pages = self.disk.owed_pages.min(pages);
        self.disk.owed_pages -= repaid_pages;
        self.journal.record(Decision::DiskSlice { pages: pages - repaid_pages, is_congestion_wait: false });
        self.complete_writes(pages - repaid_pages);
        self.run_flusher();
    }

    /// A request waits for the disk (`blk_congestion_wait`): until one write request is done, or the queue is
    /// no longer congested. This time is charged in advance.
    pub(super) fn congestion_wait(&mut self) {
        if self.disk.writeback_pages > 0 {
            let excess = self.disk.writeback_pages.saturating_sub(self.tuning.queue_pages);
            let pages = u64::from(excess + REQUEST_PAGES);
            self.journal.record(Decision::DiskSlice { pages, is_congestion_wait: true });
            self.disk.owed_pages += pages;
            self.stats.congestion_waits += 1;
            self.complete_writes(pages);
        }
    }

    /// Reclaimed pages are read again: nothing is written meanwhile, and seeks take time. This time is
    /// charged in advance, too.
    pub(super) fn account_refault_read(&mut self, pages: u32) {
        if self.has_disk() {
            let seek_cost = u64::from(self.tuning.seek_pages) * u64::from(pages) / u64::from(REQUEST_PAGES);
            self.disk.owed_pages += u64::from(pages) + if self.disk.is_streaming { 0 } else { seek_cost };
        }
    }

    /// The disk finishes pages in the order in which they were queued.
    fn complete_writes(&mut self, pages: u64) {
        let mut remaining = pages;
        while remaining > 0 {
            let Some(first) = self.disk.writeback_queue.pop_front() else { break };
            if !self.is_current(&first) {
                continue;
            }
            remaining = remaining.saturating_sub(u64::from(self.entries[first.handle as usize].pages()));
            self.journal.record(Decision::WriteCompleted { handle: first.handle });
            self.end_page_writeback(first.handle);
        }
    }

    /// A page was written. If reclaim waits for it, it becomes the oldest page of its list
    /// (`rotate_reclaimable_page`).
    fn end_page_writeback(&mut self, handle: u32) {
        let entry = &mut self.entries[handle as usize];
        self.disk.writeback_pages -= entry.pages();
        let is_redirtied = entry.writeback_state == WritebackState::WritebackRedirtied;
        (entry.writeback_state, entry.queue_id) = (WritebackState::Clean, 0);
        let is_reclaim_pending = std::mem::take(&mut entry.is_reclaim_pending);
        let entry = *entry;
        if is_redirtied && entry.page_use.is_file() {
            self.queue_dirty(handle);
        } else if is_redirtied {
            self.entries[handle as usize].writeback_state = WritebackState::Dirty;
        }
        let stays_active = self.tuning.release == Release::V2_6_16 && entry.is_active;
        if is_reclaim_pending
            && !is_redirtied
            && !stays_active
            && !self.journal.has_bug(MachineBug::WrittenPageNotRotated)
        {
            self.move_in_lru(handle, false, LruLists::add_oldest);
        }
    }

    /// The flusher (`pdflush`) writes pages of files: while more pages are dirty than the background limit,
    /// those that have expired, and as many as reclaim requested.
    fn run_flusher(&mut self) {
        self.journal.record(Decision::FlusherRun);
        let background_limit = self.dirty_limits().0;
        while !self.is_congested() {
            let Some(first) = self.disk.dirty_queue.front().copied() else { break };
            if !self.is_current(&first)
                || self.entries[first.handle as usize].writeback_state != WritebackState::Dirty
            {
                self.disk.dirty_queue.pop_front();
                continue;
            }
            let is_expired = self.disk.current_slice - first.queued_at >= DIRTY_EXPIRE_SLICES;
            let is_over_limit = u64::from(self.disk.dirty_pages) > background_limit;
            if !is_expired && !is_over_limit && self.disk.requested_pages == 0 {
                break;
            }
            self.disk.dirty_queue.pop_front();
            let pages = u64::from(self.entries[first.handle as usize].pages());
            self.disk.requested_pages = self.disk.requested_pages.saturating_sub(pages);
            self.journal.record(Decision::FlusherWrite { handle: first.handle });
            self.submit_write(first.handle, false);
        }
        if self.disk.dirty_pages == 0 {
            self.disk.requested_pages = 0;
        }
    }

    pub(super) fn validate_writeback(&self) -> Result<(), Error> {
        let sum = |is_counted: &dyn Fn(&BlockEntry) -> bool| -> u32 {
            let resident = self.entries.iter().filter(|entry| entry.is_resident());
            resident.filter(|entry| is_counted(entry)).map(|entry| entry.pages()).sum()
        };
        let dirty = sum(&|entry| entry.page_use.is_file() && entry.writeback_state == WritebackState::Dirty);
        let writing = sum(&|entry| entry.writeback_state.is_writing());
        if (dirty, writing) == (self.disk.dirty_pages, self.disk.writeback_pages) {
            return Ok(());
        }
        corrupted(format!(
            "{dirty} dirty pages of files and {writing} being written, the counters say {} and {}",
            self.disk.dirty_pages, self.disk.writeback_pages
        ))
    }
}
