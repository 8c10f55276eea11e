//! The two scanners, and when a compaction ends (`compact_zone`, `compact_finished`,
//! `isolate_migratepages_block`, `isolate_freepages`).

use super::{Came, Job, Manner};
use crate::machine::journal::{Event, Flaw};
use crate::machine::{Class, Machine, NOBODY};
use crate::words::{Frame, Kind, Wrong};
use crate::zone::spot::Spot;

/// Pages that are moved at a time (`COMPACT_CLUSTER_MAX`).
const AT_ONCE: u32 = 32;

/// Where a compaction is.
struct Run {
    zone: usize,
    /// Frames of a pageblock.
    block: u32,
    migrate: Frame,
    /// Where room is looked for, for each order of what moves. That of base pages says whether the scanners
    /// have met; larger pages need larger room, and go further down.
    free: Vec<Frame>,
    /// Whether something was found in the pageblock that the scanner is in: pages, and room for base pages.
    has_pages: bool,
    has_room: bool,
    /// Whether it began at the zone's beginning.
    is_whole: bool,
    moved: u32,
}

impl Run {
    /// The pageblock that a frame lies in: zones begin at one, and so does frame 0.
    fn block_of(&self, frame: Frame) -> Frame {
        frame - frame % self.block
    }

    fn have_met(&self) -> bool {
        self.block_of(self.free[0]) <= self.block_of(self.migrate)
    }
}

impl Machine {
    /// Compacts a zone.
    pub(super) fn compact_zone(&mut self, zone: usize, job: &Job) -> Result<Came, Wrong> {
        let compactor = &mut self.compactors[zone];
        if job.score.is_none() && compactor.restarts(job.order) {
            compactor.reset();
        }
        if job.manner == Manner::Full {
            compactor.rewind();
        }
        let shape = compactor.shape;
        let migrate = compactor.migrate[usize::from(job.manner != Manner::Careful)];
        let mut run = Run {
            zone,
            block: 1 << shape.block_order,
            migrate,
            free: vec![compactor.free; usize::from(shape.block_order) + 1],
            has_pages: false,
            has_room: false,
            is_whole: migrate == shape.first,
            moved: 0,
        };
        self.stats.compactions += 1;
        self.journal.note(Event::Began { zone, job: *job });
        let came = loop {
            if let Some(came) = self.ended(job, &run) {
                break came;
            }
            for handle in self.pages_to_move(job, &mut run) {
                let order = self.entries[handle as usize].order;
                if let Some(to) = self.room(job, &mut run, order)? {
                    self.relocate(handle, to)?;
                    run.moved += 1 << order;
                } else if order == 0 {
                    break;
                }
            }
            let compactor = &mut self.compactors[zone];
            compactor.free = run.free[0];
            compactor.migrate[1] = run.migrate;
            if job.manner == Manner::Careful {
                compactor.migrate[0] = run.migrate;
            }
        };
        self.stats.compacted += u64::from(came == Came::Success);
        if matches!(came, Came::Complete | Came::Partial) {
            self.compactors[zone].rewind();
            self.compactors[zone].flushes |= job.is_direct || job.score.is_some();
        }
        self.journal.note(Event::Ended { zone, came });
        Ok(came)
    }

    /// Whether a compaction has come to its end.
    fn ended(&self, job: &Job, run: &Run) -> Option<Came> {
        let (_, zone) = self.memory.zone(run.zone)?;
        let has_met = run.have_met() && !self.journal.has(Flaw::ScannersCross);
        if has_met || run.migrate >= zone.zone().shape().end() {
            return Some(if run.is_whole { Came::Complete } else { Came::Partial });
        }
        if run.moved >= job.most {
            return Some(Came::Interrupted);
        }
        // A pageblock is gone through to its end.
        if run.migrate != run.block_of(run.migrate) {
            return None;
        }
        let is_done = match (job.score, job.goal) {
            (Some(score), _) => {
                let (small, free) = self.unusable_in(run.zone, job.order);
                small * 100 / free.max(1) <= score
            }
            (None, Some(height)) => {
                let high = self.memory.zone(run.zone).map_or(0, |(setup, _)| setup.marks.high);
                self.memory.stands_in_pageblocks(run.zone, high, job.order, height)
            }
            (None, None) => {
                let mut blocks = zone.zone().free_blocks().iter().skip(usize::from(job.order));
                blocks.any(|&blocks| blocks > 0)
            }
        };
        is_done.then_some(Came::Success)
    }

