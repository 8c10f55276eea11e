//! Tests: forecasts of small machines with results computed by hand, and the scanners against a page-by-page
//! model.

use std::collections::BTreeMap;

use pagelab_model::free_areas::{FreeAreas, ZoneFreeAreas};
use pagelab_model::random::SplitMix64;
use pagelab_model::slab::SlabCache;
use pagelab_model::zoneinfo::ZoneEntry;
use pagelab_model::{
    BuddyInfo, Bytes, Census, CensusZone, Coverage, PageSize, PageblockCounts, Pages, Pfn, SamplePlan,
    Zoneinfo,
};

use super::inputs::PageblockPages;
use super::*;
use super::{UnknownTreatment, count_compacted_blocks};

const B: u32 = 512;

fn block(parts: &[(PageClass, u32)]) -> PageblockCounts {
    let named: BTreeMap<Box<str>, u32> = parts.iter().map(|&(class, n)| (class.name().into(), n)).collect();
    let mut counts = PageblockCounts::try_from(named).unwrap();
    counts.0[PageClass::Free.index()] += B - counts.total();
    counts
}

fn key(zone: &str) -> ZoneKey {
    ZoneKey { node: NodeId(0), zone: zone.to_owned() }
}

/// A machine of one zone; its free lists hold wholly free blocks, and single pages for the rest.
fn snapshot(blocks: &[PageblockCounts], min: u64, protection: u64) -> Snapshot {
    let mut snapshot = Snapshot::new_unread("a test", PageSize::DEFAULT);
    let free = |counts: &PageblockCounts| u64::from(counts.pages_of_class(PageClass::Free));
    let whole = blocks.iter().filter(|block| free(block) == u64::from(B)).count() as u64;
    let loose: u64 = blocks.iter().map(free).filter(|&pages| pages < u64::from(B)).sum();
    let mut counts = vec![0; 10];
    (counts[0], counts[9]) = (loose, whole);
    let areas = FreeAreas::new(counts).unwrap();
    snapshot.buddyinfo = Ok(BuddyInfo { zones: vec![ZoneFreeAreas { key: key("Normal"), areas }] });
    let mut normal = ZoneEntry::empty(key("Normal"));
    normal.min = Some(Pages(min));
    normal.protection = vec![0, protection];
    // The request's highest zone is Movable, at index 1 here.
    let zones = vec![normal, ZoneEntry::empty(key("Movable"))];
    snapshot.zoneinfo = Ok(Zoneinfo { nodes: Vec::new(), zones });
    let zone = CensusZone {
        key: key("Normal"),
        first: Pfn(0),
        blocks_total: blocks.len() as u64,
        blocks: (0..).zip(blocks.iter().copied()).collect(),
        one_folio: Vec::new(),
        free_blocks: None,
        per_cpu: Some(Pages(4)),
    };
    let coverage = Coverage::Whole;
    let census =
        Census { pageblock_order: Order(9), zones: vec![zone], coverage, free_blocks: None, scan_ns: 0 };
    snapshot.census = Ok(census);
    snapshot
}

fn thp_request(order: u8) -> AllocationRequest {
    AllocationRequest { count: 1, order: Order(order), method: AllocationMethod::Thp, node: None, cpu: None }
}

/// now, after compaction, after dropping cache.
fn expected(snapshot: &Snapshot, ask: AllocationRequest) -> [u64; 3] {
    let found = predict(snapshot, ask).unwrap();
    ReclaimStep::ALL.map(|step| found.bounds_after(step).expected)
}

