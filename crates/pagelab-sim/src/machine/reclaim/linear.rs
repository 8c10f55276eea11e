//! Linear reclaim (Gorman and Whitcroft 2006, section 10; their patches of September 2006 against 2.6.18):
//! memory is a row of regions of the order that is short, and whole regions are reclaimed.

use super::{PRIORITY, Plan};
use crate::machine::journal::{Event, Flaw};
use crate::machine::{Class, Machine, NOBODY};
use crate::words::{Frame, Wrong};
use crate::zone::spot::Spot;

impl Machine {
    /// Assesses regions of a zone, from where it ended last: the share of them that the priority says, as for
    /// lists. All pages of a region that holds only free and reclaimable ones are tried. Pages freed.
    pub(super) fn shrink_linearly(&mut self, zone: usize, plan: &Plan) -> Result<u32, Wrong> {
        let Some((setup, _)) = self.memory.zone(zone) else { return Ok(0) };
        let (shape, frames) = (setup.shape, 1u32 << plan.order);
        let first = match self.journal.has(Flaw::RegionUnaligned) {
            true => shape.first + frames / 2,
            false => shape.first.next_multiple_of(frames),
        };
        let regions = shape.end().saturating_sub(first) / frames;
        if regions == 0 {
            return Ok(0);
        }
        let looks = ((regions >> plan.priority.min(PRIORITY)) + 1).min(regions);
        let mut freed = 0;
        let mut members = Vec::new();
        for _ in 0..looks {
            // Where it ended last may not be the beginning of a region of this order.
            let number = self.regions_at[zone].saturating_sub(first).div_ceil(frames) % regions;
            let from = first + number * frames;
            self.regions_at[zone] = from + frames;
            self.stats.regions += 1;
            let is_tried = self.assess(zone, from, plan.order, &mut members);
            self.journal.note(Event::Region { from, order: plan.order, is_tried });
            if !is_tried {
                continue;
            }
            self.stats.regions_tried += 1;
            for &handle in &members {
                let pages = u64::from(self.entries[handle as usize].pages());
                self.stats.scanned += pages;
                let verdict = self.judge(handle, plan);
                self.journal.note(Event::Beside { handle, verdict });
                freed += self.execute(handle, verdict)?;
            }
        }
        Ok(freed)
    }

    /// Whether all pages of a region are free or likely to be reclaimable, and which there are to reclaim.
    fn assess(&self, zone: usize, from: Frame, order: u8, members: &mut Vec<u32>) -> bool {
        members.clear();
        let Some((_, zone)) = self.memory.zone(zone) else { return false };
        let (mut at, end) = (from, from + (1 << order));
        while at < end {
            match zone.zone().spot(at) {
                Spot::Free(order) => at += 1 << order,
                Spot::Used(order) => {
                    let handle = self.owners[(at - self.first) as usize];
                    if !self.is_likely(handle) && !self.journal.has(Flaw::RegionNotAssessed) {
                        return false;
                    }
                    if self.is_likely(handle) {
                        members.push(handle);
                    }
                    at += 1 << order;
                }
                // On a processor's list, or a part of a larger block.
                Spot::Kept(_) | Spot::Inside => return false,
            }
        }
        !members.is_empty()
    }

    /// Whether a page is on an LRU list, and nothing is known that keeps it from being reclaimed.
    fn is_likely(&self, handle: u32) -> bool {
        if handle == NOBODY {
            return false;
        }
        let entry = &self.entries[handle as usize];
        if entry.state.is_writing() && !self.journal.has(Flaw::RegionInFlight) {
            return false;
        }
        match entry.class {
            Class::File | Class::Buffer => !entry.is_pinned,
            Class::Anonymous => !entry.is_pinned && self.has_swap(entry),
            Class::Kernel | Class::PageTable | Class::Cache | Class::Huge => false,
        }
    }
}
