//! Lists of small blocks that each processor keeps for itself, over a zone (`struct per_cpu_pages`;
//! mm/page_alloc.c of Linux 6.1: `rmqueue_pcplist`, `rmqueue_bulk`, `free_unref_page_commit`,
//! `free_pcppages_bulk`).

use std::collections::VecDeque;

use crate::policy::Policy;
use crate::words::{Frame, Kind, Stolen, Wrong};
use crate::zone::{Manner, Taken, Zone};

/// Blocks up to this order are kept (`PAGE_ALLOC_COSTLY_ORDER`), and those of a pageblock (huge pages).
const SMALL: u8 = 3;

/// How much a processor keeps.
///
/// With a batch and a high mark of 0 it keeps nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Processors; at least 1.
    pub cpus: u16,
    /// Frames that are fetched or given back at once (`batch`: 63 on machines of some size).
    pub batch: u32,
    /// Frames at which a processor gives some back (`high`).
    pub high: u32,
}

impl Keep {
    /// Nothing is kept: each request goes to the zone.
    pub const NOTHING: Keep = Keep { cpus: 1, batch: 0, high: 0 };
}

/// A zone whose processors keep small blocks.
#[derive(Clone, Debug)]
pub struct PerCpu<P> {
    zone: Zone<P>,
    keep: Keep,
    cpus: Vec<Kept>,
}

/// What one processor keeps.
#[derive(Clone, Debug)]
struct Kept {
    /// By order, and in it by list of the zone.
    lists: Vec<VecDeque<Frame>>,
    frames: u32,
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
        let lists = (usize::from(SMALL) + 2) * usize::from(zone.policy().lists());
        let kept = Kept { lists: vec![VecDeque::new(); lists], frames: 0 };
        Ok(PerCpu { zone, keep, cpus: vec![kept; usize::from(keep.cpus)] })
    }

    /// The zone below.
    pub fn zone(&self) -> &Zone<P> {
        &self.zone
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

    /// Where blocks of an order and list are kept; `None`: they are not.
    #[inline]
    fn place(&self, order: u8, list: u8) -> Option<usize> {
        let row = match order {
            _ if self.keep.high == 0 => return None,
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

    /// Allocates on a processor. What was taken from another list to fill up its own is told, the last of it.
    #[inline]
    pub fn take(&mut self, cpu: u16, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        self.take_as(cpu, order, kind, Manner::USUAL)
    }

    /// The same, in a manner. The highatomic reserve is asked when the processor's own lists give nothing.
    pub fn take_as(
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
        let mut stolen = None;
        if self.cpu(cpu).lists[place].is_empty() {
            stolen = self.fetch(cpu, place, order, kind, manner)?;
        }
        let kept = self.cpu(cpu);
        let Some(frame) = kept.lists[place].pop_front() else {
            return match manner.is_atomic {
                true => self.zone.take_as(order, kind, &mut manner),
                false => Ok(None),
            };
        };
        kept.frames -= 1 << order;
        self.zone.unkeep(frame, order, kind);
        if manner.is_atomic && order > 0 {
            self.zone.reserve(frame - self.zone.shape().first, order);
        }
        Ok(Some(Taken { frame, stolen }))
    }

    /// Frees on a processor. Returns the block's order.
    #[inline]
    pub fn free(&mut self, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        let (order, list) = self.zone.used(frame)?;
        let Some(place) = self.place(order, self.zone.shelf(list)) else { return self.zone.free(frame) };
        self.zone.keep(frame, order);
        let (batch, high) = (self.keep.batch, self.keep.high);
        let kept = self.cpu(cpu);
        kept.lists[place].push_front(frame);
        kept.frames += 1 << order;
        if kept.frames >= high {
            self.give_back(cpu, place, batch);
        }
        Ok(order)
    }

    /// Gives back all that processors keep (`drain_all_pages`).
    pub fn drain(&mut self) {
        for cpu in 0..self.keep.cpus {
            self.give_back(cpu, 0, u32::MAX);
        }
    }

    fn cpu(&mut self, cpu: u16) -> &mut Kept {
        let number = usize::from(cpu) % self.cpus.len();
        &mut self.cpus[number]
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
        let blocks = match order {
            0 => self.keep.batch,
            order => (self.keep.batch >> order).max(2),
        };
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
        let at = usize::from(cpu) % self.cpus.len();
        let list = &mut self.cpus[at].lists[place];
        let frame = list.pop_back()?;
        let next = |steps: usize| list.get(list.len().checked_sub(steps)?).copied();
        next(12).into_iter().for_each(|frame| self.zone.expect_free(frame));
        next(8).into_iter().for_each(|frame| self.zone.expect_buddy(frame));
        next(4).into_iter().for_each(|frame| self.zone.expect_merge(frame));
        Some(frame)
    }

    /// Checks the books of the zone and of the processors.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.zone.validate()?;
        for kept in &self.cpus {
            let blocks = kept.lists.iter().enumerate();
            let frames: u32 = blocks.map(|(place, list)| (list.len() as u32) << self.order(place)).sum();
            if frames != kept.frames {
                let what = format!("a processor keeps {frames} frames, its books say {}", kept.frames);
                return Err(Wrong::Books(what));
            }
        }
        Ok(())
    }
}
