//! A trace replayed under a policy: each object lives as long as it did, and lies where the simulated
//! allocator puts it.
//!
//! [`start::Start`] makes the state to begin with of the snapshot; [`Replay`] is fed events and tells the
//! free blocks of any moment. What a trace does not say is counted by name (`words::Account`).

use std::collections::VecDeque;
use std::ops::Range;

use pagelab_model::alloc_trace::{TraceEvent, TraceWhat};
use pagelab_model::free_areas::{BuddyInfo, FreeAreas, ZoneFree, ZoneKey};

use crate::memory::{Down, Memory, Request};
use crate::policy::Policy;
use crate::prefetch;
use crate::words::{Frame, Kind, Stolen, Wrong};
use crate::zone::Taken;
use start::Start;
use words::{Account, Kinds, Misfit, Options, Zones};

mod moving;
mod objects;
pub mod start;
#[cfg(test)]
mod tests;
pub mod words;

/// No object lies here.
const NONE: Frame = u32::MAX;
/// An object that the simulated memory had no room for.
const NO_ROOM: Frame = u32::MAX - 1;

/// How often processors look at what they keep (`vm.stat_interval`, its default).
const SECOND_NS: u64 = 1_000_000_000;

/// How many events ahead the event itself is brought near, then its place in the table, then the state of the
/// block.
const AHEAD: [usize; 3] = [64, 24, 12];

/// Zones that are told apart without a branch: nobody could guess in which of them a freed frame lies.
const FEW: usize = 4;

/// What is known of a zone by its place.
#[derive(Clone, Copy, Debug)]
struct Place {
    end: Frame,
    frames: u32,
    node: u16,
    height: u8,
}

/// One replay.
#[derive(Clone, Debug)]
pub struct Replay<P> {
    memory: Memory<P>,
    options: Options,
    kinds: Kinds,
    max_order: u8,
    block_order: u8,
    keys: Vec<ZoneKey>,
    places: Vec<Place>,
    /// The frame behind each zone but the last one, where there are few.
    ends: [Frame; FEW - 1],
    base: Frame,
    /// By traced frame from the base: the simulated one that stands for it.
    table: Vec<Frame>,
    /// By traced frame, a bit: nobody's in the snapshot, and not allocated since.
    nobodys: Vec<u64>,
    /// Threads in compaction.
    compacting: Vec<u32>,
    /// Where compaction finds room next, by zone.
    scanners: Vec<moving::Scanner>,
    /// Objects that moved, by order: where they lie now.
    moved: Vec<VecDeque<Frame>>,
    complete_ns: u64,
    last_ns: u64,
    /// When a second has passed next.
    second_ns: u64,
    is_reclaiming: bool,
    account: Account,
}

impl<P: Policy + Clone> Replay<P> {
    /// A replay from a state.
    pub fn new(start: &Start, policy: &P, options: Options) -> Result<Replay<P>, Wrong> {
        let (setups, begins) = start.zones();
        let head = start.head();
        let place = |part: &words::Part| Place {
            end: part.setup.shape.end(),
            frames: part.setup.shape.frames,
            node: part.setup.node,
            height: part.setup.height,
        };
        let places: Vec<Place> = start.parts().iter().map(place).collect();
        let mut ends = [Frame::MAX; FEW - 1];
        ends.iter_mut().zip(&places).for_each(|(end, place)| *end = place.end);
        let keys = start.parts().iter().map(|part| head.zones[part.at].key.clone()).collect();
        let (mut table, mut nobodys) = (Vec::new(), Vec::new());
        for (at, (is_object, is_nobodys)) in start.objects().enumerate() {
            if at % 64 == 0 {
                nobodys.push(0);
            }
            table.push(if is_object { start.base() + at as u32 } else { NONE });
            if is_nobodys {
                nobodys[at / 64] |= 1 << (at % 64);
            }
        }
        Ok(Replay {
            memory: Memory::begin(setups, policy, begins)?,
            options,
            kinds: start.kinds().clone(),
            max_order: head.max_order,
            block_order: head.block_order,
            keys,
            places,
            ends,
            base: start.base(),
            table,
            nobodys,
            compacting: Vec::new(),
            scanners: Vec::new(),
            moved: vec![VecDeque::new(); usize::from(head.max_order) + 1],
            complete_ns: start.complete_ns(),
            last_ns: 0,
            second_ns: start.complete_ns().saturating_add(SECOND_NS),
            is_reclaiming: false,
            account: Account::default(),
        })
    }

