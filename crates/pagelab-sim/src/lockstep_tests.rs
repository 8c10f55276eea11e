//! Lockstep tests of the engine and its naive twin, event by event.

use pagelab_model::random::SplitMix64;

use crate::injected_bugs::{Bug, InjectedBug};
use crate::naive::{
    NaiveAllocFlags, NaiveBatching, NaivePcpZone, NaiveZone, PolicyRule, PolicyTable, StolenPart,
};
use crate::pcp::{PcpBatching, PcpConfig, PcpZone};
use crate::policies::{FallbackMode, GroupByMobility, Policy, PolicyEntry, StealExtent, TABLE};
use crate::types::{AllocationType, Frame, FreeListDiscipline, ORDER_MAX, ZoneFeatures, ZoneGeometry};
use crate::zone::{AllocFlags, Zone};

/// Configuration of a comparison.
#[derive(Clone, Debug)]
struct Case {
    geometry: ZoneGeometry,
    entry: &'static PolicyEntry,
    extras: ZoneFeatures,
    bug: Option<Bug>,
    /// Whether the twin uses the policy's numbers instead of its own.
    uses_policy_table: bool,
    seed: u64,
    events: u32,
}

impl Case {
    fn new(geometry: ZoneGeometry, entry: &'static PolicyEntry, seed: u64, events: u32) -> Case {
        let is_told = PolicyTable::for_policy_name(entry.name, geometry).is_none();
        Case {
            geometry,
            entry,
            extras: ZoneFeatures::default(),
            bug: None,
            uses_policy_table: is_told,
            seed,
            events,
        }
    }

    fn zone(&self) -> Zone<&'static (dyn Policy + Sync)> {
        let mut zone = Zone::with_features(self.geometry, self.entry.policy, &self.extras).unwrap();
        zone.bug = InjectedBug::new(self.bug);
        zone
    }

    fn reference_zone(&self) -> NaiveZone {
        let table = match PolicyTable::for_policy_name(self.entry.name, self.geometry) {
            Some(table) if !self.uses_policy_table => table,
            _ => policy_table_of(self.entry.policy, self.geometry),
        };
        NaiveZone::new(self.geometry, table, &self.extras)
    }
}

/// Parameters of a policy, as numbers.
fn policy_table_of(policy: &dyn Policy, geometry: ZoneGeometry) -> PolicyTable {
    let lists = policy.list_count();
    let part = |wanted: u8, size: u8| match policy.steal_extent(wanted, size, geometry.pageblock_order) {
        StealExtent::Pageblock => StolenPart::WholePageblock,
        StealExtent::SmallestBlock => StolenPart::SmallestBlock,
        StealExtent::LargestBlock => StolenPart::LargestBlock,
        StealExtent::RequestedOrder => StolenPart::RequestedOrder,
    };
    let blocks = geometry.frames >> geometry.pageblock_order;
    PolicyTable {
        rule: match policy.fallback_mode() {
            FallbackMode::MoveFreeBlocks => PolicyRule::Table,
            FallbackMode::ClaimLargestOrSteal => PolicyRule::ClaimLargestOrSteal,
            FallbackMode::ClaimThenSteal => PolicyRule::ClaimThenSteal,
            FallbackMode::ResizeRegion => PolicyRule::ResizeRegion,
        },
        list_count: lists,
        allocation_lists: AllocationType::ALL.map(|kind| policy.allocation_list(kind)),
        free_lists: AllocationType::ALL
            .map(|kind| (0..lists).map(|owner| policy.free_list(kind, owner)).collect()),
        fallbacks: (0..lists).map(|wanted| policy.fallbacks(wanted).to_vec()).collect(),
        stolen_parts: (0..lists)
            .map(|list| (0..=geometry.max_order).map(|size| part(list, size)).collect())
            .collect(),
        has_merge_prediction: policy.has_merge_prediction(),
        initial_owners: (0..blocks).map(|block| policy.initial_owner(block, blocks)).collect(),
    }
}

