//! Compaction (mm/compaction.c of 6.1; large folios as whole: 6.10): a scanner that goes up finds pages to
//! move, one that comes down finds room for them.

mod scanners;

use super::journal::{Event, Flaw};
use super::reclaim::COSTLY;
use super::{Entry, Machine, Release};
use crate::memory::Request;
use crate::words::{Frame, Kind, Shape, Wrong};

/// Failures after which waiting gets no longer (`COMPACT_MAX_DEFER_SHIFT`): 64 compactions are put off.
const DEFER_MAX: u8 = 6;

/// How a compaction goes about (`enum compact_priority`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Only pageblocks of the request's own kind are emptied (`COMPACT_PRIO_ASYNC`).
    Careful,
    /// All pageblocks that do not seem hopeless (`COMPACT_PRIO_SYNC_LIGHT`).
    Light,
    /// All of the zone, whatever was found before (`COMPACT_PRIO_SYNC_FULL`).
    Full,
}

/// How a compaction ended, the best last (`enum compact_result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Came {
    /// There was no point in it.
    Skipped,
    /// It was put off.
    Deferred,
    /// The whole zone was gone through.
    Complete,
    /// The zone was gone through to its end, but not from its beginning.
    Partial,
    /// It has moved as much as it may in one go.
    Interrupted,
    /// There is a block that is large enough.
    Success,
}

/// What a compaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// The order that is short.
    pub order: u8,
    /// The kind of the request.
    pub kind: Kind,
    /// How it goes about.
    pub manner: Manner,
    /// Whether a request waits for it.
    pub is_direct: bool,
    /// It ends when no more than this share of free memory, in percent, is in blocks that are too small.
    pub score: Option<u64>,
    /// Pages to move at most.
    pub most: u32,
    /// It ends when the high mark stands in whole pageblocks for who may go up to this height.
    pub goal: Option<u8>,
}

/// What a zone keeps of its compaction.
#[derive(Clone, Debug)]
pub(super) struct Compactor {
    shape: Shape,
    /// Pageblocks that are not worth a look (`PB_migrate_skip`).
    skips: Vec<bool>,
    /// Where the scanners go on: that of pages for careful compactions and for others, and that of room.
    migrate: [Frame; 2],
    free: Frame,
    /// Whether all pageblocks are worth a look again when `kswapd` sleeps (`compact_blockskip_flush`).
    flushes: bool,
    /// Compactions that were put off since the last one, of 2^shift, and the least order that failed.
    considered: u32,
    shift: u8,
    failed: u8,
}

impl Compactor {
    /// Of a zone that was never compacted.
    pub fn new(shape: Shape) -> Compactor {
        let mut compactor = Compactor {
            shape,
            skips: vec![false; (shape.frames >> shape.block_order) as usize],
            migrate: [shape.first; 2],
            free: shape.first,
            flushes: false,
            considered: 0,
            shift: 0,
            failed: u8::MAX,
        };
        compactor.rewind();
        compactor
    }

    /// Both scanners to the ends of the zone.
    fn rewind(&mut self) {
        self.migrate = [self.shape.first; 2];
        self.free = self.shape.end() - (1 << self.shape.block_order);
    }

    fn reset(&mut self) {
        self.skips.fill(false);
        self.flushes = false;
        self.rewind();
    }

    /// Pageblocks that are not worth a look, and where scanners go on: pages twice, and room.
    #[cfg(test)]
    pub fn known(&self) -> (Vec<bool>, [Frame; 3]) {
        (self.skips.clone(), [self.migrate[0], self.migrate[1], self.free])
    }

    /// All pageblocks are worth a look again, if the zone was gone through (`reset_isolation_suitable`).
    pub fn flush(&mut self) {
        if self.flushes {
            self.reset();
        }
    }

    /// Whether a compaction is put off (`compaction_deferred`).
    fn defers(&mut self, order: u8) -> bool {
        if order < self.failed {
            return false;
        }
        let limit = 1 << self.shift;
        self.considered = (self.considered + 1).min(limit);
        self.considered < limit
    }

    /// After a failure: the next ones are put off, twice as many as before (`defer_compaction`).
    fn defer(&mut self, order: u8) {
        self.considered = 0;
        self.shift = (self.shift + 1).min(DEFER_MAX);
        self.failed = self.failed.min(order);
    }

    /// After a success (`compaction_defer_reset`).
    pub fn forgive(&mut self, order: u8, was_served: bool) {
        if was_served {
            (self.considered, self.shift) = (0, 0);
        }
        if order >= self.failed {
            self.failed = order + 1;
        }
    }

