//! Tests of replays of simulated traces, whose result is known.

use std::collections::HashMap;

use pagelab_model::NodeId;
use pagelab_model::alloc_trace::{FrameRun, FrameState, TraceEvent, TraceEventKind, TraceHeader, TraceZone};
use pagelab_model::free_areas::{BuddyInfo, ZoneKey};
use pagelab_model::random::SplitMix64;

use super::snapshot::ReplaySnapshot;
use super::types::{ReplayStats, ZoneSelection};
use super::*;
use crate::policies::{AllocationTypeLists, GroupByMobility, SingleList};

const MS: u64 = 1_000_000;

fn trace_zone(name: &str, first: u32, spanned: u32, per_cpu: [u32; 2]) -> TraceZone {
    TraceZone {
        key: ZoneKey { node: NodeId(0), zone: name.to_owned() },
        first,
        spanned,
        managed: spanned,
        watermarks: [8, 12, 16],
        pcp_batch_high: per_cpu,
        pcp_counts: vec![0, 0],
        lowmem_reserve: vec![0, 16],
    }
}

fn trace_head(per_cpu: [u32; 2]) -> TraceHeader {
    TraceHeader {
        kernel: "5.4.0".to_owned(),
        page_bytes: 4096,
        max_order: 8,
        pageblock_order: 6,
        cpus: 2,
        zones: vec![trace_zone("DMA", 1, 1023, per_cpu), trace_zone("Normal", 1024, 15 * 1024, per_cpu)],
        migratetypes: Vec::new(),
        began: 0,
        ..TraceHeader::default()
    }
}

/// A machine whose memory is the simulator's.
struct TracedMachine {
    memory: Memory<GroupByMobility>,
    keys: Vec<ZoneKey>,
    random: SplitMix64,
    live: Vec<(Frame, u8)>,
    events: Vec<TraceEvent>,
    samples: Vec<(u64, BuddyInfo)>,
    at_ns: u64,
}

impl TracedMachine {
    fn new(head: &TraceHeader, seed: u64) -> TracedMachine {
        let snapshot = ReplaySnapshot::new(head, &snapshot_runs(head, FrameState::Free)).unwrap();
        let (setups, begins) = snapshot.initial_zones();
        TracedMachine {
            memory: Memory::with_initial_state(setups, &GroupByMobility, begins).unwrap(),
            keys: head.zones.iter().map(|zone| zone.key.clone()).collect(),
            random: SplitMix64::new(seed),
            live: Vec::new(),
            events: Vec::new(),
            samples: Vec::new(),
            at_ns: 0,
        }
    }

    fn record_event(&mut self, cpu: u16, what: TraceEventKind) {
        self.events.push(TraceEvent { time_ns: self.at_ns, tid: 7 + u32::from(cpu), cpu, kind: what });
    }

    fn run_step(&mut self, goal: u64) {
        self.at_ns += 1000;
        let cpu = self.random.next_below(2) as u16;
        if self.live.is_empty() || self.random.next_below(100) < goal {
            let order = if self.random.next_below(10) < 8 { 0 } else { self.random.next_below(7) as u8 };
            let migratetype = [1, 1, 1, 0, 2][self.random.next_below(5) as usize];
            let kind = AllocationType::from_index(migratetype).unwrap();
            let mut request = Request {
                order,
                alloc_type: kind,
                zone_index: 2,
                node: 0,
                cpu,
                watermark: Watermark::NoWatermark,
                can_fragment: true,
            };
            // Some requests permit only the low zone.
            if self.random.next_below(40) == 0 {
                request.zone_index = 0;
            }
            let Some((_, taken)) = self.memory.allocate_block(&request).unwrap() else { return };
            if let Some(stolen) = taken.fallback {
                let Fallback {
                    frame,
                    order: taken_order,
                    alloc_list: wanted,
                    fallback_list: from,
                    changes_ownership: owns,
                } = stolen;
                self.record_event(
                    cpu,
                    TraceEventKind::Fallback {
                        pfn: frame.number(),
                        alloc_order: order,
                        fallback_order: taken_order,
                        alloc_migratetype: wanted,
                        fallback_migratetype: from,
                        change_ownership: owns,
                    },
                );
            }
            self.live.push((taken.frame, order));
            let gfp = if request.zone_index == 0 { 1 } else { 8 };
            self.record_event(
                cpu,
                TraceEventKind::Alloc { pfn: Some(taken.frame.number()), order, migratetype, gfp_flags: gfp },
            );
        } else {
            let number = self.random.next_below(self.live.len() as u64) as usize;
            let (frame, order) = self.live.swap_remove(number);
            self.memory.free_block(cpu, frame).unwrap();
            self.record_event(cpu, TraceEventKind::Free { pfn: frame.number(), order });
        }
    }