    /// The next pages to move, of one pageblock.
    fn pages_to_move(&mut self, job: &Job, run: &mut Run) -> Vec<u32> {
        let mut found = Vec::new();
        let Some((setup, zone)) = self.memory.zone(run.zone) else { return found };
        let (zone, shape) = (zone.zone(), setup.shape);
        let from = run.block_of(run.migrate);
        let (block, end) = ((from - shape.first) >> shape.block_order, from + run.block);
        if run.migrate == from {
            run.has_pages = false;
            let is_skipped = self.compactors[run.zone].skips[block as usize] && job.manner != Manner::Full;
            let is_other = job.manner == Manner::Careful
                && !zone.is_block_of(from, job.kind)
                && !self.journal.has(Flaw::AnyBlockTaken);
            if is_skipped || is_other || zone.spot(from) == Spot::Inside {
                run.migrate = end;
                return found;
            }
        }
        let (mut at, mut pages, mut looks) = (run.migrate, 0, 0);
        while at < end && pages < AT_ONCE {
            looks += 1;
            let size = match zone.spot(at) {
                Spot::Free(order) | Spot::Kept(order) => order,
                Spot::Used(order) => {
                    let handle = self.owners[(at - self.first) as usize];
                    if order < job.order.min(shape.block_order) && self.is_movable(handle) {
                        found.push(handle);
                        pages += 1 << order;
                    }
                    order
                }
                Spot::Inside => 0,
            };
            at += 1 << size;
        }
        self.stats.migrate_scanned += looks;
        run.migrate = at;
        run.has_pages |= !found.is_empty();
        if at >= end && !run.has_pages {
            self.compactors[run.zone].skips[block as usize] = true;
        }
        found
    }

    fn is_movable(&self, handle: u32) -> bool {
        if handle == NOBODY {
            return false;
        }
        let entry = &self.entries[handle as usize];
        (entry.class.is_file() || entry.class == Class::Anonymous)
            && !entry.state.is_writing()
            && (!entry.is_pinned || self.journal.has(Flaw::PinnedMoved))
    }

    /// Room for a page of an order, which is taken.
    fn room(&mut self, job: &Job, run: &mut Run, order: u8) -> Result<Option<Frame>, Wrong> {
        let row = usize::from(order);
        let shape = self.compactors[run.zone].shape;
        loop {
            let at = run.free[row];
            let from = run.block_of(at);
            let has_met = from <= run.block_of(run.migrate - 1) && !self.journal.has(Flaw::ScannersCross);
            if has_met || from == shape.first {
                return Ok(None);
            }
            if at == from && row == 0 {
                run.has_room = false;
            }
            let end = from + run.block;
            let is_in = at != from || self.may_have_room(job, run.zone, from);
            let found = if is_in { self.free_above(run.zone, at, end, order) } else { None };
            let Some(found) = found else {
                if is_in && row == 0 && !run.has_room {
                    let block = (from - shape.first) >> shape.block_order;
                    self.compactors[run.zone].skips[block as usize] = true;
                }
                run.free[row] = from - run.block;
                continue;
            };
            run.has_room |= row == 0;
            let next = found + (1 << order);
            run.free[row] = if next < end { next } else { from - run.block };
            let Some(zone) = self.memory.zone_mut(run.zone) else { return Ok(None) };
            if !zone.take_at(found, order, Kind::Movable)? {
                return Err(Wrong::Books(format!("frame {found:#x} is free, and cannot be taken")));
            }
            return Ok(Some(found));
        }
    }

    /// Whether pages may be moved to a pageblock (`suitable_migration_target`): one of movable pages that is
    /// not free as a whole.
    fn may_have_room(&self, job: &Job, zone: usize, from: Frame) -> bool {
        let Some((setup, per_cpu)) = self.memory.zone(zone) else { return false };
        let block = (from - setup.shape.first) >> setup.shape.block_order;
        let is_free = match per_cpu.zone().spot(from) {
            Spot::Free(order) => order >= setup.shape.block_order,
            Spot::Inside => true,
            Spot::Used(_) | Spot::Kept(_) => false,
        };
        let is_skipped = self.compactors[zone].skips[block as usize];
        let is_movable =
            per_cpu.zone().is_block_of(from, Kind::Movable) || self.journal.has(Flaw::AnyBlockTaken);
        !is_free && (job.manner == Manner::Full || !is_skipped && is_movable)
    }

    /// The lowest free block of an order, or of a larger one, that begins in a range.
    fn free_above(&mut self, zone: usize, from: Frame, end: Frame, order: u8) -> Option<Frame> {
        let (_, per_cpu) = self.memory.zone(zone)?;
        let (mut at, mut looks, mut found) = (from, 0, None);
        while at < end && found.is_none() {
            looks += 1;
            at += match per_cpu.zone().spot(at) {
                Spot::Free(size) if size >= order => {
                    found = Some(at);
                    0
                }
                Spot::Free(size) | Spot::Used(size) | Spot::Kept(size) => 1 << size,
                Spot::Inside => 1,
            };
        }
        self.stats.free_scanned += looks;
        found
    }
}