    /// Whether as many compactions were put off as ever are (`compaction_restarting`).
    fn restarts(&self, order: u8) -> bool {
        order >= self.failed && self.shift == DEFER_MAX && self.considered >= 1 << self.shift
    }
}

impl Machine {
    /// Compacts a zone for a request that waits, unless that is put off.
    pub(super) fn compact_directly(
        &mut self,
        zone: usize,
        request: &Request,
        manner: Manner,
    ) -> Result<Came, Wrong> {
        let order = request.order;
        if manner != Manner::Full && self.puts_off(zone, order) {
            return Ok(Came::Deferred);
        }
        if !self.is_worth_it(zone, order, request.height) {
            let min = self.memory.zone(zone).map_or(0, |(setup, _)| setup.marks.min);
            let is_there = self.memory.stands(zone, min, order, request.height);
            return Ok(if is_there { Came::Success } else { Came::Skipped });
        }
        let (kind, most) = (request.kind, u32::MAX);
        let job = Job { order, kind, manner, is_direct: true, score: None, most, goal: None };
        let came = self.compact_zone(zone, &job)?;
        match came {
            Came::Success => self.compactors[zone].forgive(order, false),
            Came::Complete | Came::Partial if manner != Manner::Careful => self.compactors[zone].defer(order),
            _ => {}
        }
        Ok(came)
    }

    fn puts_off(&mut self, zone: usize, order: u8) -> bool {
        let is_deferred = match self.journal.has(Flaw::DeferralNeverEnds) {
            true => order >= self.compactors[zone].failed,
            false => self.compactors[zone].defers(order),
        };
        self.journal.note(Event::Asked { zone, order, is_deferred });
        self.stats.deferred += u64::from(is_deferred);
        is_deferred
    }

    /// Compacts a zone as `kcompactd` does when `kswapd` is done (`kcompactd_do_work`), which was woken for
    /// who may go up to a height.
    pub(super) fn compact_in_background(&mut self, zone: usize, order: u8, height: u8) -> Result<(), Wrong> {
        let Some((setup, _)) = self.memory.zone(zone) else { return Ok(()) };
        let (own_height, high) = (setup.height, setup.marks.high);
        let counts_pageblocks = self.counts_pageblocks();
        let is_worth_it = match self.puts_off(zone, order) {
            true => false,
            false if counts_pageblocks => self.is_short_of_pageblocks(zone, order, high, own_height),
            false => self.is_worth_it(zone, order, own_height),
        };
        if !is_worth_it {
            return Ok(());
        }
        self.stats.kcompactd += 1;
        let (kind, manner, most) = (Kind::Movable, Manner::Light, u32::MAX);
        let goal = counts_pageblocks.then_some(height);
        let job = Job { order, kind, manner, is_direct: false, score: None, most, goal };
        match self.compact_zone(zone, &job)? {
            Came::Success => self.compactors[zone].forgive(order, false),
            Came::Complete | Came::Partial => {
                self.memory.drain();
                self.compactors[zone].defer(order);
            }
            _ => {}
        }
        Ok(())
    }

    /// Compacts a node ahead of need (`proactive_compact_node`), if its score is too bad: up to `most` pages.
    pub(super) fn compact_ahead(&mut self, node: u16, most: u32) -> Result<(), Wrong> {
        let proactiveness = u64::from(self.tuning.proactiveness.min(100));
        let wake = &mut self.awake[usize::from(node)];
        if proactiveness == 0 || !self.config.compacts || most == 0 {
            return Ok(());
        }
        if wake.rest > 0 {
            wake.rest -= 1;
            return Ok(());
        }
        let low = (100 - proactiveness).max(5);
        let before = self.score(node);
        if before <= (low + 10).min(100) {
            return Ok(());
        }
        self.stats.proactive += 1;
        let moved = self.stats.migrated;
        for zone in 0..self.memory.count() {
            let Some((setup, _)) = self.memory.zone(zone) else { break };
            if setup.node != node {
                continue;
            }
            let order = setup.shape.block_order;
            self.stats.kcompactd += 1;
            let (kind, manner) = (Kind::Movable, Manner::Light);
            let job = Job { order, kind, manner, is_direct: false, score: Some(low), most, goal: None };
            if matches!(self.compact_zone(zone, &job)?, Came::Complete | Came::Partial) {
                self.memory.drain();
            }
        }
        // The score stays as it is although all was gone through: wait, and look everywhere again.
        if self.score(node) >= before && self.stats.migrated - moved < u64::from(most) {
            self.awake[usize::from(node)].rest = 1 << DEFER_MAX;
            for zone in 0..self.compactors.len() {
                self.compactors[zone].flush();
                self.journal.note(Event::Flushed { zone });
            }
        }
        Ok(())
    }

