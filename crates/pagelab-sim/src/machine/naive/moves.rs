//! What a compaction should move, all at once: from a flat copy of the zone.

use super::{Naive, Rule};
use crate::machine::Class;
use crate::machine::compaction::{Came, Job, Manner};
use crate::words::{Frame, Kind, Shape};

/// The zone, one word for each frame.
pub(super) struct Flat {
    pub(super) shape: Shape,
    pub(super) holders: Vec<Option<u32>>,
    /// Blocks do not reach over it.
    pub(super) border: Option<Frame>,
}

impl Flat {
    pub(super) fn block(&self, frame: Frame) -> Frame {
        frame >> self.shape.block_order << self.shape.block_order
    }

    pub(super) fn is_free(&self, frame: Frame) -> bool {
        self.shape.has(frame) && self.holders[(frame - self.shape.first) as usize].is_none()
    }

    /// Whether the border cuts a block.
    fn is_cut(&self, from: Frame, order: u8) -> bool {
        self.border.is_some_and(|border| from < border && border < from + (1 << order))
    }

    /// The largest aligned block of free frames that a frame lies in.
    pub(super) fn free_block(&self, frame: Frame) -> Option<(Frame, u8)> {
        let whole = |order: &u8| {
            let from = frame >> order << order;
            !self.is_cut(from, *order) && (from..from + (1 << order)).all(|at| self.is_free(at))
        };
        let order = (0..=self.shape.max_order).rev().find(whole)?;
        Some((frame >> order << order, order))
    }

    pub(super) fn set(&mut self, frame: Frame, order: u8, holder: Option<u32>) {
        let at = (frame - self.shape.first) as usize;
        self.holders[at..at + (1 << order)].fill(holder);
    }

    /// Frames in free blocks of an order and of larger ones.
    fn free_from(&self, order: u8) -> u64 {
        let size = 1u32 << order;
        let starts = (self.shape.first.next_multiple_of(size)..self.shape.end()).step_by(size as usize);
        let is_block =
            |from: &Frame| !self.is_cut(*from, order) && (*from..*from + size).all(|at| self.is_free(at));
        let whole = starts.filter(is_block);
        whole.count() as u64 * u64::from(size)
    }

    /// Whether there is a free block of an order.
    pub(super) fn has(&self, order: u8) -> bool {
        self.free_from(order) > 0
    }

    /// Whether a mark stands in blocks of at least an order when one of another is taken.
    pub(super) fn stands(&self, mark: u64, order: u8, least: u8) -> bool {
        self.free_from(least) >= mark + (1 << order) && self.has(order)
    }

    /// Percent of free frames that are in smaller blocks.
    fn score(&self, order: u8) -> u64 {
        let (mut small, mut all) = (0u64, 0u64);
        for frame in self.shape.first..self.shape.end() {
            if let Some((_, found)) = self.free_block(frame) {
                all += 1;
                small += u64::from(found < order);
            }
        }
        small * 100 / all.max(1)
    }
}

/// The free scanner of one size of pages: the pageblock, and the frame in it.
#[derive(Clone, Copy)]
struct Place {
    block: Frame,
    frame: Frame,
    has_found: bool,
}

impl Naive {
    /// A zone as it is.
    pub(super) fn flat(&self, zone: usize) -> Flat {
        let border = (self.rule == Rule::Border).then(|| self.border(zone));
        Flat { shape: self.config.zones[zone].shape, holders: self.holders(zone), border }
    }

    fn belongs(&self, zone: usize, block: Frame, kind: Kind) -> bool {
        let shape = self.config.zones[zone].shape;
        let owner = match (self.rule, kind) {
            (Rule::Plain, _) => return true,
            (Rule::Border, kind) => u8::from(kind == Kind::Movable),
            (Rule::Kinds | Rule::Apart, kind) => kind as u8,
        };
        self.owners[zone][((block - shape.first) >> shape.block_order) as usize] == owner
    }

    fn moves(&self, handle: u32, job: &Job, shape: Shape) -> bool {
        self.pages[handle as usize].as_ref().is_some_and(|page| {
            (super::is_cached(page.class) || page.class == Class::Anonymous)
                && !page.is_pinned
                && !page.write.is_writing
                && page.order < job.order
                && page.order < shape.block_order
        })
    }

