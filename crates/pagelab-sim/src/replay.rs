//! Replay of a trace under a policy: objects have their recorded lifetimes, and the simulated allocator
//! places them.
//!
//! [`snapshot::ReplaySnapshot`] makes the state to begin with of the snapshot; [`Replay`] is fed events and
//! has the free blocks of any moment. Information that is missing in a trace is counted by name
//! (`types::ReplayStats`).

use std::collections::VecDeque;
use std::ops::Range;

use pagelab_model::alloc_trace::{TraceEvent, TraceEventKind};
use pagelab_model::free_areas::{BuddyInfo, FreeAreas, ZoneFreeAreas, ZoneKey};

use crate::memory::{Memory, Request, Watermark};
use crate::policies::Policy;
use crate::prefetch;
use crate::types::{AllocationType, Error, Fallback, Frame, invalid};
use crate::zone::AllocatedBlock;
use snapshot::ReplaySnapshot;
use types::{MigratetypeMap, ReplayError, ReplayStats, ZoneSelection};

mod objects;
pub mod snapshot;
#[cfg(test)]
mod tests;
pub mod types;

const NO_OBJECT: Frame = Frame::MAX;
/// An object for which the simulated memory had no room.
const UNPLACED: Frame = Frame::new(u32::MAX - 1);

/// Interval of the periodic drain of the per-CPU lists (`vm.stat_interval`, its default).
const STAT_INTERVAL_NS: u64 = 1_000_000_000;

/// Numbers of events ahead at which the event itself, then its entry in the table, then the state of the
/// block are prefetched.
const PREFETCH_DISTANCES: [usize; 3] = [64, 24, 12];

/// One replay.
#[derive(Clone, Debug)]
pub struct Replay<P> {
    memory: Memory<P>,
    zone_selection: ZoneSelection,
    migratetype_map: MigratetypeMap,
    max_order: u8,
    pageblock_order: u8,
    keys: Vec<ZoneKey>,
    base_frame: Frame,
    /// Simulated frame for each traced frame from the base.
    frame_map: Vec<Frame>,
    /// Bitmap of traced frames: unknown in the snapshot, and not allocated since.
    unowned_bits: Vec<u64>,
    compacting_threads: Vec<u32>,
    /// Position of the free scanner, by zone.
    free_scanners: Vec<objects::FreeScanner>,
    /// Moved objects by order, with their current frames.
    migrated_objects: Vec<VecDeque<Frame>>,
    complete_ns: u64,
    last_ns: u64,
    /// Time of the next periodic drain.
    next_decay_ns: u64,
    is_reclaiming: bool,
    stats: ReplayStats,
}

impl<P: Policy + Clone> Replay<P> {
    /// A replay that begins with a snapshot.
    pub fn new(
        snapshot: &ReplaySnapshot,
        policy: &P,
        zone_selection: ZoneSelection,
    ) -> Result<Replay<P>, Error> {
        let (setups, initial_states) = snapshot.initial_zones();
        let ReplaySnapshot { head, base_frame, .. } = snapshot;
        let keys = snapshot.zones.iter().map(|part| head.zones[part.head_index].key.clone()).collect();
        let (mut table, mut unowned_bits) = (Vec::new(), Vec::new());
        for (at, (is_object, is_unowned)) in snapshot.objects().enumerate() {
            if at % 64 == 0 {
                unowned_bits.push(0);
            }
            table.push(if is_object { *base_frame + at as u32 } else { NO_OBJECT });
            if is_unowned {
                unowned_bits[at / 64] |= 1 << (at % 64);
            }
        }
        Ok(Replay {
            memory: Memory::with_initial_state(setups, policy, initial_states)?,
            zone_selection,
            migratetype_map: snapshot.migratetype_map.clone(),
            max_order: head.max_order,
            pageblock_order: head.pageblock_order,
            keys,
            base_frame: *base_frame,
            frame_map: table,
            unowned_bits,
            compacting_threads: Vec::new(),
            free_scanners: Vec::new(),
            migrated_objects: vec![VecDeque::new(); usize::from(head.max_order) + 1],
            complete_ns: snapshot.complete_ns(),
            last_ns: 0,
            next_decay_ns: snapshot.complete_ns().saturating_add(STAT_INTERVAL_NS),
            is_reclaiming: false,
            stats: ReplayStats::default(),
        })
    }

    /// Replays events, the next ones of the trace.
    pub fn replay_events(&mut self, events: &[TraceEvent]) -> Result<(), ReplayError> {
        for (at, event) in events.iter().enumerate() {
            self.prefetch_events(events, at);
            let event_number = self.stats.events_before_snapshot + self.stats.events;
            if event.time_ns < self.last_ns {
                self.stats.out_of_order_events += 1;
            } else {
                self.last_ns = event.time_ns;
            }
            if event.time_ns <= self.complete_ns {
                self.stats.events_before_snapshot += 1;
                self.track_compaction(event);
                continue;
            }
            if event.time_ns >= self.next_decay_ns {
                self.advance_time(event.time_ns);
            }
            self.stats.events += 1;
            self.replay_event(event).map_err(|wrong| ReplayError {
                event: event_number,
                at_ns: event.time_ns,
                error: wrong,
            })?;
        }
        Ok(())
    }

