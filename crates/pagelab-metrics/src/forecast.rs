//! Forecast of the available huge pages: now, after compaction, after dropping the page cache, and the
//! obstacles to more.
//!
//! For huge pages of PMD size, in each zone z that the request may use:
//!
//! | number | definition |
//! |---|---|
//! | now | min(free blocks of the order, less highatomic and isolated ones, plus deferred ones; ⌊(free − W) · B / (B + 1) / B⌋) |
//! | after compaction | the same with the blocks that are whole once the two scanners of each zone have met |
//! | after dropping cache | the same with the page cache that is clean and not mapped counted as free before |
//!
//! W is the zone's min watermark (boost included) plus the `lowmem_reserve` against requests that may use
//! higher zones (mm/page_alloc.c, `__zone_watermark_ok`; `gfp_to_alloc_flags`: a request that may not reclaim
//! may use memory down to the min watermark). B is the number of base pages of a huge page; one more is its
//! page table, which the kernel reserves for a later split (`pgtable_trans_huge_deposit`). Highatomic blocks
//! are reserved for others, and isolated ones are not allocated.
//!
//! The scanners are simulated block by block (`linear`), since they do not pack perfectly: they empty blocks
//! that a slab page keeps from becoming free, and fill good ones for it.
//!
//! Bounds: the low end counts every page without a flag as kernel memory in use, and keeps the full
//! watermark; the high end counts as many of them as free as are on per-CPU lists, and lets kswapd keep the
//! zone above its watermark if there is cache to drop. The expected value counts as many of them as free
//! where they are adjacent (`linear`). No high end is above what is possible (`high_ends`).

mod high_ends;
mod inputs;

pub use high_ends::{UpperBound, UpperBounds};
use inputs::{ForecastInputs, PageblockPages, ZoneInputs};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Absence, AbsenceReason, Coverage, NodeId, Order, PageClass, Reading, Snapshot};

use crate::grouping::value_of;
use crate::supply::GiganticSupply;

/// The kernel interface that requests huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationMethod {
    /// Transparent huge pages: page faults and MADV_COLLAPSE.
    Thp,
    /// A hugetlb pool.
    Hugetlb,
    /// Physically contiguous memory for the kernel, such as a driver without scatter and gather needs.
    Contig,
}

/// Permitted steps before huge pages are requested; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimStep {
    /// Nothing.
    Nothing,
    /// Compaction.
    Compaction,
    /// Dropping the page cache.
    DropCache,
}

impl ReclaimStep {
    /// All of them, in order.
    pub const ALL: [ReclaimStep; 3] = [ReclaimStep::Nothing, ReclaimStep::Compaction, ReclaimStep::DropCache];
}

/// The request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// How many.
    pub count: u64,
    /// Of which order.
    pub order: Order,
    /// In which way.
    pub method: AllocationMethod,
    /// From one node, or from all.
    pub node: Option<NodeId>,
    /// The CPU that will ask, if that is known: huge pages on its own list come first.
    pub cpu: Option<u32>,
}

/// A number with the bounds from unknown inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForecastBounds {
    /// Not less than this.
    pub low: u64,
    /// Predicted value.
    pub expected: u64,
    /// Not more than this.
    pub high: u64,
}

/// Available huge pages at each step, in total or of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepBounds {
    /// With memory as it is now.
    pub now: ForecastBounds,
    /// After compaction.
    pub after_compaction: ForecastBounds,
    /// After dropping the page cache, and compaction.
    pub after_dropping_cache: ForecastBounds,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The request.
    pub request: AllocationRequest,
    /// Total of all zones.
    pub total_bounds: StepBounds,
    /// By zone, in the census's order; only zones that the request may use.
    pub zone_forecasts: Vec<ZoneForecast>,
    /// The bounds of which the smallest is the high end of the total, by step; `None` without pageblocks, and
    /// for sizes above that of a pageblock.
    pub upper_bounds: Option<[UpperBounds; 3]>,
    /// Why the pageblocks were not seen: then only `now` is known.
    pub census_absence: Option<Absence>,
    /// Assumptions for missing readings, as sentences.
    pub notes: Vec<String>,
}

/// Blocks by what becomes of them; the others add up to `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageblockOutcomes {
    /// All blocks of the zones that the request may use.
    pub all: u64,
    /// Expected huge pages at the end.
    pub obtainable: u64,
    /// Huge pages in use or in a pool.
    pub in_use: u64,
    /// Never whole.
    pub polluted: u64,
    /// Memory in use fills them, or the kernel's watermarks keep them.
    pub unobtainable: u64,
}

