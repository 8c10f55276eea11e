//! Replays of traces that the simulator itself made: the answer is known.

use std::collections::HashMap;

use pagelab_model::NodeId;
use pagelab_model::alloc_trace::{TraceEvent, TraceHead, TraceRun, TraceWhat, TraceZone, Was};
use pagelab_model::free_areas::{BuddyInfo, ZoneKey};
use pagelab_model::seed::SplitMix64;

use super::start::Start;
use super::words::{Account, Options, Zones};
use super::*;
use crate::policy::{Lists, Mobility, Standard};

const MS: u64 = 1_000_000;

fn zone(name: &str, first: u32, spanned: u32, per_cpu: [u32; 2]) -> TraceZone {
    TraceZone {
        key: ZoneKey { node: NodeId(0), zone: name.to_owned() },
        first,
        spanned,
        managed: spanned,
        marks: [8, 12, 16],
        per_cpu,
        kept: vec![0, 0],
        reserves: vec![0, 16],
    }
}

fn head(per_cpu: [u32; 2]) -> TraceHead {
    TraceHead {
        kernel: "5.4.0".to_owned(),
        page_bytes: 4096,
        max_order: 8,
        block_order: 6,
        cpus: 2,
        zones: vec![zone("DMA", 1, 1023, per_cpu), zone("Normal", 1024, 15 * 1024, per_cpu)],
        migratetypes: Vec::new(),
        began: 0,
        ..TraceHead::default()
    }
}

/// A machine whose memory is the simulator's own.
struct Machine {
    memory: Memory<Mobility>,
    keys: Vec<ZoneKey>,
    random: SplitMix64,
    live: Vec<(u32, u8)>,
    events: Vec<TraceEvent>,
    samples: Vec<(u64, BuddyInfo)>,
    at_ns: u64,
}

impl Machine {
    fn new(head: &TraceHead, seed: u64) -> Machine {
        let start = Start::new(head, &all(head, Was::Free)).unwrap();
        let (setups, begins) = start.zones();
        Machine {
            memory: Memory::begin(setups, &Mobility, begins).unwrap(),
            keys: head.zones.iter().map(|zone| zone.key.clone()).collect(),
            random: SplitMix64::new(seed),
            live: Vec::new(),
            events: Vec::new(),
            samples: Vec::new(),
            at_ns: 0,
        }
    }

    fn say(&mut self, cpu: u16, what: TraceWhat) {
        self.events.push(TraceEvent { at_ns: self.at_ns, tid: 7 + u32::from(cpu), cpu, what });
    }

    fn step(&mut self, goal: u64) {
        self.at_ns += 1000;
        let cpu = self.random.below(2) as u16;
        if self.live.is_empty() || self.random.below(100) < goal {
            let order = if self.random.below(10) < 8 { 0 } else { self.random.below(7) as u8 };
            let migratetype = [1, 1, 1, 0, 2][self.random.below(5) as usize];
            let kind = Kind::of(migratetype).unwrap();
            let mut request =
                Request { order, kind, height: 2, node: 0, cpu, down: Down::ToNothing, may_mix: true };
            // Now and then something that only the low zone will do for.
            if self.random.below(40) == 0 {
                request.height = 0;
            }
            let Some((_, taken)) = self.memory.take(&request).unwrap() else { return };
            if let Some(stolen) = taken.stolen {
                let Stolen { frame, order: taken_order, wanted, from, owns } = stolen;
                self.say(cpu, TraceWhat::Fallback { pfn: frame, order, taken_order, wanted, from, owns });
            }
            self.live.push((taken.frame, order));
            let gfp = if request.height == 0 { 1 } else { 8 };
            self.say(cpu, TraceWhat::Alloc { pfn: Some(taken.frame), order, migratetype, gfp });
        } else {
            let number = self.random.below(self.live.len() as u64) as usize;
            let (pfn, order) = self.live.swap_remove(number);
            self.memory.free(cpu, pfn).unwrap();
            self.say(cpu, TraceWhat::Free { pfn, order });
        }
    }

