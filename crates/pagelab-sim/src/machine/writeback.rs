//! Dirty pages on their way to the disk: who begins to write them, how many the disk takes in a slice of
//! time, and when whoever writes has to wait (mm/page-writeback.c: `balance_dirty_pages`,
//! `background_writeout`, `wb_kupdate`; mm/filemap.c: `end_page_writeback`; block/ll_rw_blk.c:
//! `blk_congestion_wait`).
//!
//! A slice is what [`Machine::background`] lets pass: 10 ms where loads call it.

use std::collections::VecDeque;

use super::journal::{Event, Flaw};
use super::{Class, Entry, Machine, NOWHERE, Release};
use crate::words::Wrong;

/// Slices after which a dirty page of a file is written though nobody needs its frame
/// (`dirty_expire_centisecs`: 30 s).
pub(super) const EXPIRE: u64 = 3000;

/// Pages of one of the disk's requests: so many pages of a program lie beside each other in swap
/// (`SWAPFILE_CLUSTER` is a multiple of it), and files of a tree have three.
pub(super) const REQUEST: u32 = 8;

/// Where a page stands with the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// The disk has what it holds, or it needs none.
    #[default]
    Clean,
    /// It holds what the disk has not (`PG_dirty`).
    Dirty,
    /// It is being written (`PG_writeback`).
    Writing,
    /// It is being written, and was written to since.
    Again,
}

impl State {
    /// Whether the disk is at work on it: nobody frees or moves it.
    pub fn is_writing(self) -> bool {
        matches!(self, State::Writing | State::Again)
    }
}

/// A page in a queue. It is there no more if its entry has another number.
#[derive(Clone, Copy, Debug)]
struct Queued {
    handle: u32,
    number: u32,
    /// The slice that it was put there.
    since: u64,
}

/// The disk, and what waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// Pages that it was given, the first one first; and how many.
    writing: VecDeque<Queued>,
    pub writing_pages: u32,
    /// Dirty pages of files, the one that is dirty longest first; and how many.
    dirty: VecDeque<Queued>,
    pub dirty_pages: u32,
    /// Pages that reclaim wants to be written beside those that it writes itself.
    pub wanted: u64,
    /// Slices that passed.
    now: u64,
    /// Pages that it wrote ahead of its time, since requests waited for it.
    ahead: u64,
    /// What is read lies one behind the other.
    is_streaming: bool,
    numbers: u32,
}

impl Disk {
    fn number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }
}

impl Machine {
    /// Writes to a held block: it is dirty until the disk has it. Whether it is there.
    pub fn write(&mut self, held: super::Held) -> Result<bool, Wrong> {
        let is_there = self.entry(held)?.frame != NOWHERE;
        if is_there {
            self.soil(held.0);
        }
        Ok(is_there)
    }

    /// Whether who writes to files must wait until fewer pages are dirty (`balance_dirty_pages`).
    pub fn is_throttled(&self) -> bool {
        u64::from(self.disk.dirty_pages) + u64::from(self.disk.writing_pages) > self.dirty_limits().1
    }

    /// Whether requests waited for the disk longer than time has passed since: programs stand still.
    pub fn is_waiting(&self) -> bool {
        self.disk.ahead > 0
    }

    /// Says whether what is brought back from now on lies one behind the other on the disk, as a large file
    /// that is read from its beginning: no time goes by to find it.
    pub fn stream(&mut self, is_streaming: bool) {
        self.disk.is_streaming = is_streaming;
    }

    /// Pages of files that are dirty, and pages that are being written.
    pub fn dirty(&self) -> (u32, u32) {
        (self.disk.dirty_pages, self.disk.writing_pages)
    }

    pub(super) fn has_disk(&self) -> bool {
        self.tuning.disk > 0
    }

    /// Whether as much is on its way as the queue of the disk takes (`bdi_write_congested`).
    pub(super) fn is_congested(&self) -> bool {
        self.disk.writing_pages >= self.tuning.queue
    }

    /// Whether the queue of the disk takes no more (`get_request_wait`): 128 requests, of which 113 are
    /// congestion.
    pub(super) fn is_full(&self) -> bool {
        u64::from(self.disk.writing_pages) * 113 >= u64::from(self.tuning.queue) * 128
    }