/// One zone's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneForecast {
    /// The zone.
    pub key: ZoneKey,
    /// Available huge pages.
    pub bounds: StepBounds,
    /// Blocks of the zone.
    pub blocks: u64,
    /// Blocks that are huge pages in use or in a pool.
    pub in_use: u64,
    /// Blocks that can never be whole, each counted once, by the first class that pollutes it.
    pub polluted: Vec<(PageClass, u64)>,
    /// Huge pages that stay with the kernel's watermark and lowmem reserve although they are whole: now.
    pub held_by_watermark: u64,
}

impl ForecastBounds {
    /// A number that is known.
    pub fn exact(value: u64) -> ForecastBounds {
        ForecastBounds { low: value, expected: value, high: value }
    }

    fn sum(self, other: ForecastBounds) -> ForecastBounds {
        ForecastBounds {
            low: self.low.saturating_add(other.low),
            expected: self.expected.saturating_add(other.expected),
            high: self.high.saturating_add(other.high),
        }
    }

    fn sort(self) -> ForecastBounds {
        let (low, high) = (self.low.min(self.expected), self.high.max(self.expected));
        ForecastBounds { low, expected: self.expected, high }
    }

    /// At least the other: what is available before a step is available after it.
    fn clamp_below(self, other: ForecastBounds) -> ForecastBounds {
        ForecastBounds {
            low: self.low.max(other.low),
            expected: self.expected.max(other.expected),
            high: self.high.max(other.high),
        }
    }
}

impl StepBounds {
    fn sum(self, other: StepBounds) -> StepBounds {
        StepBounds {
            now: self.now.sum(other.now),
            after_compaction: self.after_compaction.sum(other.after_compaction),
            after_dropping_cache: self.after_dropping_cache.sum(other.after_dropping_cache),
        }
    }
}

/// Share of the blocks that change between the snapshot and the last request: programs continue, lists fill
/// and drain.
const DRIFT_DIVISOR: u64 = 100;
/// Of what compaction gains, what its scanners may make differently than they are played through: folios move
/// whole and need room of their size, and pages that are held for a moment stay.
const GAIN_DIVISOR: u64 = 10;

impl StepBounds {
    /// Makes room in the intervals for what the census cannot know. `shift`: how many requests a block has,
    /// as a power of two.
    /// `divide` rounds the room down, or up for a zone, so that the zones have no less room than their total.
    fn widen(&mut self, blocks: u64, shift: u32, divide: fn(u64, u64) -> u64) {
        let to_requests = |blocks: u64| blocks.saturating_mul(1 << shift.min(63));
        let moves = to_requests(divide(blocks, DRIFT_DIVISOR));
        let gain = |from: ForecastBounds, to: ForecastBounds| {
            divide(to.expected.saturating_sub(from.expected), GAIN_DIVISOR)
        };
        let compacted = moves.saturating_add(gain(self.now, self.after_compaction));
        let dropped = compacted.saturating_add(gain(self.after_compaction, self.after_dropping_cache));
        let bounds_with_slack = [
            (&mut self.now, moves),
            (&mut self.after_compaction, compacted),
            (&mut self.after_dropping_cache, dropped),
        ];
        for (bounds, room) in bounds_with_slack {
            bounds.low = bounds.low.saturating_sub(room);
            bounds.high = bounds.high.saturating_add(room).min(to_requests(blocks).max(bounds.high));
        }
    }

    /// The bounds at a step.
    fn at(&self, step: ReclaimStep) -> ForecastBounds {
        match step {
            ReclaimStep::Nothing => self.now,
            ReclaimStep::Compaction => self.after_compaction,
            ReclaimStep::DropCache => self.after_dropping_cache,
        }
    }

    fn at_mut(&mut self, step: ReclaimStep) -> &mut ForecastBounds {
        match step {
            ReclaimStep::Nothing => &mut self.now,
            ReclaimStep::Compaction => &mut self.after_compaction,
            ReclaimStep::DropCache => &mut self.after_dropping_cache,
        }
    }
}

