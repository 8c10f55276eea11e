//! Two regions and the border between them, which moves by pageblocks that are wholly free.

use std::ops::Range;

use crate::planted::Bug;
use crate::policy::{Policy, Short};
use crate::words::{Frame, Kind, Stolen, Wrong};

use super::{Found, Zone};

impl<P: Policy> Zone<P> {
    /// Where the border of a policy that has one lies: the first frame above it.
    pub fn border(&self) -> Option<Frame> {
        let at = self.border << self.shape.block_order;
        (self.policy.short() == Short::Border).then(|| self.shape.first + at)
    }

    /// The frames that a region would get for a block of an order, if they were free: those above the border
    /// for list 0, those below it for the other.
    pub fn beside_border(&self, wanted: u8, order: u8) -> Option<Range<Frame>> {
        let blocks = self.blocks_for(wanted, order)?;
        let frame = |block: u32| self.shape.first + (block << self.shape.block_order);
        Some(frame(blocks.start)..frame(blocks.end))
    }

    /// Allocates a movable block above the border, which stays where it is.
    pub(crate) fn take_above_border(&mut self, order: u8) -> Result<Option<Frame>, Wrong> {
        if (order..=self.shape.max_order).all(|size| self.lists.first(1, size).is_none()) {
            return Ok(None);
        }
        Ok(self.take(order, Kind::Movable)?.map(|taken| taken.frame))
    }

    /// Moves the border back over pageblocks that are free again: as long as the next one is free too, so
    /// that it does not go to and fro, and not below where it was at the start. Pageblocks that it went over.
    pub(crate) fn lower_border(&mut self) -> u32 {
        if self.policy.short() != Short::Border {
            return 0;
        }
        let all = self.shape.frames >> self.shape.block_order;
        let stay = if self.has(Bug::BorderGivesAll) { 1 } else { 2 };
        let mut over = 0;
        // What was this region's at the start stays its own.
        while (1..=stay).all(|below| self.border.checked_sub(below).is_some_and(|at| self.is_given(at)))
            && self.policy.owner_at_start(self.border - 1, all) != 0
        {
            self.border -= 1;
            self.move_pageblock(self.border, 1);
            over += 1;
        }
        over
    }

    /// Whether a pageblock of list 0 is free.
    fn is_given(&self, block: u32) -> bool {
        self.owners[block as usize] == 0 && self.covering(block).is_some()
    }

    /// Moves the border so far that the request fits beside it, if all pageblocks up to there are free.
    pub(super) fn over_border(&mut self, wanted: u8, order: u8) -> Option<Found> {
        let blocks = self.blocks_for(wanted, order)?;
        let from = 1 - wanted.min(1);
        if blocks.clone().any(|block| self.owners[block as usize] != from || self.covering(block).is_none()) {
            return None;
        }
        for block in blocks.clone() {
            self.move_pageblock(block, wanted);
        }
        if !self.has(Bug::BorderStandsStill) {
            self.border = if wanted == 0 { blocks.end } else { blocks.start };
        }
        let (at, found) = self.pop_smallest(wanted, order)?;
        let frame = self.shape.first + (blocks.start << self.shape.block_order);
        let stolen = Stolen { frame, order: self.shape.block_order, wanted, from, owns: true };
        Some(Found { at, order: found, rest: wanted, stolen: Some(stolen) })
    }

    /// The pageblocks from the border to the end of the nearest block of an order, aligned as such.
    fn blocks_for(&self, wanted: u8, order: u8) -> Option<Range<u32>> {
        let block_order = self.shape.block_order;
        let size = 1u64 << order.max(block_order);
        let border = u64::from(self.border()?);
        let (first, end) = (u64::from(self.shape.first), u64::from(self.shape.end()));
        let block = |frame: u64| ((frame - first) >> block_order) as u32;
        if wanted == 0 {
            let to = border.next_multiple_of(size) + size;
            (to <= end).then(|| self.border..block(to))
        } else {
            // One pageblock stays below.
            let from = (border / size * size).checked_sub(size)?;
            (from > first).then(|| block(from)..self.border)
        }
    }

    /// The free block that a pageblock lies in.
    pub(super) fn covering(&self, block: u32) -> Option<(u32, u8)> {
        let frame = self.shape.first + (block << self.shape.block_order);
        (self.shape.block_order..=self.shape.max_order)
            .find_map(|order| Some((self.free_at(frame >> order << order, order)?, order)))
    }

    /// Gives a free pageblock to another list, and merges it there. What else is in its free block stays.
    pub(super) fn move_pageblock(&mut self, block: u32, list: u8) {
        let Some((mut at, mut order)) = self.covering(block) else { return };
        let (target, block_order) = (block << self.shape.block_order, self.shape.block_order);
        let from = self.owners[block as usize];
        self.remove(at, order);
        while order > block_order {
            order -= 1;
            let upper = at + (1 << order);
            let (inner, outer) = if target >= upper { (upper, at) } else { (at, upper) };
            self.add(from, order, outer, false);
            at = inner;
        }
        self.own(block as usize..block as usize + 1, list);
        self.free -= 1 << block_order;
        self.merge(self.shape.first + at, block_order, list);
    }
}