#[test]
fn each_step_is_worked_out_by_hand() {
    use PageClass::{Anon, File, Hugetlb, Slab, Unknown};
    let check = |blocks: &[PageblockCounts], steps: [u64; 3]| {
        let loose = block(&[(Slab, 500)]);
        // Some room, so that page tables and the watermark are not what counts here.
        let blocks: Vec<PageblockCounts> = blocks.iter().copied().chain([loose]).collect();
        assert_eq!(expected(&snapshot(&blocks, 0, 0), thp_request(9)), steps, "{blocks:?}");
    };
    let free = block(&[]);
    check(&[free, free], [2, 2, 2]);
    // The lower one is emptied into the upper one.
    check(&[block(&[(Anon, 1)]), block(&[(Anon, 1)])], [0, 1, 1]);
    // The only room above is in a whole block, which is not broken up.
    check(&[block(&[(Anon, 1)]), free], [1, 1, 1]);
    check(&[block(&[(File, 1)]), block(&[(File, 1)])], [0, 1, 2]);
    // The lower one is emptied although a slab page pollutes it, and fills the good one above.
    check(&[block(&[(Slab, 1), (Anon, 5)]), block(&[(Anon, 5)])], [0, 0, 0]);
    // Four unknown pages can be on per-CPU lists, five cannot: that is what the high end says.
    for (pages, high) in [(4, 1), (5, 0)] {
        let found = snapshot(&[block(&[(Unknown, pages)]), block(&[(Slab, 500)])], 0, 0);
        let bounds = predict(&found, thp_request(9)).unwrap().bounds_after(ReclaimStep::Compaction);
        assert_eq!((bounds.low, bounds.high), (0, high), "{pages}");
    }
    check(&[block(&[(Hugetlb, B)]), block(&[(Anon, B)])], [0, 0, 0]);
}

#[test]
fn a_folio_of_page_cache_as_large_as_a_block_stays_until_it_is_dropped() {
    use PageClass::{Anon, File, Slab};
    let room = block(&[(Slab, 1), (Anon, 2)]);
    let mut found = snapshot(&[block(&[(File, B)]), room, room, block(&[(Slab, 500)])], 0, 0);
    assert_eq!(expected(&found, thp_request(9)), [0, 1, 1], "in small folios");
    found.census.as_mut().unwrap().zones[0].one_folio = vec![0];
    assert_eq!(expected(&found, thp_request(9)), [0, 0, 1]);
}

#[test]
fn watermark_and_lowmem_reserve_are_kept() {
    let blocks = [block(&[]); 8];
    for (min, protection, can) in [(0, 0, 7), (512, 0, 6), (0, 1024, 5), (512, 1024, 4), (5000, 0, 0)] {
        let snapshot = snapshot(&blocks, min, protection);
        assert_eq!(expected(&snapshot, thp_request(9)), [can; 3], "min {min}, protection {protection}");
        let found = predict(&snapshot, thp_request(9)).unwrap();
        assert_eq!(found.zone_forecasts[0].held_by_watermark, 8 - can);
    }
}

#[test]
fn smaller_sizes_larger_ones_and_other_ways() {
    let mut blocks = vec![block(&[]); 9];
    blocks[8] = block(&[(PageClass::Slab, 500)]);
    let snapshot = snapshot(&blocks, 0, 0);
    assert_eq!(expected(&snapshot, thp_request(4)), [8 * 32; 3]);
    // Two aligned ranges of four blocks.
    let larger = AllocationRequest { method: AllocationMethod::Contig, ..thp_request(11) };
    assert_eq!(expected(&snapshot, larger), [2; 3]);
    // A zone that the kernel's own requests may not use.
    let mut movable = snapshot.clone();
    for zone in &mut movable.buddyinfo.as_mut().unwrap().zones {
        zone.key = key("Movable");
    }
    movable.census.as_mut().unwrap().zones[0].key = key("Movable");
    assert_eq!(predict(&movable, larger).unwrap_err().why, AbsenceReason::Undefined);
    assert!(predict(&snapshot, AllocationRequest { node: Some(NodeId(3)), ..thp_request(9) }).is_err());
    assert_eq!(expected(&snapshot, thp_request(60)), [0; 3]);
}

#[test]
fn without_a_census_only_now_is_known() {
    let mut unseen = snapshot(&[block(&[]); 8], 0, 0);
    unseen.census = Err(Absence::new("/proc/kpageflags", AbsenceReason::NotPermitted, ""));
    let found = predict(&unseen, AllocationRequest { count: 7, ..thp_request(9) }).unwrap();
    assert_eq!(
        (found.total_bounds.now.expected, found.is_met_after(ReclaimStep::DropCache)),
        (7, Some(true))
    );
    let found = predict(&unseen, AllocationRequest { count: 8, ..thp_request(9) }).unwrap();
    assert_eq!(
        (found.is_met_after(ReclaimStep::Nothing), found.is_met_after(ReclaimStep::DropCache)),
        (Some(false), None)
    );
    let mut sampled = snapshot(&[block(&[]); 8], 0, 0);
    let plan = SamplePlan { seed: 1, blocks: 8, blocks_total: 80 };
    sampled.census.as_mut().unwrap().coverage = Coverage::Sample(plan);
    assert!(predict(&sampled, thp_request(9)).unwrap().census_absence.is_some());
    unseen.buddyinfo = Err(Absence::not_read());
    assert!(predict(&unseen, thp_request(9)).is_err());
}

