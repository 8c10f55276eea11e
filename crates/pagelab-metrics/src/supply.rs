//! Supply of huge pages from this memory: now, after compaction, after dropping cache, and the obstacles.
//!
//! A *unit* is an aligned range of the PMD order that has memory: a pageblock on nearly every machine. B is
//! its number of base pages. Hole pages at the edge of a zone are obstacles; a range of only holes and
//! offline pages is not a unit.
//!
//! | number | unit | definition |
//! |---|---|---|
//! | `buddy_now` | huge pages | Σ over free blocks of at least the PMD order, in buddyinfo |
//! | `units` | units | ranges with at least one page that is neither hole nor offline |
//! | `free_now` | units | every page free |
//! | `deferred` | units | every page free or deferred, at least one deferred |
//! | `in_use` | units | hugetlb and no polluting page, or one anonymous or shared compound page |
//! | `polluted` | units | a page of a polluting class ([`PageClass::pollutes`]); high end: or unknown |
//! | `polluted_low_per_cpu` | units | high, less the most units that per-CPU lists can explain |
//! | `culprits.holding` | units | units that have at least one page of the class |
//! | `culprits.alone` | units | of those, units that no other class certainly pollutes |
//! | `after_compaction` | units | U − ⌈max(0, M − F) / B⌉ in each zone; includes free and deferred |
//! | `after_dropping_cache` | units | the same with page cache counted as free |
//!
//! U are the units that are neither polluted nor in use, M the movable pages in them, F the free pages in all
//! other units: perfect compaction packs M into F first, and then into as few units of U as possible.
//! Deferred pages count as free. The low end counts unknown pages as unmovable, the high end as free. It is
//! an upper bound: pinned pages look movable, unevictable pages move only with `compact_unevictable_allowed`,
//! watermarks are ignored, and dirty or mapped cache is not dropped at once.
//!
//! If every page was read, both `after` values are the prediction of [`crate::forecast`] instead, so that
//! `checkup` and `can` report one number for one state: the table's are for samples, which `can` does not
//! evaluate.
//!
//! In a sample, `units` comes from the memory map; each other number is the expansion estimate N/n · Σ of
//! each zone, with half of its 95 % interval: for counts from Wilson's score interval (the longer side) with
//! the effective size n (N − 1) / (N − n), for compaction from the variance between units, t · N · √((1 −
//! n/N) s² / n). Zones add in squares.

use std::ops::ControlFlow;

use pagelab_model::{
    Absence, AbsenceReason, BuddyInfo, Census, CensusZone, Coverage, Order, PageClass, PageblockCounts,
    Reading, ZoneKey,
};

use crate::forecast::{Forecast, ForecastBounds, StepBounds};

/// No page size has larger huge pages of PMD order; keeps a hostile order from overflowing.
const UNIT_ORDER_MAX: Order = Order(30);

/// Classes that can pollute a unit, the unknown last.
pub const POLLUTING_CLASSES: [PageClass; 8] = [
    PageClass::Slab,
    PageClass::PageTable,
    PageClass::Reserved,
    PageClass::Kernel,
    PageClass::Hole,
    PageClass::Offline,
    PageClass::Poisoned,
    PageClass::Unknown,
];

/// The supply of huge pages of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePageSupply {
    /// Order of a unit: the PMD order, or the census's block order if that is larger.
    pub unit_order: Order,
    /// By zone, in the census's order.
    pub zones: Vec<ZoneSupply>,
    /// Total of all zones.
    pub total: UnitCounts,
    /// Gigantic pages of each requested order.
    pub gigantic: Vec<GiganticSupply>,
}

/// One zone's supply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSupply {
    /// The zone.
    pub key: ZoneKey,
    /// Its supply.
    pub supply: UnitCounts,
}