    /// Replays events, the next ones of the trace.
    pub fn feed(&mut self, events: &[TraceEvent]) -> Result<(), Misfit> {
        for (at, event) in events.iter().enumerate() {
            self.look_ahead(events, at);
            let number = self.account.before + self.account.events;
            if event.at_ns < self.last_ns {
                self.account.backwards += 1;
            } else {
                self.last_ns = event.at_ns;
            }
            if event.at_ns <= self.complete_ns {
                self.account.before += 1;
                self.watch_compaction(event);
                continue;
            }
            if event.at_ns >= self.second_ns {
                self.pass(event.at_ns);
            }
            self.account.events += 1;
            self.event(event).map_err(|wrong| Misfit { event: number, at_ns: event.at_ns, wrong })?;
        }
        Ok(())
    }

    /// Lets time pass: each second processors look at what they keep, where the kernel does that.
    fn pass(&mut self, at_ns: u64) {
        let after_ns = at_ns - self.second_ns;
        // Soon nothing is left above a high mark, however long the trace says that nothing happened.
        let mut seconds = 0..after_ns / SECOND_NS + 1;
        while seconds.next().is_some() && self.memory.decay() {}
        self.second_ns = (at_ns - after_ns % SECOND_NS).saturating_add(SECOND_NS);
        if self.is_reclaiming {
            self.is_reclaiming = self.memory.see_reclaim();
        }
    }

    /// Brings near what the next events will read.
    #[inline]
    fn look_ahead(&self, events: &[TraceEvent], at: usize) {
        prefetch::near(events, at + AHEAD[0]);
        let [table, state] = [AHEAD[1], AHEAD[2]].map(|ahead| events.get(at + ahead));
        if let Some(TraceWhat::Alloc { pfn: Some(pfn), .. } | TraceWhat::Free { pfn, .. }) =
            table.map(|event| event.what)
        {
            prefetch::near(&self.table, pfn.wrapping_sub(self.base) as usize);
        }
        if let Some(TraceWhat::Free { pfn, .. }) = state.map(|event| event.what)
            && let Some(&frame) = self.table.get(pfn.wrapping_sub(self.base) as usize)
        {
            self.memory.expect_free_in(self.zone_of(frame), frame);
        }
    }

    /// The place of the zone that a frame lies in.
    #[inline]
    fn zone_of(&self, frame: Frame) -> usize {
        match self.places.len() {
            ..=FEW => self.ends.iter().map(|&end| usize::from(frame >= end)).sum(),
            _ => self.places.partition_point(|place| place.end <= frame),
        }
    }

    fn watch_compaction(&mut self, event: &TraceEvent) {
        match event.what {
            TraceWhat::CompactionBegin => {
                self.compacting.push(event.tid);
                self.rewind();
            }
            TraceWhat::CompactionEnd => self.compacting.retain(|&tid| tid != event.tid),
            _ => {}
        }
    }

    #[inline]
    fn event(&mut self, event: &TraceEvent) -> Result<(), Wrong> {
        match event.what {
            TraceWhat::Alloc { pfn: Some(pfn), order, migratetype, gfp } => {
                let at = self.place(pfn, order)?;
                let request = Request {
                    order,
                    kind: self.kinds.get(migratetype),
                    height: words::height_asked(gfp),
                    node: 0,
                    cpu: event.cpu,
                    down: Down::ToNothing,
                    may_mix: true,
                };
                self.alloc(at, pfn, request)
            }
            TraceWhat::Free { pfn, order } => {
                let at = self.place(pfn, order)?;
                let compacts = !self.compacting.is_empty() && self.compacting.contains(&event.tid);
                self.free(at, order, event.cpu, compacts)
            }
            TraceWhat::Alloc { pfn: None, .. } => {
                self.account.failed_in_trace += 1;
                Ok(())
            }
            TraceWhat::Fallback { owns, .. } => {
                self.account.fallbacks_traced += 1;
                self.account.claims_traced += u64::from(owns);
                Ok(())
            }
            TraceWhat::Migrated { moved, .. } => {
                self.account.migrated_traced += u64::from(moved);
                Ok(())
            }
            TraceWhat::KswapdWake { .. } => {
                self.is_reclaiming = true;
                self.memory.begin_reclaim();
                Ok(())
            }
            _ => {
                self.watch_compaction(event);
                Ok(())
            }
        }
    }