/// Requests: for a while mostly of one allocation type, then of another, then evenly.
fn random_request(
    random: &mut SplitMix64,
    geometry: &ZoneGeometry,
    event: u32,
) -> (u8, AllocationType, NaiveAllocFlags) {
    let order = match random.next_below(100) {
        0..85 => 0,
        _ => random.next_below(u64::from(geometry.max_order) + 1) as u8,
    };
    let kind = match AllocationType::from_index((event / 700 % 4) as u8) {
        Some(kind) if random.next_below(20) > 0 => kind,
        _ => AllocationType::ALL[random.next_below(3) as usize],
    };
    let how = NaiveAllocFlags {
        can_fragment: random.next_below(8) > 0,
        is_atomic: random.next_below(10) == 0,
        last_source: 0,
    };
    (order, kind, how)
}

fn alloc_flags_of(how: &NaiveAllocFlags) -> AllocFlags {
    AllocFlags { can_fragment: how.can_fragment, is_atomic: how.is_atomic, ..AllocFlags::DEFAULT }
}

/// Metadata of both that no answer shows.
fn compare_state<P: Policy>(ours: &Zone<P>, theirs: &NaiveZone, event: u32) -> Option<String> {
    if ours.free_blocks() != theirs.free_blocks() {
        return Some("free blocks".to_owned());
    }
    if ours.fragmentation_events() != theirs.fragmentation_events {
        return Some("fragmentation events".to_owned());
    }
    if ours.pageblock_owners() != theirs.pageblock_owners() {
        return Some("owners of pageblocks".to_owned());
    }
    if event.is_multiple_of(64) { ours.validate().err().map(|wrong| wrong.to_string()) } else { None }
}

