//! Lumpy reclaim (mm/vmscan.c of 2.6.23 to 3.4, `isolate_lru_pages`): with the page at the end of the list go
//! its neighbours, up to the order that is short.

use super::{COSTLY, PRIORITY, Plan};
use crate::machine::journal::{Event, Verdict};
use crate::machine::{Class, Machine, NOBODY};
use crate::words::{Frame, Wrong};
use crate::zone::spot::Spot;

impl Machine {
    /// Tries the pages around a frame, in the block of the plan's order that it lies in: pages freed, and
    /// pages looked at, which count as those at the end of the list.
    pub(super) fn shrink_beside(
        &mut self,
        frame: Frame,
        zone: usize,
        plan: &Plan,
    ) -> Result<(u32, u32), Wrong> {
        let Some((setup, _)) = self.memory.zone(zone) else { return Ok((0, 0)) };
        let shape = setup.shape;
        let from = (frame >> plan.order << plan.order).max(shape.first);
        let end = ((frame >> plan.order << plan.order) + (1 << plan.order)).min(shape.end());
        // Active pages go along where the order is costly, or it has become hard.
        let takes_active = plan.order > COSTLY || plan.priority < PRIORITY - 2;
        let (mut at, mut freed, mut looked) = (from, 0, 0);
        while at < end {
            let Some((_, zone)) = self.memory.zone(zone) else { break };
            let step = match zone.zone().spot(at) {
                Spot::Used(order) | Spot::Free(order) | Spot::Kept(order) => 1 << order,
                Spot::Inside => 1,
            };
            let is_used = matches!(zone.zone().spot(at), Spot::Used(_));
            let handle = if is_used { self.owners[(at - self.first) as usize] } else { NOBODY };
            at += step;
            if handle == NOBODY || at - step == frame {
                continue;
            }
            let entry = self.entries[handle as usize];
            if entry.class == Class::Anonymous && !self.has_swap(&entry) {
                break;
            }
            let is_listed = entry.class.is_file() || entry.class == Class::Anonymous;
            if !is_listed || entry.is_active && !takes_active {
                continue;
            }
            looked += entry.pages();
            self.stats.scanned += u64::from(entry.pages());
            let verdict = self.judge(handle, plan);
            self.journal.note(Event::Beside { handle, verdict });
            freed += if verdict == Verdict::Skip { 0 } else { self.execute(handle, verdict)? };
        }
        Ok((freed, looked))
    }
}