    fn run(&mut self, steps: u32) {
        for step in 0..steps {
            self.step(if step / 4000 % 2 == 0 { 70 } else { 40 });
            if step % 500 == 499 {
                self.samples.push((self.at_ns, self.free()));
            }
        }
    }

    fn free(&self) -> BuddyInfo {
        let zone = |(key, (_, kept)): (&ZoneKey, (_, &crate::percpu::PerCpu<Mobility>))| ZoneFree {
            key: key.clone(),
            areas: FreeAreas::new(kept.zone().free_blocks().iter().map(|&n| u64::from(n)).collect()).unwrap(),
        };
        BuddyInfo { zones: self.keys.iter().zip(self.memory.zones()).map(zone).collect() }
    }

    /// What a scan of one frame would say.
    fn was(&self, pfn: u32) -> Was {
        let (setup, kept) = self.memory.zones().find(|(setup, _)| setup.shape.has(pfn)).unwrap();
        let zone = kept.zone();
        for order in 0..=setup.shape.max_order {
            let head = pfn & !((1 << order) - 1);
            let at = head.wrapping_sub(setup.shape.first);
            if at < setup.shape.frames {
                let state = zone.lists().state(at);
                if state.free_order().is_some_and(|is| is >= order) {
                    return Was::Free;
                }
                if let Some((_, kind)) = state.used_order().filter(|(is, _)| *is >= order) {
                    return if kind == Kind::Movable { Was::User } else { Was::Kernel };
                }
            }
        }
        Was::Unknown
    }
}

/// A snapshot of memory that is all alike.
fn all(head: &TraceHead, was: Was) -> Vec<TraceRun> {
    let run = |zone: &TraceZone| TraceRun { pfn: zone.first, frames: zone.spanned, was, read_ns: 0 };
    head.zones.iter().map(run).collect()
}

/// Replays all events; what the samples of the machine would have been.
fn replayed<P: Policy + Clone>(
    mut replay: Replay<P>,
    events: &[TraceEvent],
    samples: &[(u64, BuddyInfo)],
) -> (Vec<BuddyInfo>, Replay<P>) {
    let (mut from, mut found) = (0, Vec::new());
    for (at_ns, _) in samples {
        let to = events.partition_point(|event| event.at_ns <= *at_ns);
        replay.feed(&events[from..to]).unwrap();
        replay.validate().unwrap();
        found.push(replay.sample());
        from = to;
    }
    replay.feed(&events[from..]).unwrap();
    (found, replay)
}

fn without_time(samples: &[(u64, BuddyInfo)]) -> Vec<BuddyInfo> {
    samples.iter().map(|(_, sample)| sample.clone()).collect()
}

/// Seconds in which nothing happens are not gone through one by one: a trace may say that it took centuries.
#[test]
fn an_event_at_the_end_of_time_is_reached() {
    let head = TraceHead { kernel: "6.12.1".to_owned(), ..head([7, 40]) };
    let mut machine = Machine::new(&head, 5);
    machine.run(2000);
    let start = Start::new(&head, &all(&head, Was::Free)).unwrap();
    let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
    let (last, before) = machine.events.split_last().unwrap();
    replay.feed(before).unwrap();
    replay.feed(&[TraceEvent { at_ns: u64::MAX, ..*last }]).unwrap();
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
        let head = TraceHead { kernel: kernel.to_owned(), ..head(per_cpu) };
        let mut machine = Machine::new(&head, seed);
        machine.run(20_000);
        let start = Start::new(&head, &all(&head, Was::Free)).unwrap();
        let replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
        // The first events are those at 1000 ns; nothing lies before the snapshot.
        let (found, replay) = replayed(replay, &machine.events, &machine.samples);
        assert_eq!(found, without_time(&machine.samples), "seed {seed}");
        let account = replay.account();
        assert_eq!(account.matched, account.frees);
        assert_eq!((account.fallbacks, account.claims), (account.fallbacks_traced, account.claims_traced));
        assert!(account.fallbacks > 10 && account.before == 0 && account.frees.events > 5000);
        assert_eq!(account.matched_permille(), Some(1000));
        let clean = Account {
            events: account.events,
            allocs: account.allocs,
            frees: account.frees,
            matched: account.matched,
            fallbacks: account.fallbacks,
            fallbacks_traced: account.fallbacks_traced,
            claims: account.claims,
            claims_traced: account.claims_traced,
            ..Account::default()
        };
        assert_eq!(account, clean);
    }
}

