//! Reclaim and compaction do what they are for.

use pagelab_model::seed::SplitMix64;

use super::reclaim::PRIORITY;
use super::{Ask, Class, Config, Effort, Heights, Held, Machine, Release, Tuning, reclaims};
use crate::difficulty;
use crate::marks::Marks;
use crate::memory::Setup;
use crate::percpu::Keep;
use crate::policy::{Mobility, Standard};
use crate::words::Shape;

const LINEAR: &reclaims::Entry = &reclaims::TABLE[1];
const LUMPY: &reclaims::Entry = &reclaims::TABLE[2];

const NO_MARKS: Marks = Marks { min: 0, low: 0, high: 0 };

/// One zone of so many frames, whose blocks are of order 6 at most and pageblocks of 4.
pub(super) fn config(frames: u32, marks: Marks) -> Config {
    let zone = Setup {
        name: "Normal".to_owned(),
        node: 0,
        height: 0,
        shape: Shape { first: 0, frames, max_order: 6, block_order: 4 },
        marks,
        reserves: Vec::new(),
        extras: crate::zone::Extras::default(),
    };
    Config {
        zones: vec![zone],
        heights: Heights { kernel: 0, page_tables: 0, user: 0 },
        keep: Keep::batches(1, 1, 1),
        reclaim: reclaims::LRU,
        keeps_referenced: true,
        compacts: false,
        swap_frames: 4096,
    }
}

fn filled(config: &Config, release: Release, class: Class) -> (Machine, Vec<Held>) {
    let mut machine = Machine::tuned(config.clone(), Tuning::of(release), &Standard).unwrap();
    let frames = config.zones[0].shape.frames;
    let once = Ask { effort: Effort::Atomic, ..Ask::page(class) };
    let held = (0..frames).map(|_| machine.ask(&once).unwrap().unwrap()).collect();
    machine.validate().unwrap();
    (machine, held)
}

/// Makes the LRU order that of `frames`, the oldest first.
fn reorder(machine: &mut Machine, held: &[Held], frames: &[u32]) {
    let mut by_frame: Vec<(u32, Held)> =
        held.iter().map(|&held| (machine.frame(held).unwrap().unwrap(), held)).collect();
    by_frame.sort_unstable();
    for &frame in frames {
        let handle = by_frame[frame as usize].1.0;
        let entry = machine.entries[handle as usize];
        let list = machine.list(&entry).unwrap();
        machine.lru.remove(list, handle, 1);
        machine.lru.add(list, handle, 1);
    }
}

/// Pages released in LRU order until there is a block of the order.
fn released(machine: &mut Machine, order: u8) -> u64 {
    let mut released = 0;
    let list = super::List { area: 0, sort: super::Sort::Anonymous, is_active: false };
    while machine.memory.zone(0).unwrap().1.zone().free_blocks()[usize::from(order)..].iter().all(|&n| n == 0)
    {
        let oldest = machine.lru.last(list).unwrap();
        machine.evict(oldest).unwrap();
        released += 1;
    }
    machine.validate().unwrap();
    released
}

#[test]
fn the_worst_order_of_release_needs_just_what_the_formula_says() {
    for order in 1..=6u8 {
        let config = config(256, NO_MARKS);
        let worst = difficulty::released(256, order).unwrap();
        // One page of each block is the youngest of all.
        let (mut machine, held) = filled(&config, Release::V2_6_16, Class::File);
        let (mut order_of_release, last): (Vec<u32>, Vec<u32>) =
            (0..256u32).partition(|frame| !frame.is_multiple_of(1 << order));
        order_of_release.extend(last);
        reorder(&mut machine, &held, &order_of_release);
        assert_eq!(released(&mut machine, order), worst, "order {order}");
        // By chance it is less.
        let mut random = SplitMix64::new(u64::from(order));
        let mut shuffled: Vec<u32> = (0..256).collect();
        for at in (1..shuffled.len()).rev() {
            shuffled.swap(at, random.below(at as u64 + 1) as usize);
        }
        let (mut machine, held) = filled(&config, Release::V2_6_16, Class::File);
        reorder(&mut machine, &held, &shuffled);
        let by_chance = released(&mut machine, order);
        assert!(by_chance < worst, "order {order}: {by_chance} of {worst}");
        // Linear reclaim needs one block, wherever the old pages are.
        if order >= 3 {
            let linear = Config { reclaim: LINEAR, ..config.clone() };
            let (mut machine, held) = filled(&linear, Release::V2_6_16, Class::File);
            reorder(&mut machine, &held, &shuffled);
            let ask = Ask { order, ..Ask::page(Class::Huge) };
            assert!(machine.ask(&ask).unwrap().is_some());
            assert!(machine.stats().reclaimed <= 1 << order, "order {order}: {}", machine.stats().reclaimed);
            machine.validate().unwrap();
        }
    }
}

