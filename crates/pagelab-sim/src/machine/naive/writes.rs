//! What the disk should write, and when: from the pages alone, one look at all of them for each question.

use super::{Check, Naive, Page, is_cached, same};
use crate::machine::journal::Verdict;
use crate::machine::{Class, Release};

/// Slices after which a dirty page is written in any case.
const OLD: u64 = 3000;

/// Where a page stands with the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Write {
    pub is_dirty: bool,
    pub is_writing: bool,
    pub is_hasty: bool,
    /// The turn and the slice in which it became dirty, or the turn in which the disk was given it.
    turn: u64,
    slice: u64,
}

/// What the disk should do next.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    turns: u64,
    slices: u64,
    pub wanted: u64,
    finishing: Vec<u32>,
    sending: Vec<u32>,
    /// The ages of pages that were put at the end of their list.
    oldest: i64,
}

impl Naive {
    /// Somebody wrote to a page.
    pub fn wrote(&mut self, handle: u32) {
        self.disk.turns += 1;
        let (turn, slice) = (self.disk.turns, self.disk.slices);
        let has_disk = self.tuning.disk > 0;
        let Some(page) = self.pages.get_mut(handle as usize).and_then(Option::as_mut) else { return };
        let counts =
            has_disk && page.frame.is_some() && (is_cached(page.class) || page.class == Class::Anonymous);
        if counts && !page.write.is_dirty {
            page.write.is_dirty = true;
            if !page.write.is_writing {
                (page.write.turn, page.write.slice) = (turn, slice);
            }
        }
    }

    /// Whether a page that would be reclaimed is written first.
    pub(super) fn written_first(&self, page: &Page) -> Verdict {
        let is_congested = self.sum(|page| page.write.is_writing) >= self.tuning.queue;
        match (page.write.is_dirty, self.tuning.release) {
            (false, _) => Verdict::Reclaim,
            (true, Release::V6_1) if is_cached(page.class) => Verdict::Await,
            (true, Release::V2_6_16) if self.is_direct && is_congested => Verdict::Keep,
            (true, _) => Verdict::Write,
        }
    }

    /// A page is given to the disk.
    pub(super) fn send(&mut self, handle: u32, is_hasty: bool) -> Check {
        self.disk.turns += 1;
        let turn = self.disk.turns;
        let page = self.page(handle)?;
        page.write.is_hasty |= is_hasty;
        (page.write.is_dirty, page.write.is_writing, page.write.turn) = (false, true, turn);
        if is_hasty {
            page.is_active = false;
        }
        Ok(())
    }

    /// Pages that something holds of, by their turn.
    fn in_turn(&self, is_counted: impl Fn(&Page) -> bool) -> Vec<(u64, u32)> {
        let pages = (0u32..).zip(&self.pages);
        let mut found: Vec<(u64, u32)> = pages
            .filter_map(|(handle, page)| {
                page.as_ref().filter(|page| is_counted(page)).map(|page| (page.write.turn, handle))
            })
            .collect();
        found.sort_unstable();
        found
    }

    pub(super) fn begin_disk(&mut self, pages: u64, is_nap: bool) -> Check {
        same("pages that were to be written", &[][..], &self.finishing_and_sending()[..])?;
        self.disk.slices += u64::from(!is_nap);
        let (mut left, mut all) = (pages as i64, Vec::new());
        for (_, handle) in self.in_turn(|page| page.write.is_writing) {
            if left > 0 {
                left -= 1 << self.page(handle)?.order;
                all.push(handle);
            }
        }
        all.reverse();
        self.disk.finishing = all;
        Ok(())
    }

    fn finishing_and_sending(&self) -> Vec<u32> {
        self.disk.finishing.iter().chain(&self.disk.sending).copied().collect()
    }

    pub(super) fn finished(&mut self, handle: u32) -> Check {
        same("the page that is written", Some(handle), self.disk.finishing.pop())?;
        self.disk.turns += 1;
        let (turn, slice, release) = (self.disk.turns, self.disk.slices, self.tuning.release);
        self.disk.oldest -= 1;
        let oldest = self.disk.oldest;
        let page = self.page(handle)?;
        let rotates =
            page.write.is_hasty && !page.write.is_dirty && !(page.is_active && release == Release::V2_6_16);
        page.write = Write { is_dirty: page.write.is_dirty, turn, slice, ..Write::default() };
        if rotates {
            (page.is_active, page.age) = (false, oldest);
        }
        Ok(())
    }

    /// Dirty pages beyond which they are written in the background.
    fn background_limit(&self) -> u64 {
        let frames: u64 = self.config.zones.iter().map(|zone| u64::from(zone.shape.frames)).sum();
        let mapped = self.sum(|page| page.class == Class::Anonymous && page.frame.is_some());
        let held = self.sum(|page| page.frame.is_some());
        let files = self.sum(|page| is_cached(page.class) && page.frame.is_some());
        match self.tuning.release {
            Release::V6_1 => (frames - u64::from(held) + u64::from(files)) / 10,
            Release::V2_6_16 => {
                let most = ((100 - u64::from(mapped) * 100 / frames) / 2).clamp(5, 40);
                frames * if most > 10 { 10 } else { most / 2 } / 100
            }
        }
    }

    pub(super) fn begin_flush(&mut self) -> Check {
        same("pages that were to be written", &[][..], &self.disk.finishing[..])?;
        let is_lined = |page: &Page| is_cached(page.class) && page.write.is_dirty && !page.write.is_writing;
        let mut dirty = u64::from(self.sum(is_lined));
        let mut writing = self.sum(|page| page.write.is_writing);
        let (limit, mut all) = (self.background_limit(), Vec::new());
        for (_, handle) in self.in_turn(is_lined) {
            let page = *self.page(handle)?;
            let is_old = self.disk.slices - page.write.slice >= OLD;
            if writing >= self.tuning.queue || !is_old && dirty <= limit && self.disk.wanted == 0 {
                break;
            }
            let pages = 1u64 << page.order;
            self.disk.wanted = self.disk.wanted.saturating_sub(pages);
            (dirty, writing) = (dirty - pages, writing + (1 << page.order));
            all.push(handle);
        }
        if dirty == 0 {
            self.disk.wanted = 0;
        }
        all.reverse();
        self.disk.sending = all;
        Ok(())
    }

    pub(super) fn sent(&mut self, handle: u32) -> Check {
        same("the page that is given to the disk", Some(handle), self.disk.sending.pop())?;
        self.send(handle, false)
    }
}
