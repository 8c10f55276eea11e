//! What a way of reclaim sees and may do: a zone of the machine, for one order that is short.

use crate::machine::journal::{Event, Flaw, Verdict};
use crate::machine::reclaim::{PRIORITY, Plan};
use crate::machine::{Class, Entry, Machine, NOBODY};
use crate::words::{Frame, Shape, Wrong};
use crate::zone::spot::Spot;

/// A zone, and what is reclaimed for.
#[derive(Debug)]
pub struct Ground<'a> {
    machine: &'a mut Machine,
    zone: usize,
    shape: Shape,
    plan: &'a Plan,
}

/// What lies at a frame, as far as reclaim knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// What it is used for.
    pub class: Class,
    /// Its order: above 0 for large folios.
    pub order: u8,
    /// Whether it is on a list of programs' or files' pages, and not the kernel's own or of the hugetlb pool.
    pub is_listed: bool,
    /// Whether it is on the active one.
    pub is_active: bool,
    /// Whether somebody keeps it from being reclaimed.
    pub is_pinned: bool,
    /// Whether the disk is writing it.
    pub is_writing: bool,
    /// Whether there is room for it in swap; pages that need none have room.
    pub fits_swap: bool,
}

/// What came of pages that were tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Base pages that were freed.
    pub freed: u32,
    /// Base pages that were looked at.
    pub looked: u32,
}

impl<'a> Ground<'a> {
    /// Of a zone by its number; `None`: there is no such zone.
    pub(in crate::machine) fn new(
        machine: &'a mut Machine,
        zone: usize,
        plan: &'a Plan,
    ) -> Option<Ground<'a>> {
        let shape = machine.memory.zone(zone)?.0.shape;
        Some(Ground { machine, zone, shape, plan })
    }

    /// The zone's frames.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The order that is short.
    pub fn order(&self) -> u8 {
        self.plan.order
    }

    /// How much is looked at, from 12 down to 0: of n regions or pages, n ≫ priority and one.
    pub fn priority(&self) -> u8 {
        self.plan.priority.min(PRIORITY)
    }

    /// Where to go on in this zone, as [`Ground::set_mark`] left it; the first frame at the start.
    pub fn mark(&self) -> Frame {
        self.machine.regions_at[self.zone]
    }

    /// Keeps where to go on.
    pub fn set_mark(&mut self, frame: Frame) {
        self.machine.regions_at[self.zone] = frame;
    }

    /// What lies at a frame of the zone.
    pub fn spot(&self, frame: Frame) -> Spot {
        match self.machine.memory.zone(self.zone) {
            Some((setup, zone)) if setup.shape.has(frame) => zone.zone().spot(frame),
            _ => Spot::Inside,
        }
    }

    /// Frames to the next beginning of a block, from one.
    pub fn step(&self, frame: Frame) -> u32 {
        match self.spot(frame) {
            Spot::Used(order) | Spot::Free(order) | Spot::Kept(order) => 1 << order,
            Spot::Inside => 1,
        }
    }

    /// The held block that begins at a frame.
    pub fn page(&self, frame: Frame) -> Option<Page> {
        let entry = self.entry(self.handle(frame)?);
        Some(Page {
            class: entry.class,
            order: entry.order,
            is_listed: entry.class.is_file() || entry.class == Class::Anonymous,
            is_active: entry.is_active,
            is_pinned: entry.is_pinned,
            is_writing: entry.state.is_writing(),
            fits_swap: entry.class != Class::Anonymous || self.machine.has_swap(entry),
        })
    }

    fn entry(&self, handle: u32) -> &Entry {
        &self.machine.entries[handle as usize]
    }

    fn handle(&self, frame: Frame) -> Option<u32> {
        let is_used = matches!(self.spot(frame), Spot::Used(_));
        let handle =
            if is_used { self.machine.owners[(frame - self.machine.first) as usize] } else { NOBODY };
        (handle != NOBODY).then_some(handle)
    }

    /// The pages of an aligned region, if all that it holds is free or likely to be reclaimable; `None`: it
    /// holds something else, or reaches out of the zone.
    pub fn reclaimable(&self, from: Frame, order: u8) -> Option<Vec<Frame>> {
        let mut pages = Vec::new();
        let (mut at, end) = (from, from + (1 << order));
        while at < end {
            match self.spot(at) {
                Spot::Free(_) => {}
                Spot::Used(_) => {
                    let is_likely = self.handle(at).is_some_and(|handle| self.is_likely(handle));
                    if !is_likely && !self.has(Flaw::RegionNotAssessed) {
                        return None;
                    }
                    if is_likely {
                        pages.push(at);
                    }
                }
                // On a processor's list, or a part of a larger block.
                Spot::Kept(_) | Spot::Inside => return None,
            }
            at += self.step(at);
        }
        Some(pages)
    }

    /// Whether a page is on an LRU list, and nothing is known that keeps it from being reclaimed.
    fn is_likely(&self, handle: u32) -> bool {
        let entry = self.entry(handle);
        if entry.state.is_writing() && !self.has(Flaw::RegionInFlight) {
            return false;
        }
        match entry.class {
            Class::File | Class::Buffer => !entry.is_pinned,
            Class::Anonymous => !entry.is_pinned && self.machine.has_swap(entry),
            Class::Kernel | Class::PageTable | Class::Cache | Class::Huge => false,
        }
    }

    /// Counts a region that was assessed, and whether its pages are tried now.
    pub fn assessed(&mut self, from: Frame, is_tried: bool) {
        self.machine.stats.regions += 1;
        self.machine.stats.regions_tried += u64::from(is_tried);
        self.machine.journal.note(Event::Region { from, order: self.plan.order, is_tried });
    }

    /// Tries the page at a frame as one at the end of its list: it is freed, written first, or spared.
    /// Nothing is done where no page is on a list.
    pub fn reclaim(&mut self, frame: Frame) -> Result<Tried, Wrong> {
        let page = self.page(frame).filter(|page| page.is_listed);
        let Some(handle) = self.handle(frame).filter(|_| page.is_some()) else { return Ok(Tried::default()) };
        let looked = self.entry(handle).pages();
        self.machine.stats.scanned += u64::from(looked);
        let verdict = self.machine.judge(handle, self.plan);
        self.machine.journal.note(Event::Beside { handle, verdict });
        let freed = if verdict == Verdict::Skip { 0 } else { self.machine.execute(handle, verdict)? };
        Ok(Tried { freed, looked })
    }

    /// Whether a test planted a bug.
    pub(in crate::machine) fn has(&self, flaw: Flaw) -> bool {
        self.machine.journal.has(flaw)
    }
}
