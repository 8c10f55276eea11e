//! What a trace of the page allocator holds: events by kind, pages by order and migratetype, threads, and
//! holes, which are frees of frames that nobody was seen to take.

use std::collections::BTreeMap;

use pagelab_model::alloc_trace::{TraceEvent, TraceHead, TraceRun, TraceWhat, Was};

/// Frames whose state is kept at most, in bytes: 1 TiB at 4 KiB. Beyond it holes are not looked for.
pub const FRAMES_MAX: usize = 1 << 28;

/// Threads that are told apart; events of more are counted as of the others.
const THREADS_MAX: usize = 1 << 16;

/// Orders that are counted apart; a kernel's largest is far below.
const ORDERS: usize = 64;

/// What is known of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// Nothing: neither the snapshot nor the trace says.
    Unknown,
    /// Free.
    Free,
    /// In use since before the trace.
    Before,
    /// In use, as the trace says.
    Seen,
}

/// Events and pages of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many events.
    pub events: u64,
    /// Their base pages in sum: 2^order each.
    pub pages: u64,
}

impl Amount {
    fn add(&mut self, pages: u64) {
        self.events += 1;
        self.pages = self.pages.saturating_add(pages);
    }
}

/// Where freed pages came from, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Taken in the trace.
    pub seen: u64,
    /// In use when the trace began, by the snapshot.
    pub before: u64,
    /// The snapshot could not tell: pages without any flag, such as stacks and pages on per-CPU lists.
    pub unknown: u64,
    /// Last known as free: somebody took them unseen. Targets of migration and bulk allocations have no
    /// event.
    pub free: u64,
}

impl Freed {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.seen + self.before + self.unknown + self.free
    }

    /// Share of the frees of which neither the snapshot nor the trace knows the taking; `None` without a
    /// free.
    pub fn holes(&self) -> Option<f64> {
        (self.all() > 0).then(|| (self.unknown + self.free) as f64 / self.all() as f64)
    }
}

/// A thread's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// What it allocated.
    pub taken: Amount,
    /// What it freed.
    pub freed: Amount,
}

/// Counts over a trace, event by event in their order.
pub struct Account {
    /// Allocations by order and migratetype.
    pub taken: BTreeMap<(u8, u8), Amount>,
    /// Frees by order.
    pub freed_by_order: BTreeMap<u8, Amount>,
    /// Allocations that failed.
    pub failed: u64,
    /// Where freed pages came from; `None` where more memory would be needed than is taken here.
    pub freed: Option<Freed>,
    /// By thread.
    pub threads: BTreeMap<u32, Thread>,
    /// Threads beyond those.
    pub other_threads: Thread,
    /// Nanoseconds of the first and the last event.
    pub span_ns: Option<(u64, u64)>,
    states: Vec<State>,
    /// First frame and time of reading, where it changes: ascending by both.
    read: Vec<(u32, u64)>,
    /// When the last frame of the snapshot was read.
    scanned_ns: u64,
}

