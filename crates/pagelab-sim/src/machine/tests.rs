//! Tests of reclaim and compaction.

use pagelab_model::random::SplitMix64;

use super::reclaim::DEF_PRIORITY;
use super::{
    AllocRequest, BlockHandle, Effort, KernelTuning, Machine, MachineConfig, PageUse, Release, ZoneLimits,
    reclaim_policies,
};
use crate::memory::ZoneConfig;
use crate::pcp::PcpConfig;
use crate::policies::{GroupByMobility, SingleList};
use crate::types::{Frame, ZoneGeometry};
use crate::watermarks::Watermarks;

const LINEAR: &reclaim_policies::ReclaimPolicyEntry = &reclaim_policies::TABLE[1];
const LUMPY: &reclaim_policies::ReclaimPolicyEntry = &reclaim_policies::TABLE[2];

const NO_WATERMARKS: Watermarks = Watermarks { min: 0, low: 0, high: 0 };

/// One zone of so many frames, whose blocks are of order 6 at most and pageblocks of 4.
pub(super) fn test_config(frames: u32, watermarks: Watermarks) -> MachineConfig {
    let zone = ZoneConfig {
        name: "Normal".to_owned(),
        node: 0,
        zone_index: 0,
        geometry: ZoneGeometry { first_frame: Frame::new(0), frames, max_order: 6, pageblock_order: 4 },
        watermarks,
        lowmem_reserve: Vec::new(),
        features: crate::zone::ZoneFeatures::default(),
    };
    MachineConfig {
        zones: vec![zone],
        zone_limits: ZoneLimits { kernel: 0, page_tables: 0, user: 0 },
        pcp_config: PcpConfig::with_batch(1, 1, 1),
        reclaim_policy: reclaim_policies::LRU_ONLY,
        activates_referenced: true,
        has_compaction: false,
        swap_frames: 4096,
    }
}

fn filled_machine(config: &MachineConfig, release: Release, class: PageUse) -> (Machine, Vec<BlockHandle>) {
    let mut machine =
        Machine::with_tuning(config.clone(), KernelTuning::for_release(release), &SingleList).unwrap();
    let frames = config.zones[0].geometry.frames;
    let once = AllocRequest { effort: Effort::Atomic, ..AllocRequest::for_base_page(class) };
    let held = (0..frames).map(|_| machine.allocate_block(&once).unwrap().unwrap()).collect();
    machine.validate().unwrap();
    (machine, held)
}

/// Makes the LRU order that of `frames`, the oldest first.
fn reorder_blocks(machine: &mut Machine, held: &[BlockHandle], frames: &[u32]) {
    let mut by_frame: Vec<(Frame, BlockHandle)> =
        held.iter().map(|&held| (machine.frame_of_block(held).unwrap().unwrap(), held)).collect();
    by_frame.sort_unstable();
    for &frame in frames {
        let handle = by_frame[frame as usize].1.0;
        let entry = machine.entries[handle as usize];
        let list = machine.lru_list_of(&entry).unwrap();
        machine.lru.remove_handle(list, handle, 1);
        machine.lru.add_newest(list, handle, 1);
    }
}

/// Pages released in LRU order until there is a block of the order.
fn pages_released(machine: &mut Machine, order: u8) -> u64 {
    let mut released = 0;
    let list = super::LruList { lruvec: 0, kind: super::LruKind::Anonymous, is_active: false };
    while machine.memory.zone(0).1.zone().free_blocks()[usize::from(order)..].iter().all(|&n| n == 0) {
        let oldest = machine.lru.oldest(list).unwrap();
        machine.evict_block(oldest).unwrap();
        released += 1;
    }
    machine.validate().unwrap();
    released
}

/// F_r(j): pages to release in a zone of `frames` pages, in an order independent of their location, until a
/// block of 2^order is certainly free: (N / 2^j)(2^j − 1) + 1 (Gorman and Whitcroft 2006, section 10).
/// `None`: the zone has no such block.
fn pages_to_release(frames: u64, order: u8) -> Option<u64> {
    let block = 1u64.checked_shl(u32::from(order))?;
    let blocks = frames / block;
    (blocks > 0).then(|| blocks * (block - 1) + 1)
}