/// The scan takes 2 ms while the machine goes on. Then each object of the machine is one of the replay, and
/// all else is free but what processors kept.
#[test]
fn a_snapshot_that_took_a_while_is_set_right() {
    let head = head([1, 1]);
    let mut machine = Machine::new(&head, 5);
    machine.run(6000);
    machine.events.clear();
    machine.samples.clear();
    machine.at_ns = 0;
    let mut runs: Vec<TraceRun> = Vec::new();
    for (step, pfn) in (1..16 * 1024u32).enumerate() {
        if step % 8 == 0 {
            machine.step(50);
        }
        let read_ns = machine.at_ns;
        let was = machine.was(pfn);
        match runs.last_mut() {
            Some(run) if run.was == was && run.read_ns == read_ns => run.frames += 1,
            _ => runs.push(TraceRun { pfn, frames: 1, was, read_ns }),
        }
    }
    let complete = machine.at_ns;
    let (then, live) = (machine.free(), machine.live.clone());
    machine.run(8000);
    let mut start = Start::new(&head, &runs).unwrap();
    start.observe(&machine.events);
    assert_eq!((start.complete_ns(), start.uncovered()), (complete, 0));
    let replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
    replay.validate().unwrap();
    for &(pfn, order) in &live {
        let at = (pfn - start.base()) as usize;
        assert!(
            (pfn..).zip(&replay.table[at..at + (1 << order)]).all(|(is, &entry)| is == entry),
            "{pfn:#x}"
        );
    }
    let apart = |ours: &BuddyInfo, theirs: &BuddyInfo| ours.free_pages().abs_diff(theirs.free_pages());
    assert!(apart(&replay.sample(), &then) < 64, "{:?} {then:?}", replay.sample());
    let (found, replay) = replayed(replay, &machine.events, &machine.samples);
    // The order of the lists is not known, and owners of pageblocks are inferred: much the same, not equal.
    for ((at, theirs), ours) in machine.samples.iter().zip(&found) {
        // Processors keep up to eight pageblocks, here and there.
        assert!(apart(ours, theirs) <= 8 << 6, "at {at}: {ours:?} {theirs:?}");
        let large = |info: &BuddyInfo| {
            info.zones.iter().map(|zone| zone.areas.pages_from(pagelab_model::Order(6))).sum::<u128>() as f64
        };
        let error = (large(theirs) - large(ours)).abs() / theirs.free_pages() as f64;
        assert!(error < 0.1, "at {at}: {error}");
    }
    let account = replay.account();
    assert_eq!(account.matched.events, account.frees.events, "{account:?}");
    assert!(account.joins > 0 && account.before > 1000, "{account:?}");
}