/// Counts of units; the module's table has the definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitCounts {
    /// From buddyinfo, if it was read.
    pub free_by_buddyinfo: Option<u64>,
    /// Units that hold memory.
    pub units: CountEstimate,
    /// Wholly free.
    pub free: CountEstimate,
    /// Wholly free or deferred, some of it deferred.
    pub deferred: CountEstimate,
    /// Huge pages in use or in a pool.
    pub in_use: CountEstimate,
    /// Never available, between unknown pages counted as free and as unmovable.
    pub polluted: EstimateRange,
    /// The low end of `polluted` if only as many unknown pages are free as are on per-CPU lists; `None` for a
    /// sample.
    pub polluted_low_per_cpu: Option<u64>,
    /// Pages on per-CPU lists: the most free pages among the unknown.
    pub pcp_pages: Option<u64>,
    /// Unknown pages.
    pub unknown_pages: CountEstimate,
    /// By [`POLLUTING_CLASSES`].
    pub polluting_classes: Vec<PollutingClass>,
    /// Available after perfect compaction.
    pub after_compaction: EstimateRange,
    /// Available after dropping the page cache and perfect compaction.
    pub after_dropping_cache: EstimateRange,
}

/// How much one class is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollutingClass {
    /// The class.
    pub class: PageClass,
    /// Units that hold it.
    pub units_with: CountEstimate,
    /// Units that it alone pollutes.
    pub units_polluted_alone: CountEstimate,
}

/// The supply by a census, with buddyinfo beside it; gigantic pages of the orders in `gigantic`.
pub fn compute_supply(
    census: &Census,
    buddy: Option<&BuddyInfo>,
    pmd_order: Order,
    gigantic: &[Order],
) -> HugePageSupply {
    let unit_order = pmd_order.max(census.pageblock_order).min(UNIT_ORDER_MAX);
    let zones: Vec<ZoneSupply> = census
        .zones
        .iter()
        .map(|zone| {
            let mut huge = count_zone_units(census, zone, unit_order);
            let areas = buddy.and_then(|buddy| buddy.zone(&zone.key));
            huge.free_by_buddyinfo =
                areas.map(|areas| u64::try_from(areas.blocks_suitable(pmd_order)).unwrap_or(u64::MAX));
            ZoneSupply { key: zone.key.clone(), supply: huge }
        })
        .collect();
    let supplies = zones.iter().map(|zone| zone.supply.clone());
    let total = supplies.reduce(|sum, zone| sum.sum(&zone)).unwrap_or_default();
    let count =
        |order| GiganticSupply::count_zones(census.coverage, census.pageblock_order, &census.zones, order);
    let gigantic = gigantic.iter().map(|&order| GiganticSupply { order, counts: count(order) }).collect();
    HugePageSupply { unit_order, zones, total, gigantic }
}

impl HugePageSupply {
    /// Stores the prediction of `can` for each zone and in total.
    pub(crate) fn apply_forecast(&mut self, forecast: &Forecast) {
        for zone in &mut self.zones {
            if let Some(found) = forecast.zone_forecasts.iter().find(|found| found.key == zone.key) {
                zone.supply.apply_forecast(&found.bounds);
            }
        }
        self.total.apply_forecast(&forecast.total_bounds);
    }
}

