//! Summary of a trace of the page allocator: events by type, pages by order and migratetype, threads, and
//! holes, which are frees of frames without an observed allocation.

use std::collections::BTreeMap;

use pagelab_model::alloc_trace::{FrameRun, FrameState, TraceEvent, TraceEventKind, TraceHeader};

/// Frames whose state is kept at most, in bytes: 1 TiB at 4 KiB. Beyond it holes are not looked for.
pub const FRAMES_MAX: usize = 1 << 28;

/// Maximum of distinguished threads.
const TRACKED_THREADS_MAX: usize = 1 << 16;

/// Orders that are counted apart; a kernel's largest is far below.
const ORDER_COUNT: usize = 64;

/// State of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum TrackedState {
    /// Unknown: neither the snapshot nor the trace states it.
    Unknown,
    /// Free.
    Free,
    /// In use since before the trace.
    InUseBefore,
    /// In use according to the trace.
    AllocatedInTrace,
}

/// Events and pages of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTotals {
    /// How many events.
    pub events: u64,
    /// Total of their base pages: 2^order each.
    pub pages: u64,
}

impl EventTotals {
    fn add(&mut self, pages: u64) {
        self.events += 1;
        self.pages = self.pages.saturating_add(pages);
    }
}

/// Origin of freed pages, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeOrigins {
    /// Taken in the trace.
    pub allocated_in_trace: u64,
    /// In use when the trace began, by the snapshot.
    pub in_use_before: u64,
    /// Unknown in the snapshot: pages without flags, such as stacks and pages on pcp lists.
    pub unknown: u64,
    /// Last known as free: their allocation was not observed. Targets of migration and bulk allocations have
    /// no event.
    pub allocated_untraced: u64,
}

impl FreeOrigins {
    /// All of them.
    pub fn total_pages(&self) -> u64 {
        self.allocated_in_trace + self.in_use_before + self.unknown + self.allocated_untraced
    }

    /// Share of the frees of which neither the snapshot nor the trace knows the taking; `None` without a
    /// free.
    pub fn untraced_share(&self) -> Option<f64> {
        (self.total_pages() > 0)
            .then(|| (self.unknown + self.allocated_untraced) as f64 / self.total_pages() as f64)
    }
}

/// A thread's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTotals {
    /// Its allocations.
    pub allocated: EventTotals,
    /// Its frees.
    pub freed: EventTotals,
}

/// Counts over a trace, event by event in their order.
#[derive(Default)]
pub struct TraceAccount {
    /// Allocations by order and migratetype.
    pub allocated: BTreeMap<(u8, u8), EventTotals>,
    /// Frees by order.
    pub freed_by_order: BTreeMap<u8, EventTotals>,
    /// Allocations that failed.
    pub failed_allocations: u64,
    /// Origin of freed pages; `None` if this would need more memory than permitted.
    pub free_origins: Option<FreeOrigins>,
    /// By thread, of the first 65 536.
    pub threads: BTreeMap<u32, ThreadTotals>,
    /// Nanoseconds of the first and the last event.
    pub span_ns: Option<(u64, u64)>,
    states: Vec<TrackedState>,
    /// First frame and time of reading, where it changes: ascending by both.
    read_times: Vec<(u32, u64)>,
    /// When the last frame of the snapshot was read.
    scan_end_ns: u64,
}

impl TraceAccount {
    /// Nothing counted yet. `snapshot` ascends, as it is stored.
    pub fn new(head: &TraceHeader, snapshot: &[FrameRun]) -> TraceAccount {
        let zones = head.zones.iter().map(|zone| u64::from(zone.first) + u64::from(zone.spanned)).max();
        let runs = snapshot.last().map(|run| u64::from(run.pfn) + u64::from(run.frames));
        let frames = usize::try_from(zones.max(runs).unwrap_or(0)).unwrap_or(usize::MAX);
        let keeps_states = frames <= FRAMES_MAX;
        let mut states = vec![TrackedState::Unknown; if keeps_states { frames } else { 0 }];
        let mut read: Vec<(u32, u64)> = Vec::new();
        for run in snapshot {
            let state = match run.state {
                FrameState::Free => TrackedState::Free,
                FrameState::Kernel | FrameState::User => TrackedState::InUseBefore,
                FrameState::Unknown | FrameState::Hole => TrackedState::Unknown,
            };
            states
                .iter_mut()
                .skip(run.pfn as usize)
                .take(run.frames as usize)
                .for_each(|place| *place = state);
            if read.last().is_none_or(|&(_, at_ns)| at_ns != run.read_ns) {
                read.push((run.pfn, run.read_ns));
            }
        }
        TraceAccount {
            free_origins: keeps_states.then(FreeOrigins::default),
            states,
            scan_end_ns: read.last().map_or(0, |&(_, at_ns)| at_ns),
            read_times: read,
            ..TraceAccount::default()
        }
    }