impl Forecast {
    /// Blocks by their state after all steps: obtainable, in use as huge pages, polluted, and the rest, in
    /// which memory in use stays or which the kernel keeps. The four add up to all blocks.
    pub fn block_outcomes(&self) -> PageblockOutcomes {
        let all: u64 = self.zone_forecasts.iter().map(|zone| zone.blocks).sum();
        let obtainable = self.total_bounds.after_dropping_cache.expected.min(all);
        let in_use: u64 = self.zone_forecasts.iter().map(|zone| zone.in_use).sum();
        let in_use = in_use.min(all - obtainable);
        // Blocks of unknown pages may be counted as available: then they are not polluted.
        let polluted: u64 = self.polluted_by_class().iter().map(|(_, blocks)| blocks).sum();
        let polluted = polluted.min(all - obtainable - in_use);
        let unobtainable = all - obtainable - in_use - polluted;
        PageblockOutcomes { all, obtainable, in_use, polluted, unobtainable }
    }

    /// Expected huge pages at the end of a step.
    pub fn bounds_after(&self, step: ReclaimStep) -> ForecastBounds {
        self.total_bounds.at(step)
    }

    /// The upper bounds at a step, of which the smallest is the high end.
    pub fn upper_bounds_after(&self, step: ReclaimStep) -> Option<UpperBounds> {
        Some(self.upper_bounds?[step as usize])
    }

    /// Whether the request can be met after a step; `None` if that was not seen.
    pub fn is_met_after(&self, step: ReclaimStep) -> Option<bool> {
        let is_enough = self.bounds_after(step).expected >= self.request.count;
        (is_enough || self.census_absence.is_none() || step == ReclaimStep::Nothing).then_some(is_enough)
    }

    /// Blocks that can never be whole, by class, the largest first.
    pub fn polluted_by_class(&self) -> Vec<(PageClass, u64)> {
        let mut sums: Vec<(PageClass, u64)> = Vec::new();
        for &(class, blocks) in self.zone_forecasts.iter().flat_map(|zone| &zone.polluted) {
            *value_of(&mut sums, class) += blocks;
        }
        sums.sort_by_key(|&(_, blocks)| std::cmp::Reverse(blocks));
        sums
    }

    /// Bound of the error: the larger of 5 % of the allocated pages and 1 % of the pageblocks.
    pub fn error_scale(&self, allocated: u64) -> f64 {
        let blocks: u64 = self.zone_forecasts.iter().map(|zone| zone.blocks).sum();
        (allocated as f64 * 0.05).max(blocks as f64 * 0.01)
    }
}

/// Predicts. Absent where buddyinfo or zoneinfo are; without a census of every page, only the pages available
/// now are known.
pub fn predict(snapshot: &Snapshot, request: AllocationRequest) -> Reading<Forecast> {
    let machine = ForecastInputs::from_snapshot(snapshot, request)?;
    if request.order > machine.unit_order {
        return predict_multi_block(&machine, request);
    }
    let mut zone_forecasts: Vec<ZoneForecast> =
        machine.zones.iter().map(|zone| predict_zone(&machine, zone, request)).collect();
    let mut total = zone_forecasts.iter().fold(StepBounds::default(), |sum, zone| sum.sum(zone.bounds));
    let blocks: u64 = zone_forecasts.iter().map(|zone| zone.blocks).sum();
    let free = machine.zones.iter().map(|zone| zone.free_pages.saturating_add(zone.pcp_pages)).sum::<u64>();
    let upper_bounds = match machine.census_absence {
        // Free blocks on the lists are available; the rest is bounded by the free pages.
        Some(_) => {
            let blocks_max = free / request.order.to_pages().0.max(1);
            let after = ForecastBounds { high: total.now.high.max(blocks_max), ..total.now };
            (total.after_compaction, total.after_dropping_cache) = (after, after);
            None
        }
        None => {
            let shift = u32::from(machine.unit_order.0.saturating_sub(request.order.0));
            total.widen(blocks, shift, |number, divisor| number / divisor);
            for zone in &mut zone_forecasts {
                zone.bounds.widen(zone.blocks, shift, u64::div_ceil);
            }
            Some(high_ends::limit_high_ends(&machine, request, &mut zone_forecasts, &mut total))
        }
    };
    let ForecastInputs { census_absence, notes, .. } = machine;
    Ok(Forecast { request, total_bounds: total, zone_forecasts, upper_bounds, census_absence, notes })
}

