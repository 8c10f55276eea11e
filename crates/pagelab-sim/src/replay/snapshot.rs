//! Initial state of a replay: the snapshot, corrected by the events that happened during its scan.

use std::ops::Range;

use pagelab_model::alloc_trace::{
    FrameRun, FrameState, FreeAreasSample, TraceEvent, TraceEventKind, TraceHeader,
};

use super::types::{MigratetypeMap, ReplayZone, replay_zones};
use crate::memory::{PcpBlock, ZoneConfig, ZoneInitialState};
use crate::pcp::COSTLY_ORDER;
use crate::prefetch;
use crate::types::{AllocationType, Error, Frame, invalid};
use crate::zone::initial_state::InitialRun;

/// State of a frame: free, allocated for an allocation type (this plus its number), unknown owner, no memory,
/// on a per-CPU list.
const FREE_FRAME: u8 = 0;
const ALLOCATED_BASE: u8 = 1;
const UNOWNED: u8 = 4;
const MEMORY_HOLE: u8 = 5;
const ON_PCP_LIST: u8 = 6;

const _: () = assert!(ALLOCATED_BASE as usize + AllocationType::ALL.len() == UNOWNED as usize);

/// Number of events ahead at which the state of a frame is prefetched.
const PREFETCH_DISTANCE: usize = 24;

/// Owner of a pageblock that is in no event.
const UNKNOWN_OWNER: u8 = u8::MAX;

/// A freed block and the processor that freed it.
#[derive(Clone, Copy, Debug)]
struct FreedBlock {
    frame: Frame,
    order: u8,
    cpu: u16,
}

/// The allocation type that owns a pageblock; `None`: no event has it.
fn owner_type(owner: u8) -> Option<AllocationType> {
    let alloc_type = AllocationType::from_index(owner);
    debug_assert!(alloc_type.is_some() || owner == UNKNOWN_OWNER, "unknown pageblock owner {owner}");
    alloc_type
}

/// State of all frames at the end of the snapshot's scan.
///
/// A scan takes time, and the machine continues meanwhile. Each run has the time of its reading; the events
/// on its frames after that, and before the scan ended, are applied to it here, and are not replayed.
#[derive(Clone, Debug)]
pub struct ReplaySnapshot {
    pub(super) head: TraceHeader,
    pub(super) zones: Vec<ReplayZone>,
    pub(super) migratetype_map: MigratetypeMap,
    runs: Vec<FrameRun>,
    pub(super) base_frame: Frame,
    frame_states: Vec<u8>,
    pageblock_owners: Vec<u8>,
    /// Blocks on per-CPU lists, the first to be allocated in front.
    pcp_blocks: Vec<PcpBlock>,
    /// Blocks freed after they were read and before the scan ended, by time.
    freed_during_scan: Vec<FreedBlock>,
    complete_ns: u64,
    uncovered_frames: u64,
}

impl ReplaySnapshot {
    /// Frames that the zones of a head span: a replay needs about 14 bytes for each, and for each policy.
    pub fn spanned_frames(head: &TraceHeader) -> Result<u64, Error> {
        let zones = replay_zones(head)?;
        let ends = zones.first().zip(zones.last());
        Ok(ends.map_or(0, |(first, last)| {
            u64::from(last.config.geometry.end() - first.config.geometry.first_frame)
        }))
    }