    /// Advances the clock: each second the per-CPU lists are drained in part, if the kernel does that.
    fn advance_time(&mut self, at_ns: u64) {
        let overdue_ns = at_ns - self.next_decay_ns;
        // After a few drains nothing is above `high`; a longer pause has no more effect.
        let mut seconds = 0..overdue_ns / STAT_INTERVAL_NS + 1;
        while seconds.next().is_some() && self.memory.decay_pcp_lists() {}
        self.next_decay_ns = (at_ns - overdue_ns % STAT_INTERVAL_NS).saturating_add(STAT_INTERVAL_NS);
        if self.is_reclaiming {
            self.is_reclaiming = self.memory.update_reclaim();
        }
    }

    /// Prefetches what the next events will read.
    #[inline]
    fn prefetch_events(&self, events: &[TraceEvent], at: usize) {
        prefetch::prefetch_line(events, at + PREFETCH_DISTANCES[0]);
        let [table, state] =
            [PREFETCH_DISTANCES[1], PREFETCH_DISTANCES[2]].map(|ahead| events.get(at + ahead));
        if let Some(TraceEventKind::Alloc { pfn: Some(pfn), .. } | TraceEventKind::Free { pfn, .. }) =
            table.map(|event| event.kind)
        {
            prefetch::prefetch_line(
                &self.frame_map,
                Frame::new(pfn).wrapping_distance(self.base_frame) as usize,
            );
        }
        if let Some(TraceEventKind::Free { pfn, .. }) = state.map(|event| event.kind)
            && let Some(&frame) =
                self.frame_map.get(Frame::new(pfn).wrapping_distance(self.base_frame) as usize)
        {
            self.memory.zone_containing(frame).into_iter().for_each(|zone| zone.prefetch_block(frame));
        }
    }

    fn track_compaction(&mut self, event: &TraceEvent) {
        match event.kind {
            TraceEventKind::CompactionBegin => {
                self.compacting_threads.push(event.tid);
                self.reset_free_scanners();
            }
            TraceEventKind::CompactionEnd => self.compacting_threads.retain(|&tid| tid != event.tid),
            _ => {}
        }
    }

    #[inline]
    fn replay_event(&mut self, event: &TraceEvent) -> Result<(), Error> {
        match event.kind {
            TraceEventKind::Alloc { pfn: Some(pfn), order, migratetype, gfp_flags: gfp } => {
                let frame = Frame::new(pfn);
                let index = self.map_index(frame, order)?;
                let request = Request {
                    order,
                    alloc_type: self.migratetype_map.type_of(migratetype),
                    zone_index: types::highest_zone_index(gfp),
                    node: 0,
                    cpu: event.cpu,
                    watermark: Watermark::NoWatermark,
                    can_fragment: true,
                };
                self.replay_alloc(index, frame, request)
            }
            TraceEventKind::Free { pfn, order } => {
                let at = self.map_index(Frame::new(pfn), order)?;
                let is_compacting =
                    !self.compacting_threads.is_empty() && self.compacting_threads.contains(&event.tid);
                self.replay_free(at, order, event.cpu, is_compacting)
            }
            TraceEventKind::Alloc { pfn: None, .. } => {
                self.stats.failed_in_trace += 1;
                Ok(())
            }
            TraceEventKind::Fallback { change_ownership: owns, .. } => {
                self.stats.fallbacks_traced += 1;
                self.stats.claims_traced += u64::from(owns);
                Ok(())
            }
            TraceEventKind::Migrated { moved, .. } => {
                self.stats.migrated_traced += u64::from(moved);
                Ok(())
            }
            TraceEventKind::KswapdWake { .. } => {
                self.is_reclaiming = true;
                self.memory.start_reclaim();
                Ok(())
            }
            _ => {
                self.track_compaction(event);
                Ok(())
            }
        }
    }

    /// Index of a block in the table, if such a block is possible.
    #[inline]
    fn map_index(&self, frame: Frame, order: u8) -> Result<usize, Error> {
        if order > self.max_order {
            return Err(Error::OrderTooLarge { order, max: self.max_order });
        }
        let index = frame.wrapping_distance(self.base_frame) as usize;
        if index >= self.frame_map.len() || self.frame_map.len() - index < 1 << order {
            return Err(Error::OutsideZone(frame));
        }
        if !frame.is_aligned(order) {
            return invalid(format!("no block of order {order} begins at frame {frame:#x}"));
        }
        Ok(index)
    }