/// One zone, for orders up to that of a block.
fn predict_zone(machine: &ForecastInputs, zone: &ZoneInputs, request: AllocationRequest) -> ZoneForecast {
    let order = request.order;
    let shift = u32::from(machine.unit_order.0 - order.0);
    let of_blocks = |blocks: u64| blocks.saturating_mul(1 << shift.min(63));
    let capped = |runs: u64, free: u64, kept: u64| {
        let free_above_watermark = free.saturating_sub(kept);
        let page_tables = free_above_watermark / (machine.unit_order.to_pages().0 + 1);
        runs.min((free_above_watermark - page_tables) / order.to_pages().0)
    };
    let runs_now = zone.free_runs(order).saturating_add(of_blocks(zone.deferred_blocks));
    let kswapd_helps = zone.droppable_pages >= zone.min_watermark;
    let bounds_at = |runs: [u64; 3], freed: u64, drained: u64| {
        let free = zone.free_pages.saturating_add(freed);
        // kswapd wakes below the low watermark and drops cache up to the high one meanwhile.
        let kept_least = if kswapd_helps { zone.lowmem_reserve } else { zone.reserved_pages() };
        ForecastBounds {
            low: capped(runs[0], free, zone.reserved_pages()),
            expected: capped(runs[1], free.saturating_add(drained), zone.reserved_pages()),
            high: capped(runs[2], free.saturating_add(zone.pcp_pages), kept_least),
        }
        .sort()
    };
    // Huge pages on the lists of CPUs are on no free list: one's own come at once, all of them once the
    // kernel drains the lists, which it does before it gives up.
    let is_pmd_order = order == machine.unit_order;
    let (least, most) = if is_pmd_order { zone.own_pcp_huge_blocks(request.cpu) } else { (0, 0) };
    // Recently freed pages are mostly base pages: of uncertain ones, a quarter counts.
    let own_pcp_blocks = least + most.saturating_sub(least) / 4;
    let pcp_blocks = if is_pmd_order { zone.pcp_huge_blocks() } else { 0 };
    let now = bounds_at([runs_now, runs_now + own_pcp_blocks, runs_now + pcp_blocks], 0, 0);
    let after = |drop: bool| {
        let unknown_treatments =
            [UnknownTreatment::InUse, UnknownTreatment::LikelyPcp, UnknownTreatment::FewestPcp];
        let [in_use, likely_pcp, fewest_pcp] =
            unknown_treatments.map(|unknown| count_compacted_blocks(zone, unknown, drop));
        let runs = [in_use, likely_pcp, fewest_pcp].map(of_blocks);
        let runs = [runs[0], runs[1] + pcp_blocks, runs[2] + pcp_blocks];
        // Smaller runs remain in blocks that do not become whole; the present number is the minimum.
        let runs = if order < machine.unit_order { runs.map(|runs| runs.max(runs_now)) } else { runs };
        // Compaction for a request drains the lists when it finds nothing, a fault does not, and lists fill
        // up again meanwhile (mm/page_alloc.c, `__alloc_pages_direct_reclaim`).
        bounds_at(runs, if drop { zone.droppable_pages } else { 0 }, zone.pcp_pages / 2)
    };
    let after_compaction = after(false).clamp_below(ForecastBounds { high: 0, ..now });
    let after_dropping_cache = after(true).clamp_below(after_compaction);
    let bounds = StepBounds { now, after_compaction, after_dropping_cache };
    ZoneForecast::from_bounds(zone, bounds, runs_now.saturating_sub(now.expected))
}

impl ZoneForecast {
    fn from_bounds(zone: &ZoneInputs, bounds: StepBounds, held_by_watermark: u64) -> ZoneForecast {
        ZoneForecast {
            key: zone.key.clone(),
            bounds,
            blocks: zone.blocks.len() as u64,
            in_use: zone.blocks.iter().filter(|block| block.is_huge).count() as u64,
            polluted: zone.polluted.clone(),
            held_by_watermark,
        }
    }
}

