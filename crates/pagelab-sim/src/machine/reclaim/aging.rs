//! Which page goes, which stays, and which turns from one list to the other (mm/vmscan.c:
//! `refill_inactive_zone` and `shrink_list` of 2.6.16; `shrink_active_list`, `folio_check_references` and
//! `shrink_folio_list` of 6.1).

use super::Plan;
use crate::machine::journal::{Event, Flaw, Verdict};
use crate::machine::lru::List;
use crate::machine::reclaims::Ground;
use crate::machine::writeback::State;
use crate::machine::{Class, Entry, Machine, NOWHERE, Release};
use crate::words::Wrong;

impl Machine {
    /// Looks at so many pages at the end of an inactive list: pages freed.
    pub(super) fn shrink_list(&mut self, list: List, looks: u32, plan: &Plan) -> Result<u32, Wrong> {
        let list = if self.journal.has(Flaw::ActiveFirst) { list.turned() } else { list };
        let looks = looks.min(self.lru.pages(list));
        let (mut freed, mut looked, way) = (0, 0, self.config.reclaim.way);
        while looked < looks {
            let Some(handle) = self.lru.last(list) else { break };
            let entry = self.entries[handle as usize];
            looked += entry.pages();
            self.stats.scanned += u64::from(entry.pages());
            self.areas[list.area].scanned += u64::from(entry.pages());
            let verdict = self.judge(handle, plan);
            self.journal.note(Event::Looked { list, handle, verdict });
            freed += self.execute(handle, verdict)?;
            if plan.order > 0
                && verdict != Verdict::Skip
                && let Some(mut ground) = Ground::new(self, usize::from(entry.zone), plan)
            {
                let beside = way.beside(&mut ground, entry.frame)?;
                (freed, looked) = (freed + beside.freed, looked + beside.looked);
            }
        }
        Ok(freed)
    }

    /// What becomes of a page.
    pub(in crate::machine) fn judge(&mut self, handle: u32, plan: &Plan) -> Verdict {
        let entry = self.entries[handle as usize];
        let is_above =
            self.memory.zone(usize::from(entry.zone)).is_none_or(|zone| zone.0.height > plan.height);
        if is_above {
            return Verdict::Skip;
        }
        if entry.state.is_writing() && !self.journal.has(Flaw::FreedInFlight) {
            return if self.tuning.release == Release::V6_1 { Verdict::Await } else { Verdict::Keep };
        }
        let is_full = entry.class == Class::Anonymous
            && !self.has_swap(&entry)
            && !self.journal.has(Flaw::SwapWithoutEnd);
        if entry.is_pinned || is_full {
            return Verdict::Activate;
        }
        let is_spared = entry.is_touched && self.config.reclaim.way.spares_used(plan.order);
        if !is_spared || self.journal.has(Flaw::NoSecondChance) {
            return self.verdict_of_unused(&entry, plan);
        }
        let seen = &mut self.entries[handle as usize];
        seen.is_touched = false;
        if self.tuning.release == Release::V6_1 && !entry.is_referenced {
            seen.is_referenced = true;
            return Verdict::Keep;
        }
        if self.config.keeps_referenced { Verdict::Activate } else { self.verdict_of_unused(&entry, plan) }
    }

    /// What becomes of a page that nobody used: a dirty one is written first (`pageout`). A request does not
    /// write to a disk that is congested (`may_write_to_queue`, 2.6.16); of files, none writes (6.1).
    fn verdict_of_unused(&self, entry: &Entry, plan: &Plan) -> Verdict {
        if entry.state != State::Dirty || self.journal.has(Flaw::DirtyDropped) {
            return Verdict::Reclaim;
        }
        match self.tuning.release {
            Release::V2_6_16 if plan.is_direct && self.is_congested() => Verdict::Keep,
            Release::V6_1 if entry.class.is_file() => Verdict::Await,
            Release::V2_6_16 | Release::V6_1 => Verdict::Write,
        }
    }