/// The same as a share of a zone that is very large, in hundredths of a percent, rounded half up: Figure 9.
fn share_to_release(order: u8) -> u32 {
    let block = 1u64 << order.min(32);
    ((20_000 * (block - 1) + block) / (2 * block)) as u32
}

#[test]
fn shares_are_those_of_the_papers_figure_9() {
    let paper = [(1, 5000), (2, 7500), (3, 8750), (4, 9375), (5, 9688), (6, 9844), (10, 9990), (12, 9998)];
    for (order, hundredths) in paper {
        assert_eq!(share_to_release(order), hundredths, "order {order}");
        // For a zone of 4 GiB, within what the `+ 1` adds.
        let frames = 1 << 20;
        let exact = pages_to_release(frames, order).unwrap() * 10_000 / frames;
        assert!(exact.abs_diff(u64::from(hundredths)) <= 7, "order {order}: {exact}");
    }
    assert_eq!(pages_to_release(256, 4), Some(16 * 15 + 1));
    assert_eq!(
        (pages_to_release(8, 4), pages_to_release(8, 3), pages_to_release(8, 0)),
        (None, Some(8), Some(1))
    );
}

#[test]
fn the_worst_order_of_release_needs_just_what_the_formula_says() {
    for order in 1..=6u8 {
        let config = test_config(256, NO_WATERMARKS);
        let worst = pages_to_release(256, order).unwrap();
        // One page of each block is the youngest of all.
        let (mut machine, held) = filled_machine(&config, Release::V2_6_16, PageUse::File);
        let (mut order_of_release, last): (Vec<u32>, Vec<u32>) =
            (0..256u32).partition(|frame| !frame.is_multiple_of(1 << order));
        order_of_release.extend(last);
        reorder_blocks(&mut machine, &held, &order_of_release);
        assert_eq!(pages_released(&mut machine, order), worst, "order {order}");
        // In random order it is fewer.
        let mut random = SplitMix64::new(u64::from(order));
        let mut shuffled: Vec<u32> = (0..256).collect();
        for at in (1..shuffled.len()).rev() {
            shuffled.swap(at, random.next_below(at as u64 + 1) as usize);
        }
        let (mut machine, held) = filled_machine(&config, Release::V2_6_16, PageUse::File);
        reorder_blocks(&mut machine, &held, &shuffled);
        let in_random_order = pages_released(&mut machine, order);
        assert!(in_random_order < worst, "order {order}: {in_random_order} of {worst}");
        // Linear reclaim needs one block, wherever the old pages are.
        if order >= 3 {
            let linear = MachineConfig { reclaim_policy: LINEAR, ..config.clone() };
            let (mut machine, held) = filled_machine(&linear, Release::V2_6_16, PageUse::File);
            reorder_blocks(&mut machine, &held, &shuffled);
            let ask = AllocRequest { order, ..AllocRequest::for_base_page(PageUse::Hugetlb) };
            assert!(machine.allocate_block(&ask).unwrap().is_some());
            assert!(
                machine.stats().pages_reclaimed <= 1 << order,
                "order {order}: {}",
                machine.stats().pages_reclaimed
            );
            machine.validate().unwrap();
        }
    }
}

#[test]
fn linear_reclaim_passes_regions_that_hold_what_must_stay() {
    let config = MachineConfig { reclaim_policy: LINEAR, ..test_config(256, NO_WATERMARKS) };
    let (mut machine, held) = filled_machine(&config, Release::V2_6_16, PageUse::File);
    // A page of each block of 16 but the eleventh is pinned.
    for &one in &held {
        let frame = machine.frame_of_block(one).unwrap().unwrap();
        machine.set_pinned(one, frame.number() % 16 == 7 && frame.number() / 16 != 11).unwrap();
    }
    let block = machine
        .allocate_block(&AllocRequest { order: 4, ..AllocRequest::for_base_page(PageUse::Hugetlb) })
        .unwrap()
        .unwrap();
    assert_eq!(machine.frame_of_block(block).unwrap(), Some(Frame::new(11 * 16)));
    assert_eq!((machine.stats().pages_reclaimed, machine.stats().regions_tried), (16, 1));
    assert_eq!(
        machine
            .allocate_block(&AllocRequest { order: 4, ..AllocRequest::for_base_page(PageUse::Hugetlb) })
            .unwrap(),
        None
    );
    machine.validate().unwrap();
}