/// Larger than a block: aligned ranges of blocks, as `alloc_contig_pages` looks for them.
fn predict_multi_block(machine: &ForecastInputs, request: AllocationRequest) -> Reading<Forecast> {
    if let Some(unseen) = &machine.census_absence {
        return Err(unseen.clone());
    }
    let (mut zone_forecasts, mut total_bounds) = (Vec::new(), StepBounds::default());
    for (zone, census) in machine.zones.iter().zip(&machine.census_zones) {
        let counts =
            GiganticSupply::count_zones(Coverage::Whole, machine.pageblock_order, [*census], request.order)?;
        let base = request.order.to_pages().0;
        // The movable pages of a range move to free pages outside of it: there must be as many.
        let fitting_ranges =
            |ranges: u64, free: u64| ranges.min(free.saturating_sub(zone.reserved_pages()) / base);
        let cache = zone.free_pages.saturating_add(zone.droppable_pages);
        let (low, high) = (counts.contiguous_low, counts.contiguous_high);
        let likely = GiganticSupply::count_explained_by_pcp(
            machine.pageblock_order,
            census,
            request.order,
            zone.pcp_pages,
        )
        .max(low);
        let bounds = |free: u64| ForecastBounds {
            low: fitting_ranges(low, free),
            expected: fitting_ranges(likely, free),
            high: fitting_ranges(high, free.saturating_add(zone.pcp_pages)),
        };
        // Slab that describes page cache is freed with it, in any block.
        let slab = machine.page_cache_slab_pages;
        let without_slab =
            GiganticSupply::count_without_slab(machine.pageblock_order, census, request.order, slab);
        let dropped = bounds(cache);
        let high = dropped
            .high
            .max(fitting_ranges(without_slab, cache.saturating_add(zone.pcp_pages).saturating_add(slab)));
        let steps = StepBounds {
            now: ForecastBounds::exact(fitting_ranges(counts.free, zone.free_pages)),
            after_compaction: bounds(zone.free_pages),
            after_dropping_cache: ForecastBounds { high, ..dropped },
        };
        total_bounds = total_bounds.sum(steps);
        zone_forecasts.push(ZoneForecast::from_bounds(zone, steps, 0));
    }
    let notes = machine.notes.clone();
    let (upper_bounds, census_absence) = (None, None);
    Ok(Forecast { request, total_bounds, zone_forecasts, upper_bounds, census_absence, notes })
}

/// The absence of a forecast for which something is missing.
fn forecast_absence(cause: &Absence) -> Absence {
    Absence::new(cause.source.clone(), cause.why, cause.reason())
        .with_hint(cause.hint.clone().unwrap_or_else(|| "run it where this can be read".to_owned()))
}

/// The absence of a forecast that has no meaning.
fn undefined_absence(detail: &str) -> Absence {
    Absence::new("forecast", AbsenceReason::Undefined, detail)
}

// Model of the kernel's compaction, block by block: a scanner from below isolates movable pages, another one
// from above isolates free pages as targets, until the two meet (mm/compaction.c, `compact_zone`).
//
// The free scanner skips completely free blocks and blocks that are not of movable type
// (`suitable_migration_target`); the migration scanner scans every block. A page that cannot be moved stays,
// and the rest of its block is emptied all the same.

/// Minimum share of a block's pages that counts as freed together.
const PCP_CLUSTER_DIVISOR: u64 = 8;

/// Assumed class of pages without a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnknownTreatment {
    /// Kernel memory in use.
    InUse,
    /// As many as there are on per-CPU lists are free, in the blocks where they are most.
    LikelyPcp,
    /// As many as there are on per-CPU lists are free, in the blocks where they are fewest.
    FewestPcp,
}

/// How many blocks are wholly free when the scanners have met.
fn count_compacted_blocks(zone: &ZoneInputs, unknown_pages: UnknownTreatment, drop_cache: bool) -> u64 {
    let mut blocks = resolve_unknown(zone, unknown_pages);
    if drop_cache {
        for block in blocks.iter_mut().filter(|block| !block.is_huge) {
            let dropped = block.droppable.min(block.movable);
            block.free += dropped;
            block.movable -= dropped;
        }
    }
    run_scanners(&mut blocks);
    blocks.iter().filter(|block| is_wholly_free(block)).count() as u64
}

fn is_wholly_free(block: &PageblockPages) -> bool {
    !block.is_huge && block.free == block.pages
}

/// The blocks with their unknown pages counted as free or as fixed.
fn resolve_unknown(zone: &ZoneInputs, unknown: UnknownTreatment) -> Vec<PageblockPages> {
    let is_free = match unknown {
        UnknownTreatment::InUse => vec![false; zone.blocks.len()],
        UnknownTreatment::LikelyPcp => find_pcp_clusters(zone),
        UnknownTreatment::FewestPcp => {
            let pages_max = pcp_threshold(&zone.blocks, zone.pcp_pages);
            zone.blocks.iter().map(|block| is_only_unknown(block) && block.unknown <= pages_max).collect()
        }
    };
    let resolve_block = |(block, is_free): (&PageblockPages, bool)| {
        let (free, unmovable) = if is_free { (block.unknown, 0) } else { (0, block.unknown) };
        PageblockPages {
            free: block.free + free,
            unmovable: block.unmovable + unmovable,
            unknown: 0,
            ..*block
        }
    };
    zone.blocks.iter().zip(is_free).map(resolve_block).collect()
}

