//! What a replay begins with: the snapshot, set right by the events that came while it was taken.

use std::ops::Range;

use pagelab_model::alloc_trace::{TraceEvent, TraceHead, TraceRun, TraceSample, TraceWhat, Was};

use super::words::{Kinds, Part, parts};
use crate::memory::{self, Setup, begin::Listed};
use crate::percpu::SMALL;
use crate::prefetch;
use crate::words::{Frame, Kind, Wrong};
use crate::zone::begin::Stretch;

/// A frame's state: free, allocated for a kind (this plus its number), nobody's, no memory, on a list of a
/// processor.
const FREE: u8 = 0;
const USED: u8 = 1;
const NOBODYS: u8 = 4;
const HOLE: u8 = 5;
const LISTED: u8 = 6;

/// How many events ahead the state of a frame is brought near.
const AHEAD: usize = 24;

/// The owner of a pageblock of which no event has told anything.
const UNTOLD: u8 = u8::MAX;

/// The state of all frames when the snapshot was complete.
///
/// A scan takes a while, and the machine goes on. Each run says when it was read; the events on its frames
/// after that, and before the scan ended, are applied to it here, and are not replayed.
#[derive(Clone, Debug)]
pub struct Start {
    head: TraceHead,
    parts: Vec<Part>,
    kinds: Kinds,
    runs: Vec<TraceRun>,
    base: Frame,
    states: Vec<u8>,
    /// By pageblock.
    owners: Vec<u8>,
    /// Blocks on per-CPU lists, those that are allocated first in front.
    listed: Vec<Listed>,
    /// Blocks freed after they were read and before the scan ended, with their processors, in time.
    freed: Vec<(Frame, u8, u16)>,
    complete_ns: u64,
    uncovered: u64,
}

impl Start {
    /// Frames that the zones of a head span: a replay takes some 14 bytes for each, and for each policy.
    pub fn spanned(head: &TraceHead) -> Result<u64, Wrong> {
        let parts = parts(head)?;
        let ends = parts.first().zip(parts.last());
        Ok(ends.map_or(0, |(first, last)| {
            u64::from(last.setup.shape.end()) - u64::from(first.setup.shape.first)
        }))
    }