fn count_zone_units(census: &Census, zone: &CensusZone, unit_order: Order) -> UnitCounts {
    let units = group_blocks(census.pageblock_order, zone, unit_order);
    let population = match census.coverage {
        Coverage::Whole => UnitPopulation { total: units.len() as u64, sampled: units.len() as u64 },
        Coverage::Sample(_) => {
            let blocks_per_unit = unit_order.to_pages().0 / census.pageblock_order.to_pages().0;
            UnitPopulation { total: zone.blocks_total.div_ceil(blocks_per_unit), sampled: units.len() as u64 }
        }
    };
    let count = |holds: &dyn Fn(&SupplyUnit) -> bool| {
        population.estimate_count(units.iter().filter(|unit| unit.has_memory() && holds(unit)).count() as u64)
    };
    let polluted = EstimateRange {
        low: count(&|unit| unit.is_polluted(UnknownTreatment::Free)),
        high: count(&|unit| unit.is_polluted(UnknownTreatment::Unmovable)),
    };
    let is_complete = matches!(census.coverage, Coverage::Whole);
    let pcp_pages = zone.per_cpu.map(|pages| pages.0);
    let explained = pcp_pages.filter(|_| is_complete).map(|pages| units_explained_by_pcp(&units, pages));
    let obtainable_after = |cache| EstimateRange {
        low: estimate_obtainable(&units, population, unit_order, UnknownTreatment::Unmovable, cache),
        high: estimate_obtainable(&units, population, unit_order, UnknownTreatment::Free, cache),
    };
    UnitCounts {
        free_by_buddyinfo: None,
        units: if units.iter().all(SupplyUnit::has_memory) {
            CountEstimate::exact(population.total)
        } else {
            count(&|_| true)
        },
        free: count(&|unit| unit.is_free()),
        deferred: count(&|unit| unit.is_deferred()),
        in_use: count(&|unit| unit.is_in_use()),
        polluted_low_per_cpu: explained.map(|units| polluted.high.value - units),
        polluted,
        pcp_pages,
        unknown_pages: population
            .estimate_total(units.iter().map(|unit| unit.pages_of_class(PageClass::Unknown) as i64)),
        polluting_classes: POLLUTING_CLASSES
            .map(|class| PollutingClass {
                class,
                units_with: count(&|unit| unit.pages_of_class(class) > 0),
                units_polluted_alone: count(&|unit| unit.is_polluted_only_by(class)),
            })
            .to_vec(),
        after_compaction: obtainable_after(false),
        after_dropping_cache: obtainable_after(true),
    }
}

/// How many units would not be polluted if the `pages` free pages of the per-CPU lists are unknown pages
/// placed as well as can be: units with the fewest unknown pages first.
fn units_explained_by_pcp(units: &[SupplyUnit], pages: u64) -> u64 {
    let only_unknown = |unit: &&SupplyUnit| {
        unit.is_polluted(UnknownTreatment::Unmovable) && !unit.is_polluted(UnknownTreatment::Free)
    };
    let unknown = units.iter().filter(only_unknown).map(|unit| unit.pages_of_class(PageClass::Unknown));
    count_fitting(unknown.collect(), pages)
}

/// How many of these needs a budget covers, the smallest first.
pub(crate) fn count_fitting(mut needs: Vec<u64>, mut budget: u64) -> u64 {
    needs.sort_unstable();
    let fits = |&&need: &&u64| {
        let left = budget.checked_sub(need);
        budget = left.unwrap_or(0);
        left.is_some()
    };
    needs.iter().take_while(fits).count() as u64
}

/// U − ⌈max(0, M − F) / B⌉, written as min(U, ⌊(U B − M + F) / B⌋): both terms are sums over units.
fn estimate_obtainable(
    units: &[SupplyUnit],
    population: UnitPopulation,
    unit_order: Order,
    unknown: UnknownTreatment,
    drop_cache: bool,
) -> CountEstimate {
    let mut usable = UnitValues::default();
    let mut room = UnitValues::default();
    for unit in units {
        let is_usable = unit.has_memory() && !unit.is_polluted(unknown) && unit.is_obtainable();
        let cache = if drop_cache { unit.pages_of_class(PageClass::File) } else { 0 };
        usable.push(i64::from(is_usable));
        room.push(if is_usable {
            (unit.total_pages() - (unit.movable_pages() - cache)) as i64
        } else {
            (unit.free_pages(unknown) + cache) as i64
        });
    }
    population.estimate_smaller(&usable, &room, unit_order.to_pages().0)
}

impl UnitCounts {
    fn apply_forecast(&mut self, steps: &StepBounds) {
        let ends = |bounds: ForecastBounds| EstimateRange {
            low: CountEstimate::exact(bounds.low),
            high: CountEstimate::exact(bounds.high),
        };
        self.after_compaction = ends(steps.after_compaction);
        self.after_dropping_cache = ends(steps.after_dropping_cache);
    }