    fn run_steps(&mut self, steps: u32) {
        for step in 0..steps {
            self.run_step(if step / 4000 % 2 == 0 { 70 } else { 40 });
            if step % 500 == 499 {
                self.samples.push((self.at_ns, self.free_blocks()));
            }
        }
    }

    fn free_blocks(&self) -> BuddyInfo {
        let zone = |(key, (_, kept)): (&ZoneKey, (_, &crate::pcp::PcpZone<GroupByMobility>))| ZoneFreeAreas {
            key: key.clone(),
            areas: FreeAreas::new(kept.zone().free_blocks().iter().map(|&n| u64::from(n)).collect()).unwrap(),
        };
        BuddyInfo { zones: self.keys.iter().zip(self.memory.zones()).map(zone).collect() }
    }

    /// Reading of one frame by a scan.
    fn page_state(&self, frame: Frame) -> FrameState {
        let (setup, kept) = self.memory.zones().find(|(setup, _)| setup.geometry.contains(frame)).unwrap();
        let zone = kept.zone();
        for order in 0..=setup.geometry.max_order {
            let at = setup.geometry.wrapping_offset_of(frame.align_down(order));
            if at < setup.geometry.end_offset() {
                let state = zone.free_lists().frame_state(at);
                if state.free_order().is_some_and(|is| is >= order) {
                    return FrameState::Free;
                }
                if let Some((_, kind)) = state.allocated_block().filter(|(is, _)| *is >= order) {
                    return if kind == AllocationType::Movable {
                        FrameState::User
                    } else {
                        FrameState::Kernel
                    };
                }
            }
        }
        FrameState::Unknown
    }
}

/// A snapshot of memory in one state.
fn snapshot_runs(head: &TraceHeader, was: FrameState) -> Vec<FrameRun> {
    let run = |zone: &TraceZone| FrameRun { pfn: zone.first, frames: zone.spanned, state: was, read_ns: 0 };
    head.zones.iter().map(run).collect()
}

/// Replays all events; returns the samples that the machine would have given.
fn replay_samples<P: Policy + Clone>(
    mut replay: Replay<P>,
    events: &[TraceEvent],
    samples: &[(u64, BuddyInfo)],
) -> (Vec<BuddyInfo>, Replay<P>) {
    let (mut from, mut found) = (0, Vec::new());
    for (at_ns, _) in samples {
        let to = events.partition_point(|event| event.time_ns <= *at_ns);
        replay.replay_events(&events[from..to]).unwrap();
        replay.validate().unwrap();
        found.push(replay.free_blocks_now());
        from = to;
    }
    replay.replay_events(&events[from..]).unwrap();
    (found, replay)
}

fn without_time(samples: &[(u64, BuddyInfo)]) -> Vec<BuddyInfo> {
    samples.iter().map(|(_, sample)| sample.clone()).collect()
}