/// A stream of pages used once beside a set that is used again and again: how often the set is brought back.
fn count_refaults(release: Release, keeps_referenced: bool) -> u64 {
    let watermarks = Watermarks { min: 16, low: 20, high: 24 };
    let config = MachineConfig { activates_referenced: keeps_referenced, ..test_config(512, watermarks) };
    let mut machine =
        Machine::with_tuning(config, KernelTuning::for_release(release), &GroupByMobility).unwrap();
    let set: Vec<BlockHandle> = (0..128)
        .map(|_| machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap().unwrap())
        .collect();
    let mut stream = std::collections::VecDeque::new();
    for step in 0..20_000usize {
        let used = set[step % set.len()];
        if !machine.touch_block(used).unwrap() {
            assert!(machine.refault_block(used, 0).unwrap());
        }
        stream
            .push_back(machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap().unwrap());
        if stream.len() > 600 {
            machine.free_block(stream.pop_front().unwrap()).unwrap();
        }
        machine.run_background(32).unwrap();
    }
    machine.validate().unwrap();
    machine.stats().refaults
}

#[test]
fn pages_in_use_stay_unless_the_switch_is_off() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let (kept, lost) = (count_refaults(release, true), count_refaults(release, false));
        assert!(lost >= 4 * kept.max(10), "{release:?}: {kept} with PAGEREF_ACTIVATE, {lost} without");
    }
}

#[test]
fn pages_of_programs_need_swap_and_pages_of_caches_lose_their_objects() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let watermarks = Watermarks { min: 16, low: 20, high: 24 };
        let config = MachineConfig { swap_frames: 40, ..test_config(512, watermarks) };
        let mut machine =
            Machine::with_tuning(config, KernelTuning::for_release(release), &GroupByMobility).unwrap();
        let asks = [PageUse::Anonymous, PageUse::Slab].map(AllocRequest::for_base_page);
        let mut held: Vec<BlockHandle> = Vec::new();
        while let Some(one) = machine.allocate_block(&asks[held.len() % 2]).unwrap() {
            machine.set_objects_in_use(one, if held.len() % 8 == 1 { 1 } else { 0 }).unwrap();
            held.push(one);
            assert!(held.len() < 2000, "{release:?}: caches and 40 frames of swap are no end of memory");
        }
        machine.validate().unwrap();
        let stats = machine.stats();
        assert_eq!((machine.swapped_frames, stats.pages_swapped), (40, 40), "{release:?}");
        assert!(stats.slab_pages > 50, "{release:?}: {stats:?}");
        // Pages with an object in use remain.
        for (at, &one) in held.iter().enumerate().filter(|(at, _)| at % 8 == 1) {
            assert!(machine.frame_of_block(one).unwrap().is_some(), "{release:?}: {at}");
        }
        for one in held {
            machine.free_block(one).unwrap();
        }
        machine.validate().unwrap();
        assert_eq!(machine.unusable_free_frames(0).1, 512);
    }
}

/// Every other page of programs is freed; large folios are between them.
fn fragmented_machine(compacts: bool) -> (Machine, Vec<BlockHandle>) {
    let watermarks = Watermarks { min: 8, low: 12, high: 16 };
    let config = MachineConfig { has_compaction: compacts, swap_frames: 0, ..test_config(1024, watermarks) };
    let mut machine = Machine::new(config, &GroupByMobility).unwrap();
    let mut held = Vec::new();
    for at in 0..900u32 {
        let order = if at % 90 == 89 { 3 } else { 0 };
        held.extend(
            machine
                .allocate_block(&AllocRequest { order, ..AllocRequest::for_base_page(PageUse::Anonymous) })
                .unwrap(),
        );
    }
    let mut at = 0;
    held.retain(|&one| {
        at += 1;
        at % 2 == 0 || machine.free_block(one).is_err()
    });
    (machine, held)
}

