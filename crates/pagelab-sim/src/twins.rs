//! The engine and its naive twin, side by side: every event is compared.

use pagelab_model::seed::SplitMix64;

use crate::naive::{How, HowMuch, Naive, NaivePerCpu, Part, Rule, Told};
use crate::percpu::{Keep, PerCpu, Terms};
use crate::planted::{Bug, Planted};
use crate::policies::{Entry, TABLE};
use crate::policy::{Mobility, Policy, Short, Take};
use crate::words::{Ends, Extras, Frame, Kind, ORDER_MAX, Shape};
use crate::zone::{Manner, Zone};

/// What two are compared at.
#[derive(Clone, Debug)]
struct Case {
    shape: Shape,
    entry: &'static Entry,
    extras: Extras,
    bug: Option<Bug>,
    /// Whether the twin is told the policy's numbers, and has no rule of its own.
    is_told: bool,
    seed: u64,
    events: u32,
}

impl Case {
    fn new(shape: Shape, entry: &'static Entry, seed: u64, events: u32) -> Case {
        let is_told = Rule::named(entry.name).is_none();
        Case { shape, entry, extras: Extras::default(), bug: None, is_told, seed, events }
    }

    fn zone(&self) -> Zone<&'static (dyn Policy + Sync)> {
        let mut zone = Zone::with(self.shape, self.entry.policy, &self.extras).unwrap();
        zone.bug = Planted::of(self.bug);
        zone
    }

    fn naive(&self) -> Naive {
        match Rule::named(self.entry.name) {
            Some(rule) if !self.is_told => Naive::new(self.shape, rule, &self.extras),
            _ => Naive::told(self.shape, told(self.entry.policy, self.shape), &self.extras),
        }
    }
}

/// What a policy says, as numbers.
fn told(policy: &dyn Policy, shape: Shape) -> Told {
    let lists = policy.lists();
    let part = |wanted: u8, size: u8| match policy.take(wanted, size, shape.block_order) {
        Take::Pageblock => Part::All,
        Take::Smallest => Part::Smallest,
        Take::Largest => Part::Largest,
        Take::Piece => Part::Piece,
    };
    let blocks = shape.frames >> shape.block_order;
    Told {
        rule: match policy.short() {
            Short::Moves => Rule::Told,
            Short::Cuts => Rule::Cuts,
            Short::Claims => Rule::Claims,
            Short::Border => Rule::Border,
        },
        lists,
        wanted: Kind::ALL.map(|kind| policy.wanted(kind)),
        home: Kind::ALL.map(|kind| (0..lists).map(|owner| policy.home(kind, owner)).collect()),
        others: (0..lists).map(|wanted| policy.others(wanted).to_vec()).collect(),
        parts: (0..lists).map(|list| (0..=shape.max_order).map(|size| part(list, size)).collect()).collect(),
        looks_ahead: policy.looks_ahead(),
        owners: (0..blocks).map(|block| policy.owner_at_start(block, blocks)).collect(),
    }
}

/// What is asked for: for a while mostly of one kind, then of another, then evenly.
fn request(random: &mut SplitMix64, shape: &Shape, event: u32) -> (u8, Kind, How) {
    let order = match random.below(100) {
        0..85 => 0,
        _ => random.below(u64::from(shape.max_order) + 1) as u8,
    };
    let kind = match Kind::of((event / 700 % 4) as u8) {
        Some(kind) if random.below(20) > 0 => kind,
        _ => Kind::ALL[random.below(3) as usize],
    };
    let how = How { may_mix: random.below(8) > 0, is_atomic: random.below(10) == 0, last: 0 };
    (order, kind, how)
}

fn manner(how: &How) -> Manner {
    Manner { may_mix: how.may_mix, is_atomic: how.is_atomic, ..Manner::USUAL }
}

/// What the books of both say that is not said by any answer.
fn books<P: Policy>(ours: &Zone<P>, theirs: &Naive, event: u32) -> Option<String> {
    if ours.free_blocks() != theirs.free_blocks() {
        return Some("free blocks".to_owned());
    }
    if ours.mixings() != theirs.mixings {
        return Some("how often kinds were mixed".to_owned());
    }
    if ours.owners() != theirs.owners() {
        return Some("owners of pageblocks".to_owned());
    }
    if event.is_multiple_of(64) { ours.validate().err().map(|wrong| wrong.to_string()) } else { None }
}