    /// Builds the state from a snapshot in order of frames, and from the zones in `head`.
    pub fn new(head: &TraceHeader, runs: &[FrameRun]) -> Result<ReplaySnapshot, Error> {
        if !(4 << 10..=64 << 10).contains(&head.page_bytes) || !head.page_bytes.is_power_of_two() {
            return invalid(format!(
                "the trace has pages of {} bytes; expected 4 to 64 KiB",
                head.page_bytes
            ));
        }
        let parts = replay_zones(head)?;
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return invalid("the trace has no zone with memory");
        };
        if let Some(pair) =
            parts.windows(2).find(|pair| pair[0].config.geometry.end() > pair[1].config.geometry.first_frame)
        {
            let (one, other) = (&pair[0].config, &pair[1].config);
            return invalid(format!(
                "zones {} of node {} and {} of node {} share pageblocks, which is not supported",
                one.name, one.node, other.name, other.node
            ));
        }
        let (base, end) = (first.config.geometry.first_frame, last.config.geometry.end());
        let states = vec![MEMORY_HOLE; (end - base) as usize];
        let pageblock_count = states.len() >> head.pageblock_order;
        let complete_ns = runs.iter().map(|run| run.read_ns).max().unwrap_or(0);
        let mut snapshot = ReplaySnapshot {
            migratetype_map: MigratetypeMap::from_head(head),
            head: head.clone(),
            zones: parts,
            runs: runs.to_vec(),
            base_frame: base,
            frame_states: states,
            pageblock_owners: vec![UNKNOWN_OWNER; pageblock_count],
            pcp_blocks: Vec::new(),
            freed_during_scan: Vec::new(),
            complete_ns,
            uncovered_frames: 0,
        };
        snapshot.fill_frame_states()?;
        Ok(snapshot)
    }

    /// Writes the snapshot into the states.
    fn fill_frame_states(&mut self) -> Result<(), Error> {
        let mut at = 0u64;
        let mut covered = 0u64;
        for (number, run) in self.runs.iter().enumerate() {
            let (run_start, run_end) = (u64::from(run.pfn), u64::from(run.pfn) + u64::from(run.frames));
            if run_start < at {
                return invalid(format!(
                    "run {number} of the snapshot starts at {run_start:#x}, before the previous one ends"
                ));
            }
            at = run_end;
            let state = match run.state {
                FrameState::Free => FREE_FRAME,
                FrameState::Unknown => UNOWNED,
                FrameState::Kernel => ALLOCATED_BASE + AllocationType::Unmovable as u8,
                FrameState::User => ALLOCATED_BASE + AllocationType::Movable as u8,
                FrameState::Hole => MEMORY_HOLE,
            };
            for part in &self.zones {
                let zone = &self.head.zones[part.head_index];
                let (first, end) = (u64::from(zone.first), u64::from(zone.first) + u64::from(zone.spanned));
                let (from, to) = (run_start.max(first), run_end.min(end));
                if from < to {
                    let base = u64::from(self.base_frame.number());
                    self.frame_states[(from - base) as usize..(to - base) as usize].fill(state);
                    covered += to - from;
                }
            }
        }
        let spanned: u64 =
            self.zones.iter().map(|part| u64::from(self.head.zones[part.head_index].spanned)).sum();
        self.uncovered_frames = spanned - covered;
        Ok(())
    }

    /// End of the snapshot's scan in nanoseconds since the trace began: the replay begins here.
    pub fn complete_ns(&self) -> u64 {
        self.complete_ns
    }

    /// Frames of the zones that are not in the snapshot: holes of the machine, which have no memory here
    /// either.
    pub fn uncovered_frames(&self) -> u64 {
        self.uncovered_frames
    }

    /// Observes the events from the first one on: those during the scan correct the snapshot, and the first
    /// allocation in each pageblock has its owner.
    pub fn observe_events(&mut self, events: &[TraceEvent]) {
        for (at, event) in events.iter().enumerate() {
            if let Some(TraceEventKind::Alloc { pfn: Some(pfn), .. } | TraceEventKind::Free { pfn, .. }) =
                events.get(at + PREFETCH_DISTANCE).map(|event| event.kind)
            {
                let index = Frame::new(pfn).wrapping_distance(self.base_frame);
                prefetch::prefetch_line(&self.frame_states, index as usize);
            }
            let is_during_scan = event.time_ns <= self.complete_ns;
            match event.kind {
                TraceEventKind::Alloc { pfn: Some(pfn), order, migratetype, .. } => {
                    let frame = Frame::new(pfn);
                    let alloc_type = self.migratetype_map.type_of(migratetype);
                    self.set_unknown_owner(frame, alloc_type as u8);
                    if is_during_scan {
                        self.apply_event(frame, order, event.time_ns, ALLOCATED_BASE + alloc_type as u8);
                    } else {
                        self.add_to_pcp_list(event.cpu, frame, order, alloc_type);
                    }
                }
                TraceEventKind::Free { pfn, order } if is_during_scan => {
                    let frame = Frame::new(pfn);
                    if self.apply_event(frame, order, event.time_ns, FREE_FRAME) {
                        self.freed_during_scan.push(FreedBlock { frame, order, cpu: event.cpu });
                    }
                }
                TraceEventKind::Free { pfn, order } => self.assign_to_kernel(Frame::new(pfn), order),
                TraceEventKind::Fallback { pfn, fallback_migratetype: from, .. } => {
                    self.set_unknown_owner(Frame::new(pfn), self.migratetype_map.type_of(from) as u8)
                }
                _ => {}
            }
        }
    }

    fn set_unknown_owner(&mut self, frame: Frame, new_owner: u8) {
        let pageblock = (frame.wrapping_distance(self.base_frame) >> self.head.pageblock_order) as usize;
        if let Some(owner) = self.pageblock_owners.get_mut(pageblock)
            && *owner == UNKNOWN_OWNER
        {
            *owner = new_owner;
        }
    }

    /// Indices of a block's frames in the states.
    fn state_range(&self, frame: Frame, order: u8) -> Range<usize> {
        let size = 1usize.checked_shl(order.into()).unwrap_or(0);
        let from = (frame.wrapping_distance(self.base_frame) as usize).min(self.frame_states.len());
        from..from.saturating_add(size).min(self.frame_states.len())
    }

    fn can_be_on_pcp_list(&self, order: u8) -> bool {
        order <= COSTLY_ORDER || order == self.head.pageblock_order
    }

    /// Records that allocated frames of unknown owner were on a per-CPU list, as a whole block or in parts
    /// that have merged since.
    fn add_to_pcp_list(&mut self, cpu: u16, frame: Frame, order: u8, alloc_type: AllocationType) {
        let range = self.state_range(frame, order);
        if !self.frame_states[range.clone()].contains(&UNOWNED) {
            return;
        }
        let is_all_unowned = self.can_be_on_pcp_list(order)
            && self.frame_states[range.clone()].iter().all(|&state| state == UNOWNED);
        if is_all_unowned {
            self.pcp_blocks.push(PcpBlock { frame, order, cpu, alloc_type });
        }
        for at in range {
            if self.frame_states[at] == UNOWNED {
                self.frame_states[at] = ON_PCP_LIST;
                if !is_all_unowned {
                    self.pcp_blocks.push(PcpBlock {
                        frame: self.base_frame + at as u32,
                        order: 0,
                        cpu,
                        alloc_type,
                    });
                }
            }
        }
    }

    /// Records that freed frames of unknown owner were the kernel's: stacks and the like have no flag.
    fn assign_to_kernel(&mut self, frame: Frame, order: u8) {
        for at in self.state_range(frame, order) {
            if self.frame_states[at] == UNOWNED {
                self.frame_states[at] = ALLOCATED_BASE + AllocationType::Unmovable as u8;
            }
        }
    }

    /// Frames on per-CPU lists, according to the events and the head.
    pub fn pcp_frames(&self) -> u64 {
        self.pcp_blocks.iter().map(|listed| 1u64 << listed.order).sum()
    }

    /// Indices of a zone's frames in the states.
    fn zone_range(&self, part: &ReplayZone) -> Range<usize> {
        let geometry = part.config.geometry;
        (geometry.first_frame - self.base_frame) as usize..(geometry.end() - self.base_frame) as usize
    }

    /// Frames on all per-CPU lists of a zone.
    fn pcp_blocks_of_zone(&self, part: &ReplayZone) -> Vec<PcpBlock> {
        let geometry = part.config.geometry;
        self.pcp_blocks.iter().filter(|listed| geometry.contains(listed.frame)).copied().collect()
    }

    /// Ends the observation: adds to the per-CPU lists the frames that are in no event.
    ///
    /// The lists had the number of pages in the head when the trace began. They are taken from the frames of
    /// unknown owner beside free frames, since such pages come from a larger block, or merge with one. A
    /// block freed during the scan was on such a list first, and was not free in the kernel's counters: the
    /// latest freed blocks are put on lists, up to the difference to the last reading of free memory before
    /// the end of the scan.
    pub fn infer_pcp_lists(&mut self, samples: &[FreeAreasSample]) {
        let last_sample = samples.iter().rev().find(|sample| sample.at_ns <= self.complete_ns);
        let freed = std::mem::take(&mut self.freed_during_scan);
        if let Some(read) = last_sample {
            let mut listed = Vec::new();
            for part in self.zones.clone() {
                self.list_freed_blocks(&part, &freed, read, &mut listed);
            }
            // The block that was freed last is allocated first.
            listed.append(&mut self.pcp_blocks);
            self.pcp_blocks = listed;
        }
        self.list_missing_frames();
    }

    /// Puts the blocks that were freed last on the lists of their processors, until no more of a zone is free
    /// than was read. A zone that is not in the sample has no reading, and nothing is listed for it.
    fn list_freed_blocks(
        &mut self,
        zone: &ReplayZone,
        freed: &[FreedBlock],
        sample: &FreeAreasSample,
        pcp_blocks: &mut Vec<PcpBlock>,
    ) {
        let Some(areas) = sample.free.zone(&self.head.zones[zone.head_index].key) else { return };
        let geometry = zone.config.geometry;
        let states = &self.frame_states[self.zone_range(zone)];
        let free = states.iter().filter(|&&state| state == FREE_FRAME).count() as u128;
        let mut excess_free_frames = free.saturating_sub(areas.free_pages());
        for &FreedBlock { frame, order, cpu } in
            freed.iter().rev().filter(|block| geometry.contains(block.frame))
        {
            let (size, places) = (1u128 << order, self.state_range(frame, order));
            if !self.can_be_on_pcp_list(order)
                || size > excess_free_frames
                || self.frame_states[places.clone()].iter().any(|&state| state != FREE_FRAME)
            {
                continue;
            }
            let owner = self.pageblock_owners[places.start >> self.head.pageblock_order];
            self.frame_states[places].fill(ON_PCP_LIST);
            pcp_blocks.push(PcpBlock {
                frame,
                order,
                cpu,
                alloc_type: owner_type(owner).unwrap_or(AllocationType::Movable),
            });
            excess_free_frames -= size;
        }
    }

    fn list_missing_frames(&mut self) {
        for part in self.zones.clone() {
            let mut missing_frames = self.head.zones[part.head_index].pcp_counts.clone();
            for listed in self.pcp_blocks_of_zone(&part) {
                if let Some(missing) = missing_frames.get_mut(usize::from(listed.cpu)) {
                    *missing = missing.saturating_sub(1 << listed.order);
                }
            }
            let Range { start: mut index, end } = self.zone_range(&part);
            while index < end && missing_frames.iter().any(|&frames| frames > 0) {
                let run_length =
                    self.frame_states[index..end].iter().take_while(|&&state| state == UNOWNED).count();
                let is_near_free = |place: Option<usize>| {
                    place.is_some_and(|place| [FREE_FRAME, ON_PCP_LIST].contains(&self.frame_states[place]))
                };
                let next_index = Some(index + run_length).filter(|&at| at < end);
                let is_on_pcp_list =
                    run_length > 0 && (is_near_free(index.checked_sub(1)) || is_near_free(next_index));
                for place in index..index + if is_on_pcp_list { run_length } else { 0 } {
                    self.put_on_pcp_list(place, &mut missing_frames);
                }
                index += run_length.max(1);
            }
        }
    }

    /// Adds a frame of unknown owner to the list of the first processor whose list is too short.
    fn put_on_pcp_list(&mut self, index: usize, missing: &mut [u32]) {
        let Some(cpu) = missing.iter().position(|&frames| frames > 0) else { return };
        missing[cpu] -= 1;
        self.frame_states[index] = ON_PCP_LIST;
        let pageblock = index >> self.head.pageblock_order;
        let alloc_type = owner_type(self.pageblock_owners[pageblock]).unwrap_or(AllocationType::Movable);
        self.pcp_blocks.push(PcpBlock {
            frame: self.base_frame + index as u32,
            order: 0,
            cpu: cpu as u16,
            alloc_type,
        });
    }

    /// Sets the states of frames after an event, if they were read before it; returns whether all were.
    fn apply_event(&mut self, frame: Frame, order: u8, at_ns: u64, state: u8) -> bool {
        let size = 1u32.checked_shl(u32::from(order)).unwrap_or(0);
        let mut frames_set = 0;
        for pfn in frame.number()..frame.number().saturating_add(size) {
            let run = self.runs.partition_point(|run| run.pfn <= pfn).checked_sub(1);
            let Some(run) = run.map(|at| &self.runs[at]) else { continue };
            if pfn - run.pfn < run.frames
                && run.read_ns < at_ns
                && let Some(current_state) =
                    self.frame_states.get_mut(Frame::new(pfn).wrapping_distance(self.base_frame) as usize)
            {
                *current_state = state;
                frames_set += 1;
            }
        }
        frames_set == size && size > 0
    }

    /// Number of pageblocks by owner, and of those whose owner is in an event: the others are inferred from
    /// the contents that the snapshot found.
    pub fn pageblocks_by_owner(&self) -> ([u64; 3], u64) {
        let mut by_type = [0; 3];
        for part in &self.zones {
            let size = 1 << part.config.geometry.pageblock_order;
            let blocks = self.frame_states[self.zone_range(part)].chunks(size);
            // A hole has no memory, so no owner counts.
            let has_memory = |states: &[u8]| states.iter().any(|&state| state != MEMORY_HOLE);
            let memory_pageblocks =
                self.pageblock_owners_of_zone(part).into_iter().zip(blocks).filter(|(_, of)| has_memory(of));
            memory_pageblocks.for_each(|(kind, _)| by_type[kind as usize] += 1);
        }
        (by_type, self.pageblock_owners.iter().filter(|&&owner| owner != UNKNOWN_OWNER).count() as u64)
    }

    /// Infers the owner of a pageblock: unmovable if more of its frames belong to the kernel than to programs
    /// and files.
    fn pageblock_owners_of_zone(&self, part: &ReplayZone) -> Vec<AllocationType> {
        let size = 1usize << part.config.geometry.pageblock_order;
        let Range { start, end } = self.zone_range(part);
        let pageblocks = self.pageblock_owners[start / size..end / size].iter();
        let owner_of = |(&owner, states): (&u8, &[u8])| {
            owner_type(owner).unwrap_or_else(|| {
                let frames = |kind: AllocationType| {
                    states.iter().filter(|&&state| state == ALLOCATED_BASE + kind as u8).count()
                };
                let kernel = frames(AllocationType::Unmovable) + frames(AllocationType::Reclaimable);
                let is_kernel = kernel > frames(AllocationType::Movable);
                if is_kernel { AllocationType::Unmovable } else { AllocationType::Movable }
            })
        };
        pageblocks.zip(self.frame_states[start..end].chunks_exact(size)).map(owner_of).collect()
    }

    fn frame_runs(&self, part: &ReplayZone) -> Vec<InitialRun> {
        let states = &self.frame_states[self.zone_range(part)];
        let mut at = part.config.geometry.first_frame;
        let allocation_type_of = |state: &u8| match *state {
            FREE_FRAME => None,
            // Frames of unknown owner, and those on per-CPU lists, stay where they are.
            UNOWNED | MEMORY_HOLE | ON_PCP_LIST => Some(AllocationType::Unmovable),
            state => {
                let alloc_type = AllocationType::from_index(state - ALLOCATED_BASE);
                debug_assert!(alloc_type.is_some(), "unknown frame state {state}");
                Some(alloc_type.unwrap_or(AllocationType::Unmovable))
            }
        };
        let frame_run = |states: &[u8]| {
            let from = at;
            at += states.len() as u32;
            InitialRun { frames: from..at, alloc_type: allocation_type_of(&states[0]) }
        };
        states
            .chunk_by(|one, other| allocation_type_of(one) == allocation_type_of(other))
            .map(frame_run)
            .collect()
    }

    /// For each frame from the base: whether an object is there, and whether its owner is unknown.
    pub(super) fn objects(&self) -> impl Iterator<Item = (bool, bool)> + '_ {
        self.frame_states
            .iter()
            .map(|&state| (![FREE_FRAME, MEMORY_HOLE, ON_PCP_LIST].contains(&state), state == UNOWNED))
    }

    /// The zones and their initial states.
    pub(super) fn initial_zones(&self) -> (Vec<ZoneConfig>, Vec<ZoneInitialState>) {
        let initial_state = |part: &ReplayZone| ZoneInitialState {
            owners: self.pageblock_owners_of_zone(part),
            frame_runs: self.frame_runs(part),
            pcp_config: part.pcp_config,
            pcp_blocks: self.pcp_blocks_of_zone(part),
        };
        let setups = self.zones.iter().map(|part| part.config.clone()).collect();
        (setups, self.zones.iter().map(initial_state).collect())
    }
}
