//! Pages larger than what the buddy allocator keeps, such as 1 GiB: aligned ranges of which every page is
//! free or can be moved, as `alloc_contig_pages` looks for them (mm/page_alloc.c).

use std::ops::ControlFlow;

use pagelab_model::{
    Absence, AbsentWhy, BlockCounts, Census, CensusZone, Coverage, Order, PageClass, Reading,
};

/// Gigantic pages of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiganticSupply {
    /// The order.
    pub order: Order,
    /// The counts; absent for a sample, in which no such range is seen whole.
    pub counts: Reading<GiganticCounts>,
}

/// Aligned ranges of one order, each wholly in one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GiganticCounts {
    /// Every page free or deferred.
    pub free_now: u64,
    /// Of those, ranges with a deferred page: free, but not yet the allocator's to give.
    pub deferred: u64,
    /// Every page free, deferred or movable, hugetlb excepted; unknown pages counted as unmovable.
    pub contiguous_low: u64,
    /// The same with unknown pages counted as free.
    pub contiguous_high: u64,
    /// Every page hugetlb: in use, or in a pool.
    pub hugetlb: u64,
}

impl GiganticSupply {
    /// The counts of one zone; absent for a sample, and for orders smaller than a counted block.
    pub(crate) fn of_zone(
        coverage: Coverage,
        block_order: Order,
        zone: &CensusZone,
        order: Order,
    ) -> Reading<GiganticCounts> {
        let zones = vec![zone.clone()];
        let census = Census { block_order, zones, coverage, free_blocks: None, scan_ns: 0 };
        GiganticSupply::of(&census, order).counts
    }

    /// Ranges in which every page is free, movable, or without a flag, the latter so few that per-CPU lists
    /// of
    /// `per_cpu` pages explain them, those with the fewest first: the kernel drains the lists before it takes
    /// a range (mm/page_alloc.c, `alloc_contig_range`).
    pub(crate) fn explained(block_order: Order, zone: &CensusZone, order: Order, mut per_cpu: u64) -> u64 {
        let mut unknown = Vec::new();
        for blocks in ranges(block_order, zone, order) {
            let mut counts = GiganticCounts::default();
            add_range(blocks, &mut counts);
            if counts.contiguous_high > 0 {
                let of_block = |(_, counts): &(u64, BlockCounts)| u64::from(counts.of(PageClass::Unknown));
                unknown.push(blocks.iter().map(of_block).sum::<u64>());
            }
        }
        unknown.sort_unstable();
        let fits = |&&pages: &&u64| {
            let left = per_cpu.checked_sub(pages);
            per_cpu = left.unwrap_or(0);
            left.is_some()
        };
        unknown.iter().take_while(fits).count() as u64
    }

    /// Ranges that could be had if so many pages of slab went, those with the fewest first: every other page
    /// is free, movable, or without a flag.
    pub(crate) fn without_slab(block_order: Order, zone: &CensusZone, order: Order, mut slab: u64) -> u64 {
        let count = |blocks: &[(u64, BlockCounts)], class| {
            blocks.iter().map(|(_, counts)| u64::from(counts.of(class))).sum::<u64>()
        };
        let fits = |class: PageClass| {
            class.is_movable()
                || matches!(
                    class,
                    PageClass::Free | PageClass::Deferred | PageClass::Unknown | PageClass::Slab
                )
        };
        let is_left = |blocks: &[(u64, BlockCounts)]| {
            PageClass::ALL.into_iter().all(|class| fits(class) || count(blocks, class) == 0)
        };
        let left = ranges(block_order, zone, order).filter(|blocks| is_left(blocks));
        let mut pages: Vec<u64> = left.map(|blocks| count(blocks, PageClass::Slab)).collect();
        pages.sort_unstable();
        let goes = |&&pages: &&u64| {
            let rest = slab.checked_sub(pages);
            slab = rest.unwrap_or(0);
            rest.is_some()
        };
        pages.iter().take_while(goes).count() as u64
    }

    pub(super) fn of(census: &Census, order: Order) -> GiganticSupply {
        let absent = |why, detail: &str| Err(Absence::new("census", why, detail));
        let counts = if matches!(census.coverage, Coverage::Sample(_)) {
            absent(AbsentWhy::Undefined, "a sample of pageblocks sees no larger range whole")
                .map_err(|absence: Absence| absence.or("allow the census more time"))
        } else if order < census.block_order {
            absent(AbsentWhy::Undefined, "smaller than the counted blocks")
        } else {
            let mut counts = GiganticCounts::default();
            census.zones.iter().for_each(|zone| add_zone(census.block_order, zone, order, &mut counts));
            Ok(counts)
        };
        GiganticSupply { order, counts }
    }
}

fn add_zone(block_order: Order, zone: &CensusZone, order: Order, sum: &mut GiganticCounts) {
    ranges(block_order, zone, order).for_each(|blocks| add_range(blocks, sum));
}

/// The blocks of each aligned range that was counted whole; none for orders smaller than a block's.
fn ranges(
    block_order: Order,
    zone: &CensusZone,
    order: Order,
) -> impl Iterator<Item = &[(u64, BlockCounts)]> {
    let shift = u32::from(order.0.saturating_sub(block_order.0));
    let first = zone.first.0 / block_order.pages().0;
    let range_of = move |(index, _): &(u64, BlockCounts)| (first + index).checked_shr(shift).unwrap_or(0);
    let blocks_needed = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
    let in_one = zone.blocks.chunk_by(move |a, b| range_of(a) == range_of(b));
    in_one.filter(move |blocks| blocks.len() as u64 == blocks_needed)
}

fn add_range(blocks: &[(u64, BlockCounts)], sum: &mut GiganticCounts) {
    let free = |class| matches!(class, PageClass::Free | PageClass::Deferred);
    let movable = |class: PageClass| free(class) || class.is_movable();
    let maybe = |class| movable(class) || class == PageClass::Unknown;
    let holds = |class: PageClass| blocks.iter().any(|(_, counts)| counts.of(class) > 0);
    let present = PageClass::ALL.into_iter().filter(|&class| holds(class));
    let all = |of: &dyn Fn(PageClass) -> bool| present.clone().all(of);
    sum.hugetlb += u64::from(all(&|class| class == PageClass::Hugetlb));
    let steps: [(&dyn Fn(PageClass) -> bool, &mut u64); 3] =
        [(&maybe, &mut sum.contiguous_high), (&movable, &mut sum.contiguous_low), (&free, &mut sum.free_now)];
    let narrowed = steps.into_iter().try_for_each(|(of, count)| {
        let fits = all(of);
        *count += u64::from(fits);
        if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    sum.deferred += u64::from(narrowed.is_continue() && holds(PageClass::Deferred));
}