    /// Dirty pages beyond which they are written in the background, and beyond which who writes must wait
    /// (`get_dirty_limits`).
    fn dirty_limits(&self) -> (u64, u64) {
        let all = self.owners.len() as u64;
        match self.tuning.release {
            Release::V2_6_16 => {
                let unmapped = 100 - u64::from(self.mapped) * 100 / all.max(1);
                let most = (unmapped / 2).clamp(5, 40);
                let some = if most <= 10 { most / 2 } else { 10 };
                (all * some / 100, all * most / 100)
            }
            Release::V6_1 => {
                let free = |zone: &crate::percpu::PerCpu<_>| zone.zone().free_frames() + zone.kept_frames();
                let free: u64 = self.memory.zones().map(|(_, zone)| u64::from(free(zone))).sum();
                let files: u64 = (0..self.areas.len()).map(|area| u64::from(self.file_pages(area))).sum();
                ((free + files) / 10, (free + files) / 5)
            }
        }
    }

    /// Says that a page was written to.
    pub(super) fn soil(&mut self, handle: u32) {
        if !self.has_disk() {
            return;
        }
        let entry = &mut self.entries[handle as usize];
        match (entry.state, entry.class) {
            (State::Clean, Class::File | Class::Buffer) => self.line_up(handle),
            (State::Clean, Class::Anonymous) => entry.state = State::Dirty,
            (State::Writing, Class::File | Class::Buffer | Class::Anonymous) => entry.state = State::Again,
            _ => {}
        }
    }

    /// A page of a program is new, or back: it holds what swap has not.
    pub(super) fn soil_new(&mut self, handle: u32) {
        if self.entries[handle as usize].class == Class::Anonymous {
            self.soil(handle);
        }
    }

    /// Puts a page of a file behind those that are dirty.
    fn line_up(&mut self, handle: u32) {
        let number = self.disk.number();
        let entry = &mut self.entries[handle as usize];
        (entry.state, entry.number) = (State::Dirty, number);
        self.disk.dirty_pages += entry.pages();
        self.disk.dirty.push_back(Queued { handle, number, since: self.disk.now });
    }

    /// Gives a dirty page to the disk.
    pub(super) fn send(&mut self, handle: u32, is_hasty: bool) {
        let number = self.disk.number();
        let entry = &mut self.entries[handle as usize];
        if entry.class.is_file() {
            self.disk.dirty_pages -= entry.pages();
        }
        (entry.state, entry.number) = (State::Writing, number);
        entry.is_hasty |= is_hasty;
        self.disk.writing_pages += entry.pages();
        self.disk.writing.push_back(Queued { handle, number, since: self.disk.now });
        self.stats.written += u64::from(entry.pages());
    }

    /// Takes a page off the queues that is about to lose its frame.
    pub(super) fn forget_writes(&mut self, handle: u32) {
        let entry = &mut self.entries[handle as usize];
        match entry.state {
            State::Dirty if entry.class.is_file() => self.disk.dirty_pages -= entry.pages(),
            State::Writing | State::Again => self.disk.writing_pages -= entry.pages(),
            _ => {}
        }
        (entry.state, entry.number, entry.is_hasty) = (State::Clean, 0, false);
    }

    fn is_current(&self, queued: &Queued) -> bool {
        let entry = &self.entries[queued.handle as usize];
        queued.number != 0 && entry.number == queued.number
    }

    /// A slice of the disk's time: what it finishes, and what `pdflush` gives it next.
    pub(super) fn slice(&mut self) {
        if !self.has_disk() {
            return;
        }
        self.disk.now += 1;
        let pages = u64::from(self.tuning.disk);
        let owed = self.disk.ahead.min(pages);
        self.disk.ahead -= owed;
        self.journal.note(Event::Disk { pages: pages - owed, is_nap: false });
        self.finish(pages - owed);
        self.flush();
    }

    /// A request waits for the disk (`blk_congestion_wait`): until one of the disk's requests is done, or
    /// until its queue is no more congested. That time passes ahead of all others.
    pub(super) fn nap(&mut self) {
        if self.disk.writing_pages > 0 {
            let over = self.disk.writing_pages.saturating_sub(self.tuning.queue);
            let pages = u64::from(over + REQUEST);
            self.journal.note(Event::Disk { pages, is_nap: true });
            self.disk.ahead += pages;
            self.stats.naps += 1;
            self.finish(pages);
        }
    }