/// The scanners page by page, as simply as can be.
fn twin(blocks: &[PageblockPages]) -> u64 {
    let mut blocks = blocks.to_vec();
    let whole = |block: &PageblockPages| !block.is_huge && block.free == block.pages;
    for from in 0..blocks.len() {
        while !blocks[from].is_huge && !blocks[from].is_file_folio && blocks[from].movable > 0 {
            let has_room =
                |block: &PageblockPages| block.is_migration_target && !block.is_huge && block.free > 0;
            let above = (from + 1..blocks.len()).rev();
            let Some(to) = above.into_iter().find(|&at| has_room(&blocks[at]) && !whole(&blocks[at])) else {
                return blocks.iter().filter(|block| whole(block)).count() as u64;
            };
            blocks[from].movable -= 1;
            blocks[from].free += 1;
            blocks[to].free -= 1;
            blocks[to].movable += 1;
        }
    }
    blocks.iter().filter(|block| whole(block)).count() as u64
}

#[test]
fn the_scanners_agree_with_a_twin_that_moves_single_pages() {
    const SEED: u64 = 7;
    let mut random = SplitMix64::new(SEED);
    for round in 0..300 {
        let count = 1 + random.next_below(30) as usize;
        let blocks: Vec<PageblockPages> = (0..count)
            .map(|_| {
                let fixed = if random.next_below(4) == 0 { random.next_below(9) } else { 0 };
                let movable = if random.next_below(3) == 0 { 0 } else { random.next_below(16 - fixed + 1) };
                let is_huge = random.next_below(12) == 0;
                let takes_movable = random.next_below(6) > 0;
                let is_file_folio = movable == 16;
                let free = 16 - fixed - movable;
                PageblockPages {
                    pages: 16,
                    free,
                    movable,
                    droppable: 0,
                    unknown: 0,
                    unmovable: fixed,
                    is_huge,
                    is_file_folio,
                    is_migration_target: takes_movable,
                }
            })
            .collect();
        let zone = ZoneInputs {
            key: key("Normal"),
            areas: FreeAreas::default(),
            free_pages: 0,
            deferred_blocks: 0,
            min_watermark: 0,
            lowmem_reserve: 0,
            pcp_pages: 0,
            pagesets: Vec::new(),
            droppable_pages: 0,
            blocks: blocks.clone(),
            polluted: Vec::new(),
            clean_blocks: 0,
            slab_pages_alone: Vec::new(),
            cache_pages: 0,
        };
        let found = count_compacted_blocks(&zone, UnknownTreatment::InUse, false);
        assert_eq!(found, twin(&blocks), "seed {SEED}, round {round}: {blocks:?}");
    }
}

#[test]
fn hostile_numbers_do_not_overflow() {
    let mut hostile = snapshot(&[block(&[]); 3], u64::MAX, u64::MAX);
    hostile.buddyinfo.as_mut().unwrap().zones[0].areas = FreeAreas::new(vec![u64::MAX; 64]).unwrap();
    for order in [0, 1, 9, 10, 40, 63, 200, 255] {
        for how in [AllocationMethod::Thp, AllocationMethod::Hugetlb, AllocationMethod::Contig] {
            let _ =
                predict(&hostile, AllocationRequest { count: u64::MAX, method: how, ..thp_request(order) });
        }
    }
}

#[test]
fn rows_add_up_to_the_whole_and_intervals_have_room_for_what_moves() {
    use PageClass::{Anon, Hugetlb, Slab};
    let mut blocks = vec![block(&[]); 100];
    blocks.extend([block(&[(Slab, 500)]), block(&[(Hugetlb, B)])]);
    blocks.extend([block(&[(Anon, B)]); 98]);
    blocks.extend([block(&[(Anon, 256)]); 100]);
    let found = predict(&snapshot(&blocks, 0, 0), thp_request(9)).unwrap();
    let shares = found.block_outcomes();
    assert_eq!(shares.all, 300);
    assert_eq!(
        shares.obtainable + shares.in_use + shares.polluted + shares.unobtainable,
        shares.all,
        "{shares:?}"
    );
    assert_eq!((shares.in_use, shares.polluted), (1, 1));
    let (now, after) = (found.total_bounds.now, found.total_bounds.after_compaction);
    assert_eq!(
        (now.expected - now.low, after.expected - now.expected),
        (3, 49),
        "1 % of the blocks; a page table is kept"
    );
    assert_eq!(after.expected - after.low, 3 + 4, "and a tenth of what compaction gains");
}

