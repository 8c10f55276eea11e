//! What huge pages this memory could give: now, after compaction, after dropping cache; what is in the way.
//!
//! A *unit* is an aligned range of the PMD order that holds memory: a pageblock on nearly every machine. B
//! is its base pages. Hole pages at the edge of a zone are in the way; a range of holes and offline pages
//! alone is no unit.
//!
//! | number | unit | definition |
//! |---|---|---|
//! | `buddy_now` | huge pages | Σ over free blocks of at least the PMD order, in buddyinfo |
//! | `units` | units | ranges with at least one page that is neither hole nor offline |
//! | `free_now` | units | every page free |
//! | `deferred` | units | every page free or deferred, at least one deferred |
//! | `in_use` | units | hugetlb and nothing that spoils, or one anonymous or shared compound page |
//! | `spoiled` | units | a page of a class that spoils ([`PageClass::spoils`]); high end: or unknown |
//! | `spoiled_low_per_cpu` | units | high, less the most units that per-CPU lists can explain |
//! | `culprits.holding` | units | units that hold at least one page of the class |
//! | `culprits.alone` | units | of those, units in which no other class spoils for certain |
//! | `after_compaction` | units | U − ⌈max(0, M − F) / B⌉ in each zone; includes free and deferred |
//! | `after_dropping_cache` | units | the same with page cache counted as free |
//!
//! U are the units that are neither spoiled nor in use, M the movable pages in them, F the free pages in all
//! other units: perfect compaction packs M into F first, and then into as few units of U as it can. Deferred
//! pages count as free. The low end counts unknown pages as unmovable, the high end as free. It is an upper
//! bound: pinned pages look movable, unevictable pages move only with `compact_unevictable_allowed`,
//! watermarks are not kept, and dirty or mapped cache is not dropped at once.
//!
//! Where every page was seen, both `after` are not these but what [`crate::can`] predicts, so that `checkup`
//! and `can` say one number of one state: the table's are for samples, which `can` does not judge.
//!
//! In a sample, `units` is what the memory map says; each other number is the expansion estimate N/n · Σ of
//! each zone, with half of its 95 % interval: for counts from Wilson's score interval (the longer side) with
//! the effective size n (N − 1) / (N − n), for compaction from the variance between units,
//! t · N · √((1 − n/N) s² / n). Zones add in squares.

mod estimate;
mod gigantic;
#[cfg(test)]
mod tests;
pub(crate) mod unit;

use pagelab_model::{BuddyInfo, Census, CensusZone, Coverage, Order, PageClass, ZoneKey};

pub use estimate::{Estimate, Interval};
pub use gigantic::{GiganticCounts, GiganticSupply};

use crate::can::{Bounds, Forecast, Steps};
use estimate::{Population, Series};
use unit::{Unit, Unknown, units};

/// No page size has larger huge pages of PMD order; keeps a hostile order from overflowing.
const UNIT_ORDER_MAX: Order = Order(30);

/// Classes that can spoil a unit, the unknown last.
pub const CULPRITS: [PageClass; 8] = [
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
pub struct Supply {
    /// Order of a unit: the PMD order, or the census's block order where that is larger.
    pub unit_order: Order,
    /// By zone, in the census's order.
    pub zones: Vec<ZoneSupply>,
    /// All zones in sum.
    pub total: HugeSupply,
    /// Gigantic pages of each order that was asked for.
    pub gigantic: Vec<GiganticSupply>,
}

/// One zone's supply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSupply {
    /// The zone.
    pub key: ZoneKey,
    /// Its supply.
    pub huge: HugeSupply,
}