    /// Counts events.
    pub fn add(&mut self, events: &[TraceEvent]) {
        for event in events {
            let first_ns = self.span_ns.map_or(event.time_ns, |(first_ns, _)| first_ns);
            self.span_ns = Some((first_ns, event.time_ns));
            match event.kind {
                TraceEventKind::Alloc { pfn: None, .. } => self.failed_allocations += 1,
                TraceEventKind::Alloc { pfn: Some(pfn), order, migratetype, .. } => {
                    let pages = block_pages(order);
                    self.allocated.entry((order, migratetype)).or_default().add(pages);
                    self.add_to_thread(event.tid, pages, |thread| &mut thread.allocated);
                    self.record_allocation(pfn, order, event.time_ns);
                }
                TraceEventKind::Free { pfn, order } => {
                    let pages = block_pages(order);
                    self.freed_by_order.entry(order).or_default().add(pages);
                    self.add_to_thread(event.tid, pages, |thread| &mut thread.freed);
                    self.record_free(pfn, order, event.time_ns);
                }
                _ => {}
            }
        }
    }

    /// The threads with the most events, the busiest first.
    pub fn busiest_threads(&self, count_max: usize) -> Vec<(u32, ThreadTotals)> {
        let mut threads: Vec<(u32, ThreadTotals)> =
            self.threads.iter().map(|(&tid, &thread)| (tid, thread)).collect();
        threads.sort_by_key(|(tid, thread)| {
            (std::cmp::Reverse(thread.allocated.events + thread.freed.events), *tid)
        });
        threads.truncate(count_max);
        threads
    }

    fn add_to_thread(&mut self, tid: u32, pages: u64, part: fn(&mut ThreadTotals) -> &mut EventTotals) {
        if self.threads.len() < TRACKED_THREADS_MAX || self.threads.contains_key(&tid) {
            part(self.threads.entry(tid).or_default()).add(pages);
        }
    }

    /// Frames of a block whose states are stored.
    fn frame_states(&mut self, pfn: u32, order: u8) -> &mut [TrackedState] {
        let end = (u64::from(pfn) + block_pages(order)).min(self.states.len() as u64) as usize;
        self.states.get_mut(pfn as usize..end).unwrap_or_default()
    }

    /// Whether the snapshot read this frame after the event, so that it has what the event did.
    fn is_in_snapshot(&self, pfn: u32, at_ns: u64) -> bool {
        if at_ns >= self.scan_end_ns {
            return false;
        }
        let place = self.read_times.partition_point(|&(first, _)| first <= pfn);
        self.read_times[..place].last().is_some_and(|&(_, read_ns)| at_ns < read_ns)
    }

    fn record_allocation(&mut self, pfn: u32, order: u8, at_ns: u64) {
        if !self.is_in_snapshot(pfn, at_ns) {
            self.frame_states(pfn, order).fill(TrackedState::AllocatedInTrace);
        } else {
            // Freed again before the snapshot reached it: its allocation was observed nevertheless.
            let known = |state: &mut TrackedState| {
                if *state == TrackedState::InUseBefore {
                    *state = TrackedState::AllocatedInTrace;
                }
            };
            self.frame_states(pfn, order).iter_mut().for_each(known);
        }
    }

