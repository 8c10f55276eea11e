//! Room for what cannot be moved: the border of its region ([`crate::policies::contiguitas`]) goes up when
//! the pages beside it have left, and down again when pageblocks below it are free.

use std::ops::Range;

use super::journal::{Event, Flaw};
use super::{Machine, NOBODY};
use crate::memory::{Down, Request};
use crate::policy::{Policy, Short};
use crate::words::{Frame, Kind, Wrong};
use crate::zone::spot::Spot;

/// What lies beside the border: free blocks, and who holds the others.
#[derive(Debug, Default)]
struct Beside {
    free: Vec<(Frame, u8)>,
    held: Vec<u32>,
}

impl Machine {
    /// Empties what lies above the border of the first zone that may serve a request and has memory left, if
    /// the request is for what cannot be moved. Whether it did. Those who cannot wait get nothing.
    pub(super) fn make_way(&mut self, request: &Request) -> Result<bool, Wrong> {
        if request.down != Down::ToMin || request.kind == Kind::Movable {
            return Ok(false);
        }
        for place in 0..self.memory.count() {
            let Some(at) = self.memory.asked(request.node, place) else { break };
            let Some((setup, per_cpu)) = self.memory.zone(at) else { break };
            let is_bordered = per_cpu.zone().policy().short() == Short::Border;
            if !is_bordered || setup.height > request.height {
                continue;
            }
            if self.memory.stands(at, setup.marks.min, 0, request.height) && self.empty(at, request.order)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves all pages away that lie where the border would go for a block of an order. If one cannot leave,
    /// none does.
    fn empty(&mut self, zone: usize, order: u8) -> Result<bool, Wrong> {
        // What processors keep would be in the way (`drain_all_pages` in `alloc_contig_range`).
        self.memory.drain();
        let range = self.memory.zone(zone).and_then(|(_, zone)| zone.zone().beside_border(0, order));
        let Some(range) = range else { return Ok(false) };
        let beside = self.who_is_beside(zone, &range);
        self.journal.note(Event::Way { zone, range: range.clone(), is_open: beside.is_some() });
        let is_empty = match beside {
            Some(beside) => self.leave(zone, &range, &beside)?,
            None => false,
        };
        self.stats.ways_failed += u64::from(!is_empty);
        self.stats.ways += u64::from(is_empty);
        Ok(is_empty)
    }

    /// What lies in a range; `None`: one of it cannot leave, or reaches over its end.
    fn who_is_beside(&self, zone: usize, range: &Range<Frame>) -> Option<Beside> {
        let (_, zone) = self.memory.zone(zone)?;
        let mut beside = Beside::default();
        let mut at = range.start;
        while at < range.end {
            let order = match zone.zone().spot(at) {
                // A larger block than what is wanted: its part in the range is taken.
                Spot::Free(order) => {
                    let order = order.min((range.end - at).ilog2() as u8);
                    beside.free.push((at, order));
                    order
                }
                Spot::Used(order) => {
                    let handle = self.owners[(at - self.first) as usize];
                    if !self.may_leave(handle) {
                        return None;
                    }
                    beside.held.push(handle);
                    order
                }
                Spot::Kept(_) | Spot::Inside => return None,
            };
            at += 1 << order;
        }
        (at == range.end).then_some(beside)
    }

    fn may_leave(&self, handle: u32) -> bool {
        handle != NOBODY && {
            let entry = &self.entries[handle as usize];
            entry.class.kind() == Kind::Movable && (!entry.is_pinned || self.journal.has(Flaw::PinnedLeaves))
        }
    }

    /// Moves pages out of a range to free blocks above it: all, or none.
    fn leave(&mut self, at: usize, range: &Range<Frame>, beside: &Beside) -> Result<bool, Wrong> {
        let orders: Vec<u8> = beside.held.iter().map(|&held| self.entries[held as usize].order).collect();
        let Some(zone) = self.memory.zone_mut(at) else { return Ok(false) };
        // Nobody may be moved to what is free in the range.
        for &(frame, order) in &beside.free {
            if !zone.take_at(frame, order, Kind::Movable)? {
                return Err(Wrong::Books(format!("frame {frame:#x} is free, and cannot be taken")));
            }
        }
        let mut targets = Vec::with_capacity(orders.len());
        for &order in &orders {
            match zone.take_above_border(order)? {
                Some(frame) => targets.push(frame),
                None => break,
            }
        }
        let fits = targets.len() == orders.len();
        if fits {
            for (&handle, &to) in beside.held.iter().zip(&targets) {
                self.leave_for(handle, to, range)?;
            }
        } else if let Some(zone) = self.memory.zone_mut(at) {
            targets.into_iter().try_for_each(|frame| zone.free(frame).map(|_| ()))?;
        }
        if let Some(zone) = self.memory.zone_mut(at) {
            beside.free.iter().try_for_each(|&(frame, _)| zone.free(frame).map(|_| ()))?;
        }
        self.journal.note(Event::WayEnded { zone: at, fits });
        Ok(fits)
    }

    fn leave_for(&mut self, handle: u32, to: Frame, range: &Range<Frame>) -> Result<(), Wrong> {
        let entry = self.entries[handle as usize];
        debug_assert!(!range.contains(&to));
        self.unsettle(handle);
        if let Some(zone) = self.memory.zone_mut(usize::from(entry.zone)) {
            zone.free(entry.frame)?;
        }
        self.entries[handle as usize].frame = to;
        self.settle(handle);
        self.stats.left += u64::from(entry.pages());
        self.journal.note(Event::Left { handle, from: entry.frame, to });
        Ok(())
    }

    /// Gives pageblocks below borders back that are free again.
    pub(super) fn lower_borders(&mut self) {
        for at in 0..self.memory.count() {
            let over = self.memory.zone_mut(at).map_or(0, |zone| zone.lower_border());
            if over > 0 {
                self.stats.given_back += u64::from(over);
                self.journal.note(Event::GaveBack { zone: at, pageblocks: over });
            }
        }
    }
}
