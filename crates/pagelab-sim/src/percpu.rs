//! Lists of small blocks that each processor keeps for itself, over a zone (`struct per_cpu_pages`;
//! mm/page_alloc.c of Linux 6.1: `rmqueue_pcplist`, `rmqueue_bulk`, `free_unref_page_commit`,
//! `free_pcppages_bulk`).

use crate::planted::Bug;
use crate::policy::Policy;
use crate::words::{Frame, Kind, Stolen, Wrong};
use crate::zone::{Manner, Taken, Zone};
use pace::{Now, Pace};
use shelf::Shelf;

pub use pace::Terms;

mod pace;
mod shelf;

/// Blocks up to this order are kept (`PAGE_ALLOC_COSTLY_ORDER`), and those of a pageblock (huge pages).
pub(crate) const SMALL: u8 = 3;

/// How much a processor keeps.
///
/// With a batch and a high mark of 0 it keeps nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Processors; at least 1.
    pub cpus: u16,
    /// Frames that are fetched or given back at once (`batch`: 63 on machines of some size).
    pub batch: u32,
    /// Frames at which a processor gives some back (`high`; since Linux 6.7 the lowest, `high_min`).
    pub high: u32,
    /// How much it fetches and gives back.
    pub terms: Terms,
}

impl Keep {
    /// Nothing is kept: each request goes to the zone.
    pub const NOTHING: Keep = Keep::batches(1, 0, 0);

    /// Batches are fetched and given back: up to Linux 5.13.
    pub const fn batches(cpus: u16, batch: u32, high: u32) -> Keep {
        Keep { cpus, batch, high, terms: Terms::Batch }
    }
}

/// A zone whose processors keep small blocks.
#[derive(Clone, Debug)]
pub struct PerCpu<P> {
    zone: Zone<P>,
    keep: Keep,
    cpus: Vec<Kept>,
    now: Now,
}

/// What one processor keeps.
#[derive(Clone, Debug)]
struct Kept {
    /// By order, and in it by list of the zone.
    lists: Vec<Shelf>,
    frames: u32,
    pace: Pace,
}

impl<P: Policy> PerCpu<P> {
    /// A zone with empty lists.
    pub fn new(zone: Zone<P>, keep: Keep) -> Result<PerCpu<P>, Wrong> {
        let wrong = |what: &str| Err(Wrong::Shape(what.to_owned()));
        if keep.cpus == 0 {
            return wrong("a machine of 0 processors");
        }
        if (keep.batch == 0) != (keep.high == 0) || keep.high < keep.batch {
            return wrong("per-CPU lists with a batch of 0, or one above their high mark");
        }
        if keep.terms != Terms::Batch && keep.high < 2 * keep.batch {
            return wrong("per-CPU lists of Linux 5.14 or later with a high mark of less than two batches");
        }
        let lists = (usize::from(SMALL) + 2) * usize::from(zone.policy().lists());
        let kept = Kept { lists: vec![Shelf::default(); lists], frames: 0, pace: Pace::new(&keep) };
        Ok(PerCpu { zone, keep, cpus: vec![kept; usize::from(keep.cpus)], now: Now::default() })
    }

    /// The zone below.
    pub fn zone(&self) -> &Zone<P> {
        &self.zone
    }

    /// Whether processors keep anything, ever.
    #[inline]
    pub(crate) fn keeps(&self) -> bool {
        self.keep.high > 0
    }

    /// The zone below, without what processors keep: for one that nobody has taken from.
    pub(crate) fn into_zone(self) -> Zone<P> {
        self.zone
    }

    /// The zone below, for those who go past what processors keep.
    pub(crate) fn zone_mut(&mut self) -> &mut Zone<P> {
        &mut self.zone
    }

    /// Frames that all processors keep: free, and not counted by the zone.
    pub fn kept_frames(&self) -> u32 {
        self.cpus.iter().map(|cpu| cpu.frames).sum()
    }

    /// Where blocks of an order and list are kept, if anything is; `None`: they are not.
    #[inline]
    fn place(&self, order: u8, list: u8) -> Option<usize> {
        let row = match order {
            0..=SMALL => order,
            _ if order == self.zone.shape().block_order => SMALL + 1,
            _ => return None,
        };
        Some(usize::from(row) * usize::from(self.zone.policy().lists()) + usize::from(list))
    }

    fn order(&self, place: usize) -> u8 {
        match (place / usize::from(self.zone.policy().lists())) as u8 {
            row if row > SMALL => self.zone.shape().block_order,
            row => row,
        }
    }

    /// A processor keeps allocated frames from the beginning, behind all that it keeps so far. Returns
    /// whether it does: blocks of such an order may not be kept.
    pub(crate) fn begin_kept(&mut self, cpu: u16, frame: Frame, order: u8, kind: Kind) -> bool {
        let Some(place) = self.place(order, self.zone.policy().wanted(kind)) else { return false };
        if order > 0 && !self.zone.join(frame, order) {
            return false;
        }
        self.zone.keep(frame, order);
        let kept = self.cpu(cpu);
        kept.lists[place].push_back(frame);
        kept.frames += 1 << order;
        true
    }