    /// The place of a block in the table, if there can be such a block.
    #[inline]
    fn place(&self, pfn: u32, order: u8) -> Result<usize, Wrong> {
        if order > self.max_order {
            return Err(Wrong::Order { order, max: self.max_order });
        }
        let at = pfn.wrapping_sub(self.base) as usize;
        if at >= self.table.len() || self.table.len() - at < 1 << order {
            return Err(Wrong::Outside(pfn));
        }
        if pfn & ((1 << order) - 1) != 0 {
            return Err(Wrong::Shape(format!("no block of order {order} begins at frame {pfn:#x}")));
        }
        Ok(at)
    }

    #[inline]
    fn alloc(&mut self, at: usize, pfn: u32, mut request: Request) -> Result<(), Wrong> {
        let (order, size) = (request.order, 1usize << request.order);
        self.account.allocs.add(order);
        let is_empty = match order {
            0 => self.table[at] == NONE,
            _ => self.table[at..at + size].iter().all(|&frame| frame == NONE),
        };
        if !is_empty {
            self.forget(at, order, request.cpu)?;
        }
        let zone = self.zone_of(pfn);
        let place = self.places.get(zone).ok_or(Wrong::Outside(pfn))?;
        (request.node, request.height) = match self.options.zones {
            Zones::Traced => (place.node, place.height),
            Zones::Asked => (place.node, request.height),
        };
        let mut taken = match self.options.zones {
            Zones::Traced => self.memory.take_in(zone, request.cpu, order, request.kind)?,
            Zones::Asked => None,
        };
        if taken.is_none() {
            taken = self.look_elsewhere(request)?;
        }
        match taken {
            Some(taken) => {
                if let Some(Stolen { owns, .. }) = taken.stolen {
                    self.account.fallbacks += 1;
                    self.account.claims += u64::from(owns);
                }
                match order {
                    0 => self.table[at] = taken.frame,
                    _ => {
                        for (frame, entry) in (taken.frame..).zip(&mut self.table[at..at + size]) {
                            *entry = frame;
                        }
                    }
                }
            }
            None => {
                self.account.no_room.add(order);
                self.table[at..at + size].fill(NO_ROOM);
            }
        }
        Ok(())
    }

    /// Allocates from any zone that may give.
    fn look_elsewhere(&mut self, mut request: Request) -> Result<Option<Taken>, Wrong> {
        let downs: &[Down] = match self.options.zones {
            Zones::Traced => &[Down::ToNothing],
            Zones::Asked => &[Down::ToLow, Down::ToMin, Down::ToNothing],
        };
        for &down in downs {
            request.down = down;
            if let Some((_, taken)) = self.memory.take(&request)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// Free blocks of all zones now; what processors keep is not in it, as in `/proc/buddyinfo`.
    pub fn sample(&self) -> BuddyInfo {
        let zone = |(key, blocks): (&ZoneKey, &[u32])| {
            let counts = blocks.iter().map(|&blocks| u64::from(blocks)).collect();
            ZoneFree { key: key.clone(), areas: FreeAreas::new(counts).unwrap_or_default() }
        };
        let blocks = self.memory.zones().map(|(_, kept)| kept.zone().free_blocks());
        BuddyInfo { zones: self.keys.iter().zip(blocks).map(zone).collect() }
    }

    /// Free frames that processors keep.
    pub fn kept_frames(&self) -> u64 {
        self.memory.zones().map(|(_, kept)| u64::from(kept.kept_frames())).sum()
    }

    /// Where the tables lie in this process's memory, for whoever puts them on huge pages.
    pub fn places(&self) -> Vec<Range<usize>> {
        let zones = self.memory.zones().flat_map(|(_, kept)| kept.zone().lists().places());
        let start = self.table.as_ptr() as usize;
        zones.chain(std::iter::once(start..start + size_of_val(&self.table[..]))).collect()
    }

    /// What was counted so far.
    pub fn account(&self) -> Account {
        let mut account = self.account.clone();
        account.moved_at_end = self.moved.iter().map(|objects| objects.len() as u64).sum();
        account
    }

    /// Checks all books: those of the memory, and that each object of the table lies in an allocated block.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.memory.validate()?;
        let objects = self.table.iter().filter(|&&frame| frame < NO_ROOM);
        for &frame in objects {
            self.head(frame, 0).ok_or(Wrong::NotAllocated(frame))?;
        }
        Ok(())
    }

    /// The first frame of the allocated block of at least an order that a frame lies in.
    fn head(&self, frame: Frame, least: u8) -> Option<(Frame, u8, Kind)> {
        (least..=self.max_order).find_map(|up| {
            let head = frame & !((1 << up) - 1);
            let (order, kind) = self.memory.used_in(self.zone_of(head), head)?;
            (order >= up).then_some((head, order, kind))
        })
    }
}