    /// Does what was decided: pages freed.
    pub(in crate::machine) fn execute(&mut self, handle: u32, verdict: Verdict) -> Result<u32, Wrong> {
        let entry = self.entries[handle as usize];
        match verdict {
            Verdict::Reclaim => {
                self.evict(handle)?;
                return Ok(entry.pages());
            }
            Verdict::Activate => {
                self.stats.activated += if entry.is_active { 0 } else { u64::from(entry.pages()) };
                self.entries[handle as usize].is_referenced = false;
                self.turn(handle, true);
            }
            Verdict::Write => {
                self.send(handle, true);
                self.turn(handle, false);
            }
            Verdict::Await => {
                self.entries[handle as usize].is_hasty = true;
                self.disk.wanted += u64::from(entry.pages());
                self.turn(handle, true);
            }
            Verdict::Keep | Verdict::Skip => self.turn(handle, entry.is_active),
        }
        Ok(0)
    }

    /// Moves pages from the end of an active list to its inactive one.
    pub(super) fn refill(&mut self, active: List, looks: u32, plan: &Plan) {
        let takes_mapped = self.takes_mapped(active.area);
        let looks = looks.min(self.lru.pages(active));
        let mut looked = 0;
        while looked < looks {
            let Some(handle) = self.lru.last(active) else { break };
            let entry = self.entries[handle as usize];
            looked += entry.pages();
            let stays = match self.tuning.release {
                Release::V2_6_16 if entry.class != Class::Anonymous => false,
                Release::V2_6_16 => {
                    let seen = &mut self.entries[handle as usize].is_touched;
                    !takes_mapped || self.config.swap_frames == 0 || std::mem::take(seen)
                }
                Release::V6_1 => {
                    let setup = self.memory.zone(usize::from(entry.zone));
                    let is_above = setup.is_none_or(|(setup, _)| setup.height > plan.height);
                    let entry = &mut self.entries[handle as usize];
                    entry.is_touched &= is_above;
                    is_above
                }
            };
            self.journal.note(Event::Aged { list: active, handle, takes_mapped, stays });
            self.turn(handle, stays);
        }
    }

    /// Whether pages of programs may leave the active list (`reclaim_mapped`, 2.6.16): by how many there are,
    /// by how hard reclaim is, and by the wish to swap.
    fn takes_mapped(&self, area: usize) -> bool {
        let distress = 100u64 >> self.areas[area].distress;
        let mapped = u64::from(self.mapped) * 100 / self.owners.len().max(1) as u64;
        mapped / 2 + distress + u64::from(self.tuning.swappiness) >= 100
    }

    /// Puts a page in front of its list, or of the other one of its sort.
    pub(super) fn turn(&mut self, handle: u32, to_active: bool) {
        let entry = self.entries[handle as usize];
        let Some(list) = self.list(&entry) else { return };
        self.lru.remove(list, handle, entry.pages());
        self.entries[handle as usize].is_active = to_active;
        self.lru.add(List { is_active: to_active, ..list }, handle, entry.pages());
    }

    /// Frees the frame of a page; its holder keeps the handle.
    pub(in crate::machine) fn evict(&mut self, handle: u32) -> Result<(), Wrong> {
        self.forget_writes(handle);
        self.unsettle(handle);
        let entry = &mut self.entries[handle as usize];
        let frame = std::mem::replace(&mut entry.frame, NOWHERE);
        (entry.is_touched, entry.is_referenced, entry.is_active) = (false, false, false);
        entry.objects = 0;
        entry.stamp = self.stats.reclaimed as u32;
        let pages = entry.pages();
        if entry.class == Class::Anonymous {
            self.swapped += pages;
            self.stats.swapped += u64::from(pages);
        }
        self.stats.reclaimed += u64::from(pages);
        self.memory.free(0, frame)?;
        Ok(())
    }
}