    fn sum(self, other: &UnitCounts) -> UnitCounts {
        let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let culprits =
            self.polluting_classes.iter().zip(&other.polluting_classes).map(|(a, b)| PollutingClass {
                class: a.class,
                units_with: a.units_with.sum(b.units_with),
                units_polluted_alone: a.units_polluted_alone.sum(b.units_polluted_alone),
            });
        UnitCounts {
            free_by_buddyinfo: both(self.free_by_buddyinfo, other.free_by_buddyinfo),
            units: self.units.sum(other.units),
            free: self.free.sum(other.free),
            deferred: self.deferred.sum(other.deferred),
            in_use: self.in_use.sum(other.in_use),
            polluted: self.polluted.sum(other.polluted),
            polluted_low_per_cpu: both(self.polluted_low_per_cpu, other.polluted_low_per_cpu),
            pcp_pages: both(self.pcp_pages, other.pcp_pages),
            unknown_pages: self.unknown_pages.sum(other.unknown_pages),
            polluting_classes: culprits.collect(),
            after_compaction: self.after_compaction.sum(other.after_compaction),
            after_dropping_cache: self.after_dropping_cache.sum(other.after_dropping_cache),
        }
    }
}
/// A count, or an estimate of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountEstimate {
    /// The count; from a sample, rounded to the nearest.
    pub value: u64,
    /// Half of the 95 % interval, rounded up; `None` if everything was counted.
    pub margin: Option<u64>,
}

impl CountEstimate {
    /// A count of everything.
    pub fn exact(value: u64) -> CountEstimate {
        CountEstimate { value, margin: None }
    }

    /// The sum of two independent estimates.
    pub fn sum(self, other: CountEstimate) -> CountEstimate {
        let squares = |a: u64, b: u64| (a as f64).hypot(b as f64).ceil() as u64;
        let plus_minus = match (self.margin, other.margin) {
            (None, None) => None,
            (a, b) => Some(squares(a.unwrap_or(0), b.unwrap_or(0))),
        };
        CountEstimate { value: self.value.saturating_add(other.value), margin: plus_minus }
    }
}

/// A number between two bounds, because the class of some pages is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EstimateRange {
    /// The low end.
    pub low: CountEstimate,
    /// The high end.
    pub high: CountEstimate,
}

impl EstimateRange {
    /// The sum of two.
    pub fn sum(self, other: EstimateRange) -> EstimateRange {
        EstimateRange { low: self.low.sum(other.low), high: self.high.sum(other.high) }
    }
}

/// Values of units: their number, sum and sum of squares.
#[derive(Clone, Copy, Debug, Default)]
struct UnitValues {
    sum: i128,
    squares: i128,
}

impl UnitValues {
    pub fn push(&mut self, value: i64) {
        self.sum += i128::from(value);
        self.squares += i128::from(value) * i128::from(value);
    }
}

/// How many units there are, and how many of them were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnitPopulation {
    pub total: u64,
    pub sampled: u64,
}

/// The normal distribution's two-sided 95 % point.
const Z_95: f64 = 1.959_964;

impl UnitPopulation {
    fn is_complete(self) -> bool {
        self.sampled >= self.total
    }

    /// Units of which `hits` were seen.
    pub fn estimate_count(self, hits: u64) -> CountEstimate {
        if self.is_complete() {
            return CountEstimate::exact(hits);
        }
        let (total, seen) = (self.total as f64, self.sampled as f64);
        if self.sampled == 0 {
            return CountEstimate { value: 0, margin: Some(self.total) };
        }
        let share = hits as f64 / seen;
        let size = seen * (total - 1.0) / (total - seen);
        let squared = Z_95 * Z_95;
        let centre = (share + squared / (2.0 * size)) / (1.0 + squared / size);
        let spread = Z_95 * (share * (1.0 - share) / size + squared / (4.0 * size * size)).sqrt()
            / (1.0 + squared / size);
        let half = (centre + spread - share).max(share - (centre - spread));
        CountEstimate { value: (total * share).round() as u64, margin: Some((total * half).ceil() as u64) }
    }