    /// Pages that were reclaimed are read: nothing is written meanwhile, and it takes time to find them. That
    /// time passes ahead of all others, too.
    pub(super) fn read_back(&mut self, pages: u32) {
        if self.has_disk() {
            let sought = u64::from(self.tuning.seek) * u64::from(pages) / u64::from(REQUEST);
            self.disk.ahead += u64::from(pages) + if self.disk.is_streaming { 0 } else { sought };
        }
    }

    /// The disk finishes pages, in the order that it was given them.
    fn finish(&mut self, pages: u64) {
        let mut left = pages;
        while left > 0 {
            let Some(first) = self.disk.writing.pop_front() else { break };
            if !self.is_current(&first) {
                continue;
            }
            left = left.saturating_sub(u64::from(self.entries[first.handle as usize].pages()));
            self.journal.note(Event::Finished { handle: first.handle });
            self.finish_one(first.handle);
        }
    }

    /// A page was written. One that reclaim waits for becomes the oldest of its list
    /// (`rotate_reclaimable_page`).
    fn finish_one(&mut self, handle: u32) {
        let entry = &mut self.entries[handle as usize];
        self.disk.writing_pages -= entry.pages();
        let is_again = entry.state == State::Again;
        (entry.state, entry.number) = (State::Clean, 0);
        let is_hasty = std::mem::take(&mut entry.is_hasty);
        let entry = *entry;
        if is_again && entry.class.is_file() {
            self.line_up(handle);
        } else if is_again {
            self.entries[handle as usize].state = State::Dirty;
        }
        let stays_active = self.tuning.release == Release::V2_6_16 && entry.is_active;
        if is_hasty && !is_again && !stays_active && !self.journal.has(Flaw::WrittenNotRotated) {
            self.turn_oldest(handle);
        }
    }

    /// Puts a page at the end of the inactive list of its sort.
    fn turn_oldest(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        let Some(list) = self.list(&entry) else { return };
        self.lru.remove(list, handle, entry.pages());
        self.entries[handle as usize].is_active = false;
        self.lru.add_oldest(super::lru::List { is_active: false, ..list }, handle, entry.pages());
    }

    /// `pdflush` writes pages of files: as long as more are dirty than may be, those that have been for long,
    /// and as many as reclaim wants.
    fn flush(&mut self) {
        self.journal.note(Event::Flush);
        let most = self.dirty_limits().0;
        while !self.is_congested() {
            let Some(first) = self.disk.dirty.front().copied() else { break };
            if !self.is_current(&first) || self.entries[first.handle as usize].state != State::Dirty {
                self.disk.dirty.pop_front();
                continue;
            }
            let is_old = self.disk.now - first.since >= EXPIRE;
            let is_much = u64::from(self.disk.dirty_pages) > most;
            if !is_old && !is_much && self.disk.wanted == 0 {
                break;
            }
            self.disk.dirty.pop_front();
            let pages = u64::from(self.entries[first.handle as usize].pages());
            self.disk.wanted = self.disk.wanted.saturating_sub(pages);
            self.journal.note(Event::Sent { handle: first.handle });
            self.send(first.handle, false);
        }
        if self.disk.dirty_pages == 0 {
            self.disk.wanted = 0;
        }
    }

    /// Checks the sums.
    pub(super) fn validate_writes(&self) -> Result<(), Wrong> {
        let sum = |is_counted: &dyn Fn(&Entry) -> bool| -> u32 {
            let there = self.entries.iter().filter(|entry| entry.is_live && entry.frame != NOWHERE);
            there.filter(|entry| is_counted(entry)).map(|entry| entry.pages()).sum()
        };
        let dirty = sum(&|entry| entry.class.is_file() && entry.state == State::Dirty);
        let writing = sum(&|entry| entry.state.is_writing());
        if (dirty, writing) == (self.disk.dirty_pages, self.disk.writing_pages) {
            return Ok(());
        }
        Err(Wrong::Books(format!(
            "{dirty} dirty pages of files and {writing} being written, the books say {} and {}",
            self.disk.dirty_pages, self.disk.writing_pages
        )))
    }
}