/// Seconds without events are not simulated one by one: a trace may claim that it took centuries.
#[test]
fn an_event_at_the_end_of_time_is_reached() {
    let head = TraceHeader { kernel: "6.12.1".to_owned(), ..trace_head([7, 40]) };
    let mut machine = TracedMachine::new(&head, 5);
    machine.run_steps(2000);
    let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::Free)).unwrap();
    let mut replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
    let (last, before) = machine.events.split_last().unwrap();
    replay.replay_events(before).unwrap();
    replay.replay_events(&[TraceEvent { time_ns: u64::MAX, ..*last }]).unwrap();
    replay.validate().unwrap();
}

#[test]
fn a_trace_of_the_simulator_is_replayed_without_error() {
    let cases = [
        (1, [1, 1], "5.4.0"),
        (2, [7, 40], "5.4.0"),
        (3, [31, 200], "5.15.3"),
        (4, [7, 40], "6.1.0-56-cloud-amd64"),
        (5, [7, 40], "6.12.1"),
        (6, [31, 200], "6.18.44"),
    ];
    for (seed, per_cpu, kernel) in cases {
        let head = TraceHeader { kernel: kernel.to_owned(), ..trace_head(per_cpu) };
        let mut machine = TracedMachine::new(&head, seed);
        machine.run_steps(20_000);
        let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::Free)).unwrap();
        let replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
        // The first events are those at 1000 ns; none is before the snapshot.
        let (found, replay) = replay_samples(replay, &machine.events, &machine.samples);
        assert_eq!(found, without_time(&machine.samples), "seed {seed}");
        let account = replay.stats();
        assert_eq!(account.matched_frees, account.frees);
        assert_eq!((account.fallbacks, account.claims), (account.fallbacks_traced, account.claims_traced));
        assert!(account.fallbacks > 10 && account.events_before_snapshot == 0 && account.frees.events > 5000);
        assert_eq!(account.matched_permille(), Some(1000));
        let clean = ReplayStats {
            events: account.events,
            allocs: account.allocs,
            frees: account.frees,
            matched_frees: account.matched_frees,
            fallbacks: account.fallbacks,
            fallbacks_traced: account.fallbacks_traced,
            claims: account.claims,
            claims_traced: account.claims_traced,
            ..ReplayStats::default()
        };
        assert_eq!(account, clean);
    }
}

/// The scan takes 2 ms while the machine runs. Then each object of the machine is one of the replay, and
/// everything else is free but the pages on per-CPU lists.
#[test]
fn a_snapshot_that_took_a_while_is_set_right() {
    let head = trace_head([1, 1]);
    let mut machine = TracedMachine::new(&head, 5);
    machine.run_steps(6000);
    machine.events.clear();
    machine.samples.clear();
    machine.at_ns = 0;
    let mut runs: Vec<FrameRun> = Vec::new();
    for (step, pfn) in (1..16 * 1024u32).enumerate() {
        if step % 8 == 0 {
            machine.run_step(50);
        }
        let read_ns = machine.at_ns;
        let was = machine.page_state(Frame::new(pfn));
        match runs.last_mut() {
            Some(run) if run.state == was && run.read_ns == read_ns => run.frames += 1,
            _ => runs.push(FrameRun { pfn, frames: 1, state: was, read_ns }),
        }
    }
    let complete = machine.at_ns;
    let (then, live) = (machine.free_blocks(), machine.live.clone());
    machine.run_steps(8000);
    let mut snapshot = ReplaySnapshot::new(&head, &runs).unwrap();
    snapshot.observe_events(&machine.events);
    assert_eq!((snapshot.complete_ns(), snapshot.uncovered_frames()), (complete, 0));
    let replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
    replay.validate().unwrap();
    for &(frame, order) in &live {
        let at = (frame - snapshot.base_frame) as usize;
        let expected = Frame::range(frame..frame + (1 << order));
        assert!(expected.eq(replay.frame_map[at..at + (1 << order)].iter().copied()), "{frame:#x}");
    }
    let apart = |ours: &BuddyInfo, theirs: &BuddyInfo| ours.free_pages().abs_diff(theirs.free_pages());
    assert!(apart(&replay.free_blocks_now(), &then) < 64, "{:?} {then:?}", replay.free_blocks_now());
    let (found, replay) = replay_samples(replay, &machine.events, &machine.samples);
    // The order of the lists is unknown, and owners of pageblocks are inferred: the results are close, not
    // equal.
    for ((at, theirs), ours) in machine.samples.iter().zip(&found) {
        // Per-CPU lists hold up to eight pageblocks.
        assert!(apart(ours, theirs) <= 8 << 6, "at {at}: {ours:?} {theirs:?}");
        let large = |info: &BuddyInfo| {
            info.zones
                .iter()
                .map(|zone| zone.areas.free_pages_from_order(pagelab_model::Order(6)))
                .sum::<u128>() as f64
        };
        let error = (large(theirs) - large(ours)).abs() / theirs.free_pages() as f64;
        assert!(error < 0.1, "at {at}: {error}");
    }
    let account = replay.stats();
    assert_eq!(account.matched_frees.events, account.frees.events, "{account:?}");
    assert!(account.joins > 0 && account.events_before_snapshot > 1000, "{account:?}");
}