    /// The sum of a value that each unit has.
    pub fn estimate_total(self, values: impl Iterator<Item = i64>) -> CountEstimate {
        let mut series = UnitValues::default();
        values.for_each(|value| series.push(value));
        if self.is_complete() {
            return CountEstimate::exact(u64::try_from(series.sum).unwrap_or(0));
        }
        let (value, half) = self.expansion_estimate(&series);
        CountEstimate { value: value.max(0.0).round() as u64, margin: Some(half.ceil() as u64) }
    }

    /// The smaller of the sum of `usable`, and of the sum of `room` in units of `pages`, rounded down; not
    /// below 0. Where it is not clear which is smaller, the larger error of the two is given.
    pub fn estimate_smaller(self, usable: &UnitValues, room: &UnitValues, pages: u64) -> CountEstimate {
        if self.is_complete() {
            let smaller = usable.sum.min(room.sum.div_euclid(i128::from(pages)));
            return CountEstimate::exact(u64::try_from(smaller).unwrap_or(0));
        }
        let (units, units_half) = self.expansion_estimate(usable);
        let (room, room_half) = self.expansion_estimate(room);
        let (room, room_half) = (room / pages as f64, room_half / pages as f64);
        let half = if (units - room).abs() <= units_half.max(room_half) {
            units_half.max(room_half)
        } else if units < room {
            units_half
        } else {
            room_half
        };
        let value = units.min(room).max(0.0).round() as u64;
        CountEstimate { value, margin: Some(half.ceil() as u64) }
    }

    /// The expansion estimate of a sum, and half of its interval.
    fn expansion_estimate(self, series: &UnitValues) -> (f64, f64) {
        let (total, seen) = (self.total as f64, self.sampled as f64);
        if self.sampled < 2 {
            return (0.0, total);
        }
        let sum = series.sum as f64;
        let variance = ((series.squares as f64 - sum * sum / seen) / (seen - 1.0)).max(0.0);
        let degrees_of_freedom = seen - 1.0;
        // Student's t by the first terms of its expansion in 1/ν: 2.26 at ν = 9 (2.262), 2.04 at 30 (2.042).
        let t = Z_95 + 2.37 / degrees_of_freedom + 2.8 / (degrees_of_freedom * degrees_of_freedom);
        let half = t * total * ((1.0 - seen / total) * variance / seen).sqrt();
        (total * sum / seen, half)
    }
}

/// Assumed class of pages without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownTreatment {
    Free,
    Unmovable,
}

/// Pages of a unit by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupplyUnit {
    counts: [u64; PageClass::COUNT],
    /// Whether each block of it is one compound page or a part of one.
    one_folio: bool,
}

/// The units of a zone's counted blocks, ascending. Blocks of a unit that were not counted hold no memory.
pub(crate) fn group_blocks(pageblock_order: Order, zone: &CensusZone, unit_order: Order) -> Vec<SupplyUnit> {
    let shift = unit_order.0.saturating_sub(pageblock_order.0);
    let per_block = pageblock_order.to_pages().0;
    let first = zone.first.0 / per_block;
    let mut folios = zone.one_folio.iter().copied().peekable();
    let mut units: Vec<(u64, SupplyUnit)> = Vec::new();
    for (index, counts) in &zone.blocks {
        while folios.next_if(|folio| folio < index).is_some() {}
        let one_folio = folios.next_if_eq(index).is_some();
        let number = (first + index) >> shift;
        if units.last().is_none_or(|last| last.0 != number) {
            units.push((number, SupplyUnit { counts: [0; PageClass::COUNT], one_folio: true }));
        }
        if let Some((_, unit)) = units.last_mut() {
            unit.counts.iter_mut().zip(counts.0).for_each(|(sum, count)| *sum += u64::from(count));
            unit.one_folio &= one_folio;
        }
    }
    let unit_pages = unit_order.to_pages().0.max(per_block);
    for (_, unit) in &mut units {
        let missing = unit_pages.saturating_sub(unit.total_pages());
        unit.counts[PageClass::Hole.index()] += missing;
        unit.one_folio &= missing == 0;
    }
    units.into_iter().map(|(_, unit)| unit).collect()
}

