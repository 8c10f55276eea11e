//! The machine's books, counted twice: by handle, and along the lists and frames.

use super::lru::{List, Sort};
use super::{Class, Entry, Machine, NOBODY, NOWHERE};
use crate::words::Wrong;
use crate::zone::spot::Spot;

impl Machine {
    /// Checks all books: the allocator's, that each held block is where its handle says and nobody else is,
    /// that each LRU list holds just the blocks that belong to it, and the sums of swap and objects.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.memory.validate()?;
        let wrong = |what: String| Err(Wrong::Books(what));
        let there = |entry: &&Entry| entry.is_live && entry.frame != NOWHERE;
        let held: u64 = self.entries.iter().filter(there).map(|entry| u64::from(entry.pages())).sum();
        let all: u64 = self.memory.zones().map(|(setup, _)| u64::from(setup.shape.frames)).sum();
        let free = |zone: &crate::percpu::PerCpu<_>| {
            u64::from(zone.zone().free_frames()) + u64::from(zone.kept_frames())
        };
        let free: u64 = self.memory.zones().map(|(_, zone)| free(zone)).sum();
        if held + free != all {
            return wrong(format!("{held} frames are held and {free} free, of {all}"));
        }
        for (handle, entry) in (0u32..).zip(&self.entries).filter(|(_, entry)| there(entry)) {
            if self.owners[(entry.frame - self.first) as usize] != handle {
                return wrong(format!("frame {:#x} is not its holder's", entry.frame));
            }
            let zone = self.memory.zone(usize::from(entry.zone));
            if self.memory.zone_of(entry.frame) != Some(usize::from(entry.zone)) {
                return wrong(format!("frame {:#x} is not in its holder's zone", entry.frame));
            }
            if zone.map(|(_, zone)| zone.zone().spot(entry.frame)) != Some(Spot::Used(entry.order)) {
                return wrong(format!("frame {:#x} is not allocated as its holder says", entry.frame));
            }
        }
        let owned = self.owners.iter().filter(|&&handle| handle != NOBODY).count();
        if owned != self.entries.iter().filter(there).count() {
            return wrong(format!("{owned} frames have a holder that is somewhere else"));
        }
        self.validate_lists()?;
        self.validate_writes()?;
        self.validate_sums()
    }

    fn validate_lists(&self) -> Result<(), Wrong> {
        let wrong = |what: String| Err(Wrong::Books(what));
        let mut listed = vec![false; self.entries.len()];
        for area in 0..self.areas.len() {
            for (sort, is_active) in [
                (Sort::Anonymous, false),
                (Sort::Anonymous, true),
                (Sort::File, false),
                (Sort::File, true),
                (Sort::Cache, false),
                (Sort::Cache, true),
            ] {
                let list = List { area, sort, is_active };
                let mut pages = 0;
                for handle in self.lru.handles(list) {
                    let entry = &self.entries[handle as usize];
                    if !entry.is_live || entry.frame == NOWHERE || self.list(entry) != Some(list) {
                        return wrong(format!("block {handle} is on an LRU list that is not its own"));
                    }
                    if std::mem::replace(&mut listed[handle as usize], true) {
                        return wrong(format!("block {handle} is on LRU lists twice"));
                    }
                    pages += entry.pages();
                }
                if pages != self.lru.pages(list) {
                    let said = self.lru.pages(list);
                    return wrong(format!("an LRU list holds {pages} pages, its books say {said}"));
                }
            }
        }
        let is_missing = |(handle, entry): &(usize, &Entry)| {
            entry.is_live && entry.frame != NOWHERE && self.list(entry).is_some() && !listed[*handle]
        };
        match self.entries.iter().enumerate().find(is_missing) {
            Some((handle, _)) => wrong(format!("block {handle} is on no LRU list")),
            None => Ok(()),
        }
    }

    fn validate_sums(&self) -> Result<(), Wrong> {
        let wrong = |what: String| Err(Wrong::Books(what));
        let anonymous = |entry: &&Entry| entry.is_live && entry.class == Class::Anonymous;
        let (there, away): (Vec<&Entry>, Vec<&Entry>) =
            self.entries.iter().filter(anonymous).partition(|entry| entry.frame != NOWHERE);
        let sum = |entries: &[&Entry]| -> u32 { entries.iter().map(|entry| entry.pages()).sum() };
        if (sum(&there), sum(&away)) != (self.mapped, self.swapped) {
            return wrong(format!(
                "{} pages of programs in memory and {} in swap, the books say {} and {}",
                sum(&there),
                sum(&away),
                self.mapped,
                self.swapped
            ));
        }
        if self.swapped > self.config.swap_frames {
            return wrong(format!(
                "{} frames are in swap, which has {}",
                self.swapped, self.config.swap_frames
            ));
        }
        let cached = self.entries.iter().filter(|entry| entry.is_live && entry.frame != NOWHERE);
        let objects: u64 = cached.map(|entry| u64::from(entry.objects)).sum();
        let said: u64 = self.areas.iter().map(|area| area.objects).sum();
        if objects != said {
            return wrong(format!("{objects} objects in the kernel's caches, the books say {said}"));
        }
        Ok(())
    }
}