/// Frames that are freed while the scan runs lie on per-CPU lists as far as free memory says so, the latest
/// first, and are allocated from there.
#[test]
fn what_is_freed_during_the_scan_lies_on_lists_as_far_as_free_memory_says() {
    let mut head = head([8, 256]);
    "6.18.0".clone_into(&mut head.kernel);
    let at = |at_ns: u64, cpu: u16, what: TraceWhat| TraceEvent { at_ns, tid: 1, cpu, what };
    let free = |number: u32| at(u64::from(number) + 1, 1, TraceWhat::Free { pfn: 2048 + number, order: 0 });
    let mut runs = all(&head, Was::User);
    runs.last_mut().unwrap().frames -= 1;
    let last = runs.last().map(|run| run.pfn + run.frames).unwrap();
    runs.push(TraceRun { pfn: last, frames: 1, was: Was::User, read_ns: 1000 });
    // Of 100 freed frames 30 are free to the kernel's books; a later reading is not asked.
    let reading = |at_ns: u64, frames: u64| {
        let areas = FreeAreas::new(vec![frames, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let zone = |key: &ZoneKey, areas: FreeAreas| ZoneFree { key: key.clone(), areas };
        let empty = FreeAreas::new(vec![0; 9]).unwrap();
        let zones = vec![zone(&head.zones[0].key, empty), zone(&head.zones[1].key, areas)];
        pagelab_model::alloc_trace::TraceSample { at_ns, free: BuddyInfo { zones } }
    };
    let begun = |samples: &[_]| {
        let mut start = Start::new(&head, &runs).unwrap();
        start.observe(&(0..100).map(free).collect::<Vec<_>>());
        start.complete(samples);
        start
    };
    let start = begun(&[reading(10, 90), reading(990, 30), reading(1001, 5)]);
    assert_eq!(start.listed(), 70);
    let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
    replay.validate().unwrap();
    assert_eq!((replay.sample().free_pages(), replay.kept_frames()), (30, 70));
    // The list's mark has risen with what it holds: nothing goes back. What was freed last comes first.
    let alloc = TraceWhat::Alloc { pfn: Some(2147), order: 0, migratetype: 1, gfp: 8 };
    let events = [at(1100, 1, alloc), at(1200, 1, TraceWhat::Free { pfn: 2147, order: 0 })];
    replay.feed(&events[..1]).unwrap();
    assert_eq!(replay.table[(2147 - start.base()) as usize], 2147);
    replay.feed(&events[1..]).unwrap();
    assert_eq!((replay.sample().free_pages(), replay.kept_frames()), (30, 70));
    replay.validate().unwrap();
    // As many as were read, or no reading before the scan's end: nothing is put on lists.
    for samples in [vec![reading(990, 100)], vec![reading(1001, 30)], Vec::new()] {
        assert_eq!(begun(&samples).listed(), 0, "{samples:?}");
    }
}

/// What becomes of objects by a table of nothing but hash maps: no simulated memory, no order of objects of
/// the snapshot. Its words are those of the account that do not depend on where objects lie.
#[derive(Default)]
struct Naive {
    /// Object by traced frame; 0 is the snapshot's.
    at: HashMap<u32, u64>,
    /// Moved frames by order: whether there is one to guess.
    moved: HashMap<u8, u64>,
    compacting: Vec<u32>,
    account: Account,
    next: u64,
}

impl Naive {
    fn event(&mut self, event: &TraceEvent) {
        self.account.events += 1;
        match event.what {
            TraceWhat::Alloc { pfn: Some(pfn), order, .. } => {
                self.account.allocs.add(order);
                let frames = pfn..pfn + (1 << order);
                if frames.clone().any(|pfn| self.at.contains_key(&pfn)) {
                    self.account.reallocs.add(order);
                }
                self.next += 1;
                frames.for_each(|pfn| {
                    self.at.insert(pfn, self.next);
                });
            }
            TraceWhat::Free { pfn, order } => self.free(pfn, order, event.tid),
            TraceWhat::CompactionBegin => self.compacting.push(event.tid),
            TraceWhat::CompactionEnd => self.compacting.retain(|tid| *tid != event.tid),
            _ => {}
        }
    }

    fn free(&mut self, pfn: u32, order: u8, tid: u32) {
        let account = &mut self.account;
        account.frees.add(order);
        let size = 1usize << order;
        let known = (pfn..pfn + size as u32).filter(|pfn| self.at.remove(pfn).is_some()).count();
        let compacts = self.compacting.contains(&tid);
        let guess = self.moved.entry(order).or_default();
        match known {
            0 if compacts => account.given_back.add(order),
            0 if *guess > 0 => {
                *guess -= 1;
                account.guessed.add(order);
            }
            0 => account.unknown.add(order),
            known if known < size => account.partly.add(order),
            _ if compacts => {
                *guess += 1;
                account.moved.add(order);
            }
            _ => account.matched.add(order),
        }
    }
}

/// A trace with all holes in it: events left out, compaction, parts of objects freed.
fn holed(seed: u64) -> (TraceHead, Vec<TraceEvent>) {
    let head = head([7, 40]);
    let mut machine = Machine::new(&head, seed);
    machine.run(20_000);
    let mut random = SplitMix64::new(seed);
    let mut events = Vec::new();
    for event in machine.events {
        match (event.what, random.below(100)) {
            (_, 0) => {}
            (TraceWhat::Free { pfn, order }, 1..20) if order > 0 => {
                let half = |pfn| TraceEvent { what: TraceWhat::Free { pfn, order: order - 1 }, ..event };
                events.extend([half(pfn + (1 << (order - 1))), half(pfn)]);
            }
            // The upper half of an object came about unseen.
            (TraceWhat::Alloc { pfn, order, migratetype, gfp }, 1..5) if order > 0 => {
                let what = TraceWhat::Alloc { pfn, order: order - 1, migratetype, gfp };
                events.push(TraceEvent { what, ..event });
            }
            // Whole objects alone are moved.
            (TraceWhat::Free { order: 0, .. }, 1..4) => {
                let of = |what| TraceEvent { what, tid: 99, ..event };
                events.extend([of(TraceWhat::CompactionBegin), of(event.what), of(TraceWhat::CompactionEnd)]);
            }
            _ => events.push(event),
        }
    }
    (head, events)
}

#[test]
fn the_account_is_that_of_a_table_of_hash_maps() {
    for seed in 1..=4 {
        let (head, events) = holed(seed);
        let start = Start::new(&head, &all(&head, Was::Free)).unwrap();
        let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
        let mut naive = Naive::default();
        for event in &events {
            replay.feed(std::slice::from_ref(event)).unwrap();
            naive.event(event);
        }
        replay.validate().unwrap();
        let (ours, theirs) = (replay.account(), naive.account);
        assert_eq!(ours.no_room.events, 0, "memory was short: nothing to compare");
        let words = |a: &Account| {
            [a.allocs, a.reallocs, a.frees, a.matched, a.partly, a.moved, a.guessed, a.given_back, a.unknown]
        };
        assert_eq!(words(&ours), words(&theirs), "seed {seed}");
        let all_named = [&ours.matched, &ours.partly, &ours.moved, &ours.guessed, &ours.unknown];
        assert!(all_named.iter().all(|tally| tally.events > 0), "{ours:?}");
        assert!(ours.splits > 0 && ours.reallocs.events > 0, "{ours:?}");
        // Each frame that the table knows is allocated, and so is each that moved; the rest is free.
        let total: u64 = start.parts().iter().map(|part| u64::from(part.setup.shape.frames)).sum();
        let free = replay.sample().free_pages() as u64 + replay.kept_frames();
        let held = 1; // Frame 0 is no memory.
        let moved: u64 = naive.moved.iter().map(|(order, count)| count << order).sum();
        assert_eq!(free + naive.at.len() as u64 + moved + held, total, "seed {seed}");
    }
}

#[test]
fn the_same_trace_gives_the_same_account_under_each_policy() {
    fn run<P: Policy + Clone>(policy: P, options: Options) -> (Vec<BuddyInfo>, Account) {
        let (head, events) = holed(3);
        let start = Start::new(&head, &all(&head, Was::Free)).unwrap();
        let replay = Replay::new(&start, &policy, options).unwrap();
        let (found, replay) =
            replayed(replay, &events, &[(2 * MS, BuddyInfo::default()), (15 * MS, BuddyInfo::default())]);
        replay.validate().unwrap();
        (found, replay.account())
    }
    for options in [Options { zones: Zones::Traced }, Options { zones: Zones::Asked }] {
        let mobility = run(Mobility, options);
        assert_eq!(mobility, run(Mobility, options));
        let (standard, two) = (run(Standard, options), run(Lists::Two, options));
        assert_ne!(mobility.0, standard.0);
        assert_ne!(mobility.0, two.0);
        let same = [&mobility, &standard, &two].map(|(_, account)| (account.allocs, account.frees));
        assert!(same.iter().all(|of| *of == same[0]));
        assert_eq!((standard.1.fallbacks, standard.1.claims), (0, 0));
    }
}

fn event(what: TraceWhat) -> TraceEvent {
    TraceEvent { at_ns: 1_500_000_000, tid: 1, cpu: 0, what }
}

fn alloc(pfn: u32, order: u8) -> TraceEvent {
    event(TraceWhat::Alloc { pfn: Some(pfn), order, migratetype: 1, gfp: 8 })
}

#[test]
fn what_cannot_be_is_refused_with_its_place() {
    let head = head([1, 1]);
    let start = Start::new(&head, &all(&head, Was::Free)).unwrap();
    let refused = |what: TraceWhat| {
        let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
        let misfit = replay.feed(&[alloc(2048, 0), event(what)]).unwrap_err();
        assert_eq!(misfit.event, 1);
        misfit.to_string()
    };
    assert_eq!(
        refused(TraceWhat::Free { pfn: 2049, order: 1 }),
        "event 1 at 1.500000000 s: no block of order 1 begins at frame 0x801"
    );
    assert!(refused(TraceWhat::Free { pfn: 2048, order: 9 }).contains("order 9 is above the largest, 8"));
    assert!(refused(TraceWhat::Free { pfn: 1 << 30, order: 0 }).contains("lies in no zone"));
    assert!(refused(TraceWhat::Free { pfn: u32::MAX, order: 0 }).contains("lies in no zone"));
}

#[test]
fn a_head_or_a_snapshot_that_contradicts_itself_is_refused() {
    let refused = |change: &dyn Fn(&mut TraceHead, &mut Vec<TraceRun>)| {
        let (mut head, mut runs) = (head([1, 1]), all(&head([1, 1]), Was::Free));
        change(&mut head, &mut runs);
        Start::new(&head, &runs).unwrap_err().to_string()
    };
    assert!(refused(&|head, _| head.page_bytes = 12_288).contains("12288 bytes"));
    assert!(refused(&|head, _| head.zones.clear()).contains("no zone with memory"));
    assert!(refused(&|head, _| head.block_order = 9).contains("order 9"));
    assert!(refused(&|head, _| head.max_order = 40).contains("order 40"));
    assert!(refused(&|head, _| head.zones[1].first = 900).contains("share pageblocks"));
    assert!(refused(&|head, _| head.zones[1].spanned = u32::MAX).contains("last frame"));
    assert!(refused(&|_, runs| runs.swap(0, 1)).contains("run 1 of the snapshot"));
}

#[test]
fn memory_that_is_short_leaves_objects_out_and_says_so() {
    let mut head = head([1, 1]);
    head.zones.truncate(1);
    let start = Start::new(&head, &all(&head, Was::User)).unwrap();
    let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
    // A frame that the snapshot found in use is allocated: it was freed first. Two of an order that is not
    // there; one of them is freed.
    replay.feed(&[alloc(64, 0), alloc(128, 6), alloc(192, 3)]).unwrap();
    replay.feed(&[event(TraceWhat::Free { pfn: 128, order: 6 })]).unwrap();
    let account = replay.account();
    assert_eq!((account.reallocs.frames, account.no_room.events), (1 + 64 + 8, 0));
    replay.feed(&[alloc(256, 8)]).unwrap();
    replay.feed(&[event(TraceWhat::Free { pfn: 256, order: 7 })]).unwrap();
    replay.validate().unwrap();
    assert_eq!(replay.account().no_room.events + replay.account().of_no_room.events, 0);
    let start = Start::new(&head, &all(&head, Was::Hole)).unwrap();
    let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
    replay.feed(&[alloc(64, 3), event(TraceWhat::Free { pfn: 64, order: 2 })]).unwrap();
    let account = replay.account();
    assert_eq!((account.no_room.frames, account.of_no_room.frames, account.unknown.events), (8, 4, 0));
}
