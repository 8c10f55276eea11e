//! What Linux since 6.10 does when a list is empty: pageblocks are claimed whole, or one piece is cut out of
//! another's block, and what is left stays where it was.

use crate::planted::Bug;
use crate::policy::{Policy, Take};
use crate::words::{Kind, Stolen};

use super::{Found, Last, Manner, Zone};

impl<P: Policy> Zone<P> {
    /// The largest block of others: its pageblock, or a piece of it (`__rmqueue_fallback`,
    /// `steal_suitable_fallback` of 6.10 to 6.14).
    pub(super) fn claim_or_cut(&mut self, wanted: u8, order: u8, manner: &Manner) -> Option<Found> {
        let (max, block_order) = (self.shape.max_order, self.shape.block_order);
        let least = self.least(order, manner);
        let (size, (from, at)) =
            (least..=max).rev().find_map(|size| Some((size, self.other(wanted, size)?)))?;
        if self.policy.take(wanted, size, block_order) != Take::Pageblock {
            self.mixes();
            return self.smallest_of_others(wanted, order);
        }
        self.claim(wanted, order, (from, at, size)).or_else(|| Some(self.cut(wanted, (from, at, size))))
    }

    /// Pageblocks from the largest block down; then the smallest block (`__rmqueue_claim`,
    /// `__rmqueue_steal` of 6.15 to 6.18).
    pub(super) fn claim_then_cut(&mut self, wanted: u8, order: u8, manner: &mut Manner) -> Option<Found> {
        let least = self.least(order, manner);
        for size in (least..=self.shape.max_order).rev() {
            if self.policy.take(wanted, size, self.shape.block_order) != Take::Pageblock {
                break;
            }
            let Some((from, at)) = self.other(wanted, size) else { continue };
            if let Some(found) = self.claim(wanted, order, (from, at, size)) {
                manner.last = Last::Own;
                return Some(found);
            }
            if self.has(Bug::ClaimsOnce) {
                break;
            }
        }
        self.cut_smallest(wanted, order, manner)
    }

    /// In a batch that found nothing to be claimed, the next piece: its list is still empty.
    pub(super) fn go_on_cutting(&mut self, wanted: u8, order: u8, manner: &mut Manner) -> Option<Found> {
        if self.has(Bug::BatchForgets) {
            return self.claim_then_cut(wanted, order, manner);
        }
        self.cut_smallest(wanted, order, manner)
    }

    /// A piece of the smallest block of others, if kinds may be mixed.
    pub(super) fn cut_smallest(&mut self, wanted: u8, order: u8, manner: &mut Manner) -> Option<Found> {
        if !manner.may_mix && !self.has(Bug::MixesAnyway) {
            return None;
        }
        let found = self.smallest_of_others(wanted, order)?;
        manner.last = Last::Cut;
        Some(found)
    }

    fn smallest_of_others(&mut self, wanted: u8, order: u8) -> Option<Found> {
        let mut sizes = order..=self.shape.max_order;
        let (size, (from, at)) = sizes.find_map(|size| Some((size, self.other(wanted, size)?)))?;
        Some(self.cut(wanted, (from, at, size)))
    }

    /// A piece of the largest block of others, if the policy takes no more of it.
    pub(super) fn piece(&mut self, wanted: u8, order: u8, manner: &Manner) -> Option<Found> {
        let mut sizes = (self.least(order, manner)..=self.shape.max_order).rev();
        let (size, (from, at)) = sizes.find_map(|size| Some((size, self.other(wanted, size)?)))?;
        let take = self.policy.take(wanted, size, self.shape.block_order);
        (take == Take::Piece).then(|| self.cut(wanted, (from, at, size)))
    }

    /// Of a free block just a piece: the rest stays on its list.
    fn cut(&mut self, wanted: u8, (from, at, size): (u8, u32, u8)) -> Found {
        let stolen = Stolen { frame: self.shape.first + at, order: size, wanted, from, owns: false };
        self.remove(at, size);
        let rest = if self.has(Bug::RestIsKept) { wanted } else { from };
        Found { at, order: size, rest, stolen: Some(stolen) }
    }

    /// Counts that kinds are about to be mixed: whatever comes of it, as the kernel does.
    pub(super) fn mixes(&mut self) {
        if !self.has(Bug::MixingUncounted) {
            self.mixings = self.mixings.wrapping_add(1);
        }
    }

    /// The pageblock of a free block, if enough of it is free or alike.
    fn claim(&mut self, wanted: u8, order: u8, (from, at, size): (u8, u32, u8)) -> Option<Found> {
        let block_order = self.shape.block_order;
        let block = (at >> block_order) as usize;
        let stolen = Stolen { frame: self.shape.first + at, order: size, wanted, from, owns: true };
        if size >= block_order {
            self.own(block..block + (1 << (size - block_order)), wanted);
            self.remove(at, size);
            return Some(Found { at, order: size, rest: wanted, stolen: Some(stolen) });
        }
        self.mixes();
        let (free, movable) = self.count_pageblock(block);
        if !self.is_enough(block, wanted, free, movable) {
            return None;
        }
        self.relist_pageblock(block, wanted);
        self.own(block..block + 1, wanted);
        let (at, found) = self.pop_smallest(wanted, order)?;
        Some(Found { at, order: found, rest: wanted, stolen: Some(stolen) })
    }

    /// Free frames of a pageblock, and movable ones that are not free (`prep_move_freepages_block`).
    fn count_pageblock(&self, block: usize) -> (u32, u32) {
        let from = (block as u32) << self.shape.block_order;
        let to = from + (1 << self.shape.block_order);
        let (mut at, mut free, mut movable) = (from, 0, 0);
        while at < to {
            let state = self.lists.state(at);
            let (order, counts) = match (state.free_order(), state.used_order()) {
                (Some(order), _) => (order, &mut free),
                (None, Some((order, Kind::Movable))) => (order, &mut movable),
                (None, used) => {
                    at += 1 << used.map_or(0, |(order, _)| order);
                    continue;
                }
            };
            *counts += 1 << order;
            at += 1 << order;
        }
        (free, movable.min(to - from))
    }
}