#[test]
fn linear_reclaim_passes_regions_that_hold_what_must_stay() {
    let config = Config { reclaim: LINEAR, ..config(256, NO_MARKS) };
    let (mut machine, held) = filled(&config, Release::V2_6_16, Class::File);
    // A page of each block of 16 but the eleventh is pinned.
    for &one in &held {
        let frame = machine.frame(one).unwrap().unwrap();
        machine.pin(one, frame % 16 == 7 && frame / 16 != 11).unwrap();
    }
    let block = machine.ask(&Ask { order: 4, ..Ask::page(Class::Huge) }).unwrap().unwrap();
    assert_eq!(machine.frame(block).unwrap(), Some(11 * 16));
    assert_eq!((machine.stats().reclaimed, machine.stats().regions_tried), (16, 1));
    assert_eq!(machine.ask(&Ask { order: 4, ..Ask::page(Class::Huge) }).unwrap(), None);
    machine.validate().unwrap();
}

/// A stream of pages used once beside a set that is used again and again: how often the set is brought back.
fn refaults(release: Release, keeps_referenced: bool) -> u64 {
    let marks = Marks { min: 16, low: 20, high: 24 };
    let config = Config { keeps_referenced, ..config(512, marks) };
    let mut machine = Machine::tuned(config, Tuning::of(release), &Mobility).unwrap();
    let set: Vec<Held> = (0..128).map(|_| machine.ask(&Ask::page(Class::File)).unwrap().unwrap()).collect();
    let mut stream = std::collections::VecDeque::new();
    for step in 0..20_000usize {
        let used = set[step % set.len()];
        if !machine.touch(used).unwrap() {
            assert!(machine.bring_back(used, 0).unwrap());
        }
        stream.push_back(machine.ask(&Ask::page(Class::File)).unwrap().unwrap());
        if stream.len() > 600 {
            machine.release(stream.pop_front().unwrap()).unwrap();
        }
        machine.background(32).unwrap();
    }
    machine.validate().unwrap();
    machine.stats().refaults
}

#[test]
fn pages_in_use_stay_unless_the_switch_is_off() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let (kept, lost) = (refaults(release, true), refaults(release, false));
        assert!(lost >= 4 * kept.max(10), "{release:?}: {kept} with PAGEREF_ACTIVATE, {lost} without");
    }
}

#[test]
fn pages_of_programs_need_swap_and_pages_of_caches_lose_their_objects() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let marks = Marks { min: 16, low: 20, high: 24 };
        let config = Config { swap_frames: 40, ..config(512, marks) };
        let mut machine = Machine::tuned(config, Tuning::of(release), &Mobility).unwrap();
        let asks = [Class::Anonymous, Class::Cache].map(Ask::page);
        let mut held: Vec<Held> = Vec::new();
        while let Some(one) = machine.ask(&asks[held.len() % 2]).unwrap() {
            machine.use_objects(one, if held.len() % 8 == 1 { 1 } else { 0 }).unwrap();
            held.push(one);
            assert!(held.len() < 2000, "{release:?}: caches and 40 frames of swap are no end of memory");
        }
        machine.validate().unwrap();
        let stats = machine.stats();
        assert_eq!((machine.swapped(), stats.swapped), (40, 40), "{release:?}");
        assert!(stats.slab_pages > 50, "{release:?}: {stats:?}");
        // Those that somebody uses an object of are there.
        for (at, &one) in held.iter().enumerate().filter(|(at, _)| at % 8 == 1) {
            assert!(machine.frame(one).unwrap().is_some(), "{release:?}: {at}");
        }
        for one in held {
            machine.release(one).unwrap();
        }
        machine.validate().unwrap();
        assert_eq!(machine.unusable(0).1, 512);
    }
}