    /// From a snapshot, by first frame. `head` says which zones there are.
    pub fn new(head: &TraceHead, runs: &[TraceRun]) -> Result<Start, Wrong> {
        if !(4 << 10..=64 << 10).contains(&head.page_bytes) || !head.page_bytes.is_power_of_two() {
            let what =
                format!("the trace says that pages are of {} bytes; 4 to 64 KiB are known", head.page_bytes);
            return Err(Wrong::Shape(what));
        }
        let parts = parts(head)?;
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return Err(Wrong::Shape("the trace names no zone with memory".to_owned()));
        };
        if let Some(pair) =
            parts.windows(2).find(|pair| pair[0].setup.shape.end() > pair[1].setup.shape.first)
        {
            let (one, other) = (&pair[0].setup, &pair[1].setup);
            let what = format!(
                "zones {} of node {} and {} of node {} share pageblocks; such memory is not simulated",
                one.name, one.node, other.name, other.node
            );
            return Err(Wrong::Shape(what));
        }
        let (base, end) = (first.setup.shape.first, last.setup.shape.end());
        let states = vec![HOLE; (end - base) as usize];
        let blocks = states.len() >> head.block_order;
        let complete_ns = runs.iter().map(|run| run.read_ns).max().unwrap_or(0);
        let mut start = Start {
            kinds: Kinds::of(head),
            head: head.clone(),
            parts,
            runs: runs.to_vec(),
            base,
            states,
            owners: vec![UNTOLD; blocks],
            listed: Vec::new(),
            freed: Vec::new(),
            complete_ns,
            uncovered: 0,
        };
        start.lay_out()?;
        Ok(start)
    }

    /// Writes the snapshot into the states.
    fn lay_out(&mut self) -> Result<(), Wrong> {
        let mut at = 0u64;
        let mut covered = 0u64;
        for (number, run) in self.runs.iter().enumerate() {
            let (from, to) = (u64::from(run.pfn), u64::from(run.pfn) + u64::from(run.frames));
            if from < at {
                let what =
                    format!("run {number} of the snapshot begins at {from:#x}, before the last one ends");
                return Err(Wrong::Shape(what));
            }
            at = to;
            let state = match run.was {
                Was::Free => FREE,
                Was::Unknown => NOBODYS,
                Was::Kernel => USED + Kind::Unmovable as u8,
                Was::User => USED + Kind::Movable as u8,
                Was::Hole => HOLE,
            };
            for part in &self.parts {
                let zone = &self.head.zones[part.at];
                let (first, end) = (u64::from(zone.first), u64::from(zone.first) + u64::from(zone.spanned));
                let (from, to) = (from.max(first), to.min(end));
                if from < to {
                    let base = u64::from(self.base);
                    self.states[(from - base) as usize..(to - base) as usize].fill(state);
                    covered += to - from;
                }
            }
        }
        let spanned: u64 = self.parts.iter().map(|part| u64::from(self.head.zones[part.at].spanned)).sum();
        self.uncovered = spanned - covered;
        Ok(())
    }

    /// Nanoseconds since the trace began when the snapshot was complete: the replay begins here.
    pub fn complete_ns(&self) -> u64 {
        self.complete_ns
    }

    /// Frames that zones span and the snapshot does not tell of: holes of the machine, and no memory here.
    pub fn uncovered(&self) -> u64 {
        self.uncovered
    }

    /// Learns from events, from the first one on: those during the snapshot set it right, and the first
    /// allocation in each pageblock tells whom it belongs to.
    pub fn observe(&mut self, events: &[TraceEvent]) {
        for (at, event) in events.iter().enumerate() {
            if let Some(TraceWhat::Alloc { pfn: Some(pfn), .. } | TraceWhat::Free { pfn, .. }) =
                events.get(at + AHEAD).map(|event| event.what)
            {
                prefetch::near(&self.states, pfn.wrapping_sub(self.base) as usize);
            }
            let during = event.at_ns <= self.complete_ns;
            match event.what {
                TraceWhat::Alloc { pfn: Some(pfn), order, migratetype, .. } => {
                    let kind = self.kinds.get(migratetype) as u8;
                    self.own(pfn, kind);
                    if during {
                        let _ = self.apply(pfn, order, event.at_ns, USED + kind);
                    } else {
                        self.list(event.cpu, pfn, order, self.kinds.get(migratetype));
                    }
                }
                TraceWhat::Free { pfn, order } if during => self.free_during(event, pfn, order),
                TraceWhat::Free { pfn, order } => self.disown(pfn, order),
                TraceWhat::Fallback { pfn, from, .. } => self.own(pfn, self.kinds.get(from) as u8),
                _ => {}
            }
        }
    }

    fn free_during(&mut self, event: &TraceEvent, pfn: u32, order: u8) {
        if self.apply(pfn, order, event.at_ns, FREE) {
            self.freed.push((pfn, order, event.cpu));
        }
    }

    fn own(&mut self, pfn: u32, kind: u8) {
        let block = (pfn.wrapping_sub(self.base) >> self.head.block_order) as usize;
        if let Some(owner) = self.owners.get_mut(block)
            && *owner == UNTOLD
        {
            *owner = kind;
        }
    }

    /// The places of a block's frames in the states.
    fn places(&self, pfn: u32, order: u8) -> Range<usize> {
        let size = 1usize.checked_shl(order.into()).unwrap_or(0);
        let from = (pfn.wrapping_sub(self.base) as usize).min(self.states.len());
        from..from.saturating_add(size).min(self.states.len())
    }

    /// What is allocated and was nobody's lay on a per-CPU list, as a whole or in parts that merged since.
    fn list(&mut self, cpu: u16, pfn: u32, order: u8, kind: Kind) {
        let places = self.places(pfn, order);
        if !self.states[places.clone()].contains(&NOBODYS) {
            return;
        }
        let is_kept = order <= SMALL || order == self.head.block_order;
        let is_whole = is_kept && self.states[places.clone()].iter().all(|&state| state == NOBODYS);
        if is_whole {
            self.listed.push(Listed { frame: pfn, order, cpu, kind });
        }
        for at in places {
            if self.states[at] == NOBODYS {
                self.states[at] = LISTED;
                if !is_whole {
                    self.listed.push(Listed { frame: self.base + at as u32, order: 0, cpu, kind });
                }
            }
        }
    }

    /// What is freed and was nobody's was the kernel's: stacks and the like have no flag.
    fn disown(&mut self, pfn: u32, order: u8) {
        for at in self.places(pfn, order) {
            if self.states[at] == NOBODYS {
                self.states[at] = USED + Kind::Unmovable as u8;
            }
        }
    }

    /// Frames that per-CPU lists held, as far as events and the head tell.
    pub fn listed(&self) -> u64 {
        self.listed.iter().map(|listed| 1u64 << listed.order).sum()
    }

    /// All that processors keep of a zone.
    fn kept(&self, part: &Part) -> Vec<Listed> {
        let shape = part.setup.shape;
        self.listed.iter().filter(|listed| shape.has(listed.frame)).copied().collect()
    }

    /// To be called when no more is observed: what per-CPU lists held that no event has told.
    ///
    /// They held as many pages as the head says when the trace began. Those are looked for among nobody's:
    /// those beside free frames, since pages come to such a list out of a larger block, or go back into one.
    /// What was freed while the scan ran lay on such a list first, and was not free to the kernel's books:
    /// as much of it as the last reading of free memory before the scan's end lacks, the latest first.
    pub fn complete(&mut self, samples: &[TraceSample]) {
        let read = samples.iter().rev().find(|sample| sample.at_ns <= self.complete_ns);
        let freed = std::mem::take(&mut self.freed);
        if let Some(read) = read {
            let mut listed = Vec::new();
            for part in self.parts.clone() {
                self.list_freed(&part, &freed, read, &mut listed);
            }
            // What was freed last is allocated first.
            listed.append(&mut self.listed);
            self.listed = listed;
        }
        self.list_missing();
    }

    /// Puts what was freed last on its processor's list, until no more of a zone is free than was read.
    fn list_freed(
        &mut self,
        part: &Part,
        freed: &[(Frame, u8, u16)],
        read: &TraceSample,
        listed: &mut Vec<Listed>,
    ) {
        let Some(areas) = read.free.zone(&self.head.zones[part.at].key) else { return };
        let shape = part.setup.shape;
        let states = (shape.first - self.base) as usize..(shape.end() - self.base) as usize;
        let free = self.states[states].iter().filter(|&&state| state == FREE).count() as u128;
        let mut excess = free.saturating_sub(areas.free_pages());
        for &(frame, order, cpu) in freed.iter().rev().filter(|(frame, ..)| shape.has(*frame)) {
            let (size, places) = (1u128 << order, self.places(frame, order));
            let is_kept = order <= SMALL || order == self.head.block_order;
            if !is_kept || size > excess || self.states[places.clone()].iter().any(|&state| state != FREE) {
                continue;
            }
            let owner = self.owners[places.start >> self.head.block_order];
            self.states[places].fill(LISTED);
            listed.push(Listed { frame, order, cpu, kind: Kind::of(owner).unwrap_or(Kind::Movable) });
            excess -= size;
        }
    }

    fn list_missing(&mut self) {
        for part in self.parts.clone() {
            let mut missing = self.head.zones[part.at].kept.clone();
            for listed in self.kept(&part) {
                if let Some(missing) = missing.get_mut(usize::from(listed.cpu)) {
                    *missing = missing.saturating_sub(1 << listed.order);
                }
            }
            let shape = part.setup.shape;
            let mut at = (shape.first - self.base) as usize;
            let end = at + shape.frames as usize;
            while at < end && missing.iter().any(|&frames| frames > 0) {
                let run = self.states[at..end].iter().take_while(|&&state| state == NOBODYS).count();
                let is_beside = |place: Option<usize>| {
                    place.is_some_and(|place| [FREE, LISTED].contains(&self.states[place]))
                };
                let behind = Some(at + run).filter(|&at| at < end);
                let is_kept = run > 0 && (is_beside(at.checked_sub(1)) || is_beside(behind));
                for place in at..at + if is_kept { run } else { 0 } {
                    self.keep(place, &mut missing);
                }
                at += run.max(1);
            }
        }
    }

    /// A frame of nobody's is put on the list of the first processor that misses one.
    fn keep(&mut self, at: usize, missing: &mut [u32]) {
        let Some(cpu) = missing.iter().position(|&frames| frames > 0) else { return };
        missing[cpu] -= 1;
        self.states[at] = LISTED;
        let block = at >> self.head.block_order;
        let kind = Kind::of(self.owners[block]).unwrap_or(Kind::Movable);
        self.listed.push(Listed { frame: self.base + at as u32, order: 0, cpu: cpu as u16, kind });
    }

    /// Sets frames to what an event made of them, where they were read before it: whether all were.
    fn apply(&mut self, pfn: u32, order: u8, at_ns: u64, state: u8) -> bool {
        let size = 1u32.checked_shl(u32::from(order)).unwrap_or(0);
        let mut set = 0;
        for frame in pfn..pfn.saturating_add(size) {
            let run = self.runs.partition_point(|run| run.pfn <= frame).checked_sub(1);
            let Some(run) = run.map(|at| &self.runs[at]) else { continue };
            if frame - run.pfn < run.frames
                && run.read_ns < at_ns
                && let Some(was) = self.states.get_mut(frame.wrapping_sub(self.base) as usize)
            {
                *was = state;
                set += 1;
            }
        }
        set == size && size > 0
    }

    /// Pageblocks by owner, and how many of them an event told: the others are inferred from what the
    /// snapshot found in them.
    pub fn owners(&self) -> ([u64; 3], u64) {
        let mut by_kind = [0; 3];
        for part in &self.parts {
            let size = 1 << part.setup.shape.block_order;
            let first = (part.setup.shape.first - self.base) as usize;
            let blocks = self.states.get(first..).unwrap_or_default().chunks(size);
            // Of a hole nothing is known, and nothing is there.
            let is_there = |states: &[u8]| states.iter().any(|&state| state != HOLE);
            let of_memory = self.owners_of(part).into_iter().zip(blocks).filter(|(_, of)| is_there(of));
            of_memory.for_each(|(kind, _)| by_kind[kind as usize] += 1);
        }
        (by_kind, self.owners.iter().filter(|&&owner| owner != UNTOLD).count() as u64)
    }

    /// A pageblock belongs to the kernel if more of it was the kernel's than of programs and files.
    fn owners_of(&self, part: &Part) -> Vec<Kind> {
        let shape = part.setup.shape;
        let first = ((shape.first - self.base) >> shape.block_order) as usize;
        let size = 1usize << shape.block_order;
        let owner = |block: usize| {
            Kind::of(self.owners[block]).unwrap_or_else(|| {
                let mut frames = [0u32; 7];
                for state in &self.states[block * size..(block + 1) * size] {
                    frames[usize::from(*state)] += 1;
                }
                let used = |kind: Kind| frames[usize::from(USED + kind as u8)];
                let kernel = used(Kind::Unmovable) + used(Kind::Reclaimable);
                if kernel > used(Kind::Movable) { Kind::Unmovable } else { Kind::Movable }
            })
        };
        (first..first + (shape.frames >> shape.block_order) as usize).map(owner).collect()
    }

    fn stretches(&self, part: &Part) -> Vec<Stretch> {
        let shape = part.setup.shape;
        let states = &self.states[(shape.first - self.base) as usize..(shape.end() - self.base) as usize];
        let mut at = shape.first;
        let alike = |state: &u8| match *state {
            FREE => None,
            // What nobody knows stays where it is.
            state => Some(Kind::of(state - USED).unwrap_or(Kind::Unmovable)),
        };
        let stretch = |states: &[u8]| {
            let from = at;
            at += states.len() as u32;
            Stretch { frames: from..at, used: alike(&states[0]) }
        };
        states.chunk_by(|one, other| alike(one) == alike(other)).map(stretch).collect()
    }

    pub(super) fn head(&self) -> &TraceHead {
        &self.head
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    pub(super) fn base(&self) -> Frame {
        self.base
    }

    /// By frame from the base: whether an object lies there, and whether it is one that nobody knows.
    pub(super) fn objects(&self) -> impl Iterator<Item = (bool, bool)> + '_ {
        self.states.iter().map(|&state| (![FREE, HOLE, LISTED].contains(&state), state == NOBODYS))
    }

    /// The zones, and what each begins with.
    pub(super) fn zones(&self) -> (Vec<Setup>, Vec<memory::begin::Begin>) {
        let begin = |part: &Part| memory::begin::Begin {
            owners: self.owners_of(part),
            stretches: self.stretches(part),
            keep: part.keep,
            kept: self.kept(part),
        };
        let setups = self.parts.iter().map(|part| part.setup.clone()).collect();
        (setups, self.parts.iter().map(begin).collect())
    }
}