    /// How fragmented a node is (`fragmentation_score_node`): percent of free memory in blocks smaller than a
    /// pageblock, each zone with its weight.
    fn score(&self, node: u16) -> u64 {
        let of_node = |at: usize| {
            let (setup, _) = self.memory.zone(at).filter(|(setup, _)| setup.node == node)?;
            Some((at, setup.shape))
        };
        let zones = (0..self.memory.count()).filter_map(of_node);
        let all: u64 = zones.clone().map(|(_, shape)| u64::from(shape.frames)).sum();
        let of = |(at, shape): (usize, Shape)| {
            let (small, free) = self.unusable_in(at, shape.block_order);
            u64::from(shape.frames) * (small * 100 / free.max(1)) / (all + 1)
        };
        zones.map(of).sum()
    }

    /// Whether compaction may help (`compaction_suitable`): there is no block yet, room for both copies, and
    /// it is not for lack of memory that there is no block.
    fn is_worth_it(&self, zone: usize, order: u8, height: u8) -> bool {
        let Some((setup, _)) = self.memory.zone(zone) else { return false };
        if self.memory.stands(zone, setup.marks.min, order, height) {
            return false;
        }
        let mark = if order > COSTLY { setup.marks.low } else { setup.marks.min };
        if !self.memory.stands(zone, mark + (2 << order), 0, height) {
            return false;
        }
        let index = self.fragmentation_index(zone, order);
        order <= COSTLY || !(0..=i64::from(self.tuning.extfrag_threshold)).contains(&index)
    }

    /// Whether free memory counts in whole pageblocks in the background (`vm.defrag_mode`, 6.15).
    pub(super) fn counts_pageblocks(&self) -> bool {
        self.tuning.release == Release::V6_1 && self.memory.avoids_mixing()
    }

    /// Whether a mark does not stand in whole pageblocks, and compaction may help
    /// (`compaction_suit_allocation_order` of 6.15 for `kcompactd`).
    fn is_short_of_pageblocks(&self, zone: usize, order: u8, mark: u64, height: u8) -> bool {
        let Some((setup, _)) = self.memory.zone(zone) else { return false };
        if self.memory.stands_in_pageblocks(zone, mark, order, height) {
            return false;
        }
        let costly = if order > COSTLY { setup.marks.low - setup.marks.min } else { 0 };
        let index = self.fragmentation_index(zone, order);
        self.memory.stands(zone, mark + (2 << order) + costly, 0, height)
            && (order <= COSTLY || !(0..=i64::from(self.tuning.extfrag_threshold)).contains(&index))
    }

    /// Whether that is so of the minimum of a zone of a node (`kcompactd_node_suitable`).
    pub(super) fn is_any_short_of_pageblocks(&self, node: u16, order: u8, height: u8) -> bool {
        (0..self.memory.count()).any(|at| {
            self.memory.zone(at).is_some_and(|(setup, _)| {
                setup.node == node
                    && setup.height <= height
                    && self.is_short_of_pageblocks(at, order, setup.marks.min, height)
            })
        })
    }

    /// The kernel's fragmentation index in thousandths (`__fragmentation_index`): near 0 a block is missing
    /// for lack of memory, near 1000 for fragmentation; −1000 where there is one.
    pub fn fragmentation_index(&self, zone: usize, order: u8) -> i64 {
        let Some((_, zone)) = self.memory.zone(zone) else { return 0 };
        let (mut blocks, mut frames) = (0u64, 0u64);
        for (size, &count) in (0u8..).zip(zone.zone().free_blocks()) {
            if size >= order && count > 0 {
                return -1000;
            }
            blocks += u64::from(count);
            frames += u64::from(count) << size;
        }
        if blocks == 0 {
            return 0;
        }
        1000 - ((1000 + ((frames * 1000) >> order)) / blocks) as i64
    }

    /// Moves a block to a place in its zone that was made ready for it.
    fn relocate(&mut self, handle: u32, to: Frame) -> Result<(), Wrong> {
        let Entry { frame: from, zone, order, .. } = self.entries[handle as usize];
        self.unsettle(handle);
        if let Some(zone) = self.memory.zone_mut(usize::from(zone)) {
            zone.free(from)?;
        }
        self.entries[handle as usize].frame = to;
        self.settle(handle);
        if self.journal.has(Flaw::OwnerForgotten) {
            self.owners[(to - self.first) as usize] = super::NOBODY;
        }
        self.stats.migrated += 1 << order;
        self.journal.note(Event::Moved { handle, from, to });
        Ok(())
    }
}