/// Every other page of programs goes, and large folios lie between them.
fn fragmented(compacts: bool) -> (Machine, Vec<Held>) {
    let marks = Marks { min: 8, low: 12, high: 16 };
    let config = Config { compacts, swap_frames: 0, ..config(1024, marks) };
    let mut machine = Machine::new(config, &Mobility).unwrap();
    let mut held = Vec::new();
    for at in 0..900u32 {
        let order = if at % 90 == 89 { 3 } else { 0 };
        held.extend(machine.ask(&Ask { order, ..Ask::page(Class::Anonymous) }).unwrap());
    }
    let mut at = 0;
    held.retain(|&one| {
        at += 1;
        at % 2 == 0 || machine.release(one).is_err()
    });
    (machine, held)
}

#[test]
fn compaction_makes_room_for_what_reclaim_cannot() {
    let large = Ask { order: 6, ..Ask::page(Class::Huge) };
    let serve = |machine: &mut Machine| std::iter::from_fn(|| machine.ask(&large).unwrap()).count();
    let (mut without, _) = fragmented(false);
    let (mut with, held) = fragmented(true);
    let before: Vec<_> = held.iter().map(|&one| with.frame(one).unwrap()).collect();
    let (few, many) = (serve(&mut without), serve(&mut with));
    assert!(many >= few + 4, "{few} blocks without, {many} with compaction");
    with.validate().unwrap();
    let moved = held.iter().zip(&before).filter(|&(&one, &was)| with.frame(one).unwrap() != was).count();
    assert!(moved > 50 && with.stats().migrated >= moved as u64, "{moved} of {:?}", with.stats());
    assert_eq!(with.stats().reclaimed, 0, "there was nowhere to swap to");
    // Handles are as good as before.
    for one in held {
        with.release(one).unwrap();
    }
    with.validate().unwrap();
}

#[test]
fn pages_that_are_pinned_block_compaction_and_it_is_put_off() {
    let (mut machine, held) = fragmented(true);
    held.iter().for_each(|&one| machine.pin(one, true).unwrap());
    let large = Ask { order: 6, ..Ask::page(Class::Huge) };
    let mut served = 0;
    for _ in 0..300 {
        served += machine.ask(&large).unwrap().iter().len();
    }
    assert_eq!(machine.stats().migrated, 0);
    assert!(machine.stats().deferred > 100, "{:?}", machine.stats());
    assert!(served < 3);
    // What was put off is tried again.
    held.iter().for_each(|&one| machine.pin(one, false).unwrap());
    let served = (0..300).filter(|_| machine.ask(&large).unwrap().is_some()).count();
    assert!(served >= 4, "{served} {:?}", machine.stats());
    machine.validate().unwrap();
}

#[test]
fn memory_is_compacted_ahead_of_need_if_asked_for() {
    let score = |machine: &Machine| {
        let (small, free) = machine.unusable(4);
        small * 100 / free
    };
    let (mut idle, _) = fragmented(true);
    idle.background(64).unwrap();
    let (mut ahead, _) = fragmented(true);
    ahead.tuning.proactiveness = 60;
    ahead.is_busy = true;
    let before = score(&ahead);
    for _ in 0..200 {
        ahead.background(64).unwrap();
    }
    assert_eq!((score(&idle), idle.stats().migrated), (before, 0));
    assert!(before > 80 && score(&ahead) <= 50, "{before} before, {} after", score(&ahead));
    assert!(ahead.stats().proactive > 0 && ahead.stats().migrated > 0);
    ahead.validate().unwrap();
}