#[test]
fn what_is_not_seen_is_no_less_than_what_is_there_now() {
    let mut unseen = snapshot(&[block(&[]); 8], 0, 0);
    unseen.census = Err(Absence::new("/proc/kpageflags", AbsenceReason::NotPermitted, ""));
    let found = predict(&unseen, thp_request(9)).unwrap();
    for step in ReclaimStep::ALL {
        let bounds = found.bounds_after(step);
        assert!(bounds.low <= bounds.expected && bounds.expected <= bounds.high, "{step:?}: {bounds:?}");
    }
}

#[test]
fn gigantic_pages_count_ranges_that_per_cpu_lists_explain() {
    let mut blocks = vec![block(&[]); 13];
    // Of two ranges of four blocks, one has as many pages without flags as the lists have (4), one more.
    (blocks[1], blocks[6]) = (block(&[(PageClass::Unknown, 4)]), block(&[(PageClass::Unknown, 5)]));
    let asked = AllocationRequest { method: AllocationMethod::Contig, ..thp_request(11) };
    let bounds = predict(&snapshot(&blocks, 0, 0), asked).unwrap().bounds_after(ReclaimStep::Compaction);
    assert_eq!((bounds.low, bounds.expected, bounds.high), (1, 2, 3));
}

/// A cache whose slabs have one page each.
fn slab_cache(name: &str, slabs: u64) -> SlabCache {
    SlabCache {
        name: name.to_owned(),
        objects_active: 1,
        objects: 1,
        object_size: Bytes(64),
        objects_per_slab: 64,
        pages_per_slab: 1,
        slabs,
    }
}

#[test]
fn gigantic_pages_may_come_where_slab_goes_with_page_cache() {
    let mut blocks = vec![block(&[]); 13];
    (blocks[1], blocks[6]) = (block(&[(PageClass::Slab, 7)]), block(&[(PageClass::Slab, 9)]));
    let mut found = snapshot(&blocks, 0, 0);
    let asked = AllocationRequest { method: AllocationMethod::Contig, ..thp_request(11) };
    let highs = |snapshot: &Snapshot| {
        let found = predict(snapshot, asked).unwrap();
        [ReclaimStep::Compaction, ReclaimStep::DropCache].map(|step| found.bounds_after(step).high)
    };
    assert_eq!(highs(&found), [1, 1], "slabinfo was not read");
    found.slabs =
        Ok(vec![slab_cache("buffer_head", 5), slab_cache("dentry", 500), slab_cache("radix_tree_node", 2)]);
    assert_eq!(highs(&found), [1, 2], "seven pages go, and not nine more");
}

/// A random zone of 1 to 200 blocks: free, movable, cache, polluted, and pages without a flag.
fn random_blocks(random: &mut SplitMix64) -> Vec<PageblockCounts> {
    use PageClass::{Anon, File, Hugetlb, PageTable, Slab, Unknown};
    let count = 1 + random.next_below(200);
    // Fragmented machines have a part of each kind in every block, others have whole blocks of one kind.
    let is_fragmented = random.next_below(2) == 0;
    let pages_max = u64::from(B) / 6;
    (0..count)
        .map(|_| {
            if random.next_below(20) == 0 {
                return block(&[(Hugetlb, B)]);
            }
            let kinds = [(Anon, 2), (File, 2), (Slab, 8), (PageTable, 12), (Unknown, 6)];
            let parts: Vec<(PageClass, u32)> = kinds
                .into_iter()
                .filter_map(|(class, one_in)| {
                    let pages = 1 + random.next_below(pages_max) as u32;
                    (random.next_below(one_in) == 0).then_some((class, pages))
                })
                .collect();
            match is_fragmented {
                true => block(&parts),
                false => block(&parts[..parts.len().min(1)]),
            }
        })
        .collect()
}

/// Pages of a class in all blocks.
fn pages_in(blocks: &[PageblockCounts], class: PageClass) -> u64 {
    blocks.iter().map(|block| u64::from(block.pages_of_class(class))).sum()
}