/// Most kernel memory without flags is beside other kernel memory: only blocks without it are uncertain.
fn is_only_unknown(block: &PageblockPages) -> bool {
    block.unknown > 0 && block.unmovable == 0
}

/// Which blocks' unknown pages are likely those on per-CPU lists. Pages on pcp lists were freed one after
/// another and are close together, so a block has many of them; kernel memory was allocated in movable blocks
/// page by page. So blocks with many are explained first, then those with some, up to the number of pages on
/// the lists.
fn find_pcp_clusters(zone: &ZoneInputs) -> Vec<bool> {
    let huge_pcp_pages =
        zone.pcp_huge_blocks() * zone.blocks.iter().map(|block| block.pages).max().unwrap_or(0);
    let mut order0_pcp_pages = zone.pcp_pages.saturating_sub(huge_pcp_pages);
    let is_cluster = |block: &PageblockPages| {
        is_only_unknown(block)
            && block.unknown < block.pages
            && block.unknown >= block.pages / PCP_CLUSTER_DIVISOR
    };
    let mut order: Vec<usize> = (0..zone.blocks.len()).filter(|&at| is_cluster(&zone.blocks[at])).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(zone.blocks[at].unknown));
    let mut is_free = vec![false; zone.blocks.len()];
    for at in order {
        match order0_pcp_pages.checked_sub(zone.blocks[at].unknown) {
            Some(left) => (order0_pcp_pages, is_free[at]) = (left, true),
            None => break,
        }
    }
    // Of the rest, the lists hold a known part. Where that is most of it, as large a part of the blocks is
    // free, taken evenly over the zone; where it is less, most of these blocks have a page of kernel memory.
    let rest: Vec<usize> =
        (0..zone.blocks.len()).filter(|&at| is_only_unknown(&zone.blocks[at]) && !is_free[at]).collect();
    let unknown: u64 = rest.iter().map(|&at| zone.blocks[at].unknown).sum();
    let (listed_pages, count) = (order0_pcp_pages.min(unknown), rest.len() as u64);
    if listed_pages.saturating_mul(2) >= unknown && unknown > 0 {
        let free_before =
            |nth: u64| (u128::from(nth) * u128::from(listed_pages) / u128::from(unknown)) as u64;
        for (index, at) in (0..count).zip(rest) {
            is_free[at] = free_before(index + 1) > free_before(index);
        }
    }
    is_free
}

/// The largest number of unknown pages in a block so that all blocks with up to this number, and nothing else
/// that pollutes them, have no more than `per_cpu` together.
fn pcp_threshold(blocks: &[PageblockPages], mut per_cpu: u64) -> u64 {
    let unsure = blocks.iter().filter(|block| is_only_unknown(block));
    let mut unknown_counts: Vec<u64> = unsure.map(|block| block.unknown).collect();
    unknown_counts.sort_unstable();
    let mut threshold = 0;
    for same in unknown_counts.chunk_by(|a, b| a == b) {
        match per_cpu.checked_sub(same.iter().sum()) {
            Some(left) => (per_cpu, threshold) = (left, same[0]),
            None => break,
        }
    }
    threshold
}

fn run_scanners(blocks: &mut [PageblockPages]) {
    let has_room = |block: &PageblockPages| {
        block.is_migration_target && !block.is_huge && block.free > 0 && !is_wholly_free(block)
    };
    // The free scanner takes from the block below this one.
    let mut free_scanner = blocks.len();
    for migrate_scanner in 0..blocks.len() {
        while !blocks[migrate_scanner].is_huge
            && !blocks[migrate_scanner].is_file_folio
            && blocks[migrate_scanner].movable > 0
        {
            while free_scanner > migrate_scanner + 1 && !has_room(&blocks[free_scanner - 1]) {
                free_scanner -= 1;
            }
            if free_scanner <= migrate_scanner + 1 {
                return;
            }
            let moved = blocks[migrate_scanner].movable.min(blocks[free_scanner - 1].free);
            for (at, sign) in [(migrate_scanner, 1), (free_scanner - 1, -1)] {
                let block = &mut blocks[at];
                block.free = block.free.saturating_add_signed(sign * moved as i64);
                block.movable = block.movable.saturating_add_signed(-sign * moved as i64);
            }
        }
    }
}

#[cfg(test)]
mod tests;