    /// High marks that move are where they must have been for what processors keep.
    pub(crate) fn begin_high(&mut self) {
        for kept in &mut self.cpus {
            kept.pace.begin(&self.keep, kept.frames);
        }
    }

    /// Allocates on a processor. What was taken from another list to fill up its own is told, the last of it.
    #[inline]
    pub fn take(&mut self, cpu: u16, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        self.take_as(cpu, order, kind, Manner::USUAL)
    }

    /// The same, in a manner. The highatomic reserve is asked when the processor's own lists give nothing.
    #[inline]
    pub fn take_as(
        &mut self,
        cpu: u16,
        order: u8,
        kind: Kind,
        mut manner: Manner,
    ) -> Result<Option<Taken>, Wrong> {
        match self.keep.high {
            0 => self.zone.take_as(order, kind, &mut manner),
            _ => self.take_kept(cpu, order, kind, manner),
        }
    }

    /// By far the most requests, as [`Zone::take_own`]: the processor keeps such a block, or keeps nothing
    /// ever and the zone's own list has one.
    #[inline(always)]
    pub(crate) fn take_own(&mut self, cpu: u16, order: u8, kind: Kind) -> Option<Frame> {
        if self.keep.high == 0 {
            return self.zone.take_own(order, kind);
        }
        if self.zone.has_extras() {
            return None;
        }
        let Some(place) = self.place(order, self.zone.policy().wanted(kind)) else {
            return self.zone.take_own(order, kind);
        };
        if self.cpu(cpu).lists[place].is_empty() {
            return None;
        }
        self.asked(cpu);
        self.pop(cpu, place, order, kind)
    }

    /// Takes what a processor keeps in front of a list.
    #[inline(always)]
    fn pop(&mut self, cpu: u16, place: usize, order: u8, kind: Kind) -> Option<Frame> {
        let kept = self.cpu(cpu);
        let frame = kept.lists[place].pop_front()?;
        kept.frames -= 1 << order;
        self.zone.unkeep(frame, order, kind);
        Some(frame)
    }

    /// A processor's lists are asked for a block: what later gives and fetches go by.
    #[inline(always)]
    fn asked(&mut self, cpu: u16) {
        if let Terms::Tuned { mark, .. } = self.keep.terms {
            self.now.is_low |= self.zone.free_frames() <= mark;
        }
        if self.keep.terms != Terms::Batch && !self.zone.bug.has(&Bug::DoublingStays) {
            self.cpu(cpu).pace.asked();
        }
    }

    #[inline]
    fn take_kept(
        &mut self,
        cpu: u16,
        order: u8,
        kind: Kind,
        mut manner: Manner,
    ) -> Result<Option<Taken>, Wrong> {
        let wanted = self.zone.policy().wanted(kind);
        let Some(place) = self.place(order, wanted) else {
            return self.zone.take_as(order, kind, &mut manner);
        };
        self.asked(cpu);
        let mut stolen = None;
        if self.cpu(cpu).lists[place].is_empty() {
            stolen = self.fetch(cpu, place, order, kind, manner)?;
        }
        let Some(frame) = self.pop(cpu, place, order, kind) else {
            return match manner.is_atomic {
                true => self.zone.take_as(order, kind, &mut manner),
                false => Ok(None),
            };
        };
        if manner.is_atomic && order > 0 {
            self.zone.reserve(frame - self.zone.shape().first, order);
        }
        Ok(Some(Taken { frame, stolen }))
    }

    /// Frees on a processor. Returns the block's order.
    #[inline(always)]
    pub fn free(&mut self, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        match self.keep.high {
            0 => self.zone.free(frame),
            _ => self.free_kept(cpu, frame),
        }
    }

    #[inline]
    fn free_kept(&mut self, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        let (order, list) = self.zone.used(frame)?;
        let Some(place) = self.place(order, self.zone.shelf(list)) else { return self.zone.free(frame) };
        self.put(cpu, place, frame, order);
        Ok(order)
    }

    /// Frees on a processor, if a block of this order begins at the frame; whether one does.
    #[inline(always)]
    pub(crate) fn free_whole(&mut self, cpu: u16, frame: Frame, order: u8) -> Result<bool, Wrong> {
        let Ok((whole, list)) = self.zone.used(frame) else { return Ok(false) };
        if whole != order {
            return Ok(false);
        }
        match self.place(order, self.zone.shelf(list)).filter(|_| self.keep.high > 0) {
            Some(place) => self.put(cpu, place, frame, order),
            None => _ = self.zone.free(frame)?,
        }
        Ok(true)
    }

    /// Puts an allocated block in front of a list of a processor, which gives back some if that is much.
    #[inline(always)]
    fn put(&mut self, cpu: u16, place: usize, frame: Frame, order: u8) {
        self.zone.keep(frame, order);
        let number = self.number(cpu);
        let kept = &mut self.cpus[number];
        kept.lists[place].push_front(frame);
        kept.frames += 1 << order;
        if let Some(frames) = kept.pace.freed(&self.keep, self.now, kept.frames, order) {
            self.put_back(cpu, place, frames);
        }
    }