impl Account {
    /// Nothing counted yet. `snapshot` ascends, as it is stored.
    pub fn new(head: &TraceHead, snapshot: &[TraceRun]) -> Account {
        let zones = head.zones.iter().map(|zone| u64::from(zone.first) + u64::from(zone.spanned)).max();
        let runs = snapshot.last().map(|run| u64::from(run.pfn) + u64::from(run.frames));
        let frames = usize::try_from(zones.max(runs).unwrap_or(0)).unwrap_or(usize::MAX);
        let is_kept = frames <= FRAMES_MAX;
        let mut states = vec![State::Unknown; if is_kept { frames } else { 0 }];
        let mut read: Vec<(u32, u64)> = Vec::new();
        for run in snapshot {
            let state = match run.was {
                Was::Free => State::Free,
                Was::Kernel | Was::User => State::Before,
                Was::Unknown | Was::Hole => State::Unknown,
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
        Account {
            taken: BTreeMap::new(),
            freed_by_order: BTreeMap::new(),
            failed: 0,
            freed: is_kept.then(Freed::default),
            threads: BTreeMap::new(),
            other_threads: Thread::default(),
            span_ns: None,
            states,
            scanned_ns: read.last().map_or(0, |&(_, at_ns)| at_ns),
            read,
        }
    }

    /// Counts events.
    pub fn add(&mut self, events: &[TraceEvent]) {
        for event in events {
            let first_ns = self.span_ns.map_or(event.at_ns, |(first_ns, _)| first_ns);
            self.span_ns = Some((first_ns, event.at_ns));
            match event.what {
                TraceWhat::Alloc { pfn: None, .. } => self.failed += 1,
                TraceWhat::Alloc { pfn: Some(pfn), order, migratetype, .. } => {
                    let pages = pages(order);
                    self.taken.entry((order, migratetype)).or_default().add(pages);
                    self.thread(event.tid).taken.add(pages);
                    self.take(pfn, order, event.at_ns);
                }
                TraceWhat::Free { pfn, order } => {
                    let pages = pages(order);
                    self.freed_by_order.entry(order).or_default().add(pages);
                    self.thread(event.tid).freed.add(pages);
                    self.free(pfn, order, event.at_ns);
                }
                _ => {}
            }
        }
    }

    /// The threads with the most events, the busiest first.
    pub fn busiest(&self, most: usize) -> Vec<(u32, Thread)> {
        let mut threads: Vec<(u32, Thread)> =
            self.threads.iter().map(|(&tid, &thread)| (tid, thread)).collect();
        threads.sort_by_key(|(tid, thread)| {
            (std::cmp::Reverse(thread.taken.events + thread.freed.events), *tid)
        });
        threads.truncate(most);
        threads
    }

    fn thread(&mut self, tid: u32) -> &mut Thread {
        if self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&tid) {
            return &mut self.other_threads;
        }
        self.threads.entry(tid).or_default()
    }

    /// The frames of a block, as far as their states are kept.
    fn frames(&mut self, pfn: u32, order: u8) -> &mut [State] {
        let end = (u64::from(pfn) + pages(order)).min(self.states.len() as u64) as usize;
        self.states.get_mut(pfn as usize..end).unwrap_or_default()
    }

    /// Whether the snapshot read this frame after the event, so that it has what the event did.
    fn is_in_snapshot(&self, pfn: u32, at_ns: u64) -> bool {
        if at_ns >= self.scanned_ns {
            return false;
        }
        let place = self.read.partition_point(|&(first, _)| first <= pfn);
        place
            .checked_sub(1)
            .and_then(|place| self.read.get(place))
            .is_some_and(|&(_, read_ns)| at_ns < read_ns)
    }

    fn take(&mut self, pfn: u32, order: u8, at_ns: u64) {
        if !self.is_in_snapshot(pfn, at_ns) {
            self.frames(pfn, order).fill(State::Seen);
        } else {
            // Freed again before the snapshot came by: its taking was seen all the same.
            let known = |state: &mut State| {
                if *state == State::Before {
                    *state = State::Seen;
                }
            };
            self.frames(pfn, order).iter_mut().for_each(known);
        }
    }

    fn free(&mut self, pfn: u32, order: u8, at_ns: u64) {
        // What was freed before the snapshot came by cannot be held against it.
        if self.is_in_snapshot(pfn, at_ns) {
            return;
        }
        let mut found = Freed::default();
        for state in self.frames(pfn, order) {
            match state {
                State::Unknown => found.unknown += 1,
                State::Free => found.free += 1,
                State::Before => found.before += 1,
                State::Seen => found.seen += 1,
            }
            *state = State::Free;
        }
        if let Some(freed) = &mut self.freed {
            freed.seen += found.seen;
            freed.before += found.before;
            freed.unknown += found.unknown;
            freed.free += found.free;
        }
    }
}

/// Base pages of a block; of an order that no kernel has, none.
fn pages(order: u8) -> u64 {
    if usize::from(order) < ORDERS { 1 << order } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::NodeId;
    use pagelab_model::alloc_trace::TraceZone;
    use pagelab_model::free_areas::ZoneKey;

    fn head(frames: u32) -> TraceHead {
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let (marks, per_cpu) = ([0; 3], [0; 2]);
        let zone = TraceZone {
            key,
            first: 0,
            spanned: frames,
            managed: 0,
            marks,
            per_cpu,
            kept: vec![],
            reserves: vec![],
        };
        TraceHead { zones: vec![zone], ..TraceHead::default() }
    }

    fn alloc(at_ns: u64, pfn: u32, order: u8) -> TraceEvent {
        let what = TraceWhat::Alloc { pfn: Some(pfn), order, migratetype: 1, gfp: 0 };
        TraceEvent { at_ns, tid: 7, cpu: 0, what }
    }

    fn free(at_ns: u64, pfn: u32, order: u8) -> TraceEvent {
        TraceEvent { at_ns, tid: 8, cpu: 0, what: TraceWhat::Free { pfn, order } }
    }

    #[test]
    fn frees_are_told_by_what_was_known_of_their_frames() {
        let run = |pfn, frames, was, read_ns| TraceRun { pfn, frames, was, read_ns };
        let snapshot = [
            run(0, 16, Was::Free, 100),
            run(16, 16, Was::User, 100),
            run(32, 16, Was::Unknown, 200),
            run(48, 16, Was::Kernel, 200),
        ];
        let mut account = Account::new(&head(64), &snapshot);
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
        let freed = account.freed.unwrap();
        assert_eq!(freed, Freed { seen: 8 + 2, before: 2, unknown: 1, free: 2 + 1 });
        assert_eq!(freed.holes(), Some(4.0 / 16.0));
        assert_eq!(account.span_ns, Some((50, 370)));
        assert_eq!(account.taken[&(3, 1)], Amount { events: 1, pages: 8 });
        assert_eq!(account.freed_by_order[&2], Amount { events: 3, pages: 12 });
        assert_eq!(account.busiest(1)[0].0, 8);
    }

    #[test]
    fn orders_and_frames_that_no_machine_has_take_no_memory() {
        let mut account = Account::new(&head(u32::MAX), &[]);
        account.add(&[alloc(1, u32::MAX, 255), free(2, 0, 64), free(3, u32::MAX - 1, 20)]);
        assert_eq!((account.freed, account.states.len()), (None, 0));
        let mut small = Account::new(&head(8), &[]);
        small.add(&[alloc(1, 4, 63), free(2, 4, 200), free(3, 7, 0)]);
        assert_eq!(small.freed, Some(Freed { seen: 1, ..Freed::default() }));
        assert_eq!(Freed::default().holes(), None);
    }
}