/// Up to the first difference: the event, and what differs.
fn differ(case: &Case) -> Option<(u32, String)> {
    let (mut zone, mut naive, shape) = (case.zone(), case.naive(), case.shape);
    let mut random = SplitMix64::new(case.seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..case.events {
        // Memory fills and empties in long waves, so that stealing and merging both come up.
        let full = u64::from(shape.frames - zone.free_frames()) * 100 / u64::from(shape.frames);
        let goal = if event / 500 % 2 == 0 { 97 } else { 30 };
        let takes = live.is_empty() || random.below(100) < if full < goal { 70 } else { 30 };
        let (order, kind, mut how) = request(&mut random, &shape, event);
        let odd = random.below(64);
        if odd == 0 {
            let (ours, theirs) =
                (zone.unreserve(kind, event % 2 == 0), naive.unreserve(kind, event % 2 == 0));
            if ours != theirs {
                return Some((event, format!("given back: {ours}, the twin {theirs}")));
            }
        } else if odd == 2 {
            let (ours, theirs) = (zone.lower_border(), naive.lower_border());
            if ours != theirs {
                return Some((event, format!("the border went over {ours}, the twin {theirs}")));
            }
        } else if odd == 1 {
            let frame = (shape.first + random.below(shape.frames.into()) as u32) >> order << order;
            if frame < shape.first || frame + (1 << order) > shape.end() {
                continue;
            }
            let ours = zone.take_at(frame, order, kind).unwrap();
            let theirs = naive.take_at(frame, order, kind);
            if ours != theirs {
                return Some((event, format!("at {frame:#x} order {order}: {ours}, the twin {theirs}")));
            }
            live.extend(ours.then_some(frame));
        } else if takes {
            let ours = zone.take_as(order, kind, &mut manner(&how)).unwrap();
            let ours = ours.map(|taken| (taken.frame, taken.stolen));
            let theirs = naive.take_as(order, kind, &mut how);
            if ours != theirs {
                return Some((event, format!("order {order} {kind:?}: {ours:?}, the twin {theirs:?}")));
            }
            live.extend(ours.map(|(frame, _)| frame));
        } else {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            let (ours, theirs) = (zone.free(frame).ok(), naive.free(frame));
            if ours != theirs {
                return Some((event, format!("freed {frame:#x}: {ours:?}, the twin {theirs:?}")));
            }
        }
        if let Some(what) = books(&zone, &naive, event) {
            return Some((event, what));
        }
    }
    None
}

/// The same with lists of three processors.
fn differ_by_cpu(case: &Case, keep: Keep) -> Option<(u32, String)> {
    let mut ours = PerCpu::new(case.zone(), keep).unwrap();
    let (how_much, mark) = match keep.terms {
        Terms::Batch => (HowMuch::Batches, 0),
        Terms::Doubling { .. } => (HowMuch::Doubles, 0),
        Terms::Tuned { most, mark, patience } => (HowMuch::New { most, in_a_row: patience }, mark),
    };
    let mut theirs = NaivePerCpu::new(case.naive(), keep.batch, keep.high, how_much);
    theirs.mark = mark.into();
    let mut random = SplitMix64::new(case.seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..case.events {
        let goal = if event / 300 % 2 == 0 { 80 } else { 20 };
        let cpu = random.below(u64::from(keep.cpus)) as u16;
        match event % 512 {
            100 => {
                ours.decay();
            }
            300 => ours.set_reclaiming(true),
            370 => ours.set_reclaiming(false),
            _ => {}
        }
        match event % 512 {
            100 => theirs.second(),
            300 => theirs.reclaims = true,
            370 => theirs.reclaims = false,
            _ => {}
        }
        if live.is_empty() || random.below(100) < goal {
            let (order, kind, how) = request(&mut random, &case.shape, event);
            let taken = ours.take_as(cpu, order, kind, manner(&how)).unwrap();
            let taken = taken.map(|taken| (taken.frame, taken.stolen));
            let twin = theirs.take(cpu, order, kind, how);
            if taken != twin {
                return Some((event, format!("order {order} {kind:?}: {taken:?}, the twin {twin:?}")));
            }
            live.extend(taken.map(|(frame, _)| frame));
        } else {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            let (freed, twin) = (ours.free(cpu, frame).ok(), theirs.free(cpu, frame));
            if freed != twin || ours.free(cpu, frame).is_ok() {
                return Some((event, format!("freed {frame:#x}: {freed:?}, the twin {twin:?}; or twice")));
            }
        }
        if let Some(what) = books(ours.zone(), &theirs.zone, event) {
            return Some((event, what));
        }
        if event % 64 == 0 {
            ours.validate().unwrap();
        }
    }
    for frame in live {
        ours.free(0, frame).unwrap();
    }
    ours.drain();
    assert_eq!((ours.zone().free_frames(), ours.kept_frames()), (case.shape.frames, 0));
    None
}

const KEEPS: [Keep; 6] = [
    Keep::batches(3, 1, 1),
    Keep::batches(3, 4, 12),
    Keep::batches(3, 31, 40),
    Keep { cpus: 3, batch: 2, high: 20, terms: Terms::Doubling { empties: true } },
    Keep { cpus: 3, batch: 2, high: 10, terms: Terms::Tuned { most: 60, mark: 20, patience: 2 } },
    Keep { cpus: 2, batch: 1, high: 8, terms: Terms::Tuned { most: 8, mark: 9, patience: 5 } },
];

const SHAPES: [Shape; 4] = [
    Shape { first: 0, frames: 256, max_order: 6, block_order: 4 },
    // Begins and ends inside of a largest block.
    Shape { first: 48, frames: 208, max_order: 6, block_order: 4 },
    Shape { first: 1 << 20, frames: 512, max_order: 5, block_order: 5 },
    Shape { first: 0, frames: 96, max_order: 3, block_order: 1 },
];

/// What a zone may have beside its lists, one by one and all at once.
fn all_extras(shape: &Shape) -> Vec<Extras> {
    let block = 1 << shape.block_order;
    let cma = vec![shape.first + block..shape.first + 3 * block, shape.end() - block..shape.end()];
    let none = Extras::default();
    vec![
        Extras { ends: Ends::Fifo, ..none.clone() },
        Extras { ends: Ends::Shuffled(3), ..none.clone() },
        Extras { has_highatomic: true, ..none.clone() },
        Extras { cma: cma.clone(), ..none },
        Extras { ends: Ends::Shuffled(4), has_highatomic: true, cma },
    ]
}

#[test]
fn the_engine_and_its_twin_agree_on_every_event() {
    for shape in SHAPES {
        for entry in TABLE {
            for seed in 0..4 {
                let case = Case::new(shape, entry, seed, 3000);
                assert_eq!(differ(&case), None, "{case:?}");
            }
        }
    }
}

/// A policy without a rule in the twin is compared with its own numbers; those of Linux and of the papers are
/// held to rules that were written anew.
#[test]
fn told_numbers_come_to_the_same_as_the_rules() {
    let ruled =
        ["standard", "list2", "list3", "mobility-6.1", "mobility-6.10", "mobility-6.18", "contiguitas"];
    for name in ruled.into_iter().chain(["defrag-6.18"]) {
        assert!(Rule::named(name).is_some(), "{name} has no rule of its own in naive.rs, Rule::named");
    }
    for (seed, shape) in (21..).zip(SHAPES) {
        for entry in TABLE {
            let case = Case { is_told: true, ..Case::new(shape, entry, seed, 2000) };
            assert_eq!(differ(&case), None, "{case:?}");
            assert_eq!(differ_by_cpu(&case, KEEPS[2]), None, "{case:?}");
        }
    }
}

#[test]
fn what_processors_keep_is_what_the_twin_keeps() {
    for (seed, shape) in (5..).zip(SHAPES) {
        for entry in TABLE {
            for keep in KEEPS {
                let case = Case::new(shape, entry, seed, 2500);
                assert_eq!(differ_by_cpu(&case, keep), None, "{case:?} {keep:?}");
            }
        }
    }
    let zone = || Zone::new(SHAPES[0], Mobility).unwrap();
    for (cpus, batch, high) in [(0, 1, 1), (1, 0, 4), (1, 5, 4)] {
        assert!(PerCpu::new(zone(), Keep::batches(cpus, batch, high)).is_err());
    }
}

#[test]
fn reserves_and_other_ends_are_those_of_the_twin() {
    for (seed, shape) in (11..).zip(SHAPES) {
        for entry in TABLE {
            for extras in all_extras(&shape) {
                let case = Case { extras, ..Case::new(shape, entry, seed, 2000) };
                assert_eq!(differ(&case), None, "{case:?}");
                assert_eq!(differ_by_cpu(&case, KEEPS[1]), None, "{case:?}");
            }
        }
    }
}

/// The largest orders there can be, over zones that begin inside of a largest block and are smaller than one.
#[test]
fn large_orders_agree_too() {
    for max_order in 9..=ORDER_MAX {
        for entry in TABLE {
            let block_order = 4 + max_order % 3;
            let shape = Shape { first: 3 << block_order, frames: 31 << 6, max_order, block_order };
            let case = Case::new(shape, entry, u64::from(max_order), 300);
            assert_eq!(differ(&case), None, "{case:?}");
            assert_eq!(differ_by_cpu(&case, KEEPS[1]), None, "{case:?}");
        }
    }
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for bug in Bug::ALL {
        let finds = |shape: Shape, entry: &'static Entry, extras: &Extras| {
            let case = Case { bug: Some(bug), extras: extras.clone(), ..Case::new(shape, entry, 1, 10_000) };
            // What a bug makes of the books may be out of all bounds.
            let by_cpu = || KEEPS[1..5].iter().find_map(|&keep| differ_by_cpu(&case, keep));
            let differs = || differ(&case).or_else(by_cpu).is_some();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(differs)).unwrap_or(true)
        };
        let found = [SHAPES[0], SHAPES[2]].iter().any(|&shape| {
            let mut all = all_extras(&shape);
            all.truncate(4);
            all.insert(0, Extras::default());
            all.iter().any(|extras| TABLE[2..].iter().any(|entry| finds(shape, entry, extras)))
        });
        assert!(found, "{bug:?} is not found");
    }
}