    /// The pages of the pageblock at `at` that move next, and where the scanner is then.
    fn next_pages(
        &mut self,
        zone: usize,
        flat: &Flat,
        job: &Job,
        at: Frame,
        seen: &mut bool,
    ) -> (Vec<u32>, Frame) {
        let (block, size) = (flat.block(at), 1u32 << flat.shape.block_order);
        if at == block {
            *seen = false;
            let is_skipped = self.past[zone].skips.contains(&block) && job.manner != Manner::Full;
            let is_other = job.manner == Manner::Careful && !self.belongs(zone, block, job.kind);
            let at_block = (block - flat.shape.first) as usize;
            let starts_before = match flat.holders[at_block] {
                // Moves that are planned are in the copy alone.
                Some(handle) => at_block > 0 && flat.holders[at_block - 1] == Some(handle),
                None => flat.free_block(block).is_some_and(|(from, _)| from < block),
            };
            if is_skipped || is_other || starts_before {
                return (Vec::new(), block + size);
            }
        }
        let (mut at, mut batch, mut pages) = (at, Vec::new(), 0);
        while at < block + size && pages < 32 {
            at = match flat.holders[(at - flat.shape.first) as usize] {
                None => flat.free_block(at).map_or(at + 1, |(from, order)| from + (1 << order)),
                Some(handle) => {
                    let order = self.pages[handle as usize].as_ref().map_or(0, |page| page.order);
                    if self.moves(handle, job, flat.shape) {
                        batch.push(handle);
                        pages += 1 << order;
                    }
                    at + (1 << order)
                }
            };
        }
        *seen |= !batch.is_empty();
        if at >= block + size && !*seen {
            self.past[zone].skips.push(block);
        }
        (batch, at)
    }

    /// Where a page of an order goes.
    fn room(
        &mut self,
        zone: usize,
        flat: &Flat,
        job: &Job,
        floor: Frame,
        order: u8,
        place: &mut Place,
    ) -> Option<Frame> {
        let size = 1u32 << flat.shape.block_order;
        while place.block > floor && place.block > flat.shape.first {
            let block = place.block;
            let is_new = place.frame == block;
            place.has_found &= !is_new;
            let is_whole = flat.free_block(block).is_some_and(|(_, found)| found >= flat.shape.block_order);
            let inside = flat.holders[(block - flat.shape.first) as usize]
                .and_then(|handle| self.pages[handle as usize].as_ref())
                .is_some_and(|page| page.frame < Some(block) && page.order > flat.shape.block_order);
            let is_open = job.manner == Manner::Full
                || !self.past[zone].skips.contains(&block) && self.belongs(zone, block, Kind::Movable);
            if !is_new || !is_whole && !inside && is_open {
                let begins = |&frame: &Frame| {
                    flat.free_block(frame).is_some_and(|(from, found)| from == frame && found >= order)
                };
                if let Some(found) = (place.frame..block + size).find(begins) {
                    let next = found + (1 << order);
                    let at = if next < block + size { next } else { block - size };
                    *place = Place { block: flat.block(at), frame: at, has_found: true };
                    return Some(found);
                }
                if order == 0 && !place.has_found {
                    self.past[zone].skips.push(block);
                }
            }
            *place = Place { block: block - size, frame: block - size, has_found: false };
        }
        None
    }

    /// All moves of a compaction, and how it ends.
    pub(super) fn plan_moves(&mut self, zone: usize, job: &Job) {
        let shape = self.config.zones[zone].shape;
        let past = &self.past[zone];
        let is_late = past.least_failed.is_some_and(|failed| job.order >= failed) && past.put_off >= 64;
        if is_late && job.score.is_none() {
            self.forget(zone);
        }
        if job.manner == Manner::Full {
            let past = &mut self.past[zone];
            (past.migrate, past.free) = ([shape.first; 2], shape.end() - (1 << shape.block_order));
        }
        let mut flat = self.flat(zone);
        let free = self.past[zone].free;
        let mut places = vec![Place { block: flat.block(free), frame: free, has_found: false }; 32];
        let mut at = self.past[zone].migrate[usize::from(job.manner != Manner::Careful)];
        let (is_whole, mut moved, mut seen) = (at == shape.first, 0u32, false);
        self.moves.clear();
        let came = loop {
            if places[0].block <= flat.block(at) || at >= shape.end() {
                let past = &mut self.past[zone];
                (past.migrate, past.free) = ([shape.first; 2], shape.end() - (1 << shape.block_order));
                break if is_whole { Came::Complete } else { Came::Partial };
            }
            if moved >= job.most {
                break Came::Interrupted;
            }
            let high = self.high(zone);
            let reached = |flat: &Flat| match (job.score, job.goal) {
                (Some(score), _) => flat.score(job.order) <= score,
                (None, Some(_)) => flat.stands(high, job.order, shape.block_order),
                (None, None) => flat.has(job.order),
            };
            if at == flat.block(at) && reached(&flat) {
                break Came::Success;
            }
            let (batch, next) = self.next_pages(zone, &flat, job, at, &mut seen);
            at = next;
            for handle in batch {
                let Some(page) = self.pages[handle as usize] else { continue };
                let floor = flat.block(at - 1);
                let place = &mut places[usize::from(page.order)];
                let to = self.room(zone, &flat, job, floor, page.order, place);
                match (to, page.frame) {
                    (Some(to), Some(from)) => {
                        flat.set(to, page.order, Some(handle));
                        flat.set(from, page.order, None);
                        self.moves.push((handle, from, to));
                        moved += 1 << page.order;
                    }
                    _ if page.order == 0 => break,
                    _ => {}
                }
            }
            let past = &mut self.past[zone];
            past.free = places[0].frame;
            past.migrate[1] = at;
            if job.manner == Manner::Careful {
                past.migrate[0] = at;
            }
        };
        self.end = Some((*job, came));
    }
}
