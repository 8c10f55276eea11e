//! Tests of the supply: worked cases, units larger than blocks, and the error of a sample by simulation.

use pagelab_model::{BuddyInfo, ZoneFreeAreas};
use pagelab_model::{
    Census, CensusZone, Coverage, FreeAreas, NodeId, PageblockCounts, Pages, Pfn, SamplePlan,
};

use super::*;
use pagelab_model::AbsenceReason;
use pagelab_model::random::SplitMix64;

const B: u32 = 512;

fn block(parts: &[(PageClass, u32)]) -> PageblockCounts {
    let mut counts = PageblockCounts::default();
    parts.iter().for_each(|&(class, pages)| counts.0[class.index()] += pages);
    let rest = B - counts.total();
    counts.0[PageClass::Free.index()] += rest;
    counts
}

fn key() -> ZoneKey {
    ZoneKey { node: NodeId(0), zone: "Normal".to_owned() }
}

fn zone_of(blocks: &[PageblockCounts]) -> CensusZone {
    CensusZone {
        key: key(),
        first: Pfn(1 << 18),
        blocks_total: blocks.len() as u64,
        blocks: (0..).zip(blocks.iter().copied()).collect(),
        one_folio: Vec::new(),
        free_blocks: None,
        per_cpu: None,
    }
}

fn census_of(zone: CensusZone, coverage: Coverage) -> Census {
    Census { pageblock_order: Order(9), zones: vec![zone], coverage, free_blocks: None, scan_ns: 0 }
}

fn huge(zone: CensusZone) -> UnitCounts {
    compute_supply(&census_of(zone, Coverage::Whole), None, Order(9), &[]).total
}

fn values(interval: EstimateRange) -> (u64, u64) {
    (interval.low.value, interval.high.value)
}

#[test]
fn perfect_compaction_packs_into_polluted_units_first() {
    use PageClass::{Anon, Deferred, File, Free, Slab, Unknown};
    let check = |blocks: &[PageblockCounts], compaction: (u64, u64), cache: (u64, u64)| {
        let found = huge(zone_of(blocks));
        assert_eq!(values(found.after_compaction), compaction, "{blocks:?}");
        assert_eq!(values(found.after_dropping_cache), cache, "{blocks:?}");
    };
    let free = block(&[]);
    check(&[free, free], (2, 2), (2, 2));
    check(&[block(&[(Deferred, B)]), free], (2, 2), (2, 2));
    // One movable page can only move into another unit.
    check(&[free, block(&[(Anon, 1)])], (1, 1), (1, 1));
    check(&[free, block(&[(File, 1)])], (1, 1), (2, 2));
    // Room beside a slab page: 511 pages.
    check(&[block(&[(Slab, 1)]), block(&[(Anon, 511)]), free], (2, 2), (2, 2));
    check(&[block(&[(Slab, 1)]), block(&[(Anon, 512)]), free], (1, 1), (1, 1));
    check(&[block(&[(Slab, 1), (File, 400)]), block(&[(Anon, 200)])], (0, 0), (1, 1));
    // Movable pages in polluted units stay there.
    check(&[block(&[(Slab, 1), (Anon, 511)]), free], (1, 1), (1, 1));
    // Unknown pages: unmovable to the one, free to the other.
    check(&[block(&[(Unknown, 2)]), block(&[(Anon, 511)]), free], (1, 2), (1, 2));
    check(&[block(&[(Unknown, 2)]), block(&[(Anon, 510)]), free], (2, 2), (2, 2));
    check(&[block(&[(Anon, B), (Free, 0)]); 3], (0, 0), (0, 0));
}

#[test]
fn what_is_free_deferred_or_in_use_is_counted_apart() {
    use PageClass::{AnonHuge, Deferred, Hole, Hugetlb, Offline};
    let mut zone = zone_of(&[
        block(&[]),
        block(&[(Deferred, B)]),
        block(&[(Deferred, 100)]),
        block(&[(AnonHuge, B)]), // one folio
        block(&[(AnonHuge, B)]), // 32 folios of 64 KiB
        block(&[(Hugetlb, B)]),
        block(&[(Hole, B)]),
        block(&[(Hole, 12), (Offline, 500)]),
        block(&[(Hole, 1)]),
    ]);
    zone.one_folio = vec![3, 5];
    let found = huge(zone);
    let of = |estimate: CountEstimate| estimate.value;
    assert_eq!(
        [found.units, found.free, found.deferred, found.in_use, found.polluted.low].map(of),
        [7, 1, 2, 2, 1]
    );
    // The small folios fill the free pages beside the hole (511 pages), and one page of a unit.
    assert_eq!(values(found.after_compaction), (3, 3));
}

#[test]
fn classes_hold_and_pollute_alone_and_per_cpu_lists_bound_the_unknown() {
    use PageClass::{PageTable, Slab, Unknown};
    let mut zone = zone_of(&[
        block(&[(Slab, 3)]),
        block(&[(Slab, 3), (PageTable, 1)]),
        block(&[(Slab, 3), (Unknown, 1)]),
        block(&[(Unknown, 4)]),
        block(&[(Unknown, 2)]),
        block(&[(Unknown, 9)]),
        block(&[]),
    ]);
    zone.per_cpu = Some(Pages(7));
    let found = huge(zone);
    assert_eq!(values(found.polluted), (3, 6));
    // 7 pages explain the units with 2 and 4 unknown pages, and not the one with 9.
    assert_eq!(found.polluted_low_per_cpu, Some(4));
    assert_eq!(found.unknown_pages.value, 16);
    let of = |class| found.polluting_classes.iter().find(|culprit| culprit.class == class).unwrap();
    let pair = |class| (of(class).units_with.value, of(class).units_polluted_alone.value);
    assert_eq!([pair(Slab), pair(PageTable), pair(Unknown)], [(3, 2), (1, 0), (4, 3)]);
}