/// Live blocks never overlap, all memory can be had, and what is all freed is whole again.
#[test]
fn what_is_all_freed_is_whole_again() {
    for (shape, entry) in SHAPES.into_iter().flat_map(|shape| TABLE.iter().map(move |entry| (shape, entry))) {
        let mut zone = Zone::new(shape, entry.policy).unwrap();
        let whole = zone.free_blocks().to_vec();
        let mut random = SplitMix64::new(9);
        let (mut live, mut held) = (Vec::new(), vec![false; shape.frames as usize]);
        for kind in [Kind::Movable, Kind::Unmovable] {
            for order in [2, 1, 0] {
                while let Some(taken) = zone.take(order, kind).unwrap() {
                    live.push(taken.frame);
                    for frame in taken.frame..taken.frame + (1 << order) {
                        let held = &mut held[(frame - shape.first) as usize];
                        assert!(!std::mem::replace(held, true), "{frame:#x} is given twice");
                    }
                }
            }
        }
        assert!(held.into_iter().all(|held| held) && zone.free_frames() == 0, "{}", entry.name);
        while !live.is_empty() {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            zone.free(frame).unwrap();
        }
        // Regions meet where their border is, and blocks do not reach over it.
        if zone.border().is_none() {
            assert_eq!(zone.free_blocks(), whole, "{}", entry.name);
        }
        assert_eq!(zone.free_frames(), shape.frames);
        zone.validate().unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let shape = SHAPES[1];
    let mut zone = Zone::new(shape, Mobility).unwrap();
    let taken = zone.take(2, Kind::Movable).unwrap().unwrap().frame;
    let before = zone.free_blocks().to_vec();
    for (frame, said) in [
        (taken + 1, "is freed, and no block was allocated there"),
        (shape.end(), "lies in no zone"),
        (shape.first - 1, "lies in no zone"),
    ] {
        let wrong = zone.free(frame).unwrap_err().to_string();
        assert!(wrong.contains(said) && wrong.contains(&format!("{frame:#x}")), "{wrong}");
    }
    assert!(zone.take(7, Kind::Movable).unwrap_err().to_string().contains("order 7 is above the largest, 6"));
    assert_eq!(zone.free_blocks(), before);
    assert_eq!(zone.free(taken), Ok(2));
    assert!(zone.free(taken).is_err(), "freed twice");
    for (first, frames, max_order, block_order) in [
        (0, 0, 6, 4),
        (8, 256, 6, 4),
        (0, 250, 6, 4),
        (0, 256, 22, 4),
        (0, 256, 4, 6),
        (u32::MAX - 15, 16, 6, 4),
    ] {
        let shape = Shape { first, frames, max_order, block_order };
        assert!(Zone::new(shape, Mobility).is_err(), "{shape:?}");
    }
}

#[test]
fn a_live_block_splits_and_its_parts_are_freed_one_by_one() {
    let mut zone = Zone::new(SHAPES[0], Mobility).unwrap();
    let whole = zone.free_blocks().to_vec();
    let frame = zone.take(4, Kind::Movable).unwrap().unwrap().frame;
    zone.split(frame, 1).unwrap();
    zone.validate().unwrap();
    for part in (0..16).step_by(2).rev() {
        assert_eq!(zone.free(frame + part), Ok(1));
    }
    assert_eq!(zone.free_blocks(), whole);
    assert!(zone.split(frame, 0).is_err());
}