#[test]
fn compaction_makes_room_for_what_reclaim_cannot() {
    let large = AllocRequest { order: 6, ..AllocRequest::for_base_page(PageUse::Hugetlb) };
    let serve =
        |machine: &mut Machine| std::iter::from_fn(|| machine.allocate_block(&large).unwrap()).count();
    let (mut without, _) = fragmented_machine(false);
    let (mut with, held) = fragmented_machine(true);
    let before: Vec<_> = held.iter().map(|&one| with.frame_of_block(one).unwrap()).collect();
    let (few, many) = (serve(&mut without), serve(&mut with));
    assert!(many >= few + 4, "{few} blocks without, {many} with compaction");
    with.validate().unwrap();
    let moved =
        held.iter().zip(&before).filter(|&(&one, &was)| with.frame_of_block(one).unwrap() != was).count();
    assert!(moved > 50 && with.stats().pages_migrated >= moved as u64, "{moved} of {:?}", with.stats());
    assert_eq!(with.stats().pages_reclaimed, 0, "there was nowhere to swap to");
    // Handles are as good as before.
    for one in held {
        with.free_block(one).unwrap();
    }
    with.validate().unwrap();
}

#[test]
fn pages_that_are_pinned_block_compaction_and_it_is_put_off() {
    let (mut machine, held) = fragmented_machine(true);
    held.iter().for_each(|&one| machine.set_pinned(one, true).unwrap());
    let large = AllocRequest { order: 6, ..AllocRequest::for_base_page(PageUse::Hugetlb) };
    let mut served = 0;
    for _ in 0..300 {
        served += machine.allocate_block(&large).unwrap().iter().len();
    }
    assert_eq!(machine.stats().pages_migrated, 0);
    assert!(machine.stats().compactions_deferred > 100, "{:?}", machine.stats());
    assert!(served < 3);
    // Postponed pages are tried again.
    held.iter().for_each(|&one| machine.set_pinned(one, false).unwrap());
    let served = (0..300).filter(|_| machine.allocate_block(&large).unwrap().is_some()).count();
    assert!(served >= 4, "{served} {:?}", machine.stats());
    machine.validate().unwrap();
}

#[test]
fn memory_is_compacted_ahead_of_need_if_asked_for() {
    let score = |machine: &Machine| {
        let (small, free) = machine.unusable_free_frames(4);
        small * 100 / free
    };
    let (mut idle, _) = fragmented_machine(true);
    idle.run_background(64).unwrap();
    let (mut ahead, _) = fragmented_machine(true);
    ahead.tuning.compaction_proactiveness = 60;
    ahead.has_background_work = true;
    let before = score(&ahead);
    for _ in 0..200 {
        ahead.run_background(64).unwrap();
    }
    assert_eq!((score(&idle), idle.stats().pages_migrated), (before, 0));
    assert!(before > 80 && score(&ahead) <= 50, "{before} before, {} after", score(&ahead));
    assert!(ahead.stats().proactive_compactions > 0 && ahead.stats().pages_migrated > 0);
    ahead.validate().unwrap();
}

#[test]
fn background_reclaim_ends_at_the_high_watermark() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let watermarks = Watermarks { min: 16, low: 32, high: 64 };
        let mut machine = Machine::with_tuning(
            test_config(512, watermarks),
            KernelTuning::for_release(release),
            &GroupByMobility,
        )
        .unwrap();
        let held: Vec<BlockHandle> = (0..481)
            .filter_map(|_| machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap())
            .collect();
        assert_eq!((machine.stats().kswapd_wakeups, machine.stats().direct_reclaims), (1, 0), "{release:?}");
        for _ in 0..64 {
            machine.run_background(8).unwrap();
        }
        let free = machine.unusable_free_frames(0).1;
        assert!((65..=65 + 64).contains(&free), "{release:?}: {free} free");
        let reclaimed = machine.stats().pages_reclaimed;
        machine.run_background(64).unwrap();
        assert_eq!(machine.stats().pages_reclaimed, reclaimed, "{release:?}: it sleeps");
        assert_eq!(
            held.iter().filter(|&&one| machine.frame_of_block(one).unwrap().is_none()).count() as u64,
            reclaimed
        );
        machine.validate().unwrap();
    }
}