/// No high end is above any of its bounds, and these are what a count page by page finds.
#[test]
fn no_high_end_is_above_what_is_possible() {
    use PageClass::{File, Free, PageTable, Slab, Unknown};
    let mut random = SplitMix64::new(11);
    for round in 0..400 {
        let blocks = random_blocks(&mut random);
        let found = snapshot(&blocks, random.next_below(3000), random.next_below(3000));
        let forecast = predict(&found, thp_request(9)).unwrap();
        let lows = ReclaimStep::ALL.map(|step| forecast.bounds_after(step).low);
        assert!(lows.is_sorted(), "round {round}: {lows:?} {blocks:?}");
        for step in ReclaimStep::ALL {
            let bounds = forecast.bounds_after(step);
            let parts = forecast.upper_bounds_after(step).unwrap();
            let text = || format!("round {round}, {step:?}: {bounds:?} {parts:?} {blocks:?}");
            assert!(bounds.low <= bounds.expected && bounds.expected <= bounds.high, "{}", text());
            let zones: u64 = forecast.zone_forecasts.iter().map(|zone| zone.bounds.at(step).high).sum();
            assert_eq!(parts.zones, zones, "{}", text());
            let smallest = parts.scanners.min(parts.zones).min(parts.memory).min(parts.clean_blocks.unwrap());
            assert_eq!((bounds.high, parts.smallest().1), (smallest, smallest), "{}", text());
            // Clean blocks: the lists explain four pages without a flag, so none here that has more.
            let is_clean = |block: &&PageblockCounts| {
                [Slab, PageTable].iter().all(|&class| block.pages_of_class(class) == 0)
                    && block.pages_of_class(Unknown) <= 4
            };
            assert!(bounds.high <= blocks.iter().filter(is_clean).count() as u64, "{}", text());
            let cache = if step == ReclaimStep::DropCache { pages_in(&blocks, File) } else { 0 };
            let free = pages_in(&blocks, Free) + 4 + cache;
            let room = (blocks.len() as u64).div_ceil(DRIFT_DIVISOR);
            assert!(bounds.high <= free / u64::from(B) + room, "{}", text());
        }
    }
}

#[test]
fn a_fragmented_machine_cannot_have_all_its_blocks() {
    use PageClass::{Anon, Slab};
    // Every tenth block is polluted, every block is half used: compaction empties many, and the room for
    // changes would reach all 200.
    let blocks: Vec<PageblockCounts> =
        (0..200).map(|at| if at % 10 == 0 { block(&[(Slab, 1)]) } else { block(&[(Anon, 20)]) }).collect();
    let forecast = predict(&snapshot(&blocks, 0, 0), thp_request(9)).unwrap();
    let bounds = forecast.bounds_after(ReclaimStep::Compaction);
    let parts = forecast.upper_bounds_after(ReclaimStep::Compaction).unwrap();
    assert!(parts.scanners > 180, "{parts:?}");
    assert_eq!((parts.smallest(), bounds.high), ((UpperBound::CleanBlocks, 180), 180), "{parts:?}");
    // A machine full of program memory: there is no room, however few pages pollute it.
    let full = vec![block(&[(Anon, 500)]); 200];
    let forecast = predict(&snapshot(&full, 0, 0), thp_request(9)).unwrap();
    let (bound, most) = forecast.upper_bounds_after(ReclaimStep::DropCache).unwrap().smallest();
    assert!(most <= 200 * 12 / 512 + 2, "{bound:?} {most}");
}

#[test]
fn slab_that_goes_with_page_cache_may_clean_blocks() {
    use PageClass::{PageTable, Slab};
    let mut blocks = vec![block(&[]); 90];
    blocks.extend([block(&[(Slab, 3)]), block(&[(Slab, 3)]), block(&[(Slab, 5)]), block(&[(PageTable, 1)])]);
    let mut found = snapshot(&blocks, 0, 0);
    let clean = |snapshot: &Snapshot| {
        let forecast = predict(snapshot, thp_request(9)).unwrap();
        ReclaimStep::ALL.map(|step| forecast.upper_bounds_after(step).unwrap().clean_blocks.unwrap())
    };
    assert_eq!(clean(&found), [90, 90, 90], "slabinfo was not read");
    found.slabs =
        Ok(vec![slab_cache("buffer_head", 6), slab_cache("dentry", 500), slab_cache("radix_tree_node", 4)]);
    assert_eq!(clean(&found), [90, 90, 92], "three pages twice, and not five more");
}