/// Up to the first difference: the event, and what differs.
fn first_difference(case: &Case) -> Option<(u32, String)> {
    let (mut zone, mut naive, geometry) = (case.zone(), case.reference_zone(), case.geometry);
    let mut random = SplitMix64::new(case.seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..case.events {
        // Memory fills and empties in long waves, so that stealing and merging both come up.
        let full = u64::from(geometry.frames - zone.free_frames()) * 100 / u64::from(geometry.frames);
        let goal = if event / 500 % 2 == 0 { 97 } else { 30 };
        let takes = live.is_empty() || random.next_below(100) < if full < goal { 70 } else { 30 };
        let (order, kind, mut how) = random_request(&mut random, &geometry, event);
        let odd = random.next_below(64);
        if odd == 0 {
            let (ours, theirs) = (
                zone.unreserve_highatomic(kind, event % 2 == 0),
                naive.unreserve_highatomic(kind, event % 2 == 0),
            );
            if ours != theirs {
                return Some((event, format!("freed: {ours}, the twin {theirs}")));
            }
        } else if odd == 2 {
            let (ours, theirs) = (zone.lower_boundary(), naive.lower_boundary());
            if ours != theirs {
                return Some((event, format!("the boundary moved over {ours}, the twin {theirs}")));
            }
        } else if odd == 1 {
            let frame = geometry.first_frame + random.next_below(geometry.frames.into()) as u32;
            let frame = frame.align_down(order);
            if frame < geometry.first_frame || frame + (1 << order) > geometry.end() {
                continue;
            }
            let ours = zone.allocate_at(frame, order, kind).unwrap();
            let theirs = naive.allocate_at(frame, order, kind);
            if ours != theirs {
                return Some((event, format!("at {frame:#x} order {order}: {ours}, the twin {theirs}")));
            }
            live.extend(ours.then_some(frame));
        } else if takes {
            let ours = zone.allocate_with_flags(order, kind, &mut alloc_flags_of(&how)).unwrap();
            let ours = ours.map(|taken| (taken.frame, taken.fallback));
            let theirs = naive.allocate_with_flags(order, kind, &mut how);
            if ours != theirs {
                return Some((event, format!("order {order} {kind:?}: {ours:?}, the twin {theirs:?}")));
            }
            live.extend(ours.map(|(frame, _)| frame));
        } else {
            let frame = live.swap_remove(random.next_below(live.len() as u64) as usize);
            let (ours, theirs) = (zone.free_block(frame).ok(), naive.free_block(frame));
            if ours != theirs {
                return Some((event, format!("freed {frame:#x}: {ours:?}, the twin {theirs:?}")));
            }
        }
        if let Some(what) = compare_state(&zone, &naive, event) {
            return Some((event, what));
        }
    }
    None
}

/// The same with lists of three processors.
fn first_difference_with_pcp(case: &Case, keep: PcpConfig) -> Option<(u32, String)> {
    let mut ours = PcpZone::new(case.zone(), keep).unwrap();
    let (batching, high_watermark) = match keep.batching {
        PcpBatching::FixedBatch => (NaiveBatching::FixedBatch, 0),
        PcpBatching::FreeFactor { .. } => (NaiveBatching::FreeFactor, 0),
        PcpBatching::AutoTuned { high_max, high_watermark, free_count_limit } => {
            (NaiveBatching::AutoTuned { high_max, free_count_limit }, high_watermark)
        }
    };
    let mut theirs = NaivePcpZone::new(case.reference_zone(), keep.batch, keep.high, batching);
    theirs.high_watermark = high_watermark.into();
    let mut random = SplitMix64::new(case.seed);
    let mut live: Vec<Frame> = Vec::new();
    for event in 0..case.events {
        let goal = if event / 300 % 2 == 0 { 80 } else { 20 };
        let cpu = random.next_below(u64::from(keep.cpus)) as u16;
        match event % 512 {
            100 => {
                ours.decay_lists();
            }
            300 => ours.set_reclaiming(true),
            370 => ours.set_reclaiming(false),
            _ => {}
        }
        match event % 512 {
            100 => theirs.decay_lists(),
            300 => theirs.is_reclaiming = true,
            370 => theirs.is_reclaiming = false,
            _ => {}
        }
        if live.is_empty() || random.next_below(100) < goal {
            let (order, kind, how) = random_request(&mut random, &case.geometry, event);
            let taken = ours.allocate_with_flags(cpu, order, kind, alloc_flags_of(&how)).unwrap();
            let taken = taken.map(|taken| (taken.frame, taken.fallback));
            let twin = theirs.allocate_block(cpu, order, kind, how);
            if taken != twin {
                return Some((event, format!("order {order} {kind:?}: {taken:?}, the twin {twin:?}")));
            }
            live.extend(taken.map(|(frame, _)| frame));
        } else {
            let frame = live.swap_remove(random.next_below(live.len() as u64) as usize);
            let (freed, twin) = (ours.free_block(cpu, frame).ok(), theirs.free_block(cpu, frame));
            if freed != twin || ours.free_block(cpu, frame).is_ok() {
                return Some((event, format!("freed {frame:#x}: {freed:?}, the twin {twin:?}; or twice")));
            }
        }
        if let Some(what) = compare_state(ours.zone(), &theirs.zone, event) {
            return Some((event, what));
        }
        if event % 64 == 0 {
            ours.validate().unwrap();
        }
    }
    for frame in live {
        ours.free_block(0, frame).unwrap();
    }
    ours.drain_all_lists();
    assert_eq!((ours.zone().free_frames(), ours.pcp_frames()), (case.geometry.frames, 0));
    None
}

const PCP_CONFIGS: [PcpConfig; 6] = [
    PcpConfig::with_batch(3, 1, 1),
    PcpConfig::with_batch(3, 4, 12),
    PcpConfig::with_batch(3, 31, 40),
    PcpConfig { cpus: 3, batch: 2, high: 20, batching: PcpBatching::FreeFactor { drains_high_order: true } },
    PcpConfig {
        cpus: 3,
        batch: 2,
        high: 10,
        batching: PcpBatching::AutoTuned { high_max: 60, high_watermark: 20, free_count_limit: 2 },
    },
    PcpConfig {
        cpus: 2,
        batch: 1,
        high: 8,
        batching: PcpBatching::AutoTuned { high_max: 8, high_watermark: 9, free_count_limit: 5 },
    },
];

const GEOMETRIES: [ZoneGeometry; 4] = [
    ZoneGeometry { first_frame: Frame::new(0), frames: 256, max_order: 6, pageblock_order: 4 },
    // Begins and ends inside of a largest block.
    ZoneGeometry { first_frame: Frame::new(48), frames: 208, max_order: 6, pageblock_order: 4 },
    ZoneGeometry { first_frame: Frame::new(1 << 20), frames: 512, max_order: 5, pageblock_order: 5 },
    ZoneGeometry { first_frame: Frame::new(0), frames: 96, max_order: 3, pageblock_order: 1 },
];

/// Features of a zone, one by one and all at once.
fn all_features(geometry: &ZoneGeometry) -> Vec<ZoneFeatures> {
    let block = 1 << geometry.pageblock_order;
    let cma = vec![
        geometry.first_frame + block..geometry.first_frame + 3 * block,
        geometry.end() - block..geometry.end(),
    ];
    let none = ZoneFeatures::default();
    vec![
        ZoneFeatures { list_discipline: FreeListDiscipline::Fifo, ..none.clone() },
        ZoneFeatures { list_discipline: FreeListDiscipline::Shuffled(3), ..none.clone() },
        ZoneFeatures { has_highatomic: true, ..none.clone() },
        ZoneFeatures { cma_areas: cma.clone(), ..none },
        ZoneFeatures {
            list_discipline: FreeListDiscipline::Shuffled(4),
            has_highatomic: true,
            cma_areas: cma,
        },
    ]
}

#[test]
fn the_engine_and_its_twin_agree_on_every_event() {
    for geometry in GEOMETRIES {
        for entry in TABLE {
            for seed in 0..4 {
                let case = Case::new(geometry, entry, seed, 3000);
                assert_eq!(first_difference(&case), None, "{case:?}");
            }
        }
    }
}

/// A policy without numbers in the twin is compared with its own; those of Linux and of the papers are held
/// to numbers that were written anew.
#[test]
fn policy_tables_give_the_results_of_the_rules() {
    let ruled =
        ["standard", "list2", "list3", "mobility-6.1", "mobility-6.10", "mobility-6.18", "contiguitas"];
    for name in ruled.into_iter().chain(["defrag-6.18"]) {
        assert!(
            PolicyTable::for_policy_name(name, GEOMETRIES[0]).is_some(),
            "{name} has no numbers in PolicyTable::for_policy_name of naive.rs"
        );
    }
    for (seed, geometry) in (21..).zip(GEOMETRIES) {
        for entry in TABLE {
            let case = Case { uses_policy_table: true, ..Case::new(geometry, entry, seed, 2000) };
            assert_eq!(first_difference(&case), None, "{case:?}");
            assert_eq!(first_difference_with_pcp(&case, PCP_CONFIGS[2]), None, "{case:?}");
        }
    }
}

#[test]
fn what_processors_keep_is_what_the_twin_keeps() {
    for (seed, geometry) in (5..).zip(GEOMETRIES) {
        for entry in TABLE {
            for keep in PCP_CONFIGS {
                let case = Case::new(geometry, entry, seed, 2500);
                assert_eq!(first_difference_with_pcp(&case, keep), None, "{case:?} {keep:?}");
            }
        }
    }
    let zone = || Zone::new(GEOMETRIES[0], GroupByMobility).unwrap();
    for (cpus, batch, high) in [(0, 1, 1), (1, 0, 4), (1, 5, 4)] {
        assert!(PcpZone::new(zone(), PcpConfig::with_batch(cpus, batch, high)).is_err());
    }
}

#[test]
fn reserves_and_other_ends_are_those_of_the_twin() {
    for (seed, geometry) in (11..).zip(GEOMETRIES) {
        for entry in TABLE {
            for extras in all_features(&geometry) {
                let case = Case { extras, ..Case::new(geometry, entry, seed, 2000) };
                assert_eq!(first_difference(&case), None, "{case:?}");
                assert_eq!(first_difference_with_pcp(&case, PCP_CONFIGS[1]), None, "{case:?}");
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
            let geometry = ZoneGeometry {
                first_frame: Frame::new(3 << block_order),
                frames: 31 << 6,
                max_order,
                pageblock_order: block_order,
            };
            let case = Case::new(geometry, entry, u64::from(max_order), 300);
            assert_eq!(first_difference(&case), None, "{case:?}");
            assert_eq!(first_difference_with_pcp(&case, PCP_CONFIGS[1]), None, "{case:?}");
        }
    }
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for bug in Bug::ALL {
        let finds = |geometry: ZoneGeometry, entry: &'static PolicyEntry, extras: &ZoneFeatures| {
            let case =
                Case { bug: Some(bug), extras: extras.clone(), ..Case::new(geometry, entry, 1, 10_000) };
            // An injected bug can corrupt the metadata beyond all bounds.
            let by_cpu = || PCP_CONFIGS[1..5].iter().find_map(|&keep| first_difference_with_pcp(&case, keep));
            let differs = || first_difference(&case).or_else(by_cpu).is_some();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(differs)).unwrap_or(true)
        };
        let found = [GEOMETRIES[0], GEOMETRIES[2]].iter().any(|&geometry| {
            let mut all = all_features(&geometry);
            all.truncate(4);
            all.insert(0, ZoneFeatures::default());
            all.iter().any(|extras| TABLE[2..].iter().any(|entry| finds(geometry, entry, extras)))
        });
        assert!(found, "{bug:?} is not found");
    }
}

