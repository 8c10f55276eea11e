//! Shrinking of the kernel's caches (`shrink_slab` of 2.6.16, `do_shrink_slab` of 6.1): objects are what is
//! freed, and a page goes when all objects in it are gone.

use super::PRIORITY;
use crate::machine::journal::Event;
use crate::machine::lru::{List, Sort};
use crate::machine::{Machine, Release};
use crate::words::Wrong;

/// Objects at a time (`SHRINK_BATCH`).
const BATCH: u64 = 128;

impl Machine {
    /// Puts the pressure on the caches of an area that is on pages: `scanned` of `pages` in 2.6.16, the
    /// priority in 6.1. Pages freed.
    ///
    /// Objects of a page were last used at different times: each time that the shrinker comes by, half of
    /// those that nobody uses are old enough.
    pub(in crate::machine) fn shrink_slab(
        &mut self,
        area: usize,
        priority: u8,
        scanned: u64,
        pages: u64,
    ) -> Result<u32, Wrong> {
        let list = List { area, sort: Sort::Cache, is_active: false };
        let objects = self.areas[area].objects;
        if objects == 0 {
            return Ok(0);
        }
        // Two seeks to make an object again (`DEFAULT_SEEKS`), of four that count.
        let more = match self.tuning.release {
            Release::V2_6_16 => u128::from(2 * scanned) * u128::from(objects) / u128::from(pages + 1),
            Release::V6_1 => u128::from(2 * (objects >> priority.min(PRIORITY))),
        };
        let mut left = (u128::from(self.areas[area].objects_left) + more).min(u128::from(2 * objects)) as u64;
        let mut freed = 0;
        while left > 0 && (left >= BATCH || left >= objects) {
            let Some(handle) = self.lru.last(list) else { break };
            let entry = self.entries[handle as usize];
            left -= u64::from(entry.objects - entry.in_use).clamp(1, left);
            self.stats.scanned += u64::from(entry.pages());
            freed += self.shrink_page(handle)?;
        }
        self.areas[area].objects_left = left;
        Ok(freed)
    }

    fn shrink_page(&mut self, handle: u32) -> Result<u32, Wrong> {
        let entry = &mut self.entries[handle as usize];
        let pages = entry.pages();
        let was_touched = std::mem::take(&mut entry.is_touched);
        let gone = match was_touched || entry.is_pinned {
            true => 0,
            false => (entry.objects - entry.in_use).div_ceil(2),
        };
        entry.objects -= gone;
        self.stats.slab_objects += u64::from(gone);
        let (objects, zone) = (entry.objects, usize::from(entry.zone));
        self.areas[usize::from(self.area_of[zone])].objects -= u64::from(gone);
        self.journal.note(Event::Shrunk { handle, objects });
        if objects > 0 {
            self.turn(handle, false);
            return Ok(0);
        }
        self.stats.slab_pages += u64::from(pages);
        self.evict(handle)?;
        Ok(pages)
    }
}