/// Frames freed during the scan are on per-CPU lists as far as the reading of free memory says so, the latest
/// first, and are allocated from there.
#[test]
fn what_is_freed_during_the_scan_lies_on_lists_as_far_as_free_memory_says() {
    let mut head = trace_head([8, 256]);
    "6.18.0".clone_into(&mut head.kernel);
    let at =
        |at_ns: u64, cpu: u16, what: TraceEventKind| TraceEvent { time_ns: at_ns, tid: 1, cpu, kind: what };
    let free =
        |number: u32| at(u64::from(number) + 1, 1, TraceEventKind::Free { pfn: 2048 + number, order: 0 });
    let mut runs = snapshot_runs(&head, FrameState::User);
    runs.last_mut().unwrap().frames -= 1;
    let last = runs.last().map(|run| run.pfn + run.frames).unwrap();
    runs.push(FrameRun { pfn: last, frames: 1, state: FrameState::User, read_ns: 1000 });
    // Of 100 freed frames 30 are free in the kernel's counters; a later reading is not used.
    let reading = |at_ns: u64, frames: u64| {
        let areas = FreeAreas::new(vec![frames, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let zone = |key: &ZoneKey, areas: FreeAreas| ZoneFreeAreas { key: key.clone(), areas };
        let empty = FreeAreas::new(vec![0; 9]).unwrap();
        let zones = vec![zone(&head.zones[0].key, empty), zone(&head.zones[1].key, areas)];
        pagelab_model::alloc_trace::FreeAreasSample { at_ns, free: BuddyInfo { zones } }
    };
    let begun = |samples: &[_]| {
        let mut snapshot = ReplaySnapshot::new(&head, &runs).unwrap();
        snapshot.observe_events(&(0..100).map(free).collect::<Vec<_>>());
        snapshot.infer_pcp_lists(samples);
        snapshot
    };
    let snapshot = begun(&[reading(10, 90), reading(990, 30), reading(1001, 5)]);
    assert_eq!(snapshot.pcp_frames(), 70);
    let mut replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
    replay.validate().unwrap();
    assert_eq!((replay.free_blocks_now().free_pages(), replay.pcp_frames()), (30, 70));
    // The list's `high` has risen with what it holds: nothing goes back. The block that was freed last is
    // first.
    let alloc = TraceEventKind::Alloc { pfn: Some(2147), order: 0, migratetype: 1, gfp_flags: 8 };
    let events = [at(1100, 1, alloc), at(1200, 1, TraceEventKind::Free { pfn: 2147, order: 0 })];
    replay.replay_events(&events[..1]).unwrap();
    let allocated = Frame::new(2147);
    assert_eq!(replay.frame_map[(allocated - snapshot.base_frame) as usize], allocated);
    replay.replay_events(&events[1..]).unwrap();
    assert_eq!((replay.free_blocks_now().free_pages(), replay.pcp_frames()), (30, 70));
    replay.validate().unwrap();
    // As many free frames as were read, or no reading before the end of the scan: nothing is put on lists.
    for samples in [vec![reading(990, 100)], vec![reading(1001, 30)], Vec::new()] {
        assert_eq!(begun(&samples).pcp_frames(), 0, "{samples:?}");
    }
}

/// Expected counts of a replay from a model of hash maps only: no simulated memory, no order of the objects
/// of the snapshot. It has those counts that do not depend on where objects are.
#[derive(Default)]
struct NaiveReplay {
    /// Object by traced frame; 0: an object of the snapshot.
    objects: HashMap<u32, u64>,
    /// Moved objects by order that can be guessed.
    moved: HashMap<u8, u64>,
    compacting: Vec<u32>,
    account: ReplayStats,
    next: u64,
}

impl NaiveReplay {
    fn replay_event(&mut self, event: &TraceEvent) {
        self.account.events += 1;
        match event.kind {
            TraceEventKind::Alloc { pfn: Some(pfn), order, .. } => {
                self.account.allocs.add_block(order);
                let frames = pfn..pfn + (1 << order);
                if frames.clone().any(|pfn| self.objects.contains_key(&pfn)) {
                    self.account.reallocs.add_block(order);
                }
                self.next += 1;
                frames.for_each(|pfn| {
                    self.objects.insert(pfn, self.next);
                });
            }
            TraceEventKind::Free { pfn, order } => self.replay_free(pfn, order, event.tid),
            TraceEventKind::CompactionBegin => self.compacting.push(event.tid),
            TraceEventKind::CompactionEnd => self.compacting.retain(|tid| *tid != event.tid),
            _ => {}
        }
    }

    fn replay_free(&mut self, pfn: u32, order: u8, tid: u32) {
        let account = &mut self.account;
        account.frees.add_block(order);
        let size = 1usize << order;
        let known = (pfn..pfn + size as u32).filter(|pfn| self.objects.remove(pfn).is_some()).count();
        let compacts = self.compacting.contains(&tid);
        let guess = self.moved.entry(order).or_default();
        match known {
            0 if compacts => account.returned_frees.add_block(order),
            0 if *guess > 0 => {
                *guess -= 1;
                account.guessed_frees.add_block(order);
            }
            0 => account.unknown_frees.add_block(order),
            known if known < size => account.partly_matched_frees.add_block(order),
            _ if compacts => {
                *guess += 1;
                account.migrated_frees.add_block(order);
            }
            _ => account.matched_frees.add_block(order),
        }
    }
}

/// A trace with all defects: missing events, compaction, and frees of parts of objects.
fn trace_with_holes(seed: u64) -> (TraceHeader, Vec<TraceEvent>) {
    let head = trace_head([7, 40]);
    let mut machine = TracedMachine::new(&head, seed);
    machine.run_steps(20_000);
    let mut random = SplitMix64::new(seed);
    let mut events = Vec::new();
    for event in machine.events {
        match (event.kind, random.next_below(100)) {
            (_, 0) => {}
            (TraceEventKind::Free { pfn, order }, 1..20) if order > 0 => {
                let half = |pfn| TraceEvent { kind: TraceEventKind::Free { pfn, order: order - 1 }, ..event };
                events.extend([half(pfn + (1 << (order - 1))), half(pfn)]);
            }
            // The allocation of the upper half of an object is not in the trace.
            (TraceEventKind::Alloc { pfn, order, migratetype, gfp_flags: gfp }, 1..5) if order > 0 => {
                let what = TraceEventKind::Alloc { pfn, order: order - 1, migratetype, gfp_flags: gfp };
                events.push(TraceEvent { kind: what, ..event });
            }
            // Only whole objects are moved.
            (TraceEventKind::Free { order: 0, .. }, 1..4) => {
                let of = |what| TraceEvent { kind: what, tid: 99, ..event };
                events.extend([
                    of(TraceEventKind::CompactionBegin),
                    of(event.kind),
                    of(TraceEventKind::CompactionEnd),
                ]);
            }
            _ => events.push(event),
        }
    }
    (head, events)
}

#[test]
fn the_account_is_that_of_a_table_of_hash_maps() {
    for seed in 1..=4 {
        let (head, events) = trace_with_holes(seed);
        let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::Free)).unwrap();
        let mut replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
        let mut naive = NaiveReplay::default();
        for event in &events {
            replay.replay_events(std::slice::from_ref(event)).unwrap();
            naive.replay_event(event);
        }
        replay.validate().unwrap();
        let (ours, theirs) = (replay.stats(), naive.account);
        assert_eq!(ours.unplaced_allocs.events, 0, "memory was short: nothing to compare");
        let words = |a: &ReplayStats| {
            [
                a.allocs,
                a.reallocs,
                a.frees,
                a.matched_frees,
                a.partly_matched_frees,
                a.migrated_frees,
                a.guessed_frees,
                a.returned_frees,
                a.unknown_frees,
            ]
        };
        assert_eq!(words(&ours), words(&theirs), "seed {seed}");
        let all_named = [
            &ours.matched_frees,
            &ours.partly_matched_frees,
            &ours.migrated_frees,
            &ours.guessed_frees,
            &ours.unknown_frees,
        ];
        assert!(all_named.iter().all(|tally| tally.events > 0), "{ours:?}");
        assert!(ours.splits > 0 && ours.reallocs.events > 0, "{ours:?}");
        // Each frame of the table and each moved one is allocated; the others are free.
        let total: u64 = snapshot.zones.iter().map(|part| u64::from(part.config.geometry.frames)).sum();
        let free = replay.free_blocks_now().free_pages() as u64 + replay.pcp_frames();
        let held = 1; // Frame 0 is no memory.
        let moved: u64 = naive.moved.iter().map(|(order, count)| count << order).sum();
        assert_eq!(free + naive.objects.len() as u64 + moved + held, total, "seed {seed}");
    }
}