/// Live blocks never overlap, all memory can be allocated, and memory that is freed completely is whole
/// again.
#[test]
fn what_is_all_freed_is_whole_again() {
    for (geometry, entry) in
        GEOMETRIES.into_iter().flat_map(|geometry| TABLE.iter().map(move |entry| (geometry, entry)))
    {
        let mut zone = Zone::new(geometry, entry.policy).unwrap();
        let whole = zone.free_blocks().to_vec();
        let mut random = SplitMix64::new(9);
        let (mut live, mut held) = (Vec::new(), vec![false; geometry.frames as usize]);
        for kind in [AllocationType::Movable, AllocationType::Unmovable] {
            for order in [2, 1, 0] {
                while let Some(taken) = zone.allocate_block(order, kind).unwrap() {
                    live.push(taken.frame);
                    for frame in Frame::range(taken.frame..taken.frame + (1 << order)) {
                        let held = &mut held[(frame - geometry.first_frame) as usize];
                        assert!(!std::mem::replace(held, true), "{frame:#x} is given twice");
                    }
                }
            }
        }
        assert!(held.into_iter().all(|held| held) && zone.free_frames() == 0, "{}", entry.name);
        while !live.is_empty() {
            let frame = live.swap_remove(random.next_below(live.len() as u64) as usize);
            zone.free_block(frame).unwrap();
        }
        // Regions meet where their boundary is, and blocks do not reach over it.
        if zone.region_boundary().is_none() {
            assert_eq!(zone.free_blocks(), whole, "{}", entry.name);
        }
        assert_eq!(zone.free_frames(), geometry.frames);
        zone.validate().unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let geometry = GEOMETRIES[1];
    let mut zone = Zone::new(geometry, GroupByMobility).unwrap();
    let taken = zone.allocate_block(2, AllocationType::Movable).unwrap().unwrap().frame;
    let before = zone.free_blocks().to_vec();
    for (frame, said) in [
        (taken + 1, "is not the start of an allocated block"),
        (geometry.end(), "is in no zone"),
        (geometry.first_frame - 1, "is in no zone"),
    ] {
        let wrong = zone.free_block(frame).unwrap_err().to_string();
        assert!(wrong.contains(said) && wrong.contains(&format!("{frame:#x}")), "{wrong}");
    }
    assert!(
        zone.allocate_block(7, AllocationType::Movable)
            .unwrap_err()
            .to_string()
            .contains("order 7 is above the largest, 6")
    );
    assert_eq!(zone.free_blocks(), before);
    assert_eq!(zone.free_block(taken), Ok(2));
    assert!(zone.free_block(taken).is_err(), "freed twice");
    for (first, frames, max_order, block_order) in [
        (0, 0, 6, 4),
        (8, 256, 6, 4),
        (0, 250, 6, 4),
        (0, 256, 22, 4),
        (0, 256, 4, 6),
        (u32::MAX - 15, 16, 6, 4),
    ] {
        let geometry =
            ZoneGeometry { first_frame: Frame::new(first), frames, max_order, pageblock_order: block_order };
        assert!(Zone::new(geometry, GroupByMobility).is_err(), "{geometry:?}");
    }
}

#[test]
fn a_live_block_splits_and_its_parts_are_freed_one_by_one() {
    let mut zone = Zone::new(GEOMETRIES[0], GroupByMobility).unwrap();
    let whole = zone.free_blocks().to_vec();
    let frame = zone.allocate_block(4, AllocationType::Movable).unwrap().unwrap().frame;
    zone.split_block(frame, 1).unwrap();
    zone.validate().unwrap();
    for part in (0..16).step_by(2).rev() {
        assert_eq!(zone.free_block(frame + part), Ok(1));
    }
    assert_eq!(zone.free_blocks(), whole);
    assert!(zone.split_block(frame, 0).is_err());
}