    #[inline]
    fn replay_alloc(&mut self, index: usize, traced_frame: Frame, mut request: Request) -> Result<(), Error> {
        let (order, size) = (request.order, 1usize << request.order);
        self.stats.allocs.add_block(order);
        let is_empty = match order {
            0 => self.frame_map[index] == NO_OBJECT,
            _ => self.frame_map[index..index + size].iter().all(|&frame| frame == NO_OBJECT),
        };
        if !is_empty {
            self.end_stale_objects(index, order, request.cpu)?;
        }
        let zone = self.memory.zone_position(traced_frame);
        if zone >= self.memory.zone_count() {
            return Err(Error::OutsideZone(traced_frame));
        }
        let (config, _) = self.memory.zone(zone);
        request.node = config.node;
        let mut allocated = None;
        if self.zone_selection == ZoneSelection::Traced {
            request.zone_index = config.zone_index;
            let pcp_zone = self.memory.pcp_zone_mut(zone);
            allocated = pcp_zone.allocate_block(request.cpu, order, request.alloc_type)?;
        }
        if allocated.is_none() {
            allocated = self.allocate_anywhere(request)?;
        }
        match allocated {
            Some(allocated) => {
                if let Some(Fallback { changes_ownership: owns, .. }) = allocated.fallback {
                    self.stats.fallbacks += 1;
                    self.stats.claims += u64::from(owns);
                }
                match order {
                    0 => self.frame_map[index] = allocated.frame,
                    _ => {
                        let frames = Frame::range(allocated.frame..allocated.frame + size as u32);
                        for (frame, entry) in frames.zip(&mut self.frame_map[index..index + size]) {
                            *entry = frame;
                        }
                    }
                }
            }
            None => {
                self.stats.unplaced_allocs.add_block(order);
                self.frame_map[index..index + size].fill(UNPLACED);
            }
        }
        Ok(())
    }

    /// Allocates from the zones that the request permits.
    fn allocate_anywhere(&mut self, mut request: Request) -> Result<Option<AllocatedBlock>, Error> {
        let watermarks: &[Watermark] = match self.zone_selection {
            ZoneSelection::Traced => &[Watermark::NoWatermark],
            ZoneSelection::GfpAllowed => &[Watermark::Low, Watermark::Min, Watermark::NoWatermark],
        };
        for &watermark in watermarks {
            request.watermark = watermark;
            if let Some((_, taken)) = self.memory.allocate_block(&request)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// Current free blocks of all zones, without those on per-CPU lists, as in `/proc/buddyinfo`.
    pub fn free_blocks_now(&self) -> BuddyInfo {
        let zone = |(key, blocks): (&ZoneKey, &[u32])| {
            let counts = blocks.iter().map(|&blocks| u64::from(blocks)).collect();
            ZoneFreeAreas {
                key: key.clone(),
                areas: FreeAreas::new(counts).expect("a zone has 32-bit counts of up to 22 orders"),
            }
        };
        let blocks = self.memory.zones().map(|(_, kept)| kept.zone().free_blocks());
        BuddyInfo { zones: self.keys.iter().zip(blocks).map(zone).collect() }
    }

    /// Free frames on per-CPU lists.
    pub fn pcp_frames(&self) -> u64 {
        self.memory.zones().map(|(_, kept)| u64::from(kept.pcp_frames())).sum()
    }

    /// Addresses of the tables in this process, for a caller that puts them on huge pages.
    pub fn memory_ranges(&self) -> Vec<Range<usize>> {
        let zones = self.memory.zones().flat_map(|(_, kept)| kept.zone().free_lists().memory_ranges());
        let start = self.frame_map.as_ptr() as usize;
        zones.chain(std::iter::once(start..start + size_of_val(&self.frame_map[..]))).collect()
    }

    /// Counts so far.
    pub fn stats(&self) -> ReplayStats {
        let mut account = self.stats.clone();
        account.migrated_at_end = self.migrated_objects.iter().map(|objects| objects.len() as u64).sum();
        account
    }

    /// Checks all metadata: the memory's, and that each object of the table is in an allocated block.
    pub fn validate(&self) -> Result<(), Error> {
        self.memory.validate()?;
        let objects = self.frame_map.iter().filter(|&&frame| frame < UNPLACED);
        for &frame in objects {
            self.block_head(frame).ok_or(Error::NotAllocated(frame))?;
        }
        Ok(())
    }

    /// First frame of the allocated block that contains a frame.
    fn block_head(&self, frame: Frame) -> Option<(Frame, u8, AllocationType)> {
        (0..=self.max_order).find_map(|head_order| {
            let head = frame.align_down(head_order);
            let (order, kind) = self.memory.zone_containing(head)?.allocated_block_at(head)?;
            (order >= head_order).then_some((head, order, kind))
        })
    }
}