#[test]
fn the_same_trace_gives_the_same_account_under_each_policy() {
    fn run<P: Policy + Clone>(policy: P, options: ZoneSelection) -> (Vec<BuddyInfo>, ReplayStats) {
        let (head, events) = trace_with_holes(3);
        let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::Free)).unwrap();
        let replay = Replay::new(&snapshot, &policy, options).unwrap();
        let (found, replay) = replay_samples(
            replay,
            &events,
            &[(2 * MS, BuddyInfo::default()), (15 * MS, BuddyInfo::default())],
        );
        replay.validate().unwrap();
        (found, replay.stats())
    }
    for options in [ZoneSelection::Traced, ZoneSelection::GfpAllowed] {
        let mobility = run(GroupByMobility, options);
        assert_eq!(mobility, run(GroupByMobility, options));
        let (standard, two) = (run(SingleList, options), run(AllocationTypeLists::TwoTypes, options));
        assert_ne!(mobility.0, standard.0);
        assert_ne!(mobility.0, two.0);
        let same = [&mobility, &standard, &two].map(|(_, account)| (account.allocs, account.frees));
        assert!(same.iter().all(|of| *of == same[0]));
        assert_eq!((standard.1.fallbacks, standard.1.claims), (0, 0));
    }
}

fn trace_event(what: TraceEventKind) -> TraceEvent {
    TraceEvent { time_ns: 1_500_000_000, tid: 1, cpu: 0, kind: what }
}