#[test]
fn lumpy_reclaim_frees_large_blocks_with_fewer_pages() {
    let reclaimed = |reclaim: &'static reclaim_policies::ReclaimPolicyEntry| {
        let config = MachineConfig {
            reclaim_policy: reclaim,
            ..test_config(1024, Watermarks { min: 8, low: 12, high: 16 })
        };
        let mut machine =
            Machine::with_tuning(config, KernelTuning::for_release(Release::V2_6_16), &GroupByMobility)
                .unwrap();
        let mut random = SplitMix64::new(3);
        let mut held = Vec::new();
        for _ in 0..4000 {
            held.extend(machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap());
            let at = random.next_below(held.len() as u64) as usize;
            if held.len() > 990 {
                machine.free_block(held.swap_remove(at)).unwrap();
            }
        }
        let before = machine.stats().pages_reclaimed;
        let large = AllocRequest {
            order: 5,
            effort: Effort::RetryMayFail,
            ..AllocRequest::for_base_page(PageUse::Hugetlb)
        };
        let served = (0..6).filter(|_| machine.allocate_block(&large).unwrap().is_some()).count();
        machine.validate().unwrap();
        assert_eq!(served, 6, "{reclaim:?}");
        machine.stats().pages_reclaimed - before
    };
    let (lru, lumpy) = (reclaimed(reclaim_policies::LRU_ONLY), reclaimed(LUMPY));
    assert!(2 * lumpy < lru, "{lumpy} pages with neighbours, {lru} in LRU order");
}

#[test]
fn a_node_that_is_full_takes_from_the_next_and_each_is_reclaimed_for_itself() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let mut two = test_config(512, Watermarks { min: 16, low: 32, high: 64 });
        let mut other = two.zones[0].clone();
        (other.node, other.geometry.first_frame) = (1, Frame::new(512));
        two.zones.insert(0, other);
        let mut machine =
            Machine::with_tuning(two, KernelTuning::for_release(release), &GroupByMobility).unwrap();
        let ask = AllocRequest { node: 1, ..AllocRequest::for_base_page(PageUse::File) };
        let held: Vec<BlockHandle> =
            (0..985).map(|_| machine.allocate_block(&ask).unwrap().unwrap()).collect();
        assert_eq!(
            machine.frame_of_block(held[0]).unwrap().map(|frame| frame.number() / 512),
            Some(1),
            "{release:?}"
        );
        for _ in 0..64 {
            machine.run_background(16).unwrap();
        }
        for zone in 0..2 {
            let free = machine.unusable_free_frames_in_zone(zone, 0).1;
            assert!((65..=65 + 64).contains(&free), "{release:?}: {free} free on node {zone}");
        }
        // A page that is swapped in is on its earlier node.
        let gone = *held.iter().find(|&&one| machine.frame_of_block(one).unwrap().is_none()).unwrap();
        assert!(machine.refault_block(gone, 0).unwrap());
        assert_eq!(
            machine.frame_of_block(gone).unwrap().map(|frame| frame.number() / 512),
            Some(1),
            "{release:?}"
        );
        machine.validate().unwrap();
        let nowhere = AllocRequest { node: 2, ..AllocRequest::for_base_page(PageUse::File) };
        assert!(machine.allocate_block(&nowhere).unwrap_err().to_string().contains("no node 2"));
    }
}

#[test]
fn atomic_requests_reclaim_nothing_and_others_fail_as_far_as_they_may_go() {
    let watermarks = Watermarks { min: 64, low: 80, high: 96 };
    let mut machine = Machine::with_tuning(
        test_config(512, watermarks),
        KernelTuning::for_release(Release::V2_6_16),
        &SingleList,
    )
    .unwrap();
    let atomic = AllocRequest { effort: Effort::Atomic, ..AllocRequest::for_base_page(PageUse::Kernel) };
    let served = std::iter::from_fn(|| machine.allocate_block(&atomic).unwrap()).count();
    // A quarter below the minimum.
    assert_eq!(served, 512 - 48);
    assert_eq!((machine.stats().direct_reclaims, machine.stats().allocations_failed[0]), (0, 1));
    assert_eq!(machine.allocate_block(&AllocRequest::for_base_page(PageUse::Kernel)).unwrap(), None);
    assert_eq!((machine.stats().direct_reclaims, machine.stats().pages_reclaimed), (1, 0));
    let once =
        AllocRequest { order: 6, effort: Effort::NoRetry, ..AllocRequest::for_base_page(PageUse::Hugetlb) };
    assert_eq!((machine.allocate_block(&once).unwrap(), machine.stats().allocations_failed[6]), (None, 1));
    machine.validate().unwrap();
}