/// Counts of units; the module's table has the definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugeSupply {
    /// From buddyinfo, where it was read.
    pub buddy_now: Option<u64>,
    /// Units that hold memory.
    pub units: Estimate,
    /// Wholly free.
    pub free_now: Estimate,
    /// Wholly free or deferred, some of it deferred.
    pub deferred: Estimate,
    /// Huge pages in use or in a pool.
    pub in_use: Estimate,
    /// Never to be had, between unknown pages counted as free and as unmovable.
    pub spoiled: Interval,
    /// The low end of `spoiled` if only as many unknown pages are free as are on per-CPU lists; `None` for a
    /// sample.
    pub spoiled_low_per_cpu: Option<u64>,
    /// Pages on per-CPU lists: the most free pages among the unknown.
    pub per_cpu_pages: Option<u64>,
    /// Unknown pages.
    pub unknown_pages: Estimate,
    /// By [`CULPRITS`].
    pub culprits: Vec<Culprit>,
    /// To be had after perfect compaction.
    pub after_compaction: Interval,
    /// To be had after dropping the page cache and perfect compaction.
    pub after_dropping_cache: Interval,
}

/// How much one class is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The class.
    pub class: PageClass,
    /// Units that hold it.
    pub holding: Estimate,
    /// Units that it alone spoils.
    pub alone: Estimate,
}

/// The supply by a census, with buddyinfo beside it; gigantic pages of the orders in `gigantic`.
pub fn supply(census: &Census, buddy: Option<&BuddyInfo>, pmd_order: Order, gigantic: &[Order]) -> Supply {
    let unit_order = pmd_order.max(census.block_order).min(UNIT_ORDER_MAX);
    let zones: Vec<ZoneSupply> = census
        .zones
        .iter()
        .map(|zone| {
            let mut huge = zone_supply(census, zone, unit_order);
            let areas = buddy.and_then(|buddy| buddy.zone(&zone.key));
            huge.buddy_now =
                areas.map(|areas| u64::try_from(areas.blocks_suitable(pmd_order)).unwrap_or(u64::MAX));
            ZoneSupply { key: zone.key.clone(), huge }
        })
        .collect();
    let total = zones.iter().fold(None, |sum: Option<HugeSupply>, zone| {
        Some(sum.map_or_else(|| zone.huge.clone(), |sum| sum.plus(&zone.huge)))
    });
    let gigantic = gigantic.iter().map(|&order| GiganticSupply::of(census, order)).collect();
    Supply { unit_order, zones, total: total.unwrap_or_default(), gigantic }
}

impl Supply {
    /// Takes over what `can` predicts for each zone and in sum.
    pub(crate) fn plan(&mut self, forecast: &Forecast) {
        for zone in &mut self.zones {
            if let Some(found) = forecast.zones.iter().find(|found| found.key == zone.key) {
                zone.huge.plan(&found.steps);
            }
        }
        self.total.plan(&forecast.total);
    }
}

fn zone_supply(census: &Census, zone: &CensusZone, unit_order: Order) -> HugeSupply {
    let units = units(census.block_order, zone, unit_order);
    let population = match census.coverage {
        Coverage::Whole => Population::whole(units.len() as u64),
        Coverage::Sample(_) => {
            let blocks_per_unit = unit_order.pages().0 / census.block_order.pages().0;
            Population { total: zone.blocks_total.div_ceil(blocks_per_unit), seen: units.len() as u64 }
        }
    };
    let count = |holds: &dyn Fn(&Unit) -> bool| {
        population.count(units.iter().filter(|unit| unit.has_memory() && holds(unit)).count() as u64)
    };
    let spoiled = Interval {
        low: count(&|unit| unit.is_spoiled(Unknown::Free)),
        high: count(&|unit| unit.is_spoiled(Unknown::Unmovable)),
    };
    let is_whole = matches!(census.coverage, Coverage::Whole);
    let per_cpu_pages = zone.per_cpu.map(|pages| pages.0);
    let explained = per_cpu_pages.filter(|_| is_whole).map(|pages| explained_by_per_cpu(&units, pages));
    let compacted = |cache| Interval {
        low: obtainable(&units, population, unit_order, Unknown::Unmovable, cache),
        high: obtainable(&units, population, unit_order, Unknown::Free, cache),
    };
    HugeSupply {
        buddy_now: None,
        units: if units.iter().all(Unit::has_memory) {
            Estimate::exact(population.total)
        } else {
            count(&|_| true)
        },
        free_now: count(&|unit| unit.is_free()),
        deferred: count(&|unit| unit.is_deferred()),
        in_use: count(&|unit| unit.is_in_use()),
        spoiled_low_per_cpu: explained.map(|units| spoiled.high.value - units),
        spoiled,
        per_cpu_pages,
        unknown_pages: population.total_of(units.iter().map(|unit| unit.of(PageClass::Unknown) as i64)),
        culprits: CULPRITS
            .map(|class| Culprit {
                class,
                holding: count(&|unit| unit.of(class) > 0),
                alone: count(&|unit| unit.is_spoiled_by_alone(class)),
            })
            .to_vec(),
        after_compaction: compacted(false),
        after_dropping_cache: compacted(true),
    }
}