fn alloc_event(pfn: u32, order: u8) -> TraceEvent {
    trace_event(TraceEventKind::Alloc { pfn: Some(pfn), order, migratetype: 1, gfp_flags: 8 })
}

#[test]
fn invalid_traces_are_refused_with_their_place() {
    let head = trace_head([1, 1]);
    let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::Free)).unwrap();
    let refused = |what: TraceEventKind| {
        let mut replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
        let misfit = replay.replay_events(&[alloc_event(2048, 0), trace_event(what)]).unwrap_err();
        assert_eq!(misfit.event, 1);
        misfit.to_string()
    };
    assert_eq!(
        refused(TraceEventKind::Free { pfn: 2049, order: 1 }),
        "event 1 at 1.500000000 s: no block of order 1 begins at frame 0x801"
    );
    assert!(
        refused(TraceEventKind::Free { pfn: 2048, order: 9 }).contains("order 9 is above the largest, 8")
    );
    assert!(refused(TraceEventKind::Free { pfn: 1 << 30, order: 0 }).contains("is in no zone"));
    assert!(refused(TraceEventKind::Free { pfn: u32::MAX, order: 0 }).contains("is in no zone"));
}

#[test]
fn a_head_or_a_snapshot_that_contradicts_itself_is_refused() {
    let refused = |change: &dyn Fn(&mut TraceHeader, &mut Vec<FrameRun>)| {
        let (mut head, mut runs) = (trace_head([1, 1]), snapshot_runs(&trace_head([1, 1]), FrameState::Free));
        change(&mut head, &mut runs);
        ReplaySnapshot::new(&head, &runs).unwrap_err().to_string()
    };
    assert!(refused(&|head, _| head.page_bytes = 12_288).contains("12288 bytes"));
    assert!(refused(&|head, _| head.zones.clear()).contains("no zone with memory"));
    assert!(refused(&|head, _| head.pageblock_order = 9).contains("order 9"));
    assert!(refused(&|head, _| head.max_order = 40).contains("order 40"));
    assert!(refused(&|head, _| head.zones[1].first = 900).contains("share pageblocks"));
    assert!(refused(&|head, _| head.zones[1].spanned = u32::MAX).contains("highest supported frame"));
    assert!(refused(&|_, runs| runs.swap(0, 1)).contains("run 1 of the snapshot"));
}