    /// A processor that was freed to gives back.
    #[cold]
    #[inline(never)]
    fn put_back(&mut self, cpu: u16, place: usize, frames: u32) {
        self.give_back(cpu, place, frames);
        if let Terms::Tuned { mark, .. } = self.keep.terms {
            self.now.is_low &= self.zone.free_frames() <= mark;
        }
    }

    /// `kswapd` begins or ends: meanwhile lists are kept short, since Linux 5.14.
    pub fn set_reclaiming(&mut self, is_reclaiming: bool) {
        self.now.is_reclaiming = is_reclaiming;
    }

    /// A second has passed: since Linux 6.7 processors give back what they have kept for long. Whether
    /// anything changed: if not, it will not in the next second either.
    pub fn decay(&mut self) -> bool {
        let keep = self.keep;
        if self.zone.bug.has(&Bug::NothingDecays) {
            return false;
        }
        let mut has_changed = false;
        for cpu in 0..keep.cpus {
            let kept = self.cpu(cpu);
            let before = kept.pace;
            let frames = kept.pace.decay(&keep, kept.frames);
            has_changed |= frames > 0 || kept.pace != before;
            self.give_back(cpu, 0, frames);
        }
        has_changed
    }

    /// Gives back all that one processor keeps (`drain_local_pages`).
    pub fn drain_cpu(&mut self, cpu: u16) {
        self.give_back(cpu, 0, u32::MAX);
    }

    /// Gives back all that processors keep (`drain_all_pages`).
    pub fn drain(&mut self) {
        for cpu in 0..self.keep.cpus {
            self.give_back(cpu, 0, u32::MAX);
        }
    }

    #[inline]
    fn cpu(&mut self, cpu: u16) -> &mut Kept {
        let number = self.number(cpu);
        &mut self.cpus[number]
    }

    /// The place of a processor; those that are not there share the others' lists. A division each time would
    /// be felt.
    #[inline]
    fn number(&self, cpu: u16) -> usize {
        let cpu = usize::from(cpu);
        if cpu < self.cpus.len() { cpu } else { cpu % self.cpus.len() }
    }

    fn fetch(
        &mut self,
        cpu: u16,
        place: usize,
        order: u8,
        kind: Kind,
        manner: Manner,
    ) -> Result<Option<Stolen>, Wrong> {
        let mut manner = Manner { is_atomic: false, ..manner };
        let (keep, now) = (self.keep, self.now);
        let kept = self.cpu(cpu);
        let blocks = kept.pace.fetch(&keep, now, kept.frames, order);
        let mut stolen = None;
        for _ in 0..blocks {
            let Some(taken) = self.zone.take_as(order, kind, &mut manner)? else { break };
            stolen = taken.stolen.or(stolen);
            self.zone.keep(taken.frame, order);
            let kept = self.cpu(cpu);
            kept.lists[place].push_back(taken.frame);
            kept.frames += 1 << order;
        }
        Ok(stolen)
    }

    /// Gives back `frames` or all there are: the oldest of one list until it is empty, then of the next.
    fn give_back(&mut self, cpu: u16, from: usize, frames: u32) {
        let lists = self.cpu(cpu).lists.len();
        let (mut left, mut place) = (frames.min(self.cpu(cpu).frames), from);
        while left > 0 {
            let order = self.order(place);
            while left > 0
                && let Some(frame) = self.oldest(cpu, place)
            {
                self.cpu(cpu).frames -= 1 << order;
                left = left.saturating_sub(1 << order);
                let list = (place % usize::from(self.zone.policy().lists())) as u8;
                let list = self.zone.off_shelf(frame, list);
                self.zone.merge(frame, order, list);
            }
            place = (place + 1) % lists;
        }
    }

    /// Takes the block that a processor has kept longest. Those that go next are long out of the caches: what
    /// merging them reads is brought near in the order in which it is found out.
    fn oldest(&mut self, cpu: u16, place: usize) -> Option<Frame> {
        let at = self.number(cpu);
        let list = &mut self.cpus[at].lists[place];
        let frame = list.pop_back()?;
        list.at_back(16).into_iter().for_each(|frame| self.zone.expect_free(frame));
        list.at_back(8).into_iter().for_each(|frame| self.zone.expect_buddy(frame));
        Some(frame)
    }

    /// Checks the books of the zone and of the processors.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.zone.validate()?;
        for kept in &self.cpus {
            let blocks = kept.lists.iter().enumerate();
            let frames: u32 = blocks.map(|(place, list)| list.len() << self.order(place)).sum();
            if frames != kept.frames {
                let what = format!("a processor keeps {frames} frames, its books say {}", kept.frames);
                return Err(Wrong::Books(what));
            }
        }
        Ok(())
    }
}