/// How many units would be unspoiled if the `pages` free pages of the per-CPU lists are unknown pages placed
/// as well as can be: units with the fewest unknown pages first.
fn explained_by_per_cpu(units: &[Unit], mut pages: u64) -> u64 {
    let only_unknown = |unit: &&Unit| unit.is_spoiled(Unknown::Unmovable) && !unit.is_spoiled(Unknown::Free);
    let mut unknown: Vec<u64> =
        units.iter().filter(only_unknown).map(|unit| unit.of(PageClass::Unknown)).collect();
    unknown.sort_unstable();
    let fits = |&&need: &&u64| {
        let left = pages.checked_sub(need);
        pages = left.unwrap_or(0);
        left.is_some()
    };
    unknown.iter().take_while(fits).count() as u64
}

/// U − ⌈max(0, M − F) / B⌉, written as min(U, ⌊(U B − M + F) / B⌋): both terms are sums over units.
fn obtainable(
    units: &[Unit],
    population: Population,
    unit_order: Order,
    unknown: Unknown,
    drop_cache: bool,
) -> Estimate {
    let mut usable = Series::default();
    let mut room = Series::default();
    for unit in units {
        let is_usable = unit.has_memory() && !unit.is_spoiled(unknown) && unit.is_obtainable();
        let cache = if drop_cache { unit.of(PageClass::File) } else { 0 };
        usable.push(i64::from(is_usable));
        room.push(if is_usable {
            (unit.pages() - (unit.movable() - cache)) as i64
        } else {
            (unit.free(unknown) + cache) as i64
        });
    }
    population.smaller_of(&usable, &room, unit_order.pages().0)
}

impl HugeSupply {
    fn plan(&mut self, steps: &Steps) {
        let ends = |bounds: Bounds| Interval {
            low: Estimate::exact(bounds.low),
            high: Estimate::exact(bounds.high),
        };
        self.after_compaction = ends(steps.after_compaction);
        self.after_dropping_cache = ends(steps.after_dropping_cache);
    }

    fn plus(self, other: &HugeSupply) -> HugeSupply {
        let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let culprits = self.culprits.iter().zip(&other.culprits).map(|(a, b)| Culprit {
            class: a.class,
            holding: a.holding.plus(b.holding),
            alone: a.alone.plus(b.alone),
        });
        HugeSupply {
            buddy_now: both(self.buddy_now, other.buddy_now),
            units: self.units.plus(other.units),
            free_now: self.free_now.plus(other.free_now),
            deferred: self.deferred.plus(other.deferred),
            in_use: self.in_use.plus(other.in_use),
            spoiled: self.spoiled.plus(other.spoiled),
            spoiled_low_per_cpu: both(self.spoiled_low_per_cpu, other.spoiled_low_per_cpu),
            per_cpu_pages: both(self.per_cpu_pages, other.per_cpu_pages),
            unknown_pages: self.unknown_pages.plus(other.unknown_pages),
            culprits: culprits.collect(),
            after_compaction: self.after_compaction.plus(other.after_compaction),
            after_dropping_cache: self.after_dropping_cache.plus(other.after_dropping_cache),
        }
    }
}