#[test]
fn background_reclaim_ends_at_the_high_mark() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let marks = Marks { min: 16, low: 32, high: 64 };
        let mut machine = Machine::tuned(config(512, marks), Tuning::of(release), &Mobility).unwrap();
        let held: Vec<Held> =
            (0..481).filter_map(|_| machine.ask(&Ask::page(Class::File)).unwrap()).collect();
        assert_eq!((machine.stats().kswapd_wakes, machine.stats().direct), (1, 0), "{release:?}");
        for _ in 0..64 {
            machine.background(8).unwrap();
        }
        let free = machine.unusable(0).1;
        assert!((65..=65 + 64).contains(&free), "{release:?}: {free} free");
        let reclaimed = machine.stats().reclaimed;
        machine.background(64).unwrap();
        assert_eq!(machine.stats().reclaimed, reclaimed, "{release:?}: it sleeps");
        assert_eq!(
            held.iter().filter(|&&one| machine.frame(one).unwrap().is_none()).count() as u64,
            reclaimed
        );
        machine.validate().unwrap();
    }
}

#[test]
fn lumpy_reclaim_frees_large_blocks_with_fewer_pages() {
    let reclaimed = |reclaim: &'static reclaims::Entry| {
        let config = Config { reclaim, ..config(1024, Marks { min: 8, low: 12, high: 16 }) };
        let mut machine = Machine::tuned(config, Tuning::of(Release::V2_6_16), &Mobility).unwrap();
        let mut random = SplitMix64::new(3);
        let mut held = Vec::new();
        for _ in 0..4000 {
            held.extend(machine.ask(&Ask::page(Class::File)).unwrap());
            let at = random.below(held.len() as u64) as usize;
            if held.len() > 990 {
                machine.release(held.swap_remove(at)).unwrap();
            }
        }
        let before = machine.stats().reclaimed;
        let large = Ask { order: 5, effort: Effort::Hard, ..Ask::page(Class::Huge) };
        let served = (0..6).filter(|_| machine.ask(&large).unwrap().is_some()).count();
        machine.validate().unwrap();
        assert_eq!(served, 6, "{reclaim:?}");
        machine.stats().reclaimed - before
    };
    let (lru, lumpy) = (reclaimed(reclaims::LRU), reclaimed(LUMPY));
    assert!(2 * lumpy < lru, "{lumpy} pages with neighbours, {lru} in LRU order");
}

#[test]
fn a_node_that_is_full_takes_from_the_next_and_each_is_reclaimed_for_itself() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let mut two = config(512, Marks { min: 16, low: 32, high: 64 });
        let mut other = two.zones[0].clone();
        (other.node, other.shape.first) = (1, 512);
        two.zones.insert(0, other);
        let mut machine = Machine::tuned(two, Tuning::of(release), &Mobility).unwrap();
        let ask = Ask { node: 1, ..Ask::page(Class::File) };
        let held: Vec<Held> = (0..985).map(|_| machine.ask(&ask).unwrap().unwrap()).collect();
        assert_eq!(machine.frame(held[0]).unwrap().map(|frame| frame / 512), Some(1), "{release:?}");
        for _ in 0..64 {
            machine.background(16).unwrap();
        }
        for zone in 0..2 {
            let free = machine.unusable_in(zone, 0).1;
            assert!((65..=65 + 64).contains(&free), "{release:?}: {free} free on node {zone}");
        }
        // What is brought back lies on the node that it was on.
        let gone = *held.iter().find(|&&one| machine.frame(one).unwrap().is_none()).unwrap();
        assert!(machine.bring_back(gone, 0).unwrap());
        assert_eq!(machine.frame(gone).unwrap().map(|frame| frame / 512), Some(1), "{release:?}");
        machine.validate().unwrap();
        let nowhere = Ask { node: 2, ..Ask::page(Class::File) };
        assert!(machine.ask(&nowhere).unwrap_err().to_string().contains("there is no node 2"));
    }
}