impl SupplyUnit {
    pub fn pages_of_class(&self, class: PageClass) -> u64 {
        self.counts[class.index()]
    }

    pub fn total_pages(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn has_memory(&self) -> bool {
        self.pages_of_class(PageClass::Hole) + self.pages_of_class(PageClass::Offline) < self.total_pages()
    }

    pub fn is_free(&self) -> bool {
        self.pages_of_class(PageClass::Free) == self.total_pages()
    }

    pub fn is_deferred(&self) -> bool {
        let deferred = self.pages_of_class(PageClass::Deferred);
        deferred > 0 && self.pages_of_class(PageClass::Free) + deferred == self.total_pages()
    }

    pub fn is_polluted(&self, unknown: UnknownTreatment) -> bool {
        let certain = PageClass::ALL.iter().any(|&class| class.pollutes() && self.pages_of_class(class) > 0);
        certain || unknown == UnknownTreatment::Unmovable && self.pages_of_class(PageClass::Unknown) > 0
    }

    pub fn is_polluted_only_by(&self, class: PageClass) -> bool {
        let others = PageClass::ALL
            .iter()
            .any(|&other| other != class && other.pollutes() && self.pages_of_class(other) > 0);
        self.pages_of_class(class) > 0 && !others
    }

    /// A huge page of anonymous or shared memory.
    fn is_huge_folio(&self) -> bool {
        self.one_folio && self.pages_of_class(PageClass::AnonHuge) == self.total_pages()
    }

    /// One folio of page cache, which compaction leaves where it is (mm/compaction.c,
    /// `skip_isolation_on_order`) and dropping frees whole.
    pub fn is_file_folio(&self) -> bool {
        self.one_folio && self.pages_of_class(PageClass::File) == self.total_pages()
    }

    pub fn is_in_use(&self) -> bool {
        let huge = self.pages_of_class(PageClass::Hugetlb) > 0 || self.is_huge_folio();
        huge && !self.is_polluted(UnknownTreatment::Unmovable)
    }

    /// Whether it is not a huge page already.
    pub fn is_obtainable(&self) -> bool {
        self.pages_of_class(PageClass::Hugetlb) == 0 && !self.is_huge_folio()
    }

    pub fn movable_pages(&self) -> u64 {
        PageClass::ALL
            .iter()
            .filter(|class| class.is_movable())
            .map(|&class| self.pages_of_class(class))
            .sum()
    }

    pub fn free_pages(&self, unknown: UnknownTreatment) -> u64 {
        let unknown =
            if unknown == UnknownTreatment::Free { self.pages_of_class(PageClass::Unknown) } else { 0 };
        self.pages_of_class(PageClass::Free) + self.pages_of_class(PageClass::Deferred) + unknown
    }
}

// Supply of pages above the largest buddy order, such as 1 GiB: aligned ranges of only free or movable
// pages, as `alloc_contig_pages` searches for them (mm/page_alloc.c).

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
    pub free: u64,
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
    /// The counts of some zones; absent for a sample, and for orders smaller than a counted block.
    pub(crate) fn count_zones<'z>(
        coverage: Coverage,
        pageblock_order: Order,
        zones: impl IntoIterator<Item = &'z CensusZone>,
        order: Order,
    ) -> Reading<GiganticCounts> {
        let absent = |detail: &str| Absence::new("census", AbsenceReason::Undefined, detail);
        if matches!(coverage, Coverage::Sample(_)) {
            let absence = absent("a sample of pageblocks does not cover larger ranges");
            return Err(absence.with_hint("give the census more time"));
        }
        if order < pageblock_order {
            return Err(absent("smaller than a pageblock"));
        }
        let mut counts = GiganticCounts::default();
        for zone in zones {
            aligned_ranges(pageblock_order, zone, order).for_each(|blocks| add_range(blocks, &mut counts));
        }
        Ok(counts)
    }

    /// Ranges in which every page is free, movable, or without a flag, the latter so few that per-CPU lists
    /// of `per_cpu` pages explain them, those with the fewest first: the kernel drains the lists before it
    /// takes a range (mm/page_alloc.c, `alloc_contig_range`).
    pub(crate) fn count_explained_by_pcp(
        pageblock_order: Order,
        zone: &CensusZone,
        order: Order,
        per_cpu: u64,
    ) -> u64 {
        let is_contiguous = |blocks: &&[(u64, PageblockCounts)]| {
            let mut counts = GiganticCounts::default();
            add_range(blocks, &mut counts);
            counts.contiguous_high > 0
        };
        let ranges = aligned_ranges(pageblock_order, zone, order).filter(is_contiguous);
        count_fitting(ranges.map(|blocks| count_class_pages(blocks, PageClass::Unknown)).collect(), per_cpu)
    }

    /// Ranges that would be available after freeing this many slab pages, the fewest first: every other page
    /// is free, movable, or without a flag.
    pub(crate) fn count_without_slab(
        pageblock_order: Order,
        zone: &CensusZone,
        order: Order,
        slab: u64,
    ) -> u64 {
        let freed = [PageClass::Free, PageClass::Deferred, PageClass::Unknown, PageClass::Slab];
        let fits = |class: PageClass| class.is_movable() || freed.contains(&class);
        let is_left = |blocks: &[(u64, PageblockCounts)]| {
            PageClass::ALL.into_iter().all(|class| fits(class) || count_class_pages(blocks, class) == 0)
        };
        let left = aligned_ranges(pageblock_order, zone, order).filter(|blocks| is_left(blocks));
        count_fitting(left.map(|blocks| count_class_pages(blocks, PageClass::Slab)).collect(), slab)
    }
}