#[test]
fn orders_above_the_largest_are_refused() {
    let mut machine = Machine::new(test_config(256, NO_WATERMARKS), &GroupByMobility).unwrap();
    for order in [7, 22, 64, 255] {
        let wrong = machine
            .allocate_block(&AllocRequest { order, ..AllocRequest::for_base_page(PageUse::File) })
            .unwrap_err();
        assert!(wrong.to_string().contains("above the largest, 6"), "{wrong}");
    }
    let held = machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap().unwrap();
    machine.free_block(held).unwrap();
    assert!(machine.free_block(held).is_err() && machine.touch_block(held).is_err());
    assert_eq!(DEF_PRIORITY, 12);
}

/// A machine of files, all of them dirty, with a disk of four pages a slice.
fn dirty_machine(release: Release) -> (Machine, Vec<BlockHandle>) {
    let tuning = KernelTuning {
        disk_pages_per_slice: 4,
        queue_pages: 16,
        seek_pages: 8,
        ..KernelTuning::for_release(release)
    };
    let mut machine = Machine::with_tuning(test_config(256, NO_WATERMARKS), tuning, &SingleList).unwrap();
    let once = AllocRequest { effort: Effort::Atomic, ..AllocRequest::for_base_page(PageUse::File) };
    let held: Vec<BlockHandle> = (0..256).map(|_| machine.allocate_block(&once).unwrap().unwrap()).collect();
    for &held in &held {
        assert!(machine.write_block(held).unwrap());
    }
    (machine, held)
}

fn dirty_and_writeback_pages(machine: &Machine) -> (u32, u32) {
    (machine.disk.dirty_pages, machine.disk.writeback_pages)
}

#[test]
fn what_is_dirty_is_written_before_it_goes_and_the_request_waits() {
    for release in [Release::V2_6_16, Release::V6_1] {
        let (mut machine, held) = dirty_machine(release);
        assert_eq!(dirty_and_writeback_pages(&machine), (256, 0));
        // 6.1 leaves files to the flusher: it needs a slice.
        machine.run_background(0).unwrap();
        assert!(
            machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap().is_some(),
            "{release:?}"
        );
        let stats = machine.stats();
        assert!(
            stats.pages_reclaimed > 0 && stats.pages_written >= stats.pages_reclaimed,
            "{release:?} {stats:?}"
        );
        assert!(stats.congestion_waits > 0 && machine.is_io_blocked(), "{release:?}");
        let gone =
            held.iter().filter(|&&held| machine.frame_of_block(held).unwrap().is_none()).count() as u64;
        assert_eq!(gone, stats.pages_reclaimed);
        machine.validate().unwrap();
        // A freed page leaves the queues.
        held.iter().for_each(|&held| machine.free_block(held).unwrap());
        assert_eq!(dirty_and_writeback_pages(&machine), (0, 0));
        machine.validate().unwrap();
    }
}

#[test]
fn who_writes_waits_above_forty_percent_and_the_rest_is_written_when_it_is_old() {
    let (mut machine, _) = dirty_machine(Release::V2_6_16);
    assert!(machine.is_throttled());
    let mut slices = 0;
    while machine.is_throttled() {
        machine.run_background(0).unwrap();
        slices += 1;
    }
    // 102 pages of 256 may be dirty or on their way; four are written in a slice.
    assert_eq!(slices, (256 - 102) / 4 + 2);
    for _ in 0..100 {
        machine.run_background(0).unwrap();
    }
    assert_eq!(dirty_and_writeback_pages(&machine), (25, 0), "a tenth stays until it is old");
    for _ in 0..3000 {
        machine.run_background(0).unwrap();
    }
    assert_eq!((dirty_and_writeback_pages(&machine), machine.stats().pages_written), ((0, 0), 256));
    // Without a disk nothing waits.
    let mut machine = Machine::new(test_config(256, NO_WATERMARKS), &SingleList).unwrap();
    let held = machine.allocate_block(&AllocRequest::for_base_page(PageUse::File)).unwrap().unwrap();
    assert!(machine.write_block(held).unwrap() && dirty_and_writeback_pages(&machine) == (0, 0));
}