#[test]
fn atomic_requests_reclaim_nothing_and_others_fail_as_far_as_they_may_go() {
    let marks = Marks { min: 64, low: 80, high: 96 };
    let mut machine = Machine::tuned(config(512, marks), Tuning::of(Release::V2_6_16), &Standard).unwrap();
    let atomic = Ask { effort: Effort::Atomic, ..Ask::page(Class::Kernel) };
    let served = std::iter::from_fn(|| machine.ask(&atomic).unwrap()).count();
    // A quarter below the minimum.
    assert_eq!(served, 512 - 48);
    assert_eq!((machine.stats().direct, machine.stats().failed[0]), (0, 1));
    assert_eq!(machine.ask(&Ask::page(Class::Kernel)).unwrap(), None);
    assert_eq!((machine.stats().direct, machine.stats().reclaimed), (1, 0));
    let once = Ask { order: 6, effort: Effort::Once, ..Ask::page(Class::Huge) };
    assert_eq!((machine.ask(&once).unwrap(), machine.stats().failed[6]), (None, 1));
    machine.validate().unwrap();
}

#[test]
fn orders_above_the_largest_are_refused() {
    let mut machine = Machine::new(config(256, NO_MARKS), &Mobility).unwrap();
    for order in [7, 22, 64, 255] {
        let wrong = machine.ask(&Ask { order, ..Ask::page(Class::File) }).unwrap_err();
        assert!(wrong.to_string().contains("above the largest, 6"), "{wrong}");
    }
    let held = machine.ask(&Ask::page(Class::File)).unwrap().unwrap();
    machine.release(held).unwrap();
    assert!(machine.release(held).is_err() && machine.touch(held).is_err());
    assert_eq!(PRIORITY, 12);
}

/// A machine of files, all of them dirty, with a disk of four pages a slice.
fn soiled(release: Release) -> (Machine, Vec<Held>) {
    let tuning = Tuning { disk: 4, queue: 16, seek: 8, ..Tuning::of(release) };
    let mut machine = Machine::tuned(config(256, NO_MARKS), tuning, &Standard).unwrap();
    let once = Ask { effort: Effort::Atomic, ..Ask::page(Class::File) };
    let held: Vec<Held> = (0..256).map(|_| machine.ask(&once).unwrap().unwrap()).collect();
    for &held in &held {
        assert!(machine.write(held).unwrap());
    }
    (machine, held)
}

#[test]
fn what_is_dirty_is_written_before_it_goes_and_the_request_waits() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let (mut machine, held) = soiled(release);
        assert_eq!(machine.dirty(), (256, 0));
        // 6.1 leaves files to the flusher: it needs a slice.
        machine.background(0).unwrap();
        assert!(machine.ask(&Ask::page(Class::File)).unwrap().is_some(), "{release:?}");
        let stats = machine.stats();
        assert!(stats.reclaimed > 0 && stats.written >= stats.reclaimed, "{release:?} {stats:?}");
        assert!(stats.naps > 0 && machine.is_waiting(), "{release:?}");
        let gone = held.iter().filter(|&&held| machine.frame(held).unwrap().is_none()).count() as u64;
        assert_eq!(gone, stats.reclaimed);
        machine.validate().unwrap();
        // A page that is given back leaves the queues.
        held.iter().for_each(|&held| machine.release(held).unwrap());
        assert_eq!(machine.dirty(), (0, 0));
        machine.validate().unwrap();
    }
}

#[test]
fn who_writes_waits_above_forty_percent_and_the_rest_is_written_when_it_is_old() {
    let (mut machine, _) = soiled(Release::V2_6_16);
    assert!(machine.is_throttled());
    let mut slices = 0;
    while machine.is_throttled() {
        machine.background(0).unwrap();
        slices += 1;
    }
    // 102 pages of 256 may be dirty or on their way; four are written in a slice.
    assert_eq!(slices, (256 - 102) / 4 + 2);
    for _ in 0..100 {
        machine.background(0).unwrap();
    }
    assert_eq!(machine.dirty(), (25, 0), "a tenth stays until it is old");
    for _ in 0..3000 {
        machine.background(0).unwrap();
    }
    assert_eq!((machine.dirty(), machine.stats().written), ((0, 0), 256));
    // Without a disk nothing waits.
    let mut machine = Machine::new(config(256, NO_MARKS), &Standard).unwrap();
    let held = machine.ask(&Ask::page(Class::File)).unwrap().unwrap();
    assert!(machine.write(held).unwrap() && machine.dirty() == (0, 0));
}