    fn record_free(&mut self, pfn: u32, order: u8, at_ns: u64) {
        // Frees before the snapshot reached the frame are no error of the snapshot.
        if self.is_in_snapshot(pfn, at_ns) {
            return;
        }
        let mut origins = self.free_origins.unwrap_or_default();
        for state in self.frame_states(pfn, order) {
            match state {
                TrackedState::Unknown => origins.unknown += 1,
                TrackedState::Free => origins.allocated_untraced += 1,
                TrackedState::InUseBefore => origins.in_use_before += 1,
                TrackedState::AllocatedInTrace => origins.allocated_in_trace += 1,
            }
            *state = TrackedState::Free;
        }
        self.free_origins = self.free_origins.map(|_| origins);
    }
}

/// Base pages of a block; of an order that no kernel has, none.
fn block_pages(order: u8) -> u64 {
    if usize::from(order) < ORDER_COUNT { 1 << order } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::NodeId;
    use pagelab_model::alloc_trace::TraceZone;
    use pagelab_model::free_areas::ZoneKey;

    fn head(frames: u32) -> TraceHeader {
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let (watermarks, pcp_batch_high) = ([0; 3], [0; 2]);
        let zone = TraceZone {
            key,
            first: 0,
            spanned: frames,
            managed: 0,
            watermarks,
            pcp_batch_high,
            pcp_counts: vec![],
            lowmem_reserve: vec![],
        };
        TraceHeader { zones: vec![zone], ..TraceHeader::default() }
    }

    fn alloc(at_ns: u64, pfn: u32, order: u8) -> TraceEvent {
        let what = TraceEventKind::Alloc { pfn: Some(pfn), order, migratetype: 1, gfp_flags: 0 };
        TraceEvent { time_ns: at_ns, tid: 7, cpu: 0, kind: what }
    }

    fn free(at_ns: u64, pfn: u32, order: u8) -> TraceEvent {
        TraceEvent { time_ns: at_ns, tid: 8, cpu: 0, kind: TraceEventKind::Free { pfn, order } }
    }

    #[test]
    fn frees_are_told_by_what_was_known_of_their_frames() {
        let run = |pfn, frames, was, read_ns| FrameRun { pfn, frames, state: was, read_ns };
        let snapshot = [
            run(0, 16, FrameState::Free, 100),
            run(16, 16, FrameState::User, 100),
            run(32, 16, FrameState::Unknown, 200),
            run(48, 16, FrameState::Kernel, 200),
        ];
        let mut account = TraceAccount::new(&head(64), &snapshot);
        account.add(&[
            // Before its frames were read: the snapshot has it.
            free(50, 16, 2),
            alloc(60, 48, 1),
            // A huge page in parts.
            alloc(300, 0, 3),
            free(310, 0, 2),
            free(311, 4, 2),
            free(320, 20, 1),
            free(330, 32, 0),
            free(340, 8, 1),
            free(350, 48, 1),
            // Twice, and beyond all memory.
            free(360, 48, 0),
            free(370, 70, 3),
        ]);
        let freed = account.free_origins.unwrap();
        assert_eq!(
            freed,
            FreeOrigins {
                allocated_in_trace: 8 + 2,
                in_use_before: 2,
                unknown: 1,
                allocated_untraced: 2 + 1
            }
        );
        assert_eq!(freed.untraced_share(), Some(4.0 / 16.0));
        assert_eq!(account.span_ns, Some((50, 370)));
        assert_eq!(account.allocated[&(3, 1)], EventTotals { events: 1, pages: 8 });
        assert_eq!(account.freed_by_order[&2], EventTotals { events: 3, pages: 12 });
        assert_eq!(account.busiest_threads(1)[0].0, 8);
    }

    #[test]
    fn orders_and_frames_that_no_machine_has_take_no_memory() {
        let mut account = TraceAccount::new(&head(u32::MAX), &[]);
        account.add(&[alloc(1, u32::MAX, 255), free(2, 0, 64), free(3, u32::MAX - 1, 20)]);
        assert_eq!((account.free_origins, account.states.len()), (None, 0));
        let mut small = TraceAccount::new(&head(8), &[]);
        small.add(&[alloc(1, 4, 63), free(2, 4, 200), free(3, 7, 0)]);
        assert_eq!(small.free_origins, Some(FreeOrigins { allocated_in_trace: 1, ..FreeOrigins::default() }));
        assert_eq!(FreeOrigins::default().untraced_share(), None);
    }
}