#[test]
fn units_may_be_larger_than_blocks_and_buddyinfo_may_have_none_so_large() {
    let slab = block(&[(PageClass::Slab, 1)]);
    let mut zone = zone_of(&[block(&[]); 11]);
    zone.blocks[4].1 = slab;
    // Blocks 8 to 10 are less than a unit of 4 blocks: the rest of it is no memory of this zone.
    let areas = FreeAreas::new(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]).unwrap();
    let buddy = BuddyInfo { zones: vec![ZoneFreeAreas { key: key(), areas }] };
    let check = |order: u8, expected: [u64; 4]| {
        let census = census_of(zone.clone(), Coverage::Whole);
        let found = compute_supply(&census, Some(&buddy), Order(order), &[]).total;
        let polluted = found.polluted.low.value;
        assert_eq!(
            [found.units.value, found.free.value, polluted, found.free_by_buddyinfo.unwrap()],
            expected
        );
    };
    check(9, [11, 10, 1, 4]);
    check(11, [3, 1, 2, 0]);
    check(255, [1, 0, 1, 0]);
}

#[test]
fn gigantic_ranges_are_aligned_and_whole() {
    use PageClass::{Anon, Deferred, Hugetlb, Slab, Unknown};
    let range = |blocks: [PageblockCounts; 4]| blocks;
    let free = block(&[]);
    let ranges = [
        range([free; 4]),
        range([free, block(&[(Deferred, 7)]), free, free]),
        range([free, block(&[(Anon, 7)]), free, free]),
        range([free, block(&[(Unknown, 1), (Anon, 7)]), free, free]),
        range([free, free, free, block(&[(Slab, 1)])]),
        range([block(&[(Hugetlb, B)]); 4]),
    ];
    let mut zone = zone_of(&ranges.concat());
    // A range whose last block is another zone's or a hole.
    zone.blocks.extend((24..27).map(|index| (index, free)));
    let census = census_of(zone, Coverage::Whole);
    let found = compute_supply(&census, None, Order(9), &[Order(11), Order(5), Order(200)]).gigantic;
    let expected = GiganticCounts { free: 2, deferred: 1, contiguous_low: 3, contiguous_high: 4, hugetlb: 1 };
    assert_eq!(found[0].counts, Ok(expected));
    assert_eq!(found[1].counts.as_ref().unwrap_err().why, AbsenceReason::Undefined);
    assert_eq!(found[2].counts, Ok(GiganticCounts::default()));
    let plan = SamplePlan { seed: 1, blocks: 27, blocks_total: 90 };
    let sampled = Census { coverage: Coverage::Sample(plan), ..census };
    assert!(compute_supply(&sampled, None, Order(9), &[Order(11)]).gigantic[0].counts.is_err());
}

#[test]
fn the_interval_of_a_sample_covers_the_truth_in_95_of_100_draws() {
    use PageClass::{Anon, File, Slab, Unknown};
    const DRAWS: usize = 300;
    let mut draws = SplitMix64::new(42);
    let mut random = |bound: u64| draws.next_below(bound);
    let blocks: Vec<PageblockCounts> = (0..3000)
        .map(|_| match random(10) {
            0..3 => block(&[]),
            3 => block(&[(Slab, 1 + random(300) as u32), (File, random(200) as u32)]),
            4 => block(&[(Unknown, 1 + random(20) as u32), (Anon, random(400) as u32)]),
            _ => block(&[(Anon, random(200) as u32), (File, random(200) as u32)]),
        })
        .collect();
    let numbers = |found: &UnitCounts| {
        [
            found.free,
            found.polluted.low,
            found.polluted.high,
            found.polluting_classes[0].units_with,
            found.after_compaction.low,
            found.after_compaction.high,
            found.after_dropping_cache.low,
            found.unknown_pages,
        ]
    };
    let truth = numbers(&huge(zone_of(&blocks)));
    let mut covered = [0; 8];
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    for _ in 0..DRAWS {
        for at in 0..600 {
            order.swap(at, at + random((blocks.len() - at) as u64) as usize);
        }
        let mut chosen = order[..600].to_vec();
        chosen.sort_unstable();
        let mut zone = zone_of(&blocks);
        zone.blocks = chosen.iter().map(|&at| (at as u64, blocks[at])).collect();
        let plan = SamplePlan { seed: 42, blocks: 600, blocks_total: 3000 };
        let found = compute_supply(&census_of(zone, Coverage::Sample(plan)), None, Order(9), &[]).total;
        for ((hits, estimate), truth) in covered.iter_mut().zip(numbers(&found)).zip(truth) {
            let half = estimate.margin.unwrap();
            *hits += usize::from(estimate.value.abs_diff(truth.value) <= half);
        }
    }
    let within = |&hits: &usize| (DRAWS * 91 / 100..=DRAWS * 99 / 100).contains(&hits);
    assert!(covered.iter().all(within), "{covered:?} of {DRAWS}");
}

#[test]
fn a_sample_without_hits_still_has_an_error() {
    let zone = CensusZone { blocks_total: 1000, ..zone_of(&[block(&[]); 100]) };
    let plan = SamplePlan { seed: 1, blocks: 100, blocks_total: 1000 };
    let found = compute_supply(&census_of(zone, Coverage::Sample(plan)), None, Order(9), &[]).total;
    assert_eq!((found.polluted.low.value, found.free.value), (0, 1000));
    // The rule of three gives 3 of 100, less the observed ones.
    let half = found.polluted.low.margin.unwrap();
    assert!((25..=40).contains(&half), "{half}");
}