#[test]
fn memory_that_is_short_leaves_objects_out_and_says_so() {
    let mut head = trace_head([1, 1]);
    head.zones.truncate(1);
    let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::User)).unwrap();
    let mut replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
    // A frame that the snapshot found in use is allocated: it was freed first. Two of an order that does not
    // exist; one of them is freed.
    replay.replay_events(&[alloc_event(64, 0), alloc_event(128, 6), alloc_event(192, 3)]).unwrap();
    replay.replay_events(&[trace_event(TraceEventKind::Free { pfn: 128, order: 6 })]).unwrap();
    let account = replay.stats();
    assert_eq!((account.reallocs.frames, account.unplaced_allocs.events), (1 + 64 + 8, 0));
    replay.replay_events(&[alloc_event(256, 8)]).unwrap();
    replay.replay_events(&[trace_event(TraceEventKind::Free { pfn: 256, order: 7 })]).unwrap();
    replay.validate().unwrap();
    assert_eq!(replay.stats().unplaced_allocs.events + replay.stats().unplaced_frees.events, 0);
    let snapshot = ReplaySnapshot::new(&head, &snapshot_runs(&head, FrameState::Hole)).unwrap();
    let mut replay = Replay::new(&snapshot, &GroupByMobility, ZoneSelection::default()).unwrap();
    replay
        .replay_events(&[alloc_event(64, 3), trace_event(TraceEventKind::Free { pfn: 64, order: 2 })])
        .unwrap();
    let account = replay.stats();
    assert_eq!(
        (account.unplaced_allocs.frames, account.unplaced_frees.frames, account.unknown_frees.events),
        (8, 4, 0)
    );
}
