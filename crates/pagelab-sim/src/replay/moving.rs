//! Where compaction moves objects to: the trace has their old places only (mm/compaction.c:
//! `isolate_freepages`, `suitable_migration_target`, `release_freepages`).

use super::Replay;
use crate::memory::Memory;
use crate::policy::Policy;
use crate::words::{Frame, Kind, Wrong};

/// The free scanner of a zone: it goes down by pageblocks, and up in each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scanner {
    /// Frames of the zone below and in the pageblock that it is at; 0: it is through.
    block_end: u32,
    /// Where it is in that pageblock.
    next: u32,
}

impl Scanner {
    /// The next room of an order, counted from the zone's first frame, if there is any.
    fn room<P: Policy + Clone>(&mut self, memory: &Memory<P>, zone: usize, order: u8) -> Option<u32> {
        let zone = memory.zone(zone)?.1.zone();
        let (block_order, movable) = (zone.shape().block_order, zone.policy().wanted(Kind::Movable));
        while self.block_end > 0 {
            let block = (self.block_end - 1) >> block_order;
            let is_for_it = zone.owners().get(block as usize) == Some(&movable);
            while is_for_it && self.next < self.block_end {
                match zone.lists().state(self.next).free_order() {
                    // What is free as a whole is left alone.
                    Some(free) if free >= block_order => break,
                    Some(free) if free >= order => return Some(self.next),
                    Some(free) => self.next += 1 << free,
                    None => self.next += 1,
                }
            }
            self.block_end = block << block_order;
            self.next = block.saturating_sub(1) << block_order;
        }
        None
    }
}

impl<P: Policy + Clone> Replay<P> {
    /// The scanners of all zones begin again, at the ends.
    pub(super) fn rewind(&mut self) {
        let begin = |place: &super::Place| {
            let frames = place.frames;
            Scanner {
                block_end: frames,
                next: frames.saturating_sub(1) >> self.block_order << self.block_order,
            }
        };
        self.scanners = self.places.iter().map(begin).collect();
    }

    /// Takes room for an object from where the free scanner of a zone is.
    fn room(&mut self, zone: usize, order: u8, kind: Kind) -> Result<Option<Frame>, Wrong> {
        let Some(scanner) = self.scanners.get_mut(zone) else { return Ok(None) };
        let Some(at) = scanner.room(&self.memory, zone, order) else { return Ok(None) };
        let first = self.memory.zone(zone).map_or(0, |(setup, _)| setup.shape.first);
        Ok(self.memory.take_at_in(zone, first + at, order, kind)?.then_some(first + at))
    }

    /// Moves an object to the other end of its zone: where it lies now.
    pub(super) fn relocate(&mut self, from: Frame, cpu: u16) -> Result<Frame, Wrong> {
        let zone = self.zone_of(from);
        let Some((order, kind)) = self.memory.used_in(zone, from) else {
            return Err(Wrong::NotAllocated(from));
        };
        match self.room(zone, order, kind)? {
            Some(to) => {
                self.memory.free_in(zone, cpu, from)?;
                Ok(to)
            }
            None => Ok(from),
        }
    }

    /// Room that compaction took and did not need goes to the lists of its processor, not back to where it
    /// was.
    pub(super) fn give_back_room(&mut self, pfn: Frame, order: u8, cpu: u16) -> Result<(), Wrong> {
        match self.room(self.zone_of(pfn), order, Kind::Movable)? {
            Some(frame) => self.memory.free(cpu, frame).map(|_| ()),
            None => Ok(()),
        }
    }
}