/// The blocks of each aligned range that was counted whole; none for orders smaller than a block's.
fn aligned_ranges(
    pageblock_order: Order,
    zone: &CensusZone,
    order: Order,
) -> impl Iterator<Item = &[(u64, PageblockCounts)]> {
    let shift = u32::from(order.0.saturating_sub(pageblock_order.0));
    let first = zone.first.0 / pageblock_order.to_pages().0;
    let range_of = move |(index, _): &(u64, PageblockCounts)| (first + index).checked_shr(shift).unwrap_or(0);
    let blocks_needed = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
    let in_one = zone.blocks.chunk_by(move |a, b| range_of(a) == range_of(b));
    in_one.filter(move |blocks| blocks.len() as u64 == blocks_needed)
}

fn count_class_pages(blocks: &[(u64, PageblockCounts)], class: PageClass) -> u64 {
    blocks.iter().map(|(_, counts)| u64::from(counts.pages_of_class(class))).sum()
}

fn add_range(blocks: &[(u64, PageblockCounts)], sum: &mut GiganticCounts) {
    let free = |class| matches!(class, PageClass::Free | PageClass::Deferred);
    let movable = |class: PageClass| free(class) || class.is_movable();
    let movable_or_unknown = |class| movable(class) || class == PageClass::Unknown;
    let has_class = |class: PageClass| blocks.iter().any(|(_, counts)| counts.pages_of_class(class) > 0);
    let present = PageClass::ALL.into_iter().filter(|&class| has_class(class));
    let all = |of: &dyn Fn(PageClass) -> bool| present.clone().all(of);
    sum.hugetlb += u64::from(all(&|class| class == PageClass::Hugetlb));
    let steps: [(&dyn Fn(PageClass) -> bool, &mut u64); 3] = [
        (&movable_or_unknown, &mut sum.contiguous_high),
        (&movable, &mut sum.contiguous_low),
        (&free, &mut sum.free),
    ];
    let narrowed = steps.into_iter().try_for_each(|(of, count)| {
        let fits = all(of);
        *count += u64::from(fits);
        if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    sum.deferred += u64::from(narrowed.is_continue() && has_class(PageClass::Deferred));
}

#[cfg(test)]
mod tests;
